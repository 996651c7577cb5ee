"""Aggregation in gossip rounds: each peer runs the rule on its neighbourhood, and has its own trust
table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossip.core import Contribution, CoreSettings, Rejection, TrustTable

from .learners import CHUNK, chunks
from .neighbourhoods import Aggregates, Neighbourhoods, aggregate_neighbourhoods
from .parts import Parts
from .presence import Peers

DIFFERENCES = 2**20
"""Maximum number of elements of the parameter differences that are aggregated in one call."""
EXACT_MAX = 256
"""Maximum number of peers with results that are bitwise equal to those of a run; also the maximum
of the exact engine. With more peers, faster code may round differently: a rule that commutes with
translation receives the parameters instead of their differences."""
SPARSE_FROM = 2_000
"""From this number of peers on, trust tables drop the entries of fully trusted peers, because all
entries would not fit in memory."""
SPARSE_EVERY = 8
"""Number of rounds between two removals of the entries of fully trusted peers."""


class Judges:
    """The rule and the trust table of each peer in gossip rounds.

    Attributes:
        lowered: Rounds in which some peer had too few vectors for the f of the settings.
    """

    def __init__(self, parts: Parts, parameters: Tensor) -> None:
        """
        Args:
            parameters: ``(n, d)``: present parameters of each peer. They change in place, and only
                rules that need a loss read them.
        """
        self._settings, self._rule, self._n = parts.settings, parts.rule, parts.peers
        self._task, self._parameters = parts.task, parameters
        self._judged = parts.settings.f > 0  # with f = 0 no peer is ever in quarantine
        self._tables = [new_table(parts.settings) for _ in range(self._n if self._judged else 0)]
        self._out = torch.empty(0, parts.task.cohort.d)  # reused, because allocating is slow
        self._locked: dict[int, frozenset[int]] = {}
        self.lowered: set[int] = set()
        self._sparse = self._n >= SPARSE_FROM
        self._remarkable = np.zeros(self._n, bool)  # for sparse tables: whether it has entries
        self._round_id, self._roster = 0, tuple(range(self._n))

    def begin(self, round_id: int, roster: tuple[int, ...]) -> None:
        """Begin a round. ``roster`` has the peers that are not known to be dead."""
        self._round_id, self._roster = round_id, roster

    def forget(self, peer: int) -> None:
        """Replace the trust table of a restarted peer by an empty table."""
        if self._tables:
            self._tables[peer] = new_table(self._settings)
            self._locked.pop(peer, None)
            self._remarkable[peer] = False

    # --- quarantine -------------------------------------------------------------------------------

    def are_locked(self, receivers: Peers, senders: Peers) -> NDArray[np.bool_]:
        """Return for each pair whether the receiver has the sender in quarantine, ``(e,)`` bool."""
        pairs = [peer * self._n + each for peer, locked in self._locked.items() for each in locked]
        return np.isin(receivers * self._n + senders, np.array(pairs, np.int64))

    def count_locked(self) -> Peers:
        """Return the number of peers that each peer has put into quarantine, ``(n,)``."""
        found = np.zeros(self._n, np.int64)
        for peer, locked in self._locked.items():
            found[peer] = len(locked)
        return found

    def count_quarantined(self, observers: NDArray[np.bool_]) -> Peers:
        """Return for each peer the number of observers that have put this peer into quarantine,
        ``(n,)``."""
        found = np.zeros(self._n, np.int64)
        for peer, locked in self._locked.items():
            found[list(locked)] += bool(observers[peer])
        return found

    def find_outside(self, near: Neighbourhoods) -> NDArray[np.bool_]:
        """Return which members are left out of the aggregation, ``(e,)`` bool. These are the
        members in quarantine, unless the rule would have too few updates without them."""
        locked = self.are_locked(near.peers[near.owners], near.members)
        left = near.counts - np.bincount(near.owners[locked], minlength=len(near.peers))
        needed = self._settings.updates_needed(self._settings.f)
        needs_all = (left < needed) & (needed <= near.counts)
        return locked & ~needs_all[near.owners]

    # --- the rule ---------------------------------------------------------------------------------

    def aggregate(
        self, vectors: Tensor, near: Neighbourhoods, previous: Tensor | None = None
    ) -> Aggregates:
        """Run the rule on each neighbourhood. The next call overwrites the results.

        Args:
            vectors: ``(v, d)``, all finite.
            previous: ``(m, d)``: last aggregate of each peer; NaN before its first aggregate.
        """
        options: dict[str, Any] = {}
        if "center" in self._rule.needs:
            options["center"] = vectors[near.own_rows]
        if previous is not None:
            known = ~previous[:, 0].isnan()
            pairs = zip(previous, known.tolist(), strict=True)
            options["previous"] = [row if there else None for row, there in pairs]
        found = self._run(vectors, near, options)
        unused = found.failed | (near.counts == 1)
        if unused.any():
            found.vectors[unused] = vectors[near.own_rows[unused]]
        return found

    def mix(self, vectors: Tensor, near: Neighbourhoods, out: Tensor) -> None:
        """Aggregate, for each neighbourhood, the differences of the members' vectors and the peer's
        own vector. Write the aggregates to ``out``, ``(m, d)``; zeros where the rule failed or
        there was no other vector."""
        d, largest = vectors.shape[1], int(near.counts.max(initial=1))
        shifts = self._n > EXACT_MAX and self._rule.rule.translation
        shifts = shifts and not self._rule.needs_trainer
        step = CHUNK if shifts else max(1, DIFFERENCES // (largest * d))
        for chunk in chunks(len(out), step):
            some = near.between(chunk)
            own = vectors[some.own_rows]
            if shifts:
                centers, given = own, vectors
            else:
                centers, given = torch.zeros_like(own), vectors[some.rows].sub_(own[some.owners])
                some = replace(some, rows=np.arange(len(some.rows)))
            options = {"center": centers} if "center" in self._rule.needs else {}
            found = self._run(given, some, options, mix=True)
            moves = found.vectors.sub_(own) if shifts else found.vectors
            moves[found.failed | (some.counts == 1)] = 0.0
            out[chunk] = moves

    def _run(
        self,
        vectors: Tensor,
        near: Neighbourhoods,
        options: dict[str, Any],
        *,
        mix: bool = False,
    ) -> Aggregates:
        """Run the rule on the neighbourhoods with more than one member. ``options`` has a value for
        each neighbourhood."""
        tolerated = self._tolerated(near.counts)
        if ((near.counts > 1) & (tolerated < self._settings.f)).any():
            self.lowered.add(self._round_id)
        if len(self._out) < len(near.peers):
            self._out = torch.empty(len(near.peers), vectors.shape[1])
        return aggregate_neighbourhoods(
            self._rule,
            vectors,
            near,
            f=tolerated.tolist(),
            judged=(self._judged and not mix) or self._n <= EXACT_MAX,
            out=self._out[: len(near.peers)],
            round_id=self._round_id,
            **options,
            **self._loss_inputs(near.peers, mix),
        )

    def _loss_inputs(self, peers: Peers, mix: bool) -> dict[str, Any]:
        """Return the arguments of a rule that needs a loss: a learning rate, and for each other
        argument one value for each peer. Empty if the rule needs no loss."""
        found: dict[str, Any] = {}
        if self._rule.needs_trainer:
            for peer in peers.tolist():
                for name, value in self._loss_inputs_of(peer, mix).items():
                    if name == "learning_rate":
                        found[name] = value
                    else:
                        found.setdefault(name, []).append(value)
        return found

    def _loss_inputs_of(self, peer: int, mix: bool) -> dict[str, Any]:
        loss = self._task.reference_loss(self._parameters[peer], self._round_id, peer)
        return loss.inputs(self._rule.needs, mix=mix)

    def _tolerated(self, counts: Peers) -> Peers:
        """Return the f for neighbourhoods of these sizes. It is smaller than the f of the settings
        if a neighbourhood has too few members."""
        settings = self._settings
        sizes = range(int(counts.max(initial=0)) + 1)
        return np.array([settings.tolerable(settings.f, size) for size in sizes])[counts]

    # --- evidence ---------------------------------------------------------------------------------

    def observe(
        self,
        vectors: Tensor,
        near: Neighbourhoods,
        results: Aggregates,
        outside: Neighbourhoods,
        faulty: Neighbourhoods,
    ) -> None:
        """Update the trust tables as ``GossipRounds`` does.

        Args:
            near, results: Inputs and results of the rule.
            outside: Members in quarantine; only the outlyingness of their updates is used.
            faulty: Members with updates that are not finite.
        """
        if not self._judged:
            return
        tolerated = self._tolerated(near.counts).tolist()
        far, members = results.outlyingness.tolist(), near.members.tolist()
        for at, peer in enumerate(near.peers.tolist()):
            begin, end = int(near.starts[at]), int(near.starts[at + 1])
            rejected = [Rejection(each, "non_finite") for each in faulty.members_of(at).tolist()]
            verdicts = []
            if end - begin > 1 and not results.failed[at]:
                verdicts = [
                    Contribution(members[i], self._task.samples, 0.0, far[i])
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
        """Measure the updates of quarantined neighbours, and return their outlyingness as seen by
        the peer of neighbourhood ``at``."""
        part = slice(near.starts[at], near.starts[at + 1])
        beside = slice(outside.starts[at], outside.starts[at + 1])
        given = vectors[np.concatenate([near.rows[part], outside.rows[beside]])]
        options: dict[str, Any] = {"f": f, "round_id": self._round_id}
        if "center" in self._rule.needs:
            options["center"] = vectors[near.rows[part][near.members[part] == near.peers[at]][0]]
        if self._rule.needs_trainer:
            options |= self._loss_inputs_of(int(near.peers[at]), mix=False)
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
    """Drop the entries of fully trusted peers. Return whether the table still has entries."""
    rows, *counts = table.pack()
    kept = tuple([row for row in rows if (row[1], row[3], row[6]) != (1.0, "normal", 1.0)])
    table.unpack((kept, *counts))
    return bool(kept)


def new_table(settings: CoreSettings) -> TrustTable:
    """Return an empty trust table."""
    return TrustTable(settings.trust, settings.f, settings.updates_for, judged=settings.judged)
