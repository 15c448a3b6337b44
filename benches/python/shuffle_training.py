"""Trains a small model on rows in a given order, and plots its loss."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from pathlib import Path

NUM_CLASSES = 10
WIDTH = 16
HIDDEN = 32
RATE = 0.2
HELD_OUT = 4096
NUM_LOOKS = 100
"""How often the loss is measured in an epoch."""
NOISE = 1.5


@functools.cache
def rows(num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns features and labels: each class scattered around its own point, sorted by class."""
    return _draw(np.arange(num_rows) * NUM_CLASSES // num_rows, seed=1)


@functools.cache
def held_out() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns held-out rows of all classes."""
    return _draw(np.arange(HELD_OUT) % NUM_CLASSES, seed=2)


def _draw(labels: Any, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    centres = np.random.default_rng(0).standard_normal((NUM_CLASSES, WIDTH), dtype=np.float32)
    noise = np.random.default_rng(seed).standard_normal((len(labels), WIDTH), dtype=np.float32)
    return torch.from_numpy(centres[labels] + NOISE * noise), torch.from_numpy(labels)


def losses(order: Any, seed: int, batch_size: int) -> list[float]:
    """Returns the loss on the held-out rows over one epoch, from an initialisation given by the seed."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, NUM_CLASSES))
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    features, labels = rows(len(order))
    unseen, expected = held_out()
    num_batches = len(order) // batch_size
    looks = set(np.linspace(0, num_batches - 1, min(NUM_LOOKS, num_batches)).astype(int).tolist())
    found = []
    positions = torch.from_numpy(np.ascontiguousarray(order))
    for step in range(num_batches):
        some = positions[step * batch_size : (step + 1) * batch_size]
        optimiser.zero_grad()
        torch.autograd.backward(torch.nn.functional.cross_entropy(model(features[some]), labels[some]))
        optimiser.step()
        if step in looks:
            with torch.no_grad():
                found.append(float(torch.nn.functional.cross_entropy(model(unseen), expected)))
    return found


def draw(curves: dict[str, Any], full: str, target: Path) -> None:
    """Plots the mean losses over the epoch, and the band of the full shuffle."""
    import matplotlib as mpl

    mpl.use("svg")
    # So that the same numbers give the same bytes.
    mpl.rcParams["svg.hashsalt"] = "forebay"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 4))
    band = curves[full]
    epoch = np.linspace(0, 1, band.shape[1])
    axes.fill_between(epoch, band.min(axis=0), band.max(axis=0), color="0.8", label=f"{full}, all seeds")
    for name, found in curves.items():
        if name != full:
            axes.plot(epoch, found.mean(axis=0), label=name, linewidth=1.8 if name.startswith("forebay") else 1)
    axes.set(xlabel="epoch", ylabel="loss on held-out rows", yscale="log", xlim=(0, 1))
    axes.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})
    plt.close(figure)
