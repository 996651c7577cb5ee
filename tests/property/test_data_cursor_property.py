"""Whoever comes, goes and fails: every position of an epoch is used exactly once."""

from random import Random

from effort import effort
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gossip.core.ledger.data_cursor import DataCursor
from gossip.core.ledger.pace import WINDOW


@given(
    seed=st.integers(0, 2**32),
    samples_total=st.integers(1, 300),
    batch=st.integers(1, 40),
    most=st.integers(1, 12),
    reliability=st.floats(0.2, 1.0),
    batches=st.sampled_from([0, 0, 1, 5, 12]),
    paced=st.booleans(),
)
# a tail, and who is slow has as much
@example(seed=0, samples_total=23, batch=1, most=4, reliability=1.0, batches=0, paced=True)
@settings(max_examples=effort(50, 150), deadline=None)
def test_every_position_of_a_completed_epoch_is_used_once(
    seed: int,
    samples_total: int,
    batch: int,
    most: int,
    reliability: float,
    batches: int,
    paced: bool,
) -> None:
    random, cursor = Random(seed), DataCursor(samples_total, batch, batches=batches, paced=paced)
    slowness = [random.choice([1, 1, 1, 2, 5]) * 10**5 for _ in range(20)]
    used: dict[int, list[int]] = {}
    recent: dict[int, int] = {}  # what those who contributed to the last round have in a whole one
    roster: tuple[int, ...] = ()
    for at in range(200):
        if at % 20 == 0 or not paced:  # long enough for windows to end
            roster = tuple(sorted(random.sample(range(20), random.randint(1, most))))
        slices, epoch = cursor.assign(roster), cursor.epoch
        contributors = tuple(
            peer for peer in roster if slices[peer] and random.random() < reliability
        )
        given_out = [
            at for ranges in slices.values() for start, stop in ranges for at in range(start, stop)
        ]
        levels = cursor.pace.levels()
        slow = {peer: max(1, batch >> levels.get(peer, 0)) for peer in roster}
        whole = batch * batches or sum(slow.values())
        most_of_it = min(cursor.remaining, whole)
        assert 0 < len(given_out) == len(set(given_out)) <= most_of_it
        sizes = {
            peer: sum(stop - start for start, stop in ranges) for peer, ranges in slices.items()
        }
        if cursor.remaining >= 2 * whole:  # else it is one of the last rounds
            assert len(given_out) == whole
            if not levels:
                assert max(sizes.values()) - min(sizes.values()) <= 1
            elif not batches:
                assert sizes == slow
            else:
                assert len(roster) > whole or min(sizes.values()) > 0
        elif batches == 0:
            assert all(sizes[peer] <= slow[peer] for peer in roster)
        if present := [min(slow[peer], recent[peer]) for peer in recent if peer in roster]:
            # A round of few samples comes only of failures in one that gave out all that was left.
            assert 2 * len(given_out) >= (batch * batches or sum(present))
        recent = {peer: slow[peer] for peer in contributors if len(given_out) < cursor.remaining}
        for peer in contributors:
            used.setdefault(epoch, []).extend(
                at for start, stop in slices[peer] for at in range(start, stop)
            )
        report = cursor.commit(roster, contributors, {peer: slowness[peer] for peer in roster})
        assert (report is not None) == (cursor.epoch == epoch + 1)
        if report is not None:
            assert sorted(used[epoch]) == list(range(samples_total))
            assert (report.epoch, report.once, report.twice, report.never) == (
                epoch,
                samples_total,
                0,
                0,
            )
        assert len(cursor.pack()[2]) <= batch * max(most, batches)


@given(
    seed=st.integers(0, 2**32),
    samples_total=st.integers(1, 200),
    batch=st.integers(1, 20),
    n=st.integers(1, 9),
    at_least=st.integers(1, 9),
    batches=st.sampled_from([0, 4]),
    slow=st.sets(st.integers(0, 8)),
)
@example(seed=0, samples_total=5, batch=1, n=5, at_least=5, batches=4, slow=set())
@example(seed=0, samples_total=3, batch=8, n=5, at_least=3, batches=4, slow={1, 3})
@settings(max_examples=effort(50, 150), deadline=None)
def test_rounds_have_enough_for_the_rule_and_few_positions_are_given_up(
    seed: int, samples_total: int, batch: int, n: int, at_least: int, batches: int, slow: set[int]
) -> None:
    random, cursor = Random(seed), DataCursor(samples_total, batch, at_least, batches, paced=True)
    roster, used = tuple(range(n)), 0
    took_us = {peer: 900_000 if peer in slow else 100_000 for peer in roster}
    for _ in range(2 * WINDOW):
        cursor.pace.observe(roster, roster, took_us)
    enough = min(at_least, n)
    for _ in range(60):
        slices = cursor.assign(roster)
        busy = sum(1 for ranges in slices.values() if ranges)
        assert busy >= min(enough, samples_total)
        # All of them first, so that a failure is the only cause of loss.
        contributors = (
            roster if random.random() < 0.7 else tuple(random.sample(roster, random.randint(0, n)))
        )
        used += sum(stop - start for peer in contributors for start, stop in slices[peer])
        report = cursor.commit(roster, contributors, took_us)
        if report is not None:
            assert report.never < enough
            assert (report.once, report.twice) == (used, 0)
            assert report.once + report.never == samples_total
            used = 0


@given(seed=st.integers(0, 2**32), split=st.integers(0, 40), batches=st.sampled_from([0, 4]))
@settings(deadline=None)
def test_a_cursor_handed_over_goes_on_exactly_as_its_original(
    seed: int, split: int, batches: int
) -> None:
    random, original, taken_over = (
        Random(seed),
        DataCursor(97, 7, 2, batches, True),
        DataCursor(batches=batches, paced=True),
    )
    for round_id in range(80):
        if round_id == split:
            taken_over.unpack(original.pack())
        roster = tuple(sorted(random.sample(range(9), random.randint(1, 9))))
        contributors = tuple(peer for peer in roster if random.random() < 0.8)
        took_us = {peer: 10**5 * (1 + peer % 3) for peer in roster}
        original.commit(roster, contributors, took_us)
        if round_id >= split:
            taken_over.commit(roster, contributors, took_us)
            assert taken_over.pack() == original.pack()
