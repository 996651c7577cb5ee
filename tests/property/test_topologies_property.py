"""Plans for any roster."""

from collections import Counter

from hypothesis import given, strategies as st

from gossip.topologies import Roster, draw, load
from gossip.topologies.weights import WEIGHT_MAX, lots, read_weights, write_weights

rosters = st.sets(st.integers(0, 10_000), min_size=1, max_size=33).map(
    lambda peers: Roster(tuple(sorted(peers)), b"lineage1")
)
rounds, seeds = st.integers(0, 2**48), st.integers(0, 2**63)


@given(roster=rosters, round_id=rounds, seed=seeds, k=st.integers(1, 40))
def test_random_k_pushes_and_receives_k_distinct_others(
    roster: Roster, round_id: int, seed: int, k: int
) -> None:
    pushes = load("random_k")(roster, round_id, seed, k=k).pushes or {}
    fan = min(k, len(roster) - 1)
    assert set(pushes) == set(roster)
    assert all(
        len(set(targets) - {peer}) == len(targets) == fan for peer, targets in pushes.items()
    )
    received = Counter(target for targets in pushes.values() for target in targets)
    assert all(received[peer] == fan for peer in roster)


@given(roster=rosters, seed=seeds, k=st.integers(2, 40))
def test_static_regular_is_connected_and_regular(roster: Roster, seed: int, k: int) -> None:
    pushes = load("static_regular")(roster, 0, seed, k=k).pushes or {}
    degree = min(k, len(roster) - 1)
    degree += degree * len(roster) % 2
    assert all(len(targets) == degree for targets in pushes.values())
    assert all(peer in pushes[other] for peer in roster for other in pushes[peer])
    reached = {roster.peers[0]}
    while more := {other for peer in reached for other in pushes[peer]} - reached:
        reached |= more
    assert reached == set(roster)


@given(roster=rosters, round_id=rounds, seed=seeds)
def test_sources_and_pushes_are_sides_of_one_plan(roster: Roster, round_id: int, seed: int) -> None:
    for name in ("random_k", "ring", "full", "static_regular", "exponential"):
        plan = load(name)(roster, round_id, seed)
        for peer in roster:
            assert all(peer in (plan.pushes or {})[source] for source in plan.sources(peer))


@given(roster=rosters, round_id=rounds, seed=seeds, shards=st.integers(1, 4))
def test_rolling_orders_everybody_in_every_shard(
    roster: Roster, round_id: int, seed: int, shards: int
) -> None:
    plan = load("rolling")(roster, round_id, seed, shards=shards)
    assert len(plan.servers) == shards
    assert all(sorted(order) == list(roster) for order in plan.servers)


weightings = st.dictionaries(st.integers(0, 40), st.integers(1, WEIGHT_MAX), max_size=33)
few = st.sets(st.integers(0, 40), min_size=1, max_size=33).map(
    lambda peers: Roster(tuple(sorted(peers)), b"lineage1")
)


@given(roster=few, round_id=rounds, seed=seeds, given_weights=weightings)
def test_with_weights_everybody_stands_in_every_order_once(
    roster: Roster, round_id: int, seed: int, given_weights: dict[int, int]
) -> None:
    rolling = load("rolling").bind(weights=write_weights(given_weights))
    plan = rolling(roster, round_id, seed, shards=2)
    assert all(sorted(order) == list(roster) for order in plan.servers)
    assert plan == rolling(roster, round_id, seed, shards=2)


@given(
    roster=few,
    round_id=rounds,
    seed=seeds,
    weight=st.integers(1, WEIGHT_MAX),
    shards=st.integers(1, 3),
)
def test_equal_weights_leave_the_order_as_it_is_without(
    roster: Roster, round_id: int, seed: int, weight: int, shards: int
) -> None:
    alike = load("rolling").bind(weights=",".join(f"{peer}:{weight}" for peer in roster))
    plain = load("rolling")(roster, round_id, seed, shards=shards).servers
    assert alike(roster, round_id, seed, shards=shards).servers == plain
    for shard, (first, *others) in enumerate(plain):
        drawn = sorted(
            roster, key=lambda peer: (draw(seed, roster.lineage, round_id, shard, peer), peer)
        )
        assert others == [peer for peer in drawn if peer != first]
        assert shard < shards - 1 or first == drawn[0]


@given(roster=few, round_id=rounds, seed=seeds, shards=st.integers(1, 20))
def test_nobody_is_first_in_a_second_shard_before_everybody_is_in_one(
    roster: Roster, round_id: int, seed: int, shards: int
) -> None:
    servers = load("rolling")(roster, round_id, seed, shards=shards).servers
    firsts = Counter(order[0] for order in servers)
    assert {firsts[peer] for peer in roster} <= {shards // len(roster), -(-shards // len(roster))}
    behind = Counter(order[0] for order in servers[1:])  # the first may be a short one
    if shards == len(roster) + 1:
        assert set(behind.values()) == {1}


@given(roster=few, round_id=rounds, seed=seeds, given_weights=weightings, shards=st.integers(1, 4))
def test_with_weights_each_shard_has_an_order_of_its_own(
    roster: Roster, round_id: int, seed: int, given_weights: dict[int, int], shards: int
) -> None:
    """So each falls to a peer in proportion to its weight."""
    if len(set(lots(write_weights(given_weights), roster.peers))) == 1:
        return
    bound = load("rolling").bind(weights=write_weights(given_weights))
    more = bound(roster, round_id, seed, shards=shards + 3).servers
    assert bound(roster, round_id, seed, shards=shards).servers == more[:shards]


@given(roster=few, round_id=rounds, seed=seeds, given_weights=weightings, peer=st.integers(0, 40))
def test_more_weight_never_moves_a_peer_back(
    roster: Roster, round_id: int, seed: int, given_weights: dict[int, int], peer: int
) -> None:
    """Nor the others among themselves; unless it takes the common divisor,
    or somebody's half, away."""
    least = {each: given_weights.get(each, 1) for each in roster} | {peer: 1}
    more = least | {peer: 2}
    if peer not in roster or lots(write_weights(least), roster.peers) != tuple(
        least[each] for each in roster
    ):
        return
    if lots(write_weights(more), roster.peers) != tuple(more[each] for each in roster):
        return
    orders = [
        load("rolling").bind(weights=write_weights(w))(roster, round_id, seed).servers[0]
        for w in (least, more)
    ]
    assert orders[1].index(peer) <= orders[0].index(peer)
    assert [each for each in orders[0] if each != peer] == [
        each for each in orders[1] if each != peer
    ]


@given(roster=few, given_weights=weightings)
def test_nobody_has_more_lots_than_all_others_nor_more_than_the_most_times_the_least(
    roster: Roster, given_weights: dict[int, int]
) -> None:
    counts = lots(write_weights(given_weights), roster.peers)
    assert min(counts) >= 1
    assert max(counts) <= WEIGHT_MAX * min(counts)
    assert len(counts) == 1 or max(counts) <= sum(counts) - max(counts)


@given(given_weights=weightings)
def test_weights_are_read_as_they_were_written(given_weights: dict[int, int]) -> None:
    assert read_weights(write_weights(given_weights)) == {
        peer: weight for peer, weight in given_weights.items() if weight > 1
    }
