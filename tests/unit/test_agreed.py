"""What is taken over from another peer: all of it, or nothing."""

import json
from typing import Any

import pytest

from gossip.core.ledger import Ledger
from gossip.core.ledger.replicated_state import ReplicatedState
from gossip.core.messages import Accusation, Commit, Contribution, Rejection
from gossip.core.settings import CoreSettings

WRONG: dict[int, tuple[Any, ...]] = {
    0: ([], [0, 0], [1, 0], [0, 9], [True], "01", None),
    1: (5, [[1]], [[0, 2.0, 0.0, False, "normal", 0, [], 0, 0, []]], [[10**400] * 10]),
    2: (5, [], [[0, 0]], None),
    3: (5, [[0]], [[0, 1.5, 0, []]], [[0, 0.5, -1, []]]),
    4: (5, [[]], [[[0, 0, 0]], []], [[], [[0]]]),
}
"""By place in a snapshot what cannot stand there."""


def agreed(samples: int = 60) -> ReplicatedState:
    made = ReplicatedState(CoreSettings(b"run", b"lineage", 0, (0, 1, 2, 3), f=1))
    made.configure_data(samples, 8)
    made.begin()
    return made


def a_round_later() -> ReplicatedState:
    """With another data cursor and another trust table."""
    made = agreed()
    made.cursor.commit((0, 1, 2), dict.fromkeys((0, 1, 2), 99))
    made.trust.observe_commit(0, (), ())
    made.begin()
    return made


def packed(of: ReplicatedState) -> tuple[Any, ...]:
    """As it comes over the wire."""
    snapshot = of.snapshot(of.lineage.next_round)
    return tuple(json.loads(json.dumps(snapshot[1])))


def held(of: ReplicatedState) -> str:
    of.begin()
    return json.dumps([packed(of), of.lineage.next_round, of.lineage.head.hex(), of.rates])


@pytest.mark.parametrize(
    ("place", "wrong"), [(place, wrong) for place in WRONG for wrong in WRONG[place]]
)
def test_of_a_snapshot_that_is_wrong_in_one_place_nothing_is_taken(place: int, wrong: Any) -> None:
    mine, theirs = agreed(), a_round_later()
    snapshot = list(packed(theirs))
    before = held(mine)
    snapshot[place] = wrong
    for attempt in (
        lambda: mine.check(tuple(snapshot)),
        lambda: mine.adopt(7, b"chain", tuple(snapshot)),
    ):
        with pytest.raises((ValueError, OverflowError)):
            attempt()
        assert held(mine) == before


@pytest.mark.parametrize("snapshot", [(), ([0],), tuple("roster"), ([0, 1, 2, 3], [], [], [], [])])
def test_what_has_not_the_six_parts_of_a_snapshot_is_none(snapshot: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="a snapshot must have a roster"):
        agreed().check(snapshot)


def test_of_a_run_with_other_data_nothing_is_taken_over() -> None:
    mine = agreed()
    before = held(mine)
    with pytest.raises(ValueError, match="the donor has 61 samples in batches of 8"):
        mine.adopt(7, b"chain", packed(agreed(samples=61)))
    assert held(mine) == before


def test_a_copy_of_a_ledger_changes_alone() -> None:
    settings = CoreSettings(b"run", b"lineage", 0, (0, 1, 2, 3), f=1)
    ledger = Ledger(settings)
    ledger.configure_data(60, 8, 0)

    def apply(to: Ledger, round_id: int) -> tuple[Any, ...]:
        """Each table has an entry from before, which this changes."""
        turns = Accusation(3, round_id, turn=b"t" * 16, content=b"c" * 16)
        accusations = (Accusation(2, round_id, silent=True), Accusation(1, round_id), turns)
        used = tuple([Contribution(peer, 4, 0.3, 1.0, took_us=1000) for peer in (0, 1, 3)])
        where = b"lineage", round_id, 0, 0, 0, round_id % 2, b"p" * 16, b"d" * 16
        rejected = (Rejection(2, "non_finite"),)
        to.begin()
        to.apply([Commit(*where, used, rejected, (0, 1, 2, 3), None, "", accusations=accusations)])
        return to.begin()

    before = apply(ledger, 0)
    packed, copied = json.dumps(before[3]), ledger.copy()
    after = [apply(copied, round_id) for round_id in range(1, 8)][-1]
    assert json.dumps(ledger.begin()[3]) == packed
    tables = zip(before[3][1:-1], after[3][1:-1], strict=True)
    assert all(ours != theirs for ours, theirs in tables), "each table has changed"
