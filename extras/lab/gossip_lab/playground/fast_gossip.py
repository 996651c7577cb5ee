"""Gossip rounds of the fast engine: a model, a trust table and a clock of each peer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from .attacking import Attackers, Kind
from .consensus import MixingStrength
from .fast_rolling import CHUNK, are_finite
from .judging import Judges, Neighbourhoods
from .moments import Moment
from .parts import Parts
from .presence import Peers, Times
from .pushing import LatePushes, Pushes, VectorRows
from .schedule import Schedule

OWN_SHARE = 0.5
"""Share of the own model difference in what a peer applies, as in ``GossipRounds``."""


class GossipWorld:
    """State of a world in gossip rounds."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._task, self._settings = parts, parts.task, parts.settings
        n, d, settings = parts.peers, parts.task.cohort.d, parts.settings
        self._here, self._sent = VectorRows(n, d), VectorRows(n, d)
        self._here.own[:] = parts.task.cohort.initial
        self._memory = None if parts.task.outer is None else torch.zeros(n, d)
        self._moves: Tensor | None = None  # new memory for each exchange is slow
        # the last aggregate of each peer; NaN before the first
        remembers = "previous" in parts.rule.needs
        self._previous = torch.full((n, d), torch.nan) if remembers else None
        self._attackers = Attackers(parts)
        self._mixing = MixingStrength(settings)
        self._judges = Judges(parts)
        self._schedule = Schedule(parts, self._judges.are_locked)
        most = settings.gossip.staleness_max
        self._late: dict[Kind, LatePushes] = {
            "gradient": LatePushes(n, most),
            "parameters": LatePushes(n, most),
        }
        self._round_id = self._bytes = self._samples = 0
        self._now_s = 0.0
        self._honest = np.ones(n, bool)
        self._honest[sorted(parts.mishaps.byzantine)] = False

    def play_round(self) -> Moment:
        """Play one round of all peers that take part in it.

        Raises: ConfigError: All peers have crashed.
        """
        times = self._schedule.next_round()
        peers, self._now_s = times.peers, times.end_s
        self._bytes += times.nbytes
        self._judges.begin(self._round_id, times.roster)
        self._restore(times.lost, peers)
        self._compute_updates(peers)
        lost = self._finish(peers, times.pushes, times.close_s)
        if (policy := self._parts.moves) is not None and policy.is_due(self._round_id):
            updates = self._sent.own[_rows_at(peers)]
            self._task, nbytes = self._task.swap_samples(policy, peers, updates, self._round_id)
            self._bytes += nbytes
        self._round_id += 1
        present = self._schedule.presence.present
        return Moment(
            self._round_id,
            self._now_s,
            self._bytes,
            self._samples,
            self._here.own,
            present,
            self._judges.count_quarantined(self._honest & present),
            lost,
        )

    def _restore(self, lost: list[int], peers: Peers) -> None:
        """Let peers that have started again adopt the state of another one."""
        donors = np.setdiff1d(peers, lost)
        for peer in lost:
            own, memory = self._here.own, self._memory
            own[peer] = own[donors[0]] if len(donors) else self._task.cohort.initial
            if memory is not None:
                memory[peer] = memory[donors[0]] if len(donors) else 0.0
            self._judges.forget(peer)

    # --- pushes -----------------------------------------------------------------------------------

    def _compute_updates(self, peers: Peers) -> None:
        """Compute the true updates of these peers."""
        self._sent.clear()
        own, here, flipped = self._sent.own, self._here.own, self._attackers.flipped
        for begin in range(0, len(peers), CHUNK):
            some = peers[begin : begin + CHUNK]
            at = _rows_at(some)
            own[at] = self._task.compute_updates(here[at], some, self._round_id, flipped[some])

    def _falsify(self, peers: Peers, pushes: Pushes) -> tuple[Pushes, Peers]:
        """Replace what attackers send. Return the pushes, and the row of the true update of each
        peer, ``(n,)``."""
        attackers, sent = self._attackers, self._sent
        own_rows = np.arange(self._parts.peers)
        liars = peers[attackers.false[peers]]
        own_rows[liars] = sent.add(sent.own[liars]) + np.arange(len(liars))
        attackers.falsify(sent.own, peers, peers, self._round_id)
        return self._send_apart(sent, pushes), own_rows

    def _send_apart(self, vectors: VectorRows, pushes: Pushes) -> Pushes:
        """Give pushes of attackers that send each receiver another vector rows of their own."""
        told = self._attackers.apart[pushes.senders] & np.isfinite(pushes.arrives_s)
        if not told.any():
            return pushes
        rows, lies = pushes.rows.copy(), []
        for at in np.flatnonzero(told).tolist():
            sender, receiver = int(pushes.senders[at]), int(pushes.receivers[at])
            near = pushes.senders[
                slice(*np.searchsorted(pushes.receivers, [receiver, receiver + 1]))
            ]
            others = vectors.own[[receiver, *near[self._honest[near]]]]
            lies.append(self._attackers.falsify_for(vectors.own[sender], sender, receiver, others))
        rows[told] = vectors.add(torch.stack(lies)) + np.arange(len(lies))
        return replace(pushes, rows=rows)

    def _collect(
        self, kind: Kind, vectors: VectorRows, own_rows: Peers, pushes: Pushes, close_s: Times
    ) -> Neighbourhoods:
        """Return the vectors that each peer uses in this round: its own one, and the newest that
        has come from each sender."""
        used = self._late[kind].collect(self._round_id, pushes, vectors, close_s)
        n, peers = self._parts.peers, np.flatnonzero(np.isfinite(close_s))
        receivers = np.concatenate([peers, *[each.receivers for each in used]])
        senders = np.concatenate([peers, *[each.senders for each in used]])
        rows = np.concatenate([own_rows[peers], *[each.rows for each in used]])
        order = np.argsort(receivers * n + senders)
        counts = np.bincount(receivers, minlength=n)[peers]
        starts = np.concatenate([[0], counts.cumsum()])
        return Neighbourhoods(peers, starts, senders[order], rows[order])

    # --- results ----------------------------------------------------------------------------------

    def _finish(self, peers: Peers, pushes: Pushes, close_s: Times) -> bool:
        """Apply the round on all peers that take part. Return whether one of them made no step."""
        pushes, own_rows = self._falsify(peers, pushes)
        mixes = self._schedule.mixes(self._round_id)
        moves = self._mix(peers, pushes, close_s) if mixes else None
        near = self._collect("gradient", self._sent, own_rows, pushes, close_s)
        vectors, here = self._sent.every, self._here.own
        broken = ~are_finite(vectors)[near.rows] & ~near.are_own
        faulty, near = near.choose(broken), near.choose(~broken)
        out = self._judges.find_outside(near)
        outside, used = near.choose(out), near.choose(~out)
        lost = False
        for begin in range(0, len(peers), CHUNK):
            end = min(begin + CHUNK, len(peers))
            some, at = used.between(begin, end), _rows_at(peers[begin:end])
            before = None if self._previous is None else self._previous[at]
            found = self._judges.aggregate(vectors, some, before)
            lost |= bool(found.failed.any())
            beside = outside.between(begin, end), faulty.between(begin, end)
            self._judges.observe(vectors, some, found, *beside)
            if moves is not None:
                here[at] += moves[begin:end]
            self._step(at, found.vectors, some, vectors)
        self._samples += len(peers) * self._task.batch * self._task.local_steps
        return lost

    def _step(
        self, at: slice | Peers, results: Tensor, near: Neighbourhoods, vectors: Tensor
    ) -> None:
        """Step with the aggregates ``(m, d)`` of some peers, which this changes."""
        here, outer = self._here.own, self._task.outer
        if outer is not None:
            own_share = torch.from_numpy(np.where(near.counts > 1, OWN_SHARE, 0.0)).float()[:, None]
            results.mul_(1 - own_share).add_(vectors[near.own_rows].mul_(own_share))
        if self._previous is not None:
            self._previous[at] = results
        if outer is None:
            here[at] -= results.mul_(self._task.lr)
            return
        assert self._memory is not None
        move, self._memory[at] = outer.move(results, self._memory[at])
        here[at] -= move

    def _mix(self, peers: Peers, pushes: Pushes, close_s: Times) -> Tensor:
        """Return how far each peer moves towards the parameters of the others, ``(m, d)``."""
        here, everybody = self._here, np.arange(self._parts.peers)
        here.clear()
        liars = peers[self._attackers.false[peers]]
        sent_rows = everybody.copy()  # a liar keeps its true parameters
        sent_rows[liars] = here.add(here.own[liars]) + np.arange(len(liars))
        self._attackers.falsify(here.every, sent_rows[peers], peers, self._round_id, "parameters")
        told = self._send_apart(here, replace(pushes, rows=sent_rows[pushes.senders]))
        near = self._collect("parameters", here, everybody, told, close_s)
        vectors = here.every
        near = near.choose(are_finite(vectors)[near.rows] | near.are_own)
        near = near.choose(~self._judges.find_outside(near))
        if self._moves is None:
            self._moves = torch.empty(self._parts.peers, vectors.shape[1])
        moves = self._moves[: len(near.peers)]
        self._judges.mix(vectors, near, moves)
        others = ~near.are_own
        sent = vectors[sent_rows] if len(liars) else here.own
        self._mixing.measure(sent, near.peers[near.owners[others]], near.members[others])
        return moves.mul_(self._mixing.scales(near.counts - 1, near.peers)[:, None])


def _rows_at(peers: Peers) -> slice | Peers:
    """Return an index of these rows; a slice where they follow each other, which copies nothing."""
    if len(peers) and int(peers[-1]) - int(peers[0]) == len(peers) - 1:
        return slice(int(peers[0]), int(peers[-1]) + 1)
    return peers
