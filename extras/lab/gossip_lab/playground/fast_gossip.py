"""Gossip rounds of the fast engine: a model, a trust table and a clock of each peer."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossip.core import STASH_ROUNDS
from gossip.errors import ConfigError
from gossip.topologies import Roster

from .attacking import Attackers, Kind
from .consensus import MixingStrength
from .counters import draw_uniform
from .fast_rolling import APPLY_S, CHUNK, RULE_S, are_finite
from .graces import Graces
from .judging import Judges, Neighbourhoods
from .moments import Moment
from .parts import Parts
from .presence import Peers, Presence, Times
from .pushing import LatePushes, Pushes, VectorRows

OWN_SHARE = 0.5
"""Share of the own model difference in what a peer applies, as in ``GossipRounds``."""
PACES_KEPT = 8
"""Rounds from which the usual duration of a round is taken."""


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
        self._presence = Presence(parts)
        self._attackers = Attackers(parts)
        self._graces = Graces(settings)
        self._mixing = MixingStrength(settings)
        self._judges = Judges(parts)
        self._ready_s = np.zeros(n)  # when each peer can begin its next round
        self._behind = np.zeros(n, bool)
        self._paces: deque[float] = deque(maxlen=PACES_KEPT)
        most = settings.gossip.staleness_max
        self._late: dict[Kind, LatePushes] = {
            "gradient": LatePushes(n, most),
            "parameters": LatePushes(n, most),
        }
        self._round_id = self._bytes = self._samples = 0
        self._now_s = 0.0
        self._honest = np.ones(n, bool)
        self._honest[sorted(parts.mishaps.byzantine)] = False

    @property
    def _mixes(self) -> bool:
        every = self._settings.gossip.mix_every
        return self._round_id % every == every - 1

    @property
    def _usual_s(self) -> float:
        """Usual duration of a round, in seconds; 0 while it is unknown."""
        return float(np.median(self._paces)) if self._paces else 0.0

    def play_round(self) -> Moment:
        """Play one round of all peers that take part in it.

        Raises: ConfigError: All peers have crashed.
        """
        self._return_peers()
        finish_s = self._compute_times()
        peers = np.flatnonzero(np.isfinite(finish_s))
        self._compute_updates(peers)
        pushes = self._send(finish_s)
        close_s = self._close_s(pushes, finish_s)
        lost = self._finish(peers, pushes, close_s)
        if (policy := self._parts.moves) is not None and policy.is_due(self._round_id):
            updates = self._sent.own[_rows_at(peers)]
            self._task, nbytes = self._task.swap_samples(policy, peers, updates, self._round_id)
            self._bytes += nbytes
        self._end_round(close_s)
        present = self._presence.present
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

    # --- who takes part ---------------------------------------------------------------------------

    def _return_peers(self) -> None:
        """Let peers take part again. One that has started again adopts the state of another.

        Raises: ConfigError: All peers have crashed.
        """
        presence, before = self._presence, self._presence.runs.copy()
        if not before.any():
            if (back_s := presence.next_return_s()) == np.inf:
                raise ConfigError(
                    f"no peer is left for round {self._round_id}", "let fewer peers crash"
                )
            self._now_s = back_s
        lost = presence.return_peers(self._now_s)
        # A peer that returns is some rounds behind: one that hung as many as it may be, another
        # begins in the round of the state that it adopts.
        behind = np.full(len(before), STASH_ROUNDS - 1)
        behind[lost] = 1
        back = presence.runs & ~before
        self._ready_s[back] = self._now_s + behind[back] * self._usual_s
        self._graces.reset(lost)
        donors = np.flatnonzero(before)
        for peer in lost.tolist():
            own, memory = self._here.own, self._memory
            own[peer] = own[donors[0]] if len(donors) else self._task.cohort.initial
            if memory is not None:
                memory[peer] = memory[donors[0]] if len(donors) else 0.0
            self._judges.forget(peer)

    def _compute_times(self) -> Times:
        """Return when each peer has its update of the round; infinity: it does not take part.

        A peer that is too far behind the others skips rounds until they have come to where it is.
        """
        n, runs = self._parts.peers, self._presence.runs
        known = len(self._paces) == PACES_KEPT
        usual_s = self._usual_s if known else np.inf
        ahead_s = self._ready_s - self._now_s
        self._behind = runs & (ahead_s > np.where(self._behind, 1, STASH_ROUNDS) * usual_s)
        begin_s = np.where(runs & ~self._behind, self._ready_s, np.inf)
        compute_s = self._parts.compute.seconds(np.arange(n), self._round_id)
        finish_s = begin_s + compute_s * self._presence.slowness(self._now_s)
        self._presence.strike(self._round_id, begin_s, finish_s)
        return np.where(self._presence.runs, finish_s, np.inf)

    # --- pushes -----------------------------------------------------------------------------------

    def _compute_updates(self, peers: Peers) -> None:
        """Compute the true updates of these peers."""
        self._sent.clear()
        own, here, flipped = self._sent.own, self._here.own, self._attackers.flipped
        for begin in range(0, len(peers), CHUNK):
            some = peers[begin : begin + CHUNK]
            at = _rows_at(some)
            own[at] = self._task.compute_updates(here[at], some, self._round_id, flipped[some])

    def _send(self, finish_s: Times) -> Pushes:
        """Return all pushes of the round, ascending by receiver and sender."""
        settings, links = self._settings, self._parts.links
        presence, n = self._presence, self._parts.peers
        members = np.flatnonzero(presence.runs | (presence.dead_s > self._now_s))
        roster = Roster(tuple(members.tolist()), settings.lineage)
        self._judges.begin(self._round_id, roster.peers)
        plan = self._parts.topology(roster, self._round_id, settings.seed).pushes or {}
        degrees = np.fromiter(map(len, plan.values()), np.int64, len(plan))
        senders = np.repeat(np.fromiter(plan, np.int64, len(plan)), degrees)
        receivers = np.fromiter(chain.from_iterable(plan.values()), np.int64, len(senders))
        order = np.argsort(receivers * n + senders)
        senders, receivers = senders[order], receivers[order]
        drawn = draw_uniform("push", settings.seed, senders, receivers, self._round_id)
        travel_s = links.delay_s[0] + (links.delay_s[1] - links.delay_s[0]) * drawn
        nbytes = (1 + self._mixes) * 4 * self._task.cohort.d
        transfers_s = [
            links.transfer_s(nbytes, count) for count in range(int(degrees.max(initial=0)) + 1)
        ]
        travel_s += np.array(transfers_s)[np.bincount(senders, minlength=n)[senders]]
        is_sent = presence.noticed_s[receivers] > finish_s[senders]
        is_sent &= np.isfinite(finish_s[senders])
        self._bytes += int(is_sent.sum()) * nbytes
        arrives_s = np.where(is_sent, finish_s[senders] + travel_s, np.inf)
        own_s = finish_s[receivers]
        lags_s = np.where(np.isfinite(own_s), arrives_s - np.nan_to_num(own_s), 0.0)
        return Pushes(senders, receivers, arrives_s, np.maximum(lags_s, 0.0), senders)

    def _close_s(self, pushes: Pushes, finish_s: Times) -> Times:
        """Return when each peer closes the round, and record the lags of its pushes."""
        active = np.isfinite(finish_s)
        awaited = ~self._judges.are_locked(pushes.receivers, pushes.senders)
        over_s = np.minimum(pushes.arrives_s, self._presence.noticed_s[pushes.senders])
        last_s = finish_s.copy()
        np.maximum.at(last_s, pushes.receivers[awaited], over_s[awaited])
        # The grace follows from the lags of the pushes that come before the own update, too.
        early = pushes.come_by(finish_s)
        self._observe(pushes, early)
        close_s = np.where(active, np.minimum(last_s, finish_s + self._graces.grace_s()), np.inf)
        self._observe(pushes, pushes.come_by(close_s) & ~early)
        return close_s

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
        runs = self._presence.runs[pushes.receivers]
        used = self._late[kind].collect(self._round_id, pushes.choose(runs), vectors, close_s)
        if kind == "gradient":
            for late in used[1:]:
                self._graces.observe(late.receivers, late.lags_s)
        n, peers = self._parts.peers, np.flatnonzero(np.isfinite(close_s))
        receivers = np.concatenate([peers, *[each.receivers for each in used]])
        senders = np.concatenate([peers, *[each.senders for each in used]])
        rows = np.concatenate([own_rows[peers], *[each.rows for each in used]])
        order = np.argsort(receivers * n + senders)
        counts = np.bincount(receivers, minlength=n)[peers]
        starts = np.concatenate([[0], counts.cumsum()])
        return Neighbourhoods(peers, starts, senders[order], rows[order])

    def _observe(self, pushes: Pushes, chosen: NDArray[np.bool_]) -> None:
        self._graces.observe(pushes.receivers[chosen], pushes.lags_s[chosen])

    # --- results ----------------------------------------------------------------------------------

    def _finish(self, peers: Peers, pushes: Pushes, close_s: Times) -> bool:
        """Apply the round on all peers that take part. Return whether one of them made no step."""
        pushes, own_rows = self._falsify(peers, pushes)
        moves = self._mix(peers, pushes, close_s) if self._mixes else None
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

    # --- the end of a round -----------------------------------------------------------------------

    def _end_round(self, close_s: Times) -> None:
        runs, active = self._presence.runs, np.isfinite(close_s)
        applied_s = np.where(active, close_s + RULE_S, self._ready_s)
        self._ready_s = np.where(active, applied_s + APPLY_S, self._ready_s)
        times = np.sort(applied_s[runs])
        if len(times):
            now_s = float(times[(len(times) - 1) // 2])
            self._paces.append(now_s - self._now_s)
            self._now_s = now_s
        self._round_id += 1


def _rows_at(peers: Peers) -> slice | Peers:
    """Return an index of these rows; a slice where they follow each other, which copies nothing."""
    if len(peers) and int(peers[-1]) - int(peers[0]) == len(peers) - 1:
        return slice(int(peers[0]), int(peers[-1]) + 1)
    return peers
