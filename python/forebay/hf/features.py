"""What `datasets` calls the types of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.exceptions import SchemaError

if TYPE_CHECKING:
    from forebay.dataset import Dataset


def features_of(dataset: Dataset) -> Any:
    """Returns the `datasets.Features` of the columns: those that the files name, else those of their Arrow types.

    Raises:
        SchemaError: a column has a type that `datasets` does not know.
    """
    import pyarrow as pa
    from datasets import Features

    schema = dataset.schema
    try:
        return Features.from_arrow_schema(schema)
    except (ValueError, TypeError, KeyError) as error:
        for field in schema:
            try:
                Features.from_arrow_schema(pa.schema([field]))
            except (ValueError, TypeError, KeyError) as cause:
                what = f"column `{field.name}` of type `{field.type}` has no type in `datasets`: {cause}"
                raise SchemaError(f"{what}; leave it out with `remove_columns`") from cause
        raise SchemaError(f"the columns have no types in `datasets`: {error}") from error
