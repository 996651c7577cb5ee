"""Slices of an epoch, and what comes back."""

import pytest

from gossip.core.events import EpochReport
from gossip.core.ledger.data_cursor import PENDING_ROUNDS, DataCursor, _apportioned
from gossip.core.ledger.pace import WINDOW
from gossip.errors import ConfigError

ABC = (0, 1, 2)


def test_a_round_gives_each_peer_its_batch_in_order() -> None:
    assert DataCursor(100, 10).assign(ABC) == {0: ((0, 10),), 1: ((10, 20),), 2: ((20, 30),)}


def test_the_order_begins_one_peer_later_every_round() -> None:
    cursor = DataCursor(100, 10)
    cursor.commit(ABC, ABC)
    assert cursor.assign(ABC) == {1: ((30, 40),), 2: ((40, 50),), 0: ((50, 60),)}


def test_assigning_changes_nothing() -> None:
    cursor = DataCursor(100, 10)
    before = cursor.pack()
    cursor.assign(ABC)
    assert cursor.pack() == before


def test_what_a_lost_peer_held_is_given_to_another_first() -> None:
    cursor = DataCursor(100, 10)
    cursor.commit(ABC, (0, 1))
    assert cursor.assign(ABC) == {1: ((20, 30),), 2: ((30, 40),), 0: ((40, 50),)}


def test_a_slice_may_be_made_of_returned_and_fresh_positions() -> None:
    cursor = DataCursor(100, 10)
    cursor.commit(ABC, (0,))
    assert cursor.assign((0, 1)) == {1: ((10, 20),), 0: ((20, 30),)}
    cursor.commit((0, 1), (0,))
    assert cursor.assign((7,)) == {7: ((10, 20),)}


def test_the_end_of_an_epoch_is_split_evenly_and_the_next_begins() -> None:
    cursor = DataCursor(70, 10)
    assert cursor.commit(ABC, ABC) is None
    assert cursor.assign(ABC) == {1: ((30, 37),), 2: ((37, 44),), 0: ((44, 50),)}
    assert cursor.commit(ABC, ABC) is None
    assert cursor.assign(ABC) == {2: ((50, 57),), 0: ((57, 64),), 1: ((64, 70),)}
    assert cursor.commit(ABC, ABC) == EpochReport(0, once=70, twice=0, never=0, rounds=3)
    assert cursor.epoch == 1
    assert (
        sum(stop - start for ranges in cursor.assign(ABC).values() for start, stop in ranges) == 30
    )


def test_an_epoch_waits_for_what_came_back() -> None:
    cursor = DataCursor(30, 10)
    assert cursor.commit(ABC, (0, 2)) is None
    assert cursor.epoch == 0
    assert cursor.assign(ABC) == {2: ((10, 15),), 0: ((15, 20),), 1: ()}, (
        "1 may have crashed: it gets none of the tail"
    )


def test_a_new_epoch_is_a_new_chance_for_who_missed_the_last_round() -> None:
    cursor = DataCursor(30, 10)
    cursor.commit(ABC, (0, 2))
    cursor.commit(ABC, (0, 2))
    assert cursor.epoch == 1
    assert all(cursor.assign(ABC).values())


def test_a_member_that_never_contributes_cannot_hold_up_an_epoch() -> None:
    cursor = DataCursor(31, 10)
    for _ in range(20):
        if cursor.commit(ABC, (1, 2)):
            break
    assert cursor.epoch_report() == EpochReport(
        0, once=31, twice=0, never=0, rounds=cursor.epoch_report().rounds
    )


def test_a_round_that_nobody_contributed_to_uses_nothing() -> None:
    cursor = DataCursor(30, 10)
    for _ in range(10):
        assert cursor.commit(ABC, ()) is None
    assert cursor.remaining == 30
    assert cursor.pack()[2] == ((0, 30),)


def test_a_rule_that_needs_many_updates_gets_them_to_the_end() -> None:
    cursor = DataCursor(33, 10, at_least=3)
    given = [len([ranges for ranges in cursor.assign(ABC).values() if ranges])]
    report = cursor.commit(ABC, ABC)
    while report is None:
        given.append(len([ranges for ranges in cursor.assign(ABC).values() if ranges]))
        report = cursor.commit(ABC, ABC)
    assert given == [3, 3]
    cursor = DataCursor(7, 2, at_least=3)
    cursor.commit(ABC, ABC)
    assert cursor.remaining == 3
    assert cursor.commit(ABC, ABC) == EpochReport(0, once=7, twice=0, never=0, rounds=2)
    cursor = DataCursor(5, 1, at_least=3)  # too few for two such rounds
    assert cursor.commit(ABC, ABC) == EpochReport(0, once=3, twice=0, never=2, rounds=1)


def test_too_few_for_the_rule_are_reported_as_never_used() -> None:
    cursor = DataCursor(33, 10, at_least=3)
    cursor.commit(ABC, ABC)
    assert cursor.commit(ABC, (0, 1)) is None
    assert cursor.remaining == 5
    assert cursor.commit(ABC, (0, 1)) == EpochReport(0, once=31, twice=0, never=2, rounds=3)
    assert cursor.samples() == (31, 0, 2)


def test_rounds_before_the_size_is_known_count_once_it_is() -> None:
    early, late = DataCursor(100, 10), DataCursor()
    for contributors in ((0, 1), (0, 1, 2), (2,)):
        early.commit(ABC, contributors)
        assert late.assign(ABC) == {0: (), 1: (), 2: ()}
        late.commit(ABC, contributors)
    late.configure(100, 10)
    assert late.pack() == early.pack()


def test_data_that_is_sharded_far_too_late_is_refused() -> None:
    cursor = DataCursor()
    for _ in range(PENDING_ROUNDS + 1):
        cursor.commit(ABC, ABC)
    with pytest.raises(ConfigError, match="after more than"):
        cursor.configure(100, 10)


def test_another_size_than_before_is_refused() -> None:
    cursor = DataCursor(100, 10)
    cursor.configure(100, 10)
    for wrong in ((100, 20), (99, 10), (0, 10), (10, 0)):
        with pytest.raises(ConfigError, match="data"):
            cursor.configure(*wrong)


def test_who_takes_over_a_state_must_have_the_same_data() -> None:
    donor, taker, other = DataCursor(100, 10), DataCursor(100, 10), DataCursor(200, 10)
    donor.commit(ABC, (0,))
    taker.unpack(donor.pack())
    assert taker.assign(ABC) == donor.assign(ABC)
    with pytest.raises(ValueError, match="the donor has 100"):
        other.unpack(donor.pack())


def test_a_donor_that_does_not_know_the_size_yet_hands_over_its_rounds() -> None:
    donor, taker, both = DataCursor(), DataCursor(100, 10), DataCursor(100, 10)
    for contributors in ((0, 1), (2,)):
        donor.commit(ABC, contributors)
        both.commit(ABC, contributors)
    taker.unpack(donor.pack())
    assert taker.pack() == both.pack()


@pytest.mark.parametrize(
    "change",
    [
        {0: (100, 10, 1, 0, 101, 1, 1)},  # beyond the end
        {0: (100, 0, 1, 0, 30, 1, 1)},
        {1: (9, 0, 0)},  # lost count
        {2: ((5, 35),)},
        {2: ((20, 25), (24, 29))},
        {2: ((20, 30), (10, 20))},
        {2: ((15, 35),)},
        {3: (1, 2)},
        {4: ((1,),)},
        {2: None},
    ],
)
def test_a_disorderly_state_is_refused_and_changes_nothing(change: dict[int, object]) -> None:
    donor, taker = DataCursor(100, 10), DataCursor(100, 10)
    donor.commit(ABC, (0,))
    fields = list(donor.pack())
    for place, value in change.items():
        fields[place] = value
    before = taker.pack()
    with pytest.raises(ValueError, match="data"):
        taker.unpack(tuple(fields))
    assert taker.pack() == before


def test_a_fixed_global_batch_is_shared_by_however_many_there_are() -> None:
    cursor = DataCursor(1000, 10, batches=4)
    assert cursor.assign((0, 1, 2, 3)) == {
        0: ((0, 10),),
        1: ((10, 20),),
        2: ((20, 30),),
        3: ((30, 40),),
    }
    assert [stop - start for ((start, stop),) in cursor.assign(ABC).values()] == [14, 13, 13]
    assert cursor.assign((2,)) == {2: ((0, 40),)}
    late = DataCursor(batches=4)
    late.configure(1000, 10)
    late.unpack(DataCursor(batches=4).pack())  # of a donor that does not know the size yet
    assert late.round_samples(1) == 40


def test_who_is_slow_gets_less_and_the_others_no_more_than_a_batch() -> None:
    cursor = DataCursor(1000, 8, paced=True)
    for _ in range(2 * WINDOW):
        cursor.commit(ABC, ABC, {0: 100_000, 1: 100_000, 2: 900_000})
    assert {peer: stop - start for peer, ((start, stop),) in cursor.assign(ABC).items()} == {
        0: 8,
        1: 8,
        2: 2,
    }
    alike = DataCursor(1000, 8)
    for _ in range(2 * WINDOW):
        alike.commit(ABC, ABC, {0: 100_000, 1: 100_000, 2: 900_000})
    assert {peer: stop - start for peer, ((start, stop),) in alike.assign(ABC).items()} == {
        0: 8,
        1: 8,
        2: 8,
    }


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
