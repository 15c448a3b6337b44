"""Interoperation with Hugging Face `datasets`, in both directions.

`Dataset.to_hf` makes a `datasets.IterableDataset`, `forebay.from_hf` makes a `Dataset` from one that streams Parquet,
and `enable` makes `datasets.load_dataset(..., streaming=True)` read Parquet with Forebay. `datasets` is imported when
one of them is called.

To `datasets`: `iterable` is the dataset that users get, over the `examples` of a stream, with `tensors` made batch by
batch; `parts` are what it divides among processes, `resumable` its states, `exports` its files. From `datasets`:
`taken` takes over a dataset with its `filters`, and `swap` does so within `load_dataset`. `versions` says which
releases this is written for.
"""

from forebay.hf.swap import disable, enable, is_enabled
from forebay.hf.taken import from_hf

__all__ = ["disable", "enable", "from_hf", "is_enabled"]
