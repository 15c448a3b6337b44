"""In SQL the classes of a ClassLabel have their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Features, List, Value

import forebay as fb

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ["cat", "dog", "it's a bird", "7", "eagle"]
LABEL = ClassLabel(names=NAMES)
FEATURES = Features(row=Value("int64"), label=LABEL, other=LABEL, text=Value("string"), labels=List(LABEL))
NUM_ROWS = 100


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> fb.Dataset:
    """Rows in the order of their labels; every ninth has none."""
    path = tmp_path_factory.mktemp("labels") / "train.parquet"
    rows = [
        {
            "row": row,
            "label": None if row % 9 == 4 else row * len(NAMES) // NUM_ROWS,
            "other": row % 2,
            "text": NAMES[row % 5],
            "labels": [row % 5],
        }
        for row in range(NUM_ROWS)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=FEATURES.arrow_schema), path, row_group_size=20)
    return fb.load_dataset(path, split="train")


def rows(ds: fb.Dataset) -> list[int]:
    return [row["row"] for row in ds.select_columns("row").iter()]


CONDITIONS = {
    "label = 'cat'": "label = 0",
    "'dog' = label": "label = 1",
    "label <> 'it''s a bird'": "label <> 2",
    "label IN ('cat', 'eagle')": "label IN (0, 4)",
    "label NOT IN ('cat', 'eagle')": "label NOT IN (0, 4)",
    "label IN ('cat', 4)": "label IN (0, 4)",
    "label = ANY(['cat', 'eagle', '3'])": "label IN (0, 3, 4)",
    "NOT array_has(['cat', 'eagle'], label)": "label NOT IN (0, 4)",
    "label IS DISTINCT FROM 'dog'": "label IS DISTINCT FROM 1",
    "label IS NOT DISTINCT FROM 'dog'": "label IS NOT DISTINCT FROM 1",
    "NOT (label = 'cat' OR label = 'dog')": "NOT (label = 0 OR label = 1)",
    "label = '7'": "label = 3",
    "label = '2'": "label = 2",
    "label > '1'": "label > 1",
    "CASE label WHEN 'cat' THEN row > 3 WHEN 'dog' THEN true END": "label = 0 AND row > 3 OR label = 1",
    "label = other AND label = 'dog'": "label = other AND label = 1",
    "text = 'cat' AND other = 'dog'": "text = 'cat' AND other = 1",
    "label = text": "label = row % 5",
    "text <> label": "label <> row % 5",
    "label BETWEEN '1' AND '2'": "label BETWEEN 1 AND 2",
    "label = 'cat' AND text LIKE 'c%'": "label = 0 AND text LIKE 'c%'",
    "label = NULL": "label = NULL",
    " OR ".join(["label = 'cat'", "label = 'eagle'"] * 200): "label IN (0, 4)",
}


@pytest.mark.parametrize("named", list(CONDITIONS), ids=lambda text: text[:40])
def test_a_name_is_the_number_of_its_class(named: str, ds: fb.Dataset) -> None:
    expected = rows(ds.filter(CONDITIONS[named]))
    assert rows(ds.filter(named)) == expected
    assert rows(ds.sql(f"SELECT * FROM dataset WHERE {named}")) == expected
    renamed = ds.sql("SELECT row, label, other, text FROM dataset ORDER BY row")
    assert rows(renamed.filter(named)) == expected


def test_names_follow_a_column_wherever_it_goes(ds: fb.Dataset) -> None:
    expected = rows(ds.filter("label = 1"))
    for query in [
        "SELECT row, label AS l FROM dataset WHERE label = 'dog'",
        "SELECT row FROM (SELECT row, label AS l FROM dataset) WHERE l = 'dog'",
        "WITH t AS (SELECT row AS r, label AS l FROM dataset) SELECT r AS row FROM t WHERE t.l = 'dog'",
        "SELECT row FROM dataset WHERE row IN (SELECT row FROM dataset WHERE label = 'dog')",
        "SELECT d.row FROM dataset d JOIN side s ON d.row = s.row AND s.label = 'dog'",
        "SELECT row FROM dataset WHERE label = $name",
    ]:
        params = {"name": "dog"} if "$" in query else {}
        tables = {"side": ds} if "side" in query else {}
        assert rows(ds.sql(query, params=params, tables=tables)) == expected, query
    assert rows(ds.rename_column("label", "l").filter("l = 'dog'")) == expected
    assert rows(ds.filter("label = $name", params={"name": "dog"})) == expected
    assert rows(ds.filter([("label", "==", "dog")])) == expected
    assert rows(ds.filter([("label", "in", ["dog"])])) == expected
    counted = pa.table(ds.query("SELECT label, count(*) AS n FROM dataset GROUP BY label HAVING label = 'dog'"))
    assert counted["n"].to_pylist() == [len(expected)]


@pytest.mark.parametrize(
    ("query", "condition"),
    [
        ("SELECT d.row FROM dataset d JOIN t ON d.label = t.name", "label IN (1, 3)"),
        ("SELECT d.row FROM dataset d JOIN t ON t.name = d.label AND d.row > 30", "label IN (1, 3) AND row > 30"),
        ("SELECT row FROM dataset WHERE label IN (SELECT name FROM t)", "label IN (1, 3)"),
        ("SELECT row FROM dataset WHERE label NOT IN (SELECT name FROM t)", "label NOT IN (1, 3)"),
        ("SELECT row FROM dataset WHERE label = (SELECT max(name) FROM t)", "label = 1"),
    ],
)
def test_names_may_stand_in_other_tables(query: str, condition: str, ds: fb.Dataset) -> None:
    named = ds.sql(query, tables={"t": {"name": ["dog", "7"]}})
    assert rows(named) == rows(ds.filter(condition))
    with pytest.raises(fb.QueryError, match="no class `doq` in column `label`"):
        rows(ds.sql(query, tables={"t": {"name": ["doq"]}}))


def test_computed_columns_know_names_too(ds: fb.Dataset) -> None:
    found = ds.sql("SELECT label = 'cat' AS is_cat, CASE WHEN label = 'dog' THEN 1 ELSE 0 END AS dog FROM dataset")
    assert found.features == Features(is_cat=Value("bool"), dog=Value("int64"))
    assert found[0] == {"is_cat": True, "dog": 0}
    assert found[25] == {"is_cat": False, "dog": 1}


def test_statistics_decide_names(ds: fb.Dataset) -> None:
    facts = ds.filter("label = 'eagle'").explain()
    assert facts["row_groups_pruned"] == 4


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("label = 'doq'", "no class `doq` in column `label`; did you mean `dog`?"),
        ("label IN ('cat', 'Eagel')", "no class `Eagel` in column `label`; did you mean `eagle`?"),
        ("label = ANY(['cat', 'Eagel'])", "no class `Eagel` in column `label`; did you mean `eagle`?"),
        ("label <> 'zzzzzzzzzz'", "no class `zzzzzzzzzz` in column `label`; it has `cat`, `dog`, `it's a bird`, `7`"),
        ("label < 'dog'", "column `label` is a ClassLabel: `dog` stands for a class, and classes have no order"),
        ("label BETWEEN 'cat' AND 'dog'", "column `label` is a ClassLabel: `cat` stands for a class"),
        ("label < text", "text` stands for a class, and classes have no order"),
        ("label >= 'zebra'", "column `label` is a ClassLabel: `zebra` stands for a class"),
    ],
)
def test_a_name_that_no_class_has_is_refused(condition: str, message: str, ds: fb.Dataset) -> None:
    with pytest.raises(fb.QueryError) as refused:
        ds.filter(condition)
    assert message in str(refused.value)
    with pytest.raises(fb.QueryError) as refused:
        ds.sql(f"SELECT row FROM dataset WHERE {condition}")
    assert message in str(refused.value)
    with pytest.raises(fb.QueryError) as refused:
        ds.sql("SELECT * FROM dataset ORDER BY row").filter(condition)
    assert message in str(refused.value)


def test_an_expression_with_a_name_is_refused_and_sql_is_named(ds: fb.Dataset) -> None:
    assert rows(ds.filter(pc.field("label") == 1)) == rows(ds.filter("label = 'dog'"))
    for expression in (pc.field("label") == "dog", pc.field("label").isin(["dog"])):
        with pytest.raises(fb.SettingError, match="a ClassLabel is a number in expressions, while SQL takes the names"):
            ds.filter(expression)
    with pytest.raises(fb.SettingError, match="no kernel") as refused:
        ds.filter(pc.field("text") == 1.5)
    assert "ClassLabel" not in str(refused.value)


def test_names_are_those_of_the_features_that_were_given(ds: fb.Dataset) -> None:
    recast = ds.cast({"label": ClassLabel(names=["one", "two", "three", "four", "five"])})
    assert rows(recast.filter("label = 'two'")) == rows(ds.filter("label = 'dog'"))
    assert rows(recast.select_columns("row").filter("label = 'two'")) == rows(ds.filter("label = 'dog'"))
    with pytest.raises(fb.QueryError, match="no class `dog`"):
        recast.filter("label = 'dog'")
    plain = ds.cast({"label": Value("int64")})
    with pytest.raises(fb.QueryError):
        list(plain.filter("label = 'dog'"))


def test_states_tell_the_same_text_of_other_classes_apart(ds: fb.Dataset) -> None:
    swapped = ds.cast({"label": ClassLabel(names=["dog", "cat", "a", "b", "c"])})
    one, other = (of.filter("label = 'dog'").batches(4) for of in (ds, swapped))
    next(iter(one))
    with pytest.raises(fb.StateError):
        other.load_state_dict(one.state_dict())
    again = ds.filter("label = 'dog'").batches(4)
    again.load_state_dict(one.state_dict())


def test_selections_are_kept_by_what_names_mean(
    ds: fb.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_CACHE", str(tmp_path))
    swapped = ds.cast({"label": ClassLabel(names=["dog", "cat", "a", "b", "c"])})
    kept: list[Any] = [rows(of.filter("label = 'dog' AND row % 2 = 0")) for of in (ds, swapped, ds, swapped)]
    assert kept[0] == kept[2] != kept[1] == kept[3]
