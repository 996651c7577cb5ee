"""L8: without faults no round fails, whatever the size of payloads and the speed of links and
processors. L11: if only the payloads of some peers trickle, no other peer waits for them for
long."""

from __future__ import annotations

from gossip.core import Apply, Committed, Contributed, PeerId, Report
from gossip_lab.simulation.checkers.base import Checker, on_effect, on_event, on_report

INCIDENTS = ("attempt", "late", "suspect", "dead", "recovering", "fork", "paused")
"""Events that a peer reports only if there are faults."""


ROUND_TIMEOUTS = 3.0
"""Maximum duration of a round in L11, in round timeouts. A trickling server is skipped after one
timeout; the next server may have to wait for updates, and be skipped, too."""


class NoIncidentsWithoutFaults(Checker):
    """L8: without faults, every commit has the updates of all peers that had samples, no attempt is
    skipped, no peer is suspected or late, and no peer restores another peer's state."""

    invariant = "L8"

    def make_records(self) -> None:
        self._idle: set[tuple[int, PeerId]] = set()  # (round, peer) if the peer had no samples

    @on_event
    def record_idle(self, event: Contributed) -> None:
        if not event.samples:
            self._idle.add((event.round_id, self.peer))

    @on_report(*INCIDENTS)
    def judge_report(self, report: Report) -> None:
        # Near the optimum a sound result is occasionally rejected.
        refused = report.event == "attempt" and "is refused" in report.fields["reason"]
        if self.conditions.faultless:
            text = f"reports {report.event} {report.fields}, although nothing is wrong"
            self.demand(refused, text)

    @on_effect
    def judge_commit(self, committed: Committed) -> None:
        commit = committed.commit
        there = {contribution.peer for contribution in commit.contributors}
        lacking = [
            p for p in commit.roster if p not in there and (commit.round_id, p) not in self._idle
        ]
        if self.conditions.faultless:
            self.demand(
                not lacking,
                f"commits round {commit.round_id}, shard {commit.shard} without {lacking}, "
                "although there is no fault",
            )


class BoundedTrickleDelay(Checker):
    """L11: if the only fault is that payloads of some peers trickle or cannot be read, all other
    peers continue. Each of their rounds ends within three round timeouts, however slow these
    payloads are."""

    invariant = "L11"
    needs = "rolling"

    def make_records(self) -> None:
        self._applied_at: dict[PeerId, float] = {}

    @on_effect
    def judge(self, apply: Apply) -> None:
        trickling = self.conditions.trickling
        if not trickling or self.peer in trickling:
            return
        took_s = self.now - self._applied_at.get(self.peer, self.now)
        self._applied_at[self.peer] = self.now
        most_s = ROUND_TIMEOUTS * self.rolling.deadline.cap_s + self.swarm.travel_s
        self.demand(
            took_s <= most_s,
            f"has been in round {apply.round_id} for {took_s:.2f} s, where only payloads of "
            f"{sorted(trickling)} trickle; at most {most_s:.2f} s",
        )
