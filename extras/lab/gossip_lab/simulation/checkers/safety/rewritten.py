"""S11, of updates that a server reads where they lie: who writes over its own harms no other."""

from __future__ import annotations

from gossip.core import Aggregate, Committed, PeerId
from gossip_lab.simulation.checkers.base import Checker, PerLife, keep_latest
from gossip_lab.simulation.checkers.watching import on_effect

KEPT = 64


class CountsRewrittenAlone(Checker):
    """S11: an update that is written over once it has been looked at is not finite any more, and
    counts for nothing, or counts as it is read. The updates of all others count as before: no round
    is lost that has one, and only what was written over has no weight."""

    invariant = "S11"
    _rows = PerLife(dict[tuple[int, int], tuple[PeerId, ...]])

    @on_effect
    def record_rows(self, ask: Aggregate) -> None:
        rows = self._rows
        rows[ask.round_id, ask.shard] = tuple([row.peer for row in ask.rows])
        keep_latest(rows, KEPT)

    @on_effect
    def judge(self, committed: Committed) -> None:
        commit, rewriting = committed.commit, self.circumstances.rewriting
        if not rewriting or not committed.made:
            return
        where = f"round {commit.round_id}, shard {commit.shard}"
        rows = self._rows.get((commit.round_id, commit.shard), ())
        others = [other for other in rows if other not in rewriting]
        self.demand(
            not others or bool(commit.digest),
            f"loses {where} ({commit.reason}), which has the updates of {others}",
        )
        without = [c.peer for c in commit.contributors if not c.weight and c.peer in others]
        if without:
            raise self.violated(
                f"gives the updates of {without} no weight in {where}, which nobody wrote over"
            )
