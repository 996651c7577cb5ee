"""Conformance kit for transports (``gossip.transport.base``).

    from gossip.testing import check_transport
    check_transport(my_factory)

With pytest, each requirement can be a test of its own:

    @pytest.mark.parametrize("check", TRANSPORT_CHECKS.values(), ids=TRANSPORT_CHECKS)
    def test_my_transport(check):
        check(my_factory)
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossip.core import (
    Ack,
    LinkDown,
    LinkUp,
    Message,
    PeerId,
    Ping,
    Progress,
    Push,
    Received,
    StateOffer,
)
from gossip.vectors import payload_digest

from .transport_world import (
    LINEAGE,
    MIB,
    PATIENCE_S,
    TransportFactory,
    World,
    commit,
    floats,
    payload_of,
    ping,
    rounds_of,
    state_offer,
    update,
)

# Sizes of float32 payloads, in bytes.
SIZES = (4, 8, 12, 65_536, 68_904, MIB - 4, MIB, MIB + 4, 3 * MIB + 20, 8 * MIB)


TransportCheck: TypeAlias = Callable[[TransportFactory], None]
TRANSPORT_CHECKS: dict[str, TransportCheck] = {}
"""Name of each requirement -> its check."""


def check_transport(make: TransportFactory) -> None:
    """Check a transport against all requirements of the runtime. This takes seconds. The calling
    thread polls two or three transports at a time.

    Args:
        make: Factory of the transport.
    Raises: AssertionError: The transport breaks a requirement. The message names the requirement.
    """
    for promise, check in TRANSPORT_CHECKS.items():
        try:
            check(make)
        except AssertionError as error:
            raise AssertionError(f"{promise}: {error}") from error


def _promise(check: Callable[[World], None]) -> TransportCheck:
    def run(make: TransportFactory) -> None:
        with World(make) as world:
            check(world)

    run.__doc__ = check.__doc__
    TRANSPORT_CHECKS[check.__name__.removeprefix("_")] = run
    return run


@_promise
def _messages_of_a_lane_keep_their_order(world: World) -> None:
    """Check the order of small and large messages, with and without payloads."""
    sender, receiver = world.pair(
        limit=lambda peer, message: (
            2 * MIB if rounds_of([Received(0, 0, message)])[0] % 3 == 0 else 400
        )
    )
    for number in range(60):
        world.send(sender, 1, ping(number))
        data = None if number % 3 == 2 else payload_of(floats(2 * MIB if number % 3 == 0 else 400))
        world.send(sender, 1, update(number), data)
    arrivals = world.wait_received(receiver, 120)
    nonces = [arrival.message.nonce for arrival in arrivals if isinstance(arrival.message, Ping)]
    assert nonces == list(range(60)), f"pings arrived in the order {nonces}"
    assert rounds_of(arrivals) == list(range(60)), f"updates arrived as {rounds_of(arrivals)}"
    assert not receiver.traffic.dropped, f"messages were dropped: {receiver.traffic.dropped}"


@_promise
def _a_message_arrives_as_it_was_sent(world: World) -> None:
    """Check that the sender, the incarnation and every field of a message arrive unchanged."""
    sender, receiver = world.peer(3, incarnation=41), world.peer(1)
    world.link(sender, 1, receiver)
    messages: tuple[Message, ...] = (
        ping(2**48),
        Ack(1, 3, Progress(17, 3), ()),
        update(9),
        state_offer(7),
    )
    for message in messages:
        world.send(sender, 1, message)
    arrivals = world.wait_received(receiver, len(messages))
    assert {(arrival.sender, arrival.incarnation) for arrival in arrivals} == {(3, 41)}, (
        f"got {arrivals}"
    )
    assert all(message in [arrival.message for arrival in arrivals] for message in messages), (
        f"got {arrivals}"
    )
    assert all(arrival.payload is None for arrival in arrivals), "an unsent payload arrived"


@_promise
def _a_rising_incarnation_is_sent_from_then_on(world: World) -> None:
    now = [1]
    sender, receiver = world.peer(0, incarnation=lambda: now[0]), world.peer(1)
    world.link(sender, 1, receiver)
    world.send(sender, 1, ping(0))
    now[0] = 5
    world.send(sender, 1, ping(1))
    received = [arrival.incarnation for arrival in world.wait_received(receiver, 2)]
    assert received == [1, 5], f"incarnations {received}, expected [1, 5]"


@_promise
def _payloads_arrive_byte_for_byte(world: World) -> None:
    """Check payloads from 4 bytes to 8 MiB. Some of them do not fill their last chunk."""
    wanted = [0]
    sender, receiver = world.pair(limit=lambda peer, message: wanted[0])
    for number, nbytes in enumerate(SIZES):
        wanted[0] = nbytes
        data = np.random.default_rng(nbytes).standard_normal(nbytes // 4, dtype=np.float32)
        world.send(sender, 1, update(number), payload_of(data))
        payload = world.wait_received(receiver, number + 1)[-1].payload
        assert payload is not None, f"the payload of {nbytes} bytes did not arrive"
        assert payload.nbytes == nbytes, f"payload of {payload.nbytes} bytes, {nbytes} were sent"
        assert payload.data.dtype == np.float32, (
            f"payload of {payload.data.dtype}, expected float32"
        )
        assert payload.data.tobytes() == data.tobytes(), (
            f"the payload of {nbytes} bytes changed on the way"
        )


@_promise
def _the_facts_of_a_payload_are_delivered(world: World) -> None:
    """Check the fields ``finite`` and ``digest`` of payloads. A state may have any number of bytes
    up to the limit."""
    sender, receiver = world.pair(
        limit=lambda peer, message: 3 * MIB if isinstance(message, StateOffer) else 2 * MIB
    )
    good, bad = floats(2 * MIB), floats(2 * MIB)
    bad[-1] = np.nan
    large = np.full(MIB // 2, 3e38, np.float32)  # all elements are finite, but not their sum
    state = np.frombuffer(os.urandom(2 * MIB + 13), np.uint8)
    sent: list[tuple[Message, NDArray[Any]]] = [
        (update(0), good),
        (update(1), bad),
        (update(2), large),
    ]
    for message, data in [*sent, (commit(), good), (state_offer(state.nbytes), state)]:
        world.send(sender, 1, message, payload_of(data))
    payloads = [arrival.payload for arrival in world.wait_received(receiver, 5)]
    finite = [payload is not None and payload.finite for payload in payloads]
    assert finite == [True, False, True, True, True], f"finite is {finite}"
    digests = [payload.digest if payload is not None else None for payload in payloads]
    true = [payload_digest(data.tobytes()) for data in (good, state)]
    assert digests == [b"", b"", b"", *true], (
        f"digests {digests}, expected {true} for the commit and the state"
    )
    assert payloads[4] is not None
    assert payloads[4].data.dtype == np.uint8, "a state must arrive as uint8"


@_promise
def _control_overtakes_bulk(world: World) -> None:
    """Check that a ping arrives before 64 MiB that were sent earlier."""
    sender, receiver = world.pair(limit=64 * MIB)
    world.send(sender, 1, update(0), payload_of(floats(64 * MIB)))
    world.send(sender, 1, ping(1))
    order = [type(arrival.message).__name__ for arrival in world.wait_received(receiver, 2)]
    assert order == ["Ping", "Update"], f"arrived in the order {order}"


@_promise
def _a_send_to_nobody_is_refused(world: World) -> None:
    transport = world.peer(0)
    assert transport.send(9, ping(0)) is False, "send to an unknown peer must return False"
    assert transport.send(9, update(0), payload_of(floats(400))) is False, (
        "send of a payload to an unknown peer must return False"
    )
    assert transport.traffic.dropped == {"no_link": 2}, f"counted {transport.traffic.dropped}"
    assert transport.traffic.sent_messages == 0, "it was counted as sent"


@_promise
def _an_address_that_is_none_is_counted(world: World) -> None:
    """Check that an invalid address raises no error, because the address may come from another
    peer."""
    transport = world.peer(0)
    for nonsense in (
        "",
        "nonsense",
        "http://127.0.0.1:80",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:99999",
        "ipc:///tmp/x",
    ):
        transport.connect(1, nonsense, nonsense)
        assert transport.send(1, ping(0)) is False, f"something listens at {nonsense!r}"
    assert transport.traffic.dropped["bad_address"] == 6, f"counted {transport.traffic.dropped}"


@_promise
def _a_payload_of_a_wrong_size_is_dropped(world: World) -> None:
    """Check that payloads of a wrong size and unexpected payloads are dropped. Later payloads must
    arrive."""
    right = 4 * MIB

    def limit(peer: PeerId, message: Message) -> int:
        return -1 if isinstance(message, Push) else right

    sender, receiver = world.pair(limit)
    push = Push(LINEAGE, 0, "gradient", 32, None, b"")
    offer = state_offer(right + 4)
    wrong: list[tuple[str, Message, int]] = [
        ("too_large", update(0), right + 4),
        ("too_large", offer, right + 4),
        ("wrong_size", update(1), right - 4),
        ("unexpected", push, right),
    ]
    for reason, message, nbytes in wrong:
        before = receiver.traffic.dropped.get(reason, 0)
        world.send(sender, 1, message, payload_of(floats(nbytes)))
        world.until(
            lambda: receiver.traffic.dropped.get(reason, 0) > before,  # noqa: B023
            f"{nbytes} bytes counted as {reason}",
        )
    world.send(sender, 1, update(2), payload_of(floats(right)))
    arrivals = world.wait_received(receiver, 1)
    assert rounds_of(arrivals) == [2], f"arrived: {[arrival.message for arrival in arrivals]}"


@_promise
def _messages_of_another_run_are_dropped(world: World) -> None:
    sender, receiver = world.peer(0, run=b"that-run"), world.peer(1)
    world.link(sender, 1, receiver)
    world.send(sender, 1, ping(0))
    world.wait_drop(receiver, "foreign_run")
    assert world.received(receiver) == []


@_promise
def _nobody_else_speaks_under_our_name(world: World) -> None:
    impostor, receiver = world.peer(1), world.peer(1)
    world.link(impostor, 1, receiver)
    world.send(impostor, 1, ping(0))
    world.wait_drop(receiver, "own_name")
    assert world.received(receiver) == []


@_promise
def _a_closed_link_is_reported_at_once_and_once(world: World) -> None:
    watcher, other = world.pair()
    world.stop(other)
    heard = world.heard[id(watcher)]
    world.until(lambda: world.broke(watcher), "LinkDown after the other peer has closed")
    world.until(lambda: watcher.send(1, ping(0)) is False, "send on a closed link to return False")
    assert [type(arrival).__name__ for arrival in heard] == ["LinkUp", "LinkDown"], f"heard {heard}"
    assert all(arrival.peer == 1 for arrival in heard if isinstance(arrival, LinkUp | LinkDown))


@_promise
def _a_peer_that_comes_late_or_back_is_linked(world: World) -> None:
    """Check that a transport reconnects to the address of ``connect`` without a further call. The
    first messages may be lost while the old connection is closing."""
    watcher, other = world.pair()
    address = (other.control, other.bulk)
    world.stop(other)
    heard = world.heard[id(watcher)]
    world.until(lambda: world.broke(watcher), "LinkDown")
    heir = world.peer(1, incarnation=1, at=address)
    world.until(lambda: heard.count(LinkUp(1)) >= 2, "LinkUp when a peer listens there again")
    world.until(
        lambda: watcher.send(1, ping(1)) and bool(world.received(heir)),
        "a message that arrives there",
    )
    world.pump()  # read the events of the old connection, which are older than that message
    heard.clear()
    watcher.connect(1, *address)
    world.send(watcher, 1, ping(2))
    world.until(
        lambda: any(arrival.message == ping(2) for arrival in world.received(heir)),
        "a message after connect",
    )
    assert heard == [], "connecting to the present address must change nothing"


@_promise
def _a_new_incarnation_at_a_new_address_replaces_the_old(world: World) -> None:
    sender, old = world.pair()
    new = world.peer(1, incarnation=1)
    world.heard[id(sender)].clear()
    world.link(sender, 1, new)
    world.send(sender, 1, update(3), payload_of(floats(16 * MIB)))
    world.wait_received(new, 1)
    assert world.received(old) == [], "the old address was still written to"
    world.stop(old)
    world.send(sender, 1, ping(0))
    world.wait_received(new, 2)
    assert not any(isinstance(arrival, LinkDown) for arrival in world.heard[id(sender)]), (
        "the end of the replaced link was reported"
    )


@_promise
def _disconnect_forgets(world: World) -> None:
    """Check that after ``disconnect`` no message can be sent, no event is reported, and queued
    messages do not arrive."""
    sender, receiver = world.pair(limit=MIB)
    world.neglect(receiver)
    data, taken = payload_of(floats(MIB)), 0
    while sender.send(1, update(0), data):
        taken += 1  # until the queue is full
    sender.disconnect(1)
    assert sender.send(1, ping(0)) is False, "send after disconnect must return False"
    world.drive(receiver)
    world.heard[id(sender)].clear()
    world.link(sender, 1, receiver)
    world.send(sender, 1, update(1), data)
    world.until(lambda: 1 in rounds_of(world.received(receiver)), "an update over the new link")
    leftovers = len(rounds_of(world.received(receiver))) - 1  # in flight before ``disconnect``
    assert leftovers < taken, f"all {taken} queued updates arrived after disconnect"
    assert not world.broke(sender), "disconnect was reported as LinkDown"
    sender.disconnect(1)
    sender.disconnect(1)


@_promise
def _queues_are_bounded(world: World) -> None:
    """Check that ``send`` soon returns False if the receiver does not read, and succeeds when the
    receiver reads again. No accepted message is lost silently: if the receiver does not read for
    long, messages are dropped and ``LinkDown`` is reported.
    """
    sender, receiver = world.pair(limit=MIB)
    world.neglect(receiver)
    data = payload_of(floats(MIB))
    taken = {"control": 0, "bulk": 0}
    # Kernel buffers have room for some thousands of small messages, but not for 200,000.
    while sender.send(1, ping(taken["control"])) and taken["control"] < 200_000:
        taken["control"] += 1
    while sender.send(1, update(taken["bulk"]), data) and taken["bulk"] < 2_000:
        taken["bulk"] += 1
    assert taken["control"] < 200_000, (
        "the control lane accepted 200000 messages for a receiver that does not read"
    )
    assert taken["bulk"] < 2_000, "the bulk lane accepted 2 GB for a receiver that does not read"
    assert sender.traffic.dropped == {"full": 2}, f"counted {sender.traffic.dropped}"
    world.drive(receiver)
    world.until(
        lambda: len(world.received(receiver)) >= sum(taken.values()) or world.broke(sender),
        lambda: f"{taken} messages or LinkDown; {receiver.traffic}",
    )
    if world.broke(sender):
        world.until(lambda: world.heard[id(sender)][-1] == LinkUp(1), "LinkUp, as it reads again")
    world.send(sender, 1, ping(2**20))
    world.send(sender, 1, update(2**20), data)
    world.until(
        lambda: 2**20 in rounds_of(world.received(receiver)), "an update when it reads again"
    )
    world.until(
        lambda: any(one.message == ping(2**20) for one in world.received(receiver)),
        "a ping when it reads again",
    )


@_promise
def _memory_may_be_reused_when_it_is_not_in_flight(world: World) -> None:
    """Check that ``in_flight`` returns True until the memory of a payload may be reused."""
    sender, receiver = world.pair(limit=16 * MIB)
    world.neglect(receiver)
    data = floats(16 * MIB)
    world.send(sender, 1, update(0), payload_of(data))
    view = data[1000:2000]
    assert sender.in_flight(view) == sender.in_flight(data), (
        "in_flight differs for a view of the same memory"
    )
    assert not sender.in_flight(floats(400)), "memory that was not sent is reported as in flight"
    world.drive(receiver)
    world.until(lambda: not sender.in_flight(data), "the memory to be free again")
    data[:] = -1.0
    payload = world.wait_received(receiver, 1)[0].payload
    assert payload is not None
    assert payload.data.tobytes() == floats(16 * MIB).tobytes(), (
        "the receiver read bytes that were written after the memory was free"
    )


@_promise
def _what_was_received_belongs_to_the_receiver(world: World) -> None:
    """Check that a payload is writable, and that later payloads do not change it."""
    sender, receiver = world.pair(limit=2 * MIB)
    for number in range(3):
        world.send(sender, 1, update(number), payload_of(np.full(MIB // 2, number, np.float32)))
    payloads = [arrival.payload for arrival in world.wait_received(receiver, 3)]
    for number, payload in enumerate(payloads):
        assert payload is not None
        assert (payload.data == number).all(), "a later payload overwrote an earlier payload"
        payload.data[:] = -1.0


@_promise
def _poll_wakes_on_a_descriptor(world: World) -> None:
    transport = world.peer(0)
    reader, writer = os.pipe()
    try:
        began = time.monotonic()
        os.write(writer, b"x")
        assert transport.poll(PATIENCE_S, [reader]) == []
        ring = threading.Timer(0.05, os.write, (writer, b"x"))
        os.read(reader, 1)
        ring.start()
        transport.poll(PATIENCE_S, [reader])
        ring.join()
        assert time.monotonic() - began < PATIENCE_S, (
            "poll did not return while a descriptor was readable"
        )
        # This call does not pass the descriptor, so the descriptor must not wake ``poll``.
        began = time.monotonic()
        assert transport.poll(0.05) == []
        assert time.monotonic() - began >= 0.04, "poll returned early, without an arrival"
    finally:
        os.close(reader)
        os.close(writer)


@_promise
def _poll_that_may_stay_awake_comes_back_as_soon_and_as_late(world: World) -> None:
    sender, receiver = world.pair()
    world.send(sender, 1, ping(0))
    assert world.wait_received(receiver, 1)
    began = time.monotonic()
    assert receiver.poll(0.02, awake_s=PATIENCE_S) == []
    assert 0.015 <= time.monotonic() - began < PATIENCE_S, "poll did not return in time"
    assert not receiver.woken
    reader, writer = os.pipe()
    try:
        os.write(writer, b"x")
        assert receiver.poll(PATIENCE_S, [reader], PATIENCE_S) == []
        assert receiver.woken, "poll does not report that a descriptor woke it"
    finally:
        os.close(reader)
        os.close(writer)
    ringing = threading.Timer(0.05, world.send, (sender, 1, ping(1)))
    ringing.start()
    began = time.monotonic()
    while not receiver.poll(PATIENCE_S, awake_s=PATIENCE_S):
        assert time.monotonic() - began < PATIENCE_S, "poll missed an arrival while awake"
    ringing.join()


@_promise
def _close_sends_what_is_queued(world: World) -> None:
    """Check that ``close`` sends queued messages until its timeout, and that a second call is
    valid."""
    sender, receiver = world.pair(limit=16 * MIB)
    world.neglect(sender)
    for number in range(2):
        assert sender.send(1, update(number), payload_of(floats(16 * MIB))), (
            "two payloads must fit into any queue"
        )
    assert sender.send(1, ping(0))
    closing = threading.Thread(target=sender.close, args=(PATIENCE_S,))
    closing.start()
    try:
        arrivals = world.wait_received(receiver, 3)
    finally:
        closing.join()
    assert rounds_of(arrivals) == [0, 1], f"arrived: {[arrival.message for arrival in arrivals]}"
    sender.close()


@_promise
def _traffic_is_counted(world: World) -> None:
    sender, receiver = world.pair(limit=2 * MIB)
    world.send(sender, 1, ping(0))
    world.send(sender, 1, update(0), payload_of(floats(2 * MIB)))
    world.wait_received(receiver, 2)
    assert sender.traffic.sent_messages == 2, f"{sender.traffic}"
    assert sender.traffic.sent_bytes > 2 * MIB, f"{sender.traffic}"
    assert sender.traffic.sent_payload_bytes == 2 * MIB, f"{sender.traffic}"
    assert receiver.traffic.received_messages == 2, f"{receiver.traffic}"
    assert receiver.traffic.received_bytes == sender.traffic.sent_bytes, (
        f"{sender.traffic} against {receiver.traffic}"
    )
