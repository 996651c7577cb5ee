"""L9: a newcomer joins the roster only when it keeps up. L10: the last holder of a state waits for
newcomers."""

from __future__ import annotations

from gossip.core import (
    NEWCOMER_ROUNDS,
    NEWCOMER_S,
    QUORUM_LOST,
    Committed,
    Halt,
    PeerExpected,
    PeerId,
    Report,
    quorum_of,
)
from gossip_lab.simulation.checkers.base import (
    Checker,
    PerIncarnation,
    on_effect,
    on_event,
    on_report,
)
from gossip_lab.simulation.checkers.disturbances import NEVER

SLACK = 2
"""Number of rounds that may end between a newcomer's report that it is ready and the commit that
adds it to the roster."""


class NewcomersKeepUp(Checker):
    """L9: when a commit adds a newcomer to the roster, the newcomer is behind by at most the rounds
    that end while its report is in transit. Otherwise the other peers would wait for a newcomer
    that may never catch up, because its link is too slow."""

    invariant = "L9"
    needs = "rolling"
    # Roster of the last commit of the peer.
    _roster = PerIncarnation[frozenset[PeerId] | None]()

    @on_effect
    def judge(self, committed: Committed) -> None:
        commit = committed.commit
        if commit.shard != 0:
            return  # only the commit of the first shard has the next roster
        now, before = frozenset(commit.roster), self._roster
        self._roster = now
        if before is None or not committed.made or self.conditions.attacks:
            return
        usual_s = self.rolling.deadline.typical_round_s()
        most = max(NEWCOMER_ROUNDS, NEWCOMER_S / usual_s if usual_s else 0.0) + SLACK
        for newcomer in (now - before).intersection(self.swarm.up):
            other = self.swarm.inspections[newcomer].rolling
            if other is None or other.mode == "off":
                continue
            behind = commit.round_id - other.round_id
            self.demand(
                behind <= most,
                f"admits peer {newcomer} to the roster, which is {behind} rounds behind; "
                f"{most:.0f} at most",
            )


class WaitForNewcomers(Checker):
    """L10: a peer without a quorum does not give up early while enough newcomers, present or
    announced, can replace the ended members of its roster. The peer may be the last holder of the
    state."""

    invariant = "L10"
    needs = "rolling"

    def make_records(self) -> None:
        # Paused peer -> its roster, of which it lacks a quorum.
        self._waits_for: dict[PeerId, tuple[PeerId, ...]] = {}
        # Announced newcomer -> peers that were notified.
        self._expected_newcomers: dict[PeerId, set[PeerId]] = {}

    @on_event
    def record_expected(self, event: PeerExpected) -> None:
        self._expected_newcomers.setdefault(event.peer, set()).add(self.peer)

    @on_report("paused")
    def record_pause(self, report: Report) -> None:
        self._waits_for[self.peer] = tuple(self.rolling.roster)

    @on_report("resumed")
    def record_resumed(self, report: Report) -> None:
        """Count a judgement: a peer that waited for newcomers until it resumed could have given
        up."""
        waited_for = self._waits_for.pop(self.peer, ())
        self.judged += any(map(self.core.membership.has_ended, waited_for))

    @on_effect
    def judge(self, halt: Halt) -> None:
        core = self.core
        rounds = self.rolling
        hosts = self.swarm.hosts
        if halt.exit_code != QUORUM_LOST:
            return
        left = [p for p in rounds.roster if not core.membership.has_ended(p)]
        here = [
            p for p in left if p == self.peer or (hosts[p].running and not rounds.skip_reason(p))
        ]
        running = {p for p in self.swarm.up if p in core.membership.members}
        expected = {
            p
            for p, notified in self._expected_newcomers.items()
            if self.peer in notified and (p not in hosts or hosts[p].running)
        }
        newcomers = (running | expected).difference(rounds.roster)
        crashed_at = max(self.disturbances.crashed_at.values(), default=NEVER)
        in_time = self.now - crashed_at < core.settings.rounds.quorum_timeout_s
        enough = len(here) == len(left) and len(left) + len(newcomers) >= quorum_of(
            core.settings, len(rounds.roster)
        )
        self.demand(
            not (enough and in_time),
            f"gives up with {here} of {list(rounds.roster)}: the others have ended, but "
            f"{sorted(newcomers)} are on their way",
        )
