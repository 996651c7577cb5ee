"""L4, S11, L3, of gossip rounds: who is in the plan is pushed to, nobody waits for nobody, and each
sample has one reader."""

from __future__ import annotations

from gossip.core import (
    Contributed,
    Effect,
    Event,
    Hello,
    PeerId,
    Push,
    Received,
    Report,
    Send,
    StartRound,
)
from gossip_lab.simulation.checkers.base import Checker
from gossip_lab.simulation.checkers.safety import is_worth_waiting, members_of, targets_of
from gossip_lab.simulation.world import AnySwarm

EPOCHS_KEPT = 4


class PushesToAll(Checker):
    """L4, of gossip rounds: in the moment in which its trainer comes with an update, a peer pushes
    it to everybody whom the plan names and who is not skipped, once, and to nobody else; in every
    ``mix_every``-th round its parameters, too."""

    invariant = "L4"
    events = (Contributed,)
    effects = (Push,)
    afters = (Contributed,)

    def make_records(self) -> None:
        self._targets: dict[PeerId, tuple[PeerId, ...]] = self.per_life()
        self._pushed: dict[PeerId, dict[tuple[PeerId, str], None]] = {}

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        core = swarm.inspections.get(peer)
        rounds = core.gossip if core is not None else None
        if (
            core is None
            or rounds is None
            or not isinstance(event, Contributed)
            or core.phase != "running"
        ):
            return
        if rounds.phase != "computing" or event.round_id != rounds.round_id:
            return
        named = targets_of(core, peer, event.round_id, members_of(core))
        reachable = [
            t for t in named if not core.membership.skip_reason(t) and t not in rounds.finished
        ]
        self._targets[peer], self._pushed[peer] = tuple(reachable), {}

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Send) and isinstance(effect.message, Push):
            if peer not in self._targets or effect.peer not in self._targets[peer]:
                text = (
                    f"pushes to peer {effect.peer} in round {effect.message.round_id}, which it "
                    "skips or its plan does not name"
                )
                raise self.violated(swarm, peer, text)
            if (effect.peer, effect.message.what) in self._pushed[peer]:
                text = (
                    f"pushes its {effect.message.what} of round {effect.message.round_id} to peer "
                    f"{effect.peer} twice"
                )
                raise self.violated(swarm, peer, text)
            self._pushed[peer][effect.peer, effect.message.what] = None

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if not isinstance(event, Contributed):
            return
        targets = self._targets.pop(peer, None)
        core = swarm.inspections.get(peer)
        if targets is None or core is None or core.phase != "running":
            return  # or it has found that the training is over
        pushed, settings = self._pushed.pop(peer), core.settings.gossip
        mixes = event.round_id % settings.mix_every == settings.mix_every - 1
        self.judged += 1
        for target in targets:
            for what in ("gradient", "parameters") if mixes else ("gradient",):
                if (target, what) not in pushed:
                    text = (
                        f"does not push its {what} of round {event.round_id} to peer {target}, "
                        "which its plan names"
                    )
                    raise self.violated(swarm, peer, text)


class WaitsForSomebody(Checker):
    """L3, of gossip rounds: a peer that has its own update waits for as long only as there is
    somebody to wait for, of whom something is to come. One that it comes to skip, or that says that
    it is done, costs it no time."""

    invariant = "L3"
    effects = (Report,)
    afters = (Contributed, Push, Hello)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        # The core is done with the whole event.
        if isinstance(effect, Report) and effect.event in ("skip", "dead", "left"):
            self._check_sources(swarm, peer)

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if type(event.message if type(event) is Received else event) in self.afters:
            self._check_sources(swarm, peer)

    def _check_sources(self, swarm: AnySwarm, peer: PeerId) -> None:
        core = swarm.inspections.get(peer)
        rounds = core.gossip if core is not None else None
        if (
            core is None
            or rounds is None
            or rounds.phase != "collecting"
            or core.phase != "running"
        ):
            return
        self.judged += 1
        if not any(is_worth_waiting(core, rounds, source) for source in rounds.sources):
            text = (
                f"waits in round {rounds.round_id} for peers {list(rounds.sources)}, of none of "
                "whom anything is to come"
            )
            raise self.violated(swarm, peer, text)


class EachReadsItsOwn(Checker):
    """S11, of gossip rounds: in an epoch no sample is read by two peers, nor in two rounds by one.

    Who has joined later reads what one of the first peers reads, too.
    """

    invariant = "S11"
    effects = (StartRound,)

    def make_records(self) -> None:
        # Epoch and newcomer, -1: of the first -> sample -> who reads it in which round.
        self._readers: dict[tuple[int, PeerId], dict[int, tuple[PeerId, int]]] = {}

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        core = swarm.inspections.get(peer)
        if (
            not isinstance(effect, StartRound)
            or effect.samples is None
            or core is None
            or core.gossip is None
        ):
            return
        epoch = effect.samples.epoch
        readers = self._readers.setdefault((epoch, -1 if peer in core.settings.peers else peer), {})
        if len(self._readers) > EPOCHS_KEPT:
            del self._readers[next(iter(self._readers))]
        reader = peer, effect.round_id
        self.judged += 1
        for start, stop in effect.samples.ranges:
            for sample in range(start, stop):
                first = readers.setdefault(sample, reader)
                if first != reader:
                    text = (
                        f"reads sample {sample} of epoch {epoch} in round {effect.round_id}; peer "
                        f"{first[0]} does in {first[1]}"
                    )
                    raise self.violated(swarm, peer, text)


__all__ = ["EachReadsItsOwn", "PushesToAll", "WaitsForSomebody"]
