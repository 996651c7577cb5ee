"""Starts: their recipes, trials of them, and their halving among peers that may die or lie."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gossip.errors import ConfigError
from gossip.training import drawing_from, seeded_generators
from gossip_pipelines.starts import (
    INITS,
    Claim,
    Rung,
    StartRecipe,
    StartSearch,
    TrialTask,
    build,
    halve,
    is_on_plateau,
    read_claims,
    recipes,
    run_trial,
)

Claims = Mapping[int, Mapping[int, Claim]]


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


# --- recipes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("init", INITS)
def test_a_recipe_gives_the_same_weights_whatever_was_drawn_before(init: str) -> None:
    recipe = StartRecipe(init, 1.5, seed=3)
    first = build(make, recipe).state_dict()
    torch.rand(7)
    again = build(make, recipe).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    other = build(make, StartRecipe(init, 1.5, seed=4)).state_dict()
    assert not torch.equal(first["0.weight"], other["0.weight"])


def test_building_leaves_the_generators_as_they_were() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    build(make, StartRecipe())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    assert random.getstate() == before[2]


def test_all_three_generators_follow_from_the_seed() -> None:
    drawn = []
    for generators in (seeded_generators(5), drawing_from(5, torch.device("cpu"))):
        torch.rand(()), np.random.rand(), random.random()  # the blocks begin in other states
        with generators:
            drawn.append((float(torch.rand(())), np.random.rand(), random.random()))
    assert drawn[0] == drawn[1]


def test_orthogonal_matrices_are_and_gains_multiply() -> None:
    weight = build(make, StartRecipe("orthogonal", 2.0)).state_dict()["0.weight"]
    assert torch.allclose(weight.T @ weight, 4 * torch.eye(6), atol=1e-5)


def test_what_the_model_sets_to_one_value_stays() -> None:
    class Zeroed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, 4)
            nn.init.zeros_(self.out.weight)
            self.norm = nn.LayerNorm(4)

    found = build(Zeroed, StartRecipe("kaiming", 2.0))
    assert not found.out.weight.any()
    assert (found.norm.weight == 1).all()


def test_recipes_are_all_different_and_the_first_is_the_models_own() -> None:
    found = recipes(20, seed=5)
    assert len(set(found)) == 20
    assert found[0] == StartRecipe("own", 1.0, 5)
    assert found[8] == StartRecipe("own", 1.0, 6)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"init": "kaming"}, "no init 'kaming'"),
        ({"gain": 0.0}, "gain of a start is 0.0"),
        ({"gain": math.nan}, "gain of a start is nan"),
        ({"seed": -1}, "seed of a start is -1"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        StartRecipe(**given)


def test_a_make_that_makes_no_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="make returned a int"):
        build(lambda: 7, StartRecipe())  # type: ignore[arg-type,return-value]


# --- trials ---------------------------------------------------------------------------------------


def task_of(lr: float = 0.1) -> TrialTask:
    whole = torch.Generator().manual_seed(0)
    inputs = torch.randn(400, 6, generator=whole)
    classes = inputs[:, :3].argmax(1)

    def batch(order: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        at = torch.randint(300, (32,), generator=torch.Generator().manual_seed(1000 * order + step))
        return inputs[at], classes[at]

    return TrialTask(
        make,
        lambda model, given: nn.functional.cross_entropy(model(given[0]), given[1]),
        lambda parameters: torch.optim.SGD(parameters, lr=lr),
        batch,
        (inputs[300:], classes[300:]),
    )


def test_a_trial_has_the_same_loss_again_and_another_on_other_data() -> None:
    loss, settled = run_trial(task_of(), StartRecipe(), 60)
    assert 0 < loss < 0.8
    torch.rand(3)
    assert run_trial(task_of(), StartRecipe(), 60) == (loss, settled)
    assert run_trial(task_of(), StartRecipe(), 60, order=1)[0] != loss


def test_a_trial_that_diverges_has_an_infinite_loss() -> None:
    assert run_trial(task_of(lr=1e30), StartRecipe(), 30)[0] == math.inf


def test_a_trial_calls_back_behind_each_step() -> None:
    called: list[int] = []
    run_trial(task_of(), StartRecipe(), 5, between=lambda: called.append(1))
    assert len(called) == 5


def test_the_held_out_loss_is_measured_three_times_without_training() -> None:
    task, modes = task_of(), list[bool]()

    def loss(model: nn.Module, given: Any) -> torch.Tensor:
        modes.append(model.training)
        return task.loss(model, given)

    run_trial(replace(task, loss=loss), StartRecipe(), 30)
    assert (modes.count(True), modes.count(False)) == (30, 3)
    assert modes[-1] is False


def test_a_loss_that_is_none_is_refused() -> None:
    task = task_of()
    broken = TrialTask(
        task.make, lambda model, batch: model(batch[0]), task.optimizer, task.batch, task.held_out
    )
    with pytest.raises(ConfigError, match="loss returned a Tensor, not a loss"):
        run_trial(broken, StartRecipe(), 5)


@pytest.mark.parametrize(
    ("losses", "settled"),
    [
        ([5.0 - 0.1 * at for at in range(40)], False),
        ([1.0 + 4 * 0.5**at for at in range(40)], True),
        ([4.0 * 0.97**at for at in range(40)], False),  # still on the steep part
        ([4.0 * 0.97**at for at in range(160)], True),
        ([3.0] * 40, True),
        ([1.0 + 0.1 * at for at in range(40)], True),  # it never falls
        ([3.0] * 28 + [1.0] * 12, False),  # it has fallen just now
        ([3.0, 2.0, 1.0], False),
    ],
)
def test_the_plateau_is_where_the_loss_has_ceased_to_fall_steeply(
    losses: list[float], settled: bool
) -> None:
    assert is_on_plateau(losses) is settled


# --- halving --------------------------------------------------------------------------------------


class Trials:
    """Peers that answer with the true loss of each candidate, unless they lie or die."""

    def __init__(self, losses: list[float], settled_from: int = 0) -> None:
        self.losses, self.settled_from = losses, settled_from
        self.lies: dict[int, Any] = {}
        self.dies: dict[int, int] = {}  # peer -> the rung in which it does not answer any more
        self.rungs: list[Rung] = []

    def run(self, rung: Rung) -> Claims:
        self.rungs.append(rung)
        return {
            peer: {
                each: Claim(
                    self.lies.get(peer, lambda _, loss: loss)(each, self.losses[each]),
                    rung.steps >= self.settled_from,
                )
                for each, _ in trials
            }
            for peer, trials in rung.trials.items()
            if rung.number < self.dies.get(peer, 99)
        }

    def find(self, peers: int, f: int = 0) -> int:
        return halve(
            recipes(len(self.losses)), range(peers), f, StartSearch(steps=50), self.run
        ).candidate


LOSSES = [1.7, 1.5, 1.9, 1.2, 1.8, 1.4, 1.6, 2.0]


@pytest.mark.parametrize("peers", [1, 2, 3, 5, 8, 13])
def test_the_best_start_is_found_by_any_number_of_peers(peers: int) -> None:
    trials = Trials(LOSSES)
    assert trials.find(peers) == 3
    assert [len({c for of in rung.trials.values() for c, _ in of}) for rung in trials.rungs] == [
        8,
        4,
        2,
    ]


def test_as_many_trials_are_run_in_each_rung_so_each_start_has_twice_as_many_in_the_next() -> None:
    trials = Trials(LOSSES)
    trials.find(8)
    for rung in trials.rungs:
        assert [len(of) for of in rung.trials.values()] == [1] * 8
        assert rung.steps == 50


def test_the_trials_of_a_start_in_one_rung_are_on_different_data_and_of_different_peers() -> None:
    trials = Trials(LOSSES)
    trials.find(8)
    last = [(c, order, peer) for peer, of in trials.rungs[-1].trials.items() for c, order in of]
    assert sorted(order for c, order, _ in last if c == 3) == [0, 1, 2, 3]
    assert len({peer for *_, peer in last}) == 8


def test_who_has_come_on_by_its_own_word_is_tried_by_others() -> None:
    trials = Trials(sorted(LOSSES))  # so that the first peers' starts come on
    trials.find(8)
    first, second, _ = trials.rungs
    for candidate in range(4):
        before = {peer for peer, of in first.trials.items() if candidate in dict(of)}
        after = {peer for peer, of in second.trials.items() if candidate in dict(of)}
        assert len(after) == 2
        assert after.isdisjoint(before)


def test_nobody_is_left_out_before_most_trials_are_on_their_plateau() -> None:
    trials = Trials(LOSSES, settled_from=200)
    assert trials.find(8) == 3
    assert [rung.steps for rung in trials.rungs] == [50, 100, 200, 200, 200]
    assert [len({c for of in rung.trials.values() for c, _ in of}) for rung in trials.rungs] == [
        *(8, 8, 8),
        *(4, 2),
    ]


def test_a_search_that_never_comes_to_the_plateau_ends_and_says_so() -> None:
    trials = Trials(LOSSES, settled_from=10_000)
    found = halve(recipes(8), range(8), 0, StartSearch(steps=50), trials.run)
    assert found.candidate == 3
    assert not found.settled
    assert len(found.rungs) == 5


def test_without_extensions_the_loss_after_so_many_steps_counts() -> None:
    trials = Trials(LOSSES, settled_from=200)
    search = StartSearch(steps=50, extensions=0)
    found = halve(recipes(8), range(8), 0, search, trials.run)
    assert [rung.steps for rung in trials.rungs] == [50, 50, 50]
    assert (found.candidate, found.settled) == (3, False)


@pytest.mark.parametrize("liar", range(4))
@pytest.mark.parametrize("lie", [0.0, -math.inf, 9.0, math.inf], ids=str)
def test_no_single_peer_decides(liar: int, lie: float) -> None:
    """Whatever one of four claims of all that it tries: the best start that it has not tried alone
    is found."""
    losses = [1.7, 1.5, 1.9, 1.2]
    trials = Trials(losses)
    trials.lies[liar] = lambda candidate, loss: lie
    alone = {c for c, _ in _first_rung(losses, 4).get(liar, ())}
    best = min((each for each in range(4) if each not in alone), key=losses.__getitem__)
    found = trials.find(4, f=1)
    assert losses[found] <= losses[best]


def _first_rung(losses: list[float], peers: int) -> Mapping[int, tuple[tuple[int, int], ...]]:
    trials = Trials(losses)
    trials.find(peers)
    return trials.rungs[0].trials


def test_a_liar_cannot_talk_down_the_best_start_of_another() -> None:
    found: dict[int, set[int]] = {0: set(), 1: set()}
    for f, starts in found.items():
        for liar in (0, 1, 2):  # peer 3 alone tries the best start first
            trials = Trials([1.7, 1.5, 1.9, 1.2])
            trials.lies[liar] = lambda candidate, loss: 50.0 if candidate == 3 else loss
            starts.add(trials.find(4, f))
    assert found == {0: {1, 3}, 1: {3}}  # with f = 0 some can


def test_of_fewer_claims_than_2f_plus_1_the_largest_counts() -> None:
    trials = Trials([1.7, 1.2, 1.9])
    trials.lies[0] = lambda candidate, loss: 0.0 if candidate == 0 else loss
    trials.dies = {2: 1}
    assert trials.find(3, f=1) == 1


def test_who_dies_has_no_trials_any_more_and_the_others_find_the_best() -> None:
    trials = Trials(LOSSES)
    trials.dies = {6: 1, 7: 1}
    assert trials.find(8) == 3
    assert 6 in trials.rungs[1].trials
    assert set(trials.rungs[2].trials) == set(range(6))


def test_a_start_whose_only_trial_died_is_not_chosen() -> None:
    trials = Trials(LOSSES)
    trials.dies = {3: 0}  # that tries the best one
    assert trials.find(8) == 5


def test_what_a_peer_claims_of_trials_that_were_not_its_own_counts_for_nothing() -> None:
    def run(rung: Rung) -> Claims:
        claims = {
            peer: {each: Claim(LOSSES[each]) for each, _ in of} for peer, of in rung.trials.items()
        }
        if 2 not in claims[0]:
            claims[0][2] = Claim(-50.0)
        return claims

    found = halve(recipes(8), range(8), 0, StartSearch(steps=50), run)
    assert found.candidate == 3
    assert found.rungs[0].losses[2] == LOSSES[2]


def test_no_finite_loss_at_all_is_an_error() -> None:
    with pytest.raises(ConfigError, match="none of 4 starts has a finite loss after 50 steps"):
        Trials([math.inf] * 4).find(4)


@pytest.mark.parametrize(
    "given",
    [None, 7, "text", [[1]], [["a", 1.0, True]], [[0, "1", True]], [[0, 1.0, 2]], {"a": 1}, [None]],
)
def test_what_is_no_claim_is_left_out(given: Any) -> None:
    assert read_claims(given) == {}


def test_a_loss_that_is_no_number_is_infinite() -> None:
    given = [[0, math.nan, True], [1, -math.inf, True], [2, True, True], [3, 2, False]]
    assert read_claims(given) == {
        0: Claim(math.inf),
        1: Claim(math.inf),
        2: Claim(math.inf),
        3: Claim(2.0, False),
    }
