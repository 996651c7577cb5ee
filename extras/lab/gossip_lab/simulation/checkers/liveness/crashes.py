"""L3: what a crash costs the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gossip.core import Effect, Inspection, PeerId, Report
from gossip_lab.simulation.checkers.base import updates_needed
from gossip_lab.simulation.checkers.disturbances import NEVER, DisturbedChecker
from gossip_lab.simulation.checkers.safety import rolling_of
from gossip_lab.simulation.world import AnySwarm

from .liveness import settings_of

ROUND_S = 1.0  # for the round itself
LOST_BY_A_BYZANTINE_SERVER = "what the decision was made on is lost"
"""Reason of a lost round in which a later shard is served by a peer that sends wrong measures, or
whose result is rejected: no other peer can have made these measurements."""
BEFORE_S = 3.0  # a crash comes by itself when nothing else has happened for so long


@dataclass(frozen=True, slots=True)
class _Crash:
    """A crash, and how things stood then.

    Attributes:
        furthest: Round of the others.
        lost: Rounds that had come to nothing.
        within_s: After that time the others must be in a further round.
        hung: Whose trainer had no update to give.
    """

    victim: PeerId
    at_s: float
    furthest: int
    lost: int
    within_s: float
    hung: tuple[PeerId, ...]


class CrashCostsLittle(DisturbedChecker):
    """L3: a crash, also of the server in the middle of its broadcast, costs one round at most, and
    no more time than it takes to notice it and a round timeout.
    Judged where nothing else happens meanwhile."""

    invariant = "L3"
    effects = (Report,)

    def make_records(self) -> None:
        # rounds that changed nothing, though there were enough for the rule
        self._lost: dict[int, None] = {}
        self._started_at = NEVER

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._started_at = swarm.now

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if (
            isinstance(effect, Report)
            and effect.event == "lost_round"
            and not self._is_of_an_attacker(effect)
        ):
            core = swarm.inspections.get(peer)
            if core is not None and core.rolling is not None and self._are_enough(swarm, [core]):
                self._lost[effect.fields["round"]] = None

    def _is_of_an_attacker(self, lost: Report) -> bool:
        about_results = any(
            lie.endswith(("_results", "_measures")) for lie in self.circumstances.lies
        )
        return about_results and str(lost.fields["reason"]).startswith(LOST_BY_A_BYZANTINE_SERVER)

    def on_crash(self, swarm: AnySwarm, peer: PeerId) -> None:
        settings = settings_of(swarm)
        cores = [
            core
            for other in swarm.up
            if (core := swarm.inspections.get(other)) is not None and core.phase == "running"
        ]
        if settings is None or not cores or rolling_of(cores[0]) is None:
            return
        furthest = max(core.rounds.round_id for core in cores)
        # A closed connection is noticed at once, and a silent one with the next heartbeats.
        notice_s = max(swarm.network.closing_s[1], *(swarm.network.heartbeat_s or (0.0,)))
        within_s = notice_s + settings.rounds.round_timeout_s + ROUND_S
        hung = tuple([other for other in swarm.up if swarm.hosts[other].trainer_stopped])
        crash = _Crash(peer, swarm.now, furthest, len(self._lost), within_s, hung)
        swarm.at(swarm.now + within_s, partial(self._judge, swarm, crash))

    def _judge(self, swarm: AnySwarm, crash: _Crash) -> None:
        victim, since_s = crash.victim, crash.at_s - BEFORE_S
        if self._started_at > since_s or not self.disturbances.all_undisturbed_since(
            swarm, since_s, but=victim
        ):
            return
        if self.disturbances.uneven_until >= since_s:
            return  # messages got lost, or were held up for longer than a round
        cores = [
            core
            for other in swarm.up
            if (core := swarm.inspections.get(other)) is not None and core.phase == "running"
        ]
        if not self._are_enough(swarm, cores, crash.hung):
            return
        reached = max(core.rounds.round_id for core in cores)
        text = (
            f"{crash.within_s:.2f} s after its crash the others are in round {reached}, as they "
            f"were then ({crash.furthest})"
        )
        self.demand(reached > crash.furthest, swarm, victim, text)
        gone = list(self._lost)[crash.lost :]
        self.demand(len(gone) <= 1, swarm, victim, f"its crash cost {len(gone)} rounds: {gone}")

    def _are_enough(
        self, swarm: AnySwarm, cores: Sequence[Inspection], hung: Sequence[PeerId] = ()
    ) -> bool:
        """Whether rounds go on, and do not come to nothing for want of updates. A liar may have
        said that others have left.

        Args:
            hung: Whose trainer had no update to give: it is there, and passed over.
        """
        roster = max((core.rounds.roster.peers for core in cores), key=len, default=())
        quorum = max((core.rounds.quorum() for core in cores), default=1)
        tables = [
            rolling.replicated.trust for core in cores if (rolling := core.rolling) is not None
        ]
        locked = max((table.quarantined() for table in tables), key=len)
        proven = max((table.proven() for table in tables), key=len)
        # A liar may be on a branch of its own after a result that nobody else took, and make up no
        # quorum with the others.
        apart = self.circumstances.attackers if self.circumstances.delaying else frozenset[PeerId]()
        here = [
            peer for peer in roster if peer in swarm.up and peer not in apart and peer not in hung
        ]
        useful = sum(
            1 for peer in here if peer not in locked and peer not in self.circumstances.attackers
        )
        return len(here) >= quorum and useful >= updates_needed(cores[0].settings, roster, proven)


__all__ = ["CrashCostsLittle"]
