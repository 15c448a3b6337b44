"""Trains with `transformers.Trainer` from a stream, stops in the middle, and goes on without reading what it has seen.

`Trainer` reads all batches of an epoch again up to the step of a checkpoint. Here each checkpoint has the position of
the stream beside the model, so that the rest of the epoch is all that is read. The stream finds its rank: run this with
`torchrun` and every rank trains on its own rows, in as many steps.
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
    """Saves the position of a stream with each checkpoint, and has training go on from it."""

    def __init__(self, stream: TorchStream) -> None:
        self.stream = stream

    def on_save(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Writes the position of the next batch."""
        self._path(args, state).write_text(json.dumps(self.stream.state_dict()))

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Goes to the position of the checkpoint that training resumes from."""
        if state.global_step:
            self.stream.load_state_dict(json.loads(self._path(args, state).read_text()))

    def _path(self, args: TrainingArguments, state: Any) -> Path:
        return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}" / "stream.json"


class StreamTrainer(Trainer):
    """A `Trainer` whose batches are those of a stream. Its arguments have `ignore_data_skip=True`."""

    def __init__(self, stream: TorchStream, **settings: Any) -> None:
        super().__init__(train_dataset=stream, **settings)
        self.stream = stream
        self.add_callback(Position(stream))

    def get_train_dataloader(self) -> Any:
        """Returns the stream: it has a length, epochs and ranks, and its batches are batches already."""
        return self.stream


class Stop(TrainerCallback):
    """Saves a checkpoint at a step, and stops there."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Stops at the step."""
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


class Bigram(torch.nn.Module):
    """Guesses the next token from one token, and notes what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 16)
        self.output = torch.nn.Linear(16, VOCABULARY)
        self.seen: list[int] = []

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns the loss of rows of tokens."""
        self.seen += tokens.sum(dim=1).tolist()
        tokens = tokens[:, :5].long() % VOCABULARY
        scores = self.output(self.embedding(tokens[:, :-1]))
        return {"loss": torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())}


def train(dataset: fb.Dataset, folder: Path, stop_at: int = 0, resume: bool = False) -> list[int]:
    """Trains from the start, or from the last checkpoint; returns what tells the rows."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=NUM_EPOCHS,
        per_device_train_batch_size=BATCH_SIZE,  # for what is logged: the stream has batches of its own
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
    """Trains once without a stop and once with one, and compares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpus", type=Path, help="a folder of Parquet with a column `tokens`, lists of one length")
    corpus = parser.parse_args().corpus
    dataset = fb.load_dataset(corpus, split="train").select_columns("tokens").shuffle(seed=42)
    num_steps = NUM_EPOCHS * len(dataset.to_torch(BATCH_SIZE))
    state = PartialState(cpu=True)
    with tempfile.TemporaryDirectory() as name:
        # One folder for all ranks: the first saves what is the same on all.
        folder = Path(broadcast_object_list([name])[0])
        whole = train(dataset, folder / "whole")
        before = train(dataset, folder / "stopped", stop_at=num_steps * 2 // 3)
        after = train(dataset, folder / "stopped", resume=True)
    print(f"{len(whole):,} rows without a stop; {len(before):,} before it and {len(after):,} after it")
    print("the same rows in the same order" if before + after == whole else "FAILED: other rows")
    # Else threads of it may still run when the process ends.
    state.destroy_process_group()


if __name__ == "__main__":
    main()
