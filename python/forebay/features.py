"""Features: the types, classes and media of columns, as defined by Hugging Face `datasets`.

They come from the metadata of files that `datasets` wrote, from YAML in dataset cards, and otherwise from Arrow types.
With `datasets` installed they are its `Features`; without it, a dict in the JSON form that `Features.from_dict` takes.
"""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forebay.exceptions import DataError, SchemaError, SettingError
from forebay.feature_types import LISTS, infer_feature, storage_type, stored_type, value_dtype
from forebay.packages import import_for

if TYPE_CHECKING:
    from collections.abc import Sequence

METADATA = b"huggingface"
"""The key of features in the metadata of a schema."""

NO_FEATURE = (ValueError, TypeError, KeyError, AttributeError, IndexError)
"""Exceptions that malformed features may raise, in `datasets` or here."""


def datasets_module() -> Any:
    """Returns `datasets`, or None if it is not installed."""
    try:
        return importlib.import_module("datasets")
    except ImportError:
        return None


def read_features(exported: Any) -> Any:
    """Returns the features of an object with an Arrow schema, column by column.

    A feature in the metadata is used if its Arrow type is that of the column, as in `datasets`.

    Raises:
        SchemaError: a column has a type that features cannot express, such as a map.
    """
    datasets, pa = datasets_module(), import_for("`features`", "pyarrow")
    # Extension types are known by now: `datasets` registers its own.
    schema = pa.schema(exported)
    told = _told(schema)
    found = {field.name: _feature_of(field, told.get(field.name), datasets) for field in schema}
    return found if datasets is None else datasets.Features(found)


def without_feature(exported: Any, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of `wanted`, features in JSON form, that the columns of an Arrow schema do not have."""
    datasets = datasets_module()
    import pyarrow as pa

    schema = pa.schema(exported)
    told = _told(schema) if wanted else {}

    def has(name: str, feature: Any) -> bool:
        try:
            found = to_json({name: _feature_of(schema.field(name), told.get(name), datasets)})
        except (SchemaError, SettingError):
            return False
        return bool(found[name] == feature)

    return {name: feature for name, feature in wanted.items() if not has(name, feature)}


def with_plain_arrays(rows: Any) -> Any:
    """Returns a pyarrow batch or table with the array types of `datasets` turned into lists.

    Both are the same in Python, but `datasets` fails if an array of variable length is NULL.

    Raises:
        DataError: an array has another shape than its type, which a cast does not check.
    """
    for place, field in enumerate(rows.schema):
        if getattr(field.type, "extension_name", "").startswith("datasets."):
            plain = rows.column(place).cast(field.type.storage_type)
            _check_shape(field, plain)
            rows = rows.set_column(place, field.name, plain)
    return rows


def _check_shape(field: Any, lists: Any) -> None:
    import pyarrow.compute as pc

    for dimension in field.type.shape:
        found = pc.unique(pc.list_value_length(lists).drop_null()).to_pylist()
        if dimension is not None and any(length != dimension for length in found):
            wrong = next(length for length in found if length != dimension)
            raise DataError(
                f"column `{field.name}` holds a value that is no array of shape {tuple(field.type.shape)}: expected "
                f"{dimension} items, got {wrong}; leave that row out, or cast the column to another feature"
            )
        lists = pc.list_flatten(lists)


def _told(schema: Any) -> dict[str, Any]:
    """Returns the features in the metadata of a schema, in JSON form."""
    try:
        features = json.loads((schema.metadata or {})[METADATA])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return features if isinstance(features, dict) else {}


def _feature_of(field: Any, told: Any, datasets: Any) -> Any:
    if told is not None:
        feature = _checked(field, told, datasets)
        if feature is not None:
            return feature
    try:
        if datasets is None:
            return infer_feature(field)
        import pyarrow as pa

        return datasets.Features.from_arrow_schema(pa.schema([field.remove_metadata()]))[field.name]
    except ValueError as error:
        raise SchemaError(
            f"column `{field.name}` of type `{field.type}` has no feature: {error}; leave it out with `remove_columns`"
        ) from error


def _checked(field: Any, told: Any, datasets: Any) -> Any:
    """Returns the feature that a JSON object describes, if it is valid and has the field's type."""
    try:
        if datasets is None:
            return told if field.nullable and storage_type(told).equals(stored_type(field.type)) else None
        features = datasets.Features.from_dict({field.name: told})
        return features[field.name] if features.arrow_schema.field(field.name) == field else None
    except NO_FEATURE:
        return None


def features_from_card(entries: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> Any:
    """Returns the features that a dataset card lists under `dataset_info.features`, in the lists and dicts of YAML.

    Also takes the JSON form, by name, of `dataset_infos.json`.

    Raises:
        SchemaError: the entries are not features.

    Example:
        >>> from forebay.features import features_from_card
        >>> features_from_card([{"name": "label", "dtype": {"class_label": {"names": {"0": "cat", "1": "dog"}}}}])
        {'label': ClassLabel(names=['cat', 'dog'])}
    """
    try:
        said = copy.deepcopy(entries)
        features = dict(said) if isinstance(said, Mapping) else _from_card(list(said))
        datasets = datasets_module()
        return features if datasets is None else datasets.Features.from_dict(features)
    except NO_FEATURE as error:
        raise SchemaError(f"the dataset card's `dataset_info.features` are not valid features: {error}") from error


def _from_card(entry: Any) -> Any:
    """Converts a feature from its YAML form, whose first key is the kind, to its JSON form."""
    if isinstance(entry, list):
        return {item.pop("name"): _from_card(item) for item in entry}
    if not entry:
        return {}
    kind = next(iter(entry))
    if kind in LISTS:
        return _list_from_card(kind, entry)
    if kind == "struct":
        return _from_card(entry["struct"])
    if kind != "dtype":
        return {"_type": _camel_case(kind), **_with_names(entry[kind])}
    if not isinstance(entry["dtype"], str):
        return _from_card(entry["dtype"])
    dtype = value_dtype(entry["dtype"])
    return {"_type": _camel_case(entry["dtype"])} if dtype is None else {**entry, "dtype": dtype, "_type": "Value"}


def _list_from_card(kind: str, entry: dict[str, Any]) -> Any:
    item = entry.pop(kind)
    feature = _from_card({"dtype": item} if isinstance(item, str) else item)
    if kind == "sequence" and isinstance(item, list):
        # In YAML a list of structs stands for a struct of lists.
        return {name: {"feature": part, **entry, "_type": "List"} for name, part in feature.items()}
    return {"feature": feature, **entry, "_type": LISTS[kind]}


def _with_names(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of a feature, with the names of classes as a list."""
    names = settings.get("names")
    if not isinstance(names, dict):
        return settings
    numbers = sorted(names, key=int)
    if [int(number) for number in numbers] != list(range(len(numbers))):
        raise ValueError(f"expected a name for each class from 0 to {numbers[-1]}, got {', '.join(numbers)}")
    return {**settings, "names": [names[number] for number in numbers]}


def _camel_case(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def to_json(features: Any) -> dict[str, Any]:
    """Returns features, a dict of features or types, or an Arrow schema, in the JSON form of `Features.to_dict`.

    Raises:
        SettingError: the argument holds no valid features.
    """
    import pyarrow as pa

    if isinstance(features, pa.Schema):
        features = dict(zip(features.names, features.types, strict=True))
    if not hasattr(features, "items"):
        raise SettingError(
            f"features: expected `datasets.Features`, a dict of features or types, or an Arrow schema, got {features!r}"
        )
    datasets = datasets_module()
    try:
        if datasets is None or not isinstance(features, datasets.Features):
            features = {name: _of_types(feature, datasets) for name, feature in features.items()}
        if datasets is None:
            return {name: _plain(feature) for name, feature in features.items()}
        if not isinstance(features, datasets.Features):
            is_json = all(isinstance(feature, dict) and "_type" in feature for feature in features.values())
            features = datasets.Features.from_dict(dict(features)) if is_json else datasets.Features(features)
        described: dict[str, Any] = features.to_dict()
    except NO_FEATURE as error:
        raise SettingError(f"features: {error}") from error
    return described


def _of_types(feature: Any, datasets: Any) -> Any:
    """Returns a feature in which Arrow types and names of types are features."""
    import pyarrow as pa

    if isinstance(feature, pa.DataType):
        described = infer_feature(pa.field("", feature))
    elif isinstance(feature, str):
        dtype = value_dtype(feature)
        if dtype is None:
            raise ValueError(f"{feature!r} is no type, as 'int32' and 'timestamp[ms]' are, and no feature")
        described = {"dtype": dtype, "_type": "Value"}
    elif isinstance(feature, dict) and "_type" not in feature:
        return {name: _of_types(part, datasets) for name, part in feature.items()}
    elif isinstance(feature, list):
        return [_of_types(part, datasets) for part in feature]
    else:
        return feature
    return described if datasets is None else datasets.Features.from_dict({"": described})[""]


def _plain(feature: Any) -> Any:
    """Returns a feature in JSON form, after a check that its type exists."""
    storage_type(feature)
    return feature
