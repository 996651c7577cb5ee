"""L4 and S11 in gossip rounds: a peer pushes to all peers in its plan, and each sample has one
reader."""

from __future__ import annotations

from itertools import chain, product

from gossip.core import Contributed, PeerId, Push, Send, StartRound
from gossip_lab.simulation.checkers.base import (
    Checker,
    PerIncarnation,
    after_event,
    keep_latest,
    on_effect,
    on_event,
)
from gossip_lab.simulation.checkers.safety import members_of, targets_of

EPOCHS_KEPT = 4


class PushesFollowPlan(Checker):
    """L4, in gossip rounds: as soon as its trainer contributes an update, a peer pushes the update
    once to each peer in its plan that it does not skip, and to no other peer. In every
    ``mix_every``-th round it also pushes its parameters."""

    invariant = "L4"
    needs = "gossip"
    _sent_pushes = PerIncarnation(set[tuple[PeerId, str]])

    _targets = PerIncarnation[list[PeerId] | None]()

    @on_event
    def record_targets(self, event: Contributed) -> None:
        core, rounds = self.core, self.gossip
        if core.phase != "running" or rounds.phase != "computing":
            return
        if event.round_id == rounds.round_id:
            named = targets_of(core, self.peer, event.round_id, members_of(core))
            self._targets = [
                t for t in named if not core.membership.skip_reason(t) and t not in rounds.finished
            ]
            self._sent_pushes.clear()

    @on_effect
    def judge_push(self, send: Send, push: Push) -> None:
        pushed, what = self._sent_pushes, (send.peer, push.what)
        if send.peer not in (self._targets or ()):
            raise self.violated(
                f"pushes to peer {send.peer} in round {push.round_id}, which it skips or its plan "
                "does not name"
            )
        if what in pushed:
            raise self.violated(
                f"pushes its {push.what} of round {push.round_id} to peer {send.peer} twice"
            )
        pushed.add(what)

    @after_event
    def judge(self, event: Contributed) -> None:
        targets = self._targets
        self._targets = None
        core = self.core
        if targets is None or core.phase != "running":
            return  # the update was not for the present round, or the peer has ended its training
        settings = core.settings.gossip
        mixes = event.round_id % settings.mix_every == settings.mix_every - 1
        for target, what in product(targets, ("gradient", "parameters")[: 1 + mixes]):
            self.demand(
                (target, what) in self._sent_pushes,
                f"does not push its {what} of round {event.round_id} to peer {target}, which its "
                "plan names",
            )


class DisjointSamples(Checker):
    """S11, in gossip rounds: in an epoch each sample is read by only one peer, in only one round.

    A peer that joins later is an exception: it reads samples that an initial peer also reads. So
    each such peer is judged separately.
    """

    invariant = "S11"
    needs = "gossip"

    def make_records(self) -> None:
        # (epoch, newcomer or -1 for initial peers) -> sample -> (reader, round).
        self._readers: dict[tuple[int, PeerId], dict[int, tuple[PeerId, int]]] = {}

    @on_effect
    def judge(self, start: StartRound) -> None:
        if start.samples is None:
            return
        epoch = start.samples.epoch
        is_first = self.peer in self.core.settings.peers
        readers = self._readers.setdefault((epoch, -1 if is_first else self.peer), {})
        keep_latest(self._readers, EPOCHS_KEPT)
        reader = self.peer, start.round_id
        self.judged += 1
        for sample in chain.from_iterable(range(*each) for each in start.samples.ranges):
            first = readers.setdefault(sample, reader)
            if first != reader:
                raise self.violated(
                    f"reads sample {sample} of epoch {epoch} in round {start.round_id}; peer "
                    f"{first[0]} reads it in {first[1]}"
                )
