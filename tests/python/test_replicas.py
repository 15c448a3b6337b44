"""Ranks of one replica get the same batches, and the replicas together every row once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from programs import torchrun
from rows import batches_of, ids_of, write_uneven

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

NUM_ROWS = 503

# Four ranks: two replicas of two ranks. Importing torch takes longest, so all is asked in one program.
RANKS = """
import sys
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
import functions
import forebay as fb
from rows import ids_of

join()
ds = fb.load_dataset(sys.argv[1], split="train").shuffle(4, num_lanes=6, window_rows=20)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
parts = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
streams = {
    "mesh": ds.batches(32, mesh=mesh["dp"]),
    "torch": ds.to_torch(32, mesh=mesh["dp"]),
    "across": ds.batches(32, mesh=mesh["dp"], remainder="pad"),
    "replicate": ds.batches(32, replicate=2),
    "all": ds.batches(32, replicate=4),
    "flat": ds.batches(32, mesh=parts),
    "plain": ds.batches(32),
}
found = {name: ids_of(stream) for name, stream in streams.items()}
draws = ds.map(functions.draw, batched=True, with_seeds=True).batches(32, mesh=mesh["dp"])
found["draws"] = [value for batch in draws for value in batch["draw"]]
found["state"] = streams["mesh"].state_dict()["position"]
try:
    ds.batches(32, mesh=mesh)
except fb.SettingError as error:
    found["refused"] = str(error)
try:
    next(iter(ds.batches(32, replicate=2 if dist.get_rank() else 4)))
except fb.AgreementError as error:
    found["disagreement"] = str(error)
report(found)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replicas")


@pytest.fixture(scope="module")
def rows(folder: Path) -> fb.Dataset:
    return write_uneven(folder, NUM_ROWS).shuffle(4, num_lanes=6, window_rows=20)


def test_ranks_of_a_replica_get_the_same_batches(rows: fb.Dataset, folder: Path, tmp_path: Path) -> None:
    ranks = torchrun(RANKS, 4, tmp_path, folder)
    order = ids_of(rows.batches(100))
    for name in ("mesh", "torch", "replicate"):
        for rank, found in enumerate(ranks):
            assert found[name] == order[rank // 2 : NUM_ROWS // 2 * 2 : 2], name
    for rank, found in enumerate(ranks):
        assert found["all"] == order
        assert found["plain"] == found["flat"] == order[rank : NUM_ROWS // 4 * 4 : 4]
        assert sorted(set(found["across"] + ranks[(rank + 2) % 4]["across"])) == sorted(order)
        assert found["draws"] == ranks[rank // 2 * 2]["draws"]
        assert found["state"] == NUM_ROWS - 1
        assert "same over the dimension `tp`; pass those over which they differ: mesh['dp']" in found["refused"]
        assert "world size is 1 on rank 0, 2 on ranks 1 to 3" in found["disagreement"]
    assert ranks[0]["draws"] != ranks[2]["draws"]


def test_given_ranks_are_divided_among_replicas(rows: fb.Dataset) -> None:
    for rank in range(6):
        found = batches_of(rows.batches(16, rank=rank, world_size=6, replicate=3))
        assert found == batches_of(rows.batches(16, rank=rank // 3, world_size=2))


MESH = SimpleNamespace(mesh_dim_names=("dp",), shape=(2,), get_coordinate=lambda: None)
FLAT = SimpleNamespace(mesh_dim_names=("dp_replicate", "dp_shard_cp"), shape=(2, 2), get_coordinate=lambda: [0, 1])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rank": 0, "world_size": 4, "replicate": 3}, "does not divide the world size of 4"),
        ({"replicate": 0}, "replicate: expected 1"),
        ({"mesh": MESH, "replicate": 2}, "pass one of `mesh`, `replicate`"),
        ({"mesh": MESH, "rank": 0, "world_size": 2}, "pass it, or `rank` and `world_size`"),
        ({"mesh": MESH}, "this process is not in the mesh"),
        ({"rank": 0, "world_size": 2, "replicate": 2, "on_error": "skip"}, "use on_error='raise'"),
        (
            {"mesh": FLAT},
            "same over the dimension `dp_shard_cp`; pass those over which they differ: mesh['dp_replicate']",
        ),
        ({"mesh": "dp"}, "expected a `torch.distributed.device_mesh.DeviceMesh`, got 'dp'"),
    ],
)
def test_replicas_that_cannot_be_are_refused(rows: fb.Dataset, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(fb.SettingError) as raised:
        rows.batches(8, **settings)
    assert words in str(raised.value)
