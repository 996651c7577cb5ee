"""L3: the cost of a crash for the other peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gossip.core import PeerId, Report
from gossip_lab.inspection import Inspection
from gossip_lab.simulation.checkers.base import Checker, on_report, updates_needed

ROUND_S = 1.0  # duration of the round itself
LOST_BY_A_BYZANTINE_SERVER = "the statistics of the decision are lost"
"""Reason of a lost round if a shard other than the first was served by a peer that sends wrong
measurements, or that sent a rejected result. No other peer has these measurements."""
BEFORE_S = 3.0  # minimum time without other faults before a judged crash


@dataclass(frozen=True, slots=True)
class _Crash:
    """A crash, and the state of the run at that time.

    Attributes:
        furthest: Furthest round of the other peers.
        lost: Number of lost rounds so far.
        within_s: Time within which the other peers must reach a further round, in seconds.
        hung: Peers with a trainer that hangs, so that they contribute no update.
    """

    victim: PeerId
    at_s: float
    furthest: int
    lost: int
    within_s: float
    hung: tuple[PeerId, ...]


class BoundedCrashCost(Checker):
    """L3: a crash, even of the server during its broadcast, causes at most one lost round. It
    delays the other peers by at most the time to detect the crash and a round timeout. This is
    judged only if no other fault occurs in this time."""

    invariant = "L3"
    needs = "rolling"

    def make_records(self) -> None:
        # Lost rounds in which the rule had enough updates (a dictionary, for its order).
        self._lost: dict[int, None] = {}

    @on_report("lost_round")
    def record_lost(self, report: Report) -> None:
        if not self._is_caused_by_attacker(report) and self._are_enough([self.core]):
            self._lost[report.fields["round"]] = None

    def _is_caused_by_attacker(self, lost: Report) -> bool:
        about_results = any(
            lie.endswith(("_results", "_measures")) for lie in self.conditions.attacks
        )
        return about_results and str(lost.fields["reason"]).startswith(LOST_BY_A_BYZANTINE_SERVER)

    def _running(self) -> list[Inspection]:
        cores = [self.swarm.inspections.get(peer) for peer in self.swarm.up]
        return [core for core in cores if core is not None and core.phase == "running"]

    def end_incarnation(self) -> None:
        swarm, cores = self.swarm, self._running()
        if not cores or cores[0].rolling is None:
            return
        furthest = max(core.rounds.round_id for core in cores)
        # A crash is detected when its connections close, or else by missing heartbeats.
        notice_s = max(swarm.network.closing_s[1], *(swarm.network.heartbeat_s or (0.0,)))
        within_s = notice_s + cores[0].settings.rounds.round_timeout_s + ROUND_S
        hung = tuple([other for other in swarm.up if swarm.hosts[other].trainer_stopped])
        crash = _Crash(self.peer, self.now, furthest, len(self._lost), within_s, hung)
        swarm.at(self.now + within_s, partial(self._judge, crash))

    def _judge(self, crash: _Crash) -> None:
        victim = crash.victim
        since_s = crash.at_s - BEFORE_S
        disturbances = self.disturbances
        started_at = max(host.started_at for host in self.swarm.hosts.values())
        if started_at > since_s or not disturbances.all_undisturbed_since(
            self.swarm, since_s, but=victim
        ):
            return
        if disturbances.uneven_until >= since_s:
            return  # some messages were lost, or delayed for long
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
        """Whether the present peers are enough for the quorum and for the rule. The largest roster
        is used, because a Byzantine peer may have announced that others have left.

        Args:
            hung: Peers with a trainer that hangs: they run, but contribute no update and are
                skipped.
        """
        roster = max((core.rounds.roster.peers for core in cores), key=len, default=())
        quorum = max((core.rounds.quorum() for core in cores), default=1)
        tables = [
            rolling.replicated.trust for core in cores if (rolling := core.rolling) is not None
        ]
        locked = max((table.quarantined() for table in tables), key=len)
        proven = max((table.proven() for table in tables), key=len)
        # A Byzantine peer may be alone on a branch, after a result that no other peer accepted. It
        # then does not count towards the quorum of the others.
        attackers = self.conditions.attackers
        apart = attackers if self.conditions.allows_delays else frozenset[PeerId]()
        here = set(roster).intersection(self.swarm.up).difference(apart, hung)
        needed = updates_needed(cores[0].settings, roster, proven)
        return len(here) >= quorum and len(here.difference(locked, attackers)) >= needed
