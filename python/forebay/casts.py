"""Other names and types for columns, as queries: what is computed as rows are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.exceptions import SettingError
from forebay.feature_types import storage_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def rename_query(names: Sequence[str], renamed: Mapping[str, str]) -> str:
    """Returns the query that renames columns.

    Raises:
        SettingError: two columns would have one name.
    """
    after = [renamed.get(name, name) for name in names]
    for name in renamed.values():
        if after.count(name) > 1:
            raise SettingError(f"column_mapping: `{name}` would be the name of two columns")
    columns = [f"{_quoted(name)} AS {_quoted(new)}" for name, new in zip(names, after, strict=True)]
    return f"SELECT {', '.join(columns)} FROM dataset"  # noqa: S608 - names are quoted


def cast_query(schema: Any, features: Mapping[str, Any]) -> str | None:
    """Returns the query that gives columns the types of features in JSON form; None if they have them.

    Raises:
        SettingError: something is no feature, or its type has no name in SQL.
    """
    columns, is_cast = [], False
    for field in schema:
        text = _quoted(field.name)
        wanted = _stored_as(field.name, features[field.name]) if field.name in features else field.type
        if _plain(field.type) != _plain(wanted):
            text = f"arrow_cast({text}, '{_type_name(field.name, wanted)}') AS {text}"
            is_cast = True
        columns.append(text)
    return f"SELECT {', '.join(columns)} FROM dataset" if is_cast else None  # noqa: S608 - names are quoted


def _stored_as(column: str, feature: Any) -> Any:
    try:
        return storage_type(feature)
    except ValueError as error:
        raise SettingError(f"features: column `{column}`: {error}; expected one such as `Value('float32')`") from error


def _plain(data_type: Any) -> Any:
    """Returns the type below an extension type."""
    return getattr(data_type, "storage_type", data_type)


def _type_name(column: str, data_type: Any) -> str:
    """Returns an Arrow type as the engine writes it."""
    import pyarrow as pa

    types = pa.types
    units = {"s": "s", "ms": "ms", "us": "µs", "ns": "ns"}
    names = {"string": "Utf8", "large_string": "LargeUtf8", "binary": "Binary", "large_binary": "LargeBinary"}
    names |= {"bool": "Boolean", "halffloat": "Float16", "float": "Float32", "double": "Float64"}
    name = str(data_type)
    if name in names:
        return names[name]
    if types.is_integer(data_type):
        return name.replace("uint", "UInt") if types.is_unsigned_integer(data_type) else name.capitalize()
    if types.is_date(data_type):
        return "Date32" if types.is_date32(data_type) else "Date64"
    if types.is_timestamp(data_type):
        zone = "" if data_type.tz is None else f', "{data_type.tz}"'
        return f"Timestamp({units[data_type.unit]}{zone})"
    if types.is_time(data_type) or types.is_duration(data_type):
        kind = "Duration" if types.is_duration(data_type) else f"Time{data_type.bit_width}"
        return f"{kind}({units[data_type.unit]})"
    if types.is_decimal128(data_type) or types.is_decimal256(data_type):
        return f"Decimal{data_type.bit_width}({data_type.precision}, {data_type.scale})"
    if types.is_list(data_type) or types.is_large_list(data_type):
        kind = "List" if types.is_list(data_type) else "LargeList"
        return f"{kind}({_type_name(column, data_type.value_type)})"
    if types.is_fixed_size_list(data_type):
        return f"FixedSizeList({data_type.list_size}, {_type_name(column, data_type.value_type)})"
    raise SettingError(f"features: column `{column}` cannot be cast to `{data_type}`; compute it by `ds.sql`")
