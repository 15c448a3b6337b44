"""A dataset is a table of `datafusion`: the same rows, read as far as a query needs them."""

from __future__ import annotations

import datetime as dt
import decimal
import gc
import math
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import data
import datafusion
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from datafusion import SessionContext, col, lit, udf
from programs import our_threads, run_python

import forebay as fb

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NUM_ROWS = 3000
TABLE = data.mixed_table(NUM_ROWS, seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    for part in range(3):
        rows = TABLE.slice(part * NUM_ROWS // 3, NUM_ROWS // 3)
        pq.write_table(rows, folder / f"part-{part}.parquet", row_group_size=170, data_page_size=1 << 10)
    return folder


@pytest.fixture
def ds(folder: Path) -> fb.Dataset:
    return fb.load_dataset(folder, split="train")


@pytest.fixture
def ctx(ds: fb.Dataset) -> SessionContext:
    ctx = SessionContext()
    ctx.register_table("t", ds)
    return ctx


def run(ctx: SessionContext, sql: str) -> pa.Table:
    """The rows of a query, in one type of text whatever the engine's is."""
    return plain(ctx.sql(sql).to_arrow_table())


def plain(table: pa.Table) -> pa.Table:
    return table.cast(pa.schema([field.with_type(without_views(field.type)) for field in table.schema]))


def without_views(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    return kind


def values_of(table: pa.Table, name: str) -> list[Any]:
    """Values as Python has them, of which NaN is not equal to itself and -0.0 is 0.0."""
    values = table[name].to_pylist()
    return ["NaN" if isinstance(value, float) and math.isnan(value) else value for value in values]


def plan_of(frame: Any) -> str:
    return str(frame.execution_plan().display_indent())


def test_all_rows_come_in_the_order_of_the_dataset(ctx):
    got = ctx.table("t").to_arrow_table()
    assert got.column_names == TABLE.column_names
    for name in TABLE.column_names:
        assert values_of(got, name) == values_of(TABLE, name), name


def test_a_table_is_read_without_a_name(ds):
    assert SessionContext().read_table(ds).count() == NUM_ROWS


FILTERS: dict[str, Callable[[], Any]] = {
    "id < 100": lambda: pc.field("id") < 100,
    "id BETWEEN 500 AND 900 AND flag": lambda: (pc.field("id") >= 500) & (pc.field("id") <= 900) & pc.field("flag"),
    "lang = 'de' OR lang IS NULL": lambda: (pc.field("lang") == "de") | pc.field("lang").is_null(),
    "lang LIKE '%r'": lambda: pc.match_like(pc.field("lang"), "%r"),
    "lang IN ('de', '日本語') AND small > 0": lambda: pc.field("lang").isin(["de", "日本語"]) & (pc.field("small") > 0),
    "NOT flag": lambda: ~pc.field("flag"),
    "day > DATE '2000-01-01'": lambda: pc.field("day") > pa.scalar(10957, pa.int32()).cast(pa.date32()),
    "price * 2 >= 100.00": lambda: pc.field("price") >= decimal.Decimal(50),
    "meta['rank'] = 3": lambda: pc.field("meta", "rank") == 3,
    "text > 'n' AND unsigned > 2147483648": lambda: (pc.field("text") > "n") & (pc.field("unsigned") > 2**31),
    "CASE WHEN small < 0 THEN -small ELSE small END > 100": lambda: (
        # The least number has no opposite: it wraps around, as in `datafusion`.
        (pc.field("small") > 100) | ((pc.field("small") < -100) & (pc.field("small") > -128))
    ),
}


@pytest.mark.parametrize("sql", FILTERS)
def test_a_filter_is_pushed_down_and_keeps_the_rows_that_pyarrow_keeps(ctx, sql):
    frame = ctx.sql(f"SELECT id, lang FROM t WHERE {sql}")
    assert "FilterExec" not in plan_of(frame)
    assert plain(frame.to_arrow_table()) == TABLE.filter(FILTERS[sql]()).select(["id", "lang"])


@pytest.mark.parametrize(
    "sql",
    [
        "length(lang) = 2",
        "upper(lang) = 'DE' AND id < 1000",
        "id < 1000 AND random() < 2",
        "array_length(tags) = 2",
        "array_has(tags, tags[2])",
        "id IN (SELECT id * 2 FROM t WHERE small > 100)",
        "id > (SELECT avg(id) FROM t)",
        "EXISTS (SELECT 1 FROM t AS other WHERE other.id = t.id + 2900)",
        "coalesce(small, 1) = 1",
        "'de' = ANY (ARRAY['de', lang])",
    ],
)
def test_what_is_not_pushed_down_is_filtered_by_the_engine(ctx, sql):
    whole = SessionContext()
    whole.from_arrow(TABLE, name="t")
    select = f"SELECT id, lang FROM t WHERE {sql} ORDER BY id"
    got = run(ctx, select)
    assert got == run(whole, select)
    assert got.num_rows > 0


def test_a_function_that_the_session_calls_by_a_name_of_sql_is_the_sessions(ctx):
    ctx.register_udf(udf(lambda text: pc.utf8_upper(text), [pa.string()], pa.string(), "immutable", name="lower"))
    german = TABLE.filter(pc.field("lang") == "de")
    assert run(ctx, "SELECT id FROM t WHERE lower(lang) = 'DE'") == german.select(["id"])


@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_floats_are_compared_as_numbers(tmp_path, kind):
    values = pa.array([0.0, -0.0, float("nan"), 1.0, None], kind)
    pq.write_table(pa.table({"x": values}), tmp_path / "a.parquet")
    ctx = SessionContext()
    ctx.register_table("t", fb.load_dataset(tmp_path, split="train"))
    assert run(ctx, "SELECT x FROM t WHERE x = 0.0").num_rows == 2
    assert run(ctx, "SELECT x FROM t WHERE x > 0.5").num_rows == 2, "NaN is above every number"


# Casts that do not keep the order of what they cast, or wrap around, as bounds of it must not.
DISORDERING = [
    "CAST(at AS TIME) > TIME '12:00'",
    "CAST(at AS TIME) < TIME '12:00'",
    "NOT CAST(at AS TIME) < TIME '12:00' OR id < 0",
    "CAST(local AS TIME) > TIME '12:00'",
    "CAST(sign AS BOOLEAN) < true",
    "TRY_CAST(day AS TIMESTAMP) < TIMESTAMP '1900-01-01'",
    "TRY_CAST(day AS TIMESTAMP) > TIMESTAMP '1900-01-01'",
]


@pytest.mark.parametrize("condition", DISORDERING)
def test_bounds_decide_no_cast_that_puts_values_in_another_order(tmp_path, condition):
    times = [dt.datetime(2024, 10, 26, 20) + dt.timedelta(minutes=20 * n) for n in range(60)]
    rows = pa.table(
        {
            "id": range(60),
            "at": pa.array(times, pa.timestamp("us")),
            "local": pa.array(times, pa.timestamp("us", "Europe/Berlin")),
            "sign": [n % 3 - 1 for n in range(60)],
            "day": pa.array([dt.date(1970, 1, 1) if n % 3 else dt.date(9999, 12, 31) for n in range(60)], pa.date64()),
        }
    )
    for name, options in {"bounds": {"row_group_size": 7}, "none": {"write_statistics": False}}.items():
        pq.write_table(rows, tmp_path / f"{name}.parquet", **options)
    kept = []
    for name in ("bounds", "none"):
        ctx = SessionContext()
        ctx.register_table("t", fb.load_dataset(tmp_path / f"{name}.parquet", split="train"))
        kept.append(values_of(run(ctx, f"SELECT id FROM t WHERE {condition}"), "id"))
    assert kept[0] == kept[1]
    assert 0 < len(kept[0]) < 60


def test_a_projection_reads_its_columns_alone(ctx):
    frame = ctx.sql("SELECT score, id FROM t")
    plan = plan_of(frame)
    assert "ForebayScan" in plan
    # Of the scan's columns it is the second: the scan has no others.
    assert TABLE.column_names.index("score") > 1
    assert "score@1" in plan
    assert frame.to_arrow_table().column_names == ["score", "id"]
    assert ctx.sql("SELECT meta['source'] AS source, tags[1] AS tag FROM t").to_arrow_table().num_rows == NUM_ROWS


def test_a_limit_is_read_no_further(ctx):
    assert run(ctx, "SELECT id FROM t LIMIT 7")["id"].to_pylist() == list(range(7))
    assert run(ctx, "SELECT id FROM t WHERE id > 1000 LIMIT 7 OFFSET 3")["id"].to_pylist() == list(range(1004, 1011))
    assert run(ctx, "SELECT id FROM t LIMIT 0").num_rows == 0


def test_counting_all_rows_reads_nothing(folder, tmp_path):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    ds = fb.load_dataset(tmp_path, split="train")
    ctx = SessionContext()
    ctx.register_table("t", ds)
    for path in tmp_path.iterdir():
        path.unlink()
    assert run(ctx, "SELECT count(*) AS n FROM t").to_pylist() == [{"n": NUM_ROWS}]


def test_counting_filtered_rows_is_exact(ctx):
    expected = TABLE.filter(pc.field("lang") == "de").num_rows
    assert run(ctx, "SELECT count(*) AS n FROM t WHERE lang = 'de'").to_pylist() == [{"n": expected}]


def test_groups_are_those_of_pyarrow(ctx):
    got = run(ctx, "SELECT lang, count(*) AS n, sum(small) AS total FROM t GROUP BY lang ORDER BY lang NULLS LAST")
    expected = TABLE.group_by("lang").aggregate([([], "count_all"), ("small", "sum")])
    expected = expected.sort_by("lang").rename_columns({"count_all": "n", "small_sum": "total"})
    assert got.to_pylist() == expected.select(["lang", "n", "total"]).to_pylist()


def test_it_joins_with_other_tables_and_with_itself(ctx):
    ctx.from_arrow(pa.table({"lang": ["de", "en"], "name": ["German", "English"]}), name="names")
    got = run(ctx, "SELECT id, name FROM t JOIN names USING (lang) ORDER BY id")
    expected = TABLE.filter(pc.field("lang").isin(["de", "en"]))
    assert got["id"].to_pylist() == expected["id"].to_pylist()
    assert set(got["name"].to_pylist()) == {"German", "English"}
    paired = run(ctx, "SELECT a.id FROM t AS a JOIN t AS b ON a.id = b.id + 1 WHERE b.id >= 2990")
    assert sorted(paired["id"].to_pylist()) == list(range(2991, 3000))


def test_data_frames_are_pushed_down_as_sql_is(ctx):
    frame = ctx.table("t").filter(col("id") < lit(10)).select("id")
    assert "FilterExec" not in plan_of(frame)
    assert frame.to_arrow_table()["id"].to_pylist() == list(range(10))


CHANGED: dict[str, Callable[[fb.Dataset], fb.Dataset]] = {
    "filtered": lambda ds: ds.filter("lang = 'de'"),
    "of some columns": lambda ds: ds.select_columns(["lang", "id"]),
    "a shard": lambda ds: ds.shard(1, 3),
    "selected": lambda ds: ds.select([5, 700, 3, 2999]),
    "empty": lambda ds: ds.filter("id < 0"),
    "computed": lambda ds: ds.sql("SELECT id, upper(lang) AS lang FROM dataset WHERE small > 3"),
    "in another order": lambda ds: ds.sql("SELECT id, lang FROM dataset ORDER BY id DESC LIMIT 50"),
    "shuffled": lambda ds: ds.shuffle(7),
}


@pytest.mark.parametrize("change", CHANGED)
def test_the_table_is_of_the_datasets_own_rows(ds, change):
    changed = CHANGED[change](ds)
    ctx = SessionContext()
    ctx.register_table("t", changed)
    expected = pa.table(CHANGED[change](ds) if change != "shuffled" else ds)
    assert run(ctx, "SELECT id, lang FROM t") == plain(expected.select(["id", "lang"]))
    kept = expected.filter((pc.field("id") > 1500) & (pc.field("lang").is_valid()))
    assert run(ctx, "SELECT id FROM t WHERE id > 1500 AND lang IS NOT NULL") == kept.select(["id"])
    assert run(ctx, "SELECT count(*) AS n FROM t").to_pylist() == [{"n": expected.num_rows}]
    assert run(ctx, "SELECT id FROM t LIMIT 5")["id"].to_pylist() == expected["id"].to_pylist()[:5]


def test_an_empty_object_has_columns_and_no_rows(tmp_path):
    pq.write_table(TABLE.slice(0, 0), tmp_path / "a.parquet")
    ctx = SessionContext()
    ctx.register_table("t", fb.load_dataset(tmp_path, split="train"))
    assert run(ctx, "SELECT * FROM t").column_names == TABLE.column_names
    assert run(ctx, "SELECT count(*) AS n, max(id) AS most FROM t").to_pylist() == [{"n": 0, "most": None}]


def test_functions_of_a_query_run_as_the_table_is_read(ds):
    double = fb.Function(call=lambda ids: pc.multiply(ids, 2), arguments=[pa.int64()], returns=pa.int64())
    ctx = SessionContext()
    ctx.register_table("t", ds.sql("SELECT double(id) AS twice FROM dataset", functions={"double": double}))
    assert run(ctx, "SELECT sum(twice) AS total FROM t").to_pylist() == [{"total": NUM_ROWS * (NUM_ROWS - 1)}]


def test_a_frame_outlives_its_session(ds):
    def frame() -> Any:
        ctx = SessionContext()
        ctx.register_table("t", ds)
        return ctx.sql("SELECT id FROM t WHERE id < 5")

    made = frame()
    gc.collect()
    assert made.to_arrow_table()["id"].to_pylist() == list(range(5))


def test_a_lost_object_is_named(folder, tmp_path):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    ctx = SessionContext()
    ctx.register_table("t", fb.load_dataset(tmp_path, split="train"))
    (tmp_path / "part-1.parquet").unlink()
    with pytest.raises(Exception, match=r"no such object or folder: `.*part-1\.parquet`"):
        ctx.sql("SELECT * FROM t").collect()
    with pytest.raises(Exception, match=r"no such object or folder: `.*part-1\.parquet`"):
        ctx.sql("SELECT sum(small) FROM t WHERE lang = 'de'").collect()


def test_a_value_that_fails_is_named(tmp_path):
    pq.write_table(pa.table({"n": [1, 0, 2]}), tmp_path / "a.parquet")
    ctx = SessionContext()
    ctx.register_table("t", fb.load_dataset(tmp_path, split="train"))
    with pytest.raises(Exception, match=r"a\.parquet.*Divide by zero"):
        ctx.sql("SELECT n FROM t WHERE 10 / n > 1").collect()


def test_a_stream_that_is_dropped_in_the_middle_leaves_no_thread(folder):
    ctx = SessionContext()
    ctx.register_table("t", fb.load_dataset(folder, split="train"))
    stream = ctx.sql("SELECT * FROM t").execute_stream()
    assert next(stream).to_pyarrow().num_rows > 0
    assert our_threads()
    del stream, ctx
    gc.collect()
    end = time.monotonic() + 10
    while our_threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert our_threads() == {}


def test_threads_read_one_table_at_once(ctx):
    found: list[Any] = []

    def read(start: int) -> None:
        found.extend((start, run(ctx, f"SELECT id FROM t WHERE id >= {start}").num_rows) for _ in range(5))

    threads = [threading.Thread(target=read, args=(start,)) for start in (0, 1000, 2990)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted([(start, NUM_ROWS - start) for start in (0, 1000, 2990)] * 5)


def test_many_scans_of_one_query_do_not_wait_for_each_other(ctx):
    sums = " UNION ALL ".join(f"SELECT sum(id + {n}) AS total FROM t WHERE small > 0" for n in range(40))
    kept = TABLE.filter(pc.field("small") > 0)["id"].to_pylist()
    got = run(ctx, f"SELECT total FROM ({sums}) ORDER BY total")["total"].to_pylist()
    assert got == [sum(kept) + n * len(kept) for n in range(40)]


def test_a_long_filter_is_left_to_the_engine_rather_than_nested(ctx):
    terms = " OR ".join(f"(id = {n} AND small > {n % 50})" for n in range(400))
    whole = SessionContext()
    whole.from_arrow(TABLE, name="t")
    select = f"SELECT id FROM t WHERE {terms} ORDER BY id"
    assert run(ctx, select) == run(whole, select)


def test_a_forked_child_reads_the_table_of_its_parent(folder):
    code = f"""
    import os
    import forebay as fb
    from datafusion import SessionContext
    ds = fb.load_dataset({str(folder)!r}, split="train").filter("small > 0")
    capsule = ds.__datafusion_table_provider__()
    len(ds)
    child = os.fork()
    if child == 0:
        ctx = SessionContext()
        ctx.register_table("t", ds)
        n = ctx.sql("SELECT count(id) AS n FROM t WHERE id >= 0").to_pydict()["n"][0]
        os._exit(0 if n == len(ds) else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run_python(code).strip() == "0"


@pytest.mark.parametrize("version", ["54.0.0", "56.1.0"])
def test_another_major_version_is_refused_with_both_versions(ds, monkeypatch, version):
    monkeypatch.setattr(datafusion, "__version__", version)
    with pytest.raises(
        fb.VersionError, match=rf"datafusion {version}.*DataFusion 55\..*`datafusion==55\.\*`.*from_arrow"
    ):
        SessionContext().register_table("t", ds)
    with pytest.raises(fb.VersionError, match=version):
        ds.__datafusion_table_provider__()


def test_a_minor_version_is_not_compared(ds, monkeypatch):
    monkeypatch.setattr(datafusion, "__version__", "55.9.1")
    assert SessionContext().read_table(ds).count() == NUM_ROWS


def test_an_installed_version_counts_before_it_is_imported(ds, monkeypatch):
    monkeypatch.delitem(sys.modules, "datafusion")
    monkeypatch.setattr("importlib.metadata.version", lambda name: {"datafusion": "12.0.0"}[name])
    with pytest.raises(fb.VersionError, match=r"datafusion 12\.0\.0"):
        ds.__datafusion_table_provider__()


def test_without_datafusion_the_caller_has_to_know(ds, monkeypatch):
    from importlib import metadata

    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.delitem(sys.modules, "datafusion")
    monkeypatch.setattr("importlib.metadata.version", absent)
    assert '"datafusion_table_provider"' in repr(ds.__datafusion_table_provider__())


@pytest.mark.parametrize("session", [7, "session", object()])
def test_what_is_no_session_is_refused(ds, session):
    with pytest.raises(fb.SettingError, match=f"session.*{type(session).__name__}.*register_table"):
        ds.__datafusion_table_provider__(session)
