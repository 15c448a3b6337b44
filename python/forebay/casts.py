"""Casts of columns, as queries that are computed as rows are read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from forebay.exceptions import SettingError
from forebay.feature_types import LISTS, MEDIA, storage_type, stored_type
from forebay.features import without_feature
from forebay.filters import identifier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

JSON = {"_type": "Json"}
"""The feature of JSON text."""

UNITS = {"s": "s", "ms": "ms", "us": "µs", "ns": "ns"}
"""Units of time, from coarse to fine, as spelled by the engine."""


def cast_query(schema: Any, features: Mapping[str, Any]) -> str | None:
    """Returns the query that casts columns to the types of features in JSON form; None if they have these types.

    If the new type may not hold every value, Forebay's SQL function `cast_column` casts, which fails on such values.

    Raises:
        SettingError: a feature is invalid, or its type has no name in SQL.
    """
    types = {name: stored_type(_stored_as(name, feature)) for name, feature in features.items()}
    differing = {
        field.name: features[field.name]
        for field in schema
        if field.name in types and stored_type(field.type) != types[field.name]
    }
    # JSON and arrays stored within lists and structs have the feature already.
    differing = without_feature(schema, differing)
    columns = []
    for field in schema:
        text, feature = identifier(field.name), differing.get(field.name)
        is_cast = feature is not None
        columns.append(f"{_cast(field, types[field.name], feature)} AS {text}" if is_cast else text)
    return f"SELECT {', '.join(columns)} FROM dataset" if differing else None  # noqa: S608 - names are quoted


def check_features(schema: Any, features: Mapping[str, Any]) -> None:
    """Refuses features in JSON form that the values would not have.

    Raises:
        SettingError: there is JSON within a list or a struct, which only files can declare.
    """
    nested = {name: feature for name, feature in features.items() if feature != JSON and _holds_json(feature)}
    for name in without_feature(schema, nested):
        raise SettingError(
            f"features: column `{name}` cannot have `Json` within lists or structs, because its files do not say that "
            "this text is JSON; take it as `Value('string')`"
        )


def _holds_json(feature: Any) -> bool:
    parts = feature.values() if isinstance(feature, dict) else feature if isinstance(feature, list) else ()
    return feature == JSON or any(map(_holds_json, parts))


def _stored_as(column: str, feature: Any) -> Any:
    try:
        return storage_type(feature)
    except ValueError as error:
        raise SettingError(f"features: column `{column}`: {error}; expected one such as `Value('float32')`") from error


def _cast(field: Any, wanted: Any, feature: Any) -> str:
    """Returns the SQL that casts a column to `wanted`, the type of `feature`."""
    import pyarrow as pa

    types, classes = pa.types, _classes(feature)
    have, becomes = _leaves(field.type, wanted)
    is_known = _becomes(field.type, wanted, feature) if types.is_nested(becomes) else _has_cast(have, becomes)
    if not is_known or not _may_have_length(field.type, wanted) or (classes and types.is_temporal(have)):
        raise _refused(field.name, wanted, is_encoded=_is_encoded(field.type, feature))

    def exactly(value: str, to: Any, names: Sequence[str] = ()) -> str:
        known = _text(json.dumps(names, ensure_ascii=False)) if names else "''"
        return f"cast_column({value}, {_text(_type_name(field.name, to))}, {_text(field.name)}, {known})"

    column = identifier(field.name)
    if types.is_nested(becomes) and not types.is_null(have):
        return exactly(column, wanted)
    if classes and _is_text(have):
        return exactly(column, wanted, classes)
    if classes and not types.is_null(have):
        if types.is_floating(have) or types.is_decimal(have) or types.is_boolean(have):
            column = exactly(column, _with_leaf(wanted, pa.int32()))
        # Numbers are matched as class numbers, whatever the classes are called.
        return exactly(column, wanted, [str(number) for number in range(len(classes))])
    if types.is_timestamp(becomes) and becomes.tz is not None and _has_no_zone(have):
        # The engine would take the value as local time in that zone.
        have = pa.timestamp(have.unit if types.is_timestamp(have) else "s" if types.is_date32(have) else "ms", "UTC")
        column = f"arrow_cast({column}, '{_type_name(field.name, _with_leaf(field.type, have))}')"
    if _may_round(have, becomes):
        return f"arrow_cast({column}, '{_type_name(field.name, wanted)}')"
    return exactly(column, wanted)


def _may_have_length(have: Any, wanted: Any) -> bool:
    """Whether lists of one type can have the length that another type says, at all levels that both have."""
    import pyarrow as pa

    have, types = stored_type(have), pa.types
    if types.is_dictionary(have):
        have = have.value_type
    if not _is_list(have) or not _is_list(wanted):
        return True
    is_of_length = types.is_fixed_size_list(have) and types.is_fixed_size_list(wanted)
    if is_of_length and have.list_size != wanted.list_size:
        return False
    return _may_have_length(have.value_type, wanted.value_type)


def _has_cast(have: Any, wanted: Any) -> bool:
    """Whether `datasets` casts one type to another, as pyarrow does; the engine would also cast numbers to bytes."""
    import pyarrow as pa

    if pa.types.is_nested(have) or pa.types.is_nested(wanted):
        return bool(is_alike(have, wanted) or pa.types.is_null(have))
    try:
        pa.nulls(0, have).cast(wanted)
    except pa.ArrowNotImplementedError:
        return False
    except pa.ArrowInvalid:
        # The cast exists, but the type may not hold all values.
        return True
    return True


def _becomes(have: Any, wanted: Any, feature: Any) -> bool:
    """Whether `datasets` casts a type to `wanted`, the type of `feature`; structs by the names of their fields."""
    import pyarrow as pa

    have, types = stored_type(have), pa.types
    if types.is_dictionary(have):
        have = have.value_type
    if have == wanted or types.is_null(have):
        return True
    if _is_list(have) and _is_list(wanted):
        return _may_have_length(have, wanted) and _becomes(have.value_type, wanted.value_type, _item(feature))
    if not types.is_struct(wanted):
        # Within structs, only numbers can become classes.
        is_leaf = not types.is_nested(have) and not types.is_nested(wanted)
        return is_alike(have, wanted) or (is_leaf and not _classes(feature) and _has_cast(have, wanted))
    is_medium = isinstance(feature, dict) and feature.get("_type") in MEDIA
    if _is_encoded(have, feature):
        return False
    if not types.is_struct(have):
        return is_medium and (_is_text(have) or _is_binary(have))
    shared = [name for name in wanted.names if have.names.count(name) == 1]
    if not shared or (len(shared) < have.num_fields and not is_medium):
        return False
    return all(_becomes(have.field(name).type, wanted.field(name).type, _part(feature, name)) for name in shared)


def _is_encoded(have: Any, feature: Any) -> bool:
    """Whether `datasets` encodes the values of a type to make media of them: pixels of images, samples of audio."""
    import pyarrow as pa

    have, item = stored_type(have), _item(feature)
    if item is not None:
        return _is_list(have) and _is_encoded(have.value_type, item)
    kind = feature.get("_type") if isinstance(feature, dict) else None
    if kind == "Audio":
        return bool(pa.types.is_struct(have)) and "array" in have.names
    return kind == "Image" and _is_list(have)


def _item(feature: Any) -> Any:
    """Returns the feature of the items of a list; None if it is unknown."""
    if isinstance(feature, list):
        return feature[0]
    is_list = isinstance(feature, dict) and feature.get("_type") in (*LISTS.values(), "Sequence")
    return feature["feature"] if is_list else None


def _part(feature: Any, name: str) -> Any:
    """Returns the feature of a field of a struct; None if it is unknown."""
    if not isinstance(feature, dict):
        return None
    item = _item(feature)
    if isinstance(item, dict):
        # A list of structs stands for a struct of lists.
        return {**feature, "feature": item[name]}
    part = feature.get(name)
    return part if isinstance(part, dict | list) else None


def is_alike(have: Any, wanted: Any) -> bool:
    """Whether two types differ at most in nullability and in the names of list items."""
    import pyarrow as pa

    have, types = stored_type(have), pa.types
    if not types.is_nested(have) or have.id != wanted.id or have.num_fields != wanted.num_fields:
        return bool(have == wanted)
    if types.is_struct(have) and have.names != wanted.names:
        return False
    if types.is_fixed_size_list(have) and have.list_size != wanted.list_size:
        return False
    return all(is_alike(have.field(place).type, wanted.field(place).type) for place in range(have.num_fields))


def _has_no_zone(data_type: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_date(data_type) or (pa.types.is_timestamp(data_type) and data_type.tz is None))


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _classes(feature: Any) -> list[str]:
    """Returns the class names of a `ClassLabel`, or of lists of them; none for other features."""
    item = _item(feature)
    if item is not None:
        return _classes(item)
    if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
        return []
    names = feature.get("names")
    return [str(name) for name in (range(feature.get("num_classes") or 0) if names is None else names)]


def _leaves(have: Any, wanted: Any) -> tuple[Any, Any]:
    """Returns the item types of two types, below all levels of lists that both have."""
    import pyarrow as pa

    have = stored_type(have)
    if pa.types.is_dictionary(have):
        return _leaves(have.value_type, wanted)
    if _is_list(have) and _is_list(wanted):
        return _leaves(have.value_type, wanted.value_type)
    return have, wanted


def _with_leaf(data_type: Any, leaf: Any) -> Any:
    """Returns a type with the item type below its lists replaced by `leaf`."""
    import pyarrow as pa

    data_type = stored_type(data_type)
    if not _is_list(data_type):
        return leaf
    item = _with_leaf(data_type.value_type, leaf)
    if pa.types.is_fixed_size_list(data_type):
        return pa.list_(item, data_type.list_size)
    return pa.large_list(item) if pa.types.is_large_list(data_type) else pa.list_(item)


def _is_list(data_type: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(types.is_list(data_type) or types.is_large_list(data_type) or types.is_fixed_size_list(data_type))


def _is_text(data_type: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type))


def _is_binary(data_type: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(types.is_binary(data_type) or types.is_large_binary(data_type) or types.is_fixed_size_binary(data_type))


def _may_round(have: Any, wanted: Any) -> bool:
    """Whether the engine's cast keeps a value, fails, or gives the nearest one, as in `datasets`."""
    import pyarrow as pa

    types = pa.types
    if types.is_null(have) or types.is_boolean(have) or _holds(have, wanted):
        return True
    if _is_text(wanted) or types.is_binary(wanted) or types.is_large_binary(wanted) or types.is_boolean(wanted):
        return True
    if types.is_floating(wanted):
        return bool(types.is_floating(have) or types.is_decimal(have) or _is_text(have))
    return bool(types.is_floating(have) and types.is_decimal(wanted))


def _holds(have: Any, wanted: Any) -> bool:
    """Whether a type represents exactly all values of another type that lie within its range."""
    import pyarrow as pa

    types = pa.types
    if types.is_integer(have):
        is_fine = types.is_floating(wanted) and 2 * have.bit_width <= wanted.bit_width
        return bool(types.is_integer(wanted) or is_fine or (types.is_decimal(wanted) and wanted.scale >= 0))
    if types.is_decimal(have):
        return bool(types.is_decimal(wanted) and wanted.scale >= have.scale)
    for is_kind in (types.is_timestamp, types.is_time, types.is_duration):
        if is_kind(have) and is_kind(wanted):
            return list(UNITS).index(have.unit) <= list(UNITS).index(wanted.unit)
    return bool(have == wanted or (types.is_date32(have) and types.is_timestamp(wanted)))


def _type_name(column: str, data_type: Any) -> str:
    """Returns an Arrow type as spelled by the engine."""
    import pyarrow as pa

    types = pa.types
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
        return f"Timestamp({UNITS[data_type.unit]}{zone})"
    if types.is_time(data_type) or types.is_duration(data_type):
        kind = "Duration" if types.is_duration(data_type) else f"Time{data_type.bit_width}"
        return f"{kind}({UNITS[data_type.unit]})"
    if types.is_decimal128(data_type) or types.is_decimal256(data_type):
        return f"Decimal{data_type.bit_width}({data_type.precision}, {data_type.scale})"
    if types.is_list(data_type) or types.is_large_list(data_type):
        kind = "List" if types.is_list(data_type) else "LargeList"
        return f"{kind}({_type_name(column, data_type.value_type)})"
    if types.is_fixed_size_list(data_type):
        return f"FixedSizeList({data_type.list_size}, {_type_name(column, data_type.value_type)})"
    # The engine cannot read other names.
    if types.is_struct(data_type) and all(field.name and not {'"', "\\"} & set(field.name) for field in data_type):
        fields = [f'"{field.name}": {_type_name(column, field.type)}' for field in data_type]
        return f"Struct({', '.join(fields)})"
    raise _refused(column, data_type)


def _refused(column: str, data_type: Any, *, is_encoded: bool = False) -> SettingError:
    if is_encoded:
        return SettingError(
            f"features: column `{column}` holds pixels or samples, which are not encoded here; `datasets` does that: "
            f"`ds.to_hf().cast_column({column!r}, ...)`"
        )
    return SettingError(f"features: column `{column}` cannot be cast to `{data_type}`; compute it by `ds.sql`")
