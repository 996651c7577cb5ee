"""What holds for all peers, layers and plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from effort import effort
from hypothesis import given, settings, strategies as st
from pipeline_instances import uneven

from gossip_pipelines.planning import (
    CostLine,
    Costs,
    LayerProfile,
    PeerProfile,
    Placement,
    StageCosts,
    TrainingStep,
    best_cut,
    best_placement,
    every_assignment,
    fit_line,
    play,
    read_profile,
    write_profile,
)

EXAMPLES = effort(25, 300)
NO_SLOWER = 1 + 1e-9
seeds = st.integers(0, 2**32 - 1)
steps = st.builds(TrainingStep, st.integers(1, 16), st.integers(1, 8))


def chain_s(costs: Costs, step: TrainingStep) -> float:
    """Of one peer a stage, in their order, with the best cuts."""
    tables = StageCosts(costs, step).tables([(peer,) for peer in range(len(costs.peers))])
    found = best_cut(tables)
    return found.step_s if found else float("inf")


@given(seed=seeds, step=steps, peer=st.integers(0, 3), faster=st.floats(1.0, 10.0))
@settings(max_examples=EXAMPLES)
def test_a_faster_peer_never_slows(seed: int, step: TrainingStep, peer: int, faster: float) -> None:
    costs = uneven(seed, 8, 4, tight=True)
    fixed, each = costs.fixed_s.copy(), costs.each_s.copy()
    fixed[:, peer] /= faster
    each[:, peer] /= faster
    quick = replace(costs, fixed_s=fixed, each_s=each)
    assert chain_s(quick, step) <= chain_s(costs, step) * NO_SLOWER


@given(seed=seeds, step=steps, more=st.floats(1.0, 4.0))
@settings(max_examples=EXAMPLES)
def test_more_memory_and_faster_links_make_no_step_longer(
    seed: int, step: TrainingStep, more: float
) -> None:
    costs = uneven(seed, 8, 4, tight=True)
    before = chain_s(costs, step)
    assert chain_s(replace(costs, memory_bytes=costs.memory_bytes * more), step) <= before
    links = replace(costs, link_each_s=costs.link_each_s / more)
    assert chain_s(links, step) <= before * NO_SLOWER


@given(seed=seeds, samples=st.integers(1, 8), count=st.integers(1, 16))
@settings(max_examples=EXAMPLES)
def test_more_micro_batches_take_longer_but_each_less(seed: int, samples: int, count: int) -> None:
    costs = uneven(seed, 8, 4)
    few = chain_s(costs, TrainingStep(count, samples))
    more = chain_s(costs, TrainingStep(count + 1, samples))
    assert few < more
    assert more / (count + 1) <= few / count * NO_SLOWER


@given(seed=seeds, step=steps)
@settings(max_examples=effort(8, 60))
def test_a_peer_more_makes_the_best_placement_no_slower(seed: int, step: TrainingStep) -> None:
    """Nobody has to be used."""
    costs = uneven(seed, 6, 4)
    all_of_them = StageCosts(costs, step)
    found = best_placement(all_of_them, every_assignment(4, 2, 1))
    without = best_placement(all_of_them, every_assignment(3, 2, 1))
    assert found.step_s <= without.step_s


@given(seed=seeds, step=steps)
@settings(max_examples=EXAMPLES)
def test_no_step_is_shorter_than_that_of_its_busiest_peer(seed: int, step: TrainingStep) -> None:
    stage_costs = StageCosts(uneven(seed, 8, 4), step)
    found = best_placement(stage_costs, iter([((0,), (1, 3), (2,))]))
    assert found is not None
    passes = play(found)
    ended = max(each.end_s for each in passes)
    for peer in range(4):
        work_s = sum(each.end_s - each.begin_s for each in passes if each.peer == peer)
        assert work_s <= ended * NO_SLOWER
    assert in_flight_at_most(found, passes) <= stage_costs.in_flight(found.groups, 0)


def in_flight_at_most(placement: Placement, passes: list) -> int:
    """Of a member of the first stage: micro-batches between their two passes."""
    (peer,) = placement.groups[0]
    turns = sorted((each.begin_s, each.backward) for each in passes if each.peer == peer)
    changes = np.cumsum([-1 if backward else 1 for _, backward in turns])
    return int(changes.max())


lines = st.builds(CostLine, st.floats(0, 1e3), st.floats(0, 1e3))


@given(line=lines, counts=st.lists(st.integers(1, 10**6), min_size=2, max_size=6, unique=True))
@settings(max_examples=EXAMPLES)
def test_a_line_is_found_again(line: CostLine, counts: list[int]) -> None:
    found = fit_line(counts, [line.at(count) for count in counts])
    for count in counts:
        assert found.at(count) == pytest.approx(line.at(count), rel=1e-6, abs=1e-9)


layers = st.builds(
    LayerProfile,
    st.text("abcXYZ012 _-", min_size=1, max_size=20),
    st.text("0123456789abcdef", min_size=16, max_size=16),
    st.integers(0, 10**15),
    st.floats(0, 1e15),
    st.floats(0, 1e15),
    lines,
    lines,
)
links = st.dictionaries(st.from_regex(r"[a-z][a-z0-9_.-]{0,10}", fullmatch=True), lines, max_size=3)


@given(
    profile=st.builds(
        PeerProfile,
        st.from_regex(r"[A-Z][A-Za-z0-9_.-]{0,10}", fullmatch=True),
        st.integers(1, 10**15),
        st.tuples(st.integers(1, 100), st.integers(101, 2**20)),
        st.lists(layers, min_size=1, max_size=5).map(tuple),
        links,
    )
)
@settings(max_examples=EXAMPLES)
def test_a_profile_is_read_as_it_was_written(profile: PeerProfile) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "p.toml"
        path.write_text(write_profile(profile))
        assert read_profile(path) == profile
