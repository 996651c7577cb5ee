"""Attacks of users: a function in a file or a module, as rules are.

    my_attacks.py:mine          a function in a file, relative to the working directory
    package.module:mine         a function in an importable module

One that is decorated with ``attack`` is what that says. Any other is of the shape ``together`` when
its first parameter is called ``crowd``, and ``alone`` otherwise; its strength is what its parameter
``strength`` has as default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from gossip.errors import ConfigError, UnknownName

from .kinds import KINDS, AttackKind, attack

KNOWN = {
    "alone": ("strength", "generator", "direction", "round_id", "somebody_locked"),
    "together": ("strength",),
}
"""What a function may name behind its first parameter."""


def place_of(name: str) -> str:
    """The path or module that an attack of a user comes from; empty for one with a name only."""
    return name.rpartition(":")[0]


def load(name: str) -> AttackKind:
    """The attack that ``PLACE:FUNCTION`` names.

    Raises:
        UnknownName: The file or module has no such function.
        ConfigError: It cannot be loaded, or the function is no attack.
    """
    from gossip.aggregators.registry import import_module, load_file

    place, _, function = name.rpartition(":")
    by_path = place.endswith(".py") or "/" in place
    module = load_file(place, "an attack") if by_path else import_module(place, function)
    found = getattr(module, function, None)
    if found is None:
        own = [
            other
            for other, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        raise UnknownName(f"attack of {place}", function, own)
    kind = next((kind for kind in KINDS.values() if kind.function is found), None)
    if kind is None:
        if not inspect.isfunction(found):
            raise ConfigError(
                f"{function} of {place} is no attack but {type(found).__name__}",
                "an attack is a function (update, ...) -> update or (crowd, ...) -> (f, d)",
            )
        _declare(found, place)
        kind = KINDS[found.__name__]
    return kind


def _declare(function: Callable[..., Any], place: str) -> None:
    """Makes an attack of a plain function."""
    first, *others = inspect.signature(function).parameters.values() or (None,)
    if first is None:
        raise ConfigError(
            f"{function.__name__} of {place} takes no update",
            "an attack is a function (update, ...) -> update or (crowd, ...) -> (f, d)",
        )
    together = first.name == "crowd"
    known = KNOWN["together" if together else "alone"]
    for parameter in others:
        if parameter.name not in known and parameter.default is parameter.empty:
            raise ConfigError(
                f"{function.__name__} of {place} wants {parameter.name}, which nobody gives it",
                f"it may name {', '.join(known)}",
            )
    strength = next((p.default for p in others if p.name == "strength"), None)
    attack(
        strength=None if strength is inspect.Parameter.empty else strength,
        meaning="strength" if any(p.name == "strength" for p in others) else "",
        shape="together" if together else "alone",
    )(function)
