"""Each rule of the membership, one test: what one peer does about what it hears."""

from __future__ import annotations

import random
from typing import Any

import pytest
from member_bench import NEXT_LIFE, MemberBench, rumor

from gossip.core import LAST_WORDS_S, REPLY_S
from gossip.core.events import Connect, Disconnect
from gossip.core.membership.swim import Membership
from gossip.core.membership.table import REFUTATIONS, Member
from gossip.core.messages import (
    ROUND_MAX,
    Ack,
    Gossip,
    Message,
    Nack,
    Ping,
    PingRequest,
    Progress,
    PushPull,
    Rumor,
)
from gossip.core.settings import LOADED_VERDICT_S, PROBE_TIMEOUT_MAX_S, MembershipSettings
from gossip.core.timers import Timers

# --- meeting --------------------------------------------------------------------------------------


def test_an_address_from_a_list_is_connected_to_but_has_not_joined_before_it_speaks() -> None:
    bench = MemberBench(3, meet=False)
    assert bench.connects == [Connect(1, "c1", "b1"), Connect(2, "c2", "b2")]
    assert bench.core.view.alive() == (0,)
    assert bench.core.view.skip_reason(1) == "connecting"
    bench.advance(10.0)
    assert bench.changes() == []  # nor is it accused
    bench.link(1)
    bench.say(1, Gossip(()))
    assert bench.changes() == [(1, "joined")]
    assert bench.core.view.alive() == (0, 1)
    assert bench.core.view.skip_reason(1) == ""


def test_a_hello_from_one_whose_address_was_unknown_makes_it_a_member_at_once() -> None:
    core = Membership(
        Member.own(0, 0, "c0", "b0"),
        MembershipSettings(),
        Timers[Any](),
        random.Random(1),
        frozenset(range(3)),
    )
    assert core.accept_sender(2, 5, 1.0)
    assert core.learn(2, "c2", "b2", 5, 1.0) == [Connect(2, "c2", "b2")]
    assert [(c.peer, c.what) for c in core.drain()] == [(2, "joined")]
    assert core.members[2].incarnation == 5


def test_a_member_that_others_tell_of_is_connected_to() -> None:
    bench = MemberBench(4, meet=False)
    bench.core.members.pop(3)
    bench.link(1)
    bench.gossip(1, rumor(3, "alive", 0, control="c3"))
    assert bench.connects[-1] == Connect(3, "c3", "c3")
    assert (3, "joined") in bench.changes()


def test_strangers_are_dropped_however_they_come() -> None:
    bench = MemberBench(3)
    assert not bench.core.accept_sender(7, 0, 0.0)
    assert bench.core.learn(7, "x", "y", 0, 0.0) == []
    bench.gossip(1, rumor(7, "alive", 0, control="x"), rumor(2, "suspect", 0, origin=7))
    assert 7 not in bench.core.members
    assert bench.status(2) == "alive"
    assert not bench.core.accept_sender(0, 0, 0.0)  # nor is anybody else us


def test_messages_of_a_former_life_are_dropped() -> None:
    bench = MemberBench(3)
    bench.speak_again(1)
    bench.gossip(2, rumor(1, "alive", NEXT_LIFE, control="new"))
    assert not bench.core.accept_sender(1, 0, bench.now)
    assert bench.core.accept_sender(1, 1, bench.now)


# --- probing --------------------------------------------------------------------------------------


def test_everybody_is_probed_in_turn() -> None:
    bench = MemberBench(5)
    bench.advance(4 * 0.2 * 2)
    pinged = [s.peer for s in bench.sent if isinstance(s.message, Ping)]
    assert set(pinged[:4]) == set(pinged[4:8]) == {1, 2, 3, 4}


def test_a_probe_tries_twice_then_asks_three_helpers_then_accuses() -> None:
    bench = MemberBench(6)
    bench.mute = {1}
    bench.advance(3.0)
    pings = bench.sent_to(1, Ping)[:2]
    assert pings[0].nonce + 1 == pings[1].nonce  # type: ignore[union-attr]
    asked = [peer for peer, request in bench.requests() if request.nonce == pings[0].nonce]  # type: ignore[union-attr]
    assert len(set(asked)) == 3
    assert 1 not in asked
    assert (1, "suspect") in bench.changes()


def test_an_ack_that_a_helper_brings_saves_the_target() -> None:
    bench = MemberBench(4)
    bench.mute = {1}
    while not bench.requests():
        bench.advance(0.01)
    helper, request = bench.requests()[0]
    bench.say(helper, Ack(request.nonce, 1, Progress(3, 40), ()))
    bench.advance(0.15)
    assert bench.changes() == []
    assert bench.core.members[1].progress == Progress(3, 40)


@pytest.mark.parametrize("sender", [2, 3])
def test_an_ack_with_a_guessed_nonce_or_unasked_is_worth_nothing(sender: int) -> None:
    bench = MemberBench(4, indirect_probes=0)
    bench.mute = {1}
    while not bench.sent_to(1, Ping):
        bench.advance(0.01)
    nonce = bench.sent_to(1, Ping)[0].nonce  # type: ignore[union-attr]
    bench.say(sender, Ack(nonce, 1, Progress(0, 0), ()))
    bench.say(1, Ack(nonce + 2, 1, Progress(0, 0), ()))
    bench.advance(0.4)
    assert (1, "suspect") in bench.changes()


@pytest.mark.parametrize("answered", [0, 1])
def test_a_round_trip_is_that_of_the_ping_that_is_answered(answered: int) -> None:
    """That of the last ping was taken: answers to the first, which came behind it, made links
    look fast that are slow, and 200 ms look dead."""
    bench = MemberBench(3, meet=False)
    bench.mute = {1}
    bench.link(1)
    sent_at: list[float] = []
    while len(sent_at) < 2:
        bench.advance(0.01)
        sent_at += [bench.now] * (len(bench.sent_to(1, Ping)) - len(sent_at))
    nonce = bench.sent_to(1, Ping)[answered].nonce  # type: ignore[union-attr]
    bench.advance(0.05)
    bench.say(1, Ack(nonce, 1, Progress(0, 0), ()))
    mean_s, _ = bench.core.prober._round_trips[1]
    assert mean_s == pytest.approx(bench.now - sent_at[answered], abs=0.011)


def test_one_that_has_not_answered_yet_is_given_a_second_and_then_what_its_link_takes() -> None:
    bench = MemberBench(3, meet=False)
    bench.link(1)
    assert bench.core.prober._timeout_s(1) == REPLY_S
    bench.advance(1.0)
    assert bench.core.prober._timeout_s(1) == pytest.approx(
        bench.settings.probe_timeout_s, abs=0.02
    )


def _answer_late(bench: MemberBench, by_s: float) -> None:
    """Peer 1 answers its next ping so much later."""
    bench.mute = {1}
    seen = len(bench.sent_to(1, Ping))
    while len(bench.sent_to(1, Ping)) == seen:
        bench.advance(0.01)
    nonce = bench.sent_to(1, Ping)[seen].nonce  # type: ignore[union-attr]
    bench.advance(by_s)
    bench.say(1, Ack(nonce, 1, Progress(0, 0), ()))


def test_one_late_answer_makes_a_link_little_more_patient() -> None:
    bench = MemberBench(3)
    bench.advance(2.0)
    usual_s = bench.core.prober._usual_s(1)
    _answer_late(bench, 3.0)
    assert usual_s < bench.core.prober._usual_s(1) < 3 * usual_s


def test_who_always_answers_late_gains_a_bounded_patience() -> None:
    bench = MemberBench(3)
    bench.advance(2.0)
    for _ in range(60):
        _answer_late(bench, 1.4 * bench.core.prober._usual_s(1))
    assert bench.core.prober._usual_s(1) == PROBE_TIMEOUT_MAX_S


def test_a_ping_is_answered_with_its_nonce_and_the_trainers_progress() -> None:
    bench = MemberBench(3)
    bench.core.set_progress(17, 0.25, bench.now)
    bench.say(2, Ping(99, 0, ()))
    (ack,) = bench.sent_to(2, Ack)
    assert (ack.nonce, ack.target, ack.progress) == (99, 0, Progress(17, 250))  # type: ignore[union-attr]


def test_a_helper_hands_on_the_ack_under_the_askers_nonce() -> None:
    bench = MemberBench(4)
    bench.say(2, PingRequest(77, 3, ()))
    bench.advance(0.01)
    (ack,) = bench.sent_to(2, Ack)
    assert (ack.nonce, ack.target, ack.progress) == (77, 3, Progress(1, 0))  # type: ignore[union-attr]
    bench.advance(0.2)
    assert not bench.sent_to(2, Nack)


def test_a_helper_that_hears_nothing_says_so_before_the_askers_time_is_up() -> None:
    bench = MemberBench(4)
    bench.mute = {3}
    bench.say(2, PingRequest(77, 3, ()))
    bench.advance(0.099)
    assert bench.sent_to(2, Nack) == [Nack(77, 3)]


def test_probes_for_others_are_bounded() -> None:
    bench = MemberBench(4)
    bench.mute = {3}
    for nonce in range(300):
        bench.say(2, PingRequest(nonce, 3, ()))
    assert len(bench.core.prober.relays) == 256
    assert len(bench.sent_to(2, Nack)) == 44
    bench.advance(1.0)
    assert not bench.core.prober.relays


def test_helpers_that_others_miss_too_say_nothing_of_our_own_ears() -> None:
    """After a mass crash all slowed their probes down, up to eightfold, and found the last victims
    of 128 after 2 s (seed 0)."""
    scores = []
    for known in (False, True):
        bench = MemberBench(5)
        bench.mute = {1, 2, 3, 4}
        if known:
            for crashed in (2, 3, 4):
                bench.say(1, Gossip((rumor(crashed, "suspect", 0, origin=1),)))
            # the second opinions on them, for which peer 1 would be asked
            bench.do(bench.core.prober.drop())
        before = bench.core.awareness.score
        bench.do(bench.core.prober.probe(bench.core.members[1], bench.now))
        bench.advance(0.21)
        scores.append(bench.core.awareness.score - before)
    assert scores[0] >= 3
    assert scores[1] == 0


# --- suspicion ------------------------------------------------------------------------------------


def test_an_accusation_skips_at_once_and_an_answer_ends_that_at_once() -> None:
    bench = MemberBench(6)
    bench.gossip(2, rumor(1, "suspect", 0, origin=3))
    assert bench.core.view.skip_reason(1) == "suspect"
    assert bench.core.view.alive() == (0, 1, 2, 3, 4, 5)
    assert bench.changes() == [(1, "suspect"), (1, "skip")]
    bench.advance(0.002)  # we asked it ourselves at once
    assert bench.core.view.skip_reason(1) == ""
    assert bench.changes() == [(1, "unskip")]
    assert bench.status(1) == "suspect"  # until it is refuted, for others may not reach it


def test_the_accused_hears_of_it_in_the_ping_that_follows() -> None:
    bench = MemberBench(6)
    bench.gossip(2, rumor(1, "suspect", 0, origin=3))
    (ping,) = bench.sent_to(1, Ping)
    assert ping.rumors[0] == Rumor(1, "suspect", 0, "c1", "b1", 3)  # type: ignore[union-attr]


@pytest.mark.parametrize("status", ["suspect", "dead", "left"])
@pytest.mark.parametrize(
    "question",
    [Ping(7, 0, ()), PingRequest(7, 0, ())],
    ids=lambda question: type(question).__name__,
)
def test_who_is_accused_or_said_to_be_gone_hears_so_with_the_answer_to_what_it_asks(
    status: str, question: Message
) -> None:
    bench = MemberBench(6)
    bench.gossip(2, rumor(1, status, 0, origin=1 if status != "suspect" else 2))
    assert bench.status(1) == status
    bench.sent.clear()
    bench.say(1, question)
    (ack,) = bench.sent_to(1, Ack)
    assert (ack.rumors[0].peer, ack.rumors[0].status) == (1, status)  # type: ignore[union-attr]


def test_a_refutation_with_a_higher_standing_ends_the_suspicion() -> None:
    bench = MemberBench(6)
    bench.mute = {1}
    bench.gossip(2, rumor(1, "suspect", 0, origin=2))
    bench.changes()
    bench.gossip(3, rumor(1, "alive", 0))
    assert bench.status(1) == "suspect"  # the same standing says nothing new
    bench.gossip(3, rumor(1, "alive", 1))
    assert bench.status(1) == "alive"
    assert bench.changes() == [(1, "unskip")]
    bench.gossip(2, rumor(1, "suspect", 0, origin=2))
    assert bench.status(1) == "alive"


def test_a_suspect_that_refutes_in_time_is_not_lost_to_a_timer_of_an_earlier_suspicion() -> None:
    """The stale timer of docs/design_notes.md N7, seen from inside."""
    bench = MemberBench(6)
    bench.mute = {1}
    for accuser in (2, 3, 4):
        bench.gossip(accuser, rumor(1, "suspect", 0, origin=accuser))
    bench.advance(0.7)
    bench.gossip(2, rumor(1, "alive", 1))
    bench.gossip(2, rumor(1, "suspect", 1, origin=2))
    bench.advance(0.2)  # the first one would have ended by now
    assert bench.status(1) == "suspect"


def test_a_suspect_that_answered_and_then_falls_silent_has_all_its_time_again() -> None:
    bench = MemberBench(6)
    for accuser in (2, 3, 4):
        bench.gossip(accuser, rumor(1, "suspect", 0, origin=accuser))
    bench.advance(5.0)  # long after the time was up, but it answers
    bench.mute = {1}
    while not (suspicion := bench.core.members[1].suspicion) or not suspicion.own:
        bench.advance(0.01)
    bench.advance(0.7)
    assert bench.status(1) == "suspect"
    bench.advance(0.2)
    assert bench.status(1) == "dead"


def test_a_refutation_leaves_no_timer_behind() -> None:
    bench = MemberBench(6)
    before = len(bench.timers)
    bench.gossip(2, rumor(1, "suspect", 0, origin=2))
    bench.advance(0.002)
    assert len(bench.timers) == before + 1
    bench.gossip(2, rumor(1, "alive", 1))
    assert len(bench.timers) == before


@pytest.mark.parametrize(("confirmers", "dies_after_s"), [((), 4.8), ((3,), 2.28), ((3, 4), 0.8)])
def test_more_confirmers_kill_sooner(confirmers: tuple[int, ...], dies_after_s: float) -> None:
    bench = MemberBench(8)
    bench.mute = {1}
    bench.do(bench.core.transitions.accuse(bench.core.members[1], 0, bench.now, own=True))
    for accuser in confirmers:
        bench.gossip(accuser, rumor(1, "suspect", 0, origin=accuser))
        bench.gossip(accuser, rumor(1, "suspect", 0, origin=accuser))  # saying it twice counts once
    bench.advance(dies_after_s - 0.02)
    assert bench.status(1) == "suspect"
    bench.advance(0.04)
    assert bench.status(1) == "dead"
    assert bench.core.view.skip_reason(1) == "dead"
    assert (1, "dead") in bench.changes()


def test_the_accused_cannot_confirm_its_own_accusation_nor_an_accuser_without_a_second_kill():
    bench = MemberBench(8, indirect_probes=0)
    bench.gossip(2, rumor(1, "suspect", 0, origin=2))
    bench.do(bench.core.prober.drop())  # our own question was never asked
    suspicion = bench.core.members[1].suspicion
    bench.gossip(2, rumor(1, "suspect", 0, origin=1))
    assert not suspicion.proven
    bench.do(bench.core.transitions.on_expiry(_expiry(bench, 1), bench.now))
    assert bench.status(1) == "suspect"
    bench.gossip(3, rumor(1, "suspect", 0, origin=3))  # the second accuser, after the time is up
    assert bench.status(1) == "dead"


def _expiry(bench: MemberBench, peer: int) -> Any:
    suspicion = bench.core.members[peer].suspicion
    assert suspicion.token is not None
    del bench.due[suspicion.token]
    return bench.timers.fire(suspicion.token)


def test_a_dead_one_in_a_table_is_only_suspected() -> None:
    bench = MemberBench(6)
    bench.mute = {1}
    for sender in (2, 3, 4):
        bench.say(sender, PushPull((rumor(1, "dead", 0, origin=sender),), reply=True))
    assert bench.status(1) == "suspect"


def test_one_that_was_dead_before_we_came_is_entered_without_noise() -> None:
    bench = MemberBench(4, meet=False)
    bench.link(2)
    bench.say(2, PushPull((rumor(1, "dead", 0, origin=3, control="c1"),), reply=True))
    assert bench.core.view.is_gone(1)
    assert bench.changes() == [(2, "joined")]


# --- death and return -----------------------------------------------------------------------------


def _kill(bench: MemberBench, peer: int) -> None:
    bench.mute.add(peer)
    for accuser in (2, 3):
        bench.gossip(
            accuser, rumor(peer, "dead", bench.core.members[peer].standing, origin=accuser)
        )
    assert bench.status(peer) == "dead"
    bench.changes()
    bench.sent.clear()


def test_the_dead_return_only_with_a_higher_standing() -> None:
    bench = MemberBench(5)
    _kill(bench, 1)
    bench.gossip(2, rumor(1, "alive", 0), rumor(1, "suspect", 0, origin=2))
    bench.say(1, Gossip(()))
    assert bench.status(1) == "dead"
    bench.gossip(2, rumor(1, "alive", 1))
    assert bench.status(1) == "alive"
    assert bench.changes() == [(1, "alive_again"), (1, "unskip")]


def test_the_dead_go_on_being_probed_and_told_of_their_death() -> None:
    bench = MemberBench(5)
    _kill(bench, 1)
    bench.advance(60.0)
    pings = bench.sent_to(1, Ping)
    assert len(pings) >= 30
    assert all(ping.rumors[0].status == "dead" for ping in pings)  # type: ignore[union-attr]


def test_a_dead_one_whose_link_comes_back_is_asked_at_once() -> None:
    bench = MemberBench(5)
    _kill(bench, 1)
    bench.link(1, up=False, reason="closed")
    bench.link(1)
    (ping,) = bench.sent_to(1, Ping)
    assert ping.rumors[0].status == "dead"  # type: ignore[union-attr]


def test_learning_of_a_later_life_from_the_seeds_is_a_return_and_of_a_former_one_is_nothing():
    bench = MemberBench(3)
    bench.do(bench.core.learn(1, "new", "new", 1, bench.now))
    assert bench.connects[-1] == Connect(1, "new", "new")
    assert (1, "alive_again") in bench.changes()
    assert bench.core.learn(1, "old", "old", 0, bench.now) == []
    assert bench.core.members[1].control == "new"


def test_an_address_does_not_change_within_a_life() -> None:
    bench = MemberBench(3)
    bench.gossip(2, rumor(1, "alive", 5, control="evil"))
    assert bench.core.members[1].control == "c1"
    assert bench.core.members[1].standing == 5


def test_one_that_left_is_not_probed_any_more_and_its_lanes_are_closed_in_the_end() -> None:
    bench = MemberBench(4)
    bench.gossip(1, rumor(1, "left", 0))
    assert bench.changes() == [(1, "left")]
    bench.sent.clear()
    bench.advance(29.0)
    assert not bench.sent_to(1)
    bench.link(1, up=False, reason="closed")
    assert bench.changes() == []
    closed = []
    bench.do = lambda effects: closed.extend(e for e in effects if isinstance(e, Disconnect))  # type: ignore[method-assign]
    bench.advance(2.0)
    assert closed == [Disconnect(1)]


# --- oneself --------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["suspect", "dead", "left"])
def test_an_accusation_of_oneself_is_refuted_to_all_with_one_more(status: str) -> None:
    bench = MemberBench(4)
    bench.gossip(2, rumor(0, status, 7, origin=3))
    assert bench.core.standing == 8
    assert bench.core.members[0].status == "alive"
    assert {s.peer for s in bench.sent if isinstance(s.message, Gossip)} == {1, 2, 3}
    assert all(r.incarnation == 8 and r.status == "alive" for r in bench.own_rumours())
    assert bench.core.awareness.score == 1


def test_one_that_missed_the_refutation_is_told_again_and_nothing_is_raised() -> None:
    bench = MemberBench(4)
    bench.gossip(2, rumor(0, "suspect", 7, origin=3))
    bench.sent.clear()
    bench.gossip(1, rumor(0, "suspect", 7, origin=3))
    assert bench.core.standing == 8
    assert [s.peer for s in bench.sent] == [1]


def test_nobody_can_make_us_flood_the_others_or_run_out_of_standing() -> None:
    bench = MemberBench(4)
    for standing in range(0, 200, 2):
        bench.gossip(2, rumor(0, "suspect", standing, origin=2))
    assert len([s for s in bench.sent if isinstance(s.message, Gossip)]) == 3
    bench.gossip(
        2, rumor(0, "suspect", REFUTATIONS - 1, origin=2), rumor(0, "dead", ROUND_MAX, origin=2)
    )
    assert bench.core.standing < 300


@pytest.mark.parametrize(
    "standing", [2**16 + 1, NEXT_LIFE + REFUTATIONS - 1, NEXT_LIFE * (2**16 + 1), ROUND_MAX]
)
def test_a_standing_far_beyond_the_known_one_is_not_believed(standing: int) -> None:
    bench = MemberBench(4)
    bench.gossip(
        2, rumor(1, "suspect", standing, origin=2), rumor(1, "alive", standing, control="evil")
    )
    assert bench.core.members[1].standing == 0
    assert bench.status(1) == "alive"


@pytest.mark.parametrize("status", ["alive", "dead", "left"])
def test_a_later_life_of_a_peer_that_is_heard_is_not_believed_until_it_speaks(status: str) -> None:
    bench = MemberBench(4)
    bench.gossip(2, rumor(1, status, NEXT_LIFE, control="evil"))
    bench.gossip(2, rumor(1, status, 7 * NEXT_LIFE, control="evil"))
    bench.say(1, Gossip(()))
    member = bench.core.members[1]
    assert (member.status, member.standing, member.control) == ("alive", 0, "c1")


def test_a_life_that_others_invented_gives_way_to_the_one_that_speaks() -> None:
    bench = MemberBench(3, meet=False)
    bench.gossip(2, rumor(1, "alive", 5 * NEXT_LIFE, control="evil"))
    assert bench.core.members[1].incarnation == 5, (
        "an address, as long as nobody else answers to that name"
    )
    bench.now += LAST_WORDS_S
    bench.say(1, Gossip(()))
    bench.do(bench.core.learn(1, "c1", "b1", 0, bench.now))  # its hello
    bench.link(1)
    member = bench.core.members[1]
    assert (member.status, member.standing, member.control, member.spoken) == (
        "alive",
        0,
        "c1",
        True,
    )
    bench.gossip(2, rumor(1, "alive", 5 * NEXT_LIFE, control="evil"))
    assert member.standing == 0


def test_a_life_that_others_invented_gives_way_to_what_the_peer_says_of_itself() -> None:
    bench = MemberBench(3, meet=False)
    bench.gossip(2, rumor(1, "alive", 5 * NEXT_LIFE, control="evil"))
    bench.now += LAST_WORDS_S
    bench.gossip(1, rumor(1, "alive", 0, control="c1"))
    member = bench.core.members[1]
    assert (member.status, member.standing, member.control) == ("alive", 0, "c1")


def test_who_was_told_false_lives_looks_where_others_know_the_peer_and_goes_back_unanswered():
    """Simulation seed 487: neither called the other where it was, and the word of those who knew
    better was not heeded."""
    bench = MemberBench(4)
    bench.link(1, up=False)
    bench.gossip(2, rumor(1, "alive", 5 * NEXT_LIFE, control="evil"))
    member = bench.core.members[1]
    bench.gossip(2, rumor(1, "alive", 0, control="c1"))
    assert bench.connects[-1].control == "evil", "a life that has just begun gets time to speak"
    bench.now += LAST_WORDS_S + 0.1
    bench.gossip(2, rumor(1, "alive", 0, control="c1"))
    assert bench.connects[-1] == Connect(1, "c1", "c1")
    assert (member.incarnation, member.control, member.linked) == (5, "evil", False), (
        "at others' word no life ends"
    )
    bench.gossip(3, rumor(1, "alive", 5 * NEXT_LIFE, control="evil"))
    assert bench.connects[-1] == Connect(1, "evil", "evil")
    bench.gossip(2, rumor(1, "alive", 0, control="c1"))
    bench.link(1)
    called = len(bench.connects)
    bench.gossip(3, rumor(1, "alive", 5 * NEXT_LIFE, control="evil"))
    assert len(bench.connects) == called, "somebody answers there"
    bench.say(1, Gossip(()))
    bench.do(bench.core.learn(1, "c1", "b1", 0, bench.now))  # its hello
    assert (member.incarnation, member.control, member.linked) == (0, "c1", True)


def test_last_words_of_a_former_life_do_not_undo_the_later_one() -> None:
    """Simulation seeds 1658 and 1706: a killed peer's messages came after the news
    of its next life."""
    bench = MemberBench(3)
    bench.link(1, up=False)
    bench.gossip(2, rumor(1, "alive", NEXT_LIFE, control="new"))
    member = bench.core.members[1]
    assert (member.incarnation, member.spoken) == (1, False)
    bench.gossip(1, rumor(1, "alive", 0, control="c1"))
    bench.do(bench.core.learn(1, "c1", "b1", 0, bench.now))
    assert (member.incarnation, member.control) == (1, "new")


def test_rumours_of_a_former_life_of_oneself_are_nothing_to_refute() -> None:
    core = Membership(
        Member.own(0, 2, "c0", "b0"),
        MembershipSettings(),
        Timers[Any](),
        random.Random(1),
        frozenset(range(3)),
    )
    core.accept_sender(1, 0, 0.0)
    core.learn(1, "c1", "b1", 0, 0.0)
    before = core.standing
    core.on_message(1, 0, Gossip((rumor(0, "dead", NEXT_LIFE + 9, origin=1),)), 0.0)
    assert core.standing == before
    assert core.incarnation == 2


def test_after_leaving_pings_are_answered_but_nobody_is_probed_and_nothing_is_refuted() -> None:
    bench = MemberBench(4)
    bench.do(bench.core.leave(bench.now))
    assert {s.peer for s in bench.sent} == {1, 2, 3}
    assert {(r.status, r.origin) for r in bench.own_rumours()} == {("left", 0)}
    bench.sent.clear()
    bench.gossip(2, rumor(0, "left", 0))
    bench.say(2, Ping(5, 0, ()))
    assert len(bench.sent_to(2, Ack)) == 1
    bench.advance(5.0)
    assert not [s for s in bench.sent if isinstance(s.message, Ping)]
    assert not bench.due  # nothing goes on for ever
    assert bench.core.leave(bench.now) == []


def test_an_own_death_is_announced_to_everybody_in_ones_own_name() -> None:
    bench = MemberBench(4)
    bench.do(bench.core.announce_own_death("the trainer is gone", bench.now))
    assert {s.peer for s in bench.sent} == {1, 2, 3}
    assert {(r.status, r.origin) for r in bench.own_rumours()} == {("dead", 0)}


def test_a_closed_link_skips_at_once_and_asks_others_at_once() -> None:
    bench = MemberBench(5)
    bench.link(1, up=False, reason="control connection closed")
    assert bench.core.view.skip_reason(1) == "disconnected"
    assert bench.changes() == [(1, "skip")]
    assert len(bench.requests()) == 3
    bench.link(1)
    assert bench.changes() == [(1, "unskip")]


# --- links, clocks, trainers ----------------------------------------------------------------------


def test_of_a_link_that_closes_again_and_again_others_are_asked_once_in_a_probe_interval() -> None:
    bench = MemberBench(5)
    for _ in range(20):
        bench.link(1)
        bench.advance(0.004)
        bench.link(1, up=False, reason="closed")
        bench.advance(0.004)
    assert len(bench.requests()) == 3
    bench.advance(0.05)
    assert len(bench.requests()) == 6, "it is out of reach, and that it lives was said long ago"
    for peer, request in bench.requests()[3:]:
        bench.say(peer, Nack(request.nonce, 1))
    assert bench.status(1) == "suspect"


def test_helpers_without_a_link_of_their_own_make_it_a_suspicion_at_once() -> None:
    bench = MemberBench(5)
    bench.link(1, up=False, reason="closed")
    for peer, request in bench.requests():
        assert bench.status(1) == "alive"
        bench.say(peer, Nack(request.nonce, 1))
    assert bench.status(1) == "suspect"
    bench.advance(0.81)
    assert bench.status(1) == "dead"  # the shortest time


def test_a_refused_reconnect_is_a_suspicion_at_once_with_the_shortest_time() -> None:
    bench = MemberBench(8)
    bench.link(1, up=False, reason="closed")
    bench.link(1, up=False, reason="refused")
    assert bench.status(1) == "suspect"
    bench.advance(0.79)
    assert bench.status(1) == "suspect"
    bench.advance(0.02)
    assert bench.status(1) == "dead"


def test_a_link_that_never_stood_is_no_reason_to_accuse() -> None:
    bench = MemberBench(3, meet=False)
    bench.link(1, up=False, reason="refused")
    assert bench.changes() == []
    assert bench.status(1) == "alive"


def test_a_clock_jump_drops_verdicts_and_gives_all_suspects_their_time_again() -> None:
    bench = MemberBench(8)
    bench.mute = {1, 2}
    for accuser in (3, 4, 5):
        bench.gossip(accuser, rumor(1, "suspect", 0, origin=accuser))
    bench.advance(0.7)
    bench.now += 30.0
    before = bench.core.awareness.score
    bench.do(bench.core.on_clock_jump(30.0, bench.now))
    assert bench.core.awareness.score == before + 1
    assert not bench.core.prober.probes
    # we may have been declared dead
    assert [s for s in bench.sent if isinstance(s.message, PushPull)]
    bench.advance(0.75)
    assert bench.status(1) == "suspect"
    bench.advance(0.5)
    assert bench.status(1) == "dead"


def test_late_timers_are_a_clock_jump_even_if_the_driver_says_nothing_and_count_once() -> None:
    bench = MemberBench(8)
    bench.mute = {1}
    for accuser in (3, 4, 5):
        bench.gossip(accuser, rumor(1, "suspect", 0, origin=accuser))
    bench.now += 30.0  # all timers are late now
    bench.advance(0.0)
    assert bench.status(1) == "suspect"
    assert bench.core.awareness.score == 1


def test_a_peer_whose_trainer_makes_no_progress_is_skipped_and_not_dead() -> None:
    bench = MemberBench(3, indirect_probes=0)
    bench.core.stall_after_s = 3.0
    bench.core.set_progress(6, 0.01, bench.now)

    def answer(age_ms: int) -> None:
        bench.mute = {1}
        bench.sent.clear()
        while not bench.sent_to(1, Ping):
            bench.advance(0.01)
        bench.say(1, Ack(bench.sent_to(1, Ping)[0].nonce, 1, Progress(4, age_ms), ()))  # type: ignore[union-attr]

    answer(2900)
    assert bench.core.view.skip_reason(1) == ""
    answer(3100)
    assert bench.core.view.skip_reason(1) == "stalled"
    assert bench.status(1) == "alive"
    answer(10)
    assert bench.changes() == [(1, "skip"), (1, "unskip")]
    # we make none ourselves: it waits for the same as we
    bench.core.set_progress(5, 9.0, bench.now)
    answer(9000)
    assert bench.core.view.skip_reason(1) == ""


def test_a_member_that_was_never_reached_is_given_time_for_its_first_connection() -> None:
    bench = MemberBench(3, meet=False)
    bench.link(1)
    bench.say(1, Gossip((rumor(2, "alive", 0, control="c2"),)))
    bench.advance(1.9)
    assert (2, "suspect") not in bench.changes()
    bench.advance(1.0)
    assert (2, "suspect") in bench.changes()


# --- telling --------------------------------------------------------------------------------------


def test_a_table_is_answered_with_a_table_once_in_a_while() -> None:
    bench = MemberBench(4)
    for _ in range(5):
        bench.say(2, PushPull((), reply=False))
    (table,) = bench.sent_to(2, PushPull)
    assert table.reply  # type: ignore[union-attr]
    assert [r.peer for r in table.members] == [0, 1, 2, 3]  # type: ignore[union-attr]
    bench.say(2, PushPull((), reply=True))
    assert len(bench.sent_to(2, PushPull)) == 1


def test_tables_are_exchanged_with_the_first_peer_that_is_reached_and_from_time_to_time() -> None:
    bench = MemberBench(4, meet=False)
    bench.link(1)
    bench.link(2)
    assert [s.peer for s in bench.sent if isinstance(s.message, PushPull)] == [1]
    bench = MemberBench(4)
    bench.advance(50.0)
    assert 9 <= len([s for s in bench.sent if isinstance(s.message, PushPull)]) <= 11


def test_no_message_carries_more_rumours_than_allowed_and_a_longer_one_is_cut() -> None:
    bench = MemberBench(40)
    bench.gossip(1, *(rumor(peer, "alive", 1) for peer in range(2, 40)))
    assert sum(bench.core.members[peer].standing for peer in range(2, 40)) == 24
    bench.advance(3.0)
    assert (
        max(len(s.message.rumors) for s in bench.sent if isinstance(s.message, Gossip | Ping)) == 12
    )


def test_whose_payload_is_coming_is_not_silent() -> None:
    """Its node copies and hashes for longer than a probe takes.
    Once nothing comes any more it is suspected."""
    bench = MemberBench(4)
    bench.mute = {1}
    for _ in range(100):
        bench.core.record_arriving_payload(1, bench.now)
        bench.advance(0.05)
    assert (1, "suspect") not in bench.changes()
    bench.advance(LOADED_VERDICT_S + 1.0)
    assert (1, "suspect") in bench.changes()


@pytest.mark.parametrize(
    ("loaded", "taker", "least_s", "most_s"),
    [
        (False, None, 0.0, 1.0),
        (True, None, LOADED_VERDICT_S, 2.5),
        (False, 0, LOADED_VERDICT_S, 2.5),  # the local one
        (False, 1, LOADED_VERDICT_S, 2.5),
        (False, 2, 0.0, 1.0),  # another
    ],
)
def test_while_payloads_move_a_verdict_waits_for_what_is_sent_again(
    loaded: bool, taker: int | None, least_s: float, most_s: float
) -> None:
    """TCP sends a lost ping again after 0.2 s; it may have been lost behind payloads of anybody."""
    bench = MemberBench(4)
    bench.advance(1.0)
    bench.mute = {1}
    began = bench.now
    while (1, "suspect") not in bench.changes():
        assert bench.now - began < most_s
        if loaded:
            bench.core.view.note_load(bench.now)
        if taker is not None:
            bench.core.view.note_state(taker, bench.now + 1.0)
        bench.advance(0.05)
    assert bench.now - began >= least_s


def test_a_payload_of_one_who_is_no_member_changes_nothing() -> None:
    bench = MemberBench(3)
    bench.core.record_arriving_payload(7, bench.now)
    assert 7 not in bench.core.members
