"""Ranks that get the same batches: those that hold parts of one replica of a model."""

from __future__ import annotations

from math import prod
from typing import Any

from forebay.exceptions import SettingError
from forebay.options import check_count

SAME_BATCHES = frozenset({"tp", "cp", "sp", "pp", "tensor", "context", "sequence", "pipeline"})
"""Names of mesh dimensions over which batches are the same by convention, alone or within the name of a flattened one:
`dp_shard_cp` of accelerate and torchtitan is the dimension that shards parameters, not batches."""


def share_of(rank: int, world_size: int, mesh: Any, replicate: int, *, is_detected: bool) -> tuple[int, int]:
    """Returns the index of the share of batches that a rank takes, and the number of shares.

    Args:
        rank: The rank of the process.
        world_size: The number of processes.
        mesh: A `DeviceMesh` of the dimensions over which batches differ, or None.
        replicate: How many consecutive ranks take the same batches.
        is_detected: Whether `rank` and `world_size` are those of the process group or the environment.

    Raises:
        SettingError: the arguments do not fit together.
    """
    replicate = check_count("replicate", replicate)
    if mesh is None:
        if world_size % replicate:
            raise SettingError(
                f"replicate: {replicate} ranks for each replica, which does not divide the world size of {world_size}"
            )
        return rank // replicate, world_size // replicate
    if replicate != 1:
        raise SettingError("replicate: a mesh says which ranks take the same batches; pass one of `mesh`, `replicate`")
    if not is_detected:
        raise SettingError("mesh: a mesh knows rank and world size; pass it, or `rank` and `world_size`")
    return _coordinate(mesh)


def _coordinate(mesh: Any) -> tuple[int, int]:
    """Returns the index of this process in a flattened mesh, and the size of the mesh."""
    if not hasattr(mesh, "get_coordinate") or not hasattr(mesh, "mesh_dim_names"):
        raise SettingError(f"mesh: expected a `torch.distributed.device_mesh.DeviceMesh`, got {mesh!r}")
    names = tuple(mesh.mesh_dim_names or ())
    same = [name for name in names if not SAME_BATCHES.isdisjoint(name.split("_"))]
    if same:
        others = ", ".join(repr(name) for name in names if name not in same) or "'dp'"
        raise SettingError(
            f"mesh: batches are the same over the dimension `{same[0]}`; pass those over which they differ: "
            f"mesh[{others}]"
        )
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise SettingError(f"mesh: this process is not in the mesh {mesh!r}")
    rank = 0
    for index, size in zip(coordinate, mesh.shape, strict=True):
        rank = rank * int(size) + int(index)
    return rank, prod(map(int, mesh.shape))
