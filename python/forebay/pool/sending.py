"""Pickles a job: functions and classes by name if workers find the same under that name, else by value.

Spawned processes run the program's file again, without the code under `if __name__ == "__main__":`. What they find
there is sent by name, as `pickle` does: locks, open files and large values of the program are not sent, and its classes
are the same in all processes. Lambdas, nested functions, functions that are in no file (as in a notebook), and
functions that use what only this process has set or changed are sent by value, with `cloudpickle` if it is installed.
"""

from __future__ import annotations

import ast
import contextlib
import io
import operator
import os
import pickle
import symtable
import sys
from functools import cached_property
from multiprocessing import process
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from forebay.pool.worker import Job

MAINS = ("__main__", "__mp_main__")
"""The name of the program's module, here and in processes started by `multiprocessing`."""

LOGGING = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
"""Methods of loggers, which functions call and which change nothing."""


def to_bytes(job: Job) -> bytes:
    """Returns a job for `pickle.loads` in a worker.

    Raises:
        Exception: whatever an object raises that cannot be pickled.
    """
    program = Program()
    # The user may have registered modules to be pickled by value.
    known = sys.modules.get("cloudpickle")
    if not getattr(known, "list_registry_pickle_by_value", set)():
        with contextlib.suppress(Exception):
            return _by_name(job, program, ("same",))
    try:
        import cloudpickle
    except ImportError:
        return _by_name(job, program, ("same", "other"))

    class Whole(cloudpickle.Pickler):  # type: ignore[misc]  # untyped
        """Sends by value what workers do not find, and lists the classes among it, for workers to register."""

        def reducer_override(self, obj: Any) -> Any:
            is_class = isinstance(obj, type)
            if (is_class or isinstance(obj, FunctionType)) and obj.__module__ in MAINS:
                if program.find(obj) == "same":
                    return NotImplemented
                if is_class and "<locals>" not in obj.__qualname__:
                    job.classes.append(obj)
            return super().reducer_override(obj)

    stream = io.BytesIO()
    try:
        Whole(stream, protocol=5).dump(job)
    except Exception:
        # Better by name, without what only this process has set, than not at all.
        with contextlib.suppress(Exception):
            return _by_name(job._replace(classes=[]), program, ("same", "other"))
        raise
    return stream.getvalue()


def _by_name(job: Job, program: Program, accepted: tuple[str, ...]) -> bytes:
    """Returns a job with functions and classes by name."""

    class ByName(pickle.Pickler):
        """Refuses what workers do not find."""

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type | FunctionType) and obj.__module__ in MAINS and program.find(obj) not in accepted:
                raise pickle.PicklingError(f"other processes do not find `{obj.__qualname__}` in the program's file")
            return NotImplemented

    stream = io.BytesIO()
    ByName(stream, protocol=5).dump(job)
    return stream.getvalue()


class Program:
    """What spawned processes find in the program's module."""

    def find(self, obj: Any) -> Literal["same", "other"] | None:
        """Returns whether a function or class of the program is the same or another in workers; None if not found."""
        name: str = obj.__qualname__
        root = name.partition(".")[0]
        if "<locals>" in name or root not in self._names.found:
            return None
        try:
            is_it = operator.attrgetter(name)(sys.modules["__main__"]) is obj
        except AttributeError:
            return None
        if not is_it:
            return None
        return "other" if root in self._names.other else "same"

    @cached_property
    def _names(self) -> Names:
        path = _path_of_main()
        if path is None:
            return Names(frozenset(), frozenset())
        try:
            return _names_in(path.read_bytes(), str(path))
        except (OSError, SyntaxError, ValueError):
            # No source, as in an archive: takes all names.
            return Names(frozenset(vars(sys.modules["__main__"])), frozenset())


def _path_of_main() -> Path | None:
    """Returns the file that spawned processes run again, found as in `multiprocessing`; None if there is none."""
    main: Any = sys.modules.get("__main__")
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None and (name == "__main__" or name.endswith(".__main__")):
        return None
    file = getattr(main, "__file__", None)
    if file is None:
        return None
    path = Path(getattr(process, "ORIGINAL_DIR", None) or os.curdir, file)
    return path if path.is_file() and path.stem != "ipython" else None


class Names(NamedTuple):
    """Names of a program's module."""

    found: frozenset[str]
    """Names that are bound when another process runs the file."""
    other: frozenset[str]
    """Names that may have other values there, and functions and classes that use such names."""


def _names_in(source: bytes, path: str) -> Names:
    tree = ast.parse(source, path)
    guards = [part for part in tree.body if _is_guard(part)]
    others = [part for part in tree.body if not _is_guard(part)]
    found = frozenset(_bound([*others, *(part for guard in guards for part in guard.orelse)]))
    other = set(_bound(part for guard in guards for part in guard.body))
    uses: dict[str, set[str]] = {}
    # Modules are the same in all processes.
    modules = set(_bound(part for part in others if isinstance(part, ast.Import)))
    other |= (found - modules) & set(_changed(part for guard in guards for part in guard.body))
    for table in symtable.symtable(source, path, "exec").get_children():  # type: ignore[arg-type]  # takes bytes, too
        used = uses.setdefault(table.get_name(), set())
        for symbol in _symbols(table):
            if symbol.is_global():
                used.add(symbol.get_name())
                if symbol.is_declared_global() and symbol.is_assigned():
                    other.add(symbol.get_name())
    for part in others:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            # It may have run here.
            other |= (found - modules) & uses.get(part.name, set()) & set(_changed([part]))
        else:
            # Another name for a function, or what was made with one.
            read = {node.id for node in ast.walk(part) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
            for name in _bound([part]):
                uses.setdefault(name, set()).update(read)
    while more := {name for name, used in uses.items() if name not in other and used & other}:
        other |= more
    return Names(found, frozenset(other))


def _is_guard(part: ast.stmt) -> TypeGuard[ast.If]:
    """Whether a statement is `if __name__ == "__main__":`, or another `if` that tests `__name__`."""
    return isinstance(part, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(part.test)
    )


def _bound(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yields the names that statements of a module bind, without those within functions."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif not isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            yield from _bound(ast.iter_child_nodes(node))


def _changed(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yields the names of what statements change in place, by items and attributes that they set, or may change.

    That is by calls of a method whose result is not used, unless it writes to a log.
    """
    for node in nodes:
        for part in ast.walk(node):
            value: ast.AST = part
            if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
                value = part.value.func
                if not isinstance(value, ast.Attribute) or value.attr in LOGGING:
                    continue
            elif not isinstance(part, ast.Attribute | ast.Subscript) or isinstance(part.ctx, ast.Load):
                continue
            while isinstance(value, ast.Attribute | ast.Subscript):
                value = value.value
            if isinstance(value, ast.Name):
                yield value.id


def _symbols(table: symtable.SymbolTable) -> Iterator[symtable.Symbol]:
    """Yields the symbols of a scope and of all scopes in it."""
    yield from table.get_symbols()
    for child in table.get_children():
        yield from _symbols(child)
