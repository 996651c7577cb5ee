"""Aggregation of all neighbourhoods of a gossip round in one call.

    found = aggregate_neighbourhoods(
        load("trimmed_mean"), models, neighbours, f=[1] * len(models), judged=False, out=memory
    )
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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossip.aggregators import BoundRule, CoordinateRule, Verdict
from gossip.errors import ConfigError

log = logging.getLogger(__name__)
SHARED = frozenset({"learning_rate", "round_id"})
"""Options with one value for all neighbourhoods. Other options have a value for each."""
WIDE = 2**19
"""Maximum number of elements of a wide matrix: 2 MiB in float32."""


@dataclass(frozen=True, slots=True)
class NeighbourhoodVerdicts:
    """Verdicts of a rule on m neighbourhoods of at most k updates.

    Attributes:
        aggregates: ``(m, d)``, dtype and device of the updates; NaN where the rule failed.
        reasons: Reason why the rule failed, or None, for each neighbourhood.
        outlyingness: ``(m, k)`` float64: as in ``Verdict``, in the order of the neighbourhood; 0
            for padding, where the rule failed, and if not ``judged``.
    """

    aggregates: Tensor
    reasons: list[str | None]
    outlyingness: NDArray[np.float64]


def aggregate_neighbourhoods(  # noqa: PLR0913 - most arguments are given by name
    rule: BoundRule,
    updates: Tensor,
    neighbours: Sequence[Sequence[int]],
    *,
    f: Sequence[int],
    judged: bool,
    out: Tensor,
    **options: Any,
) -> NeighbourhoodVerdicts:
    """Aggregate every neighbourhood with the rule.

    If the rule raises an exception or returns an aggregate that is not finite, only this
    neighbourhood fails.

    Args:
        updates: ``(n, d)``, one row per peer, all finite.
        neighbours: Rows of ``updates`` in each of m neighbourhoods, including the peer's own row.
        f: Number of Byzantine peers to tolerate in each of the m neighbourhoods.
        judged: Whether to return outlyingness. If True, results are bitwise equal to those of
            ``rule.explain``; if False, aggregates are bitwise equal to those of ``rule``. For some
            rules these two round differently.
        out: ``(m, d)``, memory for the aggregates. It must not overlap with ``updates``. Allocating
            new memory takes a quarter of the time of a mean.
        options: Arguments for the rule; only those that the rule has are passed. ``center``,
            ``gradient`` and ``previous`` are ``(m, d)``, or m vectors; None in place of a vector
            means that the neighbourhood has no such vector. ``evaluate`` has m functions.
            ``learning_rate`` and ``round_id`` are numbers.
    Raises: ConfigError: An argument that the rule needs is missing.
    """
    sizes = np.array([len(rows) for rows in neighbours], np.int64)
    members = np.fromiter(chain.from_iterable(neighbours), np.int64, int(sizes.sum()))
    m, k = len(sizes), int(sizes.max(initial=0))
    if m:
        rule.chosen({**options, "f": f})  # Raises if an argument that the rule needs is missing.
    found = NeighbourhoodVerdicts(out, [None] * m, np.zeros((m, k)))
    run = _Run(rule, updates.detach(), options, judged, found)
    starts = np.cumsum(sizes) - sizes
    alike: dict[tuple[int, int], list[int]] = {}
    for peer, key in enumerate(zip(sizes.tolist(), f, strict=True)):
        alike.setdefault(key, []).append(peer)
    for (size, own_f), peers in alike.items():
        count = max(1, WIDE // max(1, size * updates.shape[1]))
        for some in (peers[at : at + count] for at in range(0, len(peers), count)):
            places = torch.from_numpy(members[starts[some][:, None] + np.arange(size)])
            run.aggregate(some, places, own_f)
    out[[peer for peer, reason in enumerate(found.reasons) if reason is not None]] = torch.nan
    return found


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
            or self.options.keys() & (self.rule.needs - SHARED)
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
                self._keep(peer, verdict.aggregate, verdict)
            return True
        if not bool(torch.isfinite(aggregates.sum(dim=1)).all()):
            return False
        self.found.aggregates[peers] = aggregates
        return True

    def _aggregate_one(self, peer: int, members: Tensor, f: int) -> None:
        rows = self.updates.index_select(0, members)
        available = {
            name: values if name in SHARED else values[peer]
            for name, values in self.options.items()
        }
        try:
            if self.judged:
                verdict = self.rule.explain(rows, f=f, **available)
                self._keep(peer, verdict.aggregate, verdict)
            else:
                self._keep(peer, self.rule(rows, f=f, **available))
        except ConfigError as error:
            self.found.reasons[peer] = str(error)
        except Exception as error:  # noqa: BLE001
            # The update of a Byzantine peer may make the rule fail, but must not end the round.
            reason = f"{self.rule.name} failed: {type(error).__name__}: {error}"
            self.found.reasons[peer] = reason[:200]

    def _keep(self, peer: int, aggregate: Tensor, verdict: Verdict | None = None) -> None:
        found = self.found
        if not math.isfinite(float(aggregate.sum())) and not bool(torch.isfinite(aggregate).all()):
            found.reasons[peer] = f"{self.rule.name}: the aggregate is not finite"
            return
        found.aggregates[peer] = aggregate
        if verdict is not None:
            found.outlyingness[peer, : len(verdict.outlyingness)] = verdict.outlyingness
