"""What the simulated network and machines can do to peers,
beyond what the driver's own tests say."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from echo import Echo, echo_swarm

from gossip.core import events
from gossip.core.events import Effect, Event
from gossip.core.messages import Hello, PeerId, Ping, Update
from gossip.faults import Ring, severed
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.network import LinkModel, Network
from gossip_lab.simulation.world.observer import Observer
from gossip_lab.simulation.world.toy_payloads import payload_of

# --- links ----------------------------------------------------------------------------------------


def reset_link(swarm: Swarm[Any], a: int, b: int) -> None:
    """Break the connections between two peers. What is on its way is lost. They are opened again
    at once."""
    for here, there in ((a, b), (b, a)):
        lane = swarm.hosts[here].lanes.get(there)
        if lane is not None and lane.up:
            swarm._links.reset(swarm.hosts[here], there, lane)


def test_a_reset_loses_what_is_on_its_way_and_the_connection_is_opened_again() -> None:
    swarm = echo_swarm(2, network=Network(LinkModel(delay_s=(0.05, 0.05))))
    swarm.run_for(1.0)
    reset_link(swarm, 0, 1)
    swarm.run_for(0.4)
    core = swarm.cores[1]
    gap = [at for at, _ in core.received(0, since=1.0)]
    assert gap[0] >= 1.25, "nothing that was sent before arrives"
    assert swarm.counts["lost_by_reset"] >= 8
    assert [event.reason for _, event in swarm.cores[0].of(events.LinkDown, since=1.0)] == [
        "closed"
    ]
    assert [at for at, _ in swarm.cores[0].of(events.LinkUp, since=1.0)] == [pytest.approx(1.2)]


def test_messages_that_reset_their_connection_go_lost_with_it() -> None:
    swarm = echo_swarm(2, network=Network(LinkModel(reset=0.02)))
    swarm.run_for(10.0)
    downs = [event for core in swarm.cores.values() for _, event in core.of(events.LinkDown)]
    closed = [event for event in downs if event.reason == "closed"]
    assert swarm.counts["reset"] == len(closed) > 10


def test_a_message_that_is_held_up_is_overtaken_though_lanes_are_in_order() -> None:
    swarm = echo_swarm(2, network=Network(LinkModel(reorder=0.2, reorder_s=0.05)))
    swarm.run_for(5.0)
    nonces = [event.message.nonce for _, event in swarm.cores[0].received()]
    assert nonces != sorted(nonces)
    assert len(nonces) == len(set(nonces)), "none came twice"
    assert swarm.counts["reordered"] == pytest.approx(0.2 * swarm.counts["sent"], rel=0.3)


def test_a_spike_delays_a_message_and_all_behind_it() -> None:
    swarm = echo_swarm(
        2, network=Network(LinkModel(delay_s=(0.001, 0.001), spike=0.02, spike_s=0.2))
    )
    swarm.run_for(5.0)
    delays = [
        at - swarm.cores[1].sent_at[event.message.nonce] for at, event in swarm.cores[0].received(1)
    ]
    assert max(delays) > 0.05
    assert sorted(delays)[len(delays) // 4] < 0.002
    nonces = [event.message.nonce for _, event in swarm.cores[0].received()]
    assert nonces == sorted(nonces)


def bulk_swarm(model: LinkModel, elements: int = 2500) -> tuple[Swarm[Echo], list[Effect]]:
    """Two peers of which the first sends an update in answer to its next event,
    once for each entry of the list."""
    swarm = echo_swarm(2, network=Network(model))
    swarm.run_for(1.0)
    update = Update(b"l" * 8, 0, 0, 0, b"", 1, None)
    return swarm, [events.Send(1, update, payload_of(np.ones(elements, np.float32)))]


def payloads(swarm: Swarm[Echo]) -> list[Any]:
    return [event.payload for _, event in swarm.cores[1].received() if event.payload is not None]


def test_a_full_queue_drops_payloads() -> None:
    swarm, sends = bulk_swarm(LinkModel(bytes_per_s=1e6, queue_bytes=25_000))
    swarm.cores[0].extra = sends * 10
    swarm.run_for(1.0)
    assert len(payloads(swarm)) == 3  # of 10 kB each: the fourth finds 30 kB waiting
    assert swarm.counts["queue_full"] == 7


def test_a_spoiled_payload_is_detected() -> None:
    swarm, sends = bulk_swarm(LinkModel(corrupt_payload=1.0))
    swarm.cores[0].extra = sends * 3
    swarm.run_for(1.0)
    assert swarm.counts["spoiled"] == 3
    assert payloads(swarm) == []


def test_a_payload_that_the_core_does_not_expect_stays_outside() -> None:
    swarm, sends = bulk_swarm(LinkModel())
    swarm.cores[1].limit = 4 * 2500
    swarm.cores[0].extra = [
        *sends,
        events.Send(1, sends[0].message, payload_of(np.ones(2501, np.float32))),
    ]  # type: ignore[union-attr]
    swarm.run_for(1.0)
    assert [payload.nbytes for payload in payloads(swarm)] == [10_000]
    assert swarm.counts["unwanted_payload"] == 1


def test_no_damaged_header_is_believed() -> None:
    swarm = echo_swarm(2, network=Network(LinkModel(corrupt=1.0)))
    swarm.run_for(5.0)
    assert swarm.counts["malformed"] == swarm.counts["corrupted"] > 500
    assert swarm.cores[0].received() + swarm.cores[1].received() == []


def test_a_one_way_partition_and_a_ring_cut_what_they_say() -> None:
    network = Network()
    network.partition((0, 1), (2,), one_way=True)
    assert list(network.cuts) == [(0, 2), (1, 2)]
    network.heal()
    network.cut(severed(Ring(tuple(range(5)), 0.0, 1.0)))
    assert not any(network.is_cut((i, (i + 1) % 5)) for i in range(5))
    assert sum(network.is_cut((0, other)) for other in range(5)) == 2
    network.heal()
    network.partition((0, 1), (3, 4))  # 2 is a bridge
    assert not network.is_cut((0, 2))
    assert network.is_cut((4, 1))


def test_a_fault_on_one_link_leaves_the_luck_of_the_others_as_it_was() -> None:
    def arrivals(network: Network) -> list[float]:
        swarm = echo_swarm(3, network=network)
        swarm.run_for(2.0)
        return [at for at, _ in swarm.cores[2].received(1)]

    spoilt = Network()
    spoilt.shape([(0, 2), (0, 1)], loss=0.5, duplicate=0.5, corrupt=0.1)
    assert arrivals(Network()) == arrivals(spoilt)


# --- machines -------------------------------------------------------------------------------------


def test_a_fast_clock_makes_a_peer_do_more_and_the_timers_that_are_set_follow_it() -> None:
    swarm = echo_swarm(2)
    swarm.run_for(1.0)
    before = len(swarm.cores[0].of(events.TimerFired))
    swarm.drift(0, 1.5)
    swarm.run_for(1.0)
    assert len(swarm.cores[0].of(events.TimerFired)) - before == pytest.approx(150, abs=2)
    assert swarm.cores[0].seen[-1][0] == pytest.approx(2.5, abs=0.02), "it is told its own time"
    swarm.cores[0].extra = [events.SetTimer(10_000, 3.5)]
    swarm.run_for(0.02)
    swarm.drift(0, 0.1)
    swarm.run_for(5.0)
    assert not [e for _, e in swarm.cores[0].of(events.TimerFired) if e.token == 10_000]
    swarm.run_for(5.0)
    assert [e for _, e in swarm.cores[0].of(events.TimerFired) if e.token == 10_000]


def test_late_timers_fire_late_and_nothing_else_is() -> None:
    swarm = echo_swarm(2)
    swarm.make_timers_late(0, 0.09)
    swarm.run_for(2.0)
    # one in 10 + 90 ms
    assert len(swarm.cores[0].of(events.TimerFired)) == pytest.approx(20, abs=1)
    assert len(swarm.cores[0].received()) == pytest.approx(200, abs=10)


def test_a_slow_node_handles_its_events_one_after_the_other() -> None:
    swarm = echo_swarm(2)
    swarm.slow_down(0, 3.0, handling_s=0.02)
    swarm.run_for(2.0)
    times = [at for at, _ in swarm.cores[0].seen]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times[2:])]
    assert min(gaps) == pytest.approx(0.02)
    nonces = [event.message.nonce for _, event in swarm.cores[0].received()]
    assert nonces == sorted(nonces)
    assert len(times) <= 101 < 150 < len(swarm.cores[1].seen), "50 in a second, however many wait"


def test_a_short_stop_goes_unnoticed_as_in_a_node() -> None:
    swarm = echo_swarm(2)
    swarm.run_for(1.0)
    swarm.pause_for(0, 0.15)
    swarm.run_for(1.0)
    assert not swarm.cores[0].of(events.ClockJumped)
    swarm.pause_for(0, 0.25)
    swarm.run_for(1.0)
    assert len(swarm.cores[0].of(events.ClockJumped)) == 1


# --- moments --------------------------------------------------------------------------------------


class Diary(Observer):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_start(self, swarm: Swarm[Any], peer: PeerId) -> None:
        self.lines.append("start")

    def on_event(self, swarm: Swarm[Any], peer: PeerId, event: Event) -> None:
        self.lines.append(f"event {type(event).__name__}")

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
        self.lines.append(f"effect {type(effect).__name__} {len(swarm.hosts[peer].timers)}")

    def after_event(self, swarm: Swarm[Any], peer: PeerId, event: Event) -> None:
        self.lines.append(f"after {len(swarm.hosts[peer].timers)}")

    def on_crash(self, swarm: Swarm[Any], peer: PeerId) -> None:
        self.lines.append(f"crash with {len(swarm.hosts[peer].timers)}")


def test_observers_see_each_moment_in_its_order() -> None:
    swarm, diary = echo_swarm(1), Diary()
    swarm.hooks.append(diary)
    swarm.run_for(0.06)
    assert diary.lines[:4] == ["start", "event Started", "effect SetTimer 0", "after 1"]
    assert diary.lines[4:7] == ["event TimerFired", "effect SetTimer 0", "after 1"]
    swarm.crash(0)
    assert diary.lines[-1] == "crash with 1"
    swarm.hooks.remove(diary)
    swarm.restart(0)
    swarm.run_for(0.1)
    assert diary.lines[-1] == "crash with 1"


# --- bytes ----------------------------------------------------------------------------------------


def test_every_message_travels_as_bytes_and_equal_bytes_are_parsed_once() -> None:
    swarm = echo_swarm(4)
    swarm.run_for(0.5)
    hello = Hello(b"l", b"", b"", 0, "leaving", "a", "b")
    swarm.cores[0].extra = [events.Send(peer, hello) for peer in (1, 2, 3)]
    swarm.run_for(0.1)
    got = [
        event.message
        for peer in (1, 2, 3)
        for _, event in swarm.cores[peer].received(0)
        if event.message == hello
    ]
    assert len(got) == 3
    assert got[0] is not hello, "it was encoded and decoded"
    assert got[0] is got[1] is got[2]
    assert isinstance(swarm.cores[1].received()[0][1].message, Ping)


def test_a_timer_that_is_cancelled_while_a_slow_node_has_no_time_for_it_does_not_fire() -> None:
    swarm = echo_swarm(1)
    swarm.run_for(0.2)
    swarm.slow_down(0, 1.0, handling_s=0.05)
    host = swarm.hosts[0]
    for token in (70, 71):
        swarm.dispatcher.set_timer(host, token, swarm.now + 0.01 * (token - 69))
    for _ in range(3):
        swarm.inject(0, events.TrainerProgress(0, 0.0))
    swarm.run_for(0.03)
    assert {70, 71} <= {
        event.token for event, _ in host.waiting if isinstance(event, events.TimerFired)
    }
    swarm.dispatcher._carry_out[events.CancelTimer](host, events.CancelTimer(70))
    swarm.run_for(0.5)
    fired = [event.token for _, event in swarm.cores[0].of(events.TimerFired)]
    assert 71 in fired
    assert 70 not in fired
