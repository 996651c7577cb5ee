"""Checks of rules on honest updates: the form of the verdict, and the inputs on which the verdict
may depend.

The checks raise AssertionError themselves, because ``python -O`` removes assert statements.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import torch

from gossip.aggregators import BoundRule, CoordinateRule, Rule, Verdict

from .crowds import SyntheticUpdates, apart, crowd, in_units, near

OUTLYING = 3.0  # outlyingness above which an update is evidence against its peer
# Maximum relative difference between the aggregate of a call and that of the verdict. They may be
# summed in different orders.
CALLED = 1e-5


def check_verdict(bound: BoundRule, case: SyntheticUpdates) -> None:
    n, d = case.updates.shape
    verdict = case.judge(bound)
    shape = tuple(verdict.aggregate.shape)
    if shape != (d,):
        raise AssertionError(
            f"{bound.name} makes an aggregate of shape {shape}, not {(d,)}, of updates of shape "
            f"{(n, d)}"
        )
    if not bool(torch.isfinite(verdict.aggregate).all()):
        raise AssertionError(f"{bound.name}: the aggregate of finite updates is not finite")
    for what, numbers in (("weights", verdict.weights), ("outlyingness", verdict.outlyingness)):
        if numbers.shape != (n,):
            raise AssertionError(
                f"{bound.name}: {what} have the shape {tuple(numbers.shape)} for {n} updates"
            )
        if not bool((torch.isfinite(numbers) & (numbers >= 0)).all()):
            raise AssertionError(f"{bound.name}: {what} are {numbers.tolist()}")
    total = float(verdict.weights.sum())
    if not (abs(total - 1) < 1e-6 or total == 0):
        raise AssertionError(f"{bound.name}: the weights add up to {total}, not to 1")
    largest = float(verdict.outlyingness.max())
    if not largest <= OUTLYING:
        raise AssertionError(
            f"{bound.name}: one of {n} honest updates is {largest:.2f} times as far out as "
            "typical updates"
        )


def check_untouched(bound: BoundRule, case: SyntheticUpdates) -> None:
    before = case.updates.clone()
    last = None if case.previous is None else case.previous.clone()
    aggregate = case.judge(bound).aggregate
    if aggregate.requires_grad:
        raise AssertionError(f"{bound.name} makes an aggregate that requires grad: detach it")
    if not torch.equal(case.updates, before):
        raise AssertionError(f"{bound.name} writes to its updates")
    if last is not None and case.previous is not None and not torch.equal(case.previous, last):
        raise AssertionError(f"{bound.name} writes to the last aggregate")


def check_memory(bound: BoundRule, case: SyntheticUpdates) -> None:
    """Check that the aggregate is in new memory, and that the memory of the updates need not be
    contiguous."""
    before, aggregate = case.updates.clone(), case.judge(bound).aggregate
    kept = aggregate.clone()
    case.updates.add_(1.0)
    shares = not torch.equal(aggregate, kept)
    case.updates.copy_(before)
    if shares:
        raise AssertionError(f"{bound.name} returns memory of an update: clone it")
    strided = torch.stack([before, before], dim=2)[:, :, 0]  # not contiguous
    same = case.judge(bound, strided).aggregate
    if not near(same, kept):
        raise AssertionError(
            f"{bound.name} gives another result for rows that are not contiguous, "
            f"{apart(same, kept)} away"
        )


def check_repeatable(bound: BoundRule, case: SyntheticUpdates) -> None:
    """Check that the verdict on the same updates is bit-identical, also after a call with other
    updates. Check also that the rule neither uses nor seeds a global random generator."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        # Use each generator once. A rule that seeds a generator cannot reach the resulting state.
        random.random(), np.random.random(), torch.rand(1)
        before_calls = _draws_next()
        once, at_once = case.judge(bound), case.judge(bound)
        # If the rule stores state from these other updates, the next call differs.
        case.judge(bound, case.updates.roll(1, dims=1))
        again = case.judge(bound)
        touched = [name for name, state in _draws_next().items() if state != before_calls[name]]
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
    if touched:
        raise AssertionError(
            f"{bound.name} draws from or seeds the random numbers of {', '.join(touched)}, which "
            "are not its own: use a torch.Generator seeded from round_id"
        )
    for later, what in itertools.product(
        (at_once, again), ("aggregate", "weights", "outlyingness")
    ):
        first, second = getattr(once, what), getattr(later, what)
        if not torch.equal(first, second):
            raise AssertionError(
                f"{bound.name} makes another {what} of the same updates when it is called again, "
                f"{apart(second, first)} apart. Peers would not agree. A rule keeps no state "
                "between calls and draws no random numbers of its own"
            )


def _draws_next() -> dict[str, Any]:
    """Return the state of each global random generator, by name."""
    legacy: Any = np.random.get_state()
    return {
        "random": random.getstate(),
        "numpy.random": (legacy[1].tobytes(), legacy[2]),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }


def check_called(bound: BoundRule, case: SyntheticUpdates) -> None:
    """Check that a call of the rule returns the same aggregate as ``explain``."""
    called, explained = case.call(bound, case.updates), case.judge(bound).aggregate
    if not near(called, explained, CALLED):
        raise AssertionError(
            f"{bound.name} returns another aggregate from a call than from ``explain``: "
            f"{apart(called, explained)} apart"
        )


def check_weights(bound: BoundRule, case: SyntheticUpdates) -> None:
    """Check the weights in the verdict, if the aggregate is a weighted mean of the updates: they
    must be the weights of that mean."""
    n, d = case.updates.shape
    if n >= d or not _has_own_weights(bound, case):
        return
    rows = case.updates.to(torch.float64)
    verdict = case.judge(bound, rows)
    shares = torch.linalg.lstsq(
        rows.T, verdict.aggregate.to(torch.float64)[:, None], driver="gelsd"
    ).solution[:, 0]
    if (
        not near(shares @ rows, verdict.aggregate, 1e-9)
        or abs(float(shares.sum()) - 1) > 1e-6
        or float(shares.min()) < -1e-6
    ):
        # The aggregate is no weighted mean: the rule rescales rows, adds a vector, or weighs each
        # coordinate differently.
        return
    if not torch.allclose(shares, verdict.weights, atol=1e-5):
        raise AssertionError(
            f"{bound.name} reports the weights {_short(verdict.weights)}, but its aggregate is "
            f"the mean with the weights {_short(shares)}"
        )


def _short(numbers: torch.Tensor) -> str:
    return (
        "["
        + ", ".join(f"{number:.3g}" for number in (numbers + 0.0).round(decimals=6).tolist())
        + "]"
    )


def _has_own_weights(bound: BoundRule, case: SyntheticUpdates) -> bool:
    """Whether the rule computes weights. If a plain function returns only a tensor, the runtime
    reports equal weights."""
    if isinstance(bound.rule, CoordinateRule):
        return False  # a weight is the fraction of coordinates that use the update
    if type(bound.rule) is not Rule:
        return True
    returns_verdict = False

    def observed(*updates: Any, **options: Any) -> Any:
        nonlocal returns_verdict
        result = bound.rule.function(*updates, **options)
        returns_verdict = isinstance(result, Verdict)
        return result

    own = Rule(
        observed,
        name=bound.name,
        at_least=bound.rule.at_least,
        discerning=bound.rule.discerning,
        parameters=bound.rule.parameters,
    )
    case.judge(BoundRule(bound.name, own, bound.options))
    return returns_verdict


def check_dtypes(bound: BoundRule, case: SyntheticUpdates) -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        given = case.updates.to(dtype)
        verdict, before = case.judge(bound, given), case.judge(bound, given.to(torch.float32))
        aggregate = verdict.aggregate
        if aggregate.dtype != dtype:
            raise AssertionError(f"{bound.name} makes an aggregate in {aggregate.dtype} of {dtype}")
        if aggregate.device != given.device:
            raise AssertionError(
                f"{bound.name} moves updates from {given.device} to {aggregate.device}"
            )
        # Rounding may change which rows a rule selects, so compare only if the selection is the
        # same.
        if torch.equal(verdict.weights > 0, before.weights > 0):
            allowed = (
                8 * torch.finfo(dtype).eps * float(case.updates.abs().max())
                if dtype != torch.float64
                else 1e-4
            )
            error = float(
                (aggregate.to(torch.float64) - before.aggregate.to(torch.float64)).abs().max()
            )
            if not error <= max(allowed, 1e-4):
                raise AssertionError(
                    f"{bound.name} in {dtype} is {error:.3g} away from float32, allowed "
                    f"{allowed:.3g}"
                )


def check_device(bound: BoundRule, case: SyntheticUpdates, device: str) -> None:
    """Check that the aggregate on another device is the same as on the CPU, and that it stays on
    that device."""
    expected, given = case.judge(bound).aggregate, case.updates.to(device)
    aggregate = case.judge(bound, given).aggregate
    if aggregate.device != given.device:
        raise AssertionError(
            f"{bound.name} moves updates from {given.device} to {aggregate.device}"
        )
    on_cpu = aggregate.to("cpu")
    if not near(on_cpu, expected):
        raise AssertionError(
            f"{bound.name} on {device} is {apart(on_cpu, expected)} away from its aggregate on "
            "the cpu"
        )


def check_order(bound: BoundRule, case: SyntheticUpdates, generator: torch.Generator) -> None:
    order = torch.randperm(len(case.updates), generator=generator)
    straight, mixed = case.judge(bound), case.judge(bound, case.updates[order])
    if not near(mixed.aggregate, straight.aggregate):
        raise AssertionError(
            f"{bound.name} depends on the order of the updates: "
            f"{apart(mixed.aggregate, straight.aggregate)} apart"
        )
    for what in ("weights", "outlyingness"):
        moved, stayed = getattr(mixed, what), getattr(straight, what)[order]
        if not torch.allclose(moved, stayed, atol=1e-4):
            raise AssertionError(
                f"{bound.name}: {what} do not move with the updates: they are {moved}, not {stayed}"
            )


def check_agreement(bound: BoundRule, case: SyntheticUpdates) -> None:
    row = case.gradient
    aggregate = case.judge(bound, row.repeat(len(case.updates), 1)).aggregate
    promised = (bound.rule.robust and not in_units(bound)) or not bound.discerning
    if promised and not near(aggregate, row):
        raise AssertionError(
            f"{bound.name}: the aggregate of equal updates is {apart(aggregate, row)} away from "
            "them"
        )


def check_equivariance(
    bound: BoundRule, case: SyntheticUpdates, generator: torch.Generator
) -> None:
    center = case.gradient if bound.needs_center else None
    before = case.judge(bound).aggregate
    if bound.rule.scale and not in_units(bound):
        for factor in (1e-12, 0.25, 1e12):
            at = None if center is None else center * factor
            moved = case.judge(bound, case.updates * factor, at).aggregate / factor
            if not near(moved, before):
                raise AssertionError(
                    f"{bound.name} is not scale equivariant: with the updates times {factor:g}, "
                    f"the aggregate is {apart(moved, before)} off"
                )
    if bound.rule.translation:
        shift = 3 * torch.randn(case.updates.shape[1], generator=generator)
        at = None if center is None else center + shift
        moved = case.judge(bound, case.updates + shift, at).aggregate - shift
        if not near(moved, before):
            raise AssertionError(
                f"{bound.name} is not translation equivariant: with shifted updates, the "
                f"aggregate is {apart(moved, before)} off"
            )


def check_smallest(bound: BoundRule, f: int, generator: torch.Generator) -> None:
    for n, d, tolerated in (
        (bound.at_least(0), 1, 0),
        (bound.at_least(f), 1, f),
        (bound.at_least(f), 3, f),
    ):
        small = crowd(n, d, tolerated, generator)
        verdict = small.judge(bound)
        if not bool(torch.isfinite(verdict.aggregate).all()):
            raise AssertionError(
                f"{bound.name}: the aggregate of {n} updates with {d} coordinates is not finite: "
                f"{verdict.aggregate}"
            )
