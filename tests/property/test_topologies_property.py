"""Plans for any roster."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gossip.topologies import Roster, load

rosters = st.sets(st.integers(0, 10_000), min_size=1, max_size=33).map(lambda peers: Roster(tuple(sorted(peers)), b"lineage1"))
rounds, seeds = st.integers(0, 2**48), st.integers(0, 2**63)


@given(roster=rosters, round_id=rounds, seed=seeds, k=st.integers(1, 40))
def test_random_k_pushes_and_receives_k_distinct_others(roster: Roster, round_id: int, seed: int, k: int) -> None:
    pushes = load("random_k")(roster, round_id, seed, k=k).pushes or {}
    fan = min(k, len(roster) - 1)
    assert set(pushes) == set(roster)
    assert all(len(set(targets) - {peer}) == len(targets) == fan for peer, targets in pushes.items())
    received = Counter(target for targets in pushes.values() for target in targets)
    assert all(received[peer] == fan for peer in roster)


@given(roster=rosters, round_id=rounds, seed=seeds)
def test_sources_and_pushes_are_two_sides_of_one_plan(roster: Roster, round_id: int, seed: int) -> None:
    for name in ("random_k", "ring", "full"):
        plan = load(name)(roster, round_id, seed)
        for peer in roster:
            assert all(peer in (plan.pushes or {})[source] for source in plan.sources(peer))


@given(roster=rosters, round_id=rounds, seed=seeds, shards=st.integers(1, 4))
def test_rolling_orders_everybody_in_every_shard(roster: Roster, round_id: int, seed: int, shards: int) -> None:
    plan = load("rolling")(roster, round_id, seed, shards=shards)
    assert len(plan.servers) == shards
    assert all(sorted(order) == list(roster) for order in plan.servers)
