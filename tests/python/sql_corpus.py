"""The corpus of SQL queries: drawn from a seed, so that it is the same in every run, and named by what it is about.

Every result is determined by the query: whatever is ordered or ranked is so by keys that end in `id`, NULLs have their
place, and sums are of numbers that add up the same in any order.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import Any

from sql_families import FAMILIES
from sql_terms import Terms, literal

SEED = 2_026_11_21


@dataclass(frozen=True)
class Query:
    """One query of the corpus."""

    name: str
    """The family and a number in it."""
    sql: str
    predicate: str | None = None
    """What `Dataset.filter` takes, of a query that is nothing more than that."""
    params: dict[str, Any] = field(default_factory=dict)
    keeps_rows: bool = True
    """Whether it has at most one row for each row of the dataset, so that `Dataset.sql` takes it."""
    is_ordered: bool = False

    @property
    def family(self) -> str:
        return self.name.rpartition("-")[0]

    def with_literals(self) -> str:
        """The query with its parameters written out, for engines that bind none."""
        return re.sub(r"\$(\w+)", lambda found: literal(self.params[found[1]]), self.sql)


def corpus() -> list[Query]:
    """All queries, in the order of their families."""
    queries = []
    for name, (count, family) in FAMILIES.items():
        terms = Terms(random.Random(f"{SEED} {name}"))
        drawn: dict[str, dict[str, Any]] = {}
        for _ in range(9 * count):
            query = family(terms)
            drawn.setdefault(str(query), query)
            if len(drawn) == count:
                break
        queries += [Query(f"{name}-{index}", **query) for index, query in enumerate(drawn.values())]
    return queries
