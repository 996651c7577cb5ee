"""Aggregation of all neighbourhoods of a gossip round in one call.

    found = aggregate_neighbourhoods(
        load("trimmed_mean"), vectors, near, f=[1] * len(near.peers), judged=False, out=memory
    )

A coordinate-wise rule runs once for several neighbourhoods of the same size. The updates of these
neighbourhoods are concatenated as columns of one wide matrix that fits into the cache. Any other
rule runs once for each neighbourhood.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossip.aggregators import BoundRule, CoordinateRule, Verdict

from .learners import chunks
from .presence import Peers

log = logging.getLogger(__name__)
SHARED = frozenset({"learning_rate", "round_id"})
"""Options with one value for all neighbourhoods. Other options have a value for each."""
WIDE = 2**19
"""Maximum number of elements of a wide matrix: 2 MiB in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class Neighbourhoods:
    """Neighbourhoods of m peers: the vectors that the rule of each peer receives.

    Attributes:
        peers: ``(m,)``: ids of the peers, ascending.
        starts: ``(m + 1,)``: neighbourhood i has the entries from ``starts[i]`` to below ``starts[i
            + 1]`` of ``members`` and ``rows``.
        members: ``(e,)``: ids of the senders, ascending in each neighbourhood; the peer itself is
            one of them.
        rows: ``(e,)``: row of the vector of each member in a matrix of vectors.
    """

    peers: Peers
    starts: Peers
    members: Peers
    rows: Peers

    @property
    def counts(self) -> Peers:
        """Number of members of each neighbourhood, ``(m,)``."""
        counts: Peers = np.diff(self.starts)
        return counts

    @property
    def owners(self) -> Peers:
        """Index of the neighbourhood of each member, ``(e,)``."""
        return np.repeat(np.arange(len(self.peers)), self.counts)

    @property
    def are_own(self) -> NDArray[np.bool_]:
        """Whether each member is the peer of its neighbourhood, ``(e,)``."""
        found: NDArray[np.bool_] = self.members == self.peers[self.owners]
        return found

    def choose(self, chosen: NDArray[np.bool_]) -> Neighbourhoods:
        """Return the neighbourhoods with only the members where ``chosen``, ``(e,)`` bool, is
        true."""
        counts = np.bincount(self.owners[chosen], minlength=len(self.peers))
        starts = np.concatenate([[0], counts.cumsum()])
        return replace(self, starts=starts, members=self.members[chosen], rows=self.rows[chosen])

    @property
    def own_rows(self) -> Peers:
        """Row of each peer's own vector, ``(m,)``."""
        return self.rows[self.are_own]

    def members_of(self, at: int) -> Peers:
        """Return the members of one neighbourhood."""
        return self.members[self.starts[at] : self.starts[at + 1]]

    def between(self, chunk: slice) -> Neighbourhoods:
        """Return the neighbourhoods from ``chunk.start`` to below ``chunk.stop``."""
        starts = self.starts[chunk.start : chunk.stop + 1]
        part = slice(starts[0], starts[-1])
        return Neighbourhoods(
            self.peers[chunk], starts - starts[0], self.members[part], self.rows[part]
        )


@dataclass(frozen=True, slots=True, eq=False)
class Aggregates:
    """Results of the rule on m neighbourhoods with e members.

    Attributes:
        vectors: ``(m, d)``: the aggregates. A row is undefined where the rule failed or there was
            only one member.
        outlyingness: ``(e,)``: as in ``Verdict``, for each member's vector; 1 if it is not known.
        failed: ``(m,)`` bool: neighbourhoods on which the rule failed.
    """

    vectors: Tensor
    outlyingness: NDArray[np.float64]
    failed: NDArray[np.bool_]


def aggregate_neighbourhoods(  # noqa: PLR0913 - most arguments are given by name
    rule: BoundRule,
    vectors: Tensor,
    near: Neighbourhoods,
    *,
    f: Sequence[int],
    judged: bool,
    out: Tensor,
    **options: Any,
) -> Aggregates:
    """Aggregate every neighbourhood of more than one member with the rule.

    If the rule raises an exception or returns an aggregate that is not finite, only this
    neighbourhood fails.

    Args:
        vectors: ``(v, d)``; those of the members are finite.
        near: m neighbourhoods.
        f: Number of Byzantine peers to tolerate in each of the m neighbourhoods.
        judged: Whether to return outlyingness. If True, results are bitwise equal to those of
            ``rule.explain``; if False, aggregates are bitwise equal to those of ``rule``. For some
            rules these two round differently.
        out: ``(m, d)``, memory for the aggregates. It must not overlap with ``vectors``. Allocating
            new memory takes a quarter of the time of a mean.
        options: Arguments for the rule; only those that the rule has are passed. ``center``,
            ``gradient`` and ``previous`` are ``(m, d)``, or m vectors; None in place of a vector
            means that the neighbourhood has no such vector. ``evaluate`` has m functions.
            ``learning_rate`` and ``round_id`` are numbers.
    Raises: ConfigError: An argument that the rule needs is missing.
    """
    found = Aggregates(out, np.ones(len(near.rows)), np.zeros(len(near.peers), bool))
    run = _Run(rule, vectors.detach(), near, options, judged, found)
    alike: dict[tuple[int, int], list[int]] = {}
    for at, key in enumerate(zip(near.counts.tolist(), f, strict=True)):
        if key[0] > 1:
            alike.setdefault(key, []).append(at)
    if alike:
        rule.chosen({**options, "f": f})  # Raises if an argument that the rule needs is missing.
    for (size, own_f), places in alike.items():
        for part in chunks(len(places), max(1, WIDE // (size * vectors.shape[1]))):
            run.aggregate(places[part], size, own_f)
    return found


@dataclass(frozen=True, slots=True)
class _Run:
    """A rule with its arguments and the results so far."""

    rule: BoundRule
    vectors: Tensor
    near: Neighbourhoods
    options: Mapping[str, Any]
    judged: bool
    found: Aggregates

    def aggregate(self, places: Sequence[int], size: int, f: int) -> None:
        """Aggregate the neighbourhoods at these places, which all have this size."""
        rows = self.near.rows[self.near.starts[places][:, None] + np.arange(size)]
        members = torch.from_numpy(rows)
        if not self._aggregate_together(places, members, f):
            for at, own in zip(places, members, strict=True):
                self._aggregate_one(at, own, f)

    def _aggregate_together(self, places: Sequence[int], members: Tensor, f: int) -> bool:
        """Aggregate all neighbourhoods in one call of the rule. Return False if this is not
        possible. ``members``: ``(places, size)``, rows of ``vectors``."""
        rule, (count, size) = self.rule.rule, members.shape
        if (
            not isinstance(rule, CoordinateRule)
            or self.options.keys() & (self.rule.needs - SHARED)
            # Such a function may return its own verdict.
            or (self.judged and not rule.takes_columns)
        ):
            return False
        rows = self.vectors.index_select(0, members.T.reshape(-1))
        wide = rows.view(size, count * rows.shape[1])  # row i: i-th vector of each neighbourhood
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
            for at, verdict in zip(places, verdicts, strict=True):
                self._keep(at, verdict.aggregate, verdict)
            return True
        if not bool(torch.isfinite(aggregates.sum(dim=1)).all()):
            return False
        self.found.vectors[places] = aggregates
        return True

    def _aggregate_one(self, at: int, members: Tensor, f: int) -> None:
        rows = self.vectors.index_select(0, members)
        available = {
            name: values if name in SHARED else values[at] for name, values in self.options.items()
        }
        try:
            if self.judged:
                verdict = self.rule.explain(rows, f=f, **available)
                self._keep(at, verdict.aggregate, verdict)
            else:
                self._keep(at, self.rule(rows, f=f, **available))
        except Exception as error:  # noqa: BLE001
            # The update of a Byzantine peer may make the rule fail, but must not end the round.
            self._fail(at, f"{type(error).__name__}: {error}")

    def _keep(self, at: int, aggregate: Tensor, verdict: Verdict | None = None) -> None:
        if not math.isfinite(float(aggregate.sum())) and not bool(torch.isfinite(aggregate).all()):
            self._fail(at, "its aggregate was not finite")
            return
        self.found.vectors[at] = aggregate
        if verdict is not None:
            members = slice(self.near.starts[at], self.near.starts[at + 1])
            self.found.outlyingness[members] = verdict.outlyingness

    def _fail(self, at: int, reason: str) -> None:
        self.found.failed[at] = True
        log.debug("no step: peer=%s rule=%s reason=%s", self.near.peers[at], self.rule.name, reason)
