"""Encoded payloads between transports: above, everybody sees vectors; below, anybody may have sent
the bytes."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gossip.core import Commit, Payload, Push, Received, Update
from gossip.ipc.arena import Arena
from gossip.testing.transport_world import DIGEST, LINEAGE, World
from gossip.transport import EncodedTransport, Transport, ZeroMQTransport
from gossip.vectors import WireFormat, load_encoding, payload_digest

D = 1000
UPDATE = Update(LINEAGE, 4, 0, 0, DIGEST, 8, None)
GRADIENT = Push(LINEAGE, 4, "gradient", 8, None, b"")
PARAMETERS = Push(LINEAGE, 4, "parameters", 0, None, b"")
VECTOR = np.random.default_rng(0).standard_normal(D).astype(np.float32)
SPECS = ("bf16", "fp16", "int8", "int4", "topk:0.1")


def commit_of(content: np.ndarray) -> Commit:
    digest = payload_digest(content)
    return Commit(LINEAGE, 4, 0, 0, 0, 0, DIGEST, digest, (), (), (0, 1), None, "")


def wire_of(spec: str) -> WireFormat:
    return WireFormat(load_encoding(spec), 9, (D,), D, 3)


def sizes(wire: WireFormat) -> Callable[[int, Any], int]:
    def of(sender: int, message: Any) -> int:
        if isinstance(message, Commit):
            return wire.result_bytes[0]
        return 4 * sum(wire.sizes) if message == PARAMETERS else wire.update_bytes[0]

    return of


def worlds(wire: WireFormat) -> dict[str, World]:
    return {
        "tcp": World(lambda *header: EncodedTransport(ZeroMQTransport(*header[:4]), lambda: wire)),
        "unix": World(
            lambda *header: EncodedTransport(
                ZeroMQTransport(*header[:4], same_host=True), lambda: wire
            )
        ),
    }


def no_room(round_id: int, shard: int, nbytes: int) -> None:
    return None


def come(world: World, receiver: Transport, count: int) -> list[Payload]:
    received = world.wait_received(receiver, count)
    return [one.payload for one in received if one.payload is not None]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("lane", ["tcp", "unix"])
def test_what_comes_is_what_its_sender_has_behind_the_encoding(lane: str, spec: str) -> None:
    wire = wire_of(spec)
    raw = wire.encode(VECTOR, "update", 4, 0)
    decoded = wire.decode(raw, "update", 4, 0)
    result = wire.encode(VECTOR, "result", 4, 0)
    with worlds(wire)[lane] as world:
        sender, receiver = world.pair(sizes(wire))
        own = Payload(decoded, len(raw), True, encoded=raw)
        for message, payload in (
            (UPDATE, own),
            (GRADIENT, own),
            (commit_of(result), Payload(VECTOR, len(result), True, b"", (), result)),
            (PARAMETERS, Payload(VECTOR, VECTOR.nbytes)),
        ):
            world.send(sender, 1, message, payload)
        update, gradient, of_server, parameters = come(world, receiver, 4)
    for payload in (update, gradient):
        assert np.array_equal(payload.data, decoded)
        assert (payload.finite, payload.nbytes) == (True, len(raw))
    assert np.array_equal(of_server.data, wire.decode(result, "result", 4, 0))
    assert of_server.digest == payload_digest(result), (
        "the digest is that of the bytes that travelled"
    )
    assert np.array_equal(of_server.encoded, result), "so who hands it on sends the same ones"
    assert np.array_equal(parameters.data, VECTOR), "parameters travel as they are"


def test_with_an_encoding_no_peer_reads_vectors_in_shared_memory() -> None:
    """Updates and results are compared by digests of their bytes."""
    elements = 400_000
    wire = WireFormat(load_encoding("int8"), 7, (elements,), elements, 4)
    arena = Arena.create(elements, wire.arena_bytes)
    vector, raw = arena.updates[0], arena.encoded[0]
    vector[:] = np.linspace(-1.0, 1.0, elements, dtype=np.float32)
    raw[:] = wire.encode(vector, "update", 4, 0)
    parameters = arena.parameters[0]
    seals = fcntl.fcntl(arena.fd, fcntl.F_GET_SEALS)
    with worlds(wire)["unix"] as world:
        sender, receiver = world.pair(sizes(wire))
        sender.share(arena.fd, arena.memory, no_room)
        assert fcntl.fcntl(arena.fd, fcntl.F_GET_SEALS) == seals, "it may go to no other peer"
        world.send(sender, 1, UPDATE, Payload(vector, len(raw), True, encoded=raw))
        world.send(sender, 1, PARAMETERS, Payload(parameters, parameters.nbytes))
        vector[:] = 0.0
        update, _ = come(world, receiver, 2)
        assert np.array_equal(update.data, wire.decode(raw, "update", 4, 0))
    arena.close()


@pytest.mark.parametrize("spec", SPECS)
def test_what_cannot_be_decoded_is_an_update_without_numbers_and_counted(spec: str) -> None:
    wire = wire_of(spec)
    bad = np.full(wire.update_bytes[0], 0xFF, np.uint8)
    with worlds(wire)["unix"] as world:
        sender, receiver = world.pair(sizes(wire))
        world.send(sender, 1, UPDATE, Payload(VECTOR, len(bad), True, encoded=bad))
        (payload,) = come(world, receiver, 1)
        assert receiver.traffic.dropped == {"undecodable": 1}
    assert not payload.finite
    assert payload.data.shape == (D,)


def test_of_another_size_than_the_layout_says_nothing_is_kept() -> None:
    wire = wire_of("topk:0.1")
    with worlds(wire)["unix"] as world:
        sender, receiver = world.pair(sizes(wire))
        longer = np.zeros(wire.update_bytes[0] + 8, np.uint8)
        world.send(sender, 1, UPDATE, Payload(VECTOR, len(longer), True, encoded=longer))
        world.until(lambda: receiver.traffic.dropped, "the payload is refused")
        assert set(receiver.traffic.dropped) <= {"wrong_size", "too_large"}


@pytest.mark.parametrize("spec", SPECS)
def test_what_a_faulty_peer_has_not_encoded_is_encoded_on_its_way(spec: str) -> None:
    """So a lie about an update is heard as it would be from a peer that had computed it."""
    wire = wire_of(spec)
    with worlds(wire)["unix"] as world:
        sender, receiver = world.pair(sizes(wire))
        for lie in (-VECTOR, np.full(D, np.nan, np.float32)):
            world.send(sender, 1, UPDATE, Payload(lie, lie.nbytes))
        first, second = come(world, receiver, 2)
    expected = wire.decode(wire.encode(-VECTOR, "update", 4, 0), "update", 4, 0)
    assert np.array_equal(first.data, expected)
    assert (first.finite, second.finite) == (True, False)


def test_before_the_model_is_known_nothing_is_decoded() -> None:
    with World(
        lambda *header: EncodedTransport(ZeroMQTransport(*header[:4]), lambda: None)
    ) as world:
        sender, receiver = world.pair(lambda sender, message: 4 * D)
        world.send(sender, 1, UPDATE, Payload(VECTOR, VECTOR.nbytes))
        (received,) = world.wait_received(receiver, 1)
        assert isinstance(received, Received)
