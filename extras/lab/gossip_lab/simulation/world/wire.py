"""Messages in transit between simulated peers, encoded by the codec, and the effects of links on
them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gossip.core import (
    BULK_MESSAGES,
    Arriving,
    Envelope,
    Payload,
    PeerId,
    Received,
    Send,
    StateOffer,
)
from gossip.errors import Malformed
from gossip.inject import OutMessage
from gossip.transport import TOLD_EVERY_S, decode, encode

from .host import Lane, SimProcess, SwarmEnvironment
from .links import Links
from .machine import NS, to_ns
from .network import LinkModel

_BULK = frozenset(BULK_MESSAGES)
_RUNNING = frozenset({"up", "paused"})
WORD = 2**64 - 1
TOLD_EVERY_NS = to_ns(TOLD_EVERY_S)
KNOWN_MAX = 512  # number of cached decoded messages; most have several receivers

Outgoing = Callable[[PeerId, PeerId, Envelope, Payload | None], Iterable[OutMessage]]
"""Function ``(sender, to, envelope, payload) -> messages to send in place of this message``."""


def send_unchanged(
    sender: PeerId, to: PeerId, envelope: Envelope, payload: Payload | None
) -> Iterable[OutMessage]:
    """Return only the message itself, as for an honest peer."""
    return [(to, envelope, payload)]


class Wire:
    """Transmits messages over the lanes that ``Links`` has opened."""

    def __init__(self, swarm: SwarmEnvironment, links: Links) -> None:
        self.swarm, self.links = swarm, links
        self._known: dict[bytes, Envelope] = {}
        # The last message is cached, because it is encoded only once for several receivers.
        self._said: Envelope | None = None
        self._encoded = b""

    def send(self, host: SimProcess[Any], effect: Send) -> None:
        """Send the message of a core, or the messages with which an attacker replaces it."""
        to = effect.peer
        message = effect.message
        payload = effect.payload
        said = self._said
        if (
            said is None
            or said.message is not message
            or said.sender != host.peer
            or said.incarnation != host.incarnation
        ):
            assert to != host.peer, f"peer {to} sends itself a {type(message).__name__}"
            said = Envelope(self.swarm.run, host.peer, host.incarnation, message)
        swarm = self.swarm
        if swarm.outgoing is None:
            self.post(host, to, said, payload)
            return
        out_messages = list(swarm.outgoing(host.peer, to, said, payload))
        if not any(
            told is said and content is payload and receiver == to
            for receiver, told, content in out_messages
        ):
            self._note("withheld", host.peer, to, said)
        for receiver, told, content in out_messages:
            if told is not said or content is not payload or receiver != to:
                self._note("lied", host.peer, receiver, told)
            self.post(host, receiver, told, content)

    def post(
        self, host: SimProcess[Any], to: PeerId, said: Envelope | bytes, payload: Payload | None
    ) -> None:
        """Put one message on the link to ``to``. Two random values, which are always drawn,
        determine the effects of the link. So switching a fault off does not change the effects of
        other faults."""
        swarm, sender = self.swarm, host.peer
        model = swarm.network.model((sender, to))
        lot, roll = host.dice.getrandbits(64), host.dice.random()
        fate = _fate(model, lot)
        swarm.counts["sent"] += 1
        lane = host.lanes.get(to)
        if lane is None or not lane.up:
            self._note("no_link", sender, to, said)
            return
        bulk = type(said.message) in _BULK if type(said) is Envelope else payload is not None
        life = lane.to_incarnation, lane.breaks
        sending = _Sending(
            sender,
            to,
            said,
            self._parcel(said, fate, lot),
            payload,
            lane,
            life,
            bulk,
            model,
            fate,
            lot,
            roll,
        )
        if fate.damaged:
            self._note_on("corrupted", sending)
        if fate.broken:
            self._note_on("reset", sending)
            self.links.reset(host, to, lane)
        elif model.unreadable and payload is not None:
            self._note_on("unreadable", sending)
        elif fate.lost or (sender, to) in swarm.network.cuts:
            self._note_on("lost" if fate.lost else "cut", sending)
        else:
            leaves_ns = self._leaves_ns(sending) if sending.needs_bandwidth else swarm.now_ns
            if leaves_ns is not None:
                self._put_on_the_way(sending, leaves_ns)

    def _parcel(self, said: Envelope | bytes, fate: _Fate, lot: int) -> Envelope | bytes:
        """Return the message as transmitted. A corrupted message is always encoded."""
        if not self.swarm.encoded and not fate.damaged:
            return said
        if isinstance(said, Envelope):
            if said is not self._said:
                self._said, self._encoded = said, encode(said)
            said = self._encoded
        return flipped_bit(said, _chance(lot, 8)) if fate.damaged else said

    def _leaves_ns(self, sending: _Sending) -> int | None:
        """Return the time at which the last byte of the message has left the sender. Return None if
        the queue is full."""
        swarm = self.swarm
        model = sending.model
        lane = sending.lane
        payload = sending.payload
        leaves_ns, network = swarm.now_ns, swarm.network
        assert payload is not None
        assert model.bytes_per_s is not None
        said = sending.said
        waiting_s = max(0, lane.free_at_ns - leaves_ns) / 1e9
        if model.queue_bytes is not None and waiting_s * model.bytes_per_s > model.queue_bytes:
            self._note_on("queue_full", sending)
            return None
        if waiting_s > 0.0:
            self._note_on("queued", sending)
        begins_ns = max(leaves_ns, lane.free_at_ns)
        leaves_ns = lane.free_at_ns = begins_ns + to_ns(payload.nbytes / model.bytes_per_s)
        if model.queue_s:
            network.loaded_until_ns = max(network.loaded_until_ns, leaves_ns)
        if leaves_ns - begins_ns > TOLD_EVERY_NS and type(said) is Envelope:
            under_way = _InFlight(sending, said, begins_ns, leaves_ns, lane.let_go)
            swarm.at_ns(begins_ns + TOLD_EVERY_NS, self._deliver_progress, under_way)
        return leaves_ns

    def _delay_s(self, sending: _Sending) -> float:
        """Return the delay of the message on the link, in seconds."""
        swarm, model, (least, most) = self.swarm, sending.model, sending.model.delay_s
        network = swarm.network
        delay_s = least + (most - least) * sending.roll
        queues = model.queue_s and not sending.needs_bandwidth
        if queues and swarm.now_ns < network.loaded_until_ns:
            delay_s += _chance(sending.lot, 12) * model.queue_s
        if delay_s > network.default.delay_s[1]:
            self._note_on("delayed", sending)
        if sending.fate.spiked:
            self._note_on("spiked", sending)
            delay_s += _chance(sending.lot, 10) * model.spike_s
        return delay_s

    def _put_on_the_way(self, sending: _Sending, leaves_ns: int) -> None:
        payload = sending.payload
        lane = sending.lane
        bulk = sending.bulk
        model = sending.model
        fate = sending.fate
        lot = sending.lot
        swarm, fifo = self.swarm, self.swarm.network.fifo
        arrives_ns = leaves_ns + round(self._delay_s(sending) * NS)
        if fate.spoiled and payload is not None:
            self._note_on("spoiled", sending)
            return  # the transport detects the corruption and drops the message
        if fate.held_up:
            self._note_on("reordered", sending)
            arrives_ns += to_ns(_chance(lot, 9) * model.reorder_s)
        elif fifo:
            arrives_ns = lane.in_order(arrives_ns, bulk)
        if model.slowed and bulk and payload is not None:
            self._note_on("slowed", sending)
            lane.slowed.append(sending)
            swarm.at_ns(arrives_ns, self._got_through, sending)
            return
        swarm.at_ns(arrives_ns, self._arrive, sending)
        if fate.doubled:
            self._note_on("duplicated", sending)
            least, most = model.delay_s
            arrives_ns = leaves_ns + to_ns(least + (most - least) * _chance(lot, 11))
            arrives_ns = lane.in_order(arrives_ns, bulk) if fifo else arrives_ns
            swarm.at_ns(arrives_ns, self._arrive, sending)

    def _got_through(self, sending: _Sending) -> None:
        """Deliver a payload that a fault has delayed, unless ``let_go`` has already delivered
        it."""
        lane = sending.lane
        if any(waiting is sending for waiting in lane.slowed):
            lane.slowed = [waiting for waiting in lane.slowed if waiting is not sending]
            self._arrive(sending)

    def let_go(self, sender: PeerId, to: PeerId) -> None:
        """Restore the speed of the link, and deliver all messages in transit at once."""
        lane = self.swarm.hosts[sender].lanes.get(to) if sender in self.swarm.hosts else None
        if lane is not None and lane.slowed:
            waiting = lane.slowed
            lane.slowed = []
            lane.free_at_ns = self.swarm.now_ns
            lane.let_go = lane.let_go + 1
            lane.arrives_ns[True] = self.swarm.now_ns
            for sending in waiting:
                self.swarm.at_ns(self.swarm.now_ns, self._arrive, sending)

    def _deliver_progress(self, under_way: _InFlight) -> None:
        """At intervals, report to the receiver which part of a payload has arrived."""
        sending, said, begins_ns, ends_ns, let_go = under_way
        swarm = self.swarm
        lane = sending.lane
        to = sending.to
        payload = sending.payload
        host, now_ns = swarm.hosts[to], swarm.now_ns
        assert payload is not None
        if now_ns >= ends_ns or (host.incarnation, lane.breaks) != sending.life:
            return
        if lane.let_go != let_go:
            return
        if (
            host.state == "up"
            and (said.sender, to) not in swarm.network.cuts
            and _expects(host, said, payload.nbytes)
        ):
            received = int((now_ns - begins_ns) / (ends_ns - begins_ns) * payload.nbytes)
            swarm.deliver(
                host,
                Arriving(said.sender, said.incarnation, said.message, received, payload.nbytes),
            )
        swarm.at_ns(now_ns + TOLD_EVERY_NS, self._deliver_progress, under_way)

    def _note_on(self, what: str, sending: _Sending) -> None:
        self._note(what, sending.sender, sending.to, sending.said)

    def _note(self, what: str, sender: PeerId, to: PeerId, said: Envelope | bytes) -> None:
        """Count an effect on a message, and call the observers."""
        swarm = self.swarm
        swarm.counts[what] += 1
        for see in swarm.hooks.mishap:
            see(swarm, sender, to, what, said.message if type(said) is Envelope else None)

    def _arrive(self, sending: _Sending) -> None:
        swarm = self.swarm
        to = sending.to
        payload = sending.payload
        host, (incarnation, breaks) = swarm.hosts[to], sending.life
        if host.incarnation != incarnation or host.state not in _RUNNING:
            self._note_on("gone", sending)
            return
        if sending.lane.breaks != breaks:
            self._note_on("lost_by_reset", sending)
            return
        parcel = sending.parcel
        said: bytes | None = None
        envelope: Envelope | None
        if type(parcel) is bytes:
            # Equal bytes are decoded only once.
            said = parcel
            envelope = self._known.get(parcel) or self._read(parcel)
        else:
            envelope = parcel  # type: ignore[assignment]
        if envelope is None:
            self._note_on("malformed", sending)
            return
        sender = envelope.sender
        if envelope.run != swarm.run:
            self._note_on("foreign_run", sending)
            return
        if sender == to:
            self._note_on("own_name", sending)
            return
        if payload is not None and not _expects(host, envelope, payload.nbytes):
            self._note_on("unwanted_payload", sending)
            return
        event = Received(sender, envelope.incarnation, envelope.message, payload)
        if swarm.copies_per_s and payload is not None:
            machine = host.machine
            machine.copied_ns = max(swarm.now_ns, machine.copied_ns) + to_ns(
                payload.nbytes / swarm.copies_per_s
            )
            swarm.at_ns(machine.copied_ns, self._copied, host, event, said, sending)
            return
        swarm.deliver(host, event, said)

    def _copied(
        self,
        host: SimProcess[Any],
        event: Received,
        said: bytes | None,
        sending: _Sending,
    ) -> None:
        """Deliver a message after its payload was copied and hashed. A real node does this chunk by
        chunk, between other work."""
        if sending.lane.breaks == sending.life[1] and host.state in _RUNNING:
            self.swarm.deliver(host, event, said)

    def _read(self, data: bytes) -> Envelope | None:
        """Return the decoded message, or None if it is malformed."""
        try:
            envelope = decode(data)
        except Malformed:
            return None
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[data] = envelope
        return envelope


def _chance(lot: int, number: int) -> float:
    """Return the ``number``-th of several random values in [0, 1), derived from 64 random bits
    (SplitMix64: Steele, Lea, Flood 2014)."""
    mixed = (lot + number * 0x9E3779B97F4A7C15) & WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & WORD
    return (mixed ^ (mixed >> 31)) / 2.0**64


class _Sending(NamedTuple):
    """A message on a link, and the random values that determine its fate.

    Attributes:
        parcel: The message as transmitted: encoded, and possibly corrupted.
        life: Incarnation of the receiver and number of resets of the lane, at the time of sending.
    """

    sender: PeerId
    to: PeerId
    said: Envelope | bytes
    parcel: Envelope | bytes
    payload: Payload | None
    lane: Lane
    life: tuple[int, int]
    bulk: bool
    model: LinkModel
    fate: _Fate
    lot: int
    roll: float

    @property
    def needs_bandwidth(self) -> bool:
        return self.model.bytes_per_s is not None and self.bulk and self.payload is not None


class _InFlight(NamedTuple):
    """A payload in transit on a link with limited bandwidth."""

    sending: _Sending
    said: Envelope
    begins_ns: int
    ends_ns: int
    let_go: int  # ``Lane.let_go`` at the start of the transfer


class _Fate(NamedTuple):
    """Effects of a link on a message; the order is that of ``LinkModel.shares``."""

    lost: bool = False
    doubled: bool = False
    damaged: bool = False
    broken: bool = False
    held_up: bool = False
    spiked: bool = False
    spoiled: bool = False


def _fate(model: LinkModel, lot: int) -> _Fate:
    return _Fate(
        *[
            share > 0.0 and _chance(lot, number) < share
            for number, share in enumerate(model.shares, 1)
        ]
    )


def flipped_bit(data: bytes, place: float) -> bytes:
    """Return the data with one flipped bit; ``place`` in [0, 1) selects the bit."""
    changed = bytearray(data)
    changed[int(place * len(changed))] ^= 1 << int(place * 8191) % 8
    return bytes(changed)


def _expects(host: SimProcess[Any], envelope: Envelope, nbytes: int) -> bool:
    message = envelope.message
    if type(message) not in _BULK:
        return False
    if host.admit is None:
        return True
    limit = host.admit(envelope.sender, message).nbytes
    wanted = message.nbytes if type(message) is StateOffer else limit
    return limit >= 0 and nbytes <= limit and nbytes == wanted
