"""Carries out at one node what its run's plan and drills have for it: around its transport and
around its core, which know nothing of it. Made only for peers that have faults."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gossip.config import RunConfig
from gossip.core import (
    Admission,
    Commit,
    Effect,
    Event,
    Message,
    Payload,
    PeerId,
    Received,
    Update,
    events,
)
from gossip.faults import DrillFile, NodeAttack, Slow
from gossip.run import Journal, recorder
from gossip.transport import Arrival, Transport
from gossip.vectors import WireFormat, bytes_for, is_finite, sketch, to_bytes

from .byzantine import ByzantinePeer
from .lasting import LastingFaults
from .links import LinkFaults
from .outbox import Outbox
from .process import FaultInjector
from .sieve import FaultyTransport
from .update_attacks import UpdateAttack


@dataclass(frozen=True, slots=True)
class Site:
    """Identity of the node that has the faults."""

    config: RunConfig
    peer: PeerId
    incarnation: int
    run_dir: Path | None
    journal: Journal


class FaultyNode:
    """Faults of one node.

    Args:
        rule: The run's rule, for attacks that try it out.
        wire: How the run's payloads are written; None: as they lie in memory.
    """

    def __init__(
        self,
        site: Site,
        rule: Callable[[torch.Tensor], torch.Tensor],
        wire: Callable[[], WireFormat | None] = lambda: None,
    ) -> None:
        self._wire = wire
        config, plan, peer = site.config, site.config.plan, site.peer
        self.site, self.round_id = site, -1
        self.drills = DrillFile(
            site.run_dir / "faults" if config.drills and site.run_dir is not None else None
        )
        self.injector = FaultInjector(plan, peer, site.incarnation, site.run_dir, site.journal)
        self.links = LinkFaults(plan, peer, config.peers_max, self.injector.claims, site.journal)
        slow = [(at, each) for at, each in enumerate(plan) if isinstance(each, Slow)]
        self._slow: LastingFaults[Slow] = LastingFaults(
            [(at, each) for at, each in slow if each.peer == peer and each.at_s is not None],
            self.injector.claims,
            site.journal,
        )
        self.update_attack = UpdateAttack(plan, peer, config.seed, config.peers, rule)
        self.update_attack.fragments = config.fragments
        self.core: recorder.NodeCore | None = None
        self._planned = {fault.lie: str(fault) for fault in plan if isinstance(fault, NodeAttack)}

    def around_transport(self, transport: Transport) -> Transport:
        """The transport to use in place of this one."""
        return DisturbedTransport(transport, self)

    def around_core(self, core: recorder.NodeCore, sketch_seed: int) -> FaultyCore:
        """The core to use in place of this one."""
        self.core = core
        return FaultyCore(core, self, sketch_seed)

    def attacker(self) -> ByzantinePeer | None:
        """Return the attacker that changes this node's messages; None: its plan has no lies for
        it."""
        config, peer = self.site.config, self.site.peer
        lies = config.plan.lies_of(peer)
        if not lies:
            return None
        from .message_attacks import LIES  # for liars only

        assert LIES.keys() >= set(lies), "the plan was checked"
        rng = Random(f"{config.seed}/{self.site.incarnation}/{peer}")
        liar = ByzantinePeer(
            peer,
            tuple(range(config.peers)),
            lambda: self.core,
            rng,
            lies,
            rounds=config.rounds,
            written=self._written,
        )
        self.site.journal.last_words["attacks"] = liar.told
        return liar

    def _written(self, message: Message, values: NDArray[Any]) -> NDArray[np.uint8]:
        """A result as this run writes it. One of a wrong size is written as it lies."""
        wire = self._wire()
        assert isinstance(message, Update | Commit)
        if wire is None or len(values) != wire.sizes[message.shard]:
            return to_bytes(values)
        return wire.encode(values, "result", message.round_id, message.shard)

    def report_attack(self, lie: str) -> None:
        self.site.journal.event("fault", kind=lie, round=self.round_id, fault=self._planned[lie])

    def reached(self, round_id: int) -> None:
        self.injector.reached(round_id, timed=self.links.planned or bool(self._slow.planned))

    def tick(self, now: float) -> None:
        """Time passes; to be called often."""
        self.injector.tick(now)
        if self._slow.planned and self.injector.began is not None:
            # the trainer is slow by itself: it is only told of here
            self._slow.on(now - self.injector.began, self.injector.round_id)
        self.links.tick(now, self.injector.began, self.injector.round_id, self.drills.on(now))
        self.update_attack.drill(self.drills.lie(self.site.peer, now))


class DisturbedTransport(FaultyTransport):
    """Also says what liars say, and lets them listen."""

    def __init__(self, inner: Transport, node: FaultyNode) -> None:
        super().__init__(inner, node.site.peer)
        self._node = node
        node.links.on_change = self.fail
        self._outbox = Outbox(super().send, node.update_attack, node.attacker(), node.report_attack)

    def send(self, peer: PeerId, message: Message, payload: Payload | None = None) -> bool:
        self._outbox.send(peer, message, payload)
        return True

    def poll(
        self, timeout_s: float, wake: Sequence[int] = (), awake_s: float = 0.0
    ) -> list[Arrival]:
        arrivals = super().poll(timeout_s, wake, awake_s)
        self._node.tick(time.monotonic())
        for arrival in arrivals:
            if isinstance(arrival, Received):
                self._node.update_attack.record_push(
                    arrival.sender, arrival.message, arrival.payload
                )
        return arrivals


class FaultyCore:
    """Hears of another update than the trainer's where the peer lies about it, and lets the process
    be struck when a round begins or is served."""

    def __init__(self, core: recorder.NodeCore, node: FaultyNode, sketch_seed: int) -> None:
        self._core, self._node, self._sketch_seed = core, node, sketch_seed

    @property
    def incarnation(self) -> int:
        return self._core.incarnation

    def admit(self, sender: PeerId, message: Message) -> Admission:
        return self._core.admit(sender, message)

    def handle(self, event: Event, now: float) -> Iterator[Effect]:
        """The effects one by one: a blow falls when those before it are carried out."""
        if isinstance(event, events.Contributed) and self._node.update_attack.lies:
            event = self._tampered(event)
        for effect in self._core.handle(event, now):
            self._see(effect)
            yield effect

    def _see(self, effect: Effect) -> None:
        match effect:
            case events.Apply():
                self._node.update_attack.saw(effect)
            case events.StartRound():
                self._node.update_attack.begins(effect.collectives)
                self._node.reached(effect.round_id)
            case events.Aggregate(shard=0, step="whole" | "measure"):
                self._node.injector.serves(effect.round_id)
            case events.Report(event="round"):
                self._node.round_id = effect.fields.get("round", self._node.round_id)

    def _tampered(self, told: events.Contributed) -> events.Contributed:
        """The truth stays with the core, as its own."""
        attack = self._node.update_attack
        if told.payloads:
            truth = np.concatenate([payload.data for payload in told.payloads])
            lie = attack.tamper_with(truth, told.round_id, "update")
            bounds = pairwise(accumulate([len(part.data) for part in told.payloads], initial=0))
            parts = tuple([_payload(lie[start:stop]) for start, stop in bounds])
            told = replace(told, payloads=parts, own=_payload(truth))
        if told.parameters is not None:
            lie = attack.tamper_with(told.parameters.data, told.round_id, "parameters")
            told = replace(
                told,
                parameters=_payload(lie),
                sketch=sketch(lie, self._sketch_seed),
                own_parameters=told.parameters,
            )
        return told


def _payload(vector: np.ndarray) -> Payload:
    return Payload(vector, bytes_for(len(vector)), is_finite(vector))
