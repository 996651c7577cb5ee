"""Planning: exact cuts, every assignment, and the searches, each against something that is slower
and surely right."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from effort import effort
from pipeline_instances import WORK, alike, drawn_stages, try_every_cut, uneven

from gossip.errors import ConfigError
from gossip_pipelines.planning import (
    Costs,
    PlanRequest,
    StageCosts,
    TrainingStep,
    best_cut,
    best_placement,
    cut_at,
    data_parallel,
    every_assignment,
    improved,
    make_plan,
    play,
    played_step_s,
    search_placement,
)

INSTANCES = 200
ORIGIN = [(36, 8), (24, 12), (48, 24), (64, 12)]
"""Layers and stages of the instances that the origin of this project has figures for."""


def by_the_formula(costs: Costs, step: TrainingStep, order: list[int], bounds: list[int]) -> float:
    """``sum (t + c) + (B - 1) max max(t, c)`` of one peer a stage, written out."""
    took, sent = [], []
    for stage, peer in enumerate(order):
        layers = range(bounds[stage], bounds[stage + 1])
        took.append(
            sum(
                costs.fixed_s[way, peer, layer] + step.samples * costs.each_s[way, peer, layer]
                for way in (0, 1)
                for layer in layers
            )
        )
        if stage + 1 < len(order):
            ends, nbytes = (peer, order[stage + 1]), costs.output_bytes[layers[-1]] * step.samples
            there = costs.link_fixed_s[ends] + costs.link_each_s[ends] * nbytes
            back = costs.link_fixed_s[ends[::-1]] + costs.link_each_s[ends[::-1]] * nbytes
            sent.append(there + back)
    return sum(took) + sum(sent) + (step.micro_batches - 1) * max([*took, *sent])


def test_the_tables_are_the_formula_of_a_pipeline() -> None:
    costs = uneven(7, layers=6, peers=3)
    stage_costs = StageCosts(costs, WORK)
    for order in itertools.permutations(range(3)):
        for bounds in ([0, 1, 2, 6], [0, 2, 5, 6], [0, 4, 5, 6]):
            found = cut_at(stage_costs.tables([(peer,) for peer in order]), tuple(bounds))
            assert found.step_s == pytest.approx(by_the_formula(costs, WORK, [*order], bounds))


def test_dynamic_programming_equals_every_cut() -> None:
    infeasible = exchanging = 0
    for seed in range(INSTANCES):
        tables = drawn_stages(seed)[0].tables(drawn_stages(seed)[1])
        found, oracle = best_cut(tables), try_every_cut(tables)
        assert (found is None) == (oracle is None), seed
        if found is None or oracle is None:
            infeasible += 1
            continue
        exchanging += found.exchange_s > 0
        assert found.step_s == pytest.approx(oracle.step_s, rel=1e-12), seed
    assert 5 <= infeasible <= 100  # limits of memory count
    assert exchanging >= 50  # groups of several members, too


def test_nothing_is_found_below_the_best() -> None:
    stage_costs, groups = drawn_stages(4)
    tables = stage_costs.tables(groups)
    best = best_cut(tables)
    assert best is not None
    assert best_cut(tables, best.step_s) is None
    assert best_cut(tables, best.step_s * 1.001) == best


@pytest.mark.parametrize(("layers", "stages"), ORIGIN)
@pytest.mark.parametrize("kind", [alike, uneven])
def test_a_few_passes_solve_the_sizes_of_the_origin(kind, layers: int, stages: int) -> None:
    stage_costs = StageCosts(kind(1, layers, stages), WORK)
    tables = stage_costs.tables([(peer,) for peer in range(stages)])
    best = best_cut(tables)
    assert best is not None
    bounds = best.bounds
    for stage in range(1, stages):
        for moved in (bounds[stage] - 1, bounds[stage] + 1):
            if bounds[stage - 1] < moved < bounds[stage + 1]:
                other = (*bounds[:stage], moved, *bounds[stage + 1 :])
                assert best.step_s <= cut_at(tables, other).step_s


def test_the_differentiable_search_places_peers_near_the_best() -> None:
    better = instances = 0
    for seed in range(effort(6, INSTANCES)):
        stages = 4 + seed % 2
        stage_costs = StageCosts(uneven(seed + 5000, 6 + seed % 7, stages), WORK)
        fixed = best_cut(stage_costs.tables([(peer,) for peer in range(stages)]))
        best = best_placement(stage_costs, every_assignment(stages, stages, 1))
        searched = search_placement(stage_costs, stages, seed)
        assert fixed is not None
        assert best is not None
        assert searched is not None
        assert best.step_s * (1 - 1e-12) <= searched.step_s <= 1.05 * best.step_s
        better += searched.step_s < 0.999 * fixed.step_s
        instances += 1
    assert better > instances / 2


def test_the_descent_is_better_than_the_luck_of_its_starts() -> None:
    ratios = []
    for seed in range(effort(6, INSTANCES)):
        stage_costs = StageCosts(uneven(seed + 5000, 14 + seed % 7, 8), WORK)
        descended = search_placement(stage_costs, 8, seed, starts=16)
        begun = search_placement(stage_costs, 8, seed, starts=16, steps=0)
        assert descended is not None
        assert begun is not None
        ratios.append(descended.step_s / begun.step_s)
    assert sum(ratios) / len(ratios) < 0.98


def test_every_assignment_is_tried_once() -> None:
    found = list(every_assignment(4, 2, 1))
    # each of 4 peers in one of 2 stages or in none, no stage empty: 3^4 - 2 * 2^4 + 1
    assert len(found) == len(set(found)) == 50
    assert all(len(group) >= 2 for groups in every_assignment(5, 2, 2) for group in groups)


def test_moves_of_peers_end_no_worse_than_they_began() -> None:
    for seed in range(3):
        stage_costs = StageCosts(uneven(seed, 10, 7), WORK)
        start = ((0, 5), (1,), (2,), (3, 6), (4,))
        begun = best_cut(stage_costs.tables(start))
        ended = improved(stage_costs, start, seed)
        assert ended is not None
        assert begun is not None
        assert ended.step_s <= begun.step_s
        assert ended.step_s == cut_at(stage_costs.tables(ended.groups), ended.cut.bounds).step_s


def test_a_step_that_is_played_out_is_near_the_formula() -> None:
    """Of one peer a stage. The formula leaves out that passes alternate, and that links wait."""
    ratios = []
    for seed in range(40):
        draw = np.random.default_rng(seed)
        stages = int(draw.integers(2, 6))
        step = TrainingStep(int(draw.integers(4, 17)), 4)
        stage_costs = StageCosts(uneven(seed, 12, stages), step)
        best = best_placement(stage_costs, iter([tuple((peer,) for peer in range(stages))]))
        assert best is not None
        ratios.append(best.step_s / played_step_s(best))
    assert 0.95 < float(np.median(ratios)) < 1.06
    assert 0.85 < min(ratios) < max(ratios) < 1.3


def test_each_micro_batch_passes_each_stage_once_each_way() -> None:
    costs = uneven(5, 9, 5)
    stage_costs = StageCosts(costs, TrainingStep(7, 2))
    placement = best_placement(stage_costs, iter([((0, 3), (1,), (2, 4))]))
    assert placement is not None
    passes = play(placement)
    counted = Counter((each.stage, each.micro_batch, each.backward) for each in passes)
    assert set(counted.values()) == {1}
    assert len(counted) == 3 * 7 * 2
    ended = {(each.stage, each.micro_batch, each.backward): each for each in passes}
    for each in passes:
        before = each.stage + (1 if each.backward else -1)
        if 0 <= before < 3:
            came = ended[before, each.micro_batch, each.backward].end_s
            assert each.begin_s > came
    for peer in range(5):
        own = [each for each in passes if each.peer == peer]
        assert all(a.end_s <= b.begin_s for a, b in itertools.pairwise(own))


# --- the whole of it ------------------------------------------------------------------------------


def test_small_machines_make_a_pipeline_and_large_ones_do_without() -> None:
    costs = uneven(2, 8, 4)
    state = 4 * costs.parameter_bytes.sum()
    small = np.full(4, state * 0.6)
    answer = make_plan(limited(costs, small), PlanRequest(16, samples=2))
    assert answer.pipelines
    assert not answer.others
    answer = make_plan(costs, PlanRequest(16, samples=4))
    assert [other.peers for other in answer.others] == [(0, 1, 2, 3)] * 2


def test_who_cannot_hold_the_model_is_left_out_of_data_parallel_training() -> None:
    costs = uneven(2, 8, 4)
    limits = costs.memory_bytes.copy()
    limits[2] = costs.parameter_bytes.sum()
    (other, *_) = data_parallel(limited(costs, limits), WORK, 30)
    assert other.peers == (0, 1, 3)


def test_equal_peers_share_a_batch_equally() -> None:
    costs = alike(3, 6, 4)
    whole_s = float((costs.fixed_s + 32 * costs.each_s)[:, 0].sum())
    for other in data_parallel(costs, WORK, 30):
        assert other.compute_s == pytest.approx(whole_s / 4)


def test_slow_peers_are_predicted_with_the_parts_that_they_come_to_get() -> None:
    """A rolling round gives a quarter at least; of local steps each takes what it can."""
    costs = alike(3, 6, 4)
    slow = np.array([20.0, 1.0, 1.0, 1.0])[None, :, None]
    costs = replace(costs, fixed_s=0.0 * costs.fixed_s, each_s=costs.each_s * slow)
    each_s = float(costs.each_s[:, 1].sum())
    found = {other.name: other.compute_s for other in data_parallel(costs, WORK, 30)}
    assert found["rolling"] == pytest.approx(20 * each_s * WORK.batch * 0.25 / 3.25)
    together = 3 + 1 / 20
    assert found["rolling, 30 local steps"] == pytest.approx(each_s * WORK.batch / together)


def limited(costs: Costs, memory_bytes: np.ndarray) -> Costs:
    return replace(costs, memory_bytes=memory_bytes)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (PlanRequest(16, stages=5), "5 stages need 5 peers, and there are 4"),
        (PlanRequest(16, stages=2, members_least=3), "2 stages need 6 peers, and there are 4"),
        (PlanRequest(16, samples=3), "micro-batches of 3 samples do not divide a batch of 16"),
    ],
)
def test_what_cannot_be_is_refused(request_: PlanRequest, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_plan(uneven(2, 8, 4), request_)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 layers cannot be divided into 3 stages"):
        make_plan(uneven(2, 2, 4), PlanRequest(16, stages=3))


def test_a_layer_that_fits_no_peer_is_named() -> None:
    costs = uneven(2, 8, 4)
    largest = int(costs.parameter_bytes.argmax())
    limits = np.full(4, 3 * costs.parameter_bytes.max())
    with pytest.raises(ConfigError, match=rf"layer {largest} \({largest}\) fits no peer"):
        make_plan(limited(costs, limits), PlanRequest(16))


def test_a_model_that_is_larger_than_all_memory_is_refused() -> None:
    """Each of four peers holds one layer of a GB, and there are eight."""
    costs = replace(alike(2, 8, 4), parameter_bytes=np.full(8, 1e9))
    costs = limited(costs, np.full(4, 7e9))
    with pytest.raises(ConfigError, match="nothing fits the memory of these peers"):
        make_plan(costs, PlanRequest(16))


def test_many_peers_are_searched_and_that_is_said() -> None:
    costs = uneven(9, 8, 6)
    answer = make_plan(costs, PlanRequest(16, samples=2, stages=4))
    (option,) = answer.pipelines
    assert not option.exact
    fixed = best_cut(option.placement.stage_costs.tables([(0,), (1,), (2,), (3,)]))
    assert fixed is not None
    assert option.placement.step_s < fixed.step_s
