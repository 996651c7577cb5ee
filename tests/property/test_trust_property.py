"""What holds for every course of events."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from gossip.core.ledger.trust import TrustTable
from gossip.core.messages import Contribution, Rejection
from gossip.core.settings import TrustSettings

SHORT = TrustSettings(quarantine_rounds=7, parole_rounds=3)


@given(seed=st.integers(0, 2**32), n=st.integers(3, 24), f=st.integers(0, 8))
@settings(max_examples=30)
def test_honest_noise_is_never_suspected(seed: int, n: int, f: int) -> None:
    random, table = Random(seed), TrustTable(TrustSettings(), f)
    for round_id in range(300):
        # Around 1, above 3 about once in 300 updates.
        made = [Contribution(peer, 32, 1 / n, random.lognormvariate(0.0, 0.4)) for peer in range(n)]
        assert table.observe_commit(round_id, made, [], roster=range(n)) == []


verdicts = st.sampled_from([1.0, 1.0, 2.9, 3.1, 50.0, "non_finite", "late", None])
courses = st.lists(st.lists(verdicts, min_size=6, max_size=6), max_size=60)


def follow(table: TrustTable, course: list[list[Any]], first: int = 0) -> list[Any]:
    changes = []
    for round_id, row in enumerate(course, first):
        made = [
            Contribution(peer, 1, 0.1, far)
            for peer, far in enumerate(row)
            if isinstance(far, float)
        ]
        out = [Rejection(peer, why) for peer, why in enumerate(row) if isinstance(why, str)]
        changes += table.observe_commit(round_id, made, out, roster=range(6))
        assert all(0.0 <= table.score(peer) <= 1.0 for peer in range(6))
        assert len(table.quarantined()) <= min(table.f, 2)
        assert not any(table.may_serve(peer) for peer in table.quarantined())
    return changes


@given(course=courses, f=st.integers(0, 3))
def test_scores_stay_in_bounds_and_a_majority_is_free(course: list[list[Any]], f: int) -> None:
    changes = follow(TrustTable(SHORT, f), course)
    assert f or not any(change.change == "quarantined" for change in changes)


@given(before=courses, after=courses)
def test_a_table_handed_over_goes_on_exactly_as_its_original(
    before: list[list[Any]], after: list[list[Any]]
) -> None:
    original, taken_over = TrustTable(SHORT, 2), TrustTable(SHORT, 2)
    follow(original, before)
    taken_over.unpack(original.pack())
    assert follow(taken_over, after, len(before)) == follow(original, after, len(before))
    assert taken_over.pack() == original.pack()


plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
    lambda inner: st.lists(inner, max_size=8).map(tuple),
    max_leaves=20,
)


@given(junk=plain)
def test_junk_from_a_donor_is_refused_and_changes_nothing(junk: Any) -> None:
    table = TrustTable(SHORT, 2)
    follow(table, [[1.0, 50.0, 1.0, "non_finite", 1.0, None]])
    before = table.pack()
    try:
        table.unpack(junk)
    except ValueError:
        assert table.pack() == before
    else:
        assert not junk[0], "a table of nobody"


def test_a_row_with_one_wrong_field_is_refused() -> None:
    table = TrustTable(SHORT, 2)
    good = (3, 0.5, True, "normal", 0, (("outlying", 4.0),), 1.0, 0, 0, ((7, (1, 2)),))
    table.unpack(((good,), 5, 1, 0))
    wrong = (-1, 1.5, "yes", "jailed", -1, (("bribed", 1.0),), 1.5, -1, -1, ((7, (-1,)),))
    for place, value in enumerate(wrong):
        with pytest.raises(ValueError, match=r"trust|accusations"):
            table.unpack((((*good[:place], value, *good[place + 1 :]),), 0, 0, 0))
    for suspected in (0, 1, 1.0):  # equal to a bool, and packed differently
        with pytest.raises(ValueError, match="trust"):
            table.unpack((((*good[:2], suspected, *good[3:]),), 0, 0, 0))
    for counts in ((-1, 0, 0), (0, True, 0), (0, 0, 0.5), (0, 0), (2**60, 0, 0)):
        with pytest.raises(ValueError, match=r"trust|accusations"):
            table.unpack(((good,), *counts))
    for far in (-1.0, 1e39, float("nan")):
        with pytest.raises(ValueError, match=r"trust|accusations"):
            table.unpack((((*good[:5], (("outlying", far),), *good[6:]),), 0, 0, 0))
