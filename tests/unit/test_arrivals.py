"""Payloads that are on their way, and words about them: what counts as moving, and for how long."""

from __future__ import annotations

import pytest

from gossip.core.events import Arriving, Payload, Received
from gossip.core.messages import Update
from gossip.core.rounds.arrivals import Transfer, TransferTracker
from gossip.core.rounds.credit import TokenBucket
from gossip.core.settings import TRANSFER_PAUSE_MAX_S

NBYTES = 12 * 2**20
LEAST_S = 60.0


def update(shard: int = 0) -> Update:
    return Update(b"lineage!", 0, shard, 0, b"", 1, None)


def comes(tracker: TransferTracker, sender: int, pause_s: float, at: float = 0.0) -> float:
    """A payload of 12 chunks. Returns when it is complete."""
    for chunk in range(1, 12):
        tracker.grew(Arriving(sender, 0, update(), chunk * 2**20, NBYTES), at + chunk * pause_s)
    done = at + 12 * pause_s
    payload = Payload(None, NBYTES, True, b"digest")
    tracker.came(Received(sender, 0, update(), payload), done)
    return done


def tracker_of(f: int = 0, in_a_row: int = 4) -> TransferTracker:
    tracker = TransferTracker(f)
    tracker.begin_round(NBYTES, LEAST_S, in_a_row)
    return tracker


@pytest.mark.parametrize(("pause_s", "at_most_s"), [(0.05, 1.0), (0.75, 4.0)])
def test_between_two_payloads_of_a_slow_link_the_next_is_on_its_way(
    pause_s: float, at_most_s: float
) -> None:
    """More of it is heard of with its second chunk. As it was: only half a second counted."""
    tracker = tracker_of()
    done = comes(tracker, 1, pause_s)
    assert tracker.is_sending(1, done + LEAST_S, done + 2 * pause_s)
    assert not tracker.is_sending(1, done + LEAST_S, done + at_most_s)


def test_a_payload_whose_chunks_come_seldom_moves_between_them() -> None:
    slow, fast = Transfer.begun(NBYTES, 0, 0.0), Transfer.begun(NBYTES, 0, 0.0)
    for chunk in range(1, 4):
        slow.grew(chunk * 2**20, 1.5 * chunk)
        fast.grew(chunk * 2**20, 0.1 * chunk)
    assert slow.moves(4.5 + 4.0)
    assert not slow.moves(4.5 + 5.0)
    assert fast.moves(0.3 + 2.0)
    assert not fast.moves(0.3 + 2.5)


def test_a_payload_of_which_only_the_beginning_was_told_is_on_its_way() -> None:
    """Over a slow link the next word takes longer than a window."""
    begun = Transfer.begun(NBYTES, 2**21, 0.0)
    assert begun.ends_at(1.5) == 1.5
    assert begun.ends_at(2.5) == float("inf")


def test_who_tells_of_chunks_that_come_seldom_is_busy_between_them() -> None:
    tracker = tracker_of()
    tracker.record_progress(1, 2**20, 4.5, 0.0)
    tracker.record_progress(2, 2**20, 0.9, 0.0)
    assert tracker.is_busy(1, 4.0)
    assert not tracker.is_busy(1, 5.0)
    assert tracker.is_busy(2, 1.5)
    assert not tracker.is_busy(2, 2.5)


def test_nobody_is_busy_for_long_on_one_word() -> None:
    tracker = tracker_of()
    tracker.record_progress(1, 2**20, 1e9, 0.0)
    assert not tracker.is_busy(1, TRANSFER_PAUSE_MAX_S + 0.1)


def test_the_pause_that_others_are_told_of_is_that_between_chunks() -> None:
    tracker = tracker_of()
    for chunk in range(1, 4):
        tracker.grew(Arriving(1, 0, update(), chunk * 2**20, NBYTES), 1.5 * chunk)
    assert tracker.pause_s(4.5) == pytest.approx(4.5)


def test_before_a_second_chunk_the_pause_is_that_of_the_payload_before() -> None:
    tracker = tracker_of()
    done = comes(tracker, 1, 1.5)
    tracker.grew(Arriving(1, 0, update(1), 2**20, NBYTES), done + 1.5)
    assert tracker.pause_s(done + 1.5) == pytest.approx(4.5)


def test_what_passes_between_two_payloads_is_no_pause_of_a_link() -> None:
    """As it was: 3 s between two payloads that came within a fifth of a second each made this peer
    busy for 9 s after the last of them."""
    tracker = tracker_of()
    for at in (0.0, 3.2):
        comes(tracker, 1, 0.2, at)
    tracker.grew(Arriving(1, 0, update(1), 2**20, NBYTES), 9.0)
    tracker.grew(Arriving(1, 0, update(1), 2**21, NBYTES), 9.2)
    assert tracker.pause_s(9.2) == pytest.approx(0.6)


def test_a_payload_whose_link_breaks_is_on_its_way_no_more() -> None:
    """As it was: all waited longer and longer after a crash in the middle of a first payload."""
    tracker = tracker_of()
    for chunk in range(1, 4):
        tracker.grew(Arriving(1, 0, update(), chunk * 2**20, NBYTES), float(chunk))
    assert tracker.most_s(600.0) > 600.0
    tracker.on_disconnect(1)
    assert tracker.most_s(600.0) == LEAST_S
    assert not tracker.is_sending(1, 600.0, 3.0)


def test_who_was_busy_lately_is_at_work_until_the_beginning_of_what_it_sends_can_be_here() -> None:
    """It computes, and more of its update is heard of with the second chunk."""
    tracker = tracker_of()
    done = comes(tracker, 2, 1.0)
    tracker.contributed(0.5)
    tracker.record_progress(1, 2**20, 1.5, done - 0.5)
    tracker.record_progress(1, 2**21, 1.5, done)
    assert not tracker.is_busy(1, done + 2.5)
    assert tracker.is_at_work(1, done + 5.0)  # 1.5 s, 1 s and 3 s
    assert not tracker.is_at_work(1, done + 6.0)


def test_the_first_payload_tells_it_while_it_is_on_its_way() -> None:
    tracker = tracker_of()
    for second in range(1, 4):
        tracker.grew(Arriving(1, 0, update(), second * 2**19, NBYTES), float(second))
    assert tracker.most_s(3.0) == pytest.approx(3.0 * 4 * 23.0, rel=0.2)


def test_f_peers_that_trickle_do_not_make_it_longer() -> None:
    liars = tracker_of(f=1)
    now = max(comes(liars, sender, pause_s) for sender, pause_s in ((1, 100.0), (2, 0.1), (3, 0.1)))
    assert liars.most_s(now) == LEAST_S
    two = tracker_of(f=1)
    now = max(comes(two, sender, pause_s) for sender, pause_s in ((1, 100.0), (2, 90.0), (3, 0.1)))
    assert two.most_s(now) > LEAST_S


@pytest.mark.parametrize(("times", "is_waited_for"), [(0, True), (1, True), (2, False), (4, False)])
def test_the_less_is_known_of_a_sender_the_longer_may_its_payload_take(
    times: int, is_waited_for: bool
) -> None:
    """Seed 474 with collective operations, which carry no payload: after two that came at once, one
    that took 9.8 s was waited for."""
    tracker, now = tracker_of(), 0.0
    for _ in range(times):
        tracker.came(Received(1, 0, update(), Payload(None, NBYTES, True, b"digest")), now)
    for second in range(1, 4):
        tracker.grew(Arriving(1, 0, update(), second * NBYTES // 8, NBYTES), now + second)
    assert tracker.is_sending(1, now + LEAST_S, now + 3.0) == is_waited_for


def test_a_payload_that_is_larger_than_all_before_may_take_longer() -> None:
    """A result may be many times as large as an update."""
    tracker = tracker_of()
    for _ in range(4):
        small = Payload(None, NBYTES // 10, True, b"digest")
        tracker.came(Received(1, 0, update(), small), 0.0)
    for second in range(1, 4):
        tracker.grew(Arriving(1, 0, update(), second * NBYTES // 8, NBYTES), float(second))
    assert tracker.is_sending(1, LEAST_S, 3.0)


def test_who_is_waited_for_in_eight_shards_at_once_spends_that_time_once() -> None:
    """As it was: 20 s in eight shards spent 160 s, which comes back in hours."""
    credit = TokenBucket()
    for _ in range(8):
        assert credit.is_left(1, 10.0, 30.0, LEAST_S)
        credit.spend_wait(1, 10.0, 30.0)
    assert credit.spent(1, 30.0) == 20.0
    assert credit.is_left(1, 30.0, 69.0, LEAST_S)
    assert not credit.is_left(1, 30.0, 72.0, LEAST_S)
