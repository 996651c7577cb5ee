"""What is told, how often, and to whom first."""

from __future__ import annotations

from member_bench import rumour

from gossip.core.membership.dissemination import TELLERS_MAX, Rumours, retransmit_limit
from gossip.core.settings import MembershipSettings

SETTINGS = MembershipSettings()


def test_a_rumour_is_repeated_often_enough_in_a_small_swarm() -> None:
    assert retransmit_limit(8, SETTINGS) == 16  # memberlist's log10 would say 4: docs/design_notes.md N5
    rumours = Rumours(SETTINGS)
    rumours.add(rumour(3, "alive"))
    said = 0
    while rumours.pick(8, 12):
        said += 1
    assert said == 16
    assert len(rumours) == 0


def test_what_was_said_least_comes_first_and_no_message_is_longer_than_its_limit() -> None:
    rumours = Rumours(SETTINGS)
    for peer in range(30):
        rumours.add(rumour(peer, "alive"))
    first, second, third = (rumours.pick(31, 12) for _ in range(3))
    assert [len(first), len(second), len(third)] == [12, 12, 12]
    assert len({r.peer for r in first + second + third}) == 30
    assert first[0].peer == 29  # the newest


def test_news_of_a_higher_standing_replaces_what_was_said_before() -> None:
    rumours = Rumours(SETTINGS)
    rumours.add(rumour(3, "suspect", 0, origin=1))
    rumours.add(rumour(3, "alive", 1))
    assert rumours.pick(8, 12) == (rumour(3, "alive", 1),)


def test_distinct_accusers_of_one_suspect_are_all_named_up_to_the_number_that_counts() -> None:
    rumours = Rumours(SETTINGS)
    for accuser in range(10, 20):
        rumours.add(rumour(3, "suspect", 0, origin=accuser))
    assert sorted(r.origin for r in rumours.pick(32, 12)) == [10, 11, 12]


def test_a_peer_is_not_told_about_itself() -> None:
    rumours = Rumours(SETTINGS)
    rumours.add(rumour(3, "alive"))
    rumours.add(rumour(4, "alive"))
    assert [r.peer for r in rumours.pick(8, 12, to=3)] == [4]


def test_who_has_told_a_rumour_is_not_told_it_until_it_lives_anew() -> None:
    rumours = Rumours(SETTINGS)
    accusation = rumour(3, "suspect", 0, origin=1)
    rumours.add(accusation)
    rumours.told_by(5, rumour(3, "suspect", 0, origin=2))  # of that one we know nothing
    assert rumours.pick(8, 12, to=5) == (accusation,)
    rumours.told_by(5, accusation)
    assert rumours.pick(8, 12, to=5) == ()
    assert rumours.pick(8, 12, to=6) == (accusation,)
    rumours.begins_anew(5)
    assert rumours.pick(8, 12, to=5) == (accusation,)


def test_of_a_few_peers_only_is_kept_that_they_have_told_a_rumour() -> None:
    rumours = Rumours(SETTINGS)
    rumours.add(rumour(3, "alive"))
    for sender in range(4, 6 + TELLERS_MAX):
        rumours.told_by(sender, rumour(3, "alive"))
    assert rumours.pick(31, 12, to=3 + TELLERS_MAX) == ()
    assert rumours.pick(31, 12, to=5 + TELLERS_MAX) != ()


def test_what_a_peer_need_not_be_told_counts_as_said() -> None:
    rumours = Rumours(SETTINGS)
    rumours.add(rumour(3, "alive"))
    rumours.told_by(5, rumour(3, "alive"))
    for _ in range(retransmit_limit(8, SETTINGS)):
        assert rumours.waiting
        assert rumours.pick(8, 12, to=5) == ()
    assert not rumours.waiting
