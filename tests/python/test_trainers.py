"""Trainers of others take what `to_hf` and `to_torch` return: tiny models on the CPU, the real libraries."""

from __future__ import annotations

import contextlib
import runpy
import shutil
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import data
import pyarrow as pa
import pytest
import torch
from programs import torchrun
from rows import ids_of, write_uneven

import forebay as fb

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

# The trainers warn of this machine (no GPU, few cores) and of their own calls; none of it is about the rows.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")

NUM_ROWS = 100
BATCH_SIZE = 8
STEPS_PER_EPOCH = 13


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    written = write_uneven(tmp_path_factory.mktemp("trainers"), NUM_ROWS)
    return written.select_columns("id").shuffle(3, num_lanes=6, window_rows=5)


def epochs(rows: fb.Dataset, num_epochs: int) -> list[list[int]]:
    """The batches that one process is to see."""
    batches = []
    for epoch in range(num_epochs):
        stream = rows.batches(BATCH_SIZE)
        stream.set_epoch(epoch)
        ids = ids_of(stream)
        batches += [ids[start : start + BATCH_SIZE] for start in range(0, len(ids), BATCH_SIZE)]
    return batches


class Model(torch.nn.Module):
    """Notes the rows that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def forward(self, id: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(id.tolist())
        return {"loss": self.linear(id[:, None] / NUM_ROWS).pow(2).mean()}


def trained(rows: fb.Dataset, folder: Path, *, stop_at: int = 0, resume: bool = False, **settings: Any) -> list[Any]:
    """Has `transformers.Trainer` train; returns the rows of each step."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Stop(TrainerCallback):
        def on_step_end(self, _arguments: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == stop_at:
                control.should_save = control.should_training_stop = True

    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH_SIZE,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        **settings,
    )
    model = Model()
    trainer = Trainer(model=model, args=arguments, train_dataset=rows.to_hf(), callbacks=[Stop()])
    trainer.train(resume_from_checkpoint=resume or None)
    return model.seen


def test_transformers_needs_no_max_steps(rows: fb.Dataset, tmp_path: Path) -> None:
    assert trained(rows, tmp_path, num_train_epochs=2) == epochs(rows, 2)


def test_transformers_stops_after_max_steps(rows: fb.Dataset, tmp_path: Path) -> None:
    assert trained(rows, tmp_path, max_steps=17) == epochs(rows, 2)[:17]


@pytest.mark.parametrize("stop_at", [5, STEPS_PER_EPOCH, 17])
def test_transformers_resumes_from_a_checkpoint_exactly(rows: fb.Dataset, tmp_path: Path, stop_at: int) -> None:
    before = trained(rows, tmp_path, num_train_epochs=2, stop_at=stop_at)
    after = trained(rows, tmp_path, num_train_epochs=2, resume=True)
    assert len(before) == stop_at
    assert before + after == epochs(rows, 2)


def test_transformers_reads_with_workers(rows: fb.Dataset, tmp_path: Path) -> None:
    seen = trained(rows, tmp_path, num_train_epochs=1, dataloader_num_workers=2)
    found = list(chain.from_iterable(seen))
    # Each worker has a last batch of its own, with which torch does not reckon: one is beyond the end of the epoch.
    assert len(seen) == STEPS_PER_EPOCH
    assert len(set(found)) == len(found) >= NUM_ROWS - BATCH_SIZE


def tokens(tmp_path: Path) -> fb.Dataset:
    import pyarrow as pa
    import pyarrow.parquet as pq

    ids = [[i, *([7] * (i % 5 + 1))] for i in range(10, 50)]
    pq.write_table(pa.table({"input_ids": pa.array(ids, pa.list_(pa.int64()))}), tmp_path / "tokens.parquet")
    return fb.load_dataset(tmp_path, split="train").shuffle(1)


def test_trl_fine_tunes_on_a_stream(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    vocabulary = {f"w{i}": i for i in range(60)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(vocabulary, "w1")))
    tokenizer.pad_token = tokenizer.eos_token = "w0"
    sizes = {"vocab_size": 60, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
    config = LlamaConfig(num_attention_heads=1, pad_token_id=0, eos_token_id=0, bos_token_id=0, **sizes)
    seen: list[int] = []

    class Noting(SFTTrainer):
        def compute_loss(self, model: Any, inputs: dict[str, Any], **settings: Any) -> Any:
            seen.extend(inputs["input_ids"][:, 0].tolist())
            return super().compute_loss(model, inputs, **settings)

    arguments = SFTConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        max_steps=10,
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        max_length=16,
    )
    ds = tokens(tmp_path)
    Noting(LlamaForCausalLM(config), arguments, train_dataset=ds.to_hf(), processing_class=tokenizer).train()
    assert seen == [row["input_ids"][0] for row in ds]


def test_the_demo_runs_in_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = data.corpus_table(4000)
    column = table.schema.get_field_index("tokens")
    small = pa.array([[token % 4096 for token in row] for row in table["tokens"].to_pylist()], pa.list_(pa.int32()))
    data.write_fragments(tmp_path / "corpus", table.set_column(column, "tokens", small))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["demo.py", "corpus"])
    runpy.run_path(str(EXAMPLES / "demo.py"), run_name="__main__")
    assert "FAILED" not in capsys.readouterr().out
    assert Path(".cache/demo-state.json").is_file()


def quiet_trainer(max_epochs: int, **settings: Any) -> Any:
    import lightning

    shown = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return lightning.Trainer(max_epochs=max_epochs, accelerator="cpu", **shown, **settings)


class Stopped(Exception):  # noqa: N818 - it is none of the trainer's
    """Ends a training in the middle of an epoch."""


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["to_hf", "to_torch"])
def test_lightning_resumes_a_stateful_loader_exactly(
    rows: fb.Dataset, tmp_path: Path, kind: str, num_workers: int
) -> None:
    import lightning
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Module(lightning.LightningModule):
        def __init__(self, stop_at: int = 0) -> None:
            super().__init__()
            self.model, self.stop_at = Model(), stop_at

        def training_step(self, batch: dict[str, torch.Tensor]) -> Any:
            return self.model(batch["id"])["loss"]

        def on_train_batch_end(self, *_: Any) -> None:
            if self.global_step == self.stop_at:
                self.trainer.save_checkpoint(tmp_path / "stopped.ckpt")
                raise Stopped

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def fit(stop_at: int = 0, checkpoint: Path | None = None) -> list[list[int]]:
        module = Module(stop_at)
        stream = rows.to_hf() if kind == "to_hf" else rows.to_torch(BATCH_SIZE)
        size = BATCH_SIZE if kind == "to_hf" else None
        trainer = quiet_trainer(max_epochs=1)
        loader = StatefulDataLoader(stream, batch_size=size, num_workers=num_workers)
        with contextlib.suppress(Stopped):
            trainer.fit(module, loader, ckpt_path=checkpoint, weights_only=False)
        return module.model.seen

    whole = fit()
    found = list(chain.from_iterable(whole))
    # As above, of what `to_hf` gives to workers.
    least = NUM_ROWS - BATCH_SIZE if (kind, num_workers) == ("to_hf", 2) else NUM_ROWS
    assert len(set(found)) == len(found) >= least
    assert fit(stop_at=5) + fit(checkpoint=tmp_path / "stopped.ckpt") == whole


@pytest.mark.parametrize("kind", ["DataLoader", "to_torch"])
def test_lightning_trains_every_epoch_once_from_where_a_loader_stands(rows: fb.Dataset, kind: str) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: dict[str, torch.Tensor]) -> Any:
            return self.model(batch["id"])["loss"]

        def on_train_epoch_start(self) -> None:
            if kind == "to_torch":
                loader.set_epoch(self.current_epoch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def make() -> Any:
        return fb.DataLoader(rows, BATCH_SIZE) if kind == "DataLoader" else rows.to_torch(BATCH_SIZE)

    stopped = make()
    list(zip(range(5), stopped, strict=False))
    for state in (None, stopped.state_dict()):
        loader = make()
        if state is not None:
            loader.load_state_dict(state)
        module = Module()
        trainer = quiet_trainer(max_epochs=2)
        trainer.fit(module, loader)
        assert module.model.seen == epochs(rows, 2)[0 if state is None else 5 :]


@pytest.mark.parametrize("moment", ["on_train_batch_end", "on_validation_end"])
@pytest.mark.parametrize("kind", ["DataLoader", "DataLoader, packed", "to_torch"])
def test_lightning_goes_on_with_the_next_epoch_behind_the_last_batch_of_one(
    rows: fb.Dataset, tmp_path: Path, kind: str, moment: str
) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self, stop_at: int = 0) -> None:
            super().__init__()
            self.model, self.stop_at = Model(), stop_at
            self.loader, self.stream = lightning_loader(rows, kind)

        def training_step(self, batch: dict[str, torch.Tensor]) -> Any:
            return self.model(batch["id"].flatten())["loss"]

        def validation_step(self, batch: Any) -> None:
            pass

        def on_train_epoch_start(self) -> None:
            if self.stream is not None:
                self.stream.set_epoch(self.current_epoch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def stop(self: Module, *_: Any) -> None:
        if self.global_step == self.stop_at and not self.trainer.sanity_checking:
            self.trainer.save_checkpoint(tmp_path / "stopped.ckpt")
            raise Stopped

    setattr(Module, moment, stop)

    def fit(module: Module, checkpoint: Path | None = None) -> list[list[int]]:
        trainer = quiet_trainer(max_epochs=3)
        with contextlib.suppress(Stopped):
            trainer.fit(module, module.loader, fb.DataLoader(rows, 50), ckpt_path=checkpoint, weights_only=False)
        return module.model.seen

    whole = fit(Module())
    assert "packed" in kind or whole == epochs(rows, 3)
    assert len(whole) == 3 * STEPS_PER_EPOCH
    for stop_at in (STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH):
        before = fit(Module(stop_at))
        assert len(before) == stop_at
        assert before + fit(Module(), tmp_path / "stopped.ckpt") == whole


def lightning_loader(rows: fb.Dataset, kind: str) -> tuple[Any, Any]:
    """Returns what Lightning is given, and what is told the epochs, if it does not count them itself."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    tokens = rows.sql("SELECT make_array(id, id, id) AS id FROM dataset").shuffle(3, num_lanes=6, window_rows=5)
    packs = {"pack": fb.Pack(24, columns=["id"])}
    if kind == "DataLoader":
        return fb.DataLoader(rows, BATCH_SIZE), None
    if kind == "DataLoader, packed":
        return fb.DataLoader(tokens, 1, **packs), None
    stream = {
        "to_torch": lambda: rows.to_torch(BATCH_SIZE),
        "to_torch, stateful": lambda: rows.to_torch(BATCH_SIZE),
        "to_torch, stateful, with workers": lambda: rows.to_torch(BATCH_SIZE),
        "to_torch, packed": lambda: tokens.to_torch(1, **packs),
        "to_hf, stateful": rows.to_hf,
    }[kind]()
    if "stateful" not in kind:
        return stream, stream
    size, num_workers = BATCH_SIZE if kind.startswith("to_hf") else None, 2 if "workers" in kind else 0
    return StatefulDataLoader(stream, batch_size=size, num_workers=num_workers), stream


# Where an epoch has more batches than are taken of it, and where nobody knows how many it has.
@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        ("DataLoader", 3),
        ("to_torch", 3),
        ("to_torch, stateful", 3),
        ("to_torch, stateful, with workers", 2),
        ("to_hf, stateful", 3),
        ("to_torch, stateful", None),
        ("DataLoader, packed", None),
        ("to_torch, packed", None),
    ],
)
def test_lightning_goes_on_from_a_checkpoint_of_any_batch(
    rows: fb.Dataset, tmp_path: Path, kind: str, limit: int | None
) -> None:
    import lightning

    rows = rows.filter("id < 40")

    class Module(lightning.LightningModule):
        def __init__(self, stop_at: int) -> None:
            super().__init__()
            self.model, self.stop_at = Model(), stop_at
            self.loader, self.stream = lightning_loader(rows, kind)

        def training_step(self, batch: dict[str, torch.Tensor]) -> Any:
            return self.model(batch["id"].flatten())["loss"]

        def on_train_epoch_start(self) -> None:
            if self.stream is not None:
                self.stream.set_epoch(self.current_epoch)

        def on_train_batch_end(self, *_: Any) -> None:
            if self.global_step == self.stop_at:
                self.trainer.save_checkpoint(tmp_path / "stopped.ckpt")
                raise Stopped

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def fit(stop_at: int = 0, checkpoint: Path | None = None) -> list[list[int]]:
        module = Module(stop_at)
        with contextlib.suppress(Stopped):
            quiet_trainer(max_epochs=3, limit_train_batches=limit).fit(
                module, module.loader, ckpt_path=checkpoint, weights_only=False
            )
        return module.model.seen

    whole = fit()
    steps_per_epoch, remainder = divmod(len(whole), 3)
    assert remainder == 0
    for stop_at in {2, steps_per_epoch - 1, steps_per_epoch, steps_per_epoch + 2, 2 * steps_per_epoch}:
        before = fit(stop_at)
        assert len(before) == stop_at
        assert before + fit(checkpoint=tmp_path / "stopped.ckpt") == whole


# Ranks on which several train, one after another, because importing them takes longest.
RANKS = """
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator, DataLoaderConfiguration
from datasets.distributed import split_dataset_by_node
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import forebay as fb
from test_trainers import BATCH_SIZE, Model, trained

join()
rank, world_size = dist.get_rank(), dist.get_world_size()
rows = fb.load_dataset(sys.argv[1], split="train").select_columns("id").shuffle(3, num_lanes=6, window_rows=5)
seen = {}


def run(name, model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen[name] = []
    for batch in batches:
        seen[name].append(batch["id"].tolist())
        model(batch["id"])["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()


def node():
    return DataLoader(split_dataset_by_node(rows.to_hf(), rank, world_size), batch_size=BATCH_SIZE)


mesh = init_device_mesh("cpu", (world_size,))
run("DDP, to_torch", DistributedDataParallel(Model()), rows.to_torch(BATCH_SIZE))
run("DDP, to_hf", DistributedDataParallel(Model()), node())
run("FSDP, to_torch", fully_shard(Model(), mesh=mesh), rows.to_torch(BATCH_SIZE))
run("FSDP, to_hf", fully_shard(Model(), mesh=mesh), node())

for name, dispatch in (("accelerate", False), ("dispatched", True)):
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
    loader = DataLoader(rows.to_hf().take(99), batch_size=BATCH_SIZE)
    run(name, *accelerator.prepare(Model(), loader))
run("accelerate, to_torch", accelerator.prepare(Model()), rows.to_torch(BATCH_SIZE))

settings = {"accelerator_config": {"dispatch_batches": False}, "num_train_epochs": 2, "ddp_backend": "gloo"}
seen["Trainer"] = trained(rows, Path(sys.argv[2]), **settings)
report(seen)
dist.barrier()
# Of processes with DDP over gloo, one in ten or so aborts at its end, after all is done.
os._exit(0)
"""


def test_ranks_share_the_rows_once_whoever_trains(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    write_uneven(tmp_path / "rows", NUM_ROWS)
    reports = torchrun(RANKS, 2, tmp_path / "ranks", tmp_path / "rows", tmp_path / "out")
    assert len(reports[0]) == 8
    for name in reports[0]:
        seen = Counter(chain.from_iterable(chain.from_iterable(report[name] for report in reports)))
        # `accelerate` gives its ranks equal shares of 99 rows, unless rank 0 reads for all.
        num_epochs, num_rows = (2 if name == "Trainer" else 1), {"accelerate": 98, "dispatched": 99}.get(name, 100)
        assert len(seen) == num_rows, name
        assert len({len(report[name]) for report in reports}) == 1, name
        # Rank 0, which reads for all, fills the last batch up with rows of the first.
        assert seen.total() == (num_rows + 1 if name == "dispatched" else num_rows * num_epochs), name


# What `accelerate` is given to divide among ranks.
PREPARED = """
import os
import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader

import forebay as fb
from test_trainers import BATCH_SIZE

join()
rows = fb.load_dataset(sys.argv[1], split="train").select_columns("id")
few = rows.filter("id < 97")
found = {}


def prepared(loader, **settings):
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**settings))
    return accelerator, accelerator.prepare_data_loader(loader)


def deliver(name, loader, **settings):
    loader = prepared(loader, **settings)[1]
    try:
        epochs = [[batch["id"].tolist() for batch in loader] for _ in range(2)]
        found[name] = {"length": len(loader) if hasattr(loader.dataset, "__len__") else None, "epochs": epochs}
    except fb.SettingError as error:
        found[name] = {"error": str(error)}


def stream(num_workers=0, **settings):
    return DataLoader(rows.shuffle(1).to_torch(BATCH_SIZE, **settings), batch_size=None, num_workers=num_workers)


refused = stream()
deliver("by default", refused)
refused.dataset.set_epoch(1)
found["by itself"] = [batch["id"].tolist() for batch in refused.dataset]
deliver("dispatched", stream(2), dispatch_batches=True)
deliver("divided", stream(), dispatch_batches=False)
deliver("of one process", stream(rank=0, world_size=1), dispatch_batches=True)
deliver("DataLoader", fb.DataLoader(rows.shuffle(1), BATCH_SIZE), dispatch_batches=True)
for name, hf in (
    ("to_hf", few.to_hf()),
    ("to_hf, shuffled", few.shuffle(1).to_hf()),
    ("to_hf, mapped", few.to_hf().map(lambda row: row).with_format("torch")),
):
    deliver(name, DataLoader(hf, BATCH_SIZE), dispatch_batches=False)
deliver("to_hf, dispatched", DataLoader(few.shuffle(1).to_hf(), BATCH_SIZE), dispatch_batches=True)

made = fb.DataLoader(rows.shuffle(1), BATCH_SIZE)
accelerator = Accelerator(cpu=True)
_, loader = accelerator.prepare(torch.nn.Linear(1, 1), made)
assert loader is made and type(loader) is loader.__class__ is fb.DataLoader
batches = iter(loader)
before = [next(batches)["id"].tolist() for _ in range(3)]
accelerator.save_state(sys.argv[2])
accelerator.wait_for_everyone()
list(batches)
accelerator.load_state(sys.argv[2])
found["resumed"] = before + [batch["id"].tolist() for batch in loader]

accelerator, loader = prepared(DataLoader(rows.to_hf(), BATCH_SIZE), dispatch_batches=False)
found["gathered"] = [row for batch in loader for row in accelerator.gather_for_metrics(batch["id"]).tolist()]
report(found)
dist.barrier()
os._exit(0)
"""


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two ranks were delivered by loaders that `accelerate` prepared."""
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "rows").mkdir()
    write_uneven(folder / "rows", NUM_ROWS)
    return torchrun(PREPARED, 2, folder / "ranks", folder / "rows", folder / "saved")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("by default", "dispatch_batches: rank 0 would read for all ranks"),
        ("dispatched", "dispatch_batches: rank 0 would read for all ranks"),
        ("divided", "prepare: `accelerate` would divide the rows among the ranks"),
    ],
)
def test_accelerate_is_refused_on_every_rank_what_has_found_its_rank(
    of_ranks: list[dict[str, Any]], name: str, words: str
) -> None:
    for found in of_ranks:
        assert words in found[name]["error"]
        assert "without `prepare`, or use `forebay.DataLoader`" in found[name]["error"]
        assert found["by itself"] == found["DataLoader"]["epochs"][1]


@pytest.mark.parametrize(
    ("name", "num_rows", "num_more"),
    [
        ("of one process", 100, 0),
        ("DataLoader", 100, 0),
        # One row beyond equal shares, with which rank 0 would have one batch more, and wait for ever.
        ("to_hf", 96, 0),
        ("to_hf, shuffled", 96, 0),
        ("to_hf, mapped", 96, 0),
        # Rank 0 fills up.
        ("to_hf, dispatched", 97, 1),
    ],
)
def test_ranks_of_accelerate_take_as_many_steps(
    of_ranks: list[dict[str, Any]], name: str, num_rows: int, num_more: int
) -> None:
    delivered = [found[name] for found in of_ranks]
    for epoch in range(2):
        shares = [share["epochs"][epoch] for share in delivered]
        assert len({len(share) for share in shares}) == 1
        assert delivered[0]["length"] == delivered[1]["length"] in (len(shares[0]), None)
        seen = Counter(chain.from_iterable(chain.from_iterable(shares)))
        assert (len(seen), seen.total() - len(seen)) == (num_rows, num_more)
    if name not in ("to_hf", "to_hf, mapped"):
        first, second = delivered[0]["epochs"]
        assert first != second, "every epoch has its order"


def test_accelerate_saves_where_a_loader_stands(of_ranks: list[dict[str, Any]]) -> None:
    for found in of_ranks:
        assert found["resumed"] == found["DataLoader"]["epochs"][0]


def test_accelerate_gathers_all_rows_for_metrics(of_ranks: list[dict[str, Any]]) -> None:
    for found in of_ranks:
        assert sorted(found["gathered"]) == list(range(NUM_ROWS))


def test_the_example_goes_on_from_a_checkpoint_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data.write_fragments(tmp_path, data.corpus_table(400), num_fragments=3)
    monkeypatch.setattr("sys.argv", ["trainer.py", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "trainer.py"), run_name="__main__")
    assert capsys.readouterr().out.endswith("\nthe same rows in the same order\n")


def epoch_without_length(rows: fb.Dataset, kind: str) -> Any:
    """Batches of which no trainer knows how many are an epoch."""
    if kind == "endless":
        return rows.repeat().to_torch(BATCH_SIZE)
    if kind == "packed, with a rest":
        rows = rows.filter("id < 81")
    tokens = rows.sql("SELECT make_array(id, id, id) AS id FROM dataset").shuffle(3, num_lanes=6, window_rows=5)
    if kind == "packed, with a rest":
        return tokens.to_torch(2, pack=fb.Pack(9, columns=["id"]), drop_last=True)
    pack = fb.Pack(24, columns=["id"])
    return tokens.to_torch(1, pack=pack) if kind == "packed" else fb.DataLoader(tokens, 1, pack=pack)


@pytest.mark.parametrize("kind", ["packed", "packed, with a rest", "packed by a loader", "endless"])
def test_transformers_goes_on_in_the_epoch_of_a_state_whose_length_is_not_known(
    rows: fb.Dataset, tmp_path: Path, kind: str
) -> None:
    from transformers import TrainingArguments

    class Packed(Model):
        def forward(self, id: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
            return super().forward(id.flatten())

    example = runpy.run_path(str(EXAMPLES / "trainer.py"))

    def seen(stop_at: int = 0, *, resume: bool = False) -> list[list[int]]:
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=3 * STEPS_PER_EPOCH,
            ignore_data_skip=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        model, stream = Packed(), epoch_without_length(rows, kind)
        trainer = example["StreamTrainer"](stream, model=model, args=arguments, callbacks=[example["Stop"](stop_at)])
        trainer.train(resume_from_checkpoint=resume or None)
        return model.seen

    whole = seen()
    assert len(whole) == 3 * STEPS_PER_EPOCH
    for stop_at in (5, STEPS_PER_EPOCH, STEPS_PER_EPOCH + 5, 2 * STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH + 5):
        before = seen(stop_at)
        assert before + seen(resume=True) == whole
        shutil.rmtree(tmp_path)
