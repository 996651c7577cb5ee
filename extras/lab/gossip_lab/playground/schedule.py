"""Clocks of gossip rounds: when each peer has its update, and closes the round.

Peers are in different rounds at one time, and each waits as ``GossipRounds`` does. The schedule
advances by waves: a peer closes its round once no unknown push can arrive before that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossip.core import STASH_ROUNDS, MixingController
from gossip.errors import ConfigError
from gossip.topologies import Roster

from .counters import draw_uniform
from .fast_rolling import APPLY_S, RULE_S
from .graces import Graces
from .parts import Parts
from .presence import Peers, Presence, Times
from .pushing import Pushes

PACES_KEPT = 8
"""Rounds from which the usual duration of a round is taken."""
ROUNDS_KEPT = 32
"""Rounds of which a peer knows when it had its update, for the lags of pushes."""
LOOKAHEAD = 0.5
"""Share of its last computation that the next one of a peer takes at least."""
PUSH = np.dtype(
    [
        ("receiver", np.int64),
        ("sender", np.int64),
        ("round", np.int64),
        ("arrives_s", np.float64),
        ("is_received", np.bool_),
    ]
)


@dataclass(slots=True, eq=False)
class GossipTimes:
    """Times of one round.

    Attributes:
        roster: Peers that are not known dead.
        close_s: ``(n,)``: when each peer closes it; infinity: it takes no part.
        lost: Peers that begin with the state of another.
        pushes: All pushes, ascending by receiver and sender once the round is over.
        nbytes: Bytes of the pushes.
        end_s: When half of the peers have applied the round.
    """

    close_s: Times
    roster: tuple[int, ...] = ()
    lost: list[int] = field(default_factory=list)
    pushes: Pushes = field(default_factory=Pushes.none)
    nbytes: int = 0
    end_s: float = 0.0

    @property
    def peers(self) -> Peers:
        """Peers that take part, ascending."""
        return np.flatnonzero(np.isfinite(self.close_s))


class Schedule:
    """Clocks of all peers.

    Args:
        are_locked: Returns for each pair of a receiver and a sender whether the first has the
            second in quarantine, ``(e,)`` bool.

    Attributes:
        presence: Presence of the peers; it may be some rounds ahead.
    """

    def __init__(
        self, parts: Parts, are_locked: Callable[[Peers, Peers], NDArray[np.bool_]]
    ) -> None:
        n = parts.peers
        self._parts, self._are_locked = parts, are_locked
        self.presence = Presence(parts)
        self._graces = Graces(parts.settings)
        self._mixing = MixingController(0, parts.settings.gossip, parts.settings.f)
        self._round_id = 0  # the next round that is returned
        self._times: dict[int, GossipTimes] = {}
        self._edges: dict[tuple[int, Roster], tuple[Peers, Peers, Times]] = {}
        self._rounds = np.zeros(n, np.int64)  # the round that each peer is in, or begins next
        self._ready_s = np.zeros(n)  # when it can begin that
        self._compute_s = np.zeros(n)
        self._finish_s = np.full(n, np.inf)  # infinity: it has not begun
        self._grace_ends_s = np.full(n, np.nan)  # NaN: not known yet
        self._finished = np.full((n, ROUNDS_KEPT), -1), np.zeros((n, ROUNDS_KEPT))
        self._newest = np.full(n, -1)  # latest round of a push that each peer has received
        self._coming, self._expected = np.empty(0, PUSH), np.empty(0, PUSH)
        self._known_s = 0.0  # all pushes that arrive before are known
        self._paces: deque[float] = deque(maxlen=PACES_KEPT)
        self._now_s = 0.0

    def mixes(self, round_id: int) -> bool:
        """Whether peers exchange parameters in the round."""
        return self._mixing.is_due(round_id)

    def next_round(self) -> GossipTimes:
        """Return the times of the next round.

        Raises: ConfigError: All peers have crashed.
        """
        while not self._is_over():
            self._return_peers()
            self._begin_rounds()
            self._close_rounds()
        times = self._times.pop(self._round_id)
        self._round_id += 1
        self._edges = {key: self._edges[key] for key in self._edges if key[0] >= self._round_id}
        pushes, n = times.pushes, self._parts.peers
        times.pushes = pushes.choose(np.argsort(pushes.receivers * n + pushes.senders))
        # Peers that skip the round come later.
        count = int(np.sum(np.isfinite(times.close_s) | self.presence.runs))
        closed_s = np.sort(times.close_s[times.peers])
        if len(closed_s):
            times.end_s = float(closed_s[min((count - 1) // 2, len(closed_s) - 1)]) + RULE_S
        else:
            times.end_s = self._now_s
        self._paces.append(times.end_s - self._now_s)
        self._now_s = times.end_s
        return times

    def _is_over(self) -> bool:
        runs = self.presence.runs
        if not runs.any():
            return bool(len(self._times_of(self._round_id).peers))
        return bool((self._rounds[runs] > self._round_id).all())

    def _times_of(self, round_id: int) -> GossipTimes:
        if round_id not in self._times:
            self._times[round_id] = GossipTimes(np.full(self._parts.peers, np.inf))
        return self._times[round_id]

    def _by_round(self, peers: Peers) -> Iterator[tuple[int, Peers]]:
        rounds = self._rounds[peers]
        for round_id in np.unique(rounds).tolist():
            yield round_id, peers[rounds == round_id]

    def _return_peers(self) -> None:
        """Let peers take part again. One that has started again adopts the state of another.

        Raises: ConfigError: All peers have crashed.
        """
        presence, before = self.presence, self.presence.runs.copy()
        waiting = before & np.isinf(self._finish_s)
        now_s = float(self._ready_s[waiting].min(initial=np.inf))
        if not before.any() and (now_s := presence.next_return_s()) == np.inf:
            raise ConfigError(
                f"no peer is left for round {self._round_id}", "let fewer peers crash"
            )
        lost = presence.return_peers(now_s) if now_s < np.inf else np.zeros(0, np.int64)
        back = presence.runs & ~before
        if not back.any():
            return
        at = int(np.median(self._rounds[before])) if before.any() else self._round_id
        self._rounds[back] = at
        # A peer that returns is some rounds behind: one that hung as many as it may be, another
        # begins in the round of the state that it adopts.
        behind = np.full(len(before), STASH_ROUNDS - 1)
        behind[lost] = 1
        usual_s = float(np.median(self._paces)) if self._paces else 0.0
        self._ready_s[back] = now_s + behind[back] * usual_s
        self._graces.reset(lost)
        self._newest[lost] = -1
        self._times_of(at).lost += lost.tolist()

    # --- begin ------------------------------------------------------------------------------------

    def _begin_rounds(self) -> None:
        """Begin the rounds of all peers that are ready, and send their pushes."""
        presence, n = self.presence, self._parts.peers
        begun = np.flatnonzero(presence.runs & np.isinf(self._finish_s))
        if not len(begun):
            return
        begin_s = np.full(n, np.inf)
        begin_s[begun] = self._ready_s[begun]
        for round_id, some in self._by_round(begun):
            self._compute_s[some] = self._parts.compute.seconds(some, round_id)
        now_s = float(begin_s.min())
        self._compute_s[begun] *= presence.slowness(now_s)[begun]
        finish_s = begin_s + self._compute_s
        presence.strike(self._rounds, begin_s, finish_s)
        begun = begun[presence.runs[begun]]
        self._finish_s[begun], self._grace_ends_s[begun] = finish_s[begun], np.nan
        slots = begun, self._rounds[begun] % ROUNDS_KEPT
        self._finished[0][slots], self._finished[1][slots] = self._rounds[begun], finish_s[begun]
        known_dead = np.searchsorted(np.sort(presence.dead_s), begin_s, side="right")
        for round_id, some in self._by_round(begun):
            for count in np.unique(known_dead[some]).tolist():  # their plans differ
                alike = some[known_dead[some] == count]
                self._send(round_id, alike, float(begin_s[alike[0]]))
        order = np.argsort(self._expected["receiver"] * n + self._expected["sender"])
        self._expected = self._expected[order]

    def _send(self, round_id: int, peers: Peers, now_s: float) -> None:
        """Send the pushes of peers in a round, and record those that they expect."""
        times, begins = self._times_of(round_id), np.zeros(self._parts.peers, bool)
        begins[peers] = True
        senders, receivers, travel_s = self._edges_of(round_id, self._roster(now_s))
        waits = begins[receivers] & ~self._are_locked(receivers, senders)
        expected = _pushes(receivers[waits], senders[waits], round_id, np.inf)
        self._expected = np.concatenate([self._expected, expected])
        sends = begins[senders]
        receivers, senders = receivers[sends], senders[sends]
        finish_s = self._finish_s[senders]
        arrives_s = finish_s + travel_s[sends]
        arrives_s[self.presence.noticed_s[receivers] <= finish_s] = np.inf
        times.nbytes += int(np.isfinite(arrives_s).sum()) * self._nbytes(round_id)
        times.pushes = times.pushes.join(Pushes(senders, receivers, arrives_s, senders))
        coming = _pushes(receivers, senders, round_id, arrives_s)
        self._coming = np.concatenate([self._coming, coming])

    def _nbytes(self, round_id: int) -> int:
        return (1 + self.mixes(round_id)) * 4 * self._parts.task.cohort.d

    def _roster(self, now_s: float) -> Roster:
        """Return the peers that are not known dead at a time."""
        members = np.flatnonzero(self.presence.runs | (self.presence.dead_s > now_s))
        return Roster(tuple(members.tolist()), self._parts.settings.lineage)

    def _edges_of(self, round_id: int, roster: Roster) -> tuple[Peers, Peers, Times]:
        """Return the senders and receivers of a round, ascending by receiver and sender, and how
        long each push travels."""
        self._times_of(round_id).roster = roster.peers
        if (round_id, roster) not in self._edges:
            parts, links = self._parts, self._parts.links
            seed, n = parts.settings.seed, parts.peers
            plan = parts.topology(roster, round_id, seed).pushes or {}
            degrees = np.fromiter(map(len, plan.values()), np.int64, len(plan))
            senders = np.repeat(np.fromiter(plan, np.int64, len(plan)), degrees)
            receivers = np.fromiter(chain.from_iterable(plan.values()), np.int64, len(senders))
            order = np.argsort(receivers * n + senders)
            senders, receivers = senders[order], receivers[order]
            drawn = draw_uniform("push", seed, senders, receivers, round_id)
            travel_s = links.delay_s[0] + (links.delay_s[1] - links.delay_s[0]) * drawn
            transfers_s = [
                links.transfer_s(self._nbytes(round_id), count)
                for count in range(int(degrees.max(initial=0)) + 1)
            ]
            travel_s += np.array(transfers_s)[np.bincount(senders, minlength=n)[senders]]
            self._edges[round_id, roster] = senders, receivers, travel_s
        return self._edges[round_id, roster]

    # --- close ------------------------------------------------------------------------------------

    def _close_rounds(self) -> None:
        """Close the rounds that no unknown push can reach."""
        finish_s, is_open = self._finish_s, np.isfinite(self._finish_s)
        if not is_open.any():
            return
        least_s = LOOKAHEAD * self._compute_s + APPLY_S + self._parts.links.delay_s[0]
        self._known_s = max(self._known_s, float((finish_s + least_s)[is_open].min()))
        ready = finish_s <= self._known_s
        self._receive(np.where(ready, finish_s, -np.inf))
        fresh = ready & np.isnan(self._grace_ends_s)
        self._grace_ends_s[fresh] = (finish_s + self._graces.grace_s())[fresh]
        over_s = np.maximum(np.minimum(self._last_s(), self._grace_ends_s), finish_s)
        close_s = np.where(ready, over_s, finish_s)
        self._known_s = max(self._known_s, float((close_s + least_s)[is_open].min()))
        closing = ready & (close_s <= self._known_s)
        self._receive(np.where(closing, close_s, -np.inf))
        self._end_rounds(np.flatnonzero(closing), close_s)

    def _last_s(self) -> Times:
        """Return when each peer waits for no other any more, ``(n,)``, as far as it is known."""
        n, expected, coming = self._parts.peers, self._expected, self._coming
        over_s = self.presence.noticed_s[expected["sender"]]
        # a push of a later round ends the wait, too
        coming = coming[coming["round"] >= self._rounds[coming["receiver"]]]
        keys = coming["receiver"] * n + coming["sender"]
        known = expected["receiver"] * n + expected["sender"]
        at = np.minimum(np.searchsorted(known, keys), max(0, len(known) - 1))
        if len(known):
            found = known[at] == keys
            np.minimum.at(over_s, at[found], coming["arrives_s"][found])
        last_s = self._finish_s.copy()
        np.maximum.at(last_s, expected["receiver"], over_s)
        return last_s

    def _receive(self, until_s: Times) -> None:
        """Record the pushes that have arrived by ``until_s``, ``(n,)``, and their lags."""
        coming = self._coming
        due = ~coming["is_received"] & (coming["arrives_s"] <= until_s[coming["receiver"]])
        coming["is_received"] |= due
        new = coming[due]
        new = new[np.lexsort((new["arrives_s"], new["receiver"]))]
        peers, rounds = new["receiver"], new["round"]
        np.maximum.at(self._newest, peers, rounds)
        slots = peers, rounds % ROUNDS_KEPT
        lags_s = np.where(self._finished[0][slots] == rounds, new["arrives_s"], 0.0)
        lags_s -= np.where(lags_s > 0, self._finished[1][slots], 0.0)
        oldest = self._rounds[peers] - self._parts.settings.gossip.staleness_max
        counts = (rounds >= oldest) | (self._newest[peers] < oldest)
        self._graces.observe(peers[counts], lags_s[counts])

    def _end_rounds(self, peers: Peers, close_s: Times) -> None:
        for round_id, some in self._by_round(peers):
            self._times_of(round_id).close_s[some] = close_s[some]
        self._ready_s[peers] = close_s[peers] + RULE_S + APPLY_S
        self._finish_s[peers] = np.inf
        self._rounds[peers] += 1
        behind = self._newest[peers] > self._rounds[peers] + STASH_ROUNDS
        for peer in peers[behind].tolist():
            self._skip_rounds(peer)
        coming, expected = self._coming, self._expected
        needed = ~coming["is_received"] | (coming["round"] >= self._rounds[coming["receiver"]])
        self._coming = coming[needed & self.presence.runs[coming["receiver"]]]
        self._expected = expected[np.isfinite(self._finish_s[expected["receiver"]])]

    def _skip_rounds(self, peer: int) -> None:
        """Let a peer that is far behind continue where the others are, as ``GossipRounds``."""
        settings, coming = self._parts.settings, self._coming
        received = coming[(coming["receiver"] == peer) & coming["is_received"]]
        latest = dict(np.sort(received[["sender", "round"]]).tolist())
        reached = sorted(latest.values(), reverse=True)[settings.f :]
        if reached and reached[0] > self._rounds[peer] + STASH_ROUNDS:
            last = reached[0] - 1
            accepted = range(last, last - settings.gossip.staleness_max, -1)
            self._rounds[peer] = next(filter(self.mixes, accepted), last)


def _pushes(
    receivers: Peers, senders: Peers, round_id: int, arrives_s: Times | float
) -> NDArray[Any]:
    found = np.zeros(len(receivers), PUSH)
    found["receiver"], found["sender"], found["round"] = receivers, senders, round_id
    found["arrives_s"] = arrives_s
    return found
