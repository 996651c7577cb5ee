"""Until when does a peer without a state count on one who may have one?"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gossip.core.settings import DONOR_FACTOR, GIVEN_TIMES_MAX
from gossip.core.transfer.deadlines import DonorDeadlines

TIMEOUT_S = 10.0
PATIENCE_S = DONOR_FACTOR * TIMEOUT_S


def asked(*peers: int, f: int = 1) -> DonorDeadlines:
    """At 0 s."""
    deadlines = DonorDeadlines(TIMEOUT_S, f)
    deadlines.ask(peers, 0.0)
    return deadlines


def test_whose_payload_moves_has_not_had_its_time() -> None:
    deadlines = asked(1)
    deadlines.move(1, PATIENCE_S + TIMEOUT_S, PATIENCE_S)
    assert not deadlines.overdue(PATIENCE_S + TIMEOUT_S - 0.1)
    assert deadlines.overdue(PATIENCE_S + TIMEOUT_S) == {1}


def broke_off(deadlines: DonorDeadlines, now: float) -> None:
    deadlines.move(1, now + TIMEOUT_S, now)
    deadlines.fail(1)


def another_state(deadlines: DonorDeadlines, now: float) -> None:
    deadlines.deliver(1, b"state at %d" % now, now)


def was_away(deadlines: DonorDeadlines, now: float) -> None:
    deadlines.keep(())
    deadlines.ask((1,), now)


def claimed_and_was_away(deadlines: DonorDeadlines, now: float) -> None:
    deadlines.note_state(1)
    was_away(deadlines, now)


def claimed_and_denied(deadlines: DonorDeadlines, now: float) -> None:
    deadlines.claim(1, now)
    deadlines.deny(1)
    deadlines.ask((1,), now)


def moved_and_denied(deadlines: DonorDeadlines, now: float) -> None:
    deadlines.move(1, now, now)
    deadlines.deny(1)
    deadlines.ask((1,), now)


def two_pieces_of_another_state(deadlines: DonorDeadlines, now: float) -> None:
    for _ in range(2):
        deadlines.deliver(1, b"state at %d" % now, now)


def stalls_in_the_middle(deadlines: DonorDeadlines, now: float) -> None:
    """Of what nobody vouches for: after one piece it breaks off, and gives another state."""
    another_state(deadlines, now)
    broke_off(deadlines, now)


def does_not_load(deadlines: DonorDeadlines, now: float) -> None:
    deadlines.move(1, now + TIMEOUT_S, now)
    deadlines.deliver(1, b"state", now)
    deadlines.fail(1, loaded=True)


ACTS = [
    broke_off,
    another_state,
    two_pieces_of_another_state,
    was_away,
    claimed_and_was_away,
    claimed_and_denied,
    moved_and_denied,
    does_not_load,
]


@pytest.mark.parametrize("act", ACTS)
def test_who_begins_anew_and_gives_nothing_has_its_time_a_few_times_and_no_more(
    act: Callable[[DonorDeadlines, float], None],
) -> None:
    deadlines, now, anew = asked(1), 0.0, 0
    for _ in range(4 * GIVEN_TIMES_MAX):
        now += PATIENCE_S
        act(deadlines, now)
        anew += not deadlines.overdue(now)
    assert GIVEN_TIMES_MAX <= anew <= GIVEN_TIMES_MAX + 1


@pytest.mark.parametrize("again", [was_away, claimed_and_denied, stalls_in_the_middle])
def test_right_pieces_of_one_state_renew_the_time_of_who_has_used_it_up(
    again: Callable[[DonorDeadlines, float], None],
) -> None:
    deadlines, now = asked(1), 0.0
    for _ in range(4 * GIVEN_TIMES_MAX):
        again(deadlines, now)
        now += 1.0
    now += PATIENCE_S
    assert deadlines.overdue(now) == {1}
    for _ in range(2 * GIVEN_TIMES_MAX):
        deadlines.deliver(1, b"state", now)
    assert not deadlines.overdue(now + PATIENCE_S - 0.1)
    deadlines.move(1, now + PATIENCE_S + TIMEOUT_S, now + PATIENCE_S - 0.1)
    assert not deadlines.overdue(now + PATIENCE_S), "the next is on its way"
    deadlines.fail(1)
    now += PATIENCE_S + TIMEOUT_S
    assert deadlines.overdue(now) == {1}
    deadlines.move(1, now + TIMEOUT_S, now)
    assert again is was_away or deadlines.overdue(now) == {1}, "it broke off, and moves again"


def test_pieces_of_states_that_f_and_one_more_vouch_for_renew_the_time_always() -> None:
    deadlines, now = asked(1), 0.0
    for _ in range(4 * GIVEN_TIMES_MAX):
        claimed_and_denied(deadlines, now)
    for _ in range(4 * GIVEN_TIMES_MAX):
        now += PATIENCE_S
        deadlines.deliver(1, b"state at %d" % now, now, vouched=True)
        assert not deadlines.overdue(now)


def test_who_was_away_and_has_claimed_nothing_has_used_up_no_claim() -> None:
    deadlines = asked(1)
    for _ in range(4 * GIVEN_TIMES_MAX):
        was_away(deadlines, 1.0)
    assert not deadlines.is_used_up(1)


def test_more_than_f_who_say_that_they_have_one_count_as_long_as_they_say_so() -> None:
    """A donor gives its state to so many at a time, and says to the others that it is busy."""
    deadlines = asked(1, 2, 3)
    deadlines.claim(1, PATIENCE_S)
    assert deadlines.overdue(PATIENCE_S) == {1, 2, 3}
    deadlines.claim(2, PATIENCE_S)
    assert deadlines.overdue(PATIENCE_S) == {3}
    assert deadlines.overdue(2 * PATIENCE_S) == {1, 2, 3}


def test_nobody_is_given_up_where_nobody_is_to_be_byzantine() -> None:
    deadlines = asked(1, f=0)
    assert not deadlines.overdue(10.0 * PATIENCE_S)
    assert not deadlines.is_over(1, 10.0 * PATIENCE_S)
