"""What is told, how often, and to whom first."""

from __future__ import annotations

from member_bench import rumor

from gossip.core.membership.dissemination import RumorQueue, retransmit_limit
from gossip.core.settings import SENDERS_MAX, MembershipSettings

SETTINGS = MembershipSettings()


def test_a_rumour_is_repeated_often_enough_in_a_small_swarm() -> None:
    # memberlist's log10 would say 4: docs/design_notes.md N5
    assert retransmit_limit(8, SETTINGS) == 16
    rumors = RumorQueue(SETTINGS)
    rumors.add(rumor(3, "alive"))
    said = 0
    while rumors.pick(8, 12):
        said += 1
    assert said == 16
    assert len(rumors) == 0


def test_what_was_said_least_comes_first_and_no_message_is_longer_than_its_limit() -> None:
    rumors = RumorQueue(SETTINGS)
    for peer in range(30):
        rumors.add(rumor(peer, "alive"))
    first, second, third = (rumors.pick(31, 12) for _ in range(3))
    assert [len(first), len(second), len(third)] == [12, 12, 12]
    assert len({r.peer for r in first + second + third}) == 30
    assert first[0].peer == 29  # the newest


def test_news_of_a_higher_standing_replaces_what_was_said_before() -> None:
    rumors = RumorQueue(SETTINGS)
    rumors.add(rumor(3, "suspect", 0, origin=1))
    rumors.add(rumor(3, "alive", 1))
    assert rumors.pick(8, 12) == (rumor(3, "alive", 1),)


def test_distinct_accusers_of_one_suspect_are_all_named_up_to_the_number_that_counts() -> None:
    rumors = RumorQueue(SETTINGS)
    for accuser in range(10, 20):
        rumors.add(rumor(3, "suspect", 0, origin=accuser))
    assert sorted(r.origin for r in rumors.pick(32, 12)) == [10, 11, 12]


def test_a_peer_is_not_told_about_itself() -> None:
    rumors = RumorQueue(SETTINGS)
    rumors.add(rumor(3, "alive"))
    rumors.add(rumor(4, "alive"))
    assert [r.peer for r in rumors.pick(8, 12, to=3)] == [4]


def test_who_has_told_a_rumour_is_not_told_it_until_it_lives_anew() -> None:
    rumors = RumorQueue(SETTINGS)
    accusation = rumor(3, "suspect", 0, origin=1)
    rumors.add(accusation)
    rumors.record_sender(5, rumor(3, "suspect", 0, origin=2))  # of that one we know nothing
    assert rumors.pick(8, 12, to=5) == (accusation,)
    rumors.record_sender(5, accusation)
    assert rumors.pick(8, 12, to=5) == ()
    assert rumors.pick(8, 12, to=6) == (accusation,)
    rumors.begins_anew(5)
    assert rumors.pick(8, 12, to=5) == (accusation,)


def test_of_a_few_peers_only_is_kept_that_they_have_told_a_rumour() -> None:
    rumors = RumorQueue(SETTINGS)
    rumors.add(rumor(3, "alive"))
    for sender in range(4, 6 + SENDERS_MAX):
        rumors.record_sender(sender, rumor(3, "alive"))
    assert rumors.pick(31, 12, to=3 + SENDERS_MAX) == ()
    assert rumors.pick(31, 12, to=5 + SENDERS_MAX) != ()


def test_what_a_peer_need_not_be_told_counts_as_said() -> None:
    rumors = RumorQueue(SETTINGS)
    rumors.add(rumor(3, "alive"))
    rumors.record_sender(5, rumor(3, "alive"))
    for _ in range(retransmit_limit(8, SETTINGS)):
        assert rumors.waiting
        assert rumors.pick(8, 12, to=5) == ()
    assert not rumors.waiting
