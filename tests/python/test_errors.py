"""Bad input: each a typed error that names the object or the argument, never a crash, never a wrong row."""

from __future__ import annotations

import base64
import builtins
import json
import os
import pickle
from typing import TYPE_CHECKING, Any

import data
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from programs import run_python

import forebay as fb
from forebay.options import ReadOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MIXED_IN = {
    fb.TransformError: RuntimeError,
    fb.WorkerDiedError: fb.TransformError,
    fb.TransformTimeoutError: TimeoutError,
    fb.NotFoundError: FileNotFoundError,
    fb.DatasetNotFoundError: FileNotFoundError,
    fb.GatedDatasetError: PermissionError,
    fb.HubUnreachableError: ConnectionError,
    fb.AccessDeniedError: PermissionError,
    fb.StoreError: OSError,
    fb.StoreTimeoutError: TimeoutError,
    fb.ObjectChangedError: OSError,
    fb.DataError: ValueError,
    fb.SkipLimitError: fb.DataError,
    fb.SchemaError: ValueError,
    fb.ColumnNotFoundError: ValueError,
    fb.QueryError: ValueError,
    fb.SettingError: ValueError,
    fb.StateError: ValueError,
    fb.MemoryLimitError: MemoryError,
    fb.TensorError: TypeError,
    fb.ClosedError: ValueError,
    fb.AgreementError: ValueError,
    fb.SelectionError: ValueError,
    fb.RowIndexError: IndexError,
    fb.VersionError: ImportError,
}


@pytest.mark.parametrize(("kind", "builtin"), MIXED_IN.items(), ids=lambda kind: kind.__name__)
def test_an_exception_is_ours_and_the_builtin_that_fits(kind, builtin):
    assert issubclass(kind, fb.ForebayError)
    assert issubclass(kind, builtin)
    assert kind.__name__ in fb.__all__
    copy = pickle.loads(pickle.dumps(kind("what, where and what to do")))
    assert type(copy) is kind
    assert str(copy) == "what, where and what to do"


def test_every_exception_is_in_the_table():
    kinds = {kind for kind in vars(fb).values() if isinstance(kind, type) and issubclass(kind, fb.ForebayError)}
    assert kinds - {fb.ForebayError} == set(MIXED_IN)
    assert not {kind.__name__ for kind in kinds} & set(dir(builtins))


@pytest.fixture
def corpus(tmp_path) -> Path:
    """Two objects of rows that tell who they are."""
    data.write_fragments(tmp_path, data.ids_table(4000), num_fragments=2, row_group_rows=500)
    return tmp_path


@pytest.fixture
def ds(corpus) -> fb.Dataset:
    return fb.load_dataset(corpus, split="train")


def parquet_bytes(**options: object) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(data.ids_table(1000), sink, **options)
    return sink.getvalue().to_pybytes()


WHOLE = parquet_bytes()
NOT_PARQUET = {
    "zero bytes": b"",
    "one byte": b"P",
    "only the magic": b"PAR1",
    "the magic twice": b"PAR1PAR1",
    "text": b"id,label\n1,a\n" * 100,
    "a short text": b"hello",
    "zeros": bytes(5000),
    "cut at the end": WHOLE[:-1],
    "cut in the footer": WHOLE[:-20],
    "cut in half": WHOLE[: len(WHOLE) // 2],
    "without its beginning": WHOLE[len(WHOLE) // 2 :],
    "a footer length beyond the file": WHOLE[:-8] + (2**31 - 1).to_bytes(4, "little") + b"PAR1",
    "a footer length of zero": WHOLE[:-8] + bytes(4) + b"PAR1",
    "a footer length that is off": WHOLE[:-8]
    + (int.from_bytes(WHOLE[-8:-4], "little") - 7).to_bytes(4, "little")
    + b"PAR1",
    "a footer of noise": b"PAR1" + b"\xa5" * 600 + (600).to_bytes(4, "little") + b"PAR1",
    "encrypted": WHOLE[:-4] + b"PARE",
    "something behind it": WHOLE + b"\n",
}


@pytest.mark.parametrize("body", NOT_PARQUET.values(), ids=NOT_PARQUET)
def test_what_is_not_parquet_is_refused_by_name(tmp_path, body):
    pq.write_table(data.ids_table(10), tmp_path / "a.parquet")
    (tmp_path / "bad one.parquet").write_bytes(body)
    for source in (tmp_path, tmp_path / "bad one.parquet", f"{tmp_path}/b*.parquet"):
        with pytest.raises(fb.DataError, match=r"bad one\.parquet"):
            fb.load_dataset(source, split="train")


MISSING = [
    "absent",
    "absent/",
    "absent.parquet",
    "absent/*.parquet",
    "*.parquet",
    "**/*.csv",
    "a/b/c",
    "empty",
    "other",
]


@pytest.mark.parametrize("source", MISSING)
def test_a_source_that_is_not_there_is_named(tmp_path, source):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("not Parquet")
    for uri in (tmp_path / source, f"file://{tmp_path}/{source}", [tmp_path / source]):
        for split in ("train", None):
            with pytest.raises(fb.NotFoundError) as caught:
                fb.load_dataset(uri, split=split)
            assert source.strip("/").split("/")[-1] in str(caught.value)


@pytest.mark.parametrize(
    "source",
    ["", "fax://host/a.parquet", "s3://", "gopher://x", "http://", "s3:/bucket/x", "://x", "s3://buck et/x", []],
)
def test_a_source_that_cannot_be_understood_is_refused(source):
    with pytest.raises(fb.ForebayError) as caught:
        fb.load_dataset(source, split="train", storage_options={"aws_region": "us-east-1"})
    assert isinstance(caught.value, ValueError | OSError)


def test_an_option_that_is_not_known_is_refused():
    with pytest.raises(fb.SettingError, match="aws_acess_key_id"):
        fb.load_dataset("s3://bucket/x", split="train", storage_options={"aws_acess_key_id": "x"})


def test_secrets_are_never_shown():
    options = {
        "aws_access_key_id": "AKIDSHOWN",
        "aws_secret_access_key": "TOPSECRET",
        "aws_endpoint": "http://127.0.0.1:1",
        "aws_allow_http": "true",
        "aws_region": "us-east-1",
        "retry_for": "100 ms",
    }
    for source in ("s3://user:TOPSECRET@bucket/x", "s3://bucket/x"):
        with pytest.raises(fb.ForebayError) as caught:
            fb.load_dataset(source, split="train", storage_options=options)
        assert "TOPSECRET" not in str(caught.value) + repr(caught.value)


def test_options_of_a_remote_store_are_refused_for_local_files(tmp_path):
    pq.write_table(data.ids_table(3), tmp_path / "a.parquet")
    with pytest.raises(fb.SettingError, match="`aws_region` means nothing for local files"):
        fb.load_dataset(tmp_path, split="train", storage_options={"aws_region": "us-east-1"})


NUMBERS = [0, -1, 1.5, True, None, "8", 2**63]


@pytest.mark.parametrize("value", NUMBERS)
def test_a_batch_size_that_cannot_work_is_refused(ds, value):
    for make in (ds.batches, ds.to_torch, ds.shuffle(1).batches):
        with pytest.raises(fb.SettingError, match="batch_size"):
            make(value)


SETTINGS = [
    ({"rank": 2, "world_size": 2}, "rank"),
    ({"rank": 5, "world_size": 2}, "rank"),
    ({"rank": -1, "world_size": 2}, "rank"),
    ({"rank": 0, "world_size": 0}, "world_size"),
    ({"rank": 0, "world_size": -3}, "world_size"),
    ({"rank": 0}, "rank and world_size: give both or none"),
    ({"world_size": 2}, "rank and world_size: give both or none"),
    ({"rank": 0.0, "world_size": 2}, "rank"),
    ({"rank": False, "world_size": True}, "world_size"),
    ({"remainder": "split"}, "remainder"),
    ({"remainder": None}, "remainder"),
    ({"memory_limit": 0}, "memory_limit"),
    ({"memory_limit": 1000}, "memory_limit"),
    ({"memory_limit": "1 giga"}, "memory_limit"),
    ({"num_threads": 0}, "num_threads"),
    ({"num_threads": -1}, "num_threads"),
    ({"num_threads": 10**6}, "num_threads"),
]


@pytest.mark.parametrize(("settings", "says"), SETTINGS, ids=lambda value: str(value))
def test_a_setting_that_cannot_work_is_named(ds, settings, says):
    for make in (ds.batches, ds.to_torch):
        with pytest.raises(fb.SettingError, match=says):
            make(8, **settings)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"seed": None}, "seed"),
        ({"shuffle_bytes": 0}, "shuffle_bytes"),
        ({"num_lanes": 0}, "num_lanes"),
        ({"window_rows": 0}, "window_rows"),
        ({"window_rows": True}, "window_rows"),
    ],
)
def test_a_shuffle_that_cannot_work_is_named(ds, settings, says):
    with pytest.raises(fb.SettingError, match=says):
        ds.shuffle(**settings)


@pytest.mark.parametrize(
    ("rank", "world_size"), [("2", "2"), ("x", "2"), ("0", ""), ("0", "0"), ("-1", "2"), ("0.5", "1")]
)
def test_a_rank_of_the_environment_that_cannot_work_is_refused(ds, monkeypatch, rank, world_size):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world_size)
    with pytest.raises(fb.SettingError, match=r"(?i)rank|world_size"):
        ds.batches(8)


@pytest.mark.parametrize("epoch", [-1, 1.5, True, None, "1"])
def test_an_epoch_that_cannot_work_is_refused(ds, epoch):
    for stream in (ds.batches(8), ds.to_torch(8)):
        with pytest.raises(fb.SettingError, match="epoch"):
            stream.set_epoch(epoch)


def test_a_memory_limit_too_small_for_the_data_says_how_much_it_takes(tmp_path):
    table = pa.table({"x": [os.urandom(1 << 20) for _ in range(24)]})
    pq.write_table(table, tmp_path / "wide.parquet", row_group_size=24, compression="none", use_dictionary=False)
    ds = fb.load_dataset(tmp_path, split="train")
    with pytest.raises(fb.MemoryLimitError, match=r"memory_limit of 1048576 bytes.*wide\.parquet.*needs \d+ bytes"):
        list(ds.batches(24, memory_limit=1 << 20))
    assert sum(batch.num_rows for batch in ds.batches(24, memory_limit=1 << 28)) == 24


FOREIGN_STATES = {
    "another dataset": lambda state: state | {"fingerprint": "0" * 64},
    "another seed": lambda state: state | {"order": state["order"] | {"seed": 43}},
    "no shuffle": lambda state: {k: v for k, v in state.items() if k != "order"} | {"order": "sequential"},
    "another query": lambda state: state | {"query": ["id > 5"]},
    "a position beyond the end": lambda state: state | {"position": 10**9},
    "a negative position": lambda state: state | {"position": -1},
    "a position that is no number": lambda state: state | {"position": "ten"},
    "a negative epoch": lambda state: state | {"epoch": -1},
    "another version": lambda state: state | {"version": 99},
    "no fingerprint": lambda state: {k: v for k, v in state.items() if k != "fingerprint"},
    "something unknown": lambda state: state | {"unknown": 1},
    "nothing": lambda _: {},
    "a list": lambda _: [1, 2],
    "a text": lambda _: "state",
    "none": lambda _: None,
    "what is not JSON": lambda state: state | {"epoch": object()},
    "a sampler's": lambda _: {"epoch": 3, "step": 7},
}


@pytest.mark.parametrize("change", FOREIGN_STATES.values(), ids=FOREIGN_STATES)
def test_a_state_from_elsewhere_is_refused_and_changes_nothing(ds, change):
    for stream in (ds.shuffle(42).batches(8), ds.shuffle(42).to_torch(8)):
        before = stream.state_dict()
        with pytest.raises(fb.StateError):
            stream.load_state_dict(change(before))
        assert stream.state_dict() == before


def test_a_state_says_what_differs(ds):
    state = ds.filter("id > 3").shuffle(42).batches(8).state_dict()
    with pytest.raises(fb.StateError, match=r"query.*id > 4"):
        ds.filter("id > 4").shuffle(42).batches(8).load_state_dict(state)
    with pytest.raises(fb.StateError, match=r"seed|order"):
        ds.filter("id > 3").shuffle(41).batches(8).load_state_dict(state)
    with pytest.raises(fb.StateError, match="order"):
        ds.filter("id > 3").batches(8).load_state_dict(state)


def test_a_state_of_rewritten_data_is_refused(corpus, ds):
    state = ds.batches(8).state_dict()
    data.write_fragments(corpus, data.ids_table(4100), num_fragments=2, row_group_rows=500)
    with pytest.raises(fb.StateError, match="dataset|fingerprint"):
        fb.load_dataset(corpus, split="train").batches(8).load_state_dict(state)


def rewrite(path: Path, body: bytes) -> None:
    """Replaces what is stored under a name, with a time of its own."""
    before = path.stat()
    path.write_bytes(body)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))


def other_content(path: Path) -> bytes:
    """Another valid object of the same size."""
    sink = pa.BufferOutputStream()
    table = pq.read_table(path)
    flipped = table.set_column(0, "id", pa.array([value ^ 1 for value in table["id"].to_pylist()]))
    pq.write_table(flipped, sink, row_group_size=500)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("how", ["same size", "other size", "emptied", "removed", "replaced", "a pipe"])
@pytest.mark.parametrize("use", ["batches", "filter", "arrow"])
def test_an_object_that_changes_between_opening_and_reading_is_an_error(tmp_path, how, use):
    pq.write_table(data.ids_table(2000), tmp_path / "part-0.parquet", row_group_size=500)
    path = tmp_path / "part-1.parquet"
    pq.write_table(data.ids_table(2000, first=2000), path, row_group_size=500)
    ds = fb.load_dataset(tmp_path, split="train")
    body = path.read_bytes()
    if how == "same size":
        middle = len(body) // 3
        rewrite(path, body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :])
    elif how == "other size":
        rewrite(path, other_content(path) + b"x")
    elif how == "emptied":
        rewrite(path, b"")
    elif how == "removed":
        path.unlink()
    elif how == "a pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        fresh = tmp_path / "fresh"
        fresh.write_bytes(other_content(path))
        fresh.replace(path)
    kinds = (fb.ObjectChangedError, fb.NotFoundError if how == "removed" else fb.ObjectChangedError)
    uses = {
        "batches": lambda: list(ds.batches(100)),
        "filter": lambda: len(ds.filter("id % 7 = 3")),
        "arrow": lambda: pa.table(ds),
    }
    # Across the C interface of Arrow an error keeps its message, not its class.
    expected = (pa.ArrowException, OSError, RuntimeError) if use == "arrow" else kinds
    with pytest.raises(expected, match=r"part-1\.parquet"):
        uses[use]()


DAMAGE = """
import sys
import pathlib
import data
import forebay as fb
import pyarrow as pa
import pyarrow.parquet as pq

folder, codec, checksums = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "True"
table = data.mixed_table(600, seed=3)
path = folder / "damaged.parquet"
pq.write_table(table, path, compression=codec, row_group_size=200, write_page_checksum=checksums)
whole = path.read_bytes()
footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
outcomes = {"error": 0, "rows": 0, "wrong": 0}


def is_whole(found):
    # Bit by bit, since NaN does not equal itself.
    for name in found.column_names:
        one, other = found[name], table[name]
        if pa.types.is_floating(one.type):
            one, other = (column.fill_null(0).to_numpy().tobytes() for column in (one, other))
        if one != other:
            return False
    return found.num_rows == table.num_rows


step = footer // 60
for position in range(4, footer - 8, step):
    path.write_bytes(whole[:position] + bytes(b ^ 0xFF for b in whole[position : position + 8]) + whole[position + 8 :])
    ds = fb.load_dataset(folder, split="train")
    uses = (
        lambda: pa.table(ds),
        lambda: list(ds.shuffle(1).batches(50)),
        lambda: len(ds.filter("text > 'b' AND small > 0")),
    )
    for number, use in enumerate(uses):
        try:
            found = use()
        except (fb.ForebayError, pa.ArrowException, OSError) as error:
            assert "damaged.parquet" in str(error), error
            assert "internal error" not in str(error), error
            outcomes["error"] += 1
        else:
            outcomes["rows"] += 1
            outcomes["wrong"] += number == 0 and not is_whole(found)
path.write_bytes(whole)
assert pa.table(fb.load_dataset(folder, split="train")).num_rows == 600
print(outcomes["error"], outcomes["wrong"])
"""


@pytest.mark.parametrize(
    ("codec", "checksums"), [("none", False), ("zstd", False), ("snappy", False), ("zstd", True), ("none", True)]
)
def test_damaged_pages_are_errors_and_never_a_crash(tmp_path, codec, checksums):
    errors, wrong = map(int, run_python(DAMAGE, tmp_path, codec, checksums).split())
    assert errors > (20 if codec == "none" else 40)
    # Without checksums, flipped values are values like others.
    assert not (checksums and wrong)


DAMAGED_FOOTER = """
import sys
import pathlib
import data
import forebay as fb
import pyarrow as pa
import pyarrow.parquet as pq

folder = pathlib.Path(sys.argv[1])
path = folder / "damaged.parquet"
pq.write_table(data.mixed_table(300, seed=3), path, row_group_size=100, write_page_index=True)
whole = path.read_bytes()
footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
errors = 0
start = footer - 400
for position in range(start, len(whole) - 8, 23):
    path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
    try:
        ds = fb.load_dataset(folder, split="train")
        len(ds.filter("small > 0"))
        list(ds.batches(50))
    except fb.ForebayError as error:
        if isinstance(error, (fb.DataError, fb.StoreError)):
            assert "damaged.parquet" in str(error), error
        assert "internal error" not in str(error), (position, error)
        errors += 1
print(errors)
"""


def test_damaged_footers_and_page_indexes_are_errors_and_never_a_crash(tmp_path):
    assert int(run_python(DAMAGED_FOOTER, tmp_path, timeout=110)) > 50


def test_an_error_in_a_stream_is_raised_again_never_a_hang(corpus):
    ds = fb.load_dataset(corpus, split="train")
    (corpus / "part-1.parquet").unlink()
    iterator = iter(ds.batches(100))
    with pytest.raises(fb.ForebayError, match=r"part-1\.parquet"):
        list(iterator)
    with pytest.raises(fb.ClosedError, match="the iteration was ended by `NotFoundError`"):
        list(iterator)
    with pytest.raises(fb.NotFoundError):
        list(ds.batches(100))


def test_numbers_of_numpy_are_settings_like_those_of_python():
    for kind in (np.int64, np.uint8, np.float32):
        assert fb.Pad(values={"a": kind(5)}) == fb.Pad(values={"a": 5})
        assert json.dumps(fb.Pack(length=8, values={"a": kind(5)}).values) == json.dumps({"a": kind(5).item()})
        assert fb.PoolOptions(timeout=kind(3)) == fb.PoolOptions(timeout=3)
        fb.Image(8, scale=(np.float32(0.5), kind(1)), ratio=(kind(1), kind(2)), flip=kind(1))
    assert ReadOptions(on_error="skip", max_skipped=np.float32(0.25)).skippable(100) == 25
    assert ReadOptions(on_error="skip", max_skipped=np.int64(3)).skippable(100) == 3
    for flag in (True, np.True_):
        with pytest.raises(fb.SettingError, match="expected a number"):
            fb.Pad(values={"a": flag})
        with pytest.raises(fb.SettingError, match="expected seconds above 0"):
            fb.PoolOptions(timeout=flag)


AGAIN = {
    "rows": (lambda ds: iter(ds), "iterate again, from the first row on"),
    "rows in a format": (lambda ds: ds.with_format("numpy").iter(), "iterate again, from the first row on"),
    "batches of rows": (lambda ds: ds.iter(10), "iterate again, from the first row on"),
    "batches in a format": (lambda ds: ds.with_format("arrow").iter(10), "iterate again, from the first row on"),
    "a query": (lambda ds: iter(ds.query("SELECT id FROM dataset")), "query again"),
    "to_hf": (lambda ds: iter(ds.to_hf()), "load a state that was saved before"),
    "to_hf, in batches": (lambda ds: ds.to_hf().iter(10), "load a state that was saved before"),
    "to_hf, mapped": (lambda ds: iter(ds.to_hf().map(lambda row: row)), "load a state that was saved before"),
}


@pytest.mark.parametrize("name", AGAIN)
def test_who_asks_again_after_an_error_is_not_told_that_this_was_all(corpus, name):
    """As in a loop that tries to take the next row in spite of errors, which would take the epoch for over."""
    iterate, advice = AGAIN[name]
    ds = fb.load_dataset(corpus, split="train")
    # Before: some read ahead at once.
    (corpus / "part-1.parquet").unlink()
    iterator = iterate(ds)
    with pytest.raises(fb.NotFoundError):
        list(iterator)
    for _ in range(2):
        with pytest.raises(fb.ClosedError, match=f"the iteration was ended by `NotFoundError`; {advice}"):
            next(iterator)


def test_rows_before_the_error_are_right(corpus):
    ds = fb.load_dataset(corpus, split="train")
    (corpus / "part-1.parquet").unlink()
    seen = []

    def read() -> None:
        for batch in ds.batches(100):
            seen.extend(pa.record_batch(batch)["id"].to_pylist())

    with pytest.raises(fb.ForebayError):
        read()
    assert seen == list(range(len(seen)))


def test_errors_of_a_real_call_can_be_pickled(ds, tmp_path):
    calls = [
        lambda: ds.filter("scroe > 1"),
        lambda: ds.filter("id >"),
        lambda: ds.select_columns("x"),
        lambda: ds.batches(0),
        lambda: fb.load_dataset(tmp_path / "absent", split="train"),
        lambda: ds.batches(1).load_state_dict({}),
    ]
    for call in calls:
        with pytest.raises(fb.ForebayError) as caught:
            call()
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (type(copy), str(copy)) == (type(caught.value), str(caught.value))


ARRAYS = {
    "numbers": np.array([1, 2]),
    "texts": np.array(["raise", "skip"]),
    "one text": np.array(["raise"]),
    "nothing": np.array([None]),
    "no dimension": np.array("raise"),
}

ARGUMENTS: dict[str, Callable[[fb.Dataset, Any], object]] = {
    "on_error": lambda ds, value: ds.batches(8, on_error=value),
    "remainder": lambda ds, value: ds.batches(8, remainder=value),
    "replicate": lambda ds, value: ds.batches(8, replicate=value),
    "format": lambda ds, value: ds.with_format(value),
    "compat": lambda ds, value: ds.with_format("torch", compat=value),
    "forms": lambda ds, value: ds.to_torch(8, forms=value),
    "padding": lambda ds, value: ds.to_torch(8, padding=value),
    "pack": lambda ds, value: ds.to_torch(8, pack=value),
    "decode": lambda ds, value: ds.to_torch(8, decode=value),
    "to": lambda _, value: fb.Pad(to=value),
    "dtype": lambda _, value: fb.Pad(dtype=value),
    "mode": lambda _, value: fb.Pack(length=8, mode=value),
    "crop": lambda _, value: fb.Image(size=8, crop=value),
    "on_error of images": lambda _, value: fb.Image(size=8, on_error=value),
    "start_method": lambda _, value: fb.PoolOptions(start_method=value),
    "timeout": lambda ds, value: fb.DataLoader(ds, timeout=value),
    "pin_memory": lambda ds, value: fb.DataLoader(ds, pin_memory=value),
    "pin_memory_device": lambda ds, value: fb.DataLoader(ds, pin_memory_device=value),
    "decode of rows": lambda ds, value: fb.DataLoader(ds, collate_fn=list, decode=value),
    "column": lambda ds, value: ds.cast_column(value, {"dtype": "int64", "_type": "Value"}),
    "original_column_name": lambda ds, value: ds.rename_column(value, "x"),
    "column_names": lambda ds, value: ds.remove_columns([*ds.column_names[:1], value]),
    "analyze": lambda ds, value: ds.explain(analyze=value),
    "data_files": lambda _, value: fb.load_dataset("parquet", data_files=value),
    "generator of rows": lambda ds, value: ds.to_hf().shuffle(generator=value),
    "index of rows": lambda ds, value: ds.to_hf().shard(2, value),
}


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_an_array_for_something_else_is_refused_as_any_other_value(ds, argument, array):
    with pytest.raises(fb.ForebayError):
        ARGUMENTS[argument](ds, ARRAYS[array])


def test_a_name_that_is_an_array_without_a_dimension_is_refused(ds):
    with pytest.raises(fb.SettingError, match="columns: expected a name or a list of names"):
        ds.select_columns(np.array("id"))


class _Keys(pe.KmsClient):
    """Keeps keys by their names, in the clear."""

    def wrap_key(self, key_bytes: bytes, _name: str) -> str:
        return base64.b64encode(key_bytes).decode()

    def unwrap_key(self, wrapped_key: str, _name: str) -> bytes:
        return base64.b64decode(wrapped_key)


@pytest.mark.parametrize("algorithm", ["AES_GCM_V1", "AES_GCM_CTR_V1"])
def test_a_column_that_is_encrypted_is_told_as_such_and_the_others_are_read(tmp_path, algorithm):
    table = pa.table({"id": range(3000), "secret": [f"{row}" for row in range(3000)]})
    keys = pe.EncryptionConfiguration(
        "footer", column_keys={"column": ["secret"]}, plaintext_footer=True, encryption_algorithm=algorithm
    )
    factory = pe.CryptoFactory(lambda _config: _Keys())
    encryption = factory.file_encryption_properties(pe.KmsConnectionConfig(), keys)
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, table.schema, encryption_properties=encryption) as writer:
        writer.write_table(table, row_group_size=1000)
    ds = fb.load_dataset(path, split="train")
    assert pa.table(ds.filter("id > 4").select_columns("id"))["id"].to_pylist() == list(range(5, 3000))
    said = f"column `secret` in row group . of `{path}`: .*encrypted, which is not supported; select other columns"
    for read in (lambda: list(ds.shuffle(1).batches(100)), lambda: ds[0], lambda: len(ds.filter("secret = '7'"))):
        with pytest.raises(fb.DataError, match=said):
            read()
