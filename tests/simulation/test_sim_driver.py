"""The virtual-clock driver does what a node and a network do, and the same for the same seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checked_swarm import OnEffect
from echo import echo_swarm

from gossip.core import events
from gossip.core.events import Effect, Event
from gossip.core.messages import Gossip, Rumor, Update
from gossip.vectors import payload_digest
from gossip_lab.simulation.world.driver import Swarm, address
from gossip_lab.simulation.world.network import LinkModel, Network
from gossip_lab.simulation.world.toy_model import OWN_BYTES
from gossip_lab.simulation.world.toy_payloads import payload_of
from gossip_lab.simulation.world.toy_trainer import ToyTrainer


def test_a_crash_closes_the_others_connections_a_moment_later_and_then_nothing_listens() -> None:
    swarm = echo_swarm(3)
    swarm.run_for(1.0)
    swarm.crash(2)
    swarm.run_for(1.0)
    downs = swarm.cores[0].of(events.LinkDown, since=1.0)
    assert [event.reason for _, event in downs] == ["closed", "refused"]  # type: ignore[attr-defined]
    assert 1.001 <= downs[0][0] <= 1.003
    assert not swarm.cores[2].of(events.TimerFired, since=1.0)


def test_data_of_a_dead_peer_may_come_after_its_disconnection() -> None:
    """docs/design_notes.md N16."""
    swarm = echo_swarm(3, network=Network(LinkModel(delay_s=(0.05, 0.05))))
    swarm.run_for(1.0)
    swarm.crash(2)
    swarm.run_for(1.0)
    core = swarm.cores[0]
    (closed_at, _), *_ = core.of(events.LinkDown, since=1.0)
    assert core.received(2, since=closed_at)


def test_a_paused_peer_gets_its_input_then_the_jump_then_its_timers() -> None:
    swarm = echo_swarm(3, network=Network(heartbeat_s=None))
    swarm.run_for(1.0)
    swarm.pause_for(1, 0.5)
    swarm.run_for(0.5)
    after = [event for at, event in swarm.cores[1].seen if at == pytest.approx(1.5)]
    kinds = [type(event).__name__ for event in after]
    jump = kinds.index("ClockJumped")
    assert set(kinds[:jump]) == {"Received"}
    assert kinds[jump:] == ["ClockJumped", "TimerFired"]
    assert after[jump].late_s == pytest.approx(0.5)  # type: ignore[union-attr]


def test_links_to_a_paused_peer_time_out_and_come_back() -> None:
    swarm = echo_swarm(3)
    swarm.run_for(1.0)
    swarm.pause_for(1, 2.0)
    swarm.run_for(3.0)
    (down_at, down), *_ = swarm.cores[0].of(events.LinkDown, since=1.0)
    assert down == events.LinkDown(1, "timeout")
    assert 1.3 <= down_at <= 1.4
    assert swarm.cores[0].of(events.LinkUp, since=3.0)


def test_a_peer_that_is_being_started_is_not_started_twice() -> None:
    """Seed 972718: its node died in the moment in which its trainer was killed,
    and two launchers had started it."""
    swarm = echo_swarm(3)
    swarm.run_for(0.05)
    swarm.crash(1)
    swarm.restart(1, 0.02)
    swarm.restart(1, 0.01)
    swarm.run_for(0.1)
    assert (swarm.hosts[1].incarnation, len(swarm.past)) == (1, 1)


def test_a_restarted_peer_has_another_address_and_gets_no_message_of_its_former_life() -> None:
    swarm = echo_swarm(3, network=Network(LinkModel(delay_s=(0.05, 0.05))))
    swarm.run_for(1.0)
    swarm.restart(1, 0.01)
    swarm.run_for(0.5)
    assert swarm.cores[1].incarnation == 1
    assert not swarm.cores[1].of(events.Received)
    assert swarm.counts["gone"] > 0
    assert address(1, 0) != address(1, 1)
    assert len(swarm.past) == 1


@pytest.mark.parametrize("both_ways", [True, False])
def test_a_cut_link_carries_nothing_in_the_directions_that_are_cut(both_ways: bool) -> None:
    swarm = echo_swarm(3, network=Network(heartbeat_s=None))
    swarm.run_for(1.0)
    swarm.network.cut([(0, 1), (1, 0)][: 1 + both_ways])
    swarm.run_for(1.0)

    def heard(to: int, sender: int) -> int:
        return len(swarm.cores[to].received(sender, since=1.01))

    assert heard(1, 0) == 0
    assert (heard(0, 1) == 0) == both_ways
    assert heard(2, 0) > 0
    swarm.network.heal()
    swarm.run_for(1.0)
    assert heard(1, 0) > 0


def test_a_lane_is_first_in_first_out_unless_asked_otherwise() -> None:
    def nonces(fifo: bool) -> list[int]:
        swarm = echo_swarm(2, network=Network(LinkModel(delay_s=(0.0, 0.1)), fifo=fifo))
        swarm.run_for(2.0)
        return [event.message.nonce for _, event in swarm.cores[0].received()]

    assert nonces(True) == sorted(nonces(True))
    assert nonces(False) != sorted(nonces(False))


def test_loss_duplication_and_corruption_happen_about_as_often_as_asked() -> None:
    swarm = echo_swarm(2, network=Network(LinkModel(loss=0.2, duplicate=0.1, corrupt=0.05)))
    swarm.run_for(10.0)
    sent = swarm.counts["sent"] - swarm.counts["no_link"]
    assert swarm.counts["lost"] == pytest.approx(0.2 * sent, rel=0.2)
    assert swarm.counts["corrupted"] == pytest.approx(0.05 * sent, rel=0.4)
    assert swarm.counts["malformed"] + swarm.counts["foreign_run"] > 0


def test_payloads_take_their_time_on_a_slow_link() -> None:
    swarm = echo_swarm(2, network=Network(LinkModel(bytes_per_s=1e6)))
    swarm.run_for(1.0)
    swarm.cores[1].limit = 100_000
    update = Update(b"l" * 8, 0, 0, 0, b"", 1, None)
    swarm.cores[0].extra = [events.Send(1, update, payload_of(np.zeros(25_000, np.float32)))] * 2
    swarm.run_for(0.5)
    times = [at for at, event in swarm.cores[1].received() if event.payload is not None]
    assert times[0] == pytest.approx(1.1, abs=0.02)
    assert times[1] - times[0] == pytest.approx(0.1, abs=0.01)


def test_nothing_may_follow_a_halt_and_a_halted_peer_is_gone_for_the_others() -> None:
    swarm = echo_swarm(3)
    swarm.run_for(0.5)
    swarm.cores[0].extra = [events.Halt("done")]
    swarm.cores[0].pinging = False
    swarm.run_for(0.5)
    assert swarm.hosts[0].halt == events.Halt("done")
    assert swarm.cores[1].of(events.LinkDown, since=0.5)
    swarm.cores[1].extra = [events.Halt("done"), events.Disconnect(2)]
    with pytest.raises(AssertionError, match="after it halted"):
        swarm.run_for(0.5)


def test_a_peer_can_be_killed_between_two_effects() -> None:
    swarm = echo_swarm(3)
    swarm.run_for(0.5)
    said = Gossip((Rumor(0, "left", 0, "", "", 0),))

    def kill_at_second(peer: int, effect: Effect) -> None:
        if isinstance(effect, events.Send) and effect.message is said and effect.peer == 2:
            swarm.crash(peer)

    swarm.hooks.append(OnEffect(kill_at_second))
    swarm.cores[0].extra = [events.Send(1, said), events.Send(2, said)]
    swarm.run_for(0.5)
    got = [[e for _, e in swarm.cores[p].received() if e.message == said] for p in (1, 2)]
    assert list(map(len, got)) == [1, 0]


# --- the trainer ----------------------------------------------------------------------------------


class Solo:
    """Runs rounds on its own, which is all that a trainer needs."""

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def handle(self, event: Event, now: float) -> list[Effect]:
        self.seen.append(event)
        match event:
            case events.Prepared():
                return [events.StartRound(0, None)]
            case events.Contributed(round_id, samples, payloads):
                rows = (events.Row(0, payloads[0], samples),)
                return [events.Aggregate(round_id, round_id, 0, rows, 0)]
            case events.Aggregated(ticket, payload):
                assert payload is not None
                return [events.Apply(ticket, (payload,))]
            case events.Applied(round_id):
                return (
                    [events.TakeSnapshot()]
                    if round_id == 20
                    else [events.StartRound(round_id + 1, None)]
                )
        return []

    def of(self, *kinds: type) -> list[Any]:
        return [event for event in self.seen if isinstance(event, kinds)]


def solo_swarm() -> Swarm[Solo]:
    return Swarm(
        lambda peer, life: Solo(), 1, 1, make_trainer=lambda peer, life: ToyTrainer(peer, 1)
    )


def test_a_toy_trainer_descends_and_says_what_it_applied() -> None:
    swarm = solo_swarm()
    trainer = swarm.trainer(0)
    before = trainer.distance
    core = swarm.cores[0]
    swarm.run_until(lambda: bool(core.of(events.SnapshotTaken)), 5.0)
    assert trainer.distance < 0.3 * before
    assert [round_id for round_id, _ in trainer.history.applied] == list(range(21))
    aggregated = [e.payload.digest for e in core.of(events.Aggregated)]
    assert [digest for _, digest in trainer.history.applied] == aggregated
    [taken] = core.of(events.SnapshotTaken)
    assert taken.round_id == 21
    other = ToyTrainer(1, 1, initial=5)
    assert other.digest != trainer.digest
    assert other.on_effect(events.Restore(21, taken.payload), 0.0)[0][1] == events.Restored(21)
    assert other.digest == trainer.digest == payload_digest(taken.payload.data[:-OWN_BYTES])
    wrong = payload_of(np.zeros(3, np.uint8))
    refused = other.on_effect(events.Restore(21, wrong), 0.0)[0][1]
    assert isinstance(refused, events.Restored)
    assert "3 bytes" in refused.error


def test_a_hung_trainer_answers_nothing_until_it_wakes_while_its_node_goes_on() -> None:
    swarm = solo_swarm()
    swarm.run_for(0.2)
    swarm.stop_trainer(0)
    core, answers = swarm.cores[0], (events.Contributed, events.Applied)
    done = core.of(*answers)
    swarm.run_for(1.0)
    assert core.of(*answers) == done
    assert core.of(events.TrainerProgress)[-1].age_s > 0.8
    swarm.resume_trainer(0)
    swarm.run_for(0.1)
    assert len(core.of(*answers)) > len(done)
