"""S10, in rounds with shards that decide together: each round has one decision, which is based on
measured statistics and followed by all servers."""

from __future__ import annotations

from gossip.core import (
    Aggregate,
    Aggregated,
    Commit,
    Committed,
    Contribution,
    PartialStatistics,
    Send,
    digest_of,
)
from gossip_lab.simulation.checkers.base import (
    Checker,
    PerIncarnation,
    after_event,
    keep_latest,
    on_effect,
    on_event,
)

KEPT = 1024
"""Number of stored (round, shard) records. No peer is behind by so many records."""


class CrossShardDecision(Checker):
    """S10, in rounds whose shards decide together.

    The commit of the first shard has the decision: the used updates and their weights. The commits
    of all other shards with a result name the same updates and weights. The decision is based on
    statistics that the servers of the shards have measured. A server that holds the result of
    another shard makes no decision, because this result shows that there was one. A server combines
    updates as decided, and only updates that it has measured itself. (``SingleCommitPerRound``
    checks that the first shard has only one commit.)
    """

    invariant = "S10"
    needs = "rolling"
    # Ticket of a request -> (round, shard) that is measured.
    _asked = PerIncarnation(dict[int, tuple[int, int]])
    _own = PerIncarnation(dict[tuple[int, int], bytes])

    def make_records(self) -> None:
        # (round, shard) -> digests of the statistics that any peer has measured.
        self._measured: dict[tuple[int, int], set[bytes]] = {}
        # (round, parent) -> contributors of the first shard's commits.
        self._decided: dict[tuple[int, bytes], set[tuple[Contribution, ...]]] = {}

    @on_event
    def record_measured(self, event: Aggregated) -> None:
        place = self._asked.pop(event.ticket, None)
        if place is not None and event.statistics:
            digest = digest_of(event.statistics)
            self._measured.setdefault(place, set()).add(digest)
            self._own[place] = digest
            keep_latest(self._measured, KEPT)
            keep_latest(self._own, KEPT)

    @on_effect
    def record_decided(self, send: Send, commit: Commit) -> None:
        if commit.shard == 0 and commit.digest:
            decided = self._decided.setdefault((commit.round_id, commit.parent), set())
            decided.add(commit.contributors)
            keep_latest(self._decided, KEPT)

    @on_effect
    def judge_question(self, ask: Aggregate) -> None:
        if ask.step == "measure":
            self._asked[ask.ticket] = ask.round_id, ask.shard
        elif ask.step == "decide":
            self._judge_parts(ask)
        elif ask.step == "combine" and self.rolling.round_id == ask.round_id:
            self._judge_weights(
                ask
            )  # not judged if the peer has moved to another round in this event

    def _judge_parts(self, ask: Aggregate) -> None:
        common = set.intersection(*[set(part.peers) for part in ask.parts])
        outside = sorted([row.peer for row in ask.outside])
        self.demand(
            sorted((*ask.peers, *outside)) == sorted(common),
            f"decides on {ask.peers}, with {outside} only measured, but all servers have "
            f"measured {sorted(common)}",
        )
        if self.conditions.equivocating:
            return
        for shard, part in enumerate(ask.parts):
            self.demand(
                digest_of(part.statistics) in self._measured.get((ask.round_id, shard), ()),
                f"decides in round {ask.round_id} on statistics of shard {shard} that no peer has "
                "measured",
            )

    def _judge_weights(self, ask: Aggregate) -> None:
        combines = f"combines round {ask.round_id}, shard {ask.shard}"
        first = self.rolling.shards[0].commit
        if first is None:
            raise self.violated(f"{combines} without a decision")
        meant = self._own.get((ask.round_id, ask.shard)) == first.measured[ask.shard]
        self.demand(meant, f"{combines} by a decision about other updates")
        decided = {
            c.peer: weight for c, weight in zip(first.contributors, first.decision, strict=False)
        }
        taken = {
            row.peer: weight
            for row, weight in zip(ask.rows, ask.decision, strict=False)
            if weight or row.peer in decided
        }
        if taken != decided:
            raise self.violated(f"{combines} with the weights {taken}; {decided} were decided")

    @after_event
    def judge_progress(self, event: Aggregated | PartialStatistics | Commit) -> None:
        rounds = self.rolling
        if not rounds.cross_shard.active or not rounds.shards:
            return
        first = rounds.shards[0]
        progress = first.served.cross_shard_progress
        fresh = first.served.attempt == first.attempt
        committed = [shard.index for shard in rounds.shards if shard.commit is not None]
        if first.commit is None and committed and progress is not None and fresh:
            self.demand(
                progress.step not in ("measured", "decide"),
                f"would decide in round {rounds.round_id} again, although it has the results "
                f"of shards {committed}",
            )

    @on_effect
    def judge_commit(self, committed: Committed) -> None:
        commit, liars = committed.commit, self.conditions.equivocating
        if not self.core.settings.cross_shard or commit.shard == 0 or not commit.digest:
            return
        if self.peer in liars or commit.server in liars:
            return  # a Byzantine peer may have a different result
        decided = self._decided.get((commit.round_id, commit.parent), set())
        self.demand(
            commit.contributors in decided,
            f"shard {commit.shard} of round {commit.round_id} combines {commit.contributors}; the "
            f"decision was {decided or 'nothing'}",
        )
