"""Guesses are right while nobody fails, and always what a fresh look at the cursor would say."""

from random import Random

from effort import effort
from hypothesis import given, settings, strategies as st

from gossip.core.ledger.data_cursor import DataCursor
from gossip.core.ledger.prefetch import CursorLookahead
from gossip.core.settings import RANGES_MAX


@given(
    seed=st.integers(0, 2**32),
    samples_total=st.integers(1, 300),
    batch=st.integers(1, 40),
    ahead=st.integers(1, 6),
    reliability=st.sampled_from([0.8, 0.95, 1.0]),
)
@settings(max_examples=effort(40, 150))
def test_guesses_hold_until_somebody_fails(
    seed: int, samples_total: int, batch: int, ahead: int, reliability: float
) -> None:
    random, cursor, lookahead = Random(seed), DataCursor(5, samples_total, batch), CursorLookahead()
    lookahead.ahead = ahead
    roster: tuple[int, ...] = tuple(range(random.randint(1, 8)))
    expected: list[tuple[int, object]] = []
    for _ in range(60):
        if random.random() > reliability:
            roster, expected = tuple(sorted(random.sample(range(9), random.randint(1, 8)))), []
        local = roster[0]
        before = cursor.pack()
        ranges = cursor.assign(roster)[local]
        coming = lookahead.predict_rounds(cursor, roster, local)
        assert cursor.pack() == before
        fresh = CursorLookahead()
        fresh.ahead = ahead
        assert (
            coming
            == fresh.predict_rounds(cursor, roster, local)
            == lookahead.predict_rounds(cursor, roster, local)
        )
        assert len(coming) <= ahead
        assert all(ranges for _, ranges in coming)
        assert sum(len(ranges) for _, ranges in coming) <= RANGES_MAX
        if expected and ranges:
            assert (cursor.epoch, ranges) == expected[0]
        expected = list(coming)
        contributors = tuple(peer for peer in roster if random.random() < reliability)
        if contributors != roster:
            expected = []
        cursor.commit(roster, dict.fromkeys(contributors, 10**6))
