"""Aggregation in gossip rounds: each peer runs the rule on its neighbourhood, and keeps its own
trust table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossip.core import Contribution, CoreSettings, Rejection, TrustTable

from .neighbourhoods import aggregate_neighbourhoods
from .parts import Parts
from .presence import Peers

CHUNK = 2**10
"""Number of neighbourhoods that are aggregated in one call."""
DIFFERENCES = 2**20
"""Largest number of elements of differences that are aggregated in one call."""
EXACT_MAX = 256
"""Number of peers up to which results have the bits of a run: the maximum of the exact engine.
With more peers, a rule may round differently, and a rule that commutes with shifts receives
parameters instead of their differences."""
SPARSE_FROM = 2_000
"""Number of peers from which tables drop the entries of peers with full trust: all entries would
not fit in memory."""
SPARSE_EVERY = 8
"""Rounds between two removals of these entries."""


@dataclass(frozen=True, slots=True, eq=False)
class Neighbourhoods:
    """Input vectors of the rule of each of m peers.

    Attributes:
        peers: ``(m,)``, ascending.
        starts: ``(m + 1,)``: begin and end of each neighbourhood in ``members`` and ``rows``.
        members: ``(e,)``: the senders, ascending in each neighbourhood.
        rows: ``(e,)``: the rows of their vectors.
    """

    peers: Peers
    starts: Peers
    members: Peers
    rows: Peers

    @property
    def counts(self) -> Peers:
        """``(m,)``: the members of each."""
        counts: Peers = np.diff(self.starts)
        return counts

    @property
    def owners(self) -> Peers:
        """``(e,)``: for each member, the number of its neighbourhood."""
        return np.repeat(np.arange(len(self.peers)), self.counts)

    @property
    def are_own(self) -> NDArray[np.bool_]:
        """``(e,)``: whether the member is the peer itself."""
        found: NDArray[np.bool_] = self.members == self.peers[self.owners]
        return found

    def choose(self, chosen: NDArray[np.bool_]) -> Neighbourhoods:
        """Return the neighbourhoods with only some of the members, ``(e,)``."""
        counts = np.bincount(self.owners[chosen], minlength=len(self.peers))
        starts = np.concatenate([[0], counts.cumsum()])
        return replace(self, starts=starts, members=self.members[chosen], rows=self.rows[chosen])

    @property
    def own_rows(self) -> Peers:
        """``(m,)``: the row of each peer's own vector."""
        return self.rows[self.are_own]

    def members_of(self, at: int) -> Peers:
        """Return the members of one neighbourhood."""
        return self.members[self.starts[at] : self.starts[at + 1]]

    def between(self, begin: int, end: int) -> Neighbourhoods:
        """Return some of the neighbourhoods."""
        starts = self.starts[begin : end + 1]
        part = slice(starts[0], starts[-1])
        return Neighbourhoods(
            self.peers[begin:end], starts - starts[0], self.members[part], self.rows[part]
        )


@dataclass(frozen=True, slots=True, eq=False)
class Aggregates:
    """Results of the rule.

    Attributes:
        vectors: ``(m, d)``; the peer's own vector where the rule failed or had no other vector.
        outlyingness: ``(e,)``.
        failed: ``(m,)`` bool.
    """

    vectors: Tensor
    outlyingness: NDArray[np.float64]
    failed: NDArray[np.bool_]


class Judges:
    """The rule and the trust table of each peer in gossip rounds."""

    def __init__(self, parts: Parts) -> None:
        self._settings, self._rule, self._n = parts.settings, parts.rule, parts.peers
        self._samples = parts.task.batch * parts.task.local_steps
        self._judged = parts.settings.f > 0  # Otherwise no peer is ever in quarantine.
        self._tables = [new_table(parts.settings) for _ in range(self._n if self._judged else 0)]
        self._out = torch.empty(0, parts.task.cohort.d)  # reused: new memory for each call is slow
        self._locked: dict[int, frozenset[int]] = {}
        self._sparse = self._n >= SPARSE_FROM
        self._remarkable = np.zeros(self._n, bool)  # tables that are not empty, if they are sparse
        self._round_id, self._roster = 0, tuple(range(self._n))

    def begin(self, round_id: int, roster: tuple[int, ...]) -> None:
        """Begin a round. ``roster``: peers that are not known dead."""
        self._round_id, self._roster = round_id, roster

    def forget(self, peer: int) -> None:
        """Drop the table of a restarted peer."""
        if self._tables:
            self._tables[peer] = new_table(self._settings)
            self._locked.pop(peer, None)
            self._remarkable[peer] = False

    # --- quarantine -------------------------------------------------------------------------------

    def are_locked(self, receivers: Peers, senders: Peers) -> NDArray[np.bool_]:
        """Return for each pair whether the first has the second in quarantine, ``(e,)``."""
        pairs = [peer * self._n + each for peer, locked in self._locked.items() for each in locked]
        return np.isin(receivers * self._n + senders, np.array(pairs, np.int64))

    def count_locked(self) -> Peers:
        """Return the number of other peers that each peer has in quarantine, ``(n,)``."""
        found = np.zeros(self._n, np.int64)
        for peer, locked in self._locked.items():
            found[peer] = len(locked)
        return found

    def count_quarantined(self, observers: NDArray[np.bool_]) -> Peers:
        """Return for each peer the number of observers that have it in quarantine, ``(n,)``."""
        found = np.zeros(self._n, np.int64)
        for peer, locked in self._locked.items():
            found[list(locked)] += bool(observers[peer])
        return found

    def find_outside(self, near: Neighbourhoods) -> NDArray[np.bool_]:
        """Return the members that are left out, ``(e,)`` bool: those in quarantine, unless the rule
        tolerates f only with them."""
        locked = self.are_locked(near.peers[near.owners], near.members)
        left = near.counts - np.bincount(near.owners[locked], minlength=len(near.peers))
        needed = self._settings.updates_needed(self._settings.f)
        needs_all = (left < needed) & (needed <= near.counts)
        return locked & ~needs_all[near.owners]

    # --- the rule ---------------------------------------------------------------------------------

    def aggregate(
        self, vectors: Tensor, near: Neighbourhoods, previous: Tensor | None = None
    ) -> Aggregates:
        """Run the rule on each neighbourhood. The results are in memory of the next call.

        Args:
            vectors: ``(v, d)``, all finite.
            previous: ``(m, d)``: the last aggregates; NaN where there is none.
        """
        options: dict[str, Any] = {}
        if "center" in self._rule.needs:
            options["center"] = vectors[near.own_rows]
        if previous is not None:
            known = ~previous[:, 0].isnan()
            pairs = zip(previous, known.tolist(), strict=True)
            options["previous"] = [row if there else None for row, there in pairs]
        found = self._run(vectors, near, self._judged, options)
        unused = found.failed | (near.counts == 1)
        if unused.any():
            found.vectors[unused] = vectors[near.own_rows[unused]]
        return found

    def mix(self, vectors: Tensor, near: Neighbourhoods, out: Tensor) -> None:
        """Write the aggregate of each neighbourhood's differences from the own vector to ``out``,
        ``(m, d)``; zeros where the rule failed or had no other vector."""
        d, largest = vectors.shape[1], int(near.counts.max(initial=1))
        shifts = self._n > EXACT_MAX and self._rule.rule.translation
        step = CHUNK if shifts else max(1, DIFFERENCES // (largest * d))
        for begin in range(0, len(out), step):
            some = near.between(begin, min(begin + step, len(out)))
            own = vectors[some.own_rows]
            if shifts:
                centers, given = own, vectors
            else:
                centers, given = torch.zeros_like(own), vectors[some.rows].sub_(own[some.owners])
                some = replace(some, rows=np.arange(len(some.rows)))
            options = {"center": centers} if "center" in self._rule.needs else {}
            found = self._run(given, some, False, options)
            moves = found.vectors.sub_(own) if shifts else found.vectors
            moves[found.failed | (some.counts == 1)] = 0.0
            out[begin : begin + len(some.peers)] = moves

    def _run(
        self, vectors: Tensor, near: Neighbourhoods, judged: bool, options: dict[str, Any]
    ) -> Aggregates:
        """Run the rule on the neighbourhoods of more than one member."""
        several = near.counts > 1
        chosen = np.flatnonzero(several)
        rows = np.split(near.rows, near.starts[1:-1])
        if len(self._out) < len(rows):
            self._out = torch.empty(len(rows), vectors.shape[1])
        out = self._out[: len(rows)]
        verdicts = aggregate_neighbourhoods(
            self._rule,
            vectors,
            [rows[at].tolist() for at in chosen],
            f=self._tolerated(near.counts[several]),
            judged=judged or self._n <= EXACT_MAX,
            out=out[: len(chosen)],
            round_id=self._round_id,
            **{name: [values[at] for at in chosen] for name, values in options.items()},
        )
        if len(chosen) < len(rows):
            out[chosen] = verdicts.aggregates.clone()
        failed = np.zeros(len(rows), bool)
        failed[several] = [reason is not None for reason in verdicts.reasons]
        outlyingness = np.ones(len(near.rows))
        if judged:
            there = np.arange(verdicts.outlyingness.shape[1]) < near.counts[several][:, None]
            outlyingness[several[near.owners]] = verdicts.outlyingness[there]
        return Aggregates(out, outlyingness, failed)

    def _tolerated(self, counts: Peers) -> list[int]:
        """Return the f of neighbourhoods of these sizes; lower if a neighbourhood has too few
        members."""
        settings = self._settings
        sizes = range(int(counts.max(initial=0)) + 1)
        by_count = [settings.tolerable(settings.f, size) for size in sizes]
        return [by_count[count] for count in counts.tolist()]

    # --- evidence ---------------------------------------------------------------------------------

    def observe(
        self,
        vectors: Tensor,
        near: Neighbourhoods,
        results: Aggregates,
        outside: Neighbourhoods,
        faulty: Neighbourhoods,
    ) -> None:
        """Feed the tables as ``GossipRounds`` does.

        Args:
            near, results: Inputs of the rule, and its verdicts.
            outside: Peers in quarantine; their updates are only measured.
            faulty: Peers with updates that are not finite.
        """
        if not self._judged:
            return
        tolerated = self._tolerated(near.counts)
        far, members = results.outlyingness.tolist(), near.members.tolist()
        for at, peer in enumerate(near.peers.tolist()):
            begin, end = int(near.starts[at]), int(near.starts[at + 1])
            rejected = [Rejection(each, "non_finite") for each in faulty.members_of(at).tolist()]
            verdicts = []
            if end - begin > 1 and not results.failed[at]:
                verdicts = [
                    Contribution(members[i], self._samples, 0.0, far[i])
                    for i in range(begin, end)
                    if members[i] != peer
                ]
                if len(outside.members_of(at)):
                    measured = self._measure(vectors, near, outside, at, tolerated[at])
                    rejected = [*measured, *rejected]
            self._judge(peer, verdicts, rejected)

    def _measure(
        self, vectors: Tensor, near: Neighbourhoods, outside: Neighbourhoods, at: int, f: int
    ) -> list[Rejection]:
        """Return the outlyingness of the updates of one peer's neighbours in quarantine."""
        part = slice(near.starts[at], near.starts[at + 1])
        beside = slice(outside.starts[at], outside.starts[at + 1])
        given = vectors[np.concatenate([near.rows[part], outside.rows[beside]])]
        options: dict[str, Any] = {"f": f, "round_id": self._round_id}
        if "center" in self._rule.needs:
            options["center"] = vectors[near.rows[part][near.members[part] == near.peers[at]][0]]
        measures = self._rule.measure(given, int(near.counts[at]), **options)
        pairs = zip(outside.members[beside].tolist(), measures, strict=False)
        return [Rejection(each, "quarantined", value) for each, value in pairs]

    def _judge(self, peer: int, verdicts: list[Contribution], rejected: list[Rejection]) -> None:
        table, outlying = self._tables[peer], self._settings.trust.outlying
        if (
            self._sparse
            and not (self._remarkable[peer] or rejected)
            and all(each.outlyingness <= outlying for each in verdicts)
        ):
            return
        table.observe_commit(self._round_id, verdicts, rejected, roster=self._roster)
        if self._sparse:
            self._remarkable[peer] = True
            if (self._round_id + peer) % SPARSE_EVERY == 0:
                self._remarkable[peer] = forget_ordinary(table)
        locked = table.quarantined()
        if locked or peer in self._locked:
            self._locked[peer] = locked


def forget_ordinary(table: TrustTable) -> bool:
    """Drop the peers that have full trust. Return whether any others are left."""
    rows, *counts = table.pack()
    kept = tuple([row for row in rows if (row[1], row[3], row[6]) != (1.0, "normal", 1.0)])
    table.unpack((kept, *counts))
    return bool(kept)


def new_table(settings: CoreSettings) -> TrustTable:
    """Return an empty trust table."""
    return TrustTable(settings.trust, settings.f, settings.updates_for, judged=settings.judged)
