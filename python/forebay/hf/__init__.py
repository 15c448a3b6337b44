"""Interoperation with Hugging Face `datasets`, in both directions.

`Dataset.to_hf` makes a `datasets.IterableDataset`, `forebay.from_hf` makes a `Dataset` from one that streams Parquet,
and `enable` makes `datasets.load_dataset(..., streaming=True)` read Parquet with Forebay. `datasets` is imported when
one of them is called.
"""

from forebay.hf.swap import disable, enable, is_enabled
from forebay.hf.taken import from_hf

__all__ = ["disable", "enable", "from_hf", "is_enabled"]
