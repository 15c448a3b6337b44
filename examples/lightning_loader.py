"""Trains with Lightning from `forebay.DataLoader`, stops in the middle of an epoch, and resumes exactly.

Only the import and the dataset are Forebay's; the loader is used like torch's. Lightning saves its state in every
checkpoint, because it has `state_dict` and `load_state_dict`.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from pathlib import Path
from typing import Any

import lightning
import torch

import forebay as fb

BATCH_SIZE = 64
NUM_EPOCHS = 2


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Makes a batch from rows, as for torch's loader."""
    tokens = torch.tensor([row["tokens"] for row in rows])
    return {"tokens": tokens, "length": torch.tensor([float(len(row["text"])) for row in rows])}


class Stopped(Exception):  # noqa: N818 - not an error
    """Ends training in the middle of an epoch."""


class Regression(lightning.LightningModule):
    """Predicts the length of a text from its tokens, and records the rows it was given."""

    def __init__(self, folder: Path, stop_at: int = 0) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 1)
        self.seen: list[int] = []
        self.checkpoint = folder / "stopped.ckpt"
        self.stop_at = stop_at

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Returns the loss of a batch."""
        self.seen += batch["tokens"].sum(dim=1).tolist()
        guess = self.linear(batch["tokens"] / 8192).squeeze(1)
        loss: torch.Tensor = (guess - batch["length"].log()).square().mean()
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        """Saves a checkpoint at step `stop_at`, and stops."""
        if self.global_step == self.stop_at:
            self.trainer.save_checkpoint(self.checkpoint)
            raise Stopped

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Returns the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def train(dataset: fb.Dataset, folder: Path, stop_at: int = 0, checkpoint: Path | None = None) -> list[int]:
    """Trains from the start or from a checkpoint; returns a number that identifies each row."""
    loader = fb.DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, collate_fn=collate)
    model = Regression(folder, stop_at)
    trainer = lightning.Trainer(
        max_epochs=NUM_EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with contextlib.suppress(Stopped):
        trainer.fit(model, loader, ckpt_path=checkpoint, weights_only=False)
    return model.seen


def main() -> None:
    """Trains once without a stop and once with one, and compares the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpus", type=Path, help="a folder of Parquet with columns `text` and `tokens` (lists of 16)")
    corpus = parser.parse_args().corpus
    dataset = fb.load_dataset(corpus, split="train", columns=["tokens", "text"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = train(dataset, folder)
        before = train(dataset, folder, stop_at=len(whole) // BATCH_SIZE // 3)
        after = train(dataset, folder, checkpoint=folder / "stopped.ckpt")
    print(f"{len(whole):,} rows without a stop; {len(before):,} before it and {len(after):,} after it")
    print("the same rows in the same order" if before + after == whole else "FAILED: other rows")


if __name__ == "__main__":
    main()
