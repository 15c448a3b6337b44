"""Trains with `accelerate` from `forebay.DataLoader`, stops in the middle of an epoch, and resumes exactly.

The loader is used like torch's: `accelerator.prepare` leaves it as it is, because it already knows its rank, and
`save_state` saves its position.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list

import forebay as fb

BATCH_SIZE = 64
NUM_EPOCHS = 2


def train(dataset: fb.Dataset, folder: Path, stop_at: int = 0, resume: bool = False) -> list[int]:
    """Trains from the start or from the last checkpoint; returns a number that identifies each row."""
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = fb.DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if resume:
        accelerator.load_state(str(folder))
    seen: list[int] = []
    step = 0
    for epoch in range(loader.epoch, NUM_EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            seen += batch["tokens"].sum(dim=1).tolist()
            guess = model(batch["tokens"].to(accelerator.device) / 8192).squeeze(1)
            loss = (guess - batch["size"].to(accelerator.device).log10()).square().mean()
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step == stop_at:
                accelerator.save_state(str(folder))
                return seen
    return seen


def main() -> None:
    """Trains once without a stop and once with one, and compares the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpus", type=Path, help="a folder of Parquet with columns `size` and `tokens` (lists of 16)")
    corpus = parser.parse_args().corpus
    dataset = fb.load_dataset(corpus, split="train", columns=["tokens", "size"])
    state = PartialState(cpu=True)
    with tempfile.TemporaryDirectory() as name:
        # One folder for all ranks; rank 0 saves what is the same on all of them.
        folder = Path(broadcast_object_list([name])[0])
        whole = train(dataset, folder)
        before = train(dataset, folder, stop_at=len(whole) // BATCH_SIZE // 3)
        after = train(dataset, folder, resume=True)
    print(f"{len(whole):,} rows without a stop; {len(before):,} before it and {len(after):,} after it")
    print("the same rows in the same order" if before + after == whole else "FAILED: other rows")
    # Otherwise its threads may still run when the process ends.
    state.destroy_process_group()


if __name__ == "__main__":
    main()
