"""Converts a function in a notebook to a script.

Nothing is pickled. The script consists of the source code of the function and of the definitions in
the notebook that the function uses. The script stays in the run's folder, where users can read it
or start it again.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import linecache
import math
import os
import symtable
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from gossip.errors import ConfigError

Code: TypeAlias = Callable[..., Any] | type


def script_of(function: Callable[..., Any], arguments: Sequence[Any]) -> str:
    """Return the script that calls ``function(*arguments)``.

    Args:
        function: Function in a notebook or a script, or in a module that can be imported.
        arguments: Numbers, text, None, and lists, tuples, sets and dicts of them.
    Raises: ConfigError: The source code of ``function`` cannot be found, or ``function`` uses an
        object of the notebook that source code cannot recreate, such as a tensor or a model.
    """
    if not isinstance(function, types.FunctionType):
        raise ConfigError(
            f"spawn received a {type(function).__name__}, not a function",
            "gossip.spawn(train, peers=4), where train is defined by def",
        )
    given = [_literal(value) for value in arguments]
    if None in given:
        value = arguments[given.index(None)]
        raise ConfigError(*_cannot_be_written(f"argument {given.index(None) + 1}", value))
    if function.__name__ == "<lambda>":
        raise ConfigError(
            "spawn received a lambda, whose source cannot be found",
            "def train(): ...",
        )
    lines = _Lines()
    lines.add(function.__name__, function)
    called = f"{function.__name__}({', '.join(map(str, given))})"
    return "\n".join([*_found_where(sys.path), *lines.all, "", "", called, ""])


def _found_where(path: Sequence[str]) -> list[str]:
    """Return lines of code that add the folders of ``path``, and the working directory, to the
    script's ``sys.path``."""
    folders = [os.getcwd(), *(os.path.abspath(folder) for folder in path if folder)]
    return [
        "import sys",
        "",
        f"for folder in {folders!r}:",
        "    if folder not in sys.path:",
        "        sys.path.append(folder)",
        "",
    ]


class _Lines:
    """Definitions of the script. Each name is defined once, before it is used."""

    def __init__(self) -> None:
        self._imports: list[str] = []
        self._written: list[str] = []
        self._names: dict[str, Any] = {}

    @property
    def all(self) -> list[str]:
        return [*sorted(self._imports), "", *self._written]

    def add(self, name: str, value: Any, user: str = "") -> None:
        """Add a definition that binds ``name`` to ``value``, its value in the notebook. ``user``:
        name of the definition that uses ``name``."""
        if name in self._names:
            if self._names[name] is not value:
                raise ConfigError(
                    f"{name} has two meanings in the spawned code", "rename one of them"
                )
            return
        self._names[name] = value
        if (line := _imported(name, value)) is not None:
            self._imports.append(line)
        elif (text := _literal(value)) is not None:
            self._written.append(f"{name} = {text}")
        elif _is_code(value):
            self._define(name, value)
        else:
            raise ConfigError(*_cannot_be_written(f"{user} uses {name}, which", value))

    def _define(self, name: str, value: Code) -> None:
        source = _source(value)
        for used, what in _uses(value, source):
            self.add(used, what, name)
        self._written += ["", "", source.rstrip()]
        if value.__name__ != name:
            self._written.append(f"{name} = {value.__name__}")


def _is_code(value: Any) -> bool:
    return isinstance(value, types.FunctionType | type)


def _imported(name: str, value: Any) -> str | None:
    """Return the import statement that binds the name to this value, or None."""
    if isinstance(value, types.ModuleType):
        whole = value.__name__
        return f"import {whole}" if whole == name else f"import {whole} as {name}"
    module, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(own, str) or module == "__main__":
        return None
    if "." in own or getattr(importlib.import_module(module), own, None) is not value:
        return None
    return f"from {module} import {own}" + ("" if own == name else f" as {name}")


def _literal(value: Any) -> str | None:
    """Return source text that evaluates to an equal value, or None."""
    if type(value) is float and not math.isfinite(value):
        return f"float({str(value)!r})"
    text = repr(value)
    try:
        read = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return text if type(read) is type(value) else None


def _source(value: Code) -> str:
    try:
        found = _class_source(value) if isinstance(value, type) else inspect.getsource(value)
    except (OSError, TypeError):
        found = None
    if not found:
        raise ConfigError(
            f"the source of {value.__name__} cannot be found",
            "define it in a cell of the notebook, or in a file that can be imported",
        )
    return textwrap.dedent(found)


def _class_source(value: type) -> str | None:
    """Return the source of a class in a notebook, or None. A notebook is a module without a file,
    so the source is found through a method of the class."""
    for method in filter(inspect.isfunction, vars(value).values()):
        lines = linecache.getlines(method.__code__.co_filename)
        for node in ast.walk(ast.parse("".join(lines))):
            if isinstance(node, ast.ClassDef) and node.name == value.__name__:
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                return "".join(lines[first - 1 : node.end_lineno])
    return None


def _uses(value: Code, source: str) -> Iterator[tuple[str, Any]]:
    """Yield each name that a function or a class uses but does not define, with its value."""
    outside = _outside(value)
    for name in sorted(_global_names(symtable.symtable(source, value.__name__, "exec"))):
        if name in outside and name != value.__name__:
            yield name, outside[name]


def _global_names(table: symtable.SymbolTable) -> Iterator[str]:
    for symbol in table.get_symbols():
        free = symbol.is_global() or (table.get_type() == "module" and not symbol.is_assigned())
        if symbol.is_referenced() and free:
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _global_names(inner)


def _outside(value: Code) -> Mapping[str, Any]:
    """Return the values of the names that the code can use: globals of the notebook, and variables
    of the enclosing function."""
    members = [value] if isinstance(value, types.FunctionType) else [*vars(value).values()]
    found = dict(vars(sys.modules[value.__module__]))
    for function in filter(inspect.isfunction, members):
        found.update(function.__globals__, **inspect.getclosurevars(function).nonlocals)
    return found


def _cannot_be_written(what: str, value: Any) -> tuple[str, str]:
    return (
        f"{what} is a {type(value).__name__}: a peer is a separate process, and cannot use it",
        "make it within the function, or save it to a file and read it there",
    )
