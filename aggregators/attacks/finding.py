"""Loads attacks by name: built-in attacks, and users' functions in a file or a module.

    my_attacks.py:mine          A function in a file, relative to the working directory.
    package.module:mine         A function in an importable module.

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
"""Parameters that a user's function may have after the first one; the key is the shape."""


def kind_of(name: str) -> AttackKind:
    """Return a built-in attack, or a user's attack at ``PLACE:FUNCTION``; hyphens and underscores
    in a name are equivalent. Raises: UnknownName: There is no such attack. ConfigError: It is an
    attack on data, or cannot be loaded."""
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
    """Return the path or module of a user's attack; empty for a built-in attack."""
    return name.rpartition(":")[0]


def load(name: str) -> AttackKind:
    """Return the attack at ``PLACE:FUNCTION``.

    Raises:
        UnknownName: The file or module has no such function.
        ConfigError: The function cannot be loaded, or is not an attack.
    """
    place, _, function = name.rpartition(":")
    found = load_named(place, function, "attack", inspect.isfunction, anew=True)
    if not inspect.isfunction(found):
        raise ConfigError(
            f"{function} of {place} is not an attack but {type(found).__name__}",
            "an attack is a function (update, ...) -> update or (crowd, ...) -> (f, d)",
        )
    kind: AttackKind | None = vars(found).get("attack_kind")
    # A further decorator may have wrapped the attack and copied this attribute. The wrapper has to
    # be called.
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
