"""Arrow types that Parquet holds, alone and nested, with seeded arrays of them."""

from __future__ import annotations

import decimal
import itertools
import json
from typing import TYPE_CHECKING

import data
import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WORDS = [*data.WORDS, "a", "z" * 40]

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]

LEAVES: dict[str, pa.DataType] = {
    **{str(kind): kind for kind in INTEGERS},
    **{str(kind): kind for kind in (pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.null())},
    **{str(kind): kind for kind in (pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"))},
    **{str(kind): kind for kind in (pa.time64("us"), pa.time64("ns"))},
    **{str(kind): kind for unit in ("s", "ms", "us", "ns") for kind in (pa.timestamp(unit), pa.duration(unit))},
    **{f"timestamp[{unit}, {zone}]": pa.timestamp(unit, zone) for unit, zone in (("ms", "UTC"), ("ns", "+02:00"))},
    "timestamp[us, Europe/Berlin]": pa.timestamp("us", "Europe/Berlin"),
    "decimal32(9, 2)": pa.decimal32(9, 2),
    "decimal64(18, 0)": pa.decimal64(18, 0),
    "decimal128(7, 3)": pa.decimal128(7, 3),
    "decimal128(15, 2)": pa.decimal128(15, 2),
    "decimal128(38, 38)": pa.decimal128(38, 38),
    "decimal256(10, 1)": pa.decimal256(10, 1),
    "decimal256(76, 20)": pa.decimal256(76, 20),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
    "fixed_size_binary[1]": pa.binary(1),
    "fixed_size_binary[5]": pa.binary(5),
    **{f"dictionary<{index}, string>": pa.dictionary(index, pa.string()) for index in INTEGERS},
    "dictionary<int32, large_string>": pa.dictionary(pa.int32(), pa.large_string()),
    "dictionary<int32, binary>": pa.dictionary(pa.int32(), pa.binary()),
    "dictionary<int16, int64>": pa.dictionary(pa.int16(), pa.int64()),
    "dictionary<uint8, int32>": pa.dictionary(pa.uint8(), pa.int32()),
    "dictionary<int32, double>": pa.dictionary(pa.int32(), pa.float64()),
    "dictionary<int32, date32>": pa.dictionary(pa.int32(), pa.date32()),
    "dictionary<int32, timestamp>": pa.dictionary(pa.int32(), pa.timestamp("us", "UTC")),
    "dictionary<int32, decimal>": pa.dictionary(pa.int32(), pa.decimal128(12, 2)),
    "dictionary<int32, fixed binary>": pa.dictionary(pa.int32(), pa.binary(3)),
    "ordered dictionary": pa.dictionary(pa.int32(), pa.string(), ordered=True),
    "fixed_shape_tensor": pa.fixed_shape_tensor(pa.float32(), [2, 3], dim_names=["h", "w"]),
    "uuid": pa.uuid(),
    "json": pa.json_(),
    "json of large_string": pa.json_(pa.large_string()),
    "bool8": pa.bool8(),
    "opaque": pa.opaque(pa.binary(), "geometry", "atlas"),
}

CONTAINERS: dict[str, Callable[[pa.DataType], pa.DataType]] = {
    "list": pa.list_,
    "large_list": pa.large_list,
    "fixed_size_list": lambda item: pa.list_(item, 2),
    "struct": lambda item: pa.struct([pa.field("a", item), pa.field("b", pa.int16())]),
    "map": lambda item: pa.map_(pa.string(), item),
    "list_view": pa.list_view,
    "large_list_view": pa.large_list_view,
}

# By how many containers there are around them: all, those that lie in memory in ways of their own, fewer.
INNER_LEAVES = (
    tuple(LEAVES),
    tuple(LEAVES),
    ("int32", "double", "bool", "string", "decimal128(15, 2)", "dictionary<int8, string>"),
    ("int32", "string", "dictionary<int8, string>"),
)

NULL_FRACTIONS = {"no nulls": 0.0, "nulls at every level": 0.2, "all null": 1.0}


def nested(*levels: Iterable[str]) -> dict[str, pa.DataType]:
    """Every chain of containers, one of each level, around leaves, under its name."""
    kinds = {}
    for *names, leaf in itertools.product(*levels, INNER_LEAVES[len(levels)]):
        if "struct" in names and "view" in leaf:
            continue  # pyarrow does not write views in structs: "Slicing not implemented for StringView"
        kind = LEAVES[leaf]
        for name in reversed(names):
            kind = CONTAINERS[name](kind)
        kinds[" of ".join([*names, leaf])] = kind
    return kinds


def random_array(rng: np.random.Generator, kind: pa.DataType, length: int, null_fraction: float) -> pa.Array:
    """An array of a type, with nulls at every level at places of their own.

    Floats have NaN, infinities and both zeros; strings are empty and beyond ASCII; lists are empty.
    """
    null = rng.random(length) < null_fraction
    mask = pa.array(null)

    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _storage(rng, kind, length, null_fraction))
    if pa.types.is_struct(kind):
        children = [random_array(rng, field.type, length, null_fraction) for field in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_fixed_size_list(kind):
        items = random_array(rng, kind.value_type, length * kind.list_size, null_fraction)
        return pa.FixedSizeListArray.from_arrays(items, type=kind, mask=mask)
    if pa.types.is_map(kind):
        offsets, num_items = _offsets(rng, null)
        keys = random_array(rng, kind.key_type, num_items, 0.0)
        items = random_array(rng, kind.item_type, num_items, null_fraction)
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items, type=kind, mask=mask)
    for is_kind, make, offset in LISTS:
        if is_kind(kind):
            offsets, num_items = _offsets(rng, null)
            items = random_array(rng, kind.value_type, num_items, null_fraction)
            if "View" in make.__name__:
                starts, sizes = offsets[:-1], np.diff(offsets)
                return make.from_arrays(pa.array(starts, offset), pa.array(sizes, offset), items, type=kind, mask=mask)
            return make.from_arrays(pa.array(offsets, offset), items, type=kind, mask=mask)
    if pa.types.is_dictionary(kind):
        values = random_array(rng, kind.value_type, 100, 0.0).unique()
        indices = pa.array(rng.integers(0, len(values), length), kind.index_type, mask=null)
        return pa.DictionaryArray.from_arrays(indices, values, ordered=kind.ordered)
    return _leaf(rng, kind, length, null)


LISTS = (
    (pa.types.is_list, pa.ListArray, pa.int32()),
    (pa.types.is_large_list, pa.LargeListArray, pa.int64()),
    (pa.types.is_list_view, pa.ListViewArray, pa.int32()),
    (pa.types.is_large_list_view, pa.LargeListViewArray, pa.int64()),
)


def _offsets(rng: np.random.Generator, null: np.ndarray) -> tuple[np.ndarray, int]:
    """Offsets of lists of 0 to 3 items, of none where null."""
    lengths = np.where(null, 0, rng.integers(0, 4, len(null)))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return offsets, int(offsets[-1])


def _storage(rng: np.random.Generator, kind: pa.BaseExtensionType, length: int, null_fraction: float) -> pa.Array:
    if kind.extension_name == "arrow.json":
        null = rng.random(length) < null_fraction
        texts = [json.dumps({"k": WORDS[i % len(WORDS)]}) for i in rng.integers(0, 100, length)]
        return pa.array(texts, kind.storage_type, mask=null)
    if kind.extension_name == "arrow.fixed_shape_tensor":
        items = random_array(rng, kind.value_type, length * kind.storage_type.list_size, 0.0)
        mask = pa.array(rng.random(length) < null_fraction)
        return pa.FixedSizeListArray.from_arrays(items, type=kind.storage_type, mask=mask)
    return random_array(rng, kind.storage_type, length, null_fraction)


def _leaf(rng: np.random.Generator, kind: pa.DataType, length: int, null: np.ndarray) -> pa.Array:
    if pa.types.is_null(kind):
        return pa.nulls(length)
    if pa.types.is_boolean(kind):
        return pa.array(rng.integers(0, 2, length).astype(bool), mask=null)
    if pa.types.is_floating(kind):
        values = rng.normal(size=length).astype(kind.to_pandas_dtype())
        for value in (np.nan, np.inf, -np.inf, 0.0, -0.0):
            values[rng.random(length) < 0.03] = value
        return pa.array(values, kind, mask=null)
    if pa.types.is_integer(kind):
        limits = np.iinfo(kind.to_pandas_dtype())
        values = rng.integers(limits.min, limits.max, length, dtype=kind.to_pandas_dtype(), endpoint=True)
        return pa.array(values, kind, mask=null)
    if pa.types.is_decimal(kind):
        # Exact: the context of arithmetic has 28 digits.
        digits = [int("".join(map(str, row))) for row in rng.integers(0, 10, (length, kind.precision))]
        signs = rng.integers(0, 2, length)
        values = [
            decimal.Decimal((int(sign), decimal.Decimal(value).as_tuple().digits, -kind.scale))
            for sign, value in zip(signs, digits, strict=True)
        ]
        return pa.array([None if is_null else value for value, is_null in zip(values, null, strict=True)], kind)
    if pa.types.is_fixed_size_binary(kind):
        values = [rng.bytes(kind.byte_width) for _ in range(length)]
        return pa.array([None if is_null else value for value, is_null in zip(values, null, strict=True)], kind)
    if pa.types.is_temporal(kind):
        low, high, step = _range(kind)
        values = rng.integers(low, high, length) * step
        return pa.array(values.astype(f"i{kind.bit_width // 8}"), mask=null).view(kind)
    words = [WORDS[i] for i in rng.integers(0, len(WORDS), length)]
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()
    values = words if is_text else [word.encode() + b"\xff\x00" for word in words]
    return pa.array([None if is_null else value for value, is_null in zip(values, null, strict=True)], kind)


def _range(kind: pa.DataType) -> tuple[int, int, int]:
    """Least value, the one after the greatest, and step of a temporal type's integers."""
    if pa.types.is_date32(kind):
        return -700_000, 100_000, 1  # years of `datetime.date`
    if pa.types.is_date64(kind):
        return -30_000, 30_000, 86_400_000
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
    if pa.types.is_time(kind):
        return 0, 86_400 * per_second, 1
    return -(10**9) * per_second, 4 * 10**9 * per_second, 1
