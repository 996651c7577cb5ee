"""L9, L10: a newcomer counts when it keeps up, and not before;
and who holds the state waits for those who come."""

from __future__ import annotations

from gossip.core import (
    BEHIND_MAX,
    BEHIND_S,
    QUORUM_LOST,
    Committed,
    Effect,
    Event,
    Halt,
    PeerExpected,
    PeerId,
    Report,
    quorum_of,
)
from gossip_lab.simulation.checkers.base import Checker
from gossip_lab.simulation.checkers.safety import rolling_of
from gossip_lab.simulation.world import AnySwarm

SLACK = 2
"""Rounds that may end between its word that it is ready and the commit that names it."""


class CountsWhenItKeepsUp(Checker):
    """L9: whom a commit takes into the roster is no more rounds behind than pass while its word
    travels: the others would wait for its update, and for its turn to serve, over a link that may
    carry less than the rounds need."""

    invariant = "L9"
    effects = (Committed,)

    def make_records(self) -> None:
        # of the last commit at each peer
        self._roster: dict[PeerId, frozenset[PeerId]] = self.per_life()

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if not isinstance(effect, Committed) or effect.commit.shard != 0:
            return  # the first shard's commit says who is in the next round
        now, before = frozenset(effect.commit.roster), self._roster.get(peer)
        self._roster[peer] = now
        rounds = rolling_of(swarm.inspections.get(peer))
        if before is None or not effect.made or rounds is None or self.circumstances.lies:
            return
        usual_s = rounds.deadline.typical_round_s()
        most = max(BEHIND_MAX, BEHIND_S / usual_s if usual_s else 0.0) + SLACK
        for newcomer in now - before:
            other = rolling_of(swarm.inspections.get(newcomer)) if newcomer in swarm.up else None
            if other is None or other.mode == "off":
                continue
            behind = effect.commit.round_id - other.round_id
            text = (
                f"lets peer {newcomer} into the roster, which is {behind} rounds behind; "
                f"{most:.0f} at most"
            )
            self.demand(behind <= most, swarm, peer, text)


class WaitsForThoseWhoCome(Checker):
    """L10: nobody gives up for want of a quorum, before its time, while newcomers are there or on
    their way that can stand in for those of its roster who have ended. It may be the last that
    holds the state."""

    invariant = "L10"
    events = (PeerExpected,)
    effects = (Halt, Report)

    def make_records(self) -> None:
        # the roster that each lacks a quorum of
        self._waits_for: dict[PeerId, tuple[PeerId, ...]] = {}
        self._crashed_at = float("-inf")
        self._coming: dict[PeerId, set[PeerId]] = {}  # by whom each was told of

    def on_crash(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._crashed_at = swarm.now

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if isinstance(event, PeerExpected):
            self._coming.setdefault(event.peer, set()).add(peer)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        core = swarm.inspections.get(peer)
        rounds = core.rolling if core is not None else None
        if isinstance(effect, Report) and core is not None and rounds is not None:
            if effect.event == "paused":
                self._waits_for[peer] = tuple(rounds.roster)
            elif effect.event == "resumed" and any(
                map(core.membership.has_ended, self._waits_for.pop(peer, ()))
            ):
                self.judged += 1  # it has waited for them, and might have given up
        if (
            not isinstance(effect, Halt)
            or effect.exit_code != QUORUM_LOST
            or core is None
            or rounds is None
        ):
            return
        left = [p for p in rounds.roster if not core.membership.has_ended(p)]
        here = [
            p for p in left if p == peer or (swarm.hosts[p].running and not rounds.skip_reason(p))
        ]
        running = {
            p for p, host in swarm.hosts.items() if host.running and p in core.membership.members
        }
        told = {
            p
            for p, hearers in self._coming.items()
            if peer in hearers and (p not in swarm.hosts or swarm.hosts[p].running)
        }
        newcomers = (running | told).difference(rounds.roster)
        in_time = swarm.now - self._crashed_at < core.settings.rounds.quorum_timeout_s
        text = (
            f"gives up with {here} of {list(rounds.roster)}, the others have ended, and "
            f"{sorted(newcomers)} come"
        )
        enough = len(here) == len(left) and len(left) + len(newcomers) >= quorum_of(
            core.settings, len(rounds.roster)
        )
        self.demand(not (enough and in_time), swarm, peer, text)
