"""S14: what a rule that clips long updates is told of earlier rounds."""

from __future__ import annotations

from gossip.core import LENGTHS_KEPT, Aggregate, Commit, Committed, Restored
from gossip_lab.simulation.checkers.base import Checker, PerLife
from gossip_lab.simulation.checkers.watching import on_effect, on_event


class RuleKnowsUsualLengths(Checker):
    """S14, of rolling rounds: the rule is told the longest length that the commits of the last
    rounds say, of this kind of step and shard, since the peer took its state. A round that lost a
    shard says nothing."""

    invariant = "S14"
    needs = "rolling"
    _rounds = PerLife(dict[int, list[Commit]])

    @on_event
    def forget(self, event: Restored) -> None:
        if not event.error:
            self._rounds.clear()

    @on_effect
    def record(self, committed: Committed) -> None:
        commit = committed.commit
        self._rounds.setdefault(commit.round_id, []).append(commit)

    @on_effect
    def judge(self, ask: Aggregate) -> None:
        kind = self.rolling.shards[ask.shard].served.kind
        said = [
            commits[ask.shard].length
            for commits in self._rounds.values()
            if commits[0].length and all(c.digest and c.kind == kind for c in commits)
        ]
        recent = said[-LENGTHS_KEPT:]
        self.judged += bool(recent)
        if ask.usual != (longest := max(recent, default=0.0)):
            raise self.violated(
                f"round {ask.round_id}: its rule is told that {ask.usual:g} is usual, and it is "
                f"{longest:g}"
            )
