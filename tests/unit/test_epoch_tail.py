"""The last rounds of an epoch: who shares them, and how small they get."""

from gossip.core.agreed import Agreed
from gossip.core.data_cursor import DataCursor, EpochReport
from gossip.core.messages import Contribution, Rejection
from gossip.core.settings import CoreSettings

ABC = (0, 1, 2)


def sizes(cursor: DataCursor, roster: tuple[int, ...]) -> dict[int, int]:
    slices = cursor.assign(roster)
    return {peer: sum(stop - start for start, stop in slices[peer]) for peer in roster}


def test_with_a_liar_in_quarantine_the_rule_needs_fewer_so_the_dead_get_nothing_of_the_tail() -> None:
    settings = CoreSettings(b"run", b"lineage", 0, (0, 1, 2, 3), f=1, updates_for=(1, 3))
    agreed = Agreed(settings)
    for round_id in range(40):
        contributors = [Contribution(peer, 32, 0.3, 1.0) for peer in (0, 1, 3)]
        agreed.trust.observe_commit(round_id, contributors, [Rejection(2, "non_finite")], roster=settings.peers)
    agreed.configure_data(60, 32)
    assert agreed.begin() == {2}
    agreed.cursor.commit((0, 1, 3), (0, 3))  # 1 is dead, and in the roster
    agreed.begin()
    assert sizes(agreed.cursor, (0, 1, 3)) == {0: 10, 1: 0, 3: 10}
    agreed.cursor.commit((0, 1, 3), (0, 3))
    assert agreed.cursor.epoch_report() == EpochReport(0, once=60, twice=0, never=0, rounds=2)


def test_rounds_before_the_size_is_known_count_with_what_the_rule_needed_in_them() -> None:
    early, late = DataCursor(33, 10), DataCursor()
    for at_least, contributors in ((3, ABC), (3, (0, 1)), (1, ABC)):
        early.at_least = late.at_least = at_least
        early.commit(ABC, contributors)
        late.commit(ABC, contributors)
    late.configure(33, 10)
    assert late.pack() == early.pack()
    assert late.epoch_report() == EpochReport(0, once=32, twice=0, never=1, rounds=2)
    taker = DataCursor(33, 10)
    donor = DataCursor()
    for at_least, contributors in ((3, ABC), (3, (0, 1)), (1, ABC)):
        donor.at_least = at_least
        donor.commit(ABC, contributors)
    taker.unpack(donor.pack())
    assert taker.pack() == early.pack()
