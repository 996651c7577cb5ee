"""Checks that Byzantine updates, at any position among the updates, neither break a rule nor escape
detection."""

from __future__ import annotations

import torch
from torch import Tensor

from gossip.aggregators import BoundRule

from .crowds import SyntheticUpdates, apart, attackers, crowd, in_units, near, shuffled
from .promises import CALLED, OUTLYING

# Maximum distance of a robust rule's aggregate from the honest mean, as a multiple of the distance
# of the farthest honest update.
SPREADS = 4.0


def check_attackers(
    bound: BoundRule, case: SyntheticUpdates, name: str, lies: Tensor, generator: torch.Generator
) -> None:
    f = case.f
    honest = case.updates[f:]
    rows, place = shuffled(lies, honest, generator)
    given = rows.clone()
    verdict = case.judge(bound, rows)
    finite = bool(
        torch.isfinite(verdict.aggregate).all() & torch.isfinite(verdict.outlyingness).all()
    )
    if not finite:
        raise AssertionError(
            f"{bound.name} returns a value that is not finite with {f} Byzantine peers, {name}"
        )
    called = case.call(bound, rows)
    if not near(called, verdict.aggregate, CALLED):
        raise AssertionError(
            f"{bound.name} returns another aggregate from a call than from ``explain``, with {f} "
            f"Byzantine peers, {name}: {apart(called, verdict.aggregate)} apart"
        )
    if not torch.equal(rows, given):
        raise AssertionError(f"{bound.name} writes to its updates with {f} Byzantine peers, {name}")
    if not bound.rule.robust:
        return
    center = honest.mean(dim=0)
    spread = float((honest - center).norm(dim=1).max())
    reach, what = spread, "the farthest honest update is at"
    if bound.rule.robust == "bounded" or in_units(bound):
        reach, what = max(spread, float(center.norm())), "the honest mean has the length"
    off = float((verdict.aggregate.to(torch.float64) - center).norm())
    if not off <= SPREADS * reach:
        raise AssertionError(
            f"{f} of {len(case.updates)} Byzantine peers, {name}, move {bound.name} {off:.3g} "
            f"away from the honest mean; {what} {reach:.3g}"
        )
    if bound.discerning:
        loudest, honest_out = (
            float(verdict.outlyingness[place[0]]),
            float(verdict.outlyingness[place[f:]].max()),
        )
        if not loudest > OUTLYING:
            raise AssertionError(
                f"{bound.name} does not detect a Byzantine peer, {name}: outlyingness "
                f"{loudest:.2f}, needs > {OUTLYING}"
            )
        if not honest_out <= OUTLYING:
            raise AssertionError(
                f"{bound.name} accuses an honest peer with {f} Byzantine peers, {name}: "
                f"outlyingness {honest_out:.2f}"
            )


def check_centered(bound: BoundRule, d: int, f: int, generator: torch.Generator) -> None:
    """Check a rule with a trusted center. In gossip rounds, the local update is the center, so
    attackers may be a majority of the updates."""
    n = max(f + 2, bound.at_least(f, centered=True))
    case = crowd(n, d, f, generator)
    for name, lies in attackers(case, generator):
        if name == "sacrificial anchor":
            continue  # if only one neighbour is honest, attackers near the mean are not detectable
        honest = case.updates[f:]
        rows, place = shuffled(lies, honest, generator)
        own = honest[-1].clone()
        verdict = case.judge(bound, rows, own)
        reach = max(float((honest - own).norm(dim=1).max()), float(own.norm()))
        off = float((verdict.aggregate - own).norm())
        if not off <= SPREADS * reach:
            raise AssertionError(
                f"{f} of {n} Byzantine peers, {name}, move {bound.name} {off:.3g} away from its "
                "trusted center"
            )
        out = verdict.outlyingness
        if not float(out[place[0]]) > OUTLYING >= float(out[place[f:]].max()):
            raise AssertionError(
                f"{bound.name} with a center, attack {name}: the first outlyingness must be above "
                f"{OUTLYING}, those of honest peers at most {OUTLYING}: {out[place].tolist()}"
            )
