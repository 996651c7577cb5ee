"""Packages that import a submodule only when one of its names is first used.

The ``if TYPE_CHECKING:`` block of the package lists its names, for type checkers and for
:func:`lazy`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.abc import InspectLoader
from importlib.util import find_spec
from typing import Any


@cache
def _homes(package: str) -> dict[str, str]:
    """Return the submodule that defines each public name of a package; the key is the name."""
    spec = find_spec(package)
    loader = spec.loader if spec else None
    source = loader.get_source(package) if isinstance(loader, InspectLoader) else None
    if source is None:
        raise ImportError(f"{package} needs its source file, which lists its names")
    return {
        alias.name: statement.module or alias.name
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


def lazy(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package with its names in an ``if
    TYPE_CHECKING:`` block."""

    def load(name: str) -> Any:
        if (home := _homes(package).get(name)) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f".{home}", package)
        return module if name == home else getattr(module, name)

    return load, lambda: sorted(_homes(package))
