"""Slow peers get smaller slices: soon enough, not for one slow round, and never to and fro."""

from __future__ import annotations

import pytest

from gossip.core.ledger.pace import Pace
from gossip.core.settings import PACE_LEVELS, PACE_WINDOW

PEERS = tuple(range(8))
FAST_US = 100_000


def window(pace: Pace, missing: tuple[int, ...] = (), **took_us: int) -> Pace:
    """A whole window in which peer 3 and others take what is said (``p3=...``) and
    all others 100 ms."""
    took = {peer: took_us.get(f"p{peer}", FAST_US) for peer in PEERS}
    for _ in range(PACE_WINDOW):
        pace.observe(PEERS, [peer for peer in PEERS if peer not in missing], took)
    return pace


@pytest.mark.parametrize(
    ("slowness", "level"), [(1.0, 0), (1.7, 0), (1.75, 1), (3.4, 1), (4.0, 2), (9.0, 2)]
)
def test_a_slow_peers_share_is_halved_until_it_keeps_up(slowness: float, level: int) -> None:
    """What it takes follows its share, as where the samples are what costs."""
    pace = Pace()
    for at in range(12):
        window(pace, p3=int(FAST_US * slowness / 2 ** pace.level(3)))
        if at >= PACE_LEVELS - 1:
            assert pace.level(3) == level
        assert all(pace.level(peer) == 0 for peer in PEERS if peer != 3)


def test_a_peer_that_is_never_in_time_gets_less_as_well() -> None:
    assert window(Pace(), missing=(3,)).level(3) == 1


def test_who_says_nothing_of_how_long_it_took_keeps_its_share() -> None:
    """As one does whose model was compiled for batches of this size."""
    pace = Pace()
    for _ in range(3):
        assert window(pace, p3=0).even


def test_a_few_slow_rounds_change_nothing() -> None:
    pace = Pace()
    for at in range(10 * PACE_WINDOW):
        took = dict.fromkeys(PEERS, FAST_US)
        took[3] *= 50 if at % PACE_WINDOW < PACE_WINDOW // 2 else 1
        pace.observe(PEERS, PEERS, took)
    assert pace.even


def test_who_is_quick_again_gets_its_share_back_one_step_at_a_time() -> None:
    pace = window(window(Pace(), p3=4 * FAST_US), p3=2 * FAST_US)
    assert pace.level(3) == 2
    assert window(pace, p3=FAST_US // 4).level(3) == 1
    assert window(pace, p3=FAST_US // 2).level(3) == 0
    assert window(pace).even


def test_differences_that_no_grace_excludes_do_not_count() -> None:
    pace = Pace()
    for _ in range(3 * PACE_WINDOW):
        pace.observe(PEERS, PEERS, {peer: 20_000 if peer == 3 else 1_000 for peer in PEERS})
    assert pace.even


def test_liars_cannot_make_the_others_seem_slow_nor_get_more_than_a_share() -> None:
    pace = window(Pace(), p5=1, p6=1, p7=1)
    assert pace.even
    assert window(pace, p5=2**40).levels() == {5: 1}


def test_a_round_that_nobody_contributed_to_says_nothing() -> None:
    pace = window(Pace(), missing=PEERS)
    assert pace.pack() == Pace().pack()


def test_who_comes_back_begins_with_a_whole_share() -> None:
    pace = window(Pace(), p3=4 * FAST_US)
    pace.observe([peer for peer in PEERS if peer != 3], PEERS, dict.fromkeys(PEERS, FAST_US))
    assert pace.even


def test_a_pace_handed_over_goes_on_as_its_original() -> None:
    original = window(Pace(), p3=4 * FAST_US)
    original.observe(PEERS, PEERS, dict.fromkeys(PEERS, FAST_US))
    again = Pace.unpack(original.pack())
    assert (again.pack(), again.even) == (original.pack(), False)
    assert window(again, p3=4 * FAST_US).pack() == window(original, p3=4 * FAST_US).pack()


@pytest.mark.parametrize(
    "packed",
    [
        None,
        (0,),
        (PACE_WINDOW, ()),
        (-1, ()),
        (0, 7),
        (0, ((1, 3, 0, 0, 0),)),
        (0, ((1, 0, 16, 0, 0),)),
        (0, ((1, 0, 3, 2, 2),)),
        (0, ((1, 0, 0, 0),)),
        (0, ((1, 0, 0, 0, 0), (1, 0, 0, 0, 0))),
        (0, ((1, 0, 0, 0, True),)),
    ],
)
def test_a_disorderly_pace_is_refused(packed: object) -> None:
    with pytest.raises(ValueError, match="pace"):
        Pace.unpack(packed)
