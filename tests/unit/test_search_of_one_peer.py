"""One peer's part of a search for a start: what it gives, whom it waits for, what it concludes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from gossip.errors import ConfigError
from gossip_pipelines.starts import StartRecipe, StartSearch, TrialTask, build
from gossip_pipelines.starts.searching import (
    HERE,
    OUTCOME,
    WAITS_MAX,
    PastStart,
    Searching,
    is_complete,
    most_common,
    rebuilt,
)

STARTS = (StartRecipe(gain=1e-4), StartRecipe("orthogonal"), StartRecipe(gain=50.0))


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def task() -> TrialTask:
    inputs = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
    classes = inputs[:, :3].argmax(1)

    def batch(order: int, step: int) -> Any:
        generator = torch.Generator().manual_seed(10**6 * (order + 1) + step)
        at = torch.randint(300, (16,), generator=generator)
        return inputs[at], classes[at]

    return TrialTask(
        make,
        lambda model, given: nn.functional.cross_entropy(model(given[0]), given[1]),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch,
        (inputs[300:], classes[300:]),
    )


class Swarm:
    """Operations of peers in threads: each waits until all have given."""

    def __init__(self, peers: int) -> None:
        self.peers = peers
        self._barrier = threading.Barrier(peers, timeout=60)
        self._given: dict[int, Any] = {}

    def gather(self, peer: int, make: Callable[[], object]) -> dict[int, Any]:
        self._given[peer] = make()
        self._barrier.wait()
        given = dict(self._given)
        self._barrier.wait()
        return given


def peer_of(peer: int, f: int, alive: int, gather: Callable[..., Any]) -> Any:
    """A peer whose values nothing but ``gather`` exchanges."""
    calls = {"between_steps": lambda: None, "pause": lambda pause_s: None}
    config, roster = SimpleNamespace(seed=0, f=f), SimpleNamespace(alive=alive)
    run = SimpleNamespace(peer=peer, config=config, view=roster)
    return SimpleNamespace(run=run, gather=gather, **calls)


def searching(
    peer: int,
    gather: Callable[[Callable[[], object]], dict[int, Any] | None],
    search: StartSearch,
    f: int = 0,
    alive: int = 3,
) -> Searching:
    access = peer_of(peer, f, alive, gather)
    return Searching(access, task(), search)


def run_all(searches: list[StartSearch]) -> list[Any]:
    swarm, found = Swarm(len(searches)), list[Any]([None] * len(searches))

    def run(peer: int) -> None:
        one = searching(peer, lambda make: swarm.gather(peer, make), searches[peer])
        try:
            found[peer] = one.find(("model",))
        except ConfigError as error:
            found[peer] = error
            swarm._barrier.abort()
        except threading.BrokenBarrierError:
            found[peer] = "broken off"

    threads = [threading.Thread(target=run, args=(peer,)) for peer in range(len(searches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_all_find_the_same_start_and_the_same_losses() -> None:
    found = run_all([StartSearch(STARTS, steps=60, held_out=50)] * 3)
    assert found[0] == found[1] == found[2]
    assert (found[0].candidate, found[0].recipe) == (1, STARTS[1])
    assert str(found[0]).startswith("orthogonal, gain 1, seed 0 (loss 0.")
    assert str(found[0]).endswith("plateau, the best of 3 starts)")


def test_who_searches_among_other_starts_than_most_is_told() -> None:
    one = StartSearch(STARTS, steps=60)
    *_, odd = run_all([one, one, StartSearch(STARTS[:2], steps=60)])
    assert isinstance(odd, ConfigError)
    assert "other starts, steps or samples than on most peers" in str(odd)


# --- gossip rounds, where nothing is committed ----------------------------------------------------


def row(what: str, value: object) -> dict[str, Any]:
    return {"what": what, "value": value, "took_s": 1.0, "waited_s": 0.0, "alive": 4}


def test_a_peer_that_comes_late_is_told_the_start_by_more_than_f() -> None:
    told = [
        {peer: row("rung 1", []) for peer in (1, 2, 3)},
        # one may lie, for as long as the others search
        *[{1: row(OUTCOME, 2), 2: row("rung 2", []), 3: row("rung 2", [])}] * WAITS_MAX,
        {1: row(OUTCOME, 2), 2: row(OUTCOME, 1), 3: row(OUTCOME, 1)},
    ]
    asked: list[str] = []

    def gather(make: Callable[[], object]) -> dict[int, Any]:
        own: Any = make()
        asked.append(own["what"])
        return {0: own, **told[min(len(asked), len(told)) - 1]}

    found = searching(0, gather, StartSearch(STARTS, steps=60), f=1, alive=4).find(("model",))
    assert (found.recipe, found.rungs, found.settled) == (STARTS[1], (), False)
    assert asked == [HERE, *[OUTCOME] * (WAITS_MAX + 1)]


def test_a_peer_that_has_found_another_start_than_most_follows_them() -> None:
    def gather(make: Callable[[], object]) -> dict[int, Any]:
        own: Any = make()
        others = {HERE: own["value"], OUTCOME: 2}.get(own["what"], [])
        return {0: own, **{peer: row(own["what"], others) for peer in (1, 2)}}

    found = searching(0, gather, StartSearch(STARTS, steps=20), alive=3).find(("model",))
    assert found.rungs[0].losses[2] == float("inf")  # by what this peer has heard
    assert found.recipe == STARTS[2]


def test_each_rung_is_on_other_data() -> None:
    whole = task()
    orders: list[int] = []

    def batch(order: int, step: int) -> Any:
        orders.append(order)
        return whole.batch(order, step)

    access = peer_of(0, 0, 1, lambda make: {0: make()})
    search = StartSearch(STARTS, steps=60)
    found = Searching(access, replace(whole, batch=batch), search).find(())
    trials = list(dict.fromkeys(orders))
    assert len(trials) == len(found.rungs) > 1


def test_a_run_that_has_begun_ends_the_search() -> None:
    with pytest.raises(PastStart):
        searching(0, lambda make: None, StartSearch(STARTS)).find(("model",))


# --- its parts ------------------------------------------------------------------------------------


def test_as_many_as_most_see_alive_are_enough_whatever_one_peer_says() -> None:
    rows = [{"alive": alive, "took_s": 10.0, "waited_s": 0.0} for alive in (4, 4, 4, 1000)]
    assert is_complete(rows, 4)
    assert not is_complete(rows, 3)
    rows = [{"alive": alive, "took_s": 10.0, "waited_s": 0.0} for alive in (4, 4, 4, 0)]
    assert not is_complete(rows, 3)


def test_most_wait_for_half_of_what_their_own_trials_took() -> None:
    rows = [{"alive": 5, "took_s": 10.0, "waited_s": waited} for waited in (4.0, 5.0, 6.0)]
    assert is_complete(rows, 3)
    rows = [{"alive": 5, "took_s": 10.0, "waited_s": waited} for waited in (4.0, 4.9, 1e9)]
    assert not is_complete(rows, 3)


def test_of_equals_the_lowest_counts() -> None:
    assert most_common({3: "b", 1: "a", 2: "b", 4: "a"}) == "a"
    assert most_common({3: "b", 1: "a", 2: "b"}) == "b"


def test_a_start_is_rebuilt_bit_for_bit_in_the_model_at_hand() -> None:
    model = make()
    parameters = list(model.parameters())
    rebuilt(task(), STARTS[1], model)
    expected = build(make, STARTS[1]).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))


def test_a_make_of_another_model_is_refused_by_the_parameter() -> None:
    with pytest.raises(ConfigError, match=r"0.bias has shape \(16,\), not \(4,\)"):
        rebuilt(task(), STARTS[1], nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"steps": 9}, "steps is 9, not a number of at least 10"),
        ({"extensions": -1}, "extensions is -1"),
        ({"held_out": 0}, "held_out is 0"),
        ({"starts": ()}, "received no starts"),
    ],
)
def test_settings_that_cannot_be_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        StartSearch(**given)
