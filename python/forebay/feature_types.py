"""The Arrow types that store features in JSON form, and the features of Arrow types, without `datasets`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

LISTS = {"list": "List", "large_list": "LargeList", "sequence": "List"}
"""Kinds of lists in YAML, and in JSON."""

MEDIA = ("Image", "Audio", "Video", "Pdf", "Nifti", "Mesh", "BioSequence", "BioStructure")
"""Features whose values are the bytes or the path of a file."""

ARRAYS = {f"Array{dimensions}D": dimensions for dimensions in range(2, 6)}

ALIASES = {"double": "float64", "float": "float32"}

SIMPLE = (
    *("null", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "date32", "date64"),
    *("binary", "large_binary", "binary_view", "string", "large_string", "string_view"),
)
"""Types for which pyarrow has a function of the same name, perhaps with a trailing underscore."""


def value_dtype(name: str) -> str | None:
    """Returns the dtype of a `Value` as `datasets` spells it; None if there is no such dtype."""
    name = ALIASES.get(name, name)
    return None if value_type(name) is None else name


def value_type(name: str) -> pa.DataType | None:
    """Returns the Arrow type of a `Value` of dtype `name`; None if there is no such dtype."""
    import pyarrow as pa

    if name in SIMPLE:
        make = getattr(pa, f"{name}_", None) or getattr(pa, name)
        return make()
    patterns: dict[str, Callable[..., pa.DataType]] = {
        r"timestamp\[(s|ms|us|ns)\]": pa.timestamp,
        r"timestamp\[(s|ms|us|ns),\s*tz=([a-zA-Z0-9/_+\-:]*)\]": pa.timestamp,
        r"duration\[(s|ms|us|ns)\]": pa.duration,
        r"time32\[(s|ms)\]": pa.time32,
        r"time64\[(us|ns)\]": pa.time64,
        r"decimal128\((\d+),\s*(-?\d+)\)": lambda digits, scale: pa.decimal128(int(digits), int(scale)),
        r"decimal256\((\d+),\s*(-?\d+)\)": lambda digits, scale: pa.decimal256(int(digits), int(scale)),
        r"fixed_size_binary\[(\d+)\]": lambda width: pa.binary(int(width)),
    }
    for pattern, make in patterns.items():
        if found := re.fullmatch(pattern, name):
            return make(*found.groups())
    return None


def storage_type(feature: Any) -> pa.DataType:
    """Returns the Arrow type, without extensions, that stores a feature in JSON form.

    Raises:
        ValueError: it is not a feature, or an unknown one.
    """
    import pyarrow as pa

    if isinstance(feature, list) and len(feature) == 1:
        return pa.list_(storage_type(feature[0]))
    if not isinstance(feature, dict):
        raise ValueError(f"{feature!r} is not a feature")  # noqa: TRY004 - as for everything that is not a feature
    kind = feature.get("_type")
    if kind is None or isinstance(kind, dict):
        return pa.struct([(name, storage_type(part)) for name, part in feature.items()])
    if kind == "Value":
        name = str(feature["dtype"])
        found = value_type(ALIASES.get(name, name))
        if found is None:
            raise ValueError(f"{name!r} is not a dtype")
        return found
    if kind == "ClassLabel":
        return pa.int64()
    if kind == "Json":
        return pa.string()
    if kind in ("List", "Sequence"):
        return _list_type(feature)
    if kind == "LargeList":
        return pa.large_list(storage_type(feature["feature"]))
    if kind in ARRAYS:
        array = storage_type({"_type": "Value", "dtype": feature["dtype"]})
        for _ in range(ARRAYS[kind]):
            array = pa.list_(array)
        return array
    if kind in MEDIA:
        return pa.struct({"bytes": pa.binary(), "path": pa.string()})
    if kind == "Translation":
        return pa.struct({language: pa.string() for language in sorted(feature["languages"])})
    if kind == "TranslationVariableLanguages":
        return pa.struct({"language": pa.list_(pa.string()), "translation": pa.list_(pa.string())})
    raise ValueError(f"{kind!r} is not a kind of feature")


def stored_type(data_type: pa.DataType) -> pa.DataType:
    """Returns the type below an extension type."""
    return getattr(data_type, "storage_type", data_type)


def _list_type(feature: dict[str, Any]) -> pa.DataType:
    import pyarrow as pa

    item, length = feature["feature"], feature.get("length", -1)
    if feature["_type"] == "Sequence" and isinstance(item, dict) and "_type" not in item:
        lists = {name: {**feature, "feature": part} for name, part in item.items()}
        return pa.struct([(name, storage_type(part)) for name, part in lists.items()])
    return pa.list_(storage_type(item), length)


def infer_feature(field: pa.Field) -> Any:
    """Returns the feature of an Arrow field, in JSON form.

    Raises:
        ValueError: there is no feature for its type.
    """
    import pyarrow as pa

    data_type, types = field.type, pa.types
    extension = _extension(field)
    if extension is not None:
        return extension
    if types.is_struct(data_type):
        return {part.name: infer_feature(part) for part in data_type}
    if types.is_fixed_size_list(data_type):
        return {"feature": infer_feature(data_type.value_field), "length": data_type.list_size, "_type": "List"}
    if types.is_list(data_type):
        return {"feature": infer_feature(data_type.value_field), "_type": "List"}
    if types.is_large_list(data_type):
        return {"feature": infer_feature(data_type.value_field), "_type": "LargeList"}
    if types.is_dictionary(data_type):
        return infer_feature(field.with_type(data_type.value_type))
    name = _dtype_name(data_type)
    if value_type(name) is None:
        raise ValueError(f"Arrow type {data_type} does not have a datasets dtype equivalent.")
    return {"dtype": name, "_type": "Value"}


def _extension(field: pa.Field) -> Any:
    """Returns the feature for an extension type of `datasets`, or Arrow's JSON type."""
    name, told = "", b""
    if hasattr(field.type, "storage_type"):
        name = field.type.extension_name
        serialize = getattr(field.type, "__arrow_ext_serialize__", bytes)
        told = serialize()
    elif field.metadata:
        name = field.metadata.get(b"ARROW:extension:name", b"").decode()
        told = field.metadata.get(b"ARROW:extension:metadata", b"")
    if name == "arrow.json":
        return {"_type": "Json"}
    found = re.fullmatch(r"datasets\.features\.features\.(Array[2-5]D)ExtensionType", name)
    if found is None:
        return None
    shape, dtype = json.loads(told)
    return {"shape": shape, "dtype": dtype, "_type": found[1]}


def _dtype_name(data_type: pa.DataType) -> str:
    """Returns a type's name as `datasets` spells it."""
    name = str(data_type)
    if name.startswith("date"):
        return name.split("[")[0]
    return {"halffloat": "float16", **ALIASES}.get(name, name)
