"""The families of the corpus of SQL queries: each draws the SQL of one query, and what is to be known of it.

They return the fields of `sql_corpus.Query` but its name.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from sql_terms import Terms, literal

if TYPE_CHECKING:
    from collections.abc import Callable


def _filter(terms: Terms) -> dict[str, Any]:
    return _where(terms.predicate(3))


def _atom(terms: Terms) -> dict[str, Any]:
    return _where(terms.atom())


def _special(terms: Terms) -> dict[str, Any]:
    return _where(terms.special())


def _where(predicate: str) -> dict[str, Any]:
    return {"sql": f"SELECT id, word, f64 FROM dataset WHERE {predicate}", "predicate": predicate}


def _computed(terms: Terms) -> dict[str, Any]:
    columns = ", ".join(f"{terms.expression()} AS c{index}" for index in range(terms.rng.randrange(1, 5)))
    where = f" WHERE {terms.predicate(1)}" if terms.rng.random() < 0.6 else ""
    return {"sql": f"SELECT id, {columns} FROM dataset{where}"}


def _params(terms: Terms) -> dict[str, Any]:
    params = {
        "low": terms.rng.randrange(-50, 50),
        "ratio": terms.rng.randrange(-800, 800) / 8,
        "word": terms.pick("de", "it's", "'; DROP TABLE dataset; --", "", "\U0001f980", "100%"),
        "since": dt.date(2024, 2, 20) + dt.timedelta(days=terms.rng.randrange(300)),
    }
    used = {
        "low": terms.pick("i8 > $low", "seq % 7 = abs($low) % 7", "i16 BETWEEN $low AND 3000"),
        "ratio": "r64 >= $ratio",
        "word": terms.pick("cat = $word", "text <> $word", "word LIKE '%' || $word || '%'"),
        "since": "day > $since",
    }
    names = terms.rng.sample(list(params), 2)
    condition = terms.pick(" AND ", " OR ").join(used[name] for name in names)
    select = terms.pick("id, word", f"id, ${names[0]} AS given")
    wanted = {name: params[name] for name in names}
    return {"sql": f"SELECT {select} FROM dataset WHERE {condition}", "params": wanted}


def _join(terms: Terms) -> dict[str, Any]:
    kind = terms.pick("JOIN", "LEFT JOIN")
    side, on = terms.pick(("labels", "d.cat = s.cat"), ("scores", "d.id = s.row_id"), ("scores", "s.row_id = d.id"))
    columns = {"labels": ("label", "weight", "target"), "scores": ("quality", "team")}[side]
    column = terms.pick(*columns)
    where = terms.pick(
        "",
        f" WHERE {column} IS NOT NULL",
        f" WHERE {column} IS NULL OR d.seq < {terms.rng.randrange(140)}",
        f" WHERE {terms.pick('d.u8 > 99', 'd.flag', 'd.r64 < 3')}",
    )
    more = terms.pick("", f" AND d.seq > {terms.rng.randrange(100)}", " AND d.flag")
    select = terms.pick(f"d.id, s.{column}", f"d.id, d.word, coalesce(CAST(s.{column} AS VARCHAR), '-') AS v")
    return {"sql": f"SELECT {select} FROM dataset d {kind} {side} s ON {on}{more}{where}"}


def _two_joins(terms: Terms) -> dict[str, Any]:
    where = terms.pick("quality > weight", "quality IS NULL OR weight > 0.25", "target = 3 OR quality < 4")
    first, second = terms.pick("JOIN", "LEFT JOIN"), terms.pick("JOIN", "LEFT JOIN")
    return {
        "sql": f"SELECT id, label, quality FROM dataset {first} scores ON id = row_id "
        f"{second} labels USING (cat) WHERE {where} AND seq > {terms.rng.randrange(120)}"
    }


def _semi_join(terms: Terms) -> dict[str, Any]:
    kind = terms.pick("seen", "sold", "")
    amount = terms.rng.randrange(-50, 50)
    inner = terms.pick(
        f"SELECT row_id FROM events WHERE row_id IS NOT NULL AND kind = '{kind}'",
        f"SELECT row_id FROM events WHERE row_id IS NOT NULL AND amount > {amount}",
        "SELECT row_id FROM scores WHERE quality > 3.5",
        "SELECT row_id FROM events WHERE row_id IS NOT NULL GROUP BY row_id HAVING count(*) > 1",
    )
    condition = terms.pick(
        f"id IN ({inner})",
        f"id NOT IN ({inner})",
        f"EXISTS (SELECT 1 FROM events e WHERE e.row_id = d.id AND e.amount > {amount})",
        f"NOT EXISTS (SELECT 1 FROM events e WHERE e.row_id = d.id AND e.kind = '{kind}')",
        "cat IN (SELECT cat FROM labels WHERE target > 2)",
        "cat NOT IN (SELECT cat FROM labels)",
    )
    where = f"{condition} AND {terms.pick('seq > 20', 'u8 < 200', 'flag', 'd.cat <> word')}"
    return {"sql": f"SELECT id, word FROM dataset d WHERE {where}"}


def _scalar_subquery(terms: Terms) -> dict[str, Any]:
    bound = terms.pick(
        "r64 > (SELECT avg(quality) FROM scores)",
        "i32 < (SELECT max(amount) FROM events) * 100",
        f"seq = (SELECT max(seq) FROM dataset) - {terms.rng.randrange(99)}",
        "price > (SELECT avg(r64) FROM dataset WHERE flag)",
        "day > (SELECT min(day) FROM dataset WHERE cat = 'de')",
    )
    column = terms.pick("word", "(SELECT count(*) FROM labels) AS n", "(SELECT max(amount) FROM events) - u8 AS n")
    return {"sql": f"SELECT id, {column} FROM dataset WHERE {bound} AND {terms.atom()}"}


def _keys(terms: Terms, count: int) -> str:
    names = terms.rng.sample(["seq", "i8", "u16", "u64", "r64", "price", "cat", "word", "flag", "day", "moment"], count)
    order = [f"{name} {terms.pick('ASC', 'DESC')} NULLS {terms.pick('FIRST', 'LAST')}" for name in names]
    return ", ".join([*order, f"id{terms.pick('', ' DESC')}"])


def _ordered(terms: Terms) -> dict[str, Any]:
    sql = f"SELECT {terms.pick('*', 'id, word', 'word', 'id, r64 * 2 AS twice')} FROM dataset"
    if terms.rng.random() < 0.6:
        sql += f" WHERE {terms.predicate(1)}"
    sql += f" ORDER BY {_keys(terms, terms.rng.randrange(3))}"
    if terms.rng.random() < 0.7:
        sql += f" LIMIT {terms.pick(0, 1, 7, 100, 5000)}"
        if terms.rng.random() < 0.5:
            sql += f" OFFSET {terms.pick(1, 13, 200, 3000)}"
    return {"sql": sql, "is_ordered": True}


def _special_order(terms: Terms) -> dict[str, Any]:
    name = terms.pick("f32", "f64", "-f64", "f32 + 1")
    order = f"{name} {terms.pick('ASC', 'DESC')} NULLS {terms.pick('FIRST', 'LAST')}"
    limit = terms.pick("", " LIMIT 60")
    return {"sql": f"SELECT id, f64 FROM dataset ORDER BY {order}, id{limit}", "is_ordered": True}


def _special_window(terms: Terms) -> dict[str, Any]:
    name = terms.pick("f32", "f64")
    over = f"OVER (PARTITION BY {terms.pick('cat', name)} ORDER BY {name} NULLS FIRST, id)"
    first = terms.rng.randrange(9)
    return {"sql": f"SELECT id, row_number() {over} AS n, rank() {over} AS r FROM dataset WHERE seq > {first}"}


def _distinct_on(terms: Terms) -> dict[str, Any]:
    names = terms.rng.sample(["cat", "seq", "u8", "flag", "text", "day"], terms.rng.randrange(1, 3))
    first = ", ".join(f"{name} NULLS LAST" for name in names)
    where = f" WHERE {terms.predicate(1)}" if terms.rng.random() < 0.5 else ""
    last = terms.pick("id", "id DESC", "price NULLS FIRST, id", "u64 DESC NULLS LAST, id")
    return {"sql": f"SELECT DISTINCT ON ({', '.join(names)}) id, word FROM dataset{where} ORDER BY {first}, {last}"}


def _distinct_twice(terms: Terms) -> dict[str, Any]:
    name = terms.pick("cat", "seq", "u8", "flag", "day")
    on = terms.pick(name, f"{name}, {name}")
    where = f" WHERE {terms.predicate(1)}" if terms.rng.random() < 0.5 else ""
    keys = f"{name} NULLS LAST, {name} {terms.pick('ASC', 'DESC')} NULLS LAST, id{terms.pick('', ', id DESC')}"
    return {"sql": f"SELECT DISTINCT ON ({on}) id, word FROM dataset{where} ORDER BY {keys}"}


WINDOWS = (
    "row_number()",
    "rank()",
    "dense_rank()",
    "ntile(4)",
    "sum(u8)",
    "count(*)",
    "count(i8)",
    "min(word)",
    "max(price)",
    "lag(seq)",
    "lead(word, 2)",
    "first_value(cat)",
    "avg(CAST(u8 AS DOUBLE))",
)


def _window(terms: Terms) -> dict[str, Any]:
    function = terms.pick(*WINDOWS)
    keys = _keys(terms, 1)
    partition = terms.pick("", "PARTITION BY cat ", "PARTITION BY flag, seq % 3 ", "PARTITION BY text ")
    frame = terms.pick("", "", " ROWS BETWEEN 3 PRECEDING AND CURRENT ROW", " ROWS BETWEEN 1 PRECEDING AND 2 FOLLOWING")
    if not function.startswith(("sum", "count", "min", "max", "first", "avg")):
        frame = ""
    over = f"{function} OVER ({partition}ORDER BY {keys}{frame})"
    where = f" WHERE {terms.atom()}" if terms.rng.random() < 0.5 else ""
    return {"sql": f"SELECT id, {over} AS w FROM dataset{where}"}


def _best(terms: Terms) -> dict[str, Any]:
    partition = terms.pick("cat", "seq", "flag", "u8 % 10", "text")
    number = f"row_number() OVER (PARTITION BY {partition} ORDER BY {_keys(terms, 1)})"
    best = terms.rng.randrange(1, 9)
    where = f" WHERE {terms.atom()}" if terms.rng.random() < 0.5 else ""
    return {
        "sql": terms.pick(
            f"SELECT id, word FROM (SELECT *, {number} AS n FROM dataset{where}) AS numbered WHERE n <= {best}",
            f"SELECT id, word FROM dataset{where} QUALIFY {number} <= {best}",
        )
    }


def _with(terms: Terms) -> dict[str, Any]:
    inner = f"SELECT id, cat, {terms.number()} AS v, word FROM dataset WHERE {terms.predicate(1)}"
    return {
        "sql": terms.pick(
            f"WITH kept AS ({inner}) SELECT id, v FROM kept WHERE v IS NOT NULL",
            f"WITH kept AS ({inner}), few AS (SELECT cat, label FROM labels WHERE target < 5) "
            "SELECT k.id, k.v, f.label FROM kept k JOIN few f ON k.cat = f.cat",
            f"WITH kept AS ({inner}) SELECT id, v FROM kept WHERE id IN (SELECT row_id FROM scores)",
            f"SELECT id, v FROM ({inner}) AS inner_one WHERE v > 3",
        )
    }


AGGREGATES = (
    "count(*)",
    "count(i8)",
    "count(DISTINCT cat)",
    "sum(u8)",
    "sum(i32)",
    "sum(r64)",
    "sum(price)",
    "min(word)",
    "max(day)",
    "min(moment)",
    "max(u64)",
    "avg(r64)",
    "avg(CAST(i16 AS DOUBLE))",
    "bool_or(flag)",
    "bool_and(flag)",
    "count(*) FILTER (WHERE flag)",
    "max(price) - min(price)",
    "sum(CASE WHEN flag THEN 1 ELSE 0 END)",
)


def _aggregate(terms: Terms) -> dict[str, Any]:
    found = ", ".join(
        f"{f} AS a{index}" for index, f in enumerate(terms.rng.sample(AGGREGATES, terms.rng.randrange(1, 5)))
    )
    where = f" WHERE {terms.predicate(1)}" if terms.rng.random() < 0.6 else ""
    keys = terms.pick(
        [], ["cat"], ["flag"], ["seq % 7"], ["cat", "flag"], ["date_trunc('month', moment)"], ["length(text)"]
    )
    if not keys:
        return {"sql": f"SELECT {found} FROM dataset{where}", "keeps_rows": False}
    having = terms.pick("", "", " HAVING count(*) > 20", " HAVING max(u8) > 250")
    named = ", ".join(f"{key} AS k{index}" for index, key in enumerate(keys))
    return {
        "sql": f"SELECT {named}, {found} FROM dataset{where} GROUP BY {', '.join(keys)}{having}",
        "keeps_rows": False,
    }


def _special_aggregate(terms: Terms) -> dict[str, Any]:
    name = terms.pick("f32", "f64")
    sql = terms.pick(
        f"SELECT min({name}) AS low, max({name}) AS high FROM dataset WHERE {terms.pick('seq > 9', 'flag', 'u8 < 50')}",
        f"SELECT {name}, count(*) AS n FROM dataset GROUP BY {name} HAVING count(*) > {terms.rng.randrange(4)}",
        f"SELECT count(DISTINCT {name}) AS n FROM dataset WHERE seq < {terms.rng.randrange(20, 140)}",
        f"SELECT DISTINCT {name} FROM dataset WHERE seq < {terms.rng.randrange(20, 140)}",
    )
    return {"sql": sql, "keeps_rows": False}


def _special_groups(terms: Terms) -> dict[str, Any]:
    name = terms.pick("f32", "f64", "-f64")
    key = terms.pick("cat", "flag", "seq", "u8 % 10")
    having = terms.pick("", "", f" HAVING max({name}) > {terms.rng.randrange(30, 50)}")
    return {
        "sql": f"SELECT {key} AS k, min({name}) AS low, max({name}) AS high FROM dataset GROUP BY {key}{having}",
        "keeps_rows": False,
    }


def _special_join(terms: Terms) -> dict[str, Any]:
    name = terms.pick("f32", "f64")
    return {
        "sql": f"SELECT id, n FROM dataset d JOIN (SELECT {name} AS value, count(*) AS n FROM dataset "
        f"GROUP BY {name}) AS t ON d.{terms.pick('f32', 'f64')} = t.value WHERE seq < {terms.rng.randrange(9, 140)}"
    }


def _fan_out(terms: Terms) -> dict[str, Any]:
    kind = terms.pick("JOIN", "LEFT JOIN", "FULL JOIN")
    where = terms.pick("", " WHERE amount > 0", " WHERE kind = 'sold' OR kind IS NULL")
    sql = terms.pick(
        f"SELECT d.id, e.kind, e.amount FROM dataset d {kind} events e ON d.id = e.row_id{where}",
        f"SELECT d.cat, sum(e.amount) AS a, count(*) AS n FROM dataset d {kind} events e ON d.id = e.row_id"
        f"{where} GROUP BY d.cat",
        f"SELECT a.id AS a, b.id AS b FROM dataset a JOIN dataset b ON a.seq = b.seq AND a.id < b.id "
        f"WHERE a.seq < {terms.rng.randrange(1, 30)}",
    )
    return {"sql": sql, "keeps_rows": False}


def _sets(terms: Terms) -> dict[str, Any]:
    first = f"SELECT id, word FROM dataset WHERE {terms.predicate(1)}"
    second = f"SELECT id, word FROM dataset WHERE {terms.predicate(1)}"
    sql = terms.pick(
        f"{first} UNION ALL {second}",
        f"{first} UNION {second}",
        f"{first} INTERSECT {second}",
        f"{first} EXCEPT {second}",
        f"SELECT DISTINCT cat, flag FROM dataset WHERE {terms.predicate(1)}",
        f"SELECT id, word FROM ({first} UNION ALL {second}) AS both_of_them ORDER BY id, word NULLS LAST LIMIT 40",
    )
    return {"sql": sql, "keeps_rows": False}


def _vector(terms: Terms) -> dict[str, Any]:
    target = [terms.rng.randrange(-8, 8) / 4 for _ in range(2)] + [0.5]
    function = terms.pick("cosine_similarity", "l2_distance", "dot")
    near = f"{function}(vector, {terms.pick('$target', literal(target))})"
    sql = terms.pick(
        f"SELECT id, {near} AS near FROM dataset WHERE vector IS NOT NULL",
        f"SELECT id, word FROM dataset WHERE {near} > {terms.rng.randrange(8) / 10 + 0.05}",
        f"SELECT id FROM dataset WHERE vector IS NOT NULL ORDER BY round({near} * 1000), id LIMIT 20",
    )
    return {"sql": sql, "params": {"target": target} if "$target" in sql else {}, "is_ordered": "ORDER BY" in sql}


FAMILIES: dict[str, tuple[int, Callable[[Terms], dict[str, Any]]]] = {
    "atom": (110, _atom),
    "filter": (110, _filter),
    "floats": (40, _special),
    "computed": (80, _computed),
    "params": (20, _params),
    "join": (30, _join),
    "two-joins": (10, _two_joins),
    "semi-join": (25, _semi_join),
    "subquery": (15, _scalar_subquery),
    "order": (40, _ordered),
    "floats-order": (10, _special_order),
    "distinct-on": (20, _distinct_on),
    "distinct-twice": (10, _distinct_twice),
    "window": (40, _window),
    "floats-window": (6, _special_window),
    "best": (15, _best),
    "with": (20, _with),
    "vector": (15, _vector),
    "aggregate": (50, _aggregate),
    "floats-aggregate": (12, _special_aggregate),
    "floats-groups": (12, _special_groups),
    "floats-join": (6, _special_join),
    "fan-out": (15, _fan_out),
    "sets": (20, _sets),
}
