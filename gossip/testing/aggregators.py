"""Conformance kit for aggregation rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossip.aggregators import BoundRule, PreAggregation, Rule
from gossip.errors import ConfigError

from .crowds import (
    LEARNING_RATE,
    SyntheticUpdates,
    attackers,
    bound_rule,
    crowd,
    in_units,
    needs_help,
    shuffled,
)
from .lying import SPREADS, check_attackers, check_centered
from .promises import (
    check_agreement,
    check_called,
    check_device,
    check_dtypes,
    check_equivariance,
    check_memory,
    check_order,
    check_repeatable,
    check_smallest,
    check_untouched,
    check_verdict,
    check_weights,
)
from .resilience import clouds, kappa_bounds, measure
from .shards import check_long_vectors, check_shards

Oracle: TypeAlias = Callable[[NDArray[np.float64], int], NDArray[np.float64]]
# Bound of kappa for a rule without a proven bound: the square of ``lying.SPREADS``.
KAPPA_UNDECLARED = 16.0
ROUNDING = 1e-6  # maximum relative difference of a rule from its oracle in float64


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """Measurements of a rule that meets its requirements. A field is None if it was not measured.

    Attributes:
        rule: Name of the rule.
        n, f: Number of updates in a test case, and number of Byzantine updates among them.
        kappa: Largest ratio that was found of |F - m|^2 to the mean of |x_i - m|^2. F is the
            aggregate, and m the mean of the honest updates x_i.
        beside_length: Whether the ratio is to |m|^2 if that is larger. This is so for a rule
            declared ``robust="bounded"``.
        kappa_bound: Maximum ``kappa`` that is allowed.
        found_by: Honest updates, attack and strength that led to ``kappa``.
        breaks_at: Smallest number of Byzantine peers that break the rule when it is called with f;
            None if not even n - 1 break it.
        held_to: Bound that was checked instead of kappa; "" if there is none.
    """

    rule: str
    n: int
    f: int
    kappa: float | None = None
    kappa_bound: float | None = None
    found_by: str = ""
    breaks_at: int | None = None
    held_to: str = ""
    beside_length: bool = False

    def __str__(self) -> str:
        head = f"{self.rule}, {self.n} updates, f = {self.f}"
        if self.kappa is None and self.held_to:
            return f"{head}: conforms; Byzantine peers moved it no farther than {self.held_to}"
        if self.kappa is None:
            return f"{head}: conforms; it declares no bound on the effect of Byzantine peers"
        broken = "never" if self.breaks_at is None else f"by {self.breaks_at} Byzantine peers"
        of = ", of the honest spread or the length of their mean" if self.beside_length else ""
        return (
            f"{head}: kappa {self.kappa:.3g} of at most {self.kappa_bound:.3g}{of} "
            f"({self.found_by}); broken {broken}"
        )


def check_aggregator(
    candidate: Rule | BoundRule | PreAggregation | Callable[..., Any] | str,
    *,
    n: int = 11,
    f: int = 2,
    d: int = 64,
    seed: int = 0,
    oracle: Oracle | None = None,
    kappa: float | None = None,
    strengths: int = 9,
) -> ConformanceReport:
    """Check a rule against all requirements of the runtime.

    - The aggregate has the shape, dtype and device of an update. The updates are not changed.
    - ``weights`` and ``outlyingness`` are as ``Verdict`` describes them.
    - Two verdicts on the same updates are bit-identical. No global random state is read or changed.
    - A call and ``explain`` return the same aggregate. If it is a mean of the updates, its weights
      are those of the verdict.
    - The orders of updates and coordinates, and the numbers of chunks and shards, do not matter.
    - The aggregate of equal updates equals them. The aggregate of finite updates is finite.
    - If the rule declares it, shifting or scaling the updates shifts or scales the aggregate.
    - All requirements also hold for other n and f, and in later rounds.
    - f Byzantine updates of any size, at any position, do not move the aggregate without bound and
      do not escape detection. No tested attack moves the aggregate farther than ``kappa`` allows.
      Rules declared ``robust=False`` or ``discerning=False`` are exempt.

    For a rule declared "bounded", kappa is in units of the honest spread or of the length of the
    honest mean, whichever is larger. In the search, a rule that needs trusted data receives the
    honest mean as the judge's gradient, a quadratic loss around the honest mean, and an honest
    update as the local update. If an option is fixed in units of the updates, there is no search
    for kappa, because kappa would depend only on the spread of the honest updates.

    Args:
        candidate: A rule with or without options, a plain function ``(updates, *, f)``, a spec for
            ``load``, or a pre-aggregation. A pre-aggregation is checked with ``trimmed_mean`` after
            it.
        n: Number of updates in a test case.
        f: Number of Byzantine peers to tolerate.
        d: Number of coordinates.
        seed: Seed of the test cases.
        oracle: Plain and slow implementation of the rule. ``oracle(updates, f)`` maps ``(n, d)``
            float64 to ``(d,)``.
        kappa: Bound to check: the rule must be (f, kappa)-robust. The default is the proven bound
            of a built-in rule, or 16.
        strengths: Number of strengths to try for each attack, at least 2.
    Returns: The measurements.
    Raises: AssertionError: The rule breaks a requirement. The message has the numbers.
    """
    if strengths < 2:
        raise ConfigError(
            f"check_aggregator tries at least 2 strengths of each attack, not {strengths}"
        )
    bound = bound_rule(candidate)
    need = bound.at_least(f)
    if n < need:
        raise AssertionError(
            f"{bound.name} needs {need} updates for f={f}: call check_aggregator with a larger n "
            f"than {n}"
        )
    generator = torch.Generator().manual_seed(seed)
    case = crowd(n, d, f, generator)
    check_untouched(bound, case)  # first, because the other checks use the same updates
    check_verdict(bound, case)
    check_repeatable(bound, case)
    check_memory(bound, case)
    check_called(bound, case)
    check_weights(bound, case)
    check_dtypes(bound, case)
    if torch.cuda.is_available():
        check_device(bound, case, "cuda")
    if bound.rule.symmetric:
        check_order(bound, case, generator)
    check_agreement(bound, case)
    check_equivariance(bound, case, generator)
    check_smallest(bound, f, generator)
    for name, lies in attackers(case, generator):
        check_attackers(bound, case, name, lies, generator)
    check_rounds(bound, case, generator)
    if "center" in bound.rule.parameters:
        check_centered(bound, d, f, generator)
    check_shards(bound, case)
    check_long_vectors(bound, n, f, generator)
    if oracle is not None:
        check_oracle(bound, n, f, d, oracle, generator)
    return check_resilience(bound, n, f, seed, kappa, strengths)


def check_rounds(bound: BoundRule, case: SyntheticUpdates, generator: torch.Generator) -> None:
    """Check the requirements in later rounds, which have a previous aggregate and other n and f."""
    d, verdict = case.updates.shape[1], case.judge(bound)
    for round_id, (n, f) in enumerate(_other_counts(bound, len(case.updates), case.f), 1):
        later = replace(
            crowd(n, d, f, generator),
            round_id=round_id,
            previous=verdict.aggregate,
        )
        try:
            check_untouched(bound, later)
            check_verdict(bound, later)
            check_repeatable(bound, later)
            check_memory(bound, later)
            check_called(bound, later)
            if bound.rule.symmetric:
                check_order(bound, later, generator)
            check_agreement(bound, later)
            for name, lies in attackers(later, generator):
                check_attackers(bound, later, name, lies, generator)
        except AssertionError as error:
            raise AssertionError(
                f"{error} (round {round_id} of a run, {n} updates, f={f})"
            ) from None
        verdict = later.judge(bound)


def _other_counts(bound: BoundRule, n: int, f: int) -> Iterator[tuple[int, int]]:
    """Yield pairs (n, f) for later rounds: with f - 1, with f + 1 if the options allow it, and with
    n odd and even."""
    yield max(n + 1, bound.at_least(max(0, f - 1))), max(0, f - 1)
    more = f + 1 if f else 0  # with f = 0 no robustness is required
    try:
        bound.check(more, count := max(n + 3, bound.at_least(more)))
    except ConfigError:
        bound.check(f, count := n + 3)
        more = f
    yield count, more


def check_oracle(
    bound: BoundRule, n: int, f: int, d: int, oracle: Oracle, generator: torch.Generator
) -> None:
    """Compare a rule with its oracle in float64, on all ``clouds``, with and without attackers."""
    for name, honest in clouds(n, f, d, generator):
        if name == "two points":
            continue  # if rows are equal, the rule and its oracle may choose different rows
        far = 100 * torch.randn(f, d, generator=generator, dtype=torch.float64)
        for lies in (far, honest[:f]):
            given, _ = shuffled(lies, honest, generator)
            if len(set(map(tuple, given.tolist()))) < n:
                # avoid equal rows, for the same reason
                given += 1e-3 * torch.randn(n, d, generator=generator, dtype=torch.float64)
            found, expected = (
                _aggregate(bound, f, given),
                torch.from_numpy(np.asarray(oracle(given.numpy(), f), dtype=np.float64)),
            )
            off, scale = float((found - expected).abs().max()), max(1.0, float(given.abs().max()))
            if not off <= ROUNDING * scale:
                raise AssertionError(
                    f"{bound.name} is {off:.3g} away from its oracle on {n} updates, f={f}, "
                    f"{name}: allowed {ROUNDING * scale:.3g}"
                )


def check_resilience(
    bound: BoundRule, n: int, f: int, seed: int, kappa: float | None, strengths: int
) -> ConformanceReport:
    """Check that the worst attack that is found stays below the bound. Check also that up to f
    attackers do not break the rule, and that a majority of attackers does."""
    follows = (
        bound.rule.translation
        and bound.rule.scale
        and not in_units(bound)
        and not needs_help(bound)
    )
    if not bound.rule.robust:
        return ConformanceReport(bound.name, n, f)
    if kappa is None and in_units(bound):
        return ConformanceReport(
            bound.name,
            n,
            f,
            held_to=f"{SPREADS:g} times the length of the honest mean, or the honest spread",
        )
    beside_length = kappa is None and bound.rule.robust == "bounded"
    allowed = kappa if kappa is not None else kappa_bounds(bound.name, n, f)
    allowed = KAPPA_UNDECLARED if allowed is None else allowed
    found = measure(
        lambda updates, honest: _helped(bound, f, updates, honest),
        n,
        f,
        seed=seed,
        strengths=strengths,
        beside_length=beside_length,
    )
    if not found.kappa <= allowed * (1 + 1e-6) + 1e-9:
        raise AssertionError(
            f"{bound.name} is not ({f}, {allowed:.3g})-robust among {n}: kappa is at least "
            f"{found.kappa:.4g}, found by {found.found_by}"
        )
    if found.breaks_at is not None and found.breaks_at <= f:
        raise AssertionError(
            f"{found.breaks_at} of {n} Byzantine peers break {bound.name}, called with f={f}"
        )
    majority = n // 2 + 1
    if follows and (found.breaks_at is None or found.breaks_at > majority):
        raise AssertionError(
            f"{majority} of {n} Byzantine peers do not break {bound.name}. If the result depends "
            "on nothing but the updates, a Byzantine majority must be able to break the rule. So "
            "the rule ignores a majority of its updates, or its declaration (translation, scale, "
            "center) is wrong"
        )
    return ConformanceReport(
        bound.name,
        n,
        f,
        found.kappa,
        allowed,
        found.found_by,
        found.breaks_at,
        beside_length=beside_length,
    )


def _aggregate(bound: BoundRule, f: int, updates: Tensor) -> Tensor:
    return bound(updates, f=f, learning_rate=LEARNING_RATE, round_id=0)


def _helped(bound: BoundRule, f: int, updates: Tensor, honest: Tensor) -> Tensor:
    """Return the aggregate of a rule. If the rule needs trusted data, these are derived from the
    honest mean."""
    mean = honest.mean(dim=0)

    def loss(step: Tensor) -> float:
        """Return the loss at x - ``step``. It is smallest at x - lr m, where m is the honest
        mean."""
        return 0.5 * LEARNING_RATE * float((step.to(mean) / LEARNING_RATE - mean).square().sum())

    center = honest[-1].clone() if bound.needs_center else None
    return bound(
        updates,
        f=f,
        learning_rate=LEARNING_RATE,
        round_id=0,
        evaluate=loss,
        gradient=mean.to(updates),
        center=center,
    )
