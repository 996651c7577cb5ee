"""Updates of the exact engine. They are promises: the first reader has all open ones computed in
one call, so that many small models are as fast as one large one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossip.aggregators import attacks
from gossip.core import Payload, PeerId
from gossip.errors import ConfigError
from gossip.faults import ByzantineFault
from gossip.vectors import bytes_for, is_finite

from .parts import Parts
from .states import ModelState

ROUNDS_KEPT = 16
"""Rounds whose updates stay available: for peers that are behind, and for colluding ones."""


@dataclass(slots=True, eq=False)
class Promise:
    """Update of one peer in one round, which follows from its state.

    Attributes:
        honest: ``(d,)``, the true update; None until it is computed.
        sent: ``(d,)``, the update that the peer sends: another one if it is Byzantine.
    """

    peer: PeerId
    round_id: int
    state: ModelState
    honest: Tensor | None = None
    sent: Tensor | None = None


class PromisedPayload(Payload):
    """Payload of ``d`` numbers, which are computed when they are read."""

    __slots__ = ("_found", "_read")
    _found: Payload | None
    _read: Callable[[], Tensor]

    def __init__(self, d: int, read: Callable[[], Tensor]) -> None:
        known = {"nbytes": bytes_for(d), "digest": b"", "parts": (), "encoded": None}
        for name, value in {**known, "_read": read, "_found": None}.items():
            object.__setattr__(self, name, value)  # the base is frozen

    @property
    def data(self) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self._computed().data
        return vector

    @property
    def finite(self) -> bool:
        return self._computed().finite

    def _computed(self) -> Payload:
        found = self._found
        if found is None:
            found = payload_of(self._read())
            object.__setattr__(self, "_found", found)
        return found


def payload_of(vector: Tensor) -> Payload:
    """Return the payload of ``(d,)`` float32."""
    data = vector.numpy()
    return Payload(data, bytes_for(len(data)), is_finite(data))


class UpdateBook:
    """Updates of all peers of a world, and the attacks on them.

    Raises: ConfigError: Each receiver of an attack gets another update, or attackers collude in
        gossip rounds, where they need the parameters of all peers at once.
    """

    def __init__(self, parts: Parts) -> None:
        self._task, self._rolling = parts.task, parts.topology.rolling
        self._rounds: OrderedDict[tuple[int, bytes], dict[PeerId, Promise]] = OrderedDict()
        self._byzantine = parts.mishaps.byzantine
        self._flipped: set[PeerId] = set()
        self._attack_of: dict[PeerId, tuple[ByzantineFault, attacks.Attack]] = {}
        self._on_parameters: dict[PeerId, attacks.Attack] = {}  # an attack may have a memory
        self._tried = partial(parts.rule, f=parts.settings.f)
        for fault in parts.mishaps.attacks:
            if fault.attack in attacks.DATA_ATTACKS:
                self._flipped.update(fault.peers)
                continue
            attack = attacks.make(fault.attack, fault.strength_to_make, parts.settings.seed)
            if attack.tells_each:
                raise ConfigError(
                    f"{fault}: it sends each receiver another update",
                    "gossip simulate and gossip run play it",
                )
            if attack.guesses and not self._rolling:
                raise ConfigError(
                    f"{fault}: the exact engine plays it in rolling rounds only",
                    "the fast engine plays it in gossip rounds, too",
                )
            self._attack_of.update(dict.fromkeys(fault.peers, (fault, attack)))
            second = attacks.make(fault.attack, fault.strength_to_make, parts.settings.seed)
            self._on_parameters.update(dict.fromkeys(fault.peers, second))

    def promise(self, peer: PeerId, round_id: int, state: ModelState) -> Promise:
        """Return the promise of the update of a peer that starts a round in this state."""
        promises = self._promises_of(round_id, state)
        found = promises.get(peer)
        if found is None or found.state is not state:
            found = promises[peer] = Promise(peer, round_id, state)
        return found

    def payload(self, promise: Promise) -> PromisedPayload:
        """Return the payload that the peer sends."""
        return PromisedPayload(self._task.cohort.d, lambda: self._sent(promise))

    def own_payload(self, promise: Promise) -> PromisedPayload | None:
        """Return the payload of the true update of a Byzantine peer; None for an honest one."""
        if promise.peer not in self._attack_of:
            return None
        return PromisedPayload(self._task.cohort.d, lambda: self._honest(promise))

    def falsify_parameters(self, peer: PeerId, round_id: int, truth: Tensor) -> Tensor | None:
        """Return the parameters ``(d,)`` that a Byzantine peer sends in place of its own; None for
        an honest one."""
        attack = self._on_parameters.get(peer)
        return None if attack is None else attack(truth, round_id).float()

    def _promises_of(self, round_id: int, state: ModelState) -> dict[PeerId, Promise]:
        # In rolling rounds replicas are equal, so the round and one state stand for all peers.
        key = (round_id, state.digest if self._rolling else b"")
        promises = self._rounds.setdefault(key, {})
        while len(self._rounds) > ROUNDS_KEPT:
            self._rounds.popitem(last=False)
        return promises

    def _honest(self, promise: Promise) -> Tensor:
        if promise.honest is None:
            self._compute(promise)
        assert promise.honest is not None
        return promise.honest

    def _sent(self, promise: Promise) -> Tensor:
        honest = self._honest(promise)
        if promise.sent is None:
            if promise.peer in self._attack_of:
                self._falsify(promise)
            else:
                promise.sent = honest
        assert promise.sent is not None
        return promise.sent

    def _compute(self, wanted: Promise) -> None:
        """Compute all open promises in one call."""
        known = [each for promises in self._rounds.values() for each in promises.values()]
        open_ones = [each for each in known if each.honest is None]
        if all(each is not wanted for each in open_ones):
            open_ones.append(wanted)  # its round is no longer kept
        open_ones.sort(key=lambda each: (each.round_id, each.peer))
        states = [each.state for each in open_ones]
        if all(state is states[0] for state in states):
            parameters = states[0].parameters.expand(len(states), -1)
        else:
            parameters = torch.stack([state.parameters for state in states])
        peers = np.array([each.peer for each in open_ones], np.int64)
        updates = self._task.compute_updates(
            parameters,
            peers,
            np.array([each.round_id for each in open_ones], np.int64),
            np.array([peer in self._flipped for peer in peers.tolist()]),
        )
        for each, update in zip(open_ones, updates, strict=True):
            each.honest = update

    def _falsify(self, promise: Promise) -> None:
        """Set what the peers of one attack send in the round of ``promise``."""
        fault, attack = self._attack_of[promise.peer]
        round_id = promise.round_id
        beside = {**self._promises_of(round_id, promise.state), promise.peer: promise}
        liars = [beside[peer] for peer in sorted(fault.peers) if peer in beside]
        liars = [each for each in liars if each.sent is None]
        own = [self._honest(each) for each in liars]
        if not attack.guesses:
            for each, update in zip(liars, own, strict=True):
                each.sent = attack(update, round_id).float()
            return
        honest = [
            self._honest(beside[peer]) for peer in sorted(beside) if peer not in self._byzantine
        ]
        false = attack.collude(
            torch.stack(honest or own),
            len(own),
            rule=self._tried,
            own=torch.stack(own),
            round_id=round_id,
        )
        for each, update in zip(liars, false, strict=True):
            each.sent = update.float()
