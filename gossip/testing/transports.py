"""Tells the author of a transport whether it keeps a transport's promises (``gossip.transport.base``).

    from gossip.testing import check_transport
    check_transport(my_factory)

or, in pytest, one test a promise:

    @pytest.mark.parametrize("check", TRANSPORT_CHECKS.values(), ids=TRANSPORT_CHECKS)
    def test_my_transport(check):
        check(my_factory)
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossip.core.events import LinkDown, LinkUp, Payload, Received
from gossip.core.messages import Ack, Commit, Message, PeerId, Ping, Progress, Push, Rumour, StateOffer, Update
from gossip.transport.base import Arrival, PayloadLimit, Transport

PATIENCE_S = 30.0  # a state that has not come by then never comes
MIB = 2**20
SIZES = (4, 8, 12, 65_536, 68_904, MIB - 4, MIB, MIB + 4, 3 * MIB + 20, 8 * MIB)  # bytes of float32 payloads
RUN, LINEAGE, DIGEST = b"this-run", b"lineage1", b"digest-of-a-rest"


class TransportFactory(Protocol):
    """Makes a bound transport. With ``at`` (control, bulk) it must take those addresses, which a closed one has left."""

    def __call__(
        self,
        run: bytes,
        local: PeerId,
        incarnation: Callable[[], int] | int,
        payload_limit: PayloadLimit,
        at: tuple[str, str] | None = None,
    ) -> Transport: ...


TransportCheck: TypeAlias = Callable[[TransportFactory], None]
TRANSPORT_CHECKS: dict[str, TransportCheck] = {}
"""Each promise with what checks it."""


def check_transport(make: TransportFactory) -> None:
    """Checks all promises, in seconds. Two to three transports run at a time, all driven by the calling thread.

    Raises: AssertionError: it breaks a promise; the message says which.
    """
    for promise, check in TRANSPORT_CHECKS.items():
        try:
            check(make)
        except AssertionError as error:
            raise AssertionError(f"{promise}: {error}") from error


def _promise(check: Callable[[_World], None]) -> TransportCheck:
    def run(make: TransportFactory) -> None:
        with _World(make) as world:
            check(world)

    run.__doc__ = check.__doc__
    TRANSPORT_CHECKS[check.__name__.removeprefix("_")] = run
    return run


class _World(ExitStack):
    """Transports that one thread drives in turn, and what each has heard."""

    def __init__(self, make: TransportFactory) -> None:
        super().__init__()
        self._make = make
        self.heard: dict[int, list[Arrival]] = {}
        self._driven: list[Transport] = []

    def peer(
        self,
        local: PeerId,
        limit: int | PayloadLimit = 16 * MIB,
        *,
        run: bytes = RUN,
        incarnation: Callable[[], int] | int = 0,
        at: tuple[str, str] | None = None,
    ) -> Transport:
        transport = self._make(run, local, incarnation, limit if callable(limit) else lambda sender, message: limit, at)
        self.callback(transport.close)
        self._driven.append(transport)
        self.heard[id(transport)] = []
        return transport

    def pair(self, limit: int | PayloadLimit = 16 * MIB) -> tuple[Transport, Transport]:
        """Peers 0 and 1, 0 connected to 1."""
        first, second = self.peer(0, limit), self.peer(1, limit)
        self.link(first, 1, second)
        return first, second

    def link(self, transport: Transport, peer: PeerId, other: Transport) -> None:
        transport.connect(peer, other.control, other.bulk)
        self.until(lambda: LinkUp(peer) in self.heard[id(transport)], f"LinkUp({peer}) after connect")

    def stop(self, transport: Transport) -> None:
        self._driven.remove(transport)
        transport.close()

    def neglect(self, transport: Transport) -> None:
        """It is not polled any more."""
        self._driven.remove(transport)

    def drive(self, transport: Transport) -> None:
        self._driven.append(transport)

    def pump(self) -> None:
        for transport in self._driven:
            self.heard[id(transport)] += transport.poll(0.002)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, f"waited {PATIENCE_S:.0f} s in vain for {what}"
            self.pump()

    def received(self, transport: Transport) -> list[Received]:
        return [arrival for arrival in self.heard[id(transport)] if isinstance(arrival, Received)]

    def wait_received(self, transport: Transport, count: int) -> list[Received]:
        self.until(lambda: len(self.received(transport)) >= count, f"{count} messages; {transport.traffic}")
        return self.received(transport)

    def wait_drop(self, transport: Transport, reason: str) -> None:
        self.until(lambda: transport.traffic.dropped.get(reason, 0) > 0, f"a drop counted as {reason!r}; {transport.traffic}")

    def send(self, transport: Transport, peer: PeerId, message: Message, payload: Payload | None = None) -> None:
        """Until it is taken: queues are bounded."""
        self.until(lambda: transport.send(peer, message, payload), f"send of {type(message).__name__} to be taken")


def _ping(nonce: int) -> Ping:
    return Ping(nonce, 1, (Rumour(2, "suspect", 7, "tcp://127.0.0.1:1", "", 0),))


def _update(round_id: int) -> Update:
    return Update(LINEAGE, round_id, 0, 0, DIGEST, 32, 0.25)


def _commit() -> Commit:
    return Commit(LINEAGE, 5, 0, 0, 0, 0, DIGEST, DIGEST, (), (), (0, 1), None, "")


def _offer(nbytes: int) -> StateOffer:
    return StateOffer(LINEAGE, 1, 5, DIGEST, DIGEST, nbytes, b"core", "")


def _floats(nbytes: int) -> NDArray[np.float32]:
    return np.arange(nbytes // 4, dtype=np.float32)


def _payload(data: NDArray[Any]) -> Payload:
    return Payload(data, data.nbytes)


def _rounds(arrivals: Iterable[Received]) -> list[int]:
    return [arrival.message.round_id for arrival in arrivals if isinstance(arrival.message, Update)]


@_promise
def _messages_of_a_lane_keep_their_order(world: _World) -> None:
    """With and without payload, small and large ones mixed."""
    sender, receiver = world.pair(limit=lambda peer, message: 2 * MIB if _rounds([Received(0, 0, message)])[0] % 3 == 0 else 400)
    for number in range(60):
        world.send(sender, 1, _ping(number))
        data = None if number % 3 == 2 else _payload(_floats(2 * MIB if number % 3 == 0 else 400))
        world.send(sender, 1, _update(number), data)
    arrivals = world.wait_received(receiver, 120)
    nonces = [arrival.message.nonce for arrival in arrivals if isinstance(arrival.message, Ping)]
    assert nonces == list(range(60)), f"pings came as {nonces}"
    assert _rounds(arrivals) == list(range(60)), f"updates came as {_rounds(arrivals)}"
    assert not receiver.traffic.dropped, f"something was dropped: {receiver.traffic.dropped}"


@_promise
def _a_message_arrives_as_it_was_sent(world: _World) -> None:
    """Sender, incarnation and every field."""
    sender, receiver = world.peer(3, incarnation=41), world.peer(1)
    world.link(sender, 1, receiver)
    messages: tuple[Message, ...] = (_ping(2**48), Ack(1, 3, Progress(17, 3), ()), _update(9), _offer(7))
    for message in messages:
        world.send(sender, 1, message)
    arrivals = world.wait_received(receiver, len(messages))
    assert {(arrival.sender, arrival.incarnation) for arrival in arrivals} == {(3, 41)}, f"got {arrivals}"
    assert all(message in [arrival.message for arrival in arrivals] for message in messages), f"got {arrivals}"
    assert all(arrival.payload is None for arrival in arrivals), "a payload came that nobody sent"


@_promise
def _an_incarnation_that_rises_is_told_from_then_on(world: _World) -> None:
    now = [1]
    sender, receiver = world.peer(0, incarnation=lambda: now[0]), world.peer(1)
    world.link(sender, 1, receiver)
    world.send(sender, 1, _ping(0))
    now[0] = 5
    world.send(sender, 1, _ping(1))
    told = [arrival.incarnation for arrival in world.wait_received(receiver, 2)]
    assert told == [1, 5], f"incarnations {told}, expected [1, 5]"


@_promise
def _payloads_arrive_byte_for_byte(world: _World) -> None:
    """From 4 bytes to 8 MiB, also where no chunk is full."""
    wanted = [0]
    sender, receiver = world.pair(limit=lambda peer, message: wanted[0])
    for number, nbytes in enumerate(SIZES):
        wanted[0] = nbytes
        data = np.random.default_rng(nbytes).standard_normal(nbytes // 4, dtype=np.float32)
        world.send(sender, 1, _update(number), _payload(data))
        payload = world.wait_received(receiver, number + 1)[-1].payload
        assert payload is not None, f"the payload of {nbytes} bytes did not come along"
        assert payload.nbytes == nbytes, f"payload of {payload.nbytes} bytes, {nbytes} were sent"
        assert payload.data.dtype == np.float32, f"payload of {payload.data.dtype}, expected float32"
        assert payload.data.tobytes() == data.tobytes(), f"the payload of {nbytes} bytes changed on its way"


@_promise
def _the_facts_of_a_payload_are_told(world: _World) -> None:
    """Whether it is finite; the digest of commits and states; states are bytes of any length up to the limit."""
    sender, receiver = world.pair(limit=lambda peer, message: 3 * MIB if isinstance(message, StateOffer) else 2 * MIB)
    good, bad = _floats(2 * MIB), _floats(2 * MIB)
    bad[-1] = np.nan
    large = np.full(MIB // 2, 3e38, np.float32)  # finite, though its sum is not
    state = np.frombuffer(os.urandom(2 * MIB + 13), np.uint8)
    sent: list[tuple[Message, NDArray[Any]]] = [(_update(0), good), (_update(1), bad), (_update(2), large)]
    for message, data in [*sent, (_commit(), good), (_offer(state.nbytes), state)]:
        world.send(sender, 1, message, _payload(data))
    payloads = [arrival.payload for arrival in world.wait_received(receiver, 5)]
    finite = [payload is not None and payload.finite for payload in payloads]
    assert finite == [True, False, True, True, True], f"finite is {finite}"
    digests = [payload.digest if payload is not None else None for payload in payloads]
    true = [hashlib.blake2b(data.tobytes(), digest_size=16).digest() for data in (good, state)]
    assert digests == [b"", b"", b"", *true], f"digests {digests}, expected {true} for the commit and the state"
    assert payloads[4] is not None
    assert payloads[4].data.dtype == np.uint8, "a state must come as uint8"


@_promise
def _control_overtakes_bulk(world: _World) -> None:
    """A ping that is sent after 64 MiB arrives before them."""
    sender, receiver = world.pair(limit=64 * MIB)
    world.send(sender, 1, _update(0), _payload(_floats(64 * MIB)))
    world.send(sender, 1, _ping(1))
    order = [type(arrival.message).__name__ for arrival in world.wait_received(receiver, 2)]
    assert order == ["Ping", "Update"], f"came as {order}"


@_promise
def _a_send_to_nobody_is_refused(world: _World) -> None:
    transport = world.peer(0)
    assert transport.send(9, _ping(0)) is False, "send to an unknown peer must return False"
    assert transport.send(9, _update(0), _payload(_floats(400))) is False, "the same with a payload"
    assert transport.traffic.dropped == {"no_link": 2}, f"counted {transport.traffic.dropped}"
    assert transport.traffic.sent_messages == 0, "it was counted as sent"


@_promise
def _an_address_that_is_none_is_counted(world: _World) -> None:
    """It may be a peer's word, so it raises nothing."""
    transport = world.peer(0)
    for nonsense in ("", "nonsense", "http://127.0.0.1:80", "tcp://127.0.0.1", "tcp://127.0.0.1:99999", "ipc:///tmp/x"):
        transport.connect(1, nonsense, nonsense)
        assert transport.send(1, _ping(0)) is False, f"something stands at {nonsense!r}"
    assert transport.traffic.dropped["bad_address"] == 6, f"counted {transport.traffic.dropped}"


@_promise
def _a_payload_of_a_wrong_size_is_dropped(world: _World) -> None:
    """Too large, too small, or not expected at all. What comes after it arrives."""
    right = 4 * MIB

    def limit(peer: PeerId, message: Message) -> int:
        return -1 if isinstance(message, Push) else right

    sender, receiver = world.pair(limit)
    push = Push(LINEAGE, 0, "gradient", 32, None, b"")
    offer = _offer(right + 4)
    wrong: list[tuple[str, Message, int]] = [
        ("too_large", _update(0), right + 4),
        ("too_large", offer, right + 4),
        ("wrong_size", _update(1), right - 4),
        ("unexpected", push, right),
    ]
    for reason, message, nbytes in wrong:
        before = receiver.traffic.dropped.get(reason, 0)
        world.send(sender, 1, message, _payload(_floats(nbytes)))
        world.until(lambda: receiver.traffic.dropped.get(reason, 0) > before, f"{nbytes} bytes counted as {reason}")  # noqa: B023
    world.send(sender, 1, _update(2), _payload(_floats(right)))
    arrivals = world.wait_received(receiver, 1)
    assert _rounds(arrivals) == [2], f"arrived: {[arrival.message for arrival in arrivals]}"


@_promise
def _another_run_is_not_heard(world: _World) -> None:
    sender, receiver = world.peer(0, run=b"that-run"), world.peer(1)
    world.link(sender, 1, receiver)
    world.send(sender, 1, _ping(0))
    world.wait_drop(receiver, "foreign_run")
    assert world.received(receiver) == []


@_promise
def _nobody_else_speaks_under_our_name(world: _World) -> None:
    impostor, receiver = world.peer(1), world.peer(1)
    world.link(impostor, 1, receiver)
    world.send(impostor, 1, _ping(0))
    world.wait_drop(receiver, "own_name")
    assert world.received(receiver) == []


@_promise
def _a_link_that_closes_is_told_at_once_and_once(world: _World) -> None:
    watcher, other = world.pair()
    world.stop(other)
    heard = world.heard[id(watcher)]
    world.until(lambda: any(isinstance(arrival, LinkDown) for arrival in heard), "LinkDown after the other closed")
    world.until(lambda: watcher.send(1, _ping(0)) is False, "send on a closed link to return False")
    assert [type(arrival).__name__ for arrival in heard] == ["LinkUp", "LinkDown"], f"heard {heard}"
    assert all(arrival.peer == 1 for arrival in heard if isinstance(arrival, LinkUp | LinkDown))


@_promise
def _a_peer_that_comes_late_or_back_is_linked(world: _World) -> None:
    """At the address that was told, without asking again."""
    watcher, other = world.pair()
    address = (other.control, other.bulk)
    world.stop(other)
    heard = world.heard[id(watcher)]
    world.until(lambda: any(isinstance(arrival, LinkDown) for arrival in heard), "LinkDown")
    heir = world.peer(1, incarnation=1, at=address)
    world.until(lambda: heard.count(LinkUp(1)) == 2, "LinkUp when somebody listens there again")
    watcher.connect(1, *address)
    world.send(watcher, 1, _ping(1))
    world.wait_received(heir, 1)
    assert heard.count(LinkUp(1)) == 2, "connecting to the address that one is connected to must change nothing"


@_promise
def _a_new_incarnation_at_a_new_address_replaces_the_old(world: _World) -> None:
    sender, old = world.pair()
    new = world.peer(1, incarnation=1)
    world.heard[id(sender)].clear()
    world.link(sender, 1, new)
    world.send(sender, 1, _update(3), _payload(_floats(16 * MIB)))
    world.wait_received(new, 1)
    assert world.received(old) == [], "the old address was still written to"
    world.stop(old)
    world.send(sender, 1, _ping(0))
    world.wait_received(new, 2)
    assert not any(isinstance(arrival, LinkDown) for arrival in world.heard[id(sender)]), "the former link's end was reported"


@_promise
def _disconnect_forgets(world: _World) -> None:
    """Nothing can be sent, nothing is reported, and what was queued does not come later."""
    sender, receiver = world.pair(limit=MIB)
    world.neglect(receiver)
    data, taken = _payload(_floats(MIB)), 0
    while sender.send(1, _update(0), data):
        taken += 1  # until the queue is full
    sender.disconnect(1)
    assert sender.send(1, _ping(0)) is False, "send after disconnect must return False"
    world.drive(receiver)
    world.heard[id(sender)].clear()
    world.link(sender, 1, receiver)
    world.send(sender, 1, _update(1), data)
    world.until(lambda: 1 in _rounds(world.received(receiver)), "an update over the new link")
    leftovers = len(_rounds(world.received(receiver))) - 1  # what was on the wire already
    assert leftovers < taken, f"all {taken} queued updates came after disconnect"
    assert not any(isinstance(arrival, LinkDown) for arrival in world.heard[id(sender)]), "disconnect was reported as LinkDown"
    sender.disconnect(1)
    sender.disconnect(1)


@_promise
def _queues_are_bounded(world: _World) -> None:
    """To somebody who does not read, ``send`` returns False before long, and works again when he reads."""
    sender, receiver = world.pair(limit=MIB)
    world.neglect(receiver)
    data = _payload(_floats(MIB))
    taken = {"control": 0, "bulk": 0}
    # Kernel buffers take some thousands of small messages, but never so many.
    while sender.send(1, _ping(taken["control"])) and taken["control"] < 200_000:
        taken["control"] += 1
    while sender.send(1, _update(taken["bulk"]), data) and taken["bulk"] < 2_000:
        taken["bulk"] += 1
    assert taken["control"] < 200_000, "the control lane took 200000 messages for somebody who does not read"
    assert taken["bulk"] < 2_000, "the bulk lane took 2 GB for somebody who does not read"
    assert sender.traffic.dropped == {"full": 2}, f"counted {sender.traffic.dropped}"
    world.drive(receiver)
    world.wait_received(receiver, sum(taken.values()))
    world.send(sender, 1, _ping(0))
    world.send(sender, 1, _update(0), data)


@_promise
def _memory_may_be_reused_when_it_is_not_in_flight(world: _World) -> None:
    """And only then: until then ``in_flight`` says so."""
    sender, receiver = world.pair(limit=16 * MIB)
    world.neglect(receiver)
    data = _floats(16 * MIB)
    world.send(sender, 1, _update(0), _payload(data))
    view = data[1000:2000]
    assert sender.in_flight(view) == sender.in_flight(data), "a view of the same memory is told otherwise"
    assert not sender.in_flight(_floats(400)), "memory that nobody sent is in flight"
    world.drive(receiver)
    world.until(lambda: not sender.in_flight(data), "the memory to be free again")
    data[:] = -1.0
    payload = world.wait_received(receiver, 1)[0].payload
    assert payload is not None
    assert payload.data.tobytes() == _floats(16 * MIB).tobytes(), "the receiver saw what was written after the memory was free"


@_promise
def _what_was_received_belongs_to_the_receiver(world: _World) -> None:
    """It is writable, and later payloads do not change it."""
    sender, receiver = world.pair(limit=2 * MIB)
    for number in range(3):
        world.send(sender, 1, _update(number), _payload(np.full(MIB // 2, number, np.float32)))
    payloads = [arrival.payload for arrival in world.wait_received(receiver, 3)]
    for number, payload in enumerate(payloads):
        assert payload is not None
        assert (payload.data == number).all(), "a later payload was written over an earlier one"
        payload.data[:] = -1.0


@_promise
def _poll_wakes_on_a_descriptor(world: _World) -> None:
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
        assert time.monotonic() - began < PATIENCE_S, "poll slept on while a descriptor was readable"
        # Not named any more: it must not wake anybody.
        began = time.monotonic()
        assert transport.poll(0.05) == []
        assert time.monotonic() - began >= 0.04, "poll came back early, with nothing"
    finally:
        os.close(reader)
        os.close(writer)


@_promise
def _close_sends_what_is_queued(world: _World) -> None:
    """While there is time, and whoever is closed twice is closed."""
    sender, receiver = world.pair(limit=16 * MIB)
    world.neglect(sender)
    for number in range(2):
        assert sender.send(1, _update(number), _payload(_floats(16 * MIB))), "two payloads must fit into any queue"
    assert sender.send(1, _ping(0))
    closing = threading.Thread(target=sender.close, args=(PATIENCE_S,))
    closing.start()
    try:
        arrivals = world.wait_received(receiver, 3)
    finally:
        closing.join()
    assert _rounds(arrivals) == [0, 1], f"arrived: {[arrival.message for arrival in arrivals]}"
    sender.close()


@_promise
def _traffic_is_counted(world: _World) -> None:
    sender, receiver = world.pair(limit=2 * MIB)
    world.send(sender, 1, _ping(0))
    world.send(sender, 1, _update(0), _payload(_floats(2 * MIB)))
    world.wait_received(receiver, 2)
    assert sender.traffic.sent_messages == 2, f"{sender.traffic}"
    assert sender.traffic.sent_bytes > 2 * MIB, f"{sender.traffic}"
    assert receiver.traffic.received_messages == 2, f"{receiver.traffic}"
    assert receiver.traffic.received_bytes == sender.traffic.sent_bytes, f"{sender.traffic} against {receiver.traffic}"
