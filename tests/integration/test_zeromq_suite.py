"""The ZeroMQ transport keeps a transport's promises."""

from __future__ import annotations

import pytest
from zeromq_rig import Known

from gossip.testing.transports import TRANSPORT_CHECKS, TransportCheck
from gossip.transport import zeromq
from gossip.transport.zeromq import ZeroMQTransport


def make(run, local, incarnation, payload_limit, at=None):
    ports = [int(address.rpartition(":")[2]) for address in at or ()]
    return ZeroMQTransport(run, local, incarnation, payload_limit, "127.0.0.1", *ports)


@pytest.mark.parametrize("check", TRANSPORT_CHECKS.values(), ids=TRANSPORT_CHECKS)
def test_the_zeromq_transport_keeps_its_promise(check: TransportCheck, monkeypatch):
    """The look every 0.1 s is there for what we do not know of. With it gone, a lost wake-up shows
    as a wait in vain."""
    monkeypatch.setattr(zeromq, "SAFETY_POLL_S", 600.0)
    check(make)


def make_on_one_host(run, local, incarnation, payload_limit, at=None):
    if at is None:
        return ZeroMQTransport(run, local, incarnation, payload_limit, same_host=True)
    port, name = int(at[0].rpartition(":")[2]), at[1].rpartition("@")[2]
    return ZeroMQTransport(
        run, local, incarnation, payload_limit, "127.0.0.1", port, same_host=True, bulk_name=name
    )


@pytest.mark.parametrize("check", TRANSPORT_CHECKS.values(), ids=TRANSPORT_CHECKS)
def test_the_lane_on_one_host_keeps_its_promise(check: TransportCheck, monkeypatch):
    monkeypatch.setattr(zeromq, "SAFETY_POLL_S", 600.0)
    check(make_on_one_host)


@pytest.mark.parametrize("check", TRANSPORT_CHECKS.values(), ids=TRANSPORT_CHECKS)
def test_with_keys_it_keeps_its_promise(check: TransportCheck, monkeypatch):
    monkeypatch.setattr(zeromq, "SAFETY_POLL_S", 600.0)
    known = Known(range(8))

    def make_with_keys(run, local, incarnation, payload_limit, at=None):
        ports = [int(address.rpartition(":")[2]) for address in at or ()]
        return ZeroMQTransport(
            run, local, incarnation, payload_limit, "127.0.0.1", *ports, keys=known.of(local)
        )

    check(make_with_keys)
