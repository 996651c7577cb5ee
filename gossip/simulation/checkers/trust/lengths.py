"""S14: what a rule that clips long updates is told of earlier rounds."""

from __future__ import annotations

from collections import deque

from gossip.core import LENGTHS_KEPT, Aggregate, Committed, Effect, Event, PeerId, Restored
from gossip.simulation.checkers.base import Checker
from gossip.simulation.world import AnySwarm

Lengths = dict[tuple[int, int], deque[float]]


class RuleKnowsUsualLengths(Checker):
    """S14, of rolling rounds: the rule is told the longest length that the commits of the last
    rounds say, of this kind of step and shard, since the peer took its state."""

    invariant = "S14"
    events = (Restored,)
    effects = (Committed, Aggregate)

    def make_records(self) -> None:
        self._lengths = self.per_life(Lengths)

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if isinstance(event, Restored):
            self._lengths[peer].clear()

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Committed):
            commit = effect.commit
            if commit.length:
                kept = self._lengths[peer].setdefault((commit.kind, commit.shard), deque())
                kept.append(commit.length)
        elif isinstance(effect, Aggregate) and (core := swarm.inspections.get(peer)) is not None:
            if (rounds := core.rolling) is None:
                return
            kind = rounds.shards[effect.shard].kind
            recent = [*self._lengths[peer].get((kind, effect.shard), ())][-LENGTHS_KEPT:]
            self.judged += bool(recent)
            if effect.usual != (longest := max(recent, default=0.0)):
                text = f"its rule is told that {effect.usual:g} is usual, and it is {longest:g}"
                raise self.violated(swarm, peer, f"round {effect.round_id}: {text}")
