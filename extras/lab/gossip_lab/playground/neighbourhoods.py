"""Aggregation of all neighbourhoods of a gossip round in one call.

    found = aggregate_neighbourhoods(load("trimmed_mean"), models, neighbours, f=1, judged=False)
    models = found.aggregates

A coordinate-wise rule runs once for several neighbourhoods of the same size. The updates of these
neighbourhoods are concatenated as columns of one wide matrix that fits into the cache. Any other
rule runs once for each neighbourhood.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossip.aggregators import BoundRule, CoordinateRule, Verdict
from gossip.aggregators.kernels import Rows
from gossip.errors import ConfigError, UnknownName

log = logging.getLogger(__name__)
PER_PEER = frozenset({"center", "evaluate", "gradient", "previous", "usual"})
"""Options with one value for each neighbourhood. ``f`` is not listed, because it may also be one
number for all."""
SHARED = frozenset({"learning_rate", "round_id"})
"""Options with one value for all neighbourhoods."""
WIDE = 2**19
"""Maximum number of elements of a wide matrix: 2 MiB in float32."""
Neighbours: TypeAlias = Sequence[Sequence[int]] | Tensor


@dataclass(frozen=True, slots=True)
class NeighbourhoodVerdicts:
    """Verdicts of a rule on m neighbourhoods of at most k updates.

    Attributes:
        aggregates: ``(m, d)``, dtype and device of the updates; NaN where the rule failed.
        reasons: Reason why the rule failed, or None, for each neighbourhood.
        lengths: ``(m,)`` float64: ``Verdict.length``, used by rules with the argument ``usual``.
        mask: ``(m, k)``: True for the updates that the rule received, also if their weight is 0.
            False for padding, and where the rule failed.
        weights, outlyingness: ``(m, k)`` float64: as in ``Verdict``, in the order of the
            neighbourhood; 0 where ``mask`` is False, and all 0 if not ``judged``.
    """

    aggregates: Tensor
    reasons: list[str | None]
    lengths: NDArray[np.float64]
    mask: NDArray[np.bool_]
    weights: NDArray[np.float64]
    outlyingness: NDArray[np.float64]


def aggregate_neighbourhoods(
    rule: BoundRule,
    updates: Tensor,
    neighbours: Neighbours,
    *,
    judged: bool = True,
    out: Tensor | None = None,
    **options: Any,
) -> NeighbourhoodVerdicts:
    """Aggregate every neighbourhood with the rule.

    If the rule raises an exception or returns an aggregate that is not finite, only this
    neighbourhood fails.

    Args:
        updates: ``(n, d)``, one row per peer, all finite.
        neighbours: Rows of ``updates`` in each of m neighbourhoods, including the peer's own row.
            An ``(m, k)`` tensor if all neighbourhoods have k rows.
        judged: Whether to return weights and outlyingness. If True, results are bitwise equal to
            those of ``rule.explain``; if False, aggregates are bitwise equal to those of ``rule``.
            For some rules these two round differently.
        out: ``(m, d)``, memory for the aggregates. It must not overlap with ``updates``. Allocating
            new memory takes a quarter of the time of a mean.
        options: Arguments for the rule; only those that the rule has are passed. ``f``, the number
            of Byzantine peers to tolerate, is one number or m numbers. ``center``, ``gradient`` and
            ``previous`` are ``(m, d)``, or m vectors; None in place of a vector means that the
            neighbourhood has no such vector. ``usual`` has m numbers, and ``evaluate`` m functions.
            ``learning_rate`` and ``round_id`` are numbers.
    Raises: ConfigError: The shapes of the arguments do not fit each other, or an argument that the
        rule needs is missing.
    """
    n, d = (rows := Rows.of(updates)).n, rows.d
    members, sizes = _read_rows(neighbours, n)
    m, k = len(sizes), int(sizes.max(initial=0))
    options = {name: values for name, values in options.items() if values is not None}
    rule.chosen(options)  # Raises if an argument that the rule needs is missing.
    f = options.pop("f", 0)
    tolerated = [f] * m if isinstance(f, int) else [int(each) for each in f]
    for name, values in [("f", tolerated), *options.items()]:
        if name not in {"f", *PER_PEER, *SHARED}:
            raise UnknownName("argument of a rule", name, {"f", *PER_PEER, *SHARED})
        if name not in SHARED and len(values) != m:
            raise ConfigError(
                f"there are {m} neighbourhoods and {len(values)} values of {name}",
                f"pass one value of {name} for each neighbourhood",
            )
    if out is None:
        out = torch.empty(m, d, dtype=updates.dtype, device=updates.device)
    elif out.shape != (m, d) or out.dtype != updates.dtype or out.device != updates.device:
        raise ConfigError(
            f"out is {tuple(out.shape)} {out.dtype} on {out.device}, and the aggregates are "
            f"({m}, {d}) {updates.dtype} on {updates.device}"
        )
    elif out.untyped_storage().data_ptr() == updates.untyped_storage().data_ptr():
        raise ConfigError(
            "out shares memory with the updates, which are read after the first aggregates are "
            "written",
            "allocate out separately",
        )
    found = NeighbourhoodVerdicts(
        out,
        [None] * m,
        np.zeros(m),
        np.zeros((m, k), bool),
        np.zeros((m, k)),
        np.zeros((m, k)),
    )
    run = _Run(rule, updates.detach(), options, judged, found)
    starts = np.cumsum(sizes) - sizes
    alike: dict[tuple[int, int], list[int]] = {}
    for peer, key in enumerate(zip(sizes.tolist(), tolerated, strict=True)):
        alike.setdefault(key, []).append(peer)
    for (size, own_f), peers in alike.items():
        count = max(1, WIDE // max(1, size * d))
        for some in (peers[at : at + count] for at in range(0, len(peers), count)):
            places = torch.from_numpy(members[starts[some][:, None] + np.arange(size)])
            run.aggregate(some, places.to(updates.device), own_f)
    out[[peer for peer, reason in enumerate(found.reasons) if reason is not None]] = torch.nan
    return found


def _read_rows(neighbours: Neighbours, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the concatenated rows of all neighbourhoods, and the size of each. Raises:
    ConfigError: A neighbourhood has a row that ``updates`` lacks."""
    if isinstance(neighbours, Tensor):
        members = neighbours.to("cpu", torch.int64).reshape(-1).numpy()
        sizes = np.full(len(neighbours), neighbours.shape[1], np.int64)
    else:
        sizes = np.array([len(rows) for rows in neighbours], np.int64)
        members = np.fromiter(chain.from_iterable(neighbours), np.int64, int(sizes.sum()))
    outside = members[(members < 0) | (members >= n)]
    if len(outside):
        raise ConfigError(
            f"a neighbourhood has row {outside[0]}, and there are {n} updates",
            f"rows are 0 to {n - 1}",
        )
    return members, sizes


@dataclass(frozen=True, slots=True)
class _Run:
    """A rule with its arguments and the results so far."""

    rule: BoundRule
    updates: Tensor
    options: Mapping[str, Any]
    judged: bool
    found: NeighbourhoodVerdicts

    def aggregate(self, peers: Sequence[int], members: Tensor, f: int) -> None:
        """Aggregate neighbourhoods of one size. ``members``, ``(peers, size)``: rows of each
        neighbourhood."""
        if not self._aggregate_together(peers, members, f):
            for peer, rows in zip(peers, members, strict=True):
                self._aggregate_one(peer, rows, f)

    def _aggregate_together(self, peers: Sequence[int], members: Tensor, f: int) -> bool:
        """Aggregate all neighbourhoods in one call of the rule. Return False if this is not
        possible."""
        rule, (count, size) = self.rule.rule, members.shape
        if (
            not isinstance(rule, CoordinateRule)
            or self.rule.needs & PER_PEER
            # Such a function may return its own verdict.
            or (self.judged and not rule.takes_columns)
        ):
            return False
        rows = self.updates.index_select(0, members.T.reshape(-1))
        wide = rows.view(size, count * rows.shape[1])  # row i: i-th update of each neighbourhood
        try:
            options = self.rule.chosen({**self.options, "f": f})
            if self.judged:
                verdicts = rule.explain_parts(wide, count, **options)
            else:
                aggregates = rule(wide, **options).view(count, -1)
        except Exception as error:  # noqa: BLE001
            # The neighbourhoods are then aggregated one by one, so that each has its own result or
            # reason.
            log.debug("neighbourhoods run one by one: rule=%s reason=%s", self.rule.name, error)
            return False
        if self.judged:
            for peer, verdict in zip(peers, verdicts, strict=True):
                self._keep(peer, size, verdict.aggregate, verdict)
            return True
        if not bool(torch.isfinite(aggregates.sum(dim=1)).all()):
            return False
        self.found.aggregates[peers] = aggregates
        self.found.mask[peers, :size] = True
        return True

    def _aggregate_one(self, peer: int, members: Tensor, f: int) -> None:
        rows = self.updates.index_select(0, members)
        available = {
            name: values[peer] if name in PER_PEER else values
            for name, values in self.options.items()
        }
        try:
            if self.judged or "usual" in self.rule.needs:
                verdict = self.rule.explain(rows, f=f, **available)
                self._keep(peer, len(members), verdict.aggregate, verdict)
            else:
                self._keep(peer, len(members), self.rule(rows, f=f, **available))
        except ConfigError as error:
            self.found.reasons[peer] = str(error)
        except Exception as error:  # noqa: BLE001
            # The update of a Byzantine peer may make the rule fail, but must not end the round.
            reason = f"{self.rule.name} failed: {type(error).__name__}: {error}"
            self.found.reasons[peer] = reason[:200]

    def _keep(
        self, peer: int, size: int, aggregate: Tensor, verdict: Verdict | None = None
    ) -> None:
        found = self.found
        if not math.isfinite(float(aggregate.sum())) and not bool(torch.isfinite(aggregate).all()):
            found.reasons[peer] = f"{self.rule.name}: the aggregate is not finite"
            return
        found.aggregates[peer] = aggregate
        found.mask[peer, :size] = True
        if verdict is None:
            return
        found.lengths[peer] = verdict.length
        if self.judged:
            found.weights[peer, :size] = verdict.weights
            found.outlyingness[peer, :size] = verdict.outlyingness
