"""The last rounds of an epoch: who shares them, and how small they get."""

from gossip.core.events import EpochReport
from gossip.core.ledger.data_cursor import DataCursor
from gossip.core.ledger.replicated_state import ReplicatedState
from gossip.core.messages import Contribution, Rejection
from gossip.core.settings import CoreSettings

ABC = (0, 1, 2)
ROUNDS = (3, ABC), (3, (0, 1)), (3, (0, 1)), (1, ABC)
"""What the rule needs, and who contributes."""


def sizes(cursor: DataCursor, roster: tuple[int, ...]) -> dict[int, int]:
    slices = cursor.assign(roster)
    return {peer: sum(stop - start for start, stop in slices[peer]) for peer in roster}


def test_with_a_liar_in_quarantine_the_rule_needs_fewer_so_the_dead_get_nothing_of_the_tail() -> (
    None
):
    settings = CoreSettings(b"run", b"lineage", 0, (0, 1, 2, 3), f=1, updates_for=(1, 3))
    agreed = ReplicatedState(settings)
    for round_id in range(40):
        contributors = [Contribution(peer, 32, 0.3, 1.0) for peer in (0, 1, 3)]
        agreed.trust.observe_commit(
            round_id, contributors, [Rejection(2, "non_finite")], roster=settings.peers
        )
    agreed.configure_data(60, 32)
    assert agreed.begin() == {2}
    agreed.cursor.commit((0, 1, 3), (0, 3))  # 1 is dead, and in the roster
    agreed.begin()
    assert sizes(agreed.cursor, (0, 1, 3)) == {0: 10, 1: 0, 3: 10}
    agreed.cursor.commit((0, 1, 3), (0, 3))
    assert agreed.cursor.epoch_report() == EpochReport(0, once=60, twice=0, never=0, rounds=2)


def test_rounds_before_the_size_is_known_count_with_what_the_rule_needed_in_them() -> None:
    early, late = DataCursor(33, 10), DataCursor()
    for at_least, contributors in ROUNDS:
        early.at_least = late.at_least = at_least
        early.commit(ABC, contributors)
        late.commit(ABC, contributors)
    late.configure(33, 10)
    assert late.pack() == early.pack()
    assert late.epoch_report() == EpochReport(0, once=31, twice=0, never=2, rounds=3)
    taker = DataCursor(33, 10)
    donor = DataCursor()
    for at_least, contributors in ROUNDS:
        donor.at_least = at_least
        donor.commit(ABC, contributors)
    taker.unpack(donor.pack())
    assert taker.pack() == early.pack()


def given(
    samples_total: int, batch: int, roster: tuple[int, ...], present: tuple[int, ...]
) -> list[int]:
    """How many samples the rounds of an epoch use when only ``present`` contribute."""
    cursor, used = DataCursor(samples_total, batch), []
    while cursor.epoch == 0:
        used.append(sum(size for peer, size in sizes(cursor, roster).items() if peer in present))
        cursor.commit(roster, present)
    return used


def test_the_last_two_rounds_of_an_epoch_share_what_is_left_alike() -> None:
    assert given(130, 10, (0, 1, 2, 3), (0, 1, 2, 3)) == [40, 40, 25, 25]
    assert given(161, 10, (0, 1, 2, 3), (0, 1, 2, 3)) == [40, 40, 40, 21, 20]
    assert given(160, 10, (0, 1, 2, 3), (0, 1, 2, 3)) == [40, 40, 40, 40]


def test_the_last_two_rounds_are_for_those_who_contributed_last() -> None:
    assert given(130, 10, (0, 1, 2, 3), (0, 1, 2)) == [30, 30, 26, 22, 22]
    assert given(110, 10, (0, 1, 2, 3), (0, 1, 2)) == [30, 30, 25, 25]
    assert given(70, 10, (0, 1, 2, 3, 4, 5, 6), (0, 1)) == [20, 20, 15, 15]


def test_rounds_that_are_not_for_everybody_say_nothing_of_who_is_slow() -> None:
    """Who gets nothing of a tail cannot contribute to it. Here 3 is late once in each epoch, in one
    of the two whole rounds."""
    cursor, roster = DataCursor(125, 10, paced=True), (0, 1, 2, 3)
    for at in range(80):
        got = sizes(cursor, roster)
        assert [got[0], got[3]] == [[10, 10], [10, 10], [got[0], 0], [9, 0]][at % 4]
        cursor.commit(roster, roster if at % 4 == 0 else (0, 1, 2), dict.fromkeys(roster, 10**5))
    assert cursor.pace.levels() == {}


def test_a_round_that_taught_nothing_does_not_forget_who_is_here() -> None:
    cursor, roster = DataCursor(70, 10), (0, 1, 2, 3)
    cursor.commit(roster, (0, 1, 2))
    before = sizes(cursor, roster)
    assert before[3] == 0
    cursor.commit(roster, ())
    assert sizes(cursor, roster)[3] == 0
    assert sum(sizes(cursor, roster).values()) == sum(before.values())


def test_epochs_of_less_than_two_rounds_tell_who_is_slow() -> None:
    cursor, roster = DataCursor(190, 32, paced=True), (0, 1, 2, 3)
    for _ in range(80):
        got = sizes(cursor, roster)
        cursor.commit(
            roster,
            [peer for peer in roster if got[peer]],
            {0: 10**5, 1: 10**5, 2: 10**5, 3: 4 * 10**5},
        )
    assert cursor.pace.levels() == {3: 2}
