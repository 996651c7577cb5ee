"""Lazy updates of the exact engine. As soon as any update is read, all open updates are computed in
one call, so that many small models are as fast as one large model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossip.core import Payload, PeerId
from gossip.errors import ConfigError
from gossip.vectors import bytes_for, is_finite

from .attacking import Attackers
from .parts import Parts
from .states import ModelState

ROUNDS_KEPT = 16
"""Number of past rounds with stored updates, for peers that are behind and for colluding
attackers."""


@dataclass(slots=True, eq=False)
class Promise:
    """Update of one peer in one round. It is a function of the peer's state, and is computed later.

    Attributes:
        honest: ``(d,)``: true update; None until it is computed.
        sent: ``(d,)``: update that the peer sends; false if the peer is Byzantine. None until it is
            computed.
    """

    peer: PeerId
    round_id: int
    state: ModelState
    honest: Tensor | None = None
    sent: Tensor | None = None


class PromisedPayload(Payload):
    """Payload of ``d`` elements that are computed when they are first read."""

    __slots__ = ("_found", "_read")
    _found: Payload | None
    _read: Callable[[], Tensor]

    def __init__(self, d: int, read: Callable[[], Tensor]) -> None:
        known = {"nbytes": bytes_for(d), "digest": b"", "parts": (), "encoded": None}
        for name, value in {**known, "_read": read, "_found": None}.items():
            object.__setattr__(self, name, value)  # the base class is frozen

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
    """Return the payload for a vector ``(d,)`` float32."""
    data = vector.numpy()
    return Payload(data, bytes_for(len(data)), is_finite(data))


class UpdateBook:
    """Updates of all peers of a world, and the attacks on them.

    Raises: ConfigError: An attack sends each receiver a different update, or attackers collude in
        gossip rounds. Such colluders would need the parameters of all peers at once.
    """

    def __init__(self, parts: Parts) -> None:
        self._task, self._rolling = parts.task, parts.topology.rolling
        self._rounds: OrderedDict[tuple[int, bytes], dict[PeerId, Promise]] = OrderedDict()
        self._byzantine = parts.mishaps.byzantine
        self._attackers = Attackers(parts)
        if apart := np.flatnonzero(self._attackers.apart).tolist():
            raise ConfigError(
                f"the attack of peer {apart[0]} sends each receiver another update",
                "the fast engine, gossip simulate and gossip run play it",
            )
        if not self._rolling and self._attackers.colluding.any():
            peer = np.flatnonzero(self._attackers.colluding)[0]
            raise ConfigError(
                f"the exact engine plays the attack of peer {peer} in rolling rounds only",
                "the fast engine plays it in gossip rounds, too",
            )

    def promise(self, peer: PeerId, round_id: int, state: ModelState) -> Promise:
        """Return the promise of the update that a peer computes in a round from this state."""
        promises = self._promises_of(round_id, state)
        found = promises.get(peer)
        if found is None or found.state is not state:
            found = promises[peer] = Promise(peer, round_id, state)
        return found

    def payload(self, promise: Promise) -> PromisedPayload:
        """Return the payload that the peer sends, true or false."""
        return PromisedPayload(self._task.cohort.d, lambda: self._sent(promise))

    def own_payload(self, promise: Promise) -> PromisedPayload | None:
        """Return the payload of a Byzantine peer's true update. Return None for a peer that sends
        its true update."""
        if not self._attackers.false[promise.peer]:
            return None
        return PromisedPayload(self._task.cohort.d, lambda: self._honest(promise))

    def falsify_parameters(self, peer: PeerId, round_id: int, truth: Tensor) -> Tensor | None:
        """Return the parameters ``(d,)`` that a Byzantine peer sends instead of its own, or None
        for a peer that sends its own."""
        if not self._attackers.false[peer]:
            return None
        sent, only = truth[None].clone(), np.array([peer])
        self._attackers.falsify(sent, np.zeros(1, np.int64), only, round_id, "parameters")
        return sent[0]

    def _promises_of(self, round_id: int, state: ModelState) -> dict[PeerId, Promise]:
        # In rolling rounds, peers of the same round normally have the same state. The digest
        # separates peers with different states.
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
            if self._attackers.false[promise.peer]:
                self._falsify(promise)
            else:
                promise.sent = honest
        assert promise.sent is not None
        return promise.sent

    def _compute(self, wanted: Promise) -> None:
        """Compute ``wanted`` and all other open updates in one call."""
        known = [each for promises in self._rounds.values() for each in promises.values()]
        open_ones = [each for each in known if each.honest is None]
        if all(each is not wanted for each in open_ones):
            open_ones.append(wanted)  # its round is no longer stored
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
            self._attackers.flipped[peers],
        )
        for each, update in zip(open_ones, updates, strict=True):
            each.honest = update

    def _falsify(self, promise: Promise) -> None:
        """Set ``sent`` for all peers with the same attack, in the round of ``promise``."""
        beside = {**self._promises_of(promise.round_id, promise.state), promise.peer: promise}
        alike = {peer for peer in self._attackers.alike(promise.peer) if peer in beside}
        alike = {peer for peer in alike if beside[peer].sent is None}
        members = sorted(alike.union(peer for peer in beside if peer not in self._byzantine))
        vectors = torch.stack([self._honest(beside[peer]) for peer in members])
        peers = np.array(members, np.int64)
        self._attackers.inform_of_loss(promise.state.parameters, promise.round_id)
        self._attackers.falsify(vectors, np.arange(len(peers)), peers, promise.round_id)
        for peer, vector in zip(members, vectors, strict=True):
            if peer in alike:
                beside[peer].sent = vector.clone()
