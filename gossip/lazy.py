"""Faces of packages: an ``__init__.py`` says what others may take, and nothing is imported before
somebody takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(
    package: str, homes: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package.

    Args:
        homes: Module or package below ``package`` -> names that it has.
            Its own name stands for itself.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def take(name: str) -> Any:
        if (home := home_of.get(name)) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f".{home}", package)
        return module if name == home else getattr(module, name)

    return take, lambda: sorted(home_of)
