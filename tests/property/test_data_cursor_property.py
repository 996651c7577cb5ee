"""Whoever comes, goes and fails: every sample is used once, in epochs of the planned length."""

from random import Random

from effort import effort
from hypothesis import example, given, settings, strategies as st

from gossip.core.ledger.data_cursor import DataCursor
from gossip.core.settings import PACE_WINDOW, SPARE_ROUNDS


@given(
    seed=st.integers(0, 2**32),
    samples_total=st.integers(1, 300),
    batch=st.integers(1, 40),
    planned=st.integers(1, 12),
    most=st.integers(1, 12),
    reliability=st.floats(0.2, 1.0),
    fixed_global=st.booleans(),
    paced=st.booleans(),
    extended=st.sampled_from([0, 0, 1, 3]),
)
# further rounds of fewer samples than peers
@example(0, 1, 1, 1, 6, 0.5, True, False, 3)
# a tail, and who is slow has as much
@example(0, 23, 1, 4, 4, 1.0, False, True, 0)
@settings(max_examples=effort(50, 150))
def test_every_sample_is_used_once_and_every_epoch_has_its_rounds(
    seed: int,
    samples_total: int,
    batch: int,
    planned: int,
    most: int,
    reliability: float,
    fixed_global: bool,
    paced: bool,
    extended: int,
) -> None:
    random = Random(seed)
    cursor = DataCursor(planned, samples_total, batch, fixed_global=fixed_global, paced=paced)
    cursor.configure(samples_total, batch, extended)
    slowness = [random.choice([1, 1, 1, 2, 5]) * 10**5 for _ in range(20)]
    steps = -(-samples_total // (batch * planned))
    used: set[int] = set()
    given_up: set[int] = set()
    roster: tuple[int, ...] = ()
    epoch = in_epoch = used_before = 0
    for at in range(200):
        if at % 20 == 0 or not paced:  # long enough for windows to end
            roster = tuple(sorted(random.sample(range(20), random.randint(1, most))))
        assert cursor.epoch == epoch
        slices = cursor.assign(roster)
        given_out = [p for ranges in slices.values() for pair in ranges for p in range(*pair)]
        sizes = [sum(stop - start for start, stop in ranges) for ranges in slices.values()]
        end = samples_total * (min(epoch + 1, extended) if extended else epoch + 1)
        idle = cursor.pack()[2][0][0]
        assert given_up.isdisjoint(used)
        unread = [p for p in range(end) if p not in used and p not in given_up]
        # what comes first of all that nobody has used
        assert sorted(given_out) == unread[: len(given_out)]
        levels = cursor.pace.levels()
        own = [max(1, batch >> levels.get(peer, 0)) for peer in roster]
        whole = batch * planned if fixed_global else sum(own)
        assert len(given_out) <= whole
        # no step is on a handful of samples
        assert idle or 2 * len(given_out) >= min(whole, batch * planned, len(unread))
        if not fixed_global:
            assert all(size <= largest for size, largest in zip(sizes, own, strict=True))
        if not levels:
            assert max(sizes) - min(sizes) <= 1
        contributors = tuple(peer for peer in roster if random.random() < reliability)
        used.update(p for peer in contributors for pair in slices[peer] for p in range(*pair))
        report = cursor.commit(
            roster, dict.fromkeys(contributors, 10**6), {peer: slowness[peer] for peer in roster}
        )
        in_epoch += 1
        listed = cursor.pack()[2][2] if report is None else report.given_up_ranges
        given_up.update(p for pair in listed for p in range(*pair))
        left = len([p for p in unread if p not in used and p not in given_up])
        goes_on = in_epoch < steps or (epoch + 1 == extended and left > 0)
        assert (report is None) == goes_on
        if report is not None:
            assert (report.epoch, report.rounds, report.twice) == (epoch, in_epoch, 0)
            assert (report.once, report.left) == (len(used) - used_before, left)
            epoch, in_epoch, used_before = epoch + 1, 0, len(used)
        assert len(cursor.pack()[2][1]) <= batch * max(most, planned) * steps


@given(
    seed=st.integers(0, 2**32),
    samples_total=st.integers(1, 120),
    batch=st.integers(1, 40),
    n=st.integers(1, 8),
    damaged=st.integers(1, 20),
    reliability=st.sampled_from([1.0, 1.0, 0.7]),
    fixed_global=st.booleans(),
    paced=st.booleans(),
)
@settings(max_examples=effort(50, 150))
def test_an_extended_epoch_ends_and_gives_up_what_is_never_used(
    seed: int,
    samples_total: int,
    batch: int,
    n: int,
    damaged: int,
    reliability: float,
    fixed_global: bool,
    paced: bool,
) -> None:
    random = Random(seed)
    cursor = DataCursor(n, samples_total, batch, fixed_global, paced)
    cursor.configure(samples_total, batch, extended=1)
    roster = tuple(range(n))
    bad = set(random.sample(range(samples_total), min(damaged, samples_total)))
    took_us = {peer: random.choice([1, 1, 5]) * 10**5 for peer in roster}
    bound = SPARE_ROUNDS + n
    report, idle, given_up = None, 0, 0
    beside: dict[int, set[int]] = {}  # sample -> what was in its batch when it came last
    while report is None:
        assert cursor.pack()[1][1] <= (samples_total + 1) * (bound + 1)
        # so many rounds in a row that neither use a sample nor give one up
        assert idle <= bound
        reads = {
            peer: [p for pair in ranges for p in range(*pair)]
            for peer, ranges in cursor.assign(roster).items()
        }
        beside.update({p: set(batch) for batch in reads.values() for p in batch})
        good = [peer for peer in roster if reads[peer] and bad.isdisjoint(reads[peer])]
        used = [peer for peer in good if random.random() < reliability]
        report = cursor.commit(roster, dict.fromkeys(used, 10**6), took_us)
        gone = cursor.pack()[2][0][2]
        further = cursor.pack()[1][1] > cursor.steps_per_epoch
        idle = idle + 1 if further and not used and gone == given_up else 0
        given_up = gone
    unused = {p for pair in report.given_up_ranges for p in range(*pair)}
    assert unused >= bad
    assert (report.once, report.left) == (samples_total - len(unused), 0)
    assert report.given_up == len(unused)
    if reliability == 1.0:
        assert not any(bad.isdisjoint(beside[p]) for p in unused)


@given(
    seed=st.integers(0, 2**32),
    samples_total=st.integers(1, 300),
    batch=st.integers(1, 40),
    n=st.integers(1, 8),
    damage=st.sampled_from([0.1, 0.5, 1.0]),
)
@settings(max_examples=effort(50, 150))
def test_what_is_skipped_or_twice_no_number_does_not_come_again(
    seed: int, samples_total: int, batch: int, n: int, damage: float
) -> None:
    random = Random(seed)
    cursor, roster = DataCursor(n, samples_total, batch), range(n)
    skipped_in: list[int] = []
    given_up_in: list[int] = []
    used_in: list[int] = []
    seen: set[int] = set()
    over: set[int] = set()
    by_script = twice = used = 0
    for _ in range(100):
        slices = cursor.assign(roster)
        reads = {peer: {p for pair in slices[peer] for p in range(*pair)} for peer in roster}
        assert over.isdisjoint(set().union(*reads.values()))
        outcomes = {
            peer: random.choice(["skipped", "non_finite", "lost"])
            if random.random() < damage
            else "used"
            for peer in roster
        }
        peers = {
            what: [peer for peer in roster if outcomes[peer] == what]
            for what in ("used", "skipped", "non_finite")
        }
        by_script += sum(len(reads[peer]) for peer in peers["skipped"])
        again = [reads[peer] & seen for peer in peers["non_finite"]]
        twice += sum(map(len, again))
        used += sum(len(reads[peer]) for peer in peers["used"])
        over = over.union(*again, *[reads[peer] for peer in (*peers["used"], *peers["skipped"])])
        seen = seen.union(*reads.values())
        everything = dict.fromkeys(peers["used"], 10**6)
        report = cursor.commit(
            roster, everything, unused={p: why for p, why in outcomes.items() if why != "used"}
        )
        assert cursor.remaining == samples_total * (cursor.epoch + 1) - len(over)
        if report is not None:
            skipped_in.append(report.skipped)
            given_up_in.append(report.given_up)
            used_in.append(report.once)
            assert [sum(skipped_in), sum(given_up_in), sum(used_in)] == [by_script, twice, used]
        other = DataCursor(n, samples_total, batch)
        other.unpack(cursor.pack())
        assert other.pack() == cursor.pack()


@given(
    samples_total=st.integers(1, 300),
    batch=st.integers(1, 40),
    planned=st.integers(1, 8),
    n=st.integers(1, 16),
    fixed_global=st.booleans(),
)
@settings(max_examples=effort(50, 150))
def test_as_many_peers_as_planned_leave_nothing_when_nobody_fails(
    samples_total: int, batch: int, planned: int, n: int, fixed_global: bool
) -> None:
    cursor = DataCursor(planned, samples_total, batch, fixed_global=fixed_global)
    roster = tuple(range(n))
    while cursor.epoch < 3:
        if report := cursor.commit(roster, dict.fromkeys(roster, 99)):
            assert n < planned or (report.once, report.left) == (samples_total, 0)


@given(
    seed=st.integers(0, 2**32),
    samples_total=st.integers(1, 200),
    batch=st.integers(1, 20),
    n=st.integers(1, 9),
    at_least=st.integers(1, 9),
    fixed_global=st.booleans(),
    slow=st.sets(st.integers(0, 8)),
)
@example(0, 5, 1, 5, 5, True, set())
@example(0, 3, 8, 5, 3, True, {1, 3})
@settings(max_examples=effort(50, 150))
def test_rounds_have_enough_for_the_rule_while_enough_is_left(
    seed: int,
    samples_total: int,
    batch: int,
    n: int,
    at_least: int,
    fixed_global: bool,
    slow: set[int],
) -> None:
    random = Random(seed)
    cursor = DataCursor(4, samples_total, batch, fixed_global, paced=True)
    cursor.require(at_least)
    roster = tuple(range(n))
    took_us = {peer: 900_000 if peer in slow else 100_000 for peer in roster}
    for _ in range(2 * PACE_WINDOW):
        cursor.pace.observe(roster, roster, took_us)
    for _ in range(60):
        busy = sum(1 for ranges in cursor.assign(roster).values() if ranges)
        assert busy >= min(at_least, n, cursor.remaining)
        contributors = (
            roster if random.random() < 0.7 else tuple(random.sample(roster, random.randint(0, n)))
        )
        cursor.commit(roster, dict.fromkeys(contributors, 10**6), took_us)


@given(seed=st.integers(0, 2**32), split=st.integers(0, 40), fixed_global=st.booleans())
def test_a_cursor_handed_over_goes_on_exactly_as_its_original(
    seed: int, split: int, fixed_global: bool
) -> None:
    random = Random(seed)
    original = DataCursor(4, 97, 7, fixed_global, True)
    original.require(2)
    taken_over = DataCursor(5, fixed_global=fixed_global, paced=True)
    original.configure(97, 7, extended=9)
    for round_id in range(80):
        if round_id == split:
            taken_over.unpack(original.pack())
        roster = tuple(sorted(random.sample(range(9), random.randint(1, 9))))
        contributors = tuple(peer for peer in roster if random.random() < 0.8)
        took_us = {peer: 10**5 * (1 + peer % 3) for peer in roster}
        original.commit(roster, dict.fromkeys(contributors, 10**6), took_us)
        if round_id >= split:
            taken_over.commit(roster, dict.fromkeys(contributors, 10**6), took_us)
            assert taken_over.pack() == original.pack()
