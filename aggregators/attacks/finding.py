"""Attacks by name: built-in ones, and users' functions in a file or a module.

    my_attacks.py:mine          a function in a file, relative to the working directory
    package.module:mine         a function in an importable module

A function with the decorator ``attack`` has the declared shape and strength. An undecorated
function has the shape ``together`` if its first parameter is called ``crowd``, and ``alone``
otherwise. Its strength is the default of its parameter ``strength``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from gossip.errors import ConfigError, UnknownName
from gossip.specs import load_named

from .kinds import DATA_ATTACKS, KINDS, AttackKind, names

KNOWN = {
    "alone": ("strength", "generator", "direction", "round_id", "somebody_locked"),
    "together": ("strength",),
}
"""Arguments that a function may name after its first parameter."""


def kind_of(name: str) -> AttackKind:
    """Return the attack with a name, or in a user's file; hyphens and underscores in a name are
    equivalent. Raises: UnknownName: There is none. ConfigError: It is an attack on data, or cannot
    be loaded."""
    if ":" in name:
        return load(name)
    plain = name.replace("-", "_")
    if plain in DATA_ATTACKS:
        raise ConfigError(
            f"{plain} changes the labels that a trainer reads, not the update it sends",
            "use flip_labels(y, classes)",
        )
    if plain not in KINDS:
        raise UnknownName("attack", name, (*names(), *DATA_ATTACKS))
    return KINDS[plain]


def place_of(name: str) -> str:
    """Return the path or module of a user's attack; empty for a built-in one."""
    return name.rpartition(":")[0]


def load(name: str) -> AttackKind:
    """Return the attack at ``PLACE:FUNCTION``.

    Raises:
        UnknownName: The file or module has no such function.
        ConfigError: It cannot be loaded, or the function is not an attack.
    """
    place, _, function = name.rpartition(":")
    found = load_named(place, function, "attack", inspect.isfunction, anew=True)
    if not inspect.isfunction(found):
        raise ConfigError(
            f"{function} of {place} is not an attack but {type(found).__name__}",
            "an attack is a function (update, ...) -> update or (crowd, ...) -> (f, d)",
        )
    kind: AttackKind | None = vars(found).get("attack_kind")
    # Another decorator may wrap the attack, and copy this attribute.
    return _plain(found, place) if kind is None else replace(kind, function=found)


def _plain(function: Callable[..., Any], place: str) -> AttackKind:
    """Make an attack from a function without the decorator."""
    first, *others = inspect.signature(function).parameters.values() or (None,)
    if first is None:
        raise ConfigError(
            f"{function.__name__} of {place} takes no update",
            "an attack is a function (update, ...) -> update or (crowd, ...) -> (f, d)",
        )
    shape: Literal["alone", "together"] = "together" if first.name == "crowd" else "alone"
    for parameter in others:
        if parameter.name not in KNOWN[shape] and parameter.default is parameter.empty:
            raise ConfigError(
                f"{function.__name__} of {place} needs {parameter.name}, which is not available",
                f"it may use {', '.join(KNOWN[shape])}",
            )
    wants = {parameter.name: parameter.default for parameter in others}
    strength = wants.get("strength", inspect.Parameter.empty)
    return AttackKind(
        function.__name__,
        function,
        shape,
        None if strength is inspect.Parameter.empty else strength,
        "strength" if "strength" in wants else "",
        frozenset([first.name, *wants]),
    )
