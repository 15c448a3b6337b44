"""Functions for `map`, in a module that worker processes import quickly."""

# ruff: noqa: ARG001 - what they are given is not always what they are about

from __future__ import annotations

import hashlib
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np

from forebay.columns import Masked


def doubled(batch):
    return {"double": [2 * value for value in batch["id"]]}


def of_row(row):
    return {"double": 2 * row["id"], "label": row["label"].upper()}


def unchanged(batch):
    return batch


def nothing(batch):
    return None


def late(batch, indices):
    """Takes a time of the batch's own: those that are given first are not done first."""
    time.sleep(random.Random(indices[0]).random() * 0.02)
    return {"position": indices}


def draw(batch, seeds):
    return {"draw": [random.Random(int(seed)).random() for seed in seeds]}


def draw_row(row, seed):
    return {"draw": random.Random(seed).random()}


def draw_globally(row):
    return {"draw": random.random() + np.random.random()}  # noqa: NPY002 - the global one is meant


def scaled(id, label, factor=1):
    return {"scaled": [factor * value for value in id], "length": [len(text) for text in label]}


def of_array(batch):
    return {"image": np.repeat(batch["id"][:, None], 3000, axis=1), "label": batch["label"]}


class TwoPartsError(Exception):
    """Cannot be pickled: it wants two arguments and keeps one."""

    def __init__(self, what, why):
        super().__init__(what)
        self.why = why


def failing(batch, indices, at=200, how="value"):
    if at in indices:
        fail(how, at)
    return {"position": indices}


def failing_row(row, index):
    if index == 200:
        fail("value", index)


def fail(how, at):
    if how == "value":
        raise ValueError(f"no {at}")
    if how == "unpicklable":
        raise TwoPartsError("cannot", why=lambda: 0)
    if how == "exit":
        sys.exit(3)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        time.sleep(600)


def other_length(batch):
    return {"double": [1, 2, 3]}


def other_field(batch):
    return {"both": {"a": batch["id"], "b": [1, 2, 3]}}


def other_mask(batch):
    return {"both": Masked([1, 2, 3], np.ones(len(batch["id"]), bool))}


def number(batch):
    return 3


def scalar(batch):
    return {"double": 3.5}


def lambdas(batch):
    return {"call": [lambda: 0 for _ in batch["id"]]}


kept = []


def keeping(batch):
    """Keeps what it is given, against the rules."""
    kept.append(batch["id"])
    total = sum(int(values.sum()) for values in kept)
    return {"total": [total] * len(batch["id"])}


def who(batch):
    return {"pid": [os.getpid()] * len(batch["id"])}


def waiting(batch, folder):
    """Says that it began, and does not come back."""
    Path(folder, f"began-{os.getpid()}").touch()
    time.sleep(600)


def large(batch, num_bytes):
    return {"blob": [np.zeros(num_bytes, np.uint8) for _ in batch["id"]]}


def without_descriptors(batch):
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return large(batch, 100_000)


def init(worker):
    os.environ["WORKER"] = str(worker)


def name_of_worker(batch):
    return {"worker": [os.environ["WORKER"]] * len(batch["id"])}


def timed(batch):
    """Tells how long it took."""
    started = time.perf_counter()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1000)
    return {"seconds": [time.perf_counter() - started] * len(batch["id"])}


def failing_pairs(rows, how):
    if rows[0]["id"] == 64:
        fail(how, 64)
    return pairs(rows)


def pairs(rows):
    return [(row["id"], row["label"]) for row in rows]
