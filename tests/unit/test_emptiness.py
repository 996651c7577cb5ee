"""When is it certain that nobody has a state to give?"""

from __future__ import annotations

import pytest

from gossip.core.transfer.attestation import NoStateEvidence
from gossip.core.transfer.donor import NO_STATE, TAKES_OVER

OTHERS = (1, 2, 3)


class PolledPeers:
    """Peers 1 to 3 can be asked, peer 4 is away. ``far``: who was in which later round."""

    def __init__(self, far: dict[int, int]) -> None:
        self.far = far

    def donors(self) -> tuple[int, ...]:
        return OTHERS

    def met(self) -> tuple[int, ...]:
        return (0, *OTHERS, 4)

    def round_of(self, peer: int) -> int:
        return self.far.get(peer, 0)


def after(
    f: int, *said: dict[int, str], waited: bool = True, far: dict[int, int] | None = None
) -> bool:
    emptiness = NoStateEvidence(0, f, PolledPeers(far or {}))
    for answers in said:
        for peer, reason in answers.items():
            emptiness.record_refusal(peer, reason)
        emptiness.turn_is_over(waited)
    return emptiness.is_sure


NONE = dict.fromkeys(OTHERS, NO_STATE)


@pytest.mark.parametrize(
    ("f", "waited", "sure"), [(0, True, False), (1, False, False), (1, True, True)]
)
@pytest.mark.parametrize("third", [{}, {3: "is not in that round"}, {3: TAKES_OVER}])
def test_who_does_not_say_so_may_have_one_unless_it_may_be_a_liar_and_had_its_time(
    third: dict[int, str], f: int, waited: bool, sure: bool
) -> None:
    said = {1: NO_STATE, 2: NO_STATE, **third}
    assert after(f, said, said, waited=waited) is sure
    assert not after(f, {1: NO_STATE}, {1: NO_STATE}, waited=waited)


@pytest.mark.parametrize("f", [0, 1, 2])
def test_one_that_was_in_a_later_round_has_to_say_so_itself_however_long_it_is_away(f: int) -> None:
    assert not after(f, NONE, NONE, far={4: 67})
    assert not after(f, {1: NO_STATE, 2: NO_STATE}, {1: NO_STATE, 2: NO_STATE}, far={3: 67})
    assert after(f, NONE, NONE, far={3: 67}), "it was started again"


def test_it_has_to_be_so_in_one_turn_after_the_other() -> None:
    assert not after(0, NONE, {1: NO_STATE}, NONE)
