"""The fast engine of the playground against the exact one: the same bits where all are in time, and
nearly the same accuracy and time with faults."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path
from statistics import mean

import numpy
import pytest
import torch
from effort import rotated

from gossip.errors import ConfigError
from gossip.topologies import with_option
from gossip_lab.playground import World
from gossip_lab.playground.attacking import Attackers, Kind
from gossip_lab.playground.world import EngineName, play_moments

FLIPPED, ASLEEP = "sign_flip:5*10", "sleeper:5*4"


@pytest.mark.parametrize("attack", [FLIPPED, ASLEEP])
@pytest.mark.parametrize("aggregator", ["trimmed_mean", "guarded_mean", "krum"])
def test_rolling_rounds_with_an_attacker_make_the_same_bits(aggregator: str, attack: str) -> None:
    world = World(peers=6, aggregator=aggregator, f=1, faults=(attack,))
    found = world.check(24)  # enough for a quarantine
    assert found.first_difference is None
    assert found.fast.virtual_s == pytest.approx(found.exact.virtual_s, rel=0.02)


JUDGED = ["judged_clipping", "zeno", "fltrust:lengths=updates", "bucketing:s=2+judged_clipping"]


@pytest.mark.parametrize("local_steps", [1, 5])
@pytest.mark.parametrize("topology", ["rolling", "random-k", "ring"])
@pytest.mark.parametrize("aggregator", rotated(JUDGED))
def test_rules_that_judge_by_a_loss_make_the_same_bits(
    aggregator: str, topology: str, local_steps: int
) -> None:
    world = World(
        peers=6,
        topology=topology,
        aggregator=aggregator,
        f=1,
        local_steps=local_steps,
        reference_samples=32,
        links="delay:1ms",  # with random delays, it is chance whether a quarantined push is in time
        faults=(FLIPPED,),
    )
    assert world.check(24).first_difference is None  # enough for a quarantine


@pytest.mark.parametrize("topology", ["rolling", "full"])
def test_a_judge_outvotes_a_majority_of_attackers(topology: str) -> None:
    world = World(
        peers=6,
        topology=topology,
        aggregator="judged_clipping",
        f=4,
        reference_samples=32,
        faults=("sign_flip:2-5*10",),
    )
    means = [row.value for row in world.play(150).rows if row.metric == "mean"]
    assert means[-1] > 0.8


DRAWING = """
import random, numpy, torch
from gossip.aggregators.attacks import attack

def noise(update):
    return update + torch.randn_like(update) * random.random() * float(numpy.random.rand())

def crowded(crowd):
    return torch.randn_like(crowd.own)

def short(update):
    return update.mean()

@attack(shape="apart")
def apart(update, receiver):
    return update + torch.randn_like(update)

@attack(shape="apart")
def short_apart(update, receiver):
    return update.mean()
"""


@pytest.mark.parametrize(
    ("attack", "topology"), [("noise", "rolling"), ("noise", "ring"), ("crowded", "rolling")]
)
def test_attacks_of_the_user_draw_the_same_numbers_in_both_engines(
    attack: str, topology: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(DRAWING)
    world = World(peers=6, topology=topology, faults=(f"attack:{tmp_path}/mine.py:{attack}:3,5",))
    for seed in (torch.manual_seed, numpy.random.seed, random.seed):
        seed(1)
    drawn = float(torch.rand(())), numpy.random.rand(), random.random()
    for seed in (torch.manual_seed, numpy.random.seed, random.seed):
        seed(1)
    assert world.check(4).first_difference is None
    assert drawn == (float(torch.rand(())), numpy.random.rand(), random.random()), "as before"


def test_an_attack_on_each_receiver_draws_the_same_numbers_again(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DRAWING)
    world = World(peers=4, topology="ring", faults=(f"attack:{tmp_path}/mine.py:apart:3",))
    assert world.play(3).rows == world.play(3).rows


@pytest.mark.parametrize(("attack", "topology"), [("short", "rolling"), ("short_apart", "ring")])
def test_an_attack_that_returns_another_shape_is_refused(
    attack: str, topology: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(DRAWING)
    world = World(peers=4, topology=topology, faults=(f"attack:{tmp_path}/mine.py:{attack}:3",))
    with pytest.raises(ConfigError, match=rf"{attack} returned shape \(\), not a tensor of shape"):
        world.play(1)


def test_colluding_attackers_evaluate_the_loss_of_the_judge() -> None:
    world = World(peers=6, aggregator="judged_clipping", f=1, faults=("optimal_ipm:5",))
    assert world.check(6).first_difference is None


@pytest.mark.parametrize("kind", ["gradient", "parameters"])
def test_colluding_attackers_aggregate_as_the_judge_does(kind: Kind) -> None:
    world = World(peers=6, topology="full", aggregator="judged_clipping", f=1)
    parts = world.replace(faults=("optimal_ipm:5",), reference_samples=2**12).build()
    attackers, task, rule = Attackers(parts), parts.task, parts.rule
    here, peers, mix = task.cohort.initial, numpy.arange(6), kind == "parameters"
    updates = task.compute_updates(here.expand(6, -1), peers, 0)
    loss = task.reference_loss(here, 0, peer=0)
    expected = rule(-updates if mix else updates, f=1, **loss.inputs(rule.needs, mix=mix))
    attackers.inform_of_loss(here, 0, kind)
    found = attackers._rule(here - updates) - here if mix else attackers._rule(updates)
    assert torch.cosine_similarity(found, expected, dim=0) > 0.95
    assert found.norm() == pytest.approx(float(expected.norm()), rel=0.1)


@pytest.mark.parametrize("faults", [(), ("crash:1,2@2",)])
def test_a_judge_without_neighbours_keeps_its_own_update(faults: tuple[str, ...]) -> None:
    peers = 3 if faults else 1
    world = World(peers=peers, topology="full", aggregator="judged_clipping", faults=faults)
    assert world.check(20).first_difference is None


@pytest.mark.parametrize(
    ("aggregator", "local_steps", "mixing", "mix_every"),
    [("mean", 1, 0.5, 4), ("guarded_mean", 5, 0.75, 4), ("mean", 5, 0.75, 1)],
)
@pytest.mark.parametrize("topology", ["random-k", "ring"])
def test_gossip_rounds_with_an_attacker_make_the_same_bits(
    topology: str, aggregator: str, local_steps: int, mixing: float, mix_every: int
) -> None:
    world = World(
        peers=6,
        topology=topology,
        aggregator=aggregator,
        f=1,
        local_steps=local_steps,
        mixing=mixing,
        mix_every=mix_every,
        faults=(FLIPPED,),
    )
    found = world.check(12)
    assert found.first_difference is None
    assert found.fast.bytes_sent == found.exact.bytes_sent
    assert found.fast.virtual_s == pytest.approx(found.exact.virtual_s, rel=0.02)


@pytest.mark.parametrize(("aggregator", "local_steps"), [("mean", 1), ("trimmed_mean", 5)])
@pytest.mark.parametrize("topology", ["dumbbell", "d-cliques:size=4"])
def test_metropolis_weights_make_the_same_bits(
    topology: str, aggregator: str, local_steps: int
) -> None:
    uniform = World(
        peers=9,
        topology=topology,
        aggregator=aggregator,
        f=1,
        local_steps=local_steps,
        mix_every=2,
        split="dirichlet:0.5",
        faults=("sign_flip:8*10",),
    )
    world = uniform.replace(topology=with_option(topology, "metropolis", "true"))
    found = world.check(12)
    assert found.first_difference is None
    assert found.exact != uniform.check(12).exact, "the weights make a difference"


def test_large_neighbourhoods_make_the_same_bits() -> None:
    assert World(peers=12, topology="full").check(8).first_difference is None


@pytest.mark.parametrize("topology", ["rolling", "random-k"])
@pytest.mark.parametrize("fault", rotated(["crash:5-7@10", "restart:7@10+0.5s", "hang:7@10+1s"]))
def test_with_faults_both_engines_learn_as_much_in_the_same_time(topology: str, fault: str) -> None:
    found = [
        World(topology=topology, peers=8, faults=(fault,), seed=seed).check(40) for seed in range(3)
    ]
    exact, fast = [each.exact for each in found], [each.fast for each in found]
    accuracies = [mean(state.accuracy for state in states) for states in (exact, fast)]
    seconds = [mean(state.virtual_s for state in states) for states in (exact, fast)]
    assert accuracies[1] == pytest.approx(accuracies[0], abs=0.01)
    assert seconds[1] == pytest.approx(seconds[0], rel=0.1)


def test_pushes_by_the_plan_before_a_death_are_awaited_as_long_as_in_the_core() -> None:
    world = World(
        peers=8, topology="random-k", model="linear", links="delay:1ms", faults=("crash:0,1@10",)
    )
    found = world.check(40)
    assert found.fast.virtual_s == pytest.approx(found.exact.virtual_s, rel=1e-6)


def test_slow_peers_and_an_attacker_make_the_same_bits_with_equal_delays() -> None:
    world = World(
        peers=12,
        topology="random-k:k=6",
        split="dirichlet:1.0",
        model="linear",
        aggregator="trimmed_mean",
        f=1,
        links="delay:1ms",
        faults=("slow:0-2*3", "sign_flip:11*10"),
    )
    assert world.check(30).first_difference is None


@pytest.mark.parametrize(("topology", "factor"), [("ring", 20), ("full", 12), ("random-k", 20)])
def test_a_slow_peer_waits_and_skips_rounds_as_in_the_core(topology: str, factor: int) -> None:
    world = World(
        peers=6,
        topology=topology,
        compute="constant:50ms",
        model="linear",
        faults=(f"slow:0*{factor}",),
    )

    def play(engine: EngineName) -> tuple[list[int], float]:
        """Return the rounds in which the slow peer makes a step, and the time of all rounds."""
        moments = islice(play_moments(engine, world.build()), 40)
        found = [(each.parameters[0].tolist(), each.virtual_s) for each in moments]
        return [at for at in range(1, 40) if found[at][0] != found[at - 1][0]], found[-1][1]

    (steps, seconds), (fast_steps, fast_seconds) = play("exact"), play("fast")
    assert 3 < len(steps) < 15
    assert fast_steps == steps
    assert fast_seconds == pytest.approx(seconds, rel=0.01)
