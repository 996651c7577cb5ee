"""L5: a peer that finds more peers on another branch of history than on its own leaves its
branch."""

from __future__ import annotations

from gossip.core import NotServing, Received, Report, Update
from gossip_lab.simulation.checkers.base import Checker, PerLife, last_report_at
from gossip_lab.simulation.checkers.watching import after_event, on_report

AT_ONCE_S = 0.1  # for effects in the same moment


class JoinsTheLarger(Checker):
    """L5: if only one side of a partition can continue, the smaller side of a fork adopts the
    larger one's state at once.

    It does so as soon as more peers report a branch of the present round other than its own,
    and more than f, as f of them may be Byzantine. It does not wait until the others have
    continued, because they may be unable to. A peer that has just left its branch for this reason,
    and returned to it without another state, may stay for the time of a round. It then sends others
    the state of its branch.
    """

    invariant = "L5"
    needs = "rolling"
    _left = PerLife[bytes | None]()  # the branch that it left last

    @on_report("recovering")
    def record_left(self, report: Report) -> None:
        self._left = self.rolling.chain

    @after_event
    def judge(self, event: Received, message: Update | NotServing) -> None:
        core, rounds, seen = self.core, self.rolling, self.rolling.branches
        if core.phase != "running" or rounds.mode != "active" or rounds.may_differ:
            return
        back_at = last_report_at(self.host, "kept_own_state", "restored")
        until_s = back_at + core.settings.rounds.round_timeout_s
        if self._left == rounds.chain and self.now <= until_s + AT_ONCE_S:
            return
        asked = message.asked_round if isinstance(message, NotServing) else message.round_id
        theirs = message.parent if isinstance(message, Update) else message.chain
        if not message.round_id == asked == rounds.round_id or message.shard >= len(rounds.shards):
            return
        # Messages of a peer outside of the roster do not count.
        is_counted = seen.get(event.sender) == theirs and event.sender in rounds.roster
        if theirs == rounds.chain or not is_counted:
            return
        there = [other for other, branch in seen.items() if branch == theirs]
        here = [self.peer, *[other for other, branch in seen.items() if branch == rounds.chain]]
        self.demand(
            len(there) <= max(len(here), core.settings.f),
            f"stays in round {rounds.round_id} with {sorted(here)}, although peers "
            f"{sorted(there)} have reported another branch",
        )
