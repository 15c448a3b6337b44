"""Trains on one filtered, shuffled epoch of a Parquet corpus, stops in the middle and resumes exactly.

It has four parts: show what the query will read; train for half of the epoch; resume from the saved state and train to
the end; and check that an uninterrupted epoch, and four ranks that resume from the same state, deliver exactly the same
rows. The model only predicts each token from the one before it, so that there is something to train.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FILTER = "language = 'rust' AND size > 500"
COLUMNS = ["crate", "path", "tokens"]
SEED = 42
BATCH_SIZE = 256
NUM_RANKS = 4

# Number of token ids in the corpus; the model learns from every TOKEN_STRIDE-th token of a row.
VOCABULARY = 4096
TOKEN_STRIDE = 64

Batch = dict[str, Any]


@dataclass
class Run:
    """The rows that one training run saw, and where its time went."""

    row_ids: list[list[str]] = field(default_factory=list)
    loss: float = 0.0
    seconds: float = 0.0
    waiting_seconds: float = 0.0

    @property
    def num_rows(self) -> int:
        """Number of rows seen."""
        return sum(map(len, self.row_ids))

    def __str__(self) -> str:
        return (
            f"{len(self.row_ids):,} batches, {self.num_rows:,} rows in {self.seconds:.1f} s "
            f"({self.num_rows / self.seconds:,.0f} rows/s, {self.waiting_seconds / self.seconds:.1%} of the time "
            f"waiting for data), loss {self.loss:.3f}"
        )


class Bigram(torch.nn.Module):
    """Predicts the next token from one token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 32)
        self.output = torch.nn.Linear(32, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the mean loss of a batch of rows of tokens; 0 stands for no token."""
        before, after = tokens[:, :-1:TOKEN_STRIDE].long(), tokens[:, 1::TOKEN_STRIDE].long()
        scores = self.output(self.embedding(before))
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), after.flatten(), ignore_index=0)


def open_corpus(folder: Path) -> fb.Dataset:
    """Opens the corpus and says which rows and columns are wanted, in which order."""
    dataset = fb.load_dataset(folder, split="train")
    return dataset.filter(FILTER).select_columns(COLUMNS).shuffle(seed=SEED)


def row_ids(batch: Batch) -> list[str]:
    """Returns a unique name for each row of a batch."""
    return [f"{crate}/{path}" for crate, path in zip(batch["crate"], batch["path"], strict=True)]


class Trainer:
    """A model and its optimizer."""

    def __init__(self) -> None:
        self.model = Bigram()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)

    def train(self, batches: Iterable[Batch], num_batches: int, num_rows: int, title: str) -> Run:
        """Trains on the next `num_batches` batches, which have `num_rows` rows in total."""
        run = Run()
        source = iter(batches)
        # In a log every update of the bar stays visible, so make few.
        interval = 0.5 if sys.stderr.isatty() else 10.0
        started = time.perf_counter()
        with tqdm(total=num_rows, desc=title, unit=" rows", unit_scale=True, mininterval=interval) as bar:
            for _ in range(num_batches):
                asked = time.perf_counter()
                batch = next(source)
                run.waiting_seconds += time.perf_counter() - asked
                run.loss = self._step(batch["tokens"])
                run.row_ids.append(row_ids(batch))
                bar.set_postfix(loss=f"{run.loss:.3f}", refresh=False)
                bar.update(len(run.row_ids[-1]))
        run.seconds = time.perf_counter() - started
        return run

    def _step(self, tokens: torch.Tensor) -> float:
        loss = self.model(tokens)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.item())


def resume_on_ranks(dataset: fb.Dataset, state: dict[str, Any], num_ranks: int) -> Iterator[list[str]]:
    """Yields the global batches of several ranks that all resume from one state."""
    ranks = []
    for rank in range(num_ranks):
        loader = dataset.to_torch(BATCH_SIZE // num_ranks, rank=rank, world_size=num_ranks)
        loader.load_state_dict(state)
        ranks.append(loader)
    for parts in zip(*ranks, strict=True):
        # Element k of a global batch is row k div N of rank k mod N.
        yield [row for rows in zip(*map(row_ids, parts), strict=True) for row in rows]


def digest(batches: Iterable[list[str]]) -> str:
    """Returns a hash of batches of rows, which is equal only for the same rows in the same order."""
    return hashlib.sha256(json.dumps(list(batches)).encode()).hexdigest()[:16]


def check(what: str, got: list[list[str]], expected: list[list[str]]) -> None:
    """Prints that two runs are the same, or exits with an error."""
    if got != expected:
        at = next((i for i, pair in enumerate(zip(got, expected, strict=False)) if pair[0] != pair[1]), None)
        sys.exit(f"FAILED: {what}: {len(got)} and {len(expected)} batches, the first difference is in batch {at}")
    print(f"   same: {what}: {len(got):,} batches, {sum(map(len, got)):,} rows, digest {digest(got)}")


def main() -> None:
    """Runs the four parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpus", type=Path, help="a folder written by scripts/build_corpus.py")
    parser.add_argument("--state", type=Path, default=Path(".cache/demo-state.json"), help="where to save the state")
    arguments = parser.parse_args()
    torch.manual_seed(SEED)

    print(f'\n1. What will be read: "{FILTER}" of {arguments.corpus}\n')
    dataset = open_corpus(arguments.corpus)
    print(dataset.explain())
    loader = dataset.to_torch(BATCH_SIZE)
    num_batches = len(loader)
    middle = num_batches // 2
    print(f"\n   an epoch is {len(dataset):,} rows in {num_batches:,} batches of {BATCH_SIZE}")

    print("\n2. Train until half of the epoch, save the state, stop\n")
    trainer = Trainer()
    first = trainer.train(loader, middle, middle * BATCH_SIZE, "epoch 0, first half")
    arguments.state.parent.mkdir(parents=True, exist_ok=True)
    arguments.state.write_text(json.dumps(loader.state_dict(), indent=2))
    print(f"   {first}\n   state: {arguments.state.stat().st_size:,} bytes of JSON in {arguments.state}")

    print("\n3. Open everything anew, load the state, train to the end\n")
    state = json.loads(arguments.state.read_text())
    dataset = open_corpus(arguments.corpus)
    loader = dataset.to_torch(BATCH_SIZE)
    loader.load_state_dict(state)
    second = trainer.train(loader, len(loader), len(dataset) - first.num_rows, "epoch 0, second half")
    print(f"   {second}")

    print("\n4. Compare with an epoch that was never interrupted, and with four ranks\n")
    started = time.perf_counter()
    whole = [row_ids(batch) for batch in dataset.to_torch(BATCH_SIZE)]
    seconds = time.perf_counter() - started
    print(f"   without training: {sum(map(len, whole)):,} rows in {seconds:.1f} s")
    check("both halves and the uninterrupted epoch", first.row_ids + second.row_ids, whole)
    # The rows may not divide evenly among the ranks: by default (`remainder="drop"`) up to three are dropped.
    global_batches = list(resume_on_ranks(dataset, state, NUM_RANKS))
    full = [batch for batch in global_batches if len(batch) == BATCH_SIZE]
    check(
        f"the second half on {NUM_RANKS} ranks of {BATCH_SIZE // NUM_RANKS} rows, whole batches",
        full,
        whole[middle : middle + len(full)],
    )
    num_seen = len({row for batch in whole for row in batch})
    print(f"   every row once: {num_seen:,} different rows of {len(dataset):,} in the selection")
    if num_seen != len(dataset) or num_seen != sum(map(len, whole)):
        sys.exit("FAILED: rows are lost or doubled")
    print("\nThe resumed epoch is exactly the uninterrupted one: same rows, same batches, same order.")


if __name__ == "__main__":
    main()
