"""The promises that every rule makes: what its verdict looks like, what it depends on, what it does to liars."""

from __future__ import annotations

import torch
from torch import Tensor

from gossip.aggregators.registry import BoundRule

from .crowds import Crowd, apart, crowd, in_units, liars, near

SPREADS = 4.0  # how far from the honest mean, in distances of the farthest honest update, a robust rule may be carried
OUTLYING = 3.0  # what the runtime counts as evidence of lying


def check_verdict(bound: BoundRule, case: Crowd) -> None:
    n, d = case.updates.shape
    verdict = case.judge(bound)
    shape = tuple(verdict.aggregate.shape)
    assert shape == (d,), f"{bound.name} makes an aggregate of shape {shape} of updates of shape {(n, d)}, not {(d,)}"
    for what, numbers in (("weights", verdict.weights), ("outlyingness", verdict.outlyingness)):
        assert numbers.shape == (n,), f"{bound.name}: {what} have the shape {tuple(numbers.shape)} for {n} updates"
        assert bool((torch.isfinite(numbers) & (numbers >= 0)).all()), f"{bound.name}: {what} are {numbers.tolist()}"
    total = float(verdict.weights.sum())
    assert abs(total - 1) < 1e-6 or total == 0, f"{bound.name}: the weights add up to {total}, not to 1"
    largest = float(verdict.outlyingness.max())
    assert largest <= OUTLYING, f"{bound.name}: one of {n} honest updates is {largest:.2f} times as far out as typical ones"


def check_untouched(bound: BoundRule, case: Crowd) -> None:
    before = case.updates.clone()
    aggregate = case.judge(bound).aggregate
    assert torch.equal(case.updates, before), f"{bound.name} writes to its updates"
    kept = aggregate.clone()
    case.updates.add_(1.0)
    shares = not torch.equal(aggregate, kept)
    case.updates.copy_(before)
    assert not shares, f"{bound.name} returns memory of an update: clone it"
    strided = torch.stack([before, before], dim=2)[:, :, 0]  # not contiguous
    same = case.judge(bound, strided).aggregate
    assert near(same, kept), f"{bound.name} gives another result for rows that are not contiguous, {apart(same, kept)} away"


def check_dtypes(bound: BoundRule, case: Crowd) -> None:
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        given = case.updates.to(dtype)
        verdict, before = case.judge(bound, given), case.judge(bound, given.to(torch.float32))
        aggregate = verdict.aggregate
        assert aggregate.dtype == dtype, f"{bound.name} makes {aggregate.dtype} of {dtype}"
        assert aggregate.device == given.device, f"{bound.name} moves updates from {given.device} to {aggregate.device}"
        if torch.equal(verdict.weights > 0, before.weights > 0):  # whom it chooses may hang on the last digit
            allowed = 8 * torch.finfo(dtype).eps * float(case.updates.abs().max()) if dtype != torch.float64 else 1e-4
            error = float((aggregate.to(torch.float64) - before.aggregate.to(torch.float64)).abs().max())
            assert error <= max(allowed, 1e-4), f"{bound.name} in {dtype} is {error:.3g} away from float32, allowed {allowed:.3g}"


def check_device(bound: BoundRule, case: Crowd, device: str) -> None:
    """On another device the aggregate stays there and is the same."""
    expected, given = case.judge(bound).aggregate, case.updates.to(device)
    aggregate = case.judge(bound, given).aggregate
    assert aggregate.device == given.device, f"{bound.name} moves updates from {given.device} to {aggregate.device}"
    on_cpu = aggregate.to("cpu")
    assert near(on_cpu, expected), f"{bound.name} on {device} is {apart(on_cpu, expected)} away from what it makes on the cpu"


def check_order(bound: BoundRule, case: Crowd, generator: torch.Generator) -> None:
    order = torch.randperm(len(case.updates), generator=generator)
    straight, mixed = case.judge(bound), case.judge(bound, case.updates[order])
    assert near(mixed.aggregate, straight.aggregate), (
        f"{bound.name} depends on the order of the updates: {apart(mixed.aggregate, straight.aggregate)} apart"
    )
    for what in ("weights", "outlyingness"):
        moved, stayed = getattr(mixed, what), getattr(straight, what)[order]
        assert torch.allclose(moved, stayed, atol=1e-4), (
            f"{bound.name}: {what} do not move with the updates: {moved} for {stayed}"
        )


def check_agreement(bound: BoundRule, case: Crowd) -> None:
    row = case.gradient
    aggregate = case.judge(bound, row.repeat(len(case.updates), 1)).aggregate
    if (bound.rule.robust and not in_units(bound)) or not bound.discerning:
        assert near(aggregate, row), f"{bound.name} of equal updates is {apart(aggregate, row)} away from them"


def check_equivariance(bound: BoundRule, case: Crowd, generator: torch.Generator) -> None:
    center = case.gradient if bound.needs_center else None
    before = case.judge(bound).aggregate
    if bound.rule.scale and not in_units(bound):
        for factor in (1e-12, 0.25, 1e12):
            at = None if center is None else center * factor
            moved = case.judge(bound, case.updates * factor, at).aggregate / factor
            assert near(moved, before), (
                f"{bound.name} is not scale equivariant: times {factor:g} it is {apart(moved, before)} off"
            )
    if bound.rule.translation:
        shift = 3 * torch.randn(case.updates.shape[1], generator=generator)
        at = None if center is None else center + shift
        moved = case.judge(bound, case.updates + shift, at).aggregate - shift
        assert near(moved, before), f"{bound.name} is not translation equivariant: shifted it is {apart(moved, before)} off"


def check_smallest(bound: BoundRule, f: int, generator: torch.Generator) -> None:
    for n, d, tolerated in ((bound.at_least(0), 1, 0), (bound.at_least(f), 1, f), (bound.at_least(f), 3, f)):
        small = crowd(n, d, tolerated, generator)
        verdict = small.judge(bound)
        assert bool(torch.isfinite(verdict.aggregate).all()), (
            f"{bound.name} of {n} updates with {d} coordinates: {verdict.aggregate}"
        )


def check_liars(bound: BoundRule, case: Crowd, name: str, lies: Tensor) -> None:
    f = case.f
    honest = case.updates[f:]
    verdict = case.judge(bound, torch.cat([lies, honest]))
    finite = bool(torch.isfinite(verdict.aggregate).all() & torch.isfinite(verdict.outlyingness).all())
    assert finite, f"{bound.name} makes something that is not finite of {f} liars, {name}"
    if not bound.rule.robust:
        return
    center = honest.mean(dim=0)
    spread = float((honest - center).norm(dim=1).max())
    reach = max(spread, float(center.norm()))
    off = float((verdict.aggregate.to(torch.float64) - center).norm())
    assert off <= SPREADS * reach, (
        f"{f} of {len(case.updates)} liars, {name}, carry {bound.name} {off:.3g} away from the honest mean; "
        f"the farthest honest update is at {spread:.3g}"
    )
    if bound.discerning:
        loudest, honest_out = float(verdict.outlyingness[0]), float(verdict.outlyingness[f:].max())
        assert loudest > OUTLYING, f"{bound.name} does not tell a liar, {name}: outlyingness {loudest:.2f}, needs > {OUTLYING}"
        assert honest_out <= OUTLYING, f"{bound.name} accuses an honest peer beside liars, {name}: outlyingness {honest_out:.2f}"


def check_centered(bound: BoundRule, d: int, f: int, generator: torch.Generator) -> None:
    """In gossip one's own update is trusted, and the liars may outnumber the others."""
    n = max(f + 2, bound.at_least(f, centered=True))
    case = crowd(n, d, f, generator)
    for name, lies in liars(case, generator):
        if name == "sacrificial anchor":
            continue  # next to one's own update and one other, a liar near the mean cannot be told
        rows = torch.cat([lies, case.updates[f:]])
        own = rows[-1].clone()
        verdict = case.judge(bound, rows, own)
        honest = rows[f:]
        reach = max(float((honest - own).norm(dim=1).max()), float(own.norm()))
        off = float((verdict.aggregate - own).norm())
        assert off <= SPREADS * reach, f"{f} of {n} liars, {name}, carry {bound.name} {off:.3g} away from its trusted center"
        out = verdict.outlyingness
        assert float(out[0]) > OUTLYING >= float(out[f:].max()), (
            f"{bound.name} with a center, liars {name}: outlyingness {out.tolist()}"
        )
