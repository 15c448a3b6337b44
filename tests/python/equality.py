"""What a file holds, by pyarrow, and all ways to read it with Forebay."""

from __future__ import annotations

import arrow_types
import numpy as np
import pyarrow as pa

import forebay as fb

NUM_ROWS = 160

VIEWS = {
    "string_view": pa.string(),
    "binary_view": pa.binary(),
}
NARROW = (pa.int8(), pa.int16(), pa.uint8(), pa.uint16())


def as_forebay_has_it(read: pa.DataType, written: pa.DataType) -> pa.DataType:
    """The type of a batch's column, from the one that pyarrow reads and the one that was written.

    It is pyarrow's but for these:

    - Views of strings, binary and lists come as plain strings, binary and lists: a view pins the page it points into,
      and rows of many pages lie in a shuffled batch.
    - The index of a dictionary has at least 32 bits: the values of all row groups stand in one batch, and eight bits
      number those of one.
    - Dictionaries of numbers and times come as they were written; pyarrow reads their values.
    - `date64` and the `large_string` of a dictionary come as they were written; pyarrow reads `date32` and `string`.
    """
    if isinstance(read, pa.BaseExtensionType):
        return read
    if pa.types.is_dictionary(written) and not pa.types.is_dictionary(read):
        is_kept = pa.types.is_integer(read) or pa.types.is_floating(read) or pa.types.is_temporal(read)
        index = pa.int32() if written.index_type in NARROW else written.index_type
        return pa.dictionary(index, read, written.ordered) if is_kept else read
    if pa.types.is_dictionary(read):
        index = pa.int32() if read.index_type in NARROW else read.index_type
        values = written.value_type if pa.types.is_large_string(written.value_type) else read.value_type
        return pa.dictionary(index, values, read.ordered)
    if pa.types.is_struct(read):
        return pa.struct([_field(field, written.field(field.name)) for field in read])
    if pa.types.is_map(read):
        key, item = _field(read.key_field, written.key_field), _field(read.item_field, written.item_field)
        return pa.map_(key, item, read.keys_sorted)
    if pa.types.is_fixed_size_list(read):
        return pa.list_(_field(read.value_field, written.value_field), read.list_size)
    if pa.types.is_list(read) or pa.types.is_list_view(read):
        return pa.list_(_field(read.value_field, written.value_field))
    if pa.types.is_large_list(read) or pa.types.is_large_list_view(read):
        return pa.large_list(_field(read.value_field, written.value_field))
    if pa.types.is_date64(written):
        return written
    return VIEWS.get(str(read), read)


def _field(read: pa.Field, written: pa.Field) -> pa.Field:
    return read.with_type(as_forebay_has_it(read.type, written.type))


def as_forebay_has_them(read: pa.Schema, written: pa.Schema) -> pa.Schema:
    fields = [_field(field, written.field(field.name)) for field in read]
    return pa.schema(fields, read.metadata)


def check_equal(got: pa.Table, expected: pa.Table) -> None:
    """Checks names, and values in which NaN equals itself and 0.0 differs from -0.0; types may store them otherwise."""
    assert got.column_names == expected.column_names
    assert got.num_rows == expected.num_rows
    for name in expected.column_names:
        ours, theirs = got[name], expected[name]
        if ours.type != theirs.type or not ours.equals(theirs):
            assert str(ours.to_pylist()) == str(theirs.to_pylist()), name


def check_reads(path: object, expected: pa.Table, schema: pa.Schema) -> None:
    """Checks every way to read: whole and in batches, in order and shuffled, all rows and some."""
    ds = fb.load_dataset(path, split="train")
    whole = pa.table(ds)
    whole.validate(full=True)
    assert whole.schema.equals(schema, check_metadata=True), _differences(whole.schema, schema)
    check_equal(whole, expected)
    for rows, batch_size in ((ds, 37), (ds.shuffle(1, num_lanes=2, window_rows=50), 23)):
        batches = [pa.record_batch(batch) for batch in rows.batches(batch_size)]
        for batch in batches:
            batch.validate(full=True)
        got = pa.Table.from_batches(batches)
        assert got.schema.equals(schema, check_metadata=True)
        if rows is ds:
            assert got["id"].equals(expected["id"])
        else:
            assert got["id"].to_pylist() != expected["id"].to_pylist()
        check_equal(_by_id(got), whole)
    some = pa.table(ds.filter("id % 3 = 1"))
    check_equal(some, whole.filter(pa.array(np.asarray(whole["id"]) % 3 == 1)))


def _by_id(table: pa.Table) -> pa.Table:
    return table.take(np.argsort(np.asarray(table["id"])))


def _differences(got: pa.Schema, expected: pa.Schema) -> str:
    fields = zip(got, expected, strict=True)
    return "\n".join(f"{a} != {b}" for a, b in fields if not a.equals(b, check_metadata=True))


def table_of(kinds: dict[str, pa.DataType], null_fraction: float, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng([seed, len(kinds)])
    columns = {name: arrow_types.random_array(rng, kind, NUM_ROWS, null_fraction) for name, kind in kinds.items()}
    fields = [pa.field(name, kind, metadata={"of": name}) for name, kind in kinds.items()]
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *fields], {"owner": "us"})
    return pa.table([pa.array(range(NUM_ROWS), pa.int64()), *columns.values()], schema=schema)
