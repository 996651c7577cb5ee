"""Kinds of attacks: each is a function with a name, the meaning of its strength,
and what it must know.

Listing the names does not import torch, because command lines check them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gossip.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

DATA_ATTACKS = ("label_flip",)
"""Attacks that change what the trainer learns from, not what it sends."""

Shape = Literal["alone", "together", "apart", "data"]
Aggregator: TypeAlias = "Callable[[Tensor], Tensor]"
"""``(n, d) -> (d,)``: a rule with its f bound."""
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class AttackKind:
    """An attack.

    Attributes:
        name: By which it is found.
        function: What makes the lie.
        shape: ``alone``: ``(update, ...) -> lie``, of what one liar would have sent. ``together``:
            ``(crowd, ...) -> (f, d)``, of what the honest send. ``apart``:
            ``(update, ...) -> lie``, another for each receiver. ``data``: of what is learnt.
        strength: By default; None when there is nothing to set, or when it follows from n and f.
        meaning: Of the strength, with its unit. Empty: there is nothing to set.
        wants: Names of the function's parameters.
        refusal: Why one liar cannot tell it from what it has seen by itself, and what to do
            instead; empty: it can.
        tries: It tries itself on the rule.
        allowed: What the strength must be, in words, and the test of it.
        idle: Whether it does nothing where f of n lie and no strength is given.
    """

    name: str
    function: Callable[..., Any]
    shape: Shape
    strength: float | None
    meaning: str
    wants: frozenset[str]
    refusal: str = ""
    tries: bool = False
    allowed: tuple[str, Callable[[float], bool]] = ("finite", math.isfinite)
    idle: Callable[[int, int], bool] = lambda n, f: False

    @property
    def lonely(self) -> bool:
        """Whether one liar can tell it from what it has seen by itself. All but a few attacks
        ``together`` can be told from an estimate of the honest updates."""
        return not self.refusal

    @property
    def does(self) -> str:
        """Description of the attack: the first paragraph of its docstring."""
        return inspect.getdoc(self.function).partition("\n\n")[0]  # type: ignore[union-attr]


KINDS: dict[str, AttackKind] = {}


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _not_negative(value: float) -> bool:
    return math.isfinite(value) and value >= 0


def _count(value: float) -> bool:
    return math.isfinite(value) and value >= 1 and value == int(value)


FINITE = ("finite", math.isfinite)
POSITIVE = ("above 0 and finite", _positive)
NOT_NEGATIVE = ("at least 0 and finite", _not_negative)
ROUNDS = ("a whole number of rounds, at least 1", _count)
FRACTION = ("above 0 and at most 1", lambda value: 0 < value <= 1)


def attack(
    *,
    strength: float | None = None,
    meaning: str = "",
    shape: Shape = "alone",
    refusal: str = "",
    tries: bool = False,
    allowed: tuple[str, Callable[[float], bool]] = FINITE,
    idle: Callable[[int, int], bool] = lambda n, f: False,
) -> Decorator:
    """Registers a function as an attack under its name.

    The shape decides what the function gets and which further parameters it may name:

    - ``alone``: ``(update, *, ...) -> update``, ``(d,)`` to ``(d,)``. One Byzantine peer, without
      knowledge of the others. ``strength``, ``generator``, ``past``, ``direction``, ``round_id``,
      ``somebody_locked``.
    - ``together``: ``(crowd, *, ...) -> (f, d)``. All Byzantine peers at once, with knowledge of
      the honest updates. ``strength``.
    - ``apart``: ``(update, *, ...) -> update``. One Byzantine peer of a gossip round, with another
      update for each receiver. ``strength``, ``receiver``, ``theirs``, ``others``, ``neighbours``,
      ``attackers``.

    Raises: ConfigError: Another attack has that name.

    Args:
        strength: Default strength. None when there is nothing to set, or when it follows from n
            and f.
        meaning: What the strength is, with its unit; "strength" where there is one and that is not
            said.
        shape: ``alone``, ``together`` or ``apart``.
        refusal: Why a single peer cannot send it in a real run, and what to use instead. Empty
            when it can.
        tries: Whether it searches its strength by trying the rule.
        allowed: The strengths that are allowed, in words and as a test.
        idle: ``(n, f) -> bool``, whether it does nothing with f Byzantine peers of n at its default
            strength.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        known = KINDS.get(name)
        if known is not None and known.function.__module__ != function.__module__:
            raise ConfigError(f"there is an attack {name!r} already", "give yours another name")
        wants = frozenset(inspect.signature(function).parameters)
        told = meaning or ("strength" if strength is not None else "")
        KINDS[name] = AttackKind(
            name, function, shape, strength, told, wants, refusal, tries, allowed, idle
        )
        return function

    return decorate


def names(*, lonely: bool = False) -> tuple[str, ...]:
    """The attacks on updates that ``make`` knows, ascending. ``DATA_ATTACKS`` are not among them.

    Args:
        lonely: Only those that one peer can carry out by itself, in a real run.
    """
    return tuple(sorted(name for name, kind in KINDS.items() if kind.lonely or not lonely))


def checked_strength(kind: AttackKind, strength: float | None) -> float | None:
    """The strength, or the default one. Raises: ConfigError: It is out of range,
    or there is nothing to set."""
    if strength is None:
        return kind.strength
    if not kind.meaning:
        raise ConfigError(
            f"{kind.name} has no strength to set, got {strength:g}", f"leave out *{strength:g}"
        )
    words, fine = kind.allowed
    if not fine(strength):
        raise ConfigError(
            f"{kind.name}*{strength:g}: the strength is the {kind.meaning} and must be {words}"
        )
    return strength


def flip_labels(labels: Any, classes: int) -> Any:
    """Trains on wrong labels, ``classes - 1 - label``, and sends the resulting update.

    For an int, array or tensor.

    Source: Xie, Koyejo, Gupta 2019, "Zeno", arXiv:1805.10032 (9 - label, for ten classes).
    """
    return classes - 1 - labels


LABEL_FLIP = AttackKind("label_flip", flip_labels, "data", None, "", frozenset())
