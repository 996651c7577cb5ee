"""Links that fail as told: what is sent into a cut is gone, and the cut shows as a real one does,
late and by silence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from gossip.core.events import Arriving, LinkDown, LinkUp, Payload, Received
from gossip.core.messages import Message, Ping, Update
from gossip.errors import BadFault
from gossip.faults.plan import parse
from gossip.faults.world import Delay, Flap, LinkFault, Loss, Partition, Ring, Trickle
from gossip.inject.links import links_at
from gossip.inject.sieve import RECONNECT_S, FaultyTransport, LinkCondition
from gossip.transport.base import LINK_TIMEOUT_S as SILENT_S, Arrival, Traffic


class Wire:
    """One end of a link that delivers at once, without a socket."""

    link_timeout_s, woken = SILENT_S, False

    def __init__(self, peer: int) -> None:
        self.peer, self.control, self.bulk = peer, f"control {peer}", f"bulk {peer}"
        self.traffic, self.arrived = Traffic(), list[Arrival]()
        self.other: Wire | None = None

    def connect(self, peer: int, control: str, bulk: str) -> None:
        self.arrived.append(LinkUp(peer))

    def send(self, peer: int, message: Message, payload: Payload | None = None) -> bool:
        self.other.arrived.append(Received(self.peer, 0, message, payload))
        return True

    def poll(
        self, timeout_s: float, wake: Sequence[int] = (), awake_s: float = 0.0
    ) -> list[Arrival]:
        arrived, self.arrived = self.arrived, []
        return arrived

    def close(self, linger_s: float = 0.0) -> None:
        if self.other is not None:
            self.other.arrived.append(LinkDown(self.peer, "closed"))
            self.other.other = None


class Pair:
    """Peers 0 and 1, linked both ways, on a clock of their own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.inner = [Wire(peer) for peer in (0, 1)]
        self.inner[0].other, self.inner[1].other = self.inner[1], self.inner[0]
        self.ends = [FaultyTransport(inner, 1, lambda: self.now) for inner in self.inner]
        for here, there in ((0, 1), (1, 0)):
            self.ends[here].connect(there, self.ends[there].control, self.ends[there].bulk)
        assert self.heard(0) == [LinkUp(1)]
        assert self.heard(1) == [LinkUp(0)]

    def heard(self, at: int) -> list[Arrival]:
        return self.ends[at].poll(0.0)

    def messages(self, at: int) -> list[Message]:
        return [arrival.message for arrival in self.heard(at) if isinstance(arrival, Received)]


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    for end in pair.ends:
        end.close()


def test_nothing_passes_a_cut_on_either_lane_and_nobody_is_told(pair: Pair):
    update = Update(b"lineage1", 0, 0, 0, b"", 1, None)
    for end in pair.ends:
        end.fail({0: LinkCondition(True, True), 1: LinkCondition(True, True)})
    assert pair.ends[0].send(1, Ping(1, 1, ())), "who sends into a cut hears nothing of it"
    assert pair.ends[0].send(1, update, Payload(np.zeros(2, np.float32), 8))
    assert pair.ends[0].traffic.dropped == {"cut": 2}
    pair.inner[0].send(1, Ping(2, 1, ()))  # left before the cut, arrives after it
    assert pair.heard(1) == []
    assert pair.ends[1].traffic.dropped == {"cut": 1}


def test_a_cut_shows_when_heartbeats_are_missed_and_its_mending_a_little_later(pair: Pair):
    pair.ends[0].fail({1: LinkCondition(True, True)})
    pair.now += SILENT_S - 0.01
    assert pair.heard(0) == []
    pair.now += 0.02
    assert [type(arrival) for arrival in pair.heard(0)] == [LinkDown]
    assert pair.heard(0) == []
    pair.ends[0].fail({})
    assert pair.heard(0) == []
    pair.now += RECONNECT_S + 0.01
    assert pair.heard(0) == [LinkUp(1)]
    pair.ends[1].send(0, Ping(3, 0, ()))
    assert pair.messages(0) == [Ping(3, 0, ())]


def test_a_cut_that_is_shorter_than_a_heartbeat_does_not_show(pair: Pair):
    pair.ends[0].fail({1: LinkCondition(True, True)})
    pair.now += SILENT_S / 2
    pair.ends[0].fail({})
    pair.now += 10.0
    assert pair.heard(0) == []


def test_one_that_dies_behind_a_cut_does_not_come_back_when_it_is_mended(pair: Pair):
    pair.ends[0].fail({1: LinkCondition(True, True)})
    pair.now += SILENT_S + 0.01
    pair.heard(0)
    pair.ends[1].close()
    assert pair.heard(0) == []
    pair.ends[0].fail({})
    pair.now += 10.0
    assert pair.heard(0) == []


def test_one_that_dies_behind_a_short_cut_is_told_as_down_once(pair: Pair):
    pair.ends[0].fail({1: LinkCondition(True, True)})
    pair.ends[1].close()
    assert pair.heard(0) == [], "the end of a connection does not come through a cut"
    pair.ends[0].fail({})
    pair.now += RECONNECT_S + 0.01
    assert [type(arrival) for arrival in pair.heard(0)] == [LinkDown]


def test_a_cut_in_one_direction_lets_the_other_through(pair: Pair):
    pair.ends[0].fail({1: LinkCondition(mute=True)})
    pair.ends[0].send(1, Ping(1, 1, ()))
    pair.ends[1].send(0, Ping(2, 0, ()))
    pair.now += 10.0
    assert pair.heard(1) == []
    assert pair.messages(0) == [Ping(2, 0, ())]
    assert pair.heard(0) == [], "what comes is all that heartbeats look at"


def test_what_is_held_up_comes_in_order_and_what_is_lost_does_not(pair: Pair):
    pair.ends[1].fail({0: LinkCondition(delay_s=0.5)})
    sent = [Ping(number, 1, ()) for number in range(20)]
    for ping in sent:
        pair.ends[0].send(1, ping)
    at_once = pair.messages(1)
    assert len(at_once) < 20
    pair.now += 0.5
    assert at_once + pair.messages(1) == sent
    pair.ends[1].fail({0: LinkCondition(loss=0.5)})
    for ping in sent:
        pair.ends[0].send(1, ping)
    come = pair.messages(1)
    assert 0 < len(come) < 20
    assert come == [ping for ping in sent if ping in come]


def test_payloads_trickle_and_all_else_gets_through(pair: Pair):
    """8 bytes each, at 4 bytes a second: two seconds for each, one after the other, and it is told
    how much has come."""
    pair.ends[1].fail({0: LinkCondition(bytes_per_s=4.0)})
    updates = [Update(b"lineage1", 0, number, 0, b"", 1, None) for number in (1, 2)]
    for each in updates:
        pair.ends[0].send(1, each, Payload(np.zeros(2, np.float32), 8))
    pair.ends[0].send(1, Ping(1, 1, ()))
    assert pair.messages(1) == [Ping(1, 1, ())]
    pair.now += 1.0
    assert [
        (news.received, news.nbytes, news.message)
        for news in pair.heard(1)
        if isinstance(news, Arriving)
    ] == [(4, 8, updates[0])]
    pair.now += 1.0
    assert pair.messages(1) == updates[:1]
    pair.now += 1.9
    assert pair.messages(1) == []
    pair.ends[1].fail({})
    assert pair.messages(1) == updates[1:], "once it is over, what is left gets through at once"


def test_a_payload_is_delayed_and_then_trickles(pair: Pair):
    pair.ends[1].fail({0: LinkCondition(delay_s=4.0, bytes_per_s=4.0)})
    update = Update(b"lineage1", 0, 1, 0, b"", 1, None)
    pair.ends[0].send(1, update, Payload(np.zeros(2, np.float32), 8))  # 2 s at its rate
    assert pair.messages(1) == []
    pair.now += 2.0
    assert pair.messages(1) == [], "it came to the narrow part after its delay"
    pair.now += 2.0
    assert pair.messages(1) == [update]


def test_a_poll_waits_for_a_trickling_payload_no_longer_than_it_takes(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a link of any rate would be late by up to a step of the sieve's clock."""
    waited: list[float] = []

    def poll(timeout_s: float, wake: object, awake_s: float) -> list[Arrival]:
        waited.append(timeout_s)
        return []

    pair.ends[1].fail({0: LinkCondition(bytes_per_s=1000.0)})
    pair.ends[0].send(
        1, Update(b"lineage1", 0, 1, 0, b"", 1, None), Payload(np.zeros(2, np.float32), 8)
    )
    assert pair.messages(1) == []
    monkeypatch.setattr(pair.inner[1], "poll", poll)
    pair.now += 0.005
    pair.ends[1].poll(1.0)
    assert waited == [pytest.approx(0.003)]


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        (Partition(((0, 1, 2, 3, 4), (5, 6, 7)), 20.0, 10.0), "partition:0-4|5-7@20s+10s"),
        (Partition(((0, 2), (1,)), 1.5, 60.0, one_way=True), "partition:0,2>1@1.5s+60s"),
        (Ring((0, 1, 2, 3), 1.0, 2.0), "ring:0-3@1s+2s"),
        (Flap((0, 3), 20.0, 10.0, 0.5), "flap:0,3*500ms@20s+10s"),
        (Loss(0.2, 1.0, 1.0), "loss:all*0.2@1s+1s"),
        (Loss(0.2, 1.0, 1.0, (4, 2)), "loss:4,2*0.2@1s+1s"),
        (Delay(0.05, 1.0, 1.0, (5,)), "delay:5*50ms@1s+1s"),
        (Trickle((5, 6), 1000.0, 1.0, 1.0), "trickle:5,6*1000@1s+1s"),
    ],
)
def test_what_befalls_the_network_has_a_word(fault: LinkFault, word: str):
    assert str(fault) == word
    assert parse(word).faults == (fault,)


def test_a_rate_of_nothing_is_refused():
    with pytest.raises(BadFault, match="a rate of 0 bytes a second"):
        parse("trickle:5*0@1s+1s")


def test_both_ends_of_a_cut_know_of_it_and_a_bridge_does_not():
    cut = parse("partition:0,1|3@0s+1s").faults
    assert links_at(0, range(4), cut) == {3: LinkCondition(True, True)}
    assert links_at(3, range(4), cut) == {
        0: LinkCondition(True, True),
        1: LinkCondition(True, True),
    }
    assert links_at(2, range(4), cut) == {}
    one_way = parse("partition:0,1>3@0s+1s").faults
    assert links_at(0, range(4), one_way) == {3: LinkCondition(mute=True)}
    assert links_at(3, range(4), one_way) == {
        0: LinkCondition(deaf=True),
        1: LinkCondition(deaf=True),
    }
    trickle = parse("trickle:0*100@0s+1s").faults
    assert links_at(1, range(4), trickle) == {0: LinkCondition(bytes_per_s=100.0)}
    assert links_at(0, range(4), trickle) == {}
    ring = parse("ring:0-3@0s+1s").faults
    assert links_at(1, range(4), ring) == {3: LinkCondition(True, True)}


def test_of_several_faults_on_a_link_the_worst_counts():
    faults = parse(
        ["loss:all*0.2@0s+1s", "loss:1*0.5@0s+1s", "delay:2*50ms@0s+1s", "flap:0,3*1s@0s+1s"]
    ).faults
    assert links_at(0, range(4), faults) == {
        1: LinkCondition(loss=0.5),
        2: LinkCondition(loss=0.2, delay_s=0.05),
        3: LinkCondition(True, True, loss=0.2),
    }
