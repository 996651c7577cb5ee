"""Clocks of gossip rounds: when each peer finishes its update, and when it closes the round.

At one time, different peers are in different rounds. Each waits for pushes as ``GossipRounds``
does. The schedule advances in waves: a peer closes its round once all pushes that can arrive before
the closing time are known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

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
from .pushing import PUSH, Pushes, last_of_each

PACES_KEPT = 8
"""Number of latest rounds from which the usual duration of a round is computed."""
ROUNDS_KEPT = 32
"""Number of rounds for which the finish time of a peer's update is stored, to compute the lags of
pushes."""
LOOKAHEAD = 0.5
"""Assumed minimum duration of a peer's next computation, as a share of its previous computation."""


@dataclass(slots=True, eq=False)
class Wave:
    """Events of some peers. No event depends on an event of a later wave.

    Attributes:
        lost: ``(m,)``: peers that first adopt the state of another peer.
        begun: ``(m,)``, ascending: peers that then begin a round.
        rounds: ``(n,)``: current round of each peer.
        sent: Pushes of the peers in ``begun``; within a round, ascending by receiver and sender.
        expected: Pushes that the peers with an open round expect from the plan of this round.
        closed: ``(m,)``, ascending: peers that finally close their rounds.
        close_s: ``(n,)``: time at which each peer in ``closed`` closes its round.
    """

    lost: Peers
    begun: Peers
    rounds: Peers
    sent: Pushes
    expected: Pushes
    closed: Peers
    close_s: Times

    def pushes_of(self, round_id: int) -> Pushes:
        """Return the pushes in ``sent`` that belong to a round and will arrive."""
        arrive = self.sent["arrives_s"] < np.inf
        found: Pushes = self.sent[arrive & (self.sent["round"] == round_id)]
        return found


@dataclass(slots=True, eq=False)
class GossipTimes:
    """Times of one round.

    Attributes:
        roster: Peers that are not known to be dead.
        close_s: ``(n,)``: time at which each peer closes the round; infinity for peers that take no
            part.
        degrees: ``(n,)``: degree of each peer in a plan with Metropolis weights; None for other
            plans.
        nbytes: Total bytes of the pushes.
        end_s: Time at which half of the peers have applied the round.
    """

    close_s: Times
    roster: tuple[int, ...] = ()
    degrees: Peers | None = None
    nbytes: int = 0
    end_s: float = 0.0

    @property
    def peers(self) -> Peers:
        """Peers that take part, ascending."""
        return np.flatnonzero(np.isfinite(self.close_s))


def find_passed_s(pushes: Pushes, n: int, f: int) -> Times:
    """Return the time at which each of n peers has received some of these pushes from more than f
    senders, ``(n,)``; infinity if it never has."""
    found = np.full(n, np.inf)
    if not len(pushes):
        return found
    # Sorting the structured array itself would take many times as long.
    firsts = last_of_each(pushes["receiver"] * n + pushes["sender"], -pushes["arrives_s"])
    receivers, arrives_s = pushes["receiver"][firsts], pushes["arrives_s"][firsts]
    order = np.lexsort((arrives_s, receivers))
    receivers, arrives_s = receivers[order], arrives_s[order]
    ranks = np.arange(len(receivers)) - np.searchsorted(receivers, receivers)
    enough = ranks == f
    found[receivers[enough]] = arrives_s[enough]
    return found


class Schedule:
    """Clocks of all peers in gossip rounds.

    Args:
        are_locked: Maps receivers and senders, ``(e,)``, to whether senders are in quarantine.

    Attributes:
        presence: Presence of the peers.
    """

    def __init__(
        self, parts: Parts, are_locked: Callable[[Peers, Peers], NDArray[np.bool_]]
    ) -> None:
        n = parts.peers
        self._parts, self._are_locked = parts, are_locked
        self._passed_s = partial(find_passed_s, n=n, f=parts.settings.f)
        self.presence = Presence(parts)
        self._graces = Graces(parts.settings)
        self._mixing = MixingController(0, parts.settings.gossip, parts.settings.f)
        self._round_id = 0  # first round that is not over
        self._times: dict[int, GossipTimes] = {}
        self._edges: dict[tuple[int, Roster], tuple[Peers, Peers, Times, Peers | None]] = {}
        self._rounds = np.zeros(n, np.int64)  # current or next round of each peer
        self._ready_s = np.zeros(n)  # time at which each peer can begin this round
        self._compute_s = np.zeros(n)
        self._finish_s = np.full(n, np.inf)  # infinity: round not begun
        self._grace_ends_s = np.full(n, np.nan)  # NaN: not known yet
        self._finished = np.full((n, ROUNDS_KEPT), -1), np.zeros((n, ROUNDS_KEPT))
        self._coming = self._expected = np.empty(0, PUSH)  # pushes: sent or received; planned
        self._known_s = 0.0  # all pushes that arrive before this time are known
        self._paces: deque[float] = deque(maxlen=PACES_KEPT)
        self._now_s = 0.0

    def mixes(self, round_id: int) -> bool:
        """Whether peers exchange parameters in the round."""
        return self._mixing.is_due(round_id)

    def next_wave(self) -> Wave:
        """Let as many peers as possible begin and close rounds, and return these events.

        Raises: ConfigError: All peers have crashed.
        """
        lost = self._return_peers()
        begun, sent = self._begin_rounds()
        rounds, expected = self._rounds.copy(), self._expected
        closed, close_s = self._close_rounds()
        return Wave(lost, begun, rounds, sent, expected, closed, close_s)

    def roster(self, round_id: int) -> tuple[int, ...]:
        """Return the roster of a round that is not over."""
        return self._times_of(round_id).roster

    def degrees(self, round_id: int) -> Peers | None:
        """Return the degree of each peer in the plan of a round, ``(n,)``; None for a plan without
        Metropolis weights."""
        return self._times_of(round_id).degrees

    def end_round(self) -> GossipTimes:
        """End the present round, and return its times."""
        times = self._times.pop(self._round_id)
        self._round_id += 1
        for key in [key for key in self._edges if key[0] < self._round_id]:
            del self._edges[key]
        # The count includes peers that still run but have not closed the round: they skip it.
        count = int(np.sum(np.isfinite(times.close_s) | self.presence.runs))
        closed_s = np.sort(times.close_s[times.peers])
        if len(closed_s):
            times.end_s = float(closed_s[min((count - 1) // 2, len(closed_s) - 1)]) + RULE_S
        else:
            times.end_s = self._now_s
        self._paces.append(times.end_s - self._now_s)
        self._now_s = times.end_s
        return times

    def is_over(self) -> bool:
        """Whether each running peer has closed or skipped the present round."""
        runs = self.presence.runs
        if not runs.any():
            return bool(len(self._times_of(self._round_id).peers))
        return bool((self._rounds[runs] > self._round_id).all())

    def _times_of(self, round_id: int) -> GossipTimes:
        if round_id not in self._times:
            self._times[round_id] = GossipTimes(np.full(self._parts.peers, np.inf))
        return self._times[round_id]

    def _return_peers(self) -> Peers:
        """Let returned peers take part again. Return the restarted peers, which adopt the state of
        another peer.

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
            return lost
        at = int(np.median(self._rounds[before])) if before.any() else self._round_id
        self._rounds[back] = at
        # A peer that hung is behind by the maximum number of rounds. A restarted peer begins with
        # the round after the adopted state.
        behind = np.full(len(before), STASH_ROUNDS - 1)
        behind[lost] = 1
        usual_s = float(np.median(self._paces)) if self._paces else 0.0
        self._ready_s[back] = now_s + behind[back] * usual_s
        self._graces.reset(lost)
        self._times_of(at)
        return lost

    # --- begin ------------------------------------------------------------------------------------

    def _begin_rounds(self) -> tuple[Peers, Pushes]:
        """Begin a round on all peers that are ready. Return these peers and their pushes."""
        presence, n = self.presence, self._parts.peers
        begun = np.flatnonzero(presence.runs & np.isinf(self._finish_s))
        sent = [np.empty(0, PUSH)]
        if not len(begun):
            return begun, sent[0]
        begin_s = np.full(n, np.inf)
        begin_s[begun] = self._ready_s[begun]
        for round_id, some in by_round(self._rounds, begun):
            self._compute_s[some] = self._parts.compute(some, round_id)
        now_s = float(begin_s.min())
        self._compute_s[begun] *= presence.slowness(now_s)[begun]
        finish_s = begin_s + self._compute_s
        presence.strike(self._rounds, begin_s, finish_s)
        begun = begun[presence.runs[begun]]
        self._finish_s[begun], self._grace_ends_s[begun] = finish_s[begun], np.nan
        slots = begun, self._rounds[begun] % ROUNDS_KEPT
        self._finished[0][slots], self._finished[1][slots] = self._rounds[begun], finish_s[begun]
        for round_id, some in by_round(self._rounds, begun):
            # The expected pushes follow from the roster at the begin of the round. The sent pushes
            # follow from the roster when the update is finished: more peers may be known to be dead
            # by then.
            for alike, roster in self._rosters(some, begin_s):
                senders, receivers, _ = self._edges_of(round_id, roster)
                planned = _pushes(receivers, senders, round_id, np.inf)[np.isin(receivers, alike)]
                self._expected = np.concatenate([self._expected, planned])
            for alike, roster in self._rosters(some, finish_s):
                sent.append(self._send(round_id, alike, roster))
        order = np.argsort(self._expected["receiver"] * n + self._expected["sender"])
        self._expected = self._expected[order]
        return begun, np.concatenate(sent)

    def _rosters(self, peers: Peers, at_s: Times) -> Iterator[tuple[Peers, Roster]]:
        """Yield the peers with the same roster, and this roster. Each peer's roster is that at its
        time ``at_s``, ``(n,)``."""
        dead_s = self.presence.dead_s
        known_dead = np.searchsorted(np.sort(dead_s), at_s[peers], side="right")
        for count in np.unique(known_dead).tolist():
            alike = peers[known_dead == count]
            members = np.flatnonzero(self.presence.runs | (dead_s > at_s[alike[0]]))
            yield alike, Roster(tuple(members.tolist()), self._parts.settings.lineage)

    def _send(self, round_id: int, peers: Peers, roster: Roster) -> Pushes:
        """Send the pushes of these peers in a round, and return the pushes."""
        senders, receivers, travel_s = self._edges_of(round_id, roster)
        sends = np.isin(senders, peers)
        receivers, senders = receivers[sends], senders[sends]
        finish_s = self._finish_s[senders]
        arrives_s = finish_s + travel_s[sends]
        arrives_s[self.presence.noticed_s[receivers] <= finish_s] = np.inf
        times = self._times_of(round_id)
        times.nbytes += int(np.isfinite(arrives_s).sum()) * self._nbytes(round_id)
        coming = _pushes(receivers, senders, round_id, arrives_s)
        self._coming = np.concatenate([self._coming, coming])
        return coming

    @property
    def _oldest(self) -> Peers:
        """Oldest round of a push that each peer can use, ``(n,)``."""
        return self._rounds - self._parts.settings.gossip.staleness_max

    def _nbytes(self, round_id: int) -> int:
        task = self._parts.task
        return (1 + self.mixes(round_id) * task.vectors_mixed) * 4 * task.cohort.d

    def _edges_of(self, round_id: int, roster: Roster) -> tuple[Peers, Peers, Times]:
        """Return sender, receiver and transfer time of each push in the plan of a round, ascending
        by receiver and sender."""
        if (round_id, roster) not in self._edges:
            parts, links = self._parts, self._parts.links
            seed, n = parts.settings.seed, parts.peers
            found = parts.topology(roster, round_id, seed)
            plan = found.pushes or {}
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
            counts = np.bincount(senders, minlength=n) if found.metropolis else None
            self._edges[round_id, roster] = senders, receivers, travel_s, counts
        times, edges = self._times_of(round_id), self._edges[round_id, roster]
        times.roster, times.degrees = roster.peers, edges[3]
        return edges[:3]

    # --- close ------------------------------------------------------------------------------------

    def _close_rounds(self) -> tuple[Peers, Times]:
        """Close the rounds that no unknown push can reach in time. Return the peers that close a
        round, and the closing times, ``(n,)``."""
        finish_s, is_open = self._finish_s, np.isfinite(self._finish_s)
        if not is_open.any():
            return np.zeros(0, np.int64), finish_s
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
        closed = np.flatnonzero(closing)
        self._end_rounds(closed, close_s)
        return closed, close_s

    def _last_s(self) -> Times:
        """Return the time from which each peer no longer waits for any push, ``(n,)``; infinity if
        it depends on pushes that are not known yet."""
        n, expected, coming = self._parts.peers, self._expected, self._coming
        over_s = self.presence.noticed_s[expected["sender"]]
        over_s[self._are_locked(expected["receiver"], expected["sender"])] = 0.0
        # A push of a later round also ends the wait for its sender.
        coming = coming[coming["round"] >= self._rounds[coming["receiver"]]]
        keys = coming["receiver"] * n + coming["sender"]
        known = expected["receiver"] * n + expected["sender"]
        at = np.minimum(np.searchsorted(known, keys), max(0, len(known) - 1))
        if len(known):
            found = known[at] == keys
            np.minimum.at(over_s, at[found], coming["arrives_s"][found])
        last_s = self._finish_s.copy()
        np.maximum.at(last_s, expected["receiver"], over_s)
        far = coming[coming["round"] > self._rounds[coming["receiver"]] + 1 + STASH_ROUNDS]
        np.minimum(last_s, self._passed_s(far), out=last_s)  # skip to the others' round
        return last_s

    def _receive(self, until_s: Times) -> None:
        """Record the pushes that have arrived by ``until_s``, ``(n,)``, and their lags."""
        coming = self._coming
        due = ~coming["is_received"] & (coming["arrives_s"] <= until_s[coming["receiver"]])
        coming["is_received"] |= due
        new = coming[due]
        new = new[np.lexsort((new["arrives_s"], new["receiver"]))]
        peers, rounds = new["receiver"], new["round"]
        slots = peers, rounds % ROUNDS_KEPT
        lags_s = np.where(self._finished[0][slots] == rounds, new["arrives_s"], 0.0)
        lags_s -= np.where(lags_s > 0, self._finished[1][slots], 0.0)
        # The lag of a stale push is recorded, unless pushes of later rounds have arrived from more
        # than f senders before.
        counts = rounds >= self._oldest[peers]
        if not counts.all():
            have_stale = np.zeros(self._parts.peers, bool)
            have_stale[peers[~counts]] = True
            later = coming["is_received"] & (coming["round"] >= self._oldest[coming["receiver"]])
            later &= have_stale[coming["receiver"]]
            counts |= new["arrives_s"] < self._passed_s(coming[later])[peers]
        self._graces.observe(peers[counts], lags_s[counts])

    def _end_rounds(self, peers: Peers, close_s: Times) -> None:
        for round_id, some in by_round(self._rounds, peers):
            self._times_of(round_id).close_s[some] = close_s[some]
        self._ready_s[peers] = close_s[peers] + RULE_S + APPLY_S
        self._finish_s[peers] = np.inf
        self._rounds[peers] += 1
        coming, expected = self._coming, self._expected
        far = coming["round"] > (self._rounds + STASH_ROUNDS)[coming["receiver"]]
        behind = self._passed_s(coming[far & coming["is_received"]]) < np.inf
        for peer in peers[behind[peers]].tolist():
            self._skip_rounds(peer)
        needed = ~coming["is_received"] | (coming["round"] >= self._oldest[coming["receiver"]])
        self._coming = coming[needed & self.presence.runs[coming["receiver"]]]
        self._expected = expected[np.isfinite(self._finish_s[expected["receiver"]])]

    def _skip_rounds(self, peer: int) -> None:
        """Let a peer that is far behind continue in the round of the other peers, as
        ``GossipRounds`` does."""
        settings, coming = self._parts.settings, self._coming
        received = coming[(coming["receiver"] == peer) & coming["is_received"]]
        latest = dict(np.sort(received[["sender", "round"]]).tolist())
        last = sorted(latest.values(), reverse=True)[settings.f] - 1
        accepted = range(last, last - settings.gossip.staleness_max, -1)
        self._rounds[peer] = next(filter(self.mixes, accepted), last)


def by_round(rounds: Peers, peers: Peers) -> Iterator[tuple[int, Peers]]:
    """Yield each round that some of ``peers`` are in, with these peers.

    Args:
        rounds: ``(n,)``: round of each peer.
    """
    for round_id in np.unique(rounds[peers]).tolist():
        yield round_id, peers[rounds[peers] == round_id]


def _pushes(receivers: Peers, senders: Peers, round_id: int, arrives_s: Times | float) -> Pushes:
    found = np.zeros(len(receivers), PUSH)
    found["receiver"], found["sender"], found["round"] = receivers, senders, round_id
    found["arrives_s"] = arrives_s
    return found
