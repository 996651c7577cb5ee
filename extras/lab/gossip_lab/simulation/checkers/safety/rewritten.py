"""S11, of updates that a server reads where they lie: who writes over its own harms no other."""

from __future__ import annotations

from gossip.core import Aggregate, Commit, Committed, Effect, PeerId
from gossip_lab.simulation.checkers.base import Checker
from gossip_lab.simulation.world import AnySwarm

KEPT = 64


class CountsRewrittenAlone(Checker):
    """S11: an update that is written over once it has been looked at is not finite any more, and
    counts for nothing, or counts as it is read. The updates of all others count as before: no round
    is lost that has one, and only what was written over has no weight."""

    invariant = "S11"
    effects = (Aggregate, Committed)

    def make_records(self) -> None:
        self._rows = self.per_life(dict[tuple[int, int], tuple[PeerId, ...]])

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if not self.circumstances.rewriting:
            return
        if isinstance(effect, Aggregate):
            rows = self._rows[peer]
            rows[effect.round_id, effect.shard] = tuple([row.peer for row in effect.rows])
            if len(rows) > KEPT:
                del rows[next(iter(rows))]
        elif isinstance(effect, Committed) and effect.made:
            self._judge(swarm, peer, effect.commit)

    def _judge(self, swarm: AnySwarm, peer: PeerId, commit: Commit) -> None:
        where = f"round {commit.round_id}, shard {commit.shard}"
        others = [
            other
            for other in self._rows[peer].get((commit.round_id, commit.shard), ())
            if other not in self.circumstances.rewriting
        ]
        self.judged += 1
        if others and not commit.digest:
            text = f"loses {where} ({commit.reason}), which has the updates of {others}"
            raise self.violated(swarm, peer, text)
        without = [c.peer for c in commit.contributors if not c.weight and c.peer in others]
        if without:
            text = f"gives the updates of {without} no weight in {where}, which nobody wrote over"
            raise self.violated(swarm, peer, text)
