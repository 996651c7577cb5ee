"""Attacks that evaluate the rule at several strengths and directions, and send the most damaging
vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from .kinds import ROUNDS, attack

if TYPE_CHECKING:
    from torch import Tensor

    from .crowd import OmniscientView

STRENGTHS = tuple(2.0**power for power in range(-4, 8))
REFINEMENTS = 6
searching = partial(
    attack, shape="together", tries=True, meaning="rounds between two searches", allowed=ROUNDS
)
_SECTION = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class AttackOptimum:
    """Most damaging strength of a family of attacks, and the measure of the damage at that
    strength."""

    strength: float
    damage: float


def strongest(
    crowd: OmniscientView,
    lies: Callable[[float], Tensor],
    measure: Callable[[Tensor], float] | None = None,
) -> AttackOptimum:
    """Return the strength at which the attack ``lies(strength)``, ``(f, d)``, has the largest
    ``measure``. By default, this is the distance of the rule's result from the honest mean.

    The search first tries the powers of 2 from 1/16 to 128, because damage is not a smooth function
    of strength: a rule accepts close vectors and drops distant ones. A golden-section search
    follows between the neighbours of the best power. In total, ``len(STRENGTHS) + REFINEMENTS + 1``
    strengths are tried.
    """
    measure = crowd.damage if measure is None else measure

    def tried(strength: float) -> AttackOptimum:
        return AttackOptimum(strength, measure(lies(strength)))

    best = max(map(tried, STRENGTHS), key=_damage)
    low, high = best.strength / 2, best.strength * 2
    left = tried(high - _SECTION * (high - low))
    right = tried(low + _SECTION * (high - low))
    for _ in range(REFINEMENTS - 1):
        best = max(best, left, right, key=_damage)
        if left.damage >= right.damage:
            high, right = right.strength, left
            left = tried(high - _SECTION * (high - low))
        else:
            low, left = left.strength, right
            right = tried(low + _SECTION * (high - low))
    return max(best, left, right, key=_damage)


def _damage(found: AttackOptimum) -> float:
    return found.damage


def directions(crowd: OmniscientView) -> Mapping[str, Tensor]:
    """Return the directions ``(d,)`` in which ``adaptive`` pushes from the honest mean. Except for
    the first, the length of a direction is the typical distance of an honest update from that
    mean."""
    import torch

    from .crowd import unit

    mean, deviation = crowd.mean(), crowd.deviation()
    spread = torch.linalg.vector_norm(deviation)
    aside = torch.randn(len(mean), generator=crowd.direction, dtype=torch.float64).to(mean)
    return {
        "against the mean": -mean,
        "against the deviation": -deviation,
        "with the deviation": deviation,
        "against its sign": -deviation * torch.sign(mean),
        "aside": unit(aside) * spread,
    }


def worst(
    crowd: OmniscientView,
    every: float,
    ways: Mapping[str, Callable[[float], Tensor]],
    measure: Callable[[Tensor], float] | None = None,
) -> Tensor:
    """Return ``(f, d)``: the same vector for each attacker. It is ``ways[name](strength)`` for the
    name and the strength with the largest ``measure`` (see ``strongest``). The search for these is
    repeated after ``every`` rounds."""
    age = crowd.memory.get("age", 0)
    if age % int(every) == 0:
        tried = {
            name: strongest(crowd, lambda t, way=way: crowd.all_alike(way(t)), measure)  # type: ignore[misc]
            for name, way in ways.items()
        }
        crowd.memory["choice"] = max(tried.items(), key=lambda item: item[1].damage)
    crowd.memory["age"] = age + 1
    name, found = crowd.memory["choice"]
    return crowd.all_alike(ways[name](found.strength))


@searching(strength=10.0)
def adaptive(crowd: OmniscientView, *, strength: float) -> Tensor:
    """All attackers send the honest mean plus t times a direction, with the t and the direction
    that move the result of this rule farthest from the honest mean.

    A search evaluates the rule 95 times. Its result is used for ``strength`` rounds.
    Source: the line search of Shejwalkar, Houmansadr 2021, over the directions of ``ipm``,
        ``alie`` and three more.
    """
    mean = crowd.mean()
    ways = {name: (lambda t, way=way: mean + t * way) for name, way in directions(crowd).items()}
    return worst(crowd, strength, ways)


@searching(strength=1.0)
def optimal_alie(crowd: OmniscientView, *, strength: float) -> Tensor:
    """``alie`` with the z that moves the result of this rule farthest from the honest mean. A
    search evaluates the rule 19 times."""
    mean, deviation = crowd.mean(), crowd.deviation()
    return worst(crowd, strength, {"z": lambda z: mean - z * deviation})


@searching(strength=1.0)
def optimal_ipm(crowd: OmniscientView, *, strength: float) -> Tensor:
    """``ipm`` with the epsilon that moves the result of this rule farthest from the honest mean. A
    search evaluates the rule 19 times."""
    mean = crowd.mean()
    return worst(crowd, strength, {"epsilon": lambda epsilon: -epsilon * mean})


@searching(strength=1.0)
def optimal_inner_product(crowd: OmniscientView, *, strength: float) -> Tensor:
    """``alie`` or ``ipm``, with the z or epsilon for which the inner product of this rule's result
    and the honest mean is smallest. A search evaluates the rule 38 times."""
    mean, deviation = crowd.mean(), crowd.deviation()
    ways = {"z": lambda z: mean - z * deviation, "epsilon": lambda epsilon: -epsilon * mean}
    return worst(crowd, strength, ways, crowd.measure_reversal)
