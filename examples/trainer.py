"""Trains with `transformers.Trainer` from a stream, stops in the middle, and resumes without reading old batches again.

On resuming, `Trainer` reads all batches of the epoch up to the checkpoint again. Here each checkpoint also holds the
position of the stream, so that only the rest of the epoch is read. The stream finds its rank by itself: run this with
`torchrun`, and every rank trains on its own rows, in the same number of steps.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import Trainer, TrainerCallback, TrainingArguments

import forebay as fb

if TYPE_CHECKING:
    from forebay.torch import TorchStream

VOCABULARY = 256
BATCH_SIZE = 64
NUM_EPOCHS = 2


class Position(TrainerCallback):
    """Saves the position of a stream with each checkpoint, and restores it on resuming."""

    def __init__(self, stream: TorchStream) -> None:
        self.stream = stream

    def on_save(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Saves the position of the next batch."""
        self._path(args, state).write_text(json.dumps(self.stream.state_dict()))

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Restores the position of the checkpoint that training resumes from."""
        if state.global_step:
            self.stream.load_state_dict(json.loads(self._path(args, state).read_text()))

    def _path(self, args: TrainingArguments, state: Any) -> Path:
        return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}" / "stream.json"


class StreamTrainer(Trainer):
    """A `Trainer` that takes its batches from a stream. Its arguments must have `ignore_data_skip=True`."""

    def __init__(self, stream: TorchStream, **settings: Any) -> None:
        super().__init__(train_dataset=stream, **settings)
        self.stream = stream
        self.add_callback(Position(stream))

    def get_train_dataloader(self) -> Any:
        """Returns the stream itself: it already has a length, epochs, ranks and whole batches."""
        return self.stream


class Stop(TrainerCallback):
    """Saves a checkpoint at a step, and stops training."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Saves and stops at the step."""
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


class Bigram(torch.nn.Module):
    """Predicts the next token from one token, and records the rows it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 16)
        self.output = torch.nn.Linear(16, VOCABULARY)
        self.seen: list[int] = []

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns the loss for rows of tokens."""
        self.seen += tokens.sum(dim=1).tolist()
        tokens = tokens[:, :5].long() % VOCABULARY
        scores = self.output(self.embedding(tokens[:, :-1]))
        return {"loss": torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())}


def train(dataset: fb.Dataset, folder: Path, stop_at: int = 0, resume: bool = False) -> list[int]:
    """Trains from the start or from the last checkpoint; returns a number that identifies each row."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=NUM_EPOCHS,
        per_device_train_batch_size=BATCH_SIZE,  # only for logging: the stream makes the batches
        ignore_data_skip=True,  # the position is in the checkpoint
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    model = Bigram()
    trainer = StreamTrainer(dataset.to_torch(BATCH_SIZE), model=model, args=arguments, callbacks=[Stop(stop_at)])
    trainer.train(resume_from_checkpoint=resume or None)
    return model.seen


def main() -> None:
    """Trains once without a stop and once with one, and compares the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpus", type=Path, help="a folder of Parquet with a column `tokens` (lists of equal length)")
    corpus = parser.parse_args().corpus
    dataset = fb.load_dataset(corpus, split="train").select_columns("tokens").shuffle(seed=42)
    num_steps = NUM_EPOCHS * len(dataset.to_torch(BATCH_SIZE))
    state = PartialState(cpu=True)
    with tempfile.TemporaryDirectory() as name:
        # One folder for all ranks; rank 0 saves what is the same on all of them.
        folder = Path(broadcast_object_list([name])[0])
        whole = train(dataset, folder / "whole")
        before = train(dataset, folder / "stopped", stop_at=num_steps * 2 // 3)
        after = train(dataset, folder / "stopped", resume=True)
    print(f"{len(whole):,} rows without a stop; {len(before):,} before it and {len(after):,} after it")
    print("the same rows in the same order" if before + after == whole else "FAILED: other rows")
    # Otherwise its threads may still run when the process ends.
    state.destroy_process_group()


if __name__ == "__main__":
    main()
