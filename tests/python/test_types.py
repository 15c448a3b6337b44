"""Every type, alone and nested, as every writer writes it: the batches hold what pyarrow reads."""

from __future__ import annotations

import arrow_types
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from equality import as_forebay_has_them, check_reads, table_of

ROW_GROUPS = (40, 1, 64, 55)  # of the rows of `table_of`


def write(path: object, table: pa.Table, **options: object) -> None:
    """Writes row groups of several lengths, in pages of about eight rows."""
    settings = {"data_page_size": 64, "write_batch_size": 8, "write_page_index": True} | options
    with pq.ParquetWriter(path, table.schema, **settings) as writer:
        first = 0
        for length in ROW_GROUPS:
            writer.write_table(table.slice(first, length))
            first += length


def check_round_trip(path: object, table: pa.Table, **options: object) -> None:
    write(path, table, **options)
    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
    read = pq.read_table(path, columns=[field.name for field in table.schema if is_readable(field.type)])
    for name in schema.names:
        if name not in read.column_names:
            read = read.append_column(table.schema.field(name), table[name])
    check_reads(path, read.select(schema.names), as_forebay_has_them(schema, table.schema))


def is_readable(kind: pa.DataType, in_list: bool = False) -> bool:
    """Whether pyarrow reads it: it fails on row groups in which lists of dictionaries hold nothing.

    Where it does, what was written is expected instead.
    """
    if pa.types.is_dictionary(kind):
        return not in_list
    is_list = not pa.types.is_struct(kind)
    return all(is_readable(kind.field(i).type, in_list or is_list) for i in range(kind.num_fields))


NULLS = pytest.mark.parametrize("nulls", arrow_types.NULL_FRACTIONS)


@NULLS
def test_every_type_is_what_pyarrow_reads(tmp_path, nulls):
    table = table_of(arrow_types.nested(), arrow_types.NULL_FRACTIONS[nulls])
    check_round_trip(tmp_path / "a.parquet", table)


@NULLS
@pytest.mark.parametrize("container", arrow_types.CONTAINERS)
def test_every_type_in_every_container_is_what_pyarrow_reads(tmp_path, container, nulls):
    kinds = arrow_types.nested([container])
    check_round_trip(tmp_path / "a.parquet", table_of(kinds, arrow_types.NULL_FRACTIONS[nulls]))


@NULLS
@pytest.mark.parametrize("outer", arrow_types.CONTAINERS)
def test_containers_in_containers_are_what_pyarrow_reads(tmp_path, outer, nulls):
    kinds = arrow_types.nested([outer], arrow_types.CONTAINERS)
    check_round_trip(tmp_path / "a.parquet", table_of(kinds, arrow_types.NULL_FRACTIONS[nulls]))


@pytest.mark.parametrize("outer", arrow_types.CONTAINERS)
def test_containers_three_deep_are_what_pyarrow_reads(tmp_path, outer):
    kinds = arrow_types.nested([outer], arrow_types.CONTAINERS, arrow_types.CONTAINERS)
    check_round_trip(tmp_path / "a.parquet", table_of(kinds, 0.2))
