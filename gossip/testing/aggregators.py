"""Does an aggregation rule keep the promises that the runtime builds on?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gossip.aggregators.base import Rule, Verdict, rule
from gossip.aggregators.registry import BoundRule, load

LEARNING_RATE = 0.1
SPREADS = 4.0  # how far from the honest mean, in distances of the farthest honest update, a robust rule may be carried
OUTLYING = 3.0  # what the runtime counts as evidence of lying


@dataclass(frozen=True, slots=True)
class _Crowd:
    """A case: honest updates around one direction, and what a rule may ask for beside them."""

    updates: Tensor  # (n, d)
    f: int
    gradient: Tensor  # (d,), the direction

    def evaluate(self, step: Tensor) -> float:
        """A loss with gradient ``gradient`` at x and curvature 1 all around, at x - step."""
        step = step.to(torch.float64)
        gradient = self.gradient.to(torch.float64)
        return float(1000.0 - gradient @ step + 0.5 * (step @ step))

    def judge(self, rule: BoundRule, updates: Tensor | None = None, center: Tensor | None = None) -> Verdict:
        """The verdict of a rule. One that cannot do without a center gets ``center``, or the honest direction."""
        updates = self.updates if updates is None else updates
        if center is None and _needs_center(rule):
            center = self.gradient
        return rule.explain(
            updates,
            f=self.f,
            center=None if center is None else center.to(updates.dtype),
            learning_rate=LEARNING_RATE,
            evaluate=self.evaluate,
            gradient=self.gradient.to(updates.dtype),
        )


def check_aggregator(
    candidate: Rule | BoundRule | Callable[..., Any] | str, *, n: int = 11, f: int = 2, d: int = 64, seed: int = 0
) -> None:
    """Raises AssertionError, with the numbers, for the first promise that a rule breaks.

    The promises: shape, dtype and device of the updates are kept, and the updates themselves; weights and outlyingness are
    what ``Verdict`` says; the order of the updates does not matter; equal updates give that update; shifted or scaled
    updates give a shifted or scaled aggregate (as far as the rule declares it); from finite updates comes nothing that is
    not finite; and, unless the rule is declared ``robust=False`` or ``discerning=False``, f liars of any size neither carry it
    away nor hide.

    Args:
        candidate: A rule, with options or without, a plain function ``(updates, *, f)``, or what ``load`` takes.
        n: Updates in a case.
        f: Byzantine peers to tolerate.
        d: Coordinates.
        seed: Of the cases.
    """
    bound = _bound(candidate)
    need = bound.at_least(f)
    assert n >= need, f"{bound.name} needs {need} updates for f={f}: call check_aggregator with a larger n than {n}"
    generator = torch.Generator().manual_seed(seed)
    crowd = _crowd(n, d, f, generator)
    _check_untouched(bound, crowd)  # first: what it finds would spoil the case for the others
    _check_verdict(bound, crowd)
    _check_dtypes(bound, crowd)
    if bound.rule.symmetric:
        _check_order(bound, crowd, generator)
    _check_agreement(bound, crowd)
    _check_equivariance(bound, crowd, generator)
    _check_smallest(bound, f, generator)
    for name, liars in _liars(crowd, generator):
        _check_liars(bound, crowd, name, liars)
    if "center" in bound.rule.parameters:
        _check_centered(bound, d, f, generator)


def _bound(candidate: Rule | BoundRule | Callable[..., Any] | str) -> BoundRule:
    if isinstance(candidate, str):
        return load(candidate)
    if isinstance(candidate, BoundRule):
        return candidate
    made = candidate if isinstance(candidate, Rule) else rule(candidate)
    return BoundRule(made.name, made)


def _needs_center(bound: BoundRule) -> bool:
    return bound.needs_center


def _in_units(bound: BoundRule) -> bool:
    """Whether an option is fixed in units of the updates."""
    return any(bound.options.get(key) is not None for key in bound.rule.absolute)


def _crowd(n: int, d: int, f: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> _Crowd:
    gradient = torch.randn(d, generator=generator)
    noise = 0.5 * torch.randn(n, d, generator=generator)
    return _Crowd((gradient + noise).to(dtype), f, gradient)


def _check_verdict(bound: BoundRule, crowd: _Crowd) -> None:
    n, d = crowd.updates.shape
    verdict = crowd.judge(bound)
    shape = tuple(verdict.aggregate.shape)
    assert shape == (d,), f"{bound.name} makes an aggregate of shape {shape} of updates of shape {(n, d)}, not {(d,)}"
    for what, numbers in (("weights", verdict.weights), ("outlyingness", verdict.outlyingness)):
        assert numbers.shape == (n,), f"{bound.name}: {what} have the shape {tuple(numbers.shape)} for {n} updates"
        assert bool((torch.isfinite(numbers) & (numbers >= 0)).all()), f"{bound.name}: {what} are {numbers.tolist()}"
    total = float(verdict.weights.sum())
    assert abs(total - 1) < 1e-6 or total == 0, f"{bound.name}: the weights add up to {total}, not to 1"
    largest = float(verdict.outlyingness.max())
    assert largest <= OUTLYING, f"{bound.name}: one of {n} honest updates is {largest:.2f} times as far out as typical ones"


def _check_untouched(bound: BoundRule, crowd: _Crowd) -> None:
    before = crowd.updates.clone()
    aggregate = crowd.judge(bound).aggregate
    assert torch.equal(crowd.updates, before), f"{bound.name} writes to its updates"
    kept = aggregate.clone()
    crowd.updates.add_(1.0)
    shares = not torch.equal(aggregate, kept)
    crowd.updates.copy_(before)
    assert not shares, f"{bound.name} returns memory of an update: clone it"
    apart = torch.stack([before, before], dim=2)[:, :, 0]  # not contiguous
    same = crowd.judge(bound, apart).aggregate
    assert _near(same, kept), f"{bound.name} gives another result for rows that are not contiguous, {_apart(same, kept)} away"


def _check_dtypes(bound: BoundRule, crowd: _Crowd) -> None:
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        given = crowd.updates.to(dtype)
        verdict, before = crowd.judge(bound, given), crowd.judge(bound, given.to(torch.float32))
        aggregate = verdict.aggregate
        assert aggregate.dtype == dtype, f"{bound.name} makes {aggregate.dtype} of {dtype}"
        assert aggregate.device == given.device, f"{bound.name} moves updates from {given.device} to {aggregate.device}"
        if torch.equal(verdict.weights > 0, before.weights > 0):  # whom it chooses may hang on the last digit
            allowed = 8 * torch.finfo(dtype).eps * float(crowd.updates.abs().max()) if dtype != torch.float64 else 1e-4
            error = float((aggregate.to(torch.float64) - before.aggregate.to(torch.float64)).abs().max())
            assert error <= max(allowed, 1e-4), f"{bound.name} in {dtype} is {error:.3g} away from float32, allowed {allowed:.3g}"


def _check_order(bound: BoundRule, crowd: _Crowd, generator: torch.Generator) -> None:
    order = torch.randperm(len(crowd.updates), generator=generator)
    straight, mixed = crowd.judge(bound), crowd.judge(bound, crowd.updates[order])
    assert _near(mixed.aggregate, straight.aggregate), (
        f"{bound.name} depends on the order of the updates: {_apart(mixed.aggregate, straight.aggregate)} apart"
    )
    for what in ("weights", "outlyingness"):
        moved, stayed = getattr(mixed, what), getattr(straight, what)[order]
        assert torch.allclose(moved, stayed, atol=1e-4), (
            f"{bound.name}: {what} do not move with the updates: {moved} for {stayed}"
        )


def _check_agreement(bound: BoundRule, crowd: _Crowd) -> None:
    row = crowd.gradient
    aggregate = crowd.judge(bound, row.repeat(len(crowd.updates), 1)).aggregate
    if (bound.rule.robust and not _in_units(bound)) or not bound.discerning:
        assert _near(aggregate, row), f"{bound.name} of equal updates is {_apart(aggregate, row)} away from them"


def _check_equivariance(bound: BoundRule, crowd: _Crowd, generator: torch.Generator) -> None:
    center = crowd.gradient if _needs_center(bound) else None
    before = crowd.judge(bound).aggregate
    if bound.rule.scale and not _in_units(bound):
        for factor in (1e-12, 0.25, 1e12):
            at = None if center is None else center * factor
            moved = crowd.judge(bound, crowd.updates * factor, at).aggregate / factor
            assert _near(moved, before), (
                f"{bound.name} is not scale equivariant: times {factor:g} it is {_apart(moved, before)} off"
            )
    if bound.rule.translation:
        shift = 3 * torch.randn(crowd.updates.shape[1], generator=generator)
        at = None if center is None else center + shift
        moved = crowd.judge(bound, crowd.updates + shift, at).aggregate - shift
        assert _near(moved, before), f"{bound.name} is not translation equivariant: shifted it is {_apart(moved, before)} off"


def _check_smallest(bound: BoundRule, f: int, generator: torch.Generator) -> None:
    for n, d, tolerated in ((bound.at_least(0), 1, 0), (bound.at_least(f), 1, f), (bound.at_least(f), 3, f)):
        small = _crowd(n, d, tolerated, generator)
        verdict = small.judge(bound)
        assert bool(torch.isfinite(verdict.aggregate).all()), (
            f"{bound.name} of {n} updates with {d} coordinates: {verdict.aggregate}"
        )


def _liars(crowd: _Crowd, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """Names and rows ``(f, d)`` of what f liars send."""
    honest, f = crowd.updates, crowd.f
    if f == 0:
        return
    direction = torch.randn(f, honest.shape[1], generator=generator)
    yield "sign_flip*10", -10 * honest[:f]
    yield "scale*1000", 1000 * honest[:f]
    yield "gaussian*200", 200 * direction
    for size in (1e3, 1e12, 1e30):
        yield f"apart at {size:g}", size * direction
        yield f"together at {size:g}", size * direction[:1].repeat(f, 1)
    # One far away, the others on the mean that it makes: what breaks rules that start from the mean.
    far = 1e6 * direction[:1]
    mean = (honest[f:].sum(dim=0, keepdim=True) + far) / (len(honest) - f + 1)
    yield "sacrificial anchor", torch.cat([far, mean.repeat(f - 1, 1)])


def _check_liars(bound: BoundRule, crowd: _Crowd, name: str, liars: Tensor) -> None:
    f = crowd.f
    honest = crowd.updates[f:]
    verdict = crowd.judge(bound, torch.cat([liars, honest]))
    finite = bool(torch.isfinite(verdict.aggregate).all() & torch.isfinite(verdict.outlyingness).all())
    assert finite, f"{bound.name} makes something that is not finite of {f} liars, {name}"
    if not bound.rule.robust:
        return
    center = honest.mean(dim=0)
    spread = float((honest - center).norm(dim=1).max())
    reach = max(spread, float(center.norm()))
    off = float((verdict.aggregate.to(torch.float64) - center).norm())
    assert off <= SPREADS * reach, (
        f"{f} of {len(crowd.updates)} liars, {name}, carry {bound.name} {off:.3g} away from the honest mean; "
        f"the farthest honest update is at {spread:.3g}"
    )
    if bound.discerning:
        loudest, honest_out = float(verdict.outlyingness[0]), float(verdict.outlyingness[f:].max())
        assert loudest > OUTLYING, f"{bound.name} does not tell a liar, {name}: outlyingness {loudest:.2f}, needs > {OUTLYING}"
        assert honest_out <= OUTLYING, f"{bound.name} accuses an honest peer beside liars, {name}: outlyingness {honest_out:.2f}"


def _check_centered(bound: BoundRule, d: int, f: int, generator: torch.Generator) -> None:
    """In gossip one's own update is trusted, and the liars may outnumber the others."""
    n = max(f + 2, bound.at_least(f, centered=True))
    crowd = _crowd(n, d, f, generator)
    for name, liars in _liars(crowd, generator):
        if name == "sacrificial anchor":
            continue  # next to one's own update and one other, a liar near the mean cannot be told
        rows = torch.cat([liars, crowd.updates[f:]])
        own = rows[-1].clone()
        verdict = crowd.judge(bound, rows, own)
        honest = rows[f:]
        reach = max(float((honest - own).norm(dim=1).max()), float(own.norm()))
        off = float((verdict.aggregate - own).norm())
        assert off <= SPREADS * reach, f"{f} of {n} liars, {name}, carry {bound.name} {off:.3g} away from its trusted center"
        out = verdict.outlyingness
        assert float(out[0]) > OUTLYING >= float(out[f:].max()), (
            f"{bound.name} with a center, liars {name}: outlyingness {out.tolist()}"
        )


def _near(left: Tensor, right: Tensor) -> bool:
    scale = max(float(right.abs().max()), 1e-30)
    return bool(((left.to(torch.float64) - right.to(torch.float64)).abs() <= 1e-4 * scale).all())


def _apart(left: Tensor, right: Tensor) -> str:
    return f"{float((left.to(torch.float64) - right.to(torch.float64)).abs().max()):.3g}"
