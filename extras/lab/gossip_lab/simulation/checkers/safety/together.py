"""S10, of rounds whose shards decide together: one decision a round, made on what was measured, and
followed by all."""

from __future__ import annotations

from typing import Any

from gossip.core import (
    Aggregate,
    Aggregated,
    Commit,
    Committed,
    Contribution,
    Effect,
    Event,
    PartialStatistics,
    PeerId,
    Send,
    digest_of,
)
from gossip_lab.simulation.checkers.base import Checker
from gossip_lab.simulation.world import AnySwarm

from .rounds import rolling_of

KEPT = 1024
"""Rounds and shards: more than anybody is behind by."""


class DecidesTogether(Checker):
    """S10: of a round whose shards decide together the commits of all shards that changed anything
    tell of the same updates with the same weights, as a commit of the first did; the decision was
    made on what the shards' servers have measured, by one that holds no other shard's result, which
    was made by an earlier decision; and a server combines by it, and only what it has measured
    itself. (That there is one commit of the first is for ``OneHistory`` to say.)"""

    invariant = "S10"
    events = (Aggregated,)
    effects = (Aggregate, Committed, Commit)
    afters = (Aggregated, PartialStatistics, Commit)

    def make_records(self) -> None:
        # ticket -> round and shard that are being measured
        self._asked = self.per_life(dict[int, tuple[int, int]])
        # round and shard -> what anybody has measured of it
        self._measured: dict[tuple[int, int], set[bytes]] = {}
        self._own = self.per_life(dict[tuple[int, int], bytes])
        # by round and parent
        self._decided: dict[tuple[int, bytes], set[tuple[Contribution, ...]]] = {}

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        place = self._asked[peer].pop(event.ticket, None) if isinstance(event, Aggregated) else None
        if place is None or not isinstance(event, Aggregated) or not event.statistics:
            return
        digest = digest_of(event.statistics)
        self._measured.setdefault(place, set()).add(digest)
        self._own[peer][place] = digest
        _forget(self._measured)
        _forget(self._own[peer])

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Send) and isinstance(effect.message, Commit):
            commit = effect.message
            if commit.shard == 0 and commit.digest:
                self._decided.setdefault((commit.round_id, commit.parent), set()).add(
                    commit.contributors
                )
                _forget(self._decided)
        elif isinstance(effect, Committed):
            self._on_committed(swarm, peer, effect.commit)
        elif isinstance(effect, Aggregate) and effect.step == "measure":
            self._asked[peer][effect.ticket] = effect.round_id, effect.shard
        elif isinstance(effect, Aggregate) and effect.step == "decide":
            self._judge_parts(swarm, peer, effect)
        elif isinstance(effect, Aggregate) and effect.step == "combine":
            self._judge_weights(swarm, peer, effect)

    def _judge_parts(self, swarm: AnySwarm, peer: PeerId, ask: Aggregate) -> None:
        common = set.intersection(*[set(part.peers) for part in ask.parts])
        outside = sorted([row.peer for row in ask.outside])
        self.demand(
            sorted((*ask.peers, *outside)) == sorted(common),
            swarm,
            peer,
            f"decides on {ask.peers} with {outside} outside; all servers have measured "
            f"{sorted(common)}",
        )
        if self.circumstances.equivocating:
            return
        for shard, part in enumerate(ask.parts):
            known = digest_of(part.statistics) in self._measured.get((ask.round_id, shard), ())
            self.demand(
                known,
                swarm,
                peer,
                f"decides in round {ask.round_id} on what nobody has measured of shard {shard}",
            )

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        rounds = rolling_of(swarm.inspections.get(peer))
        if (
            rounds is None
            or not rounds.cross_shard.active
            or not rounds.shards
            or (first := rounds.shards[0]).commit is not None
        ):
            return
        committed = [shard.index for shard in rounds.shards if shard.commit is not None]
        if (
            committed
            and first.served.cross_shard_progress is not None
            and first.served.attempt == first.attempt
        ):
            text = (
                f"would decide in round {rounds.round_id} anew, though it holds the results of "
                f"shards {committed}"
            )
            self.demand(
                first.served.cross_shard_progress.step not in ("measured", "decide"),
                swarm,
                peer,
                text,
            )

    def _judge_weights(self, swarm: AnySwarm, peer: PeerId, ask: Aggregate) -> None:
        rounds = rolling_of(swarm.inspections.get(peer))
        if rounds is None or rounds.round_id != ask.round_id:
            return  # it has gone on within the same event
        where, first = f"round {ask.round_id}, shard {ask.shard}", rounds.shards[0].commit
        if first is None:
            raise self.violated(swarm, peer, f"combines {where}, and knows of no decision")
        meant = self._own[peer].get((ask.round_id, ask.shard)) == first.measured[ask.shard]
        self.demand(
            meant, swarm, peer, f"combines {where} by a decision that was made on something else"
        )
        decided = {
            c.peer: weight for c, weight in zip(first.contributors, first.decision, strict=False)
        }
        taken = {
            row.peer: weight
            for row, weight in zip(ask.rows, ask.decision, strict=False)
            if weight or row.peer in decided
        }
        if taken != decided:
            raise self.violated(
                swarm, peer, f"combines {where} with the weights {taken}; {decided} were decided"
            )

    def _on_committed(self, swarm: AnySwarm, peer: PeerId, commit: Commit) -> None:
        core = swarm.inspections.get(peer)
        if core is None or not core.settings.cross_shard or peer in self.circumstances.equivocating:
            return  # a liar holds what it has made, and the others what they could take
        if (
            commit.shard == 0
            or not commit.digest
            or commit.server in self.circumstances.equivocating
        ):
            return
        decided = self._decided.get((commit.round_id, commit.parent), set())
        self.judged += 1
        if commit.contributors not in decided:
            text = (
                f"shard {commit.shard} of round {commit.round_id} was made of {commit.contributors}"
            )
            raise self.violated(swarm, peer, f"{text}; decided was {decided or 'nothing'}")


def _forget(known: dict[Any, Any]) -> None:
    if len(known) > KEPT:
        del known[next(iter(known))]


__all__ = ["DecidesTogether"]
