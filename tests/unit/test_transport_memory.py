"""The in-memory transport keeps a transport's promises, and what only it can be asked."""

from __future__ import annotations

import pytest

from gossip.core.messages import Envelope, Ping, Update
from gossip.errors import AddressInUse
from gossip.testing.transport_world import RUN
from gossip.testing.transports import TRANSPORT_CHECKS, TransportCheck, check_transport
from gossip.transport.codec import encode
from gossip.transport.memory import Hub, MemoryTransport, Packet


def maker():
    hub = Hub()

    def make(run, local, incarnation, payload_limit, at=None):
        return MemoryTransport(hub, run, local, incarnation, payload_limit, *(at or ()))

    return make


@pytest.mark.parametrize("check", TRANSPORT_CHECKS.values(), ids=TRANSPORT_CHECKS)
def test_the_memory_transport_keeps_its_promise(check: TransportCheck):
    check(maker())


def test_an_address_is_given_to_one_only():
    hub = Hub()
    first = MemoryTransport(hub, RUN, 0, 0, lambda sender, message: 0)
    with pytest.raises(AddressInUse, match="peer 0"):
        MemoryTransport(hub, RUN, 1, 0, lambda sender, message: 0, first.control, first.bulk)
    first.close()
    MemoryTransport(hub, RUN, 1, 0, lambda sender, message: 0, first.control, first.bulk).close()


def test_what_a_stranger_puts_in_is_counted_and_nothing_more():
    hub = Hub()
    transport = MemoryTransport(hub, RUN, 1, 0, lambda sender, message: 8)
    update = encode(Envelope(RUN, 0, 0, Update(b"", 0, 0, 0, b"", 1, None)))
    ping = encode(Envelope(RUN, 0, 0, Ping(1, 1, ())))
    stranger = object()
    for on_bulk, parcel in [
        (False, Packet(stranger, b"")),
        (False, Packet(stranger, b"\xc1" * 100)),
        (True, Packet(stranger, update, 8, 0, b"12345678")),
        (True, Packet(stranger, update, 8, 0, b"1234")),
        (True, Packet(stranger, ping)),
        (False, Packet(stranger, update)),
    ]:
        assert hub.inject(transport.control, transport.bulk, parcel, on_bulk=on_bulk)
    assert transport.poll(0.0) == []
    assert transport.traffic.dropped == {"malformed": 2, "corrupt": 2, "wrong_lane": 2}
    transport.close()


def test_the_suite_says_which_promise_was_broken():
    class Deaf(MemoryTransport):
        def announce(self, address, down, only=None):
            """Never tells that a link closed."""
            if down is None:
                super().announce(address, down, only)

    hub = Hub()

    def make(run, local, incarnation, payload_limit, at=None):
        return Deaf(hub, run, local, incarnation, payload_limit, *(at or ()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gossip.testing.transport_world.PATIENCE_S", 0.2)
        with pytest.raises(
            AssertionError, match=r"a_closed_link_is_reported_at_once_and_once: .*LinkDown"
        ):
            check_transport(make)
