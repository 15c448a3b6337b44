"""Configurations, splits and cards: what they choose, and what is said of those that mean nothing."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hub import TOKEN, Hub
from hub_data import ids_file, to_bytes

import forebay as fb
from forebay.hub.settings import current


@pytest.fixture
def hub(served, tmp_path, monkeypatch) -> Hub:
    served.point(monkeypatch, tmp_path)
    served.clear()
    return served


CARD = """---
license: mit
configs:
- config_name: en
  data_files:
  - split: train
    path: en/train-*
  - split: dev
    path: [en/dev.parquet]
- config_name: de
  default: true
  data_dir: de
dataset_info:
- config_name: en
  features:
  - name: id
    dtype: int64
- config_name: de
  splits:
  - name: train
    num_examples: 7
---
A card.
"""


def files(card: str = CARD) -> dict[str, bytes]:
    paths = {
        "en/train-1.parquet": 5,
        "en/train-0.parquet": 4,
        "en/dev.parquet": 3,
        "de/test.parquet": 2,
        "de/train.parquet": 7,
    }
    return {path: ids_file(0, num_rows) for path, num_rows in paths.items()} | {"README.md": card.encode()}


def test_a_config_is_chosen_by_name_or_by_the_card(hub):
    hub.create("org/cards", files())
    english = fb.load_dataset("org/cards", "en")
    assert {name: split.num_rows for name, split in english.items()} == {"train": 9, "dev": 3}
    assert {name: split.num_rows for name, split in fb.load_dataset("org/cards").items()} == {"train": 7, "test": 2}
    assert fb.load_dataset("org/cards", "en", "train").num_rows == 9
    both = fb.load_dataset("org/cards", "en", "train+dev")
    assert [row["id"] for row in both.iter()] == [*range(4), *range(5), *range(3)]
    assert hub.count("api") == 4, "a commit with its files"


LABELS = """---
dataset_info:
  features:
  - name: id
    dtype:
      class_label:
        names:
          '0': cat
          '1': dog
  - name: square
    dtype: float64
---
"""


def test_features_are_those_of_the_card_as_in_datasets(hub):
    import datasets

    hub.create("org/labelled", {"train.parquet": ids_file(0, 2), "README.md": LABELS.encode()})
    ours = fb.load_dataset("org/labelled", split="train")
    theirs = datasets.load_dataset("org/labelled", split="train", streaming=True)
    label = datasets.ClassLabel(names=["cat", "dog"])
    assert ours.features == theirs.features == {"id": label, "square": datasets.Value("float64")}
    assert list(ours.take(9)) == list(theirs)
    assert list(ours.filter("id = 'dog'").take(9)) == [{"id": 1, "square": 1.0}]


LABEL = {"num_classes": 2, "names": ["cat", "dog"], "names_file": None, "id": None, "_type": "ClassLabel"}
LEGACY = {
    "one": {"org--labelled": {"features": {"id": LABEL, "square": {"dtype": "float64", "id": None, "_type": "Value"}}}},
    "of the default": {"default": {"features": {"id": LABEL, "square": {"dtype": "int64", "_type": "Value"}}}, "a": {}},
    "of others": {"a": {"features": {"id": LABEL, "square": {"dtype": "int64", "_type": "Value"}}}, "b": {}},
    "nothing": {"default": {"features": None, "splits": {"train": {"name": "train", "num_examples": 2}}}},
}


@pytest.mark.parametrize("card", ["", LABELS.replace("cat", "owl")], ids=["alone", "below a card"])
@pytest.mark.parametrize("place", ["hub", "folder"])
@pytest.mark.parametrize("legacy", LEGACY.values(), ids=LEGACY)
def test_features_of_old_infos_are_those_of_datasets(hub, tmp_path, legacy, place, card):
    import datasets

    content = {"train.parquet": ids_file(0, 2), "dataset_infos.json": json.dumps(legacy).encode()}
    content |= {"README.md": card.encode()} if card else {}
    name = put(tmp_path / "infos", content) if place == "folder" else f"org/infos{abs(hash(str(legacy) + card))}"
    hub.create(name, content)
    ours = fb.load_dataset(name, split="train")
    theirs = datasets.load_dataset(name, split="train", streaming=True)
    assert ours.features == theirs.features
    assert list(ours) == list(theirs)


OF_CONFIGS = """---
configs:
- config_name: a
  data_files: d/train.parquet
  features:
  - name: id
    dtype: float32
  - name: square
    dtype: float64
dataset_info:
- config_name: a
  features:
  - name: id
    dtype: int8
  - name: square
    dtype: int32
- config_name: default
  features:
  - name: id
    dtype: int16
---
"""


@pytest.mark.parametrize("place", ["hub", "folder"])
@pytest.mark.parametrize("card", [LABELS, OF_CONFIGS], ids=["of all", "of configs"])
@pytest.mark.parametrize("settings", [{"data_files": "d/*.parquet"}, {"data_dir": "d"}, {}], ids=str)
def test_files_that_are_named_have_the_features_of_datasets(hub, tmp_path, card, settings, place):
    import datasets

    content = {"d/train.parquet": ids_file(0, 2), "README.md": card.encode()}
    (tmp_path / "named" / "d").mkdir(parents=True)
    name = put(tmp_path / "named", content) if place == "folder" else f"org/named{len(card)}"
    hub.create(name, content)
    ours = fb.load_dataset(name, split="train", **settings)
    theirs = datasets.load_dataset(name, split="train", streaming=True, **settings)
    assert ours.features == theirs.features


def test_old_infos_that_mean_nothing_are_named(hub):
    for said in (b"{", b"[]", b'{"default": 3}', b"[" * 100_000):
        hub.create("org/infos", {"train.parquet": ids_file(0, 2), "dataset_infos.json": said})
        with pytest.raises(fb.DataError, match="`datasets/org/infos/dataset_infos.json`: "):
            fb.load_dataset("org/infos")


@pytest.mark.parametrize("split", [None, "train"])
@pytest.mark.parametrize("settings", [{}, {"data_files": "train.parquet"}])
def test_features_of_a_local_card_are_those_of_datasets(tmp_path, split, settings):
    import datasets

    (tmp_path / "train.parquet").write_bytes(ids_file(0, 2))
    (tmp_path / "README.md").write_text(LABELS)
    ours = fb.load_dataset(tmp_path, split=split, **settings)
    theirs = datasets.load_dataset(str(tmp_path), split=split, streaming=True, **settings)
    one, other = (ours, theirs) if split else (ours["train"], theirs["train"])
    assert one.features == other.features
    if not settings:
        assert one.features["id"].names == ["cat", "dog"]
        assert len(one.filter("id = 'dog'")) == 1


REORDERED = """---
configs:
- config_name: default
  data_files: "*.parquet"
{}
dataset_info:
  features:
  - name: square
    dtype: float32
  - name: id
    dtype: int64
---
"""


@pytest.mark.parametrize("where", ["hub", "folder"])
@pytest.mark.parametrize("said", ["", "  columns: [id, square]", "  columns: [id]"])
def test_columns_have_the_order_of_the_cards_features(hub, tmp_path, where, said):
    import datasets

    card = REORDERED.format(said)
    if where == "hub":
        name = f"org/order-{len(said)}"
        hub.create(name, {"train.parquet": ids_file(0, 2), "README.md": card.encode()})
    else:
        name = str(tmp_path)
        (tmp_path / "train.parquet").write_bytes(ids_file(0, 2))
        (tmp_path / "README.md").write_text(card)
    ours = fb.load_dataset(name, split="train")
    theirs = datasets.load_dataset(name, split="train", streaming=True)
    assert ours.column_names == theirs.column_names == list(ours.features)
    assert str(list(ours)) == str(list(theirs))


def test_columns_have_the_order_of_features_that_name_them_all(tmp_path):
    import datasets

    (tmp_path / "train.parquet").write_bytes(ids_file(0, 2))
    features = datasets.Features({"square": datasets.Value("float64"), "id": datasets.Value("int8")})
    assert fb.load_dataset(tmp_path, split="train", features=features).column_names == ["square", "id"]
    assert fb.load_dataset(tmp_path, split="train", features={"square": features["square"]}).column_names[0] == "id"


@pytest.mark.parametrize(
    "extra",
    ["  - name: other\n    dtype: string\n", "  - name: square\n    struct:\n    - name: x\n      dtype: string\n"],
)
def test_features_of_the_card_that_no_file_has_are_told(hub, extra):
    name = extra.split()[2]
    card = LABELS.replace("  - name: square\n    dtype: float64\n", extra)
    hub.create(f"org/{name}", {"train.parquet": ids_file(0, 2), "README.md": card.encode()})
    with pytest.warns(UserWarning, match=f"features that are not those of its files: `{name}`"):
        ours = fb.load_dataset(f"org/{name}", split="train")
    assert ours.features["id"].names == ["cat", "dog"]
    assert list(ours.take(1)) == [{"id": 0, "square": 0}]


KEPT = """---
configs:
- config_name: few
  default: true
  data_files: train.parquet
  columns: [square, id]
  filters: [[id, "<", 3]]
- config_name: either
  data_files: train.parquet
  columns: [id]
  filters: [[[text, not in, [a]], [id, "<", 4]], [[id, "==", 9]]]
- config_name: all
  data_files: train.parquet
---
"""
"""Columns and rows of a file of the numbers to 9, their squares, and a text that is sometimes NULL."""


def kept_files(card: str = KEPT, mark: str = "") -> dict[str, bytes]:
    texts = ["abc"[i % 3] if i % 4 else None for i in range(10)]
    table = pa.table({"text": texts, "id": range(10), "square": [i * i for i in range(10)]})
    return {"train.parquet": to_bytes(table, 4), "README.md": (mark + card).encode()}


def put(folder, files):
    folder.mkdir(exist_ok=True)
    for path, body in files.items():
        (folder / path).write_bytes(body)
    return str(folder)


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "marked"])
@pytest.mark.parametrize("place", ["hub", "folder"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"name": "either"},
        {"name": "all"},
        {"columns": ["text"]},
        {"filters": [("id", ">", 7)]},
        {"name": "either", "columns": ["square"], "filters": [("text", "==", "a")]},
        {"data_files": "*.parquet"},
    ],
    ids=str,
)
def test_columns_and_filters_of_the_card_are_those_of_datasets(hub, tmp_path, place, mark, settings):
    import datasets

    source = put(tmp_path / "kept", kept_files(mark=mark)) if place == "folder" else "org/kept"
    hub.create("org/kept", kept_files(mark=mark))
    ours = fb.load_dataset(source, split="train", **settings)
    theirs = datasets.load_dataset(source, split="train", streaming=True, **settings)
    assert list(ours.take(20)) == list(theirs)
    assert ours.column_names == theirs.column_names
    assert ours.num_rows == len(list(ours))


@pytest.mark.parametrize("where", ["dataset_info", "configs"])
def test_filters_of_the_card_see_the_values_of_the_files(tmp_path, where):
    names = ", ".join(f"'{i}': n{i}" for i in range(10))
    card = (
        "---\nconfigs:\n- config_name: default\n  columns: [id]\n  filters: [[id, '==', 3]]\n"
        + ("dataset_info:\n" if where == "dataset_info" else "")
        + f"  features:\n  - name: id\n    dtype:\n      class_label:\n        names: {{{names}}}\n---\n"
    )
    ours = fb.load_dataset(put(tmp_path / "kept", kept_files(card)), split="train")
    assert list(ours.take(9)) == [{"id": 3}]
    assert ours.features["id"].names[3] == "n3"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("columns: id", "columns: expected a list of names, got 'id'"),
        ("columns: [1]", r"columns: expected a list of names, got \[1\]"),
        ("columns: [idd]", "columns: no column `idd` in the files; they have id"),
        ("filters: id < 3", "filters: expected a list of conditions"),
        ("filters: []", "filters: expected"),
        ("filters: [[id, '<']]", "filters: "),
        ("filters: [[idd, '<', 3]]", "idd"),
        ("filters: [[id, '<', x]]", "filters: "),
    ],
)
def test_columns_and_filters_that_mean_nothing_are_refused(tmp_path, said, words):
    card = f"---\nconfigs:\n- config_name: few\n  {said}\n---\n"
    source = put(tmp_path / "kept", kept_files(card))
    with pytest.raises(fb.DataError, match=f"kept`: of the config `few` in the card: .*{words}") as raised:
        fb.load_dataset(source)
    name = said.partition(":")[0]
    assert str(raised.value).endswith(f"; `{name}` of the call take their place")
    given = {"columns": ["id"]} if name == "columns" else {"filters": "id < 2"}
    assert fb.load_dataset(source, split="train", **given).num_rows == (10 if name == "columns" else 2)


def test_a_slice_of_rows_that_the_card_chooses_is_refused(tmp_path):
    source = put(tmp_path / "kept", kept_files())
    with pytest.raises(
        fb.SettingError, match=r"the card's filters choose the rows of a split, before `train\[:2\]`.*take\(100\)`$"
    ):
        fb.load_dataset(source, split="train[:2]")
    for name, instead in ((None, r"take\(100\)`$"), ("all", r"; or filter what was cut: .*\.filter\(\.\.\.\)`$")):
        with pytest.raises(
            fb.SettingError, match=rf"^split: `filters` choose the rows of a split, before `train\[:2\]`.*{instead}"
        ):
            fb.load_dataset(source, name, split="train[:2]", filters="id > 0")
    assert fb.load_dataset(source, "all", split="train[:2]").num_rows == 2


def test_what_the_card_does_not_have_is_listed(hub):
    hub.create("org/cards", files())
    with pytest.raises(fb.SettingError, match=r"no config 'eng'.*did you mean `en`\? it has `en`, `de`"):
        fb.load_dataset("org/cards", "eng")
    with pytest.raises(
        fb.SettingError, match=r"no split `tran` in `org/cards`; it has train, dev \(did you mean `train`\?\)"
    ):
        fb.load_dataset("org/cards", "en", "tran")
    hub.create("org/undecided", files(CARD.replace("  default: true\n", "")))
    with pytest.raises(fb.SettingError, match="has several configs; choose one: it has `en`, `de`"):
        fb.load_dataset("org/undecided")
    both = CARD.replace("config_name: en\n  data", "config_name: en\n  default: true\n  data")
    hub.create("org/both", files(both))
    with pytest.raises(fb.DataError, match="several default configs: `en` and `de`"):
        fb.load_dataset("org/both")


def test_a_card_that_is_broken_says_where(hub):
    for said, words in {
        "configs:\n- config_name: [": r"org/broken/README.md`, line \d+: it is not YAML",
        "configs: all": "`configs` in the card is not a list",
        "configs:\n- data_files: x": "needs a `config_name`",
        "configs:\n- config_name: a\n  data_files: 3": "`data_files` of the config `a` in the card: expected a path",
        "configs:\n- config_name: a\n  data_files:\n  - split: a-b\n    path: x": "'a-b' is not a valid split name",
        "configs:\n- config_name: a\n  data_files:\n  - split: [a]\n    path: x": r"\['a'\] is not a valid split name",
        "dataset_info: 3": "`dataset_info` in the card is neither",
        "license: [\npretty_name: configs": r"README.md`, line 3: it is not YAML",
        "configs: []\nday: 2024-99-99": "README.md`: it is not YAML: month must be",
        "[configs]": "expected YAML of keys and values, got list",
    }.items():
        hub.create("org/broken", files(f"---\n{said}\n---\n"))
        with pytest.raises(fb.DataError, match=words):
            fb.load_dataset("org/broken")
        assert fb.load_dataset("hf://datasets/org/broken/de", split="test").num_rows == 2


ENGLISH = "[{config_name: default, data_files: en/*}]"
HEADS = {
    "plain": f"configs: {ENGLISH}",
    "quoted": f'"configs": {ENGLISH}',
    "quoted otherwise": f"'configs' : {ENGLISH}",
    "in braces": f"{{license: mit, configs: {ENGLISH}}}",
    "JSON": '{"configs": [{"config_name": "default", "data_files": "en/*"}]}',
    "indented": f"  license: mit\n  configs: {ENGLISH}",
    "a key that is said to be one": f"? configs\n: {ENGLISH}",
    "only a word": "pretty_name: many configs",
}


def rows(dataset):
    return {str(split): [row["id"] for row in of_split] for split, of_split in dataset.items()}


@pytest.mark.parametrize("place", ["hub", "folder"])
@pytest.mark.parametrize("name", ["README.md", ".huggingface.yaml"])
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_configs_of_a_card_are_found_however_it_is_written(hub, tmp_path, head, name, place):
    import datasets

    card = f"---\n{head}\n---\nA card.\n" if name == "README.md" else head
    content = {
        "en/train.parquet": ids_file(0, 1),
        "de/train.parquet": ids_file(1, 3),
        "de/test.parquet": ids_file(3, 4),
    }
    content |= {name: card.encode()}
    source = "org/written"
    hub.create(source, content)
    if place == "folder":
        for folder in ("en", "de"):
            (tmp_path / "written" / folder).mkdir(parents=True)
        source = put(tmp_path / "written", content)
    assert rows(fb.load_dataset(source)) == rows(datasets.load_dataset(source, streaming=True))


@pytest.mark.parametrize("place", ["hub", "folder"])
@pytest.mark.parametrize("form", ["--- \n{}\n---\n", "---\r{}\r---\rA card.\r", "---\r\n{}\r\n--- \r\nA card.\r\n"])
def test_what_is_front_matter_for_datasets_is_so_for_us(hub, tmp_path, form, place):
    import datasets

    content = {"en.parquet": ids_file(0, 1), "de.parquet": ids_file(1, 3)}
    content |= {"README.md": form.format("configs: [{config_name: default, data_files: en.*}]").encode()}
    source = "org/front"
    hub.create(source, content)
    if place == "folder":
        source = put(tmp_path / "front", content)
    assert rows(fb.load_dataset(source)) == rows(datasets.load_dataset(source, streaming=True))


def test_a_card_that_is_not_the_one_of_the_commit_is_an_error(hub):
    """Without its configurations a dataset has other rows."""
    hub.create("org/cards", files())
    page = {"headers": {"Content-Type": "text/html"}, "body": b"<html>down for maintenance</html>"}
    hub.fail("resolve", 3, where="README", status=200, **page)
    with pytest.raises(fb.StoreError, match=r"org/cards/README.md`: the Hub lists \d+ bytes and sent 33, as text/html"):
        fb.load_dataset("org/cards")
    hub.fail("resolve", 1, where="README", status=404, headers={"X-Error-Code": "EntryNotFound"})
    with pytest.raises(fb.NotFoundError, match=r"org/cards/README.md`: the Hub lists it and does not have it"):
        fb.load_dataset("org/cards")
    assert fb.load_dataset("org/cards", split="train").num_rows == 7


def test_yaml_without_its_parser_is_said(hub, monkeypatch):
    hub.create("org/cards", files())
    hub.create("org/plain", files("---\nlicense: mit\n---\n"))
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert fb.load_dataset("org/plain", data_dir="de")["train"].num_rows == 7
    with pytest.raises(fb.VersionError, match="pip install pyyaml"):
        fb.load_dataset("org/cards")


def test_files_that_are_missing_or_no_parquet_are_named(hub):
    card = "---\nconfigs:\n- config_name: a\n  data_files: {}\n---\n"
    for pattern, words in (
        ("gone.parquet", "no file `gone.parquet` in `datasets/org/holes"),
        ("'no/*.parquet'", "no data files in"),
        ("'../x.parquet'", r"`\.\./x.parquet` is not in `datasets/org/holes"),
        ("README.md", "is not Parquet|is not a data file|no data files"),
    ):
        hub.create("org/holes", {"README.md": card.format(pattern).encode(), "x.parquet": ids_file(0, 1)})
        with pytest.raises(fb.ForebayError, match=words):
            fb.load_dataset("org/holes")
    hub.create("org/csv", {"train.csv": b"id\n1\n"})
    with pytest.raises(fb.DataError, match="`train` is csv; `@~parquet` behind the name"):
        fb.load_dataset("org/csv")
    hub.create("org/liar", {"train.parquet": b"id\n1\n" * 9})
    with pytest.raises(fb.DataError, match=r"hf://datasets/org/liar@\w{40}/train.parquet"):
        fb.load_dataset("org/liar")
    with pytest.raises(
        fb.NotFoundError, match=r"no such file or folder: `hf://datasets/org/liar/trian.*did you mean `train.parquet`"
    ):
        fb.load_dataset("hf://datasets/org/liar/trian.parquet")
    hub.create("org/notes", {"note.md": b"x", "a/other.md": b"x"})
    with pytest.raises(fb.NotFoundError, match="no data files in `datasets/org/notes@"):
        fb.load_dataset("org/notes")


def test_patterns_without_files_are_named_with_what_is_there(hub, tmp_path):
    parts = {f"part-{number}.parquet": ids_file(0, 1) for number in range(5)}
    there = r"; it has `part-0.parquet`, `part-1.parquet`, `part-2.parquet` and 2 more$"
    hub.create("org/parts", parts | {"README.md": b"x"})
    for place, root in (("org/parts", "datasets/org/parts@"), (str(put(tmp_path / "parts", parts)), str(tmp_path))):
        for asked in ("prt-*", ["prt-*"], {"train": "prt-*"}):
            with pytest.raises(fb.NotFoundError, match=rf"no data files in `{root}.*` match `prt-\*`{there}"):
                fb.load_dataset(place, data_files=asked, split="train")
        with pytest.raises(fb.SettingError, match=rf"the split `test` of .* no file matches `prt-\*`{there}"):
            fb.load_dataset(place, data_files={"train": "part-*", "test": "prt-*"})


def test_a_dataset_of_a_script_says_where_its_parquet_may_be(hub, tmp_path):
    hub.create("org/script", {"script.py": b"x", "README.md": b"x"})
    with pytest.raises(
        fb.NotFoundError, match="no data files in .*; it has `README.md`, `script.py`; `@~parquet` behind"
    ):
        fb.load_dataset("org/script")
    with pytest.raises(fb.NotFoundError, match="`script.py`$"):
        fb.load_dataset(put(tmp_path / "script", {"script.py": b"x"}), data_dir=".")


def test_a_split_for_a_config_says_how_splits_are_named(hub, tmp_path):
    hub.create("org/plain", {"train.parquet": ids_file(0, 1)})
    for place in ("org/plain", put(tmp_path / "plain", {"train.parquet": ids_file(0, 1)})):
        with pytest.raises(fb.SettingError, match=r"no config 'train' in .*; did you mean `split='train'`\? it has"):
            fb.load_dataset(place, "train")
        with pytest.raises(fb.SettingError, match="no config 'en' in .*; it has `default`$"):
            fb.load_dataset(place, "en")


def test_a_split_without_files_is_an_error(hub):
    splits = "[{split: train, path: x.parquet}, {split: dev, path: dev/*}]"
    card = f"---\nconfigs:\n- config_name: a\n  data_files: {splits}\n---\n"
    hub.create("org/empty", {"README.md": card.encode(), "x.parquet": ids_file(0, 4)})
    with pytest.raises(fb.SettingError, match="the split `dev` of `datasets/org/empty@.*has no files"):
        fb.load_dataset("org/empty")
    hub.create("org/mixed", {"train/notes.docx": b"x", "test/a.parquet": ids_file(0, 4)})
    assert {name: len(split) for name, split in fb.load_dataset("hf://datasets/org/mixed/**").items()} == {"test": 4}


def test_a_local_folder_has_configs_and_wins_over_the_hub(hub, tmp_path, monkeypatch):
    hub.create("org/cards", files())
    monkeypatch.chdir(tmp_path)
    for path, body in files().items():
        target = tmp_path / "org/cards" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(body)
    here = fb.load_dataset("org/cards", "en")
    assert {name: split.num_rows for name, split in here.items()} == {"train": 9, "dev": 3}
    assert fb.load_dataset("org/cards", data_dir="de")["test"].num_rows == 2
    assert fb.load_dataset("org/cards", data_files="en/*.parquet")["train"].num_rows == 12
    assert fb.load_dataset("parquet", data_files={"a": "org/cards/de/*.parquet"}, split="a").num_rows == 9
    assert not hub.log
    with pytest.raises(fb.SettingError, match="no config 'fr'"):
        fb.load_dataset("org/cards", "fr")
    there = fb.load_dataset("hf://datasets/org/cards", "en", "train")
    assert there.num_rows == 9
    assert hub.count("api") == 1


def test_arguments_that_cannot_go_together_are_refused(hub, tmp_path):
    hub.create("org/cards", files())
    refused = [
        (lambda: fb.load_dataset("hf://datasets/org"), "expected `hf://datasets/owner/name@revision/path`"),
        (lambda: fb.load_dataset("hf://models/org/name"), "expected `hf://datasets/owner"),
        (lambda: fb.load_dataset("org/cards@"), "names no revision after the `@`"),
        (lambda: fb.load_dataset("hf://buckets/a/b@main/x"), "a bucket, which has no revisions"),
        (lambda: fb.load_dataset("hf://buckets/a/b", revision="main"), "is a bucket, which has none"),
        (lambda: fb.load_dataset("org/cards@a", revision="b"), "names one already, got `b`"),
        (lambda: fb.load_dataset(tmp_path, revision="main"), "is not on the Hub"),
        (lambda: fb.load_dataset("s3://bucket/x/", "config"), "has no configs"),
        (lambda: fb.load_dataset("org/cards", data_dir="../x"), "expected a folder of the dataset"),
        (lambda: fb.load_dataset("org/cards", data_files=3), "data_files: expected a path"),
        (lambda: fb.load_dataset("org/cards", data_files=[]), "data_files: got [], which is empty"),
        (lambda: fb.load_dataset("org/cards", data_files=""), "data_files: got '', which is empty"),
        (lambda: fb.load_dataset(tmp_path, data_files=()), "data_files: got (), which is empty"),
        (lambda: fb.load_dataset("org/cards", data_files={"train": [], "a": "en/*"}), "split `train`"),
        (lambda: fb.load_dataset("org/cards", data_files={1: "de/*", "1": "en/*"}), "the split `1` is there twice"),
        (lambda: fb.load_dataset("org/cards", data_files="**.parquet"), "not the whole name of a folder"),
        (lambda: fb.load_dataset("org/cards", token=3), "token: expected text"),
        (
            lambda: fb.load_dataset("org/cards", storage_options={"hf_patience": "long"}),
            "`hf_patience`: expected a time",
        ),
        (lambda: fb.load_dataset("org/cards", storage_options={"retry_for": "soon"}), "`retry_for`: expected a time"),
        (
            lambda: fb.load_dataset("org/cards", storage_options={"read_timeout": "0"}),
            "`read_timeout`: expected a time",
        ),
        (
            lambda: fb.load_dataset("org/cards", storage_options={"aws_region": "x"}),
            "`aws_region` is not an option of the Hub",
        ),
        (lambda: fb.load_dataset("parquet"), "`parquet` needs the files"),
        (lambda: fb.load_dataset(["hf://datasets/org/cards/de/test.parquet", "x"], "en"), "a list names files"),
        (lambda: fb.load_dataset("hf://datasets/org/cards/de/*", data_dir="x"), "names files already"),
    ]
    for call, words in refused:
        with pytest.raises(fb.SettingError) as caught:
            call()
        assert words in str(caught.value)


def test_the_environment_is_read_when_a_dataset_is_opened(hub, tmp_path, monkeypatch):
    hub.create("org/private", {"x.parquet": ids_file(0, 5)}, private=True)

    def is_seen(**arguments: object) -> bool:
        try:
            return fb.load_dataset("org/private", split="train", **arguments).num_rows == 5
        except fb.DatasetNotFoundError:
            return False

    assert not is_seen()
    assert is_seen(token=TOKEN)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert is_seen()
    assert not is_seen(token=False)
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    assert not is_seen()
    assert is_seen(token=True)
    monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert is_seen()
    (tmp_path / "token").unlink()
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "other"))
    (tmp_path / "other").write_text(TOKEN)
    assert is_seen()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(fb.HubUnreachableError, match=r"cannot reach the Hub at `http://127.0.0.1:9`") as caught:
        fb.load_dataset("org/private", storage_options={"hf_patience": "100ms"})
    assert isinstance(caught.value, ConnectionError)


def test_places_of_the_environment_may_name_variables(hub, tmp_path, monkeypatch):
    hub.create("org/private", {"x.parquet": ids_file(0, 5)}, private=True)
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "token").write_text(TOKEN)
    for name, value in (("HF_HOME", "$SCRATCH/mine"), ("HF_TOKEN_PATH", "${SCRATCH}/mine/token")):
        with monkeypatch.context() as setting:
            setting.setenv(name, value)
            assert fb.load_dataset("org/private", split="train").num_rows == 5
            assert current(None).cache == (tmp_path / "mine" / "hub" if name == "HF_HOME" else tmp_path / "hub")


def test_the_token_of_a_login_is_wanted_and_nobody_is_logged_in(hub, tmp_path):
    hub.create("org/public", {"x.parquet": ids_file(0, 5)})
    with pytest.raises(fb.AccessDeniedError, match=f"there is none in `HF_TOKEN` or `{tmp_path}/token`; log in"):
        fb.load_dataset("org/public", token=True)
    assert not hub.log


def test_a_downloaded_copy_is_used_without_the_network(hub, tmp_path, monkeypatch):
    hub_library = pytest.importorskip("huggingface_hub")
    repo = hub.create("org/copied", files())
    streamed = fb.load_dataset("org/copied", "en", "train")
    folder = hub_library.snapshot_download("org/copied", repo_type="dataset", cache_dir=tmp_path / "hub")
    assert repo.sha in folder
    hub.clear()
    pinned = fb.load_dataset("org/copied", "en", "train", revision=repo.sha)
    assert [row["id"] for row in pinned.iter()] == [row["id"] for row in streamed.iter()]
    assert hub.count("api") + hub.count("resolve") == 0
    # The state of one is good for the other.
    pinned.shuffle(1).batches(2).load_state_dict(streamed.shuffle(1).batches(2).state_dict())
    hub.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fb.load_dataset("org/copied")["test"].num_rows == 2
    assert not hub.log
    with pytest.raises(fb.HubUnreachableError, match="`org/other` at `main` is not among the downloaded"):
        fb.load_dataset("org/other")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    # What is downloaded is not fetched, whatever is asked of the Hub.
    assert fb.load_dataset("org/copied", "en", "train").num_rows == 9
    assert hub.count("cdn") == 0


@pytest.mark.parametrize("kept", [0, 40])
def test_a_downloaded_file_that_is_not_whole_is_read_from_the_hub(hub, tmp_path, monkeypatch, kept):
    hub_library = pytest.importorskip("huggingface_hub")
    repo = hub.create("org/cut", files())
    folder = hub_library.snapshot_download("org/cut", repo_type="dataset", cache_dir=tmp_path / "hub")
    for name in ("en/train-0.parquet", "README.md"):
        blob = (Path(folder) / name).resolve()
        blob.write_bytes(blob.read_bytes()[:kept])
    for revision in (None, repo.sha):
        assert fb.load_dataset("org/cut", "en", "train", revision=revision).num_rows == 9
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(fb.HubUnreachableError, match=r"`README.md`, which may say .*was not downloaded"):
        fb.load_dataset("org/cut", "en", "train")


def test_a_downloaded_copy_stands_in_for_a_hub_that_cannot_be_reached(hub, tmp_path, monkeypatch):
    hub_library = pytest.importorskip("huggingface_hub")
    repo = hub.create("org/fallen", files())
    hub_library.snapshot_download(
        "org/fallen", repo_type="dataset", cache_dir=tmp_path / "hub", allow_patterns=["README.md", "en/*"]
    )
    state = fb.load_dataset("org/fallen", "en", "train").shuffle(1).batches(2).state_dict()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    options = {"hf_patience": "100ms"}
    with pytest.warns(UserWarning, match=f"cannot reach the Hub .* of the commit `{repo.sha}` is used instead"):
        copied = fb.load_dataset("org/fallen", "en", "train", storage_options=options)
    assert copied.num_rows == 9
    copied.shuffle(1).batches(2).load_state_dict(state)
    with (
        pytest.warns(UserWarning, match="cannot reach the Hub"),
        pytest.raises(fb.HubUnreachableError, match="was not downloaded, and the Hub cannot be reached"),
    ):
        fb.load_dataset("org/fallen", "de", "train", storage_options=options)
    with pytest.raises(fb.HubUnreachableError, match="cannot reach the Hub"):
        fb.load_dataset("org/never", storage_options=options)


def test_a_copy_in_part_is_not_taken_for_the_whole(hub, tmp_path, monkeypatch):
    hub_library = pytest.importorskip("huggingface_hub")
    repo = hub.create("org/partly", files())
    hub_library.snapshot_download(
        "org/partly", repo_type="dataset", cache_dir=tmp_path / "hub", allow_patterns=["README.md", "en/*"]
    )
    hub.clear()
    assert fb.load_dataset("org/partly", "de", "train", revision=repo.sha).num_rows == 7
    assert hub.count("api") == 0
    assert hub.count("resolve") == 1
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fb.load_dataset("org/partly", "en", "train").num_rows == 9
    with pytest.raises(fb.HubUnreachableError, match=r"de/\w+.parquet` was not downloaded"):
        fb.load_dataset("org/partly", "de")


def test_a_copy_without_the_card_has_its_configurations_or_none(hub, tmp_path, monkeypatch):
    hub_library = pytest.importorskip("huggingface_hub")
    repo = hub.create("org/bare", files())
    hub_library.snapshot_download(
        "org/bare", repo_type="dataset", cache_dir=tmp_path / "hub", allow_patterns=["*.parquet"]
    )
    hub.clear()
    assert {name: len(split) for name, split in fb.load_dataset("org/bare", revision=repo.sha).items()} == {
        "train": 7,
        "test": 2,
    }
    assert (hub.count("api"), hub.count("resolve"), hub.count("resolve", "README")) == (0, 1, 1)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(fb.HubUnreachableError, match=r"`README.md`, which may say .*was not downloaded") as caught:
        fb.load_dataset("org/bare")
    (alone,) = re.findall(r"hf://[^`]*", str(caught.value))
    assert len(fb.load_dataset("parquet", data_files=alone, split="train")) == 5 + 4 + 3 + 2 + 7


def test_a_split_that_was_downloaded_is_read_where_others_were_not(hub, tmp_path, monkeypatch):
    hub_library = pytest.importorskip("huggingface_hub")
    hub.create("org/some", files())
    hub_library.snapshot_download(
        "org/some", repo_type="dataset", cache_dir=tmp_path / "hub", allow_patterns=["README.md", "en/dev*"]
    )
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fb.load_dataset("org/some", "en", "dev[:2]").num_rows == 2
    for split in ("train", "dev+train", None):
        with pytest.raises(fb.HubUnreachableError, match=r"en/train-0.parquet` and 1 more was not downloaded"):
            fb.load_dataset("org/some", "en", split)


SHARDED = """---
configs:
- config_name: en
  data_files: en/*
- config_name: de
  default: true
  data_files:
  - split: train
    path: de/train-*
  - split: test
    path: de/test-*
- config_name: named
  data_files: [en/0.parquet, en/1.parquet]
---
"""


@pytest.fixture
def parted(hub, monkeypatch):
    """Downloads files of a dataset one by one, so that nobody has asked for the names of all, and goes offline."""
    hub_library = pytest.importorskip("huggingface_hub")
    numbered = [f"de/{split}-{n:05}-of-00002.parquet" for split in ("train", "test") for n in (0, 1)]
    paths = ["en/0.parquet", "en/1.parquet", *numbered]
    content = {path: ids_file(n * 10, n * 10 + 2) for n, path in enumerate(paths)}
    hub.create("org/parted", content | {"README.md": SHARDED.encode()})

    def download(*names: str) -> None:
        for name in names:
            hub_library.hf_hub_download("org/parted", name, repo_type="dataset")
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    return download


SOME = "ignore:of `org/.* only some files may have been downloaded"


@pytest.mark.filterwarnings(SOME)
def test_files_without_the_card_are_no_copy_of_the_dataset(parted):
    parted("en/0.parquet")
    for name in (None, "en"):
        with pytest.raises(fb.HubUnreachableError, match="`README.md`, which may .* was not downloaded, and the Hub"):
            fb.load_dataset("org/parted", name)
    assert rows(fb.load_dataset("hf://datasets/org/parted/en/*")) == {"train": [0, 1]}
    for gone in ("en/1.parquet", "de", "de/*"):
        with pytest.raises(
            fb.HubUnreachableError, match="only some of its files may have been downloaded, and the Hub"
        ):
            fb.load_dataset(f"hf://datasets/org/parted/{gone}")
        with pytest.raises(
            fb.HubUnreachableError, match="only some of its files may have been downloaded, and the Hub"
        ):
            fb.load_dataset("parquet", data_files=f"hf://datasets/org/parted/{gone}")


@pytest.mark.filterwarnings(SOME)
def test_a_dataset_that_has_no_card_is_read_from_a_copy_that_knows_it(hub, monkeypatch):
    hub_library = pytest.importorskip("huggingface_hub")
    hub.create("org/cardless", {"train.parquet": ids_file(0, 2)})
    hub_library.hf_hub_download("org/cardless", "train.parquet", repo_type="dataset")
    with pytest.raises(hub_library.errors.EntryNotFoundError):
        hub_library.hf_hub_download("org/cardless", "README.md", repo_type="dataset")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert rows(fb.load_dataset("org/cardless")) == {"train": [0, 1]}


def test_a_copy_of_some_files_has_the_config_that_was_downloaded(parted):
    parted("README.md", *(f"de/{split}-0000{n}-of-00002.parquet" for split in ("train", "test") for n in (0, 1)))
    expected = {"train": [20, 21, 30, 31], "test": [40, 41, 50, 51]}
    for name in (None, "de"):
        with pytest.warns(UserWarning, match="only some files may have been downloaded"):
            assert rows(fb.load_dataset("org/parted", name)) == expected
    with pytest.warns(UserWarning, match="only some"), pytest.raises(fb.SettingError, match="did you mean `en`"):
        fb.load_dataset("org/parted", "enn")
    for name, split in (("en", None), ("en", "train"), ("named", None)):
        with pytest.warns(UserWarning, match="only some"), pytest.raises(fb.HubUnreachableError, match="no data files"):
            fb.load_dataset("org/parted", name, split)


@pytest.mark.filterwarnings(SOME)
def test_splits_of_which_names_tell_that_a_copy_lacks_files_are_not_read(parted):
    parted("README.md", "de/train-00000-of-00002.parquet", "en/0.parquet")
    for split, words in (
        ("train", r"`org/parted`: `de/train-00001-of-00002.parquet`, by the names of the others, was not downloaded"),
        ("test", r"`org/parted`: what fits `de/test-\*` was not downloaded, and the Hub is not asked"),
        (None, "was not downloaded"),
    ):
        with pytest.raises(fb.HubUnreachableError, match=words):
            fb.load_dataset("org/parted", split=split)
    with pytest.raises(fb.HubUnreachableError, match="what fits `en/1.parquet` was not downloaded"):
        fb.load_dataset("org/parted", "named")
    # Of these, nobody can know, which the warning says.
    assert rows(fb.load_dataset("org/parted", "en")) == {"train": [0, 1]}


@pytest.mark.filterwarnings(SOME)
def test_a_config_of_the_hubs_own_parquet_is_the_only_one_where_all_are_known(hub, monkeypatch):
    hub_library = pytest.importorskip("huggingface_hub")
    repo = hub.create("org/exported", {"a.csv": b"id\n1\n"})
    main = repo.sha
    exported = {"default/train/0000.parquet": ids_file(0, 2), "en/train/0000.parquet": ids_file(2, 4)}
    repo.commit(exported, ref="refs/convert/parquet")
    repo.refs["main"] = main
    hub_library.hf_hub_download(
        "org/exported", "en/train/0000.parquet", repo_type="dataset", revision="refs/convert/parquet"
    )
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(fb.HubUnreachableError, match="no config `default` in .*, but `en`: only some of its files"):
        fb.load_dataset("org/exported@~parquet")
    assert rows(fb.load_dataset("org/exported@~parquet", "en")) == {"train": [2, 3]}
    assert rows(fb.load_dataset("hf://datasets/org/exported@~parquet/en")) == {"train": [2, 3]}


@pytest.mark.parametrize("name", [b"\xff\xfe", b"", b"../../x"])
def test_a_copy_whose_branch_is_damaged_is_none(hub, tmp_path, monkeypatch, name):
    hub_library = pytest.importorskip("huggingface_hub")
    hub.create("org/damaged", files())
    hub_library.snapshot_download("org/damaged", repo_type="dataset", cache_dir=tmp_path / "hub")
    (tmp_path / "hub/datasets--org--damaged/refs/main").write_bytes(name)
    assert fb.load_dataset("org/damaged", "de", "train").num_rows == 7
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(fb.HubUnreachableError, match="not among the downloaded datasets"):
        fb.load_dataset("org/damaged", "de", "train")


@pytest.mark.parametrize("form", ["{}", "a/../../../../../../../../../../../..{}"])
def test_a_name_that_leads_out_of_a_repository_reads_no_file_of_this_machine(hub, tmp_path, form):
    (tmp_path / "mine.parquet").write_bytes(ids_file(0, 3))
    hub.create("org/names", {form.format(tmp_path / "mine.parquet"): ids_file(5, 6)})
    with pytest.raises(fb.ForebayError, match=r"mine\.parquet"):
        fb.load_dataset("org/names")


def test_parquet_in_a_folder_is_what_datasets_reads_there(hub, tmp_path):
    import datasets

    for name in ("train/0.parquet", "train/1.parquet", "test.parquet", "notes.md"):
        (tmp_path / "rows" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "rows" / name).write_bytes(ids_file(len(name), 20) if name.endswith("parquet") else b"notes")
    (tmp_path / "rows" / "README.md").write_text(LABELS)
    ours = fb.load_dataset("parquet", data_dir=str(tmp_path / "rows"))
    theirs = datasets.load_dataset("parquet", data_dir=str(tmp_path / "rows"), streaming=True)
    assert {name: list(split) for name, split in ours.items()} == {name: list(split) for name, split in theirs.items()}
    assert ours["train"].features == theirs["train"].features
    assert len(fb.load_dataset("parquet", data_dir=str(tmp_path / "rows"), split="train[:3]")) == 3
    hub.create("org/folder", {"data/train.parquet": ids_file(0, 2)})
    assert len(fb.load_dataset("parquet", data_dir="hf://datasets/org/folder/data", split="train")) == 2
    with pytest.raises(fb.NotFoundError, match="data_dir: no such folder: `nowhere`"):
        fb.load_dataset("parquet", data_dir="nowhere")


VARIABLES = (
    *("HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"),
    *("HF_HOME", "HF_TOKEN", "HF_ENDPOINT"),
)


@pytest.fixture
def unset(hub, monkeypatch) -> None:  # noqa: ARG001 - it has set some
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x", "HF_HOME": "/h"}, "/h/hub"),
        ({"HF_HOME": "/h", "HUGGINGFACE_HUB_CACHE": "/old"}, "/old"),
        ({"HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_CACHE": "/new"}, "/new"),
        ({"HF_HUB_CACHE": "~/mine"}, "~/mine"),
        ({}, "~/.cache/huggingface/hub"),
    ],
    ids=str,
)
def test_downloads_are_looked_for_where_hugging_face_puts_them(monkeypatch, variables, folder):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert current(False).cache == Path(folder).expanduser()


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"])
@pytest.mark.parametrize(
    ("value", "is_offline"),
    [("1", True), ("true", True), ("Yes", True), ("ON", True), ("0", False), ("", False), ("off", False)],
)
def test_every_word_that_says_offline_is_heeded(monkeypatch, name, value, is_offline):
    monkeypatch.setenv(name, value)
    assert current(False).is_offline is is_offline


@pytest.mark.usefixtures("unset")
def test_a_token_of_an_old_variable_is_taken_below_that_of_the_new_one(monkeypatch):
    monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", "hf_old")
    assert current(None).token == "hf_old"
    monkeypatch.setenv("HF_TOKEN", "hf_new")
    assert current(None).token == "hf_new"
    assert current(" hf_given\n").token == "hf_given"
    assert current(" ").token is None


@pytest.mark.parametrize("said", ["{", "[]", '{"files": 3}', '{"files": {"x": 3}}', "{}"])
def test_a_damaged_list_of_a_copy_is_named(hub, tmp_path, monkeypatch, said):
    hub.create("org/data", {"train.parquet": ids_file(0, 9)})
    hub_library = pytest.importorskip("huggingface_hub")
    hub_library.snapshot_download("org/data", repo_type="dataset", cache_dir=tmp_path / "hub")
    (tree,) = (tmp_path / "hub").glob("datasets--org--data/trees/*.json")
    tree.write_text(said)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(fb.DataError, match="trees/.*is damaged: .*remove it"):
        fb.load_dataset("org/data", split="train")


def test_uris_without_a_revision_are_of_the_main_branch_alone(hub):
    repo = hub.create("org/tagged", {"train.parquet": ids_file(0, 5)})
    repo.commit({"train.parquet": ids_file(0, 9)}, ref="refs/tags/v1")
    uri = "hf://datasets/org/tagged/*.parquet"
    assert len(fb.load_dataset("org/tagged", split="train", data_files=uri)) == 5
    with pytest.raises(fb.SettingError, match=r"`hf://.*` is not in `datasets/org/tagged@"):
        fb.load_dataset("org/tagged", split="train", data_files=uri, revision="v1")


def test_what_stands_behind_a_revision_with_strokes_is_a_path(hub):
    repo = hub.create("org/pulled", {"a.parquet": ids_file(0, 5)})
    repo.commit({"a.parquet": ids_file(0, 2), "d/b.parquet": ids_file(2, 9)}, ref="refs/pr/3")
    for revision in ("refs/pr/3", "refs%2Fpr%2F3"):
        for path in ("d/b.parquet", "d", "d/*"):
            assert len(fb.load_dataset(f"hf://datasets/org/pulled@{revision}/{path}", split="train")) == 7
