"""The ZeroMQ transport keeps a transport's promises."""

from __future__ import annotations

import pytest
from zeromq_rig import Known

from gossip.core import LinkDown
from gossip.inject.sieve import FaultyTransport
from gossip.testing.transports import TRANSPORT_CHECKS, TransportCheck, check_transport
from gossip.transport import zeromq
from gossip.transport.zeromq import ZeroMQTransport


def make(run, local, incarnation, payload_limit, at=None, **options):
    ports = [int(address.rpartition(":")[2]) for address in at or ()]
    return ZeroMQTransport(run, local, incarnation, payload_limit, "127.0.0.1", *ports, **options)


def make_on_one_host(run, local, incarnation, payload_limit, at=None):
    port, name = (0, "") if at is None else (int(at[0].rpartition(":")[2]), at[1].partition("@")[2])
    return ZeroMQTransport(
        run, local, incarnation, payload_limit, "127.0.0.1", port, same_host=True, bulk_name=name
    )


def make_with_keys(known: Known):
    return lambda run, local, *rest, **where: make(run, local, *rest, keys=known.of(local), **where)


MAKERS = {
    "between hosts": lambda: make,
    "on one host": lambda: make_on_one_host,
    "with keys": lambda: make_with_keys(Known(range(8))),
    "without a fault": lambda: (
        lambda *header, **where: FaultyTransport(make_on_one_host(*header, **where))
    ),
}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("check", TRANSPORT_CHECKS.values(), ids=TRANSPORT_CHECKS)
def test_every_transport_keeps_its_promises(check: TransportCheck, maker: str, monkeypatch):
    """The look every 0.1 s is there for what we do not know of. With it gone, a lost wake-up shows
    as a wait in vain."""
    if maker != "without a fault":
        monkeypatch.setattr(zeromq, "SAFETY_POLL_S", 600.0)
    check(MAKERS[maker]())


class Deaf(ZeroMQTransport):
    """Never reports that a link has closed."""

    def poll(self, *waiting):
        return [news for news in super().poll(*waiting) if not isinstance(news, LinkDown)]


def test_the_suite_says_which_promise_was_broken(monkeypatch):
    def make_deaf(run, local, incarnation, payload_limit, at=None):
        return Deaf(run, local, incarnation, payload_limit, same_host=True)

    monkeypatch.setattr("gossip.testing.transport_world.PATIENCE_S", 2.0)
    with pytest.raises(
        AssertionError, match=r"a_closed_link_is_reported_at_once_and_once: .*LinkDown"
    ):
        check_transport(make_deaf)
