"""When is it certain that nobody has a state to give?"""

from __future__ import annotations

import pytest

from gossip.core.donating import NO_STATE, TAKES_OVER
from gossip.core.polls import SURE_TURNS, Emptiness

OTHERS = (1, 2, 3)


def after(f: int, said: dict[int, str], waited: bool = True, turns: int = SURE_TURNS) -> bool:
    emptiness = Emptiness(f)
    for _ in range(turns):
        for peer, reason in said.items():
            emptiness.hear(peer, reason)
        emptiness.turn_is_over(OTHERS, waited)
    return emptiness.is_sure


NONE = dict.fromkeys(OTHERS, NO_STATE)


@pytest.mark.parametrize("f", [0, 1])
def test_when_all_have_said_so_twice(f: int) -> None:
    assert after(f, NONE)
    assert not after(f, NONE, turns=SURE_TURNS - 1)


@pytest.mark.parametrize(("f", "waited", "sure"), [(0, True, False), (1, False, False), (1, True, True)])
def test_who_keeps_silent_may_have_one_unless_it_may_be_a_liar_and_had_its_time(f: int, waited: bool, sure: bool) -> None:
    assert after(f, {1: NO_STATE, 2: NO_STATE}, waited) is sure
    assert after(f, {1: NO_STATE, 2: NO_STATE, 3: "is not there"}, waited) is sure
    assert not after(f, {1: NO_STATE}, waited)


@pytest.mark.parametrize("f", [0, 1])
def test_who_takes_one_over_will_have_one(f: int) -> None:
    assert not after(f, {1: NO_STATE, 2: NO_STATE, 3: TAKES_OVER})


def test_it_has_to_be_so_in_one_turn_after_the_other() -> None:
    emptiness = Emptiness(0)
    for said in (NONE, {1: NO_STATE}, NONE):
        for peer, reason in said.items():
            emptiness.hear(peer, reason)
        emptiness.turn_is_over(OTHERS, waited=True)
    assert not emptiness.is_sure
