"""S14: the lengths of earlier aggregates that a rule receives if it clips long updates."""

from __future__ import annotations

from gossip.core import TRUST_ROUNDS, Aggregate, Commit, Committed, Restored
from gossip_lab.simulation.checkers.base import Checker, PerIncarnation, on_effect, on_event


class UsualLengthsMatchCommits(Checker):
    """S14, in rolling rounds: the rule receives the maximum length in the commits of the last
    rounds, for this kind of step and this shard. Rounds with a lost shard, and rounds before the
    peer last restored a state, are left out."""

    invariant = "S14"
    needs = "rolling"
    _rounds = PerIncarnation(dict[int, list[Commit]])

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
        recent = said[-TRUST_ROUNDS:]
        self.judged += bool(recent)
        if ask.usual != (longest := max(recent, default=0.0)):
            raise self.violated(
                f"round {ask.round_id}: its rule gets the usual length {ask.usual:g}, but it is "
                f"{longest:g}"
            )
