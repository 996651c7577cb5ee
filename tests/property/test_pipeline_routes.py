"""Ways of micro-batches: the same for everybody, dealt by weight, and moved only where a member is
lost."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, strategies as st

from gossip_pipelines.protocol import Router
from gossip_pipelines.protocol.route import ALL_EVERY

rosters = st.lists(st.integers(0, 200), min_size=1, max_size=6, unique=True)
weights = st.floats(0.1, 10.0)


def alike(roster: list[int]) -> dict[int, float]:
    return dict.fromkeys(roster, 1.0)


@given(rosters, st.data(), st.integers(0, 2**32), st.integers(1, 32))
def test_the_order_of_a_roster_does_not_matter(
    roster: list[int], data: st.DataObject, seed: int, micro_batches: int
) -> None:
    heavy = {peer: data.draw(weights) for peer in roster}
    other = {peer: heavy[peer] for peer in data.draw(st.permutations(roster))}
    here, there = (Router(seed, micro_batches) for _ in range(2))
    for micro_batch in range(micro_batches):
        order = here.ranking(7, micro_batch, 1, heavy)
        assert sorted(order) == sorted(roster)
        assert there.ranking(7, micro_batch, 1, other) == order


@given(rosters, st.data(), st.integers(0, 2**32), st.integers(1, 64))
def test_each_gets_its_part_by_weight_to_within_one(
    roster: list[int], data: st.DataObject, seed: int, micro_batches: int
) -> None:
    heavy = {peer: data.draw(weights) for peer in roster}
    router = Router(seed, micro_batches)
    dealt = Counter(router.ranking(3, b, 0, heavy)[0] for b in range(micro_batches))
    for peer in roster:
        part = micro_batches * heavy[peer] / sum(heavy.values())
        assert abs(dealt[peer] - part) < len(roster)
    if len(set(heavy.values())) == 1:
        assert max(dealt.values()) - min(dealt[peer] for peer in roster) <= 1


@given(rosters, st.data(), st.integers(0, 2**32), st.integers(6, 64))
def test_in_one_of_sixteen_rounds_each_has_a_micro_batch(
    roster: list[int], data: st.DataObject, seed: int, micro_batches: int
) -> None:
    heavy = {peer: data.draw(weights) for peer in roster}
    router = Router(seed, micro_batches)
    dealt = Counter(router.ranking(32, b, 0, heavy)[0] for b in range(micro_batches))
    assert dealt.keys() == heavy.keys()
    assert dealt.total() == micro_batches


@given(
    st.lists(st.integers(0, 200), min_size=2, max_size=6, unique=True),
    st.data(),
    st.integers(0, 2**32),
    st.integers(0, 100),
)
def test_of_fewer_micro_batches_than_members_each_has_one_some_time(
    roster: list[int], data: st.DataObject, seed: int, after: int
) -> None:
    micro_batches = data.draw(st.integers(1, len(roster) - 1))
    heavy = {peer: data.draw(weights) for peer in roster}
    router, turns = Router(seed, micro_batches), -(-len(roster) // micro_batches)
    rounds = range(ALL_EVERY * after, ALL_EVERY * (after + turns), ALL_EVERY)
    served = {router.ranking(r, b, 0, heavy)[0] for r in rounds for b in range(micro_batches)}
    assert served == set(roster)


@given(rosters.filter(lambda roster: len(roster) > 1), st.data(), st.integers(0, 2**32))
def test_only_who_used_a_lost_one_moves(roster: list[int], data: st.DataObject, seed: int) -> None:
    lost = data.draw(st.sampled_from(roster))
    router = Router(seed, 16)
    for micro_batch in range(16):
        before = router.ranking(0, micro_batch, 0, alike(roster))
        after = [peer for peer in before if peer != lost]
        assert (after[0] == before[0]) == (before[0] != lost)


def test_what_a_lost_member_had_is_spread_over_all_others() -> None:
    roster, router, taken = [3, 5, 8, 13], Router(11, 64), Counter[int]()
    for round_id in range(40):
        for micro_batch in range(64):
            order = router.ranking(round_id, micro_batch, 2, alike(roster))
            if order[0] == 5:
                taken[order[1]] += 1
    assert sum(taken.values()) == 40 * 16
    assert all(150 < taken[peer] < 280 for peer in (3, 8, 13)), taken


def test_each_stage_and_round_deals_anew() -> None:
    router, stages = Router(1, 8), [alike([0, 1]), alike([2, 3]), alike([4, 5])]
    ways = {
        tuple(
            tuple(router.ranking(r, b, stage, members)[0] for stage, members in enumerate(stages))
            for b in range(8)
        )
        for r in range(20)
    }
    assert len(ways) > 5
    assert {len(way) for each in ways for way in each} == {3}
