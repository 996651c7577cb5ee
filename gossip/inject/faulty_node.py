"""Injects the faults of one node, from the run's plan and its drills. The injector wraps the node's
transport and core. Nodes without faults have no injector."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    Envelope,
    Event,
    Message,
    NodeCore,
    Payload,
    PeerId,
    Received,
    Update,
    events,
)
from gossip.faults import DrillFile, NodeAttack
from gossip.run import Journal
from gossip.transport import Arrival, Transport
from gossip.vectors import WireFormat, bytes_for, is_finite, sketch, to_bytes

from .byzantine import ByzantinePeer
from .links import LinkFaults
from .process import FaultInjector
from .sieve import FaultyTransport
from .update_attacks import UpdateAttack


@dataclass(frozen=True, slots=True)
class Site:
    """Node that has the faults: its run, peer and incarnation, and its journal."""

    config: RunConfig
    peer: PeerId
    incarnation: int
    run_dir: Path | None
    journal: Journal


class FaultyNode:
    """Injector of the faults of one node.

    Args:
        rule: Aggregation rule of the run. Some attacks evaluate it.
        wire: Returns the encoding of the run's payloads, or None if payloads are not encoded.
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
        self.update_attack = UpdateAttack(plan, peer, config.seed, config.peers, rule)
        self.update_attack.fragments = config.fragments
        self.core: NodeCore | None = None
        self._planned = {fault.lie: str(fault) for fault in plan if isinstance(fault, NodeAttack)}

    def around_transport(self, transport: Transport) -> Transport:
        """Return ``transport`` wrapped in the faults of this node."""
        return DisturbedTransport(transport, self)

    def around_core(self, core: NodeCore, sketch_seed: int) -> FaultyCore:
        """Return ``core`` wrapped in the faults of this node."""
        self.core = core
        return FaultyCore(core, self, sketch_seed)

    def attacker(self) -> ByzantinePeer | None:
        """Return the attacker that changes this node's messages. Return None if the plan has no
        attack on messages for this node."""
        config, peer = self.site.config, self.site.peer
        lies = config.plan.lies_of(peer)
        if not lies:
            return None
        from .message_attacks import LIES  # imported here because only attackers need it

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
        """Return the bytes of a result in the run's encoding. A result of a wrong size is not
        encoded."""
        wire = self._wire()
        assert isinstance(message, Update | Commit)
        if wire is None or len(values) != wire.sizes[message.shard]:
            return to_bytes(values)
        return wire.encode(values, "result", message.round_id, message.shard)

    def report_attack(self, lie: str) -> None:
        self.site.journal.event("fault", kind=lie, round=self.round_id, fault=self._planned[lie])

    @contextmanager
    def reporting_failure(self) -> Iterator[None]:
        """Report an exception of the attack on updates, with its fault as the failed part. The
        exception then ends this node."""
        try:
            yield
        except Exception as error:
            message = f"its attack raised {type(error).__name__}: {error}"
            part, at = str(self.update_attack.fault), self.round_id + 1
            self.site.journal.event("error", message=message, part=part, round=at)
            raise

    def reached(self, round_id: int) -> None:
        self.injector.reached(round_id, timed=self.links.planned)

    def tick(self, now: float) -> None:
        """Carry out all faults that are due. The caller calls this at each poll."""
        self.injector.tick(now)
        self.links.tick(now, self.injector.began, self.injector.round_id, self.drills.on(now))
        self.update_attack.drill(self.drills.lie(self.site.peer, now))


class DisturbedTransport(FaultyTransport):
    """Transport that injects link faults and attacks on messages. It also passes received pushes to
    the attacks that need them."""

    def __init__(self, inner: Transport, node: FaultyNode) -> None:
        super().__init__(inner, node.site.peer)
        self._node, self._attacker = node, node.attacker()
        node.links.on_change = self.fail

    def send(self, peer: PeerId, message: Message, payload: Payload | None = None) -> bool:
        """Send a message of the core, or false messages in its place. ``FaultyCore`` replaces false
        updates that are the same for all peers, before the core receives them."""
        update_attack, attacker = self._node.update_attack, self._attacker
        if update_attack.tells_each:
            with self._node.reporting_failure():
                payload = update_attack.replace_payload(peer, message, payload)
        if attacker is None:
            return super().send(peer, message, payload)
        before = dict(attacker.told)
        envelope = Envelope(b"", attacker.peer, 0, message)
        for receiver, instead, content in attacker.disguise(peer, envelope, payload):
            assert isinstance(instead, Envelope), "no attack of a real run sends noise"
            super().send(receiver, instead.message, content)
        for lie, times in attacker.told.items():
            if times and not before.get(lie):
                self._node.report_attack(lie)
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
    """Wrapped core. If the peer is Byzantine, the core receives false updates in place of the
    trainer's. Process faults are injected when a round begins, or when this peer serves it."""

    def __init__(self, core: NodeCore, node: FaultyNode, sketch_seed: int) -> None:
        self._core, self._node, self._sketch_seed = core, node, sketch_seed

    @property
    def incarnation(self) -> int:
        return self._core.incarnation

    def admit(self, sender: PeerId, message: Message) -> Admission:
        return self._core.admit(sender, message)

    def handle(self, event: Event, now: float) -> Iterator[Effect]:
        """Yield the effects one by one, so that the caller carries out all effects before a
        fault."""
        if isinstance(event, events.Contributed) and self._node.update_attack.lies:
            with self._node.reporting_failure():
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

    def _tampered(self, event: events.Contributed) -> events.Contributed:
        """Return the event with false payloads to send. The true payloads are in the fields ``own``
        and ``own_parameters``, for the local peer's own use."""
        attack = self._node.update_attack
        if event.payloads:
            truth = np.concatenate([payload.data for payload in event.payloads])
            lie = attack.tamper_with(truth, event.round_id, "update")
            bounds = pairwise(accumulate([len(part.data) for part in event.payloads], initial=0))
            parts = tuple([_payload(lie[start:stop]) for start, stop in bounds])
            event = replace(event, payloads=parts, own=_payload(truth))
        if event.parameters is not None:
            lie = attack.tamper_with(event.parameters.data, event.round_id, "parameters")
            event = replace(
                event,
                parameters=_payload(lie),
                sketch=sketch(lie, self._sketch_seed),
                own_parameters=event.parameters,
            )
        return event


def _payload(vector: np.ndarray) -> Payload:
    return Payload(vector, bytes_for(len(vector)), is_finite(vector))
