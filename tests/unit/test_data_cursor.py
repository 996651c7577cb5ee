"""Slices of an epoch, and what comes back."""

from collections.abc import Iterable

import pytest

from gossip.core.events import EpochReport
from gossip.core.ledger.data_cursor import DataCursor, _apportioned
from gossip.core.ledger.replicated_state import ReplicatedState
from gossip.core.messages import ROUND_MAX, Contribution, Rejection
from gossip.core.settings import PACE_WINDOW, PENDING_ROUNDS, RANGES_MAX, SPARE_ROUNDS, CoreSettings
from gossip.errors import ConfigError

ABC = (0, 1, 2)


def whole(contributors: Iterable[int]) -> dict[int, int]:
    """Each has used all of its slice."""
    return dict.fromkeys(contributors, ROUND_MAX)


def sizes(cursor: DataCursor, roster: tuple[int, ...]) -> list[int]:
    return [sum(stop - start for start, stop in pairs) for pairs in cursor.assign(roster).values()]


def test_a_round_gives_each_peer_its_batch_in_order() -> None:
    assert DataCursor(3, 100, 10).assign(ABC) == {0: ((0, 10),), 1: ((10, 20),), 2: ((20, 30),)}


def test_what_a_contributor_has_not_used_of_its_slice_is_given_out_again_first() -> None:
    cursor = DataCursor(3, 100, 10)
    assert cursor.commit(ABC, {0: 10, 1: 4, 2: 0}) is None
    assert cursor.assign(ABC) == {1: ((14, 24),), 2: ((24, 34),), 0: ((34, 44),)}
    assert cursor.remaining == 100 - 14


def test_who_says_that_it_used_more_than_it_had_has_used_its_slice() -> None:
    cursor, other = DataCursor(3, 100, 10), DataCursor(3, 100, 10)
    cursor.commit(ABC, {0: 10, 1: 10**9, 2: 10})
    other.commit(ABC, {0: 10, 1: 10, 2: 10})
    assert cursor.pack() == other.pack()


def test_the_order_begins_one_peer_later_every_round() -> None:
    cursor = DataCursor(3, 100, 10)
    cursor.commit(ABC, whole(ABC))
    assert cursor.assign(ABC) == {1: ((30, 40),), 2: ((40, 50),), 0: ((50, 60),)}


def test_assigning_changes_nothing() -> None:
    cursor = DataCursor(3, 100, 10)
    before = cursor.pack()
    cursor.assign(ABC)
    assert cursor.pack() == before


def test_what_failures_have_left_is_read_first_in_the_next_epoch() -> None:
    cursor = DataCursor(3, 60, 10)
    cursor.commit(ABC, whole(ABC))
    assert cursor.commit(ABC, whole((1, 2))) == EpochReport(0, once=50, twice=0, left=10, rounds=2)
    assert cursor.assign(ABC) == {2: ((50, 60),), 0: ((60, 70),), 1: ((70, 80),)}
    cursor.commit(ABC, whole(ABC))
    # more is left than two rounds read, so it moves on once more
    assert cursor.commit(ABC, whole(ABC)) == EpochReport(1, once=60, twice=0, left=10, rounds=2)
    assert cursor.assign(ABC)[1] == ((110, 120),)


def test_more_peers_than_planned_share_what_a_round_was_planned_to_read() -> None:
    cursor, six = DataCursor(3, 120, 10), tuple(range(6))
    assert cursor.round_samples(6) == 30
    for _ in range(4):
        assert sizes(cursor, six) == [5] * 6
        report = cursor.commit(six, whole(six))
    assert report == EpochReport(0, once=120, twice=0, left=0, rounds=4)


def test_more_peers_than_planned_read_what_was_left_with_whole_batches() -> None:
    cursor, six = DataCursor(3, 120, 10), tuple(range(6))
    for _ in range(4):
        cursor.commit(ABC, whole((1,)))
    assert cursor.remaining == 200
    assert sorted(sizes(cursor, six)) == [8, 8, 8, 8, 9, 9]
    for _ in range(4):
        report = cursor.commit(six, whole(six))
    assert report == EpochReport(1, once=200, twice=0, left=0, rounds=4)


def test_the_last_two_rounds_of_an_epoch_share_what_is_left_alike() -> None:
    for total, rounds in (
        (130, [40, 40, 25, 25]),
        (161, [40, 40, 40, 21, 20]),
        (160, [40, 40, 40, 40]),
    ):
        cursor, four, given = DataCursor(4, total, 10), (0, 1, 2, 3), []
        while cursor.epoch == 0:
            given.append(sum(sizes(cursor, four)))
            cursor.commit(four, whole(four))
        assert given == rounds


def test_what_is_left_of_the_last_epoch_is_read_in_further_rounds_where_that_is_asked_for() -> None:
    cursor = DataCursor(3, 90, 10)
    cursor.configure(90, 10, extended=2)
    for _ in range(5):
        cursor.commit(ABC, whole((0, 1)))
    assert cursor.commit(ABC, whole((0, 1))) is None
    assert (cursor.epoch, cursor.remaining) == (1, 60)
    assert sizes(cursor, ABC) == [10, 10, 10]
    cursor.commit(ABC, whole((0, 1)))
    assert (cursor.epoch, cursor.remaining) == (1, 40)
    assert sorted(sizes(cursor, ABC)) == [6, 7, 7]
    cursor.commit(ABC, whole(ABC))
    assert cursor.commit(ABC, whole(ABC)) == EpochReport(1, once=120, twice=0, left=0, rounds=6)
    assert sizes(cursor, ABC) == [0, 0, 0]


def test_further_rounds_end_when_too_few_are_left_for_the_rule() -> None:
    cursor = DataCursor(3, 30, 10)
    cursor.require(3)
    cursor.configure(30, 10, extended=1)
    assert cursor.commit(ABC, whole((0, 1))) is None
    assert cursor.remaining == 10
    cursor.commit(ABC, whole((1, 2)))
    assert cursor.remaining == 3
    report = EpochReport(0, 29, 0, 0, 3, given_up=1, given_up_ranges=((27, 28),))
    assert cursor.commit(ABC, whole((0, 1))) == report


def test_a_few_rounds_that_use_nothing_give_nothing_up() -> None:
    cursor = DataCursor(3, 90, 10)
    cursor.configure(90, 10, extended=1)
    for _ in range(3 + SPARE_ROUNDS):
        assert cursor.commit(ABC, whole(())) is None
    assert cursor.remaining == 90
    while (report := cursor.commit(ABC, whole(ABC))) is None:
        pass
    assert (report.once, report.left, report.given_up) == (90, 0, 0)


def test_part_of_a_slice_may_come_for_the_first_time_and_part_again() -> None:
    cursor = DataCursor(2, 300, 10)
    cursor.commit((0, 1), {0: 10, 1: 4})
    assert cursor.assign((1,))[1] == ((14, 24),)
    cursor.commit((1,), {}, unused={1: "non_finite"})
    assert cursor.assign((1,))[1] == ((20, 30),)
    assert cursor.remaining == 300 - 14 - 6


def test_of_many_samples_given_up_the_first_are_listed() -> None:
    cursor = DataCursor(1, 4 * 2_000, 4)
    for _ in range(2_000):
        (pair,) = cursor.assign((0,))[0]
        bad = pair[0] % 16 == 0
        report = cursor.commit((0,), {0: 0 if bad else 4}, unused={0: "non_finite"} if bad else {})
    assert report.given_up > 4 * RANGES_MAX
    assert len(report.given_up_ranges) == RANGES_MAX
    other = DataCursor(1, 4 * 2_000, 4)
    other.unpack(cursor.pack())
    assert other.epoch_report() == report


def test_rounds_before_the_size_is_known_count_what_was_skipped_and_failed() -> None:
    early, late = DataCursor(2, 100, 10), DataCursor(2)
    for cursor in (early, late):
        cursor.commit((0, 1), {0: 10}, unused={1: "skipped"})
        cursor.commit((0, 1), {1: 10}, unused={0: "non_finite"})
        cursor.commit((0, 1), {1: 10}, unused={0: "non_finite"})
    late.configure(100, 10)
    assert late.pack() == early.pack()


def test_two_ends_of_one_run_are_refused() -> None:
    cursor, other = DataCursor(3, 90, 10), DataCursor(3, 90, 10)
    cursor.configure(90, 10, extended=2)
    cursor.configure(90, 10)
    assert cursor.extended == 2
    with pytest.raises(ConfigError, match="3 epochs"):
        cursor.configure(90, 10, extended=3)
    other.unpack(cursor.pack())
    assert other.extended == 2
    other = DataCursor(3, 90, 10)
    other.configure(90, 10, extended=3)
    with pytest.raises(ValueError, match="2 epochs with all samples"):
        other.unpack(cursor.pack())


@pytest.mark.parametrize("proven", [False, True])
def test_with_one_that_is_proven_to_lie_the_rule_needs_fewer_and_with_a_suspect_not(proven):
    settings = CoreSettings(b"run", b"lineage", 0, (0, 1, 2, 3), f=1, updates_for=(1, 3))
    agreed = ReplicatedState(settings)
    agreed.begin()
    assert agreed.cursor.at_least == 3
    for round_id in range(40):
        contributors = [Contribution(peer, 32, 0.3, 1.0) for peer in (0, 1, 3)]
        agreed.trust.observe_commit(
            round_id, contributors, [Rejection(2, "non_finite")], roster=settings.peers
        )
    if proven:
        agreed.trust._standings[2].twice = 1
    assert agreed.begin() == ({2}, {2} if proven else set())
    assert agreed.cursor.at_least == (1 if proven else 3)


def test_data_that_is_sharded_far_too_late_is_refused() -> None:
    cursor = DataCursor(3)
    for _ in range(PENDING_ROUNDS + 1):
        cursor.commit(ABC, whole(ABC))
    with pytest.raises(ConfigError, match="after more than"):
        cursor.configure(100, 10)


def test_another_size_than_before_is_refused() -> None:
    cursor = DataCursor(3, 100, 10)
    cursor.configure(100, 10)
    for wrong in ((100, 20), (99, 10), (0, 10), (10, 0)):
        with pytest.raises(ConfigError, match="data"):
            cursor.configure(*wrong)


def test_who_takes_over_a_state_must_have_the_same_data() -> None:
    donor, taker, other = (DataCursor(3, total, 10) for total in (100, 100, 200))
    donor.commit(ABC, whole((0,)))
    taker.unpack(donor.pack())
    assert taker.assign(ABC) == donor.assign(ABC)
    with pytest.raises(ValueError, match="the donor has 100"):
        other.unpack(donor.pack())


def test_a_donor_that_does_not_know_the_size_yet_hands_over_its_rounds() -> None:
    donor, taker, both = DataCursor(3), DataCursor(3, 100, 10), DataCursor(3, 100, 10)
    for contributors in ((0, 1), (2,)):
        donor.commit(ABC, whole(contributors))
        both.commit(ABC, whole(contributors))
    taker.unpack(donor.pack())
    assert taker.pack() == both.pack()


@pytest.mark.parametrize(
    "change",
    [
        {0: (100, 0, 3, 0)},
        {0: (100, 10, 0, 0)},
        {1: (0, 1, 101, 1, 10, 1)},  # beyond the end
        {1: (0, 1, 30, 1, 11, 1)},  # more was used than given out
        {1: (0, 1, 30, 1, 10, 0)},
        {1: (0, 1, 30, 1, 10)},
        {2: (0, ((5, 35),), ())},
        {2: (0, ((20, 25), (24, 29)), ())},
        {2: (0, ((20, 30), (10, 20)), ())},
        {2: (0, ((10, 30),), ((0, 1),))},  # more is unused than was given out
        {2: (-1, ((10, 30),), ())},
        {2: (0, ((10, 30),))},
        {2: None},
        {3: (1, 2)},
        {4: ((1,),)},
    ],
)
def test_a_disorderly_state_is_refused_and_changes_nothing(change: dict[int, object]) -> None:
    donor, taker = DataCursor(3, 100, 10), DataCursor(3, 100, 10)
    donor.commit(ABC, whole((0,)))
    fields = list(donor.pack())
    assert fields[1] == (0, 1, 30, 1, 10, 1)
    for place, value in change.items():
        fields[place] = value
    before = taker.pack()
    with pytest.raises(ValueError, match="data"):
        taker.unpack(tuple(fields))
    assert taker.pack() == before


def test_a_fixed_global_batch_is_shared_by_however_many_there_are() -> None:
    cursor = DataCursor(4, 1000, 10, fixed_global=True)
    assert cursor.assign((0, 1, 2, 3)) == {
        0: ((0, 10),),
        1: ((10, 20),),
        2: ((20, 30),),
        3: ((30, 40),),
    }
    assert sizes(cursor, ABC) == [14, 13, 13]
    assert cursor.assign((2,)) == {2: ((0, 40),)}
    late = DataCursor(4, fixed_global=True)
    late.configure(1000, 10)
    # of a donor that does not know the size yet
    late.unpack(DataCursor(4, fixed_global=True).pack())
    assert late.round_samples(1) == 40


def test_who_is_slow_gets_less_and_the_others_no_more_than_a_batch() -> None:
    slow, alike = DataCursor(3, 1000, 8, paced=True), DataCursor(3, 1000, 8)
    for _ in range(2 * PACE_WINDOW):
        for cursor in (slow, alike):
            cursor.commit(ABC, whole(ABC), {0: 100_000, 1: 100_000, 2: 900_000})
    assert sorted(sizes(slow, ABC)) == [2, 8, 8]
    assert sizes(alike, ABC) == [8, 8, 8]


def test_rounds_that_have_not_a_sample_for_everybody_say_nothing_of_who_is_slow() -> None:
    cursor, eight = DataCursor(2, 1000, 2, paced=True), tuple(range(8))
    for _ in range(2 * PACE_WINDOW):
        assert sizes(cursor, eight).count(0) == 4
        busy = [peer for peer, ranges in cursor.assign(eight).items() if ranges]
        cursor.commit(eight, whole(busy), dict.fromkeys(eight, 10**5))
    assert cursor.pace.levels() == {}


@pytest.mark.parametrize(
    ("total", "weights", "shares"),
    [
        (48, [4, 4, 1, 4, 4, 4], [10, 9, 2, 9, 9, 9]),
        (10, [4, 4, 4], [4, 3, 3]),
        (3, [4, 4, 1], [1, 1, 1]),
        (4, [1, 4, 1, 1], [1, 1, 1, 1]),
        (2, [1, 4, 4], [1, 1, 0]),
        (3, [4, 4, 1, 1, 2], [1, 1, 1, 0, 0]),
        (5, [1, 1, 4, 1], [1, 1, 2, 1]),
    ],
)
def test_what_is_shared_by_weight_is_all_shared(
    total: int, weights: list[int], shares: list[int]
) -> None:
    assert _apportioned(total, weights) == shares
