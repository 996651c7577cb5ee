"""S14: what a rule that clips long updates is told of earlier rounds."""

from __future__ import annotations

from gossip.core import LENGTHS_KEPT, Aggregate, Commit, Committed, Effect, Event, PeerId, Restored
from gossip_lab.simulation.checkers.base import Checker
from gossip_lab.simulation.world import AnySwarm


class RuleKnowsUsualLengths(Checker):
    """S14, of rolling rounds: the rule is told the longest length that the commits of the last
    rounds say, of this kind of step and shard, since the peer took its state. A round that lost a
    shard says nothing."""

    invariant = "S14"
    events = (Restored,)
    effects = (Committed, Aggregate)

    def make_records(self) -> None:
        self._rounds = self.per_life(dict[int, list[Commit]])

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if isinstance(event, Restored) and not event.error:
            self._rounds[peer].clear()

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        core = swarm.inspections.get(peer)
        if isinstance(effect, Committed):
            self._rounds[peer].setdefault(effect.commit.round_id, []).append(effect.commit)
        elif isinstance(effect, Aggregate) and core is not None and core.rolling is not None:
            kind = core.rolling.shards[effect.shard].served.kind
            said = [
                commits[effect.shard].length
                for commits in self._rounds[peer].values()
                if commits[0].length and all(c.digest and c.kind == kind for c in commits)
            ]
            recent = said[-LENGTHS_KEPT:]
            self.judged += bool(recent)
            if effect.usual != (longest := max(recent, default=0.0)):
                text = f"its rule is told that {effect.usual:g} is usual, and it is {longest:g}"
                raise self.violated(swarm, peer, f"round {effect.round_id}: {text}")
