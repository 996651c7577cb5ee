"""L5: a peer leaves its branch of history if more peers report another branch."""

from __future__ import annotations

from gossip.core import NotServing, Received, Report, Update
from gossip_lab.simulation.checkers.base import (
    Checker,
    PerIncarnation,
    after_event,
    last_report_at,
    on_report,
)

AT_ONCE_S = 0.1  # for effects of the same moment


class LargerBranchWins(Checker):
    """L5: in a fork, the peers on the smaller branch adopt the state of the larger branch at once.

    A peer does so as soon as more peers report another branch of its present round than its own
    branch. These must be more than f peers, because f of them may be Byzantine. It does not wait
    until the other branch continues, because that branch may be unable to continue. A peer that has
    just left its branch, but found no other state, may stay for a round timeout. It then serves the
    state of its branch to other peers.
    """

    invariant = "L5"
    needs = "rolling"
    _left_branch = PerIncarnation[bytes | None]()  # hash of the branch that the peer left last

    @on_report("recovering")
    def record_left(self, report: Report) -> None:
        self._left_branch = self.rolling.chain

    @after_event
    def judge(self, event: Received, message: Update | NotServing) -> None:
        core = self.core
        rounds = self.rolling
        seen = self.rolling.branches
        if core.phase != "running" or rounds.mode != "active" or rounds.may_differ:
            return
        back_at = last_report_at(self.host, "kept_own_state", "restored")
        until_s = back_at + core.settings.rounds.round_timeout_s
        if self._left_branch == rounds.chain and self.now <= until_s + AT_ONCE_S:
            return
        asked = message.asked_round if isinstance(message, NotServing) else message.round_id
        theirs = message.parent if isinstance(message, Update) else message.chain
        if not message.round_id == asked == rounds.round_id or message.shard >= len(rounds.shards):
            return
        # Reports of peers outside of the roster are ignored.
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
