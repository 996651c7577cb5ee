"""Kinds of attacks: each is a function with a name, the meaning of its strength, and the knowledge
that it needs.

Listing the names does not import torch, because command lines check them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gossip.aggregators.numbers import FINITE, Range
from gossip.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

DATA_ATTACKS = ("label_flip",)
"""Attacks that change the training data, not the messages."""

Shape = Literal["alone", "together", "apart", "data"]
Aggregator: TypeAlias = "Callable[[Tensor], Tensor]"
"""``(n, d) -> (d,)``: a rule with its f bound."""
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class AttackKind:
    """An attack.

    Attributes:
        name: Name of the attack.
        function: Function that returns the updates to send.
        shape: Signature of the function. ``alone``: ``(update, ...) -> update``, from one
            attacker's honest update. ``together``: ``(crowd, ...) -> (f, d)``, from all honest
            updates. ``apart``: ``(update, ...) -> update``, for one receiver. ``data``: the attack
            changes training data.
        strength: Default strength. None if the attack has none, or derives it from n and f.
        meaning: Meaning of the strength, with its unit. Empty if the attack has no strength.
        wants: Names of the function's parameters.
        refusal, tries, allowed, idle: As for ``attack``.
    """

    name: str
    function: Callable[..., Any]
    shape: Shape
    strength: float | None
    meaning: str
    wants: frozenset[str]
    refusal: str = ""
    tries: bool = False
    allowed: Range = FINITE
    idle: Callable[[int, int], bool] = lambda n, f: False

    @property
    def lonely(self) -> bool:
        """Whether a single attacker can compute the attack from its own observations. Most attacks
        ``together`` can use an estimate of the honest updates."""
        return not self.refusal

    @property
    def does(self) -> str:
        """Description of the attack: the first paragraph of its docstring."""
        return inspect.getdoc(self.function).partition("\n\n")[0]  # type: ignore[union-attr]


KINDS: dict[str, AttackKind] = {}


ROUNDS: Range = (
    "a whole number of rounds, at least 1",
    lambda value: math.isfinite(value) and value >= 1 and value == int(value),
)


def attack(
    *,
    strength: float | None = None,
    meaning: str = "",
    shape: Shape = "alone",
    refusal: str = "",
    tries: bool = False,
    allowed: Range = FINITE,
    idle: Callable[[int, int], bool] = lambda n, f: False,
) -> Decorator:
    """Declare a function as an attack. Only gossip's own attacks are registered by name, because
    two files of users may define the same name.

    The shape determines the first parameter of the function, and which parameters may follow:

    - ``alone``: ``(update, *, ...) -> update``, ``(d,)`` to ``(d,)``, for one Byzantine peer
      without knowledge of other updates. Parameters: ``strength``, ``generator``, ``past``,
      ``direction``, ``round_id``, ``somebody_locked``.
    - ``together``: ``(crowd, *, ...) -> (f, d)``, for all Byzantine peers, with knowledge of the
      honest updates. Parameter: ``strength``.
    - ``apart``: ``(update, *, ...) -> update``, for one Byzantine peer in a gossip round, with a
      different update for each receiver. Parameters: ``strength``, ``receiver``, ``theirs``,
      ``others``, ``neighbours``, ``attackers``.

    Raises: ConfigError: A built-in attack has that name.

    Args:
        strength: Default strength. None if the attack has none, or derives it from n and f.
        meaning: Meaning of the strength, with its unit; by default "strength" if there is one.
        shape: ``alone``, ``together`` or ``apart``.
        refusal: Reason why a single peer cannot carry out the attack in a real run, and an
            alternative. Empty if it can.
        tries: Whether the attack evaluates the rule.
        allowed: Allowed range of the strength.
        idle: ``(n, f) -> bool``, whether the attack has no effect if f of n peers carry it out at
            the default strength.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        if name in KINDS:
            raise ConfigError(f"there is an attack {name!r} already", "rename yours")
        kind = AttackKind(
            name,
            function,
            shape,
            strength,
            meaning or ("strength" if strength is not None else ""),
            frozenset(inspect.signature(function).parameters),
            refusal,
            tries,
            allowed,
            idle,
        )
        vars(function)["attack_kind"] = kind
        if function.__module__.startswith("gossip."):
            KINDS[name] = kind
        return function

    return decorate


def names(*, lonely: bool = False) -> tuple[str, ...]:
    """Return the names of the attacks on updates, ascending. ``DATA_ATTACKS`` are not included.

    Args:
        lonely: Return only attacks that one peer can carry out alone in a real run.
    """
    return tuple(sorted(name for name, kind in KINDS.items() if kind.lonely or not lonely))


def checked_strength(kind: AttackKind, strength: float | None) -> float | None:
    """Check the strength and return it, or return the default strength. Raises: ConfigError: The
    strength is out of range, or the attack has no strength."""
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
    """Train on wrong labels, ``classes - 1 - label``, and send the resulting update.

    ``labels`` is an int, array or tensor.

    Source: Xie, Koyejo, Gupta 2019, "Zeno", arXiv:1805.10032 (9 - label, for ten classes).
    """
    return classes - 1 - labels


LABEL_FLIP = AttackKind("label_flip", flip_labels, "data", None, "", frozenset())
