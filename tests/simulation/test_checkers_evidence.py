"""What a peer may conclude from what it heard: each checker of that catches a violation planted
in a real swarm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from checked_swarm import assert_sound, disturb, tamper
from test_checkers import bury_1, caught, running

from gossip.core.events import Effect, Event, Received, Send, TimerFired
from gossip.core.messages import Gossip, Rumor, StateRequest
from gossip.core.peer import Peer
from gossip.faults.world import KillTrainer
from gossip_lab.simulation.checkers import CheckerSuite, Violation
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.network import LinkModel

ACCUSED = Received(2, 0, Gossip((Rumor(1, "suspect", 0, "", "", 2),)))


def judged(swarm: Swarm[Peer], invariant: str) -> int:
    [suite] = [hook for hook in swarm.hooks if isinstance(hook, CheckerSuite)]
    return suite.judged()[invariant]


def accuse_1(core: Peer, now: float) -> None:
    core.membership.transitions.accuse(core.membership.members[1], core.local, now, own=True)


def at_a_timer(swarm: Swarm[Peer], act: Callable[[Peer, float], Any]) -> None:
    """Peer 0 does it once, when a timer fires: a probe's verdict, for all that others can tell."""
    done: list[bool] = []

    def change(event: Event, effects: list[Effect]) -> None:
        if isinstance(event, TimerFired) and not done:
            done.append(True)
            act(swarm.hosts[0].core, swarm.now)

    tamper(swarm, 0, change)


def mute(swarm: Swarm[Peer]) -> None:
    """Peer 1 refutes nothing any more, though it goes on answering."""
    swarm.hosts[1].core.membership.rumor_handler._about_me = lambda rumor, sender, now: []  # type: ignore[method-assign]


def just_disturbed() -> Swarm[Peer]:
    """Peer 1, which refutes nothing, was cut off from peer 3 a moment ago: that somebody takes it
    for dead may be."""
    swarm = running("S6")
    swarm.network.cut([(1, 3), (3, 1)])
    swarm.run_for(0.01)
    swarm.network.heal()
    swarm.run_for(0.2)
    mute(swarm)
    return swarm


def test_s6_a_death_at_a_single_word_is_caught() -> None:
    swarm = just_disturbed()
    disturb(swarm, 0, bury_1)
    with pytest.raises(Violation, match=r"S6 .* dead on claims of 1 and without a failed probe"):
        swarm.inject(0, ACCUSED)


def test_s6_the_death_of_one_that_has_answered_since_is_caught() -> None:
    swarm = just_disturbed()
    swarm.inject(0, ACCUSED)
    swarm.inject(0, Received(3, 0, Gossip((Rumor(1, "suspect", 0, "", "", 3),))))
    swarm.run_for(0.05)
    disturb(swarm, 0, bury_1)
    assert "which has sent it an ack since the accusation" in caught(swarm, "S6").text


def test_s6_two_accusers_are_enough_for_a_death_where_no_answer_comes() -> None:
    swarm = running("S6")
    before = judged(swarm, "S6")
    swarm.crash(1)
    swarm.run_for(4.0)
    assert all(swarm.hosts[peer].core.membership.members[1].status == "dead" for peer in (0, 2, 3))
    assert judged(swarm, "S6") > before


def test_s6_an_accusation_before_there_was_time_to_connect_is_caught() -> None:
    swarm = running("S6")

    def learn_and_accuse(core: Peer, now: float) -> None:
        member = core.membership.members[1]
        member.known_since, member.heard_at = now - 0.25, float("-inf")
        accuse_1(core, now)

    at_a_timer(swarm, learn_and_accuse)
    assert "known for only 0.250 s, of not replying: it has 2.0 s" in caught(swarm, "S6").text


def test_s6_the_accusation_of_one_that_nothing_has_disturbed_is_caught() -> None:
    swarm = running("S6", until_s=4.0)
    at_a_timer(swarm, accuse_1)
    assert "over an undisturbed link" in caught(swarm, "S6").text


def test_s6_the_accusation_of_one_that_others_reach_is_caught() -> None:
    swarm = running("S6", until_s=4.0)
    swarm.network.cut([(0, 1), (1, 0)])
    swarm.run_for(3.0)
    at_a_timer(swarm, accuse_1)
    assert "through [2, 3]" in caught(swarm, "S6").text


@pytest.mark.parametrize(
    "disturbed",
    [
        lambda swarm: swarm.network.partition({1}, {0, 2, 3}),
        lambda swarm: (setattr(swarm.network, "default", LinkModel(loss=0.2)), swarm.run_for(0.3)),
        lambda swarm: setattr(swarm.network, "default", LinkModel(delay_s=(0.0, 0.1))),
        lambda swarm: swarm.make_timers_late(0, 0.01),
        lambda swarm: swarm.pause_for(1, 0.03),
        lambda swarm: (
            swarm.network.partition({1}, {0, 2, 3}),
            swarm.run_for(0.25),
            swarm.network.heal(),
        ),
    ],
)
def test_s6_who_was_disturbed_may_be_accused(disturbed: Callable[[Swarm[Peer]], Any]) -> None:
    swarm = running("S6", until_s=4.0)
    disturbed(swarm)
    swarm.run_for(0.1)
    at_a_timer(swarm, accuse_1)
    swarm.run_for(0.15)
    assert swarm.hosts[0].core.membership.standing == 0
    assert swarm.reports(0, "suspect")


def test_s6_an_ack_behind_a_message_that_spikes_is_late_though_it_has_no_effect_itself() -> None:
    """Peer 1 probes more than a second later, when the link has long had no fault."""
    swarm = running("S6", until_s=4.9, n=2, probe_interval_s=2.0)
    swarm.network.shape([(0, 1)], spike=1.0, spike_s=4.0)
    swarm.run_for(0.5)
    assert swarm.counts["spiked"]
    swarm.network.models.clear()
    swarm.run_for(4.0)
    assert swarm.reports(1, "suspect")


FAREWELL = Gossip((Rumor(1, "left", 0, "", "", 1),))


def test_one_of_whom_a_liar_says_that_it_left_is_back_with_its_next_probe() -> None:
    swarm = running("S6", until_s=4.0)
    for peer in (0, 2, 3):
        swarm.inject(peer, Received(3 if peer != 3 else 2, 0, FAREWELL))
    assert all(swarm.hosts[peer].core.membership.members[1].status == "left" for peer in (0, 2, 3))
    swarm.run_for(0.3)
    assert all(swarm.hosts[peer].core.membership.members[1].status == "alive" for peer in (0, 2, 3))


def test_l3_one_that_is_relied_on_though_its_connection_has_closed_is_caught() -> None:
    swarm = running("L3")
    swarm.hosts[0].core.membership.on_link = lambda peer, up, reason, now: []  # type: ignore[method-assign]
    swarm.crash(1)
    assert (
        "its connection to peer 1 closed, but it does not skip that peer"
        in caught(swarm, "L3").text
    )


def test_s12_one_that_asks_the_dead_for_their_state_is_caught() -> None:
    swarm = running("S12", compute_s=0.5)
    swarm.crash(1)
    swarm.run_for(4.0)
    tamper(
        swarm,
        0,
        lambda event, effects: [*effects, Send(1, StateRequest(b"lineage!", 1, 0, "state"))],
    )
    assert "requests the state of peer 1, which is dead" in caught(swarm, "S12").text


def test_s12_one_that_waits_for_a_donor_whose_connection_closed_is_caught() -> None:
    swarm = running("S12", compute_s=0.5)
    swarm.restart(3)
    taker = swarm.hosts[3].core
    swarm.run_until(lambda: taker.recovery.stage == "asking", 3.0)
    assert taker.recovery.donor is not None
    taker.recovery.on_view_change = lambda now: []  # type: ignore[method-assign]
    swarm.crash(taker.recovery.donor)
    assert "waits for the state of peer" in caught(swarm, "S12").text


def test_a_trainer_that_dies_soon_after_each_start_is_buried_each_time_at_its_own_word() -> None:
    again_and_again = tuple(KillTrainer(3, 4.0 + 0.6 * i, 0.05) for i in range(4))
    outcome = assert_sound(
        Schedule(
            2, peers=4, faults=again_and_again, active_s=8.0, duration_s=14.0, start_timeout_s=6.0
        )
    )
    assert outcome.struck["kill_trainer"] == 4
    assert outcome.reports["dead"] >= 3 * 4 - 1
