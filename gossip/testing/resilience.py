"""Searches for the attack of f attackers that has the largest effect on a rule.

A rule F is (f, kappa)-robust if |F - m|^2 <= kappa * mean of |x_i - m|^2 for any n - f honest
updates x_i with mean m, and any f other updates (Allouah et al. 2023, arXiv:2302.01772). Here the
honest updates are clouds of several shapes. The other updates are those of several attacks, with a
line search for the strength of each attack. The result is a lower bound of kappa. If it is above
the declared bound, the declaration is wrong. No rule has a kappa below f / (n - 2f), as the cloud
``two points`` shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from .crowds import shuffled

Aggregate: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Function that returns the aggregate ``(d,)``. Its arguments are all updates ``(n, d)`` and, as
trusted data, the honest updates ``(n - attackers, d)``. All are float64."""
Lies: TypeAlias = Callable[[float], Tensor]
AWAY = 1e3  # Distance of one cloud from zero, in standard deviations of a coordinate.
FAR = 1e6  # Distance of attackers that try to break a rule, in spreads of the honest updates.
# Distance of the aggregate from the honest mean above which a rule is broken, in spreads of the
# honest updates.
CARRIED = 1e3
WEAKEST, STRONGEST = 0.1, 1e4  # range of strengths to try in addition to FAR, in spreads


@dataclass(frozen=True, slots=True)
class Resilience:
    """Measurements of a rule with n updates, of which f are Byzantine.

    Attributes:
        kappa: Largest ratio that was found; a lower bound of the rule's kappa.
        found_by: Cloud, attack and strength that led to ``kappa``.
        breaks_at: Smallest number of Byzantine updates that broke the rule when it was called with
            f; None if not even n - 1 broke it.
    """

    n: int
    f: int
    kappa: float
    found_by: str
    breaks_at: int | None


def kappa_bounds(name: str, n: int, f: int) -> float | None:
    """Return the proven bound of kappa for a built-in rule, with or without ``nnm``
    (nearest-neighbour mixing) before it. Return None if no bound is known."""
    if n <= 2 * f:
        return None
    ratio = f / (n - 2 * f)
    bounds = {
        "median": 4 * (1 + ratio) ** 2,
        "trimmed_mean": 6 * ratio * (1 + ratio),
        "krum": 6 * (1 + ratio),
        "geometric_median": 4 * (1 + ratio) ** 2,
    }
    first, _, rest = name.partition("+")
    if first == "nnm" and rest:
        after = kappa_bounds(rest, n, f)
        return None if after is None else 8 * f / (n - f) * (after + 1)
    return bounds.get(name)


def measure(
    aggregate: Aggregate,
    n: int,
    f: int,
    *,
    d: int = 16,
    seed: int = 0,
    strengths: int = 9,
    beside_length: bool = False,
) -> Resilience:
    """Search for the attack with the largest effect on a rule.

    Args:
        aggregate: The rule; f is bound.
        n, f: Number of updates, and number of Byzantine updates among them.
        d: Number of coordinates.
        seed: Seed of the clouds.
        strengths: Number of strengths to try for each attack, evenly spaced on a logarithmic scale.
            About as many further strengths are tried around the best strength.
        beside_length: Whether the ratio is to |m|^2 if that is larger than the mean of |x_i - m|^2.
    """
    generator = torch.Generator().manual_seed(seed)
    worst, found_by = 0.0, "nothing"
    for cloud, honest in clouds(n, f, d, generator):
        beside = _Ratio(aggregate, honest, generator, beside_length)
        for attack, lies in attacks(honest, f, generator):
            kappa, strength = strongest(beside.of(lies), strengths)
            if kappa > worst:
                worst, found_by = kappa, f"{cloud}, {attack} at {strength:.3g} spreads"
    return Resilience(n, f, worst, found_by, breaks_at(aggregate, n, d, seed))


def clouds(n: int, f: int, d: int, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """Yield clouds: the name, and the honest updates ``(n - f, d)`` in float64."""
    count = n - f

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    direction = noise(d)
    yield "isotropic", direction + noise(count, d)
    widths = torch.ones(d, dtype=torch.float64)
    widths[0] = 30.0
    yield "anisotropic", direction + widths * noise(count, d)
    # Far from zero, the lengths of updates hardly differ, so a rule that compares lengths may not
    # detect attackers.
    yield (
        "heavy tails, far from zero",
        AWAY * direction
        + noise(count, d) / noise(count, 2).square().mean(dim=1, keepdim=True).sqrt(),
    )
    if count >= 3:
        sides = torch.where(torch.arange(count) % 2 == 0, 3.0, -3.0).to(torch.float64)
        yield "two clusters", direction + sides[:, None] * noise(d) + 0.1 * noise(count, d)
    if f > 0 and count > f:
        points = torch.zeros(count, d, dtype=torch.float64)
        points[:f, 0] = 1.0
        yield "two points", points


def attacks(honest: Tensor, f: int, generator: torch.Generator) -> Iterator[tuple[str, Lies]]:
    """Yield attacks: the name, and the function that returns the Byzantine updates ``(f, d)`` for a
    strength. The unit of the strength is the spread of the honest updates."""
    if f == 0:
        yield "none", _copies(honest[0], 0)
        return
    mean = honest.mean(dim=0)
    around = honest - mean
    spread = float(around.square().sum(dim=1).mean().sqrt())
    lengths = around.norm(dim=1)
    principal = torch.linalg.svd(around, full_matrices=False).Vh[0]
    aims = {
        "against the mean": -mean,
        "along the deviation": -around.std(dim=0, correction=0),
        "along the widest axis": principal,
        "towards the farthest": around[int(lengths.argmax())],
        "away from the farthest": -around[int(lengths.argmax())],
        "anywhere": torch.randn(mean.shape, generator=generator, dtype=torch.float64),
    }
    for name, aim in aims.items():
        length = float(aim.norm())
        if length > 0:
            step = aim * (spread / length)
            yield f"all {name}", _together(mean, step, f)
            if f > 1 and name in ("against the mean", "anywhere"):
                yield f"an anchor {name}", _anchored(mean, step, f, len(honest))
    each = torch.randn(f, len(mean), generator=generator, dtype=torch.float64)
    each *= spread / each.norm(dim=1, keepdim=True)
    yield "each another way", lambda strength: mean + strength * each
    yield "copies of the nearest", _copies(honest[int(lengths.argmin())], f)
    yield "copies of the farthest", _copies(honest[int(lengths.argmax())], f)


def _together(mean: Tensor, step: Tensor, f: int) -> Lies:
    return lambda strength: (mean + strength * step).repeat(f, 1)


def _anchored(mean: Tensor, step: Tensor, f: int, honest: int) -> Lies:
    """Return an attack with one attacker far away and the other attackers at the resulting mean."""
    return lambda strength: torch.cat(
        [(mean + strength * (honest + 1) * step)[None], (mean + strength * step).repeat(f - 1, 1)]
    )


def _copies(row: Tensor, f: int) -> Lies:
    return lambda strength: row.repeat(f, 1)


def breaks_at(aggregate: Aggregate, n: int, d: int, seed: int) -> int | None:
    """Return the smallest number of attackers that break the rule, if all attackers are at one
    distant point. Return None if not even n - 1 attackers break it."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, d, generator=generator, dtype=torch.float64)
    direction = torch.randn(d, generator=generator, dtype=torch.float64)
    for attackers in range(1, n):
        honest = rows[attackers:]
        mean = honest.mean(dim=0)
        spread = float(rows.square().sum(dim=1).mean().sqrt())
        lies = (mean + FAR * spread / float(direction.norm()) * direction).repeat(attackers, 1)
        if (
            float((aggregate(shuffled(lies, honest, generator)[0], honest) - mean).norm())
            > CARRIED * spread
        ):
            return attackers
    return None


class _Ratio:
    """Ratio of |F - m|^2 to the mean of |x_i - m|^2 under an attack. With ``beside_length`` the
    ratio is to |m|^2 if that is larger. The order of the rows changes in each call."""

    def __init__(
        self, aggregate: Aggregate, honest: Tensor, generator: torch.Generator, beside_length: bool
    ) -> None:
        self.aggregate, self.honest, self.generator = aggregate, honest, generator
        self.mean = honest.mean(dim=0)
        spread, length = (
            float((honest - self.mean).square().sum(dim=1).mean()),
            float(self.mean.square().sum()),
        )
        self.unit = max(spread, length) if beside_length else spread

    def of(self, lies: Lies) -> Callable[[float], float]:
        """Return the ratio as a function of the strength."""
        return lambda strength: self(lies(strength))

    def __call__(self, lies: Tensor) -> float:
        rows, _ = shuffled(lies, self.honest, self.generator)
        off = float((self.aggregate(rows, self.honest) - self.mean).square().sum())
        return off / self.unit if math.isfinite(off) else math.inf


def strongest(ratio: Callable[[float], float], strengths: int) -> tuple[float, float]:
    """Return the largest value of ``ratio`` that is found, and the strength at which it is found.
    The search tries a grid of strengths, and then finer steps around the best strength."""
    width = (STRONGEST / WEAKEST) ** (1 / (strengths - 1))
    best = max(
        (ratio(strength), strength)
        for strength in (*(WEAKEST * width**step for step in range(strengths)), FAR)
    )
    for _ in range(strengths // 2):
        width = math.sqrt(width)
        best = max(
            [best, *((ratio(best[1] * factor), best[1] * factor) for factor in (1 / width, width))]
        )
    return best
