"""What becomes of what an encoding loses: it is kept while its update was taken, and counted once,
whatever befalls an update."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from trainer_fakes import FakeNode, prepared_swarm, step

from gossip.ipc import messages as control
from gossip.ipc.arena import Arena
from gossip.training import UpdateEncoder
from gossip.training.state import StateMismatch
from gossip.vectors import WireFormat, load_encoding

D = 96


class Peer:
    """A peer that offers updates of so many shards, and adds up what the others have of it."""

    def __init__(self, spec: str, shards: Sequence[int] = (D,)) -> None:
        self.wire = WireFormat(load_encoding(spec), 1, tuple(shards), D, 4, ((8, 11), (8,)))
        self.encoder = UpdateEncoder(self.wire)
        self.memory = np.zeros(sum(self.wire.update_bytes), np.uint8)
        self.applied = np.zeros(D)
        self.draw = np.random.default_rng(3)
        self.round_id = 0

    def offer(self, taken: Sequence[bool]) -> np.ndarray:
        """One round. Returns the gradient."""
        gradient = self.draw.standard_normal(D).astype(np.float32)
        update = gradient.copy()
        self.encoder.encode(update, self.memory, self.round_id)
        start = at = 0
        for shard, size in enumerate(self.wire.sizes):
            raw = self.memory[at : at + self.wire.update_bytes[shard]]
            decoded = self.wire.decode(raw.copy(), "update", self.round_id, shard)
            assert np.array_equal(decoded, update[start : start + size]), "others decode the same"
            if taken and taken[shard]:
                self.applied[start : start + size] += decoded
            start, at = start + size, at + len(raw)
        self.encoder.settle(self.round_id, tuple(taken))
        self.round_id += 1
        return gradient

    @property
    def owed(self) -> np.ndarray:
        residual = self.encoder.residual
        return np.zeros(D) if residual is None else residual.astype(np.float64)


SPECS = ("int4", "topk:0.05", "int8:feedback=on", "bf16:feedback=on", "powersgd:1")


@pytest.mark.parametrize("spec", SPECS)
def test_what_was_applied_and_what_is_owed_are_all_gradients_that_were_taken(spec: str) -> None:
    peer = Peer(spec)
    gradients = sum(peer.offer([True]).astype(np.float64) for _ in range(50))
    assert np.allclose(peer.applied + peer.owed, gradients, atol=1e-3)
    assert peer.owed.any()


@pytest.mark.parametrize("spec", SPECS)
def test_of_an_update_not_taken_nothing_is_lost_or_counts_twice(spec: str) -> None:
    """Its gradient is computed again by somebody, from the samples that were given back; what it
    carried of earlier rounds is still owed."""
    peer, gradients = Peer(spec), np.zeros(D)
    for number in range(60):
        before = peer.owed
        taken = number % 3 != 1
        gradient = peer.offer([taken] if number % 2 else ([True] if taken else []))
        gradients += gradient if taken else 0.0
        if not taken:
            assert np.array_equal(peer.owed, before)
    assert np.allclose(peer.applied + peer.owed, gradients, atol=1e-3)


@pytest.mark.parametrize("spec", ["topk:0.05", "powersgd:1"])
def test_each_shard_is_taken_or_not_by_itself(spec: str) -> None:
    peer, gradients = Peer(spec, (32, 48, 16)), np.zeros(D)
    starts = np.array([0, 32, 80, 96])
    for number in range(40):
        taken = [number % 2 == 0, number % 3 != 0, True]
        gradient = peer.offer(taken)
        for shard in range(3):
            part = slice(starts[shard], starts[shard + 1])
            gradients[part] += gradient[part] if taken[shard] else 0.0
    assert np.allclose(peer.applied + peer.owed, gradients, atol=1e-3)


def test_who_takes_over_a_state_owes_nothing_of_its_own_rounds() -> None:
    peer = Peer("topk:0.05")
    peer.offer([True])
    assert peer.owed.any()
    peer.encoder.encode(np.ones(D, np.float32), peer.memory, 1)
    peer.encoder.forget()
    peer.encoder.settle(1, (True,))
    assert peer.encoder.residual is None


def test_an_update_that_is_not_finite_leaves_what_is_owed_as_it_was() -> None:
    peer = Peer("int4")
    peer.offer([True])
    before = peer.owed
    bad = np.ones(D, np.float32)
    bad[5] = np.nan
    peer.encoder.encode(bad, peer.memory, 1)
    assert np.isnan(bad[5])
    peer.encoder.settle(1, (True,))
    assert np.array_equal(peer.owed, before)


@pytest.mark.parametrize("spec", ["bf16", "fp16", "int8", "topk:0.05,feedback=off"])
def test_without_feedback_nothing_is_kept(spec: str) -> None:
    peer = Peer(spec)
    peer.offer([True])
    assert peer.encoder.residual is None
    assert peer.encoder.saved() is None


def test_a_residual_of_another_model_is_not_taken_from_a_checkpoint() -> None:
    encoder = Peer("int4").encoder
    encoder.load(torch.ones(D))
    assert encoder.saved().tolist() == [1.0] * D  # type: ignore[union-attr]
    for wrong in (torch.ones(D + 1), torch.ones(D, dtype=torch.float64)):
        with pytest.raises(StateMismatch):
            encoder.load(wrong)


# --- in a trainer ---------------------------------------------------------------------------------


def attached(node: FakeNode) -> WireFormat:
    """The arena of a trainer whose run encodes its updates."""
    said = node.expect(control.Prepare)
    wire = WireFormat(load_encoding("topk:0.1"), 0, (said.elements,), said.elements - said.marks, 1)
    node.arena = Arena.attach(node.fds.pop(0), said.elements, wire.arena_bytes)
    return wire


def test_a_late_update_and_a_node_that_died_leave_what_is_owed_as_it_was() -> None:
    owed: list[np.ndarray | None] = []
    seen: list[np.ndarray] = []

    def first(n: FakeNode) -> None:
        wire = attached(n)
        for round_id, taken in enumerate(((True,), (False,))):
            n.offered(round_id, slot=round_id)
            decoded = wire.decode(n.arena.encoded[round_id].copy(), "update", round_id, 0)
            assert np.array_equal(decoded, n.arena.updates[round_id])
            n.put(0, np.zeros(4, np.float32))
            n.send(control.ApplyCommand(round_id, 0, 0.0, taken=taken))
            n.expect(control.AppliedReply)
        n.offered(2, slot=2)
        seen.append(n.arena.encoded[2].copy())  # type: ignore[union-attr]

    def second(n: FakeNode) -> None:
        attached(n)
        n.offered(2, slot=3)
        seen.append(n.arena.encoded[3].copy())
        n.put(1, np.zeros(4, np.float32))
        n.send(control.ApplyCommand(2, 1, 0.0, taken=(True,)))
        n.expect(control.AppliedReply)
        n.end(3)

    with prepared_swarm(first, second, encoding="topk:0.1") as (swarm, model, optimizer):
        for seed in range(3):
            step(model, optimizer, seed)
            encoder = swarm.session._run.model.encoder
            owed.append(None if encoder.residual is None else encoder.residual.copy())
    assert np.array_equal(*seen), "the node that was started again is offered the same bytes"
    assert owed[0] is not None
    assert np.array_equal(owed[0], owed[1]), "the update of round 1 was not taken"  # type: ignore[arg-type]
    assert not np.array_equal(owed[1], owed[2])  # type: ignore[arg-type]
