"""L3: the cost of a crash for the other peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gossip.core import Inspection, PeerId, Report
from gossip_lab.simulation.checkers.base import Checker, updates_needed
from gossip_lab.simulation.checkers.watching import on_report

ROUND_S = 1.0  # for the round itself
LOST_BY_A_BYZANTINE_SERVER = "the statistics of the decision are lost"
"""Reason of a lost round with a later shard served by a peer that sends wrong measures, or has its
result rejected: no other peer can have made these measurements."""
BEFORE_S = 3.0  # a crash counts alone if nothing else has happened for this long


@dataclass(frozen=True, slots=True)
class _Crash:
    """A crash, and the state of the run at that time.

    Attributes:
        furthest: Round of the others.
        lost: Number of rounds that changed nothing.
        within_s: Time within which the others must reach a further round.
        hung: Peers without an update because their trainer hung.
    """

    victim: PeerId
    at_s: float
    furthest: int
    lost: int
    within_s: float
    hung: tuple[PeerId, ...]


class CrashCostsLittle(Checker):
    """L3: a crash, even of the server during its broadcast, costs at most one round, and
    no more time than its detection and a round timeout. Judged only if no other fault occurs in
    this time."""

    invariant = "L3"
    needs = "rolling"

    def make_records(self) -> None:
        # rounds that changed nothing, although the rule had enough updates
        self._lost: dict[int, None] = {}

    @on_report("lost_round")
    def record_lost(self, report: Report) -> None:
        if not self._is_of_an_attacker(report) and self._are_enough([self.core]):
            self._lost[report.fields["round"]] = None

    def _is_of_an_attacker(self, lost: Report) -> bool:
        about_results = any(
            lie.endswith(("_results", "_measures")) for lie in self.circumstances.lies
        )
        return about_results and str(lost.fields["reason"]).startswith(LOST_BY_A_BYZANTINE_SERVER)

    def _running(self) -> list[Inspection]:
        cores = [self.swarm.inspections.get(peer) for peer in self.swarm.up]
        return [core for core in cores if core is not None and core.phase == "running"]

    def end_life(self) -> None:
        swarm, cores = self.swarm, self._running()
        if not cores or cores[0].rolling is None:
            return
        furthest = max(core.rounds.round_id for core in cores)
        # A closed connection is noticed at once, and a silent one with the next heartbeats.
        notice_s = max(swarm.network.closing_s[1], *(swarm.network.heartbeat_s or (0.0,)))
        within_s = notice_s + cores[0].settings.rounds.round_timeout_s + ROUND_S
        hung = tuple([other for other in swarm.up if swarm.hosts[other].trainer_stopped])
        crash = _Crash(self.peer, self.now, furthest, len(self._lost), within_s, hung)
        swarm.at(self.now + within_s, partial(self._judge, crash))

    def _judge(self, crash: _Crash) -> None:
        victim, since_s, disturbances = crash.victim, crash.at_s - BEFORE_S, self.disturbances
        started_at = max(host.started_at for host in self.swarm.hosts.values())
        if started_at > since_s or not disturbances.all_undisturbed_since(
            self.swarm, since_s, but=victim
        ):
            return
        if disturbances.uneven_until >= since_s:
            return  # messages got lost, or were delayed by more than a round
        cores = self._running()
        if not self._are_enough(cores, crash.hung):
            return
        reached = max(core.rounds.round_id for core in cores)
        text = (
            f"{crash.within_s:.2f} s after its crash the others are still in round {reached}, as "
            f"then ({crash.furthest})"
        )
        self.demand(reached > crash.furthest, text, victim)
        gone = list(self._lost)[crash.lost :]
        self.demand(len(gone) <= 1, f"its crash cost {len(gone)} rounds: {gone}", victim)

    def _are_enough(self, cores: Sequence[Inspection], hung: Sequence[PeerId] = ()) -> bool:
        """Whether rounds continue, and do not fail for lack of updates. A Byzantine peer may have
        announced that others have left.

        Args:
            hung: Peers without an update because their trainer hung: they are present, and skipped.
        """
        roster = max((core.rounds.roster.peers for core in cores), key=len, default=())
        quorum = max((core.rounds.quorum() for core in cores), default=1)
        tables = [
            rolling.replicated.trust for core in cores if (rolling := core.rolling) is not None
        ]
        locked = max((table.quarantined() for table in tables), key=len)
        proven = max((table.proven() for table in tables), key=len)
        # A Byzantine peer may be on its own branch after a result that no other peer accepted,
        # and cannot form a quorum with the others.
        attackers = self.circumstances.attackers
        apart = attackers if self.circumstances.delaying else frozenset[PeerId]()
        here = set(roster).intersection(self.swarm.up).difference(apart, hung)
        needed = updates_needed(cores[0].settings, roster, proven)
        return len(here) >= quorum and len(here.difference(locked, attackers)) >= needed
