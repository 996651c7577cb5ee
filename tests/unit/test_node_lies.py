"""How a node's liar comes to its lies: what it may know, and what it tells whom."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gossip.aggregators import attacks, load
from gossip.aggregators.attacks import DATA_ATTACKS
from gossip.config import resolve
from gossip.core.events import Apply, Payload
from gossip.core.messages import Ping, Push
from gossip.errors import BadFault, ConfigError
from gossip.faults import plan as faults
from gossip.faults.kinds import ATTACKS, ByzantineFault
from gossip.inject.update_attacks import UpdateAttack, rule_of
from gossip.run import fitting
from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.schedules import Schedule

D = 40


def vector(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(D).astype(np.float32)


def payload(data: np.ndarray) -> Payload:
    data.setflags(write=False)
    return Payload(data, data.nbytes)


def push(what: str = "gradient") -> Push:
    return Push(b"lineage!", 3, what, 4, None, b"")  # type: ignore[arg-type]


def test_real_runs_the_simulator_and_benchmarks_have_one_table_of_attacks() -> None:
    assert set(ATTACKS) == {*attacks.names(), *DATA_ATTACKS}
    for name in attacks.names():
        assert ATTACKS[name] is attacks.KINDS[name]
        (typed,) = faults.parse(f"{name}:1")
        assert isinstance(typed, ByzantineFault)
        if ATTACKS[name].meaning:
            assert typed.strength == attacks.make(name).strength, name


@pytest.mark.parametrize(
    "name", [name for name in attacks.names(lonely=True) if attacks.KINDS[name].shape != "apart"]
)
def test_every_lie_that_one_can_tell_alone_is_told_by_a_node(name: str) -> None:
    update_attack = UpdateAttack(
        faults.parse(f"{name}:1,2"), 1, 7, 5, rule_of(load("median"), 2, centered=False)
    )
    assert update_attack.lies
    assert not update_attack.tells_each
    for round_id in range(4):
        truth = vector(round_id)
        said = update_attack.tamper_with(truth, round_id, "update")
        assert (said.shape, said.dtype) == ((D,), np.float32)
        assert np.array_equal(truth, vector(round_id))
        assert not np.may_share_memory(said, truth)
        update_attack.saw(
            Apply(
                round_id,
                (payload(vector(100 + round_id)[:30]), payload(vector(100 + round_id)[30:])),
            )
        )


OWN_ATTACKS = """
from gossip.aggregators.attacks import attack

def mine(update, *, strength=2.0):
    return -strength * update

@attack(shape="apart")
def each(update, *, receiver):
    return update * receiver

@attack(shape="together", refusal="a peer alone cannot know the others")
def knowing(crowd):
    return crowd.own
"""


def test_an_attack_of_a_file_is_sent(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_ATTACKS)
    plan = faults.parse(f"attack:{tmp_path}/own.py:mine:1*3")
    said = UpdateAttack(plan, 1, 7, 5).tamper_with(vector(0), 0, "update")
    assert np.array_equal(said, -3 * vector(0))
    assert not UpdateAttack(plan, 2, 7, 5).lies


@pytest.mark.parametrize(
    ("fault", "topology", "words"),
    [
        ("mine:1", "rolling", None),
        ("each:1", "full", None),
        ("each:1", "rolling", "rolling rounds have one server"),
        ("each:1*2", "full", "no strength"),
        ("knowing:1", "rolling", "a peer alone cannot know"),
        ("other:1", "rolling", "unknown attack"),
    ],
)
def test_an_attack_of_a_file_is_checked_before_the_run(
    tmp_path: Path, fault: str, topology: str, words: str | None
) -> None:
    (tmp_path / "own.py").write_text(OWN_ATTACKS)
    given = {
        "peers": 4,
        "topology": topology,
        "aggregator": "mean",
        "faults": (f"attack:{tmp_path}/own.py:{fault}",),
    }
    with pytest.raises(ConfigError, match=words) if words else contextlib.nullcontext():
        fitting.check_rule(resolve(given))


def test_an_attack_of_a_file_changes_no_truth_and_keeps_the_shape(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "def turned(update): return update.mul_(-1)\ndef short(update): return update[:1]\n"
    )
    truth = vector(0)
    turned = UpdateAttack(faults.parse(f"attack:{tmp_path}/own.py:turned:1"), 1, 7, 5)
    assert np.array_equal(turned.tamper_with(truth, 0, "update"), -truth)
    assert np.array_equal(truth, vector(0))
    short = UpdateAttack(faults.parse(f"attack:{tmp_path}/own.py:short:1"), 1, 7, 5)
    with pytest.raises(ConfigError, match=r"returned shape \(1,\), not a tensor of shape \(40,\)"):
        short.tamper_with(truth, 0, "update")


def test_a_simulated_attack_of_a_file_took_place(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_ATTACKS)
    (fault,) = faults.parse(f"attack:{tmp_path}/own.py:mine:1")
    schedule = Schedule(3, peers=5, f=1, aggregator="median", faults=(fault,), active_s=4.0)
    outcome = run(replace(schedule, duration_s=8.0).checked())
    assert outcome.violation is None, outcome.violation
    assert outcome.struck["attack"]


def test_to_read_a_plan_loads_no_file() -> None:
    plan = faults.parse("attack:not_there.py:mine:1,2*3")
    assert plan.real().to_toml()
    assert plan.attackers[1].strength_to_make == 3.0


def test_two_liars_apart_send_the_same_as_soon_as_there_is_a_result() -> None:
    plan = faults.parse("ipm:1,2*0.5")
    update_attacks = [UpdateAttack(plan, peer, 7, 5) for peer in (1, 2)]
    result = vector(9)
    for peer, update_attack in enumerate(update_attacks):
        update_attack.tamper_with(vector(peer), 0, "update")
        update_attack.saw(Apply(0, (payload(result),)))
    said = [
        update_attack.tamper_with(vector(10 + peer), 1, "update")
        for peer, update_attack in enumerate(update_attacks)
    ]
    assert np.array_equal(*said)
    assert np.allclose(said[0], -0.5 * result)


def test_a_guess_of_parameters_is_of_where_the_neighbours_stand() -> None:
    update_attack = UpdateAttack(faults.parse("ipm:1*1"), 1, 7, 5)
    own, mix = vector(1), vector(2)
    update_attack.tamper_with(own, 0, "parameters")
    update_attack.saw(Apply(0, (payload(vector(3)),), mix=payload(mix), mix_scale=0.5))
    assert np.allclose(
        update_attack.tamper_with(vector(4), 1, "parameters"), -(own + mix), atol=1e-6
    )


def test_an_honest_peer_and_one_that_lies_about_its_data_say_what_is_so() -> None:
    for words, peer in (("alie:2", 1), ("label_flip:1", 1)):
        update_attack = UpdateAttack(faults.parse(words), peer, 7, 5)
        assert not update_attack.lies
        assert not update_attack.tells_each
        said = payload(vector(0))
        assert update_attack.replace_payload(3, push(), said) is said


def test_dissensus_uses_what_neighbours_have_told_of_the_same_kind() -> None:
    update_attack = UpdateAttack(faults.parse("dissensus:1,4"), 1, 7, 5)
    assert update_attack.tells_each
    assert not update_attack.lies, "its own trainer and record have the truth"
    for peer in (0, 2, 3, 4):
        update_attack.record_push(peer, push(), payload(vector(peer)))
        update_attack.record_push(peer, push("parameters"), payload(vector(50 + peer)))
    told = update_attack.replace_payload(2, push(), payload(vector(1)))
    pull = (vector(0) - vector(2)) + (vector(3) - vector(2))  # of 4 it knows that it lies as well
    assert np.allclose(told.data, vector(2) - pull / 2, atol=1e-5)
    assert told.nbytes == told.data.nbytes
    assert update_attack.replace_payload(2, Ping(1, 2, ()), None) is None


def test_equivocation_tells_odd_and_even_neighbours_the_opposite() -> None:
    update_attack = UpdateAttack(faults.parse("equivocation:1*3"), 1, 7, 5)
    odd, even = (update_attack.replace_payload(peer, push(), payload(vector(1))) for peer in (3, 4))
    assert np.array_equal(odd.data, -even.data)
    assert np.allclose(even.data, 3 * vector(1))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("mimic:1", "does not see in time"),
        ("negated_copies:1", "exchange an update within the round"),
    ],
)
def test_real_processes_refuse_what_would_take_another_peers_update(words: str, says: str) -> None:
    plan = faults.parse(words)
    with pytest.raises(BadFault, match=says) as caught:
        plan.real()
    assert "gossip simulate" in str(caught.value.hint)


def test_lies_that_do_not_go_with_the_rule_or_the_topology_are_refused() -> None:
    with pytest.raises(BadFault, match="rolling rounds have one server"):
        faults.parse("dissensus:1").fits("rolling", True, "median")
    with pytest.raises(BadFault, match="zeno requests the loss from the trainer"):
        faults.parse("adaptive:1").fits("rolling", True, "zeno", True)
    plan = faults.parse(["dissensus:1", "adaptive:2"])
    assert plan.fits("random-k", False, "median") is plan


def test_the_rule_that_a_liar_tries_is_the_one_of_the_run() -> None:
    updates = torch.from_numpy(np.stack([vector(seed) for seed in range(7)]))
    for spec in ("trimmed_mean", "nnm+krum", "suspicion"):
        assert torch.equal(
            rule_of(load(spec), 2, centered=False)(updates), load(spec)(updates, f=2)
        )
    centered = rule_of(load("suspicion"), 2, centered=True)(updates)
    assert torch.equal(centered, load("suspicion")(updates, f=2, center=updates[0]))
