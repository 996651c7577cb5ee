"""Local steps: what a peer does between two rounds, and what a round is on."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trainer_fakes import (
    FakeNode,
    FakeNodeSwarm,
    backward,
    echo,
    flat_parameters,
    local_steps,
    pack_state,
    prepared_swarm,
    same_bits,
    small_model,
    step,
    unpack_state,
)

from gossip.aggregators import outer
from gossip.config import RunConfig, resolve
from gossip.core import events
from gossip.errors import ConfigError, UnknownName
from gossip.ipc import messages as control
from gossip.ipc.arena import allocate, map_rows
from gossip.run import fitting
from gossip.run.checkpoints import Checkpoint
from gossip.training.layout import Layout
from gossip.training.local_steps import STATE, LocalSteps, read_settings, settings_of
from gossip.training.resuming import check_rounds
from gossip.training.saving import CheckpointSaver, SavePlan
from gossip.training.state import StateMismatch

NESTEROV = "nesterov:lr=0.7,momentum=0.9"


def local(total: int, spec: str = "mean") -> tuple[torch.nn.Module, LocalSteps]:
    model, optimizer = small_model()
    layout = Layout(model, optimizer)
    return model, local_steps(layout, optimizer.step, total, spec)


# --- the outer step -------------------------------------------------------------------------------


def test_an_outer_step_is_read_back_from_its_own_text() -> None:
    for text in ("mean", NESTEROV, "heavy_ball:lr=0.5,momentum=0.8", "nesterov"):
        read = outer.load(text)
        assert outer.load(read.spec) == read
    assert outer.load("nesterov").spec == NESTEROV
    assert outer.load("mean") == outer.OuterStep("mean", 1.0, 0.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nestrov", "Did you mean 'nesterov'"),
        ("nesterov:beta=0.9", "beta"),
        ("mean:lr=2", "lr"),
        ("nesterov:lr=fast", "not a number"),
        ("nesterov:momentum=1", "below 1"),
        ("heavy_ball:lr=nan", "above 0"),
    ],
)
def test_an_outer_step_that_nobody_knows_is_refused(text: str, said: str) -> None:
    with pytest.raises((ConfigError, UnknownName), match=said):
        outer.load(text)
    with pytest.raises(ValueError, match=said):
        RunConfig(outer=text)


def test_the_outer_step_is_that_of_diloco() -> None:
    """m <- mu m + D; theta <- theta - eta (D + mu m)."""
    theta = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = outer.load(NESTEROV).optimizer([theta])
    expected, momentum = theta.detach().clone(), torch.zeros(2, dtype=torch.float64)
    for seed in range(5):
        theta.grad = torch.full((2,), 0.1 * seed - 0.2, dtype=torch.float64)
        optimizer.step()
        momentum = 0.9 * momentum + theta.grad
        expected -= 0.7 * (theta.grad + 0.9 * momentum)
        assert torch.allclose(theta, expected, rtol=1e-12)


@pytest.mark.parametrize("spec", ["mean", NESTEROV, "heavy_ball:lr=0.5,momentum=0.8"])
def test_a_move_is_a_step_of_the_optimizer(spec: str) -> None:
    """For whoever has parameters in one vector."""
    step, theta = outer.load(spec), torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer, moved, memory = step.optimizer([theta]), torch.ones(3, dtype=torch.float64), None
    for at in range(4):
        theta.grad = torch.arange(3, dtype=torch.float64) - at
        optimizer.step()
        move, memory = step.move(theta.grad.clone(), memory)
        moved -= move
        assert torch.allclose(theta, moved, rtol=1e-12)


# --- between two rounds ---------------------------------------------------------------------------


def test_the_update_is_the_model_difference_and_the_parameters_are_the_anchor_again() -> None:
    model, steps = local(3)
    before = flat_parameters(model)
    for seed in range(3):
        backward(model, seed)
        steps.step()
        assert steps.is_round_due == (seed == 2)
    after = flat_parameters(model)
    assert not steps.load_update(False).is_useless
    difference = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])  # type: ignore[union-attr]
    assert torch.equal(flat_parameters(model), before)
    assert torch.equal(difference, before - after)
    assert steps.taken == 0


def test_a_parameter_that_no_step_has_moved_has_no_update() -> None:
    model, steps = local(1)
    backward(model, 0)
    frozen, *others = model.parameters()
    frozen.grad = None
    steps.step()
    steps.load_update(False)
    assert frozen.grad is None
    assert all(parameter.grad is not None for parameter in others)


def test_steps_that_were_all_skipped_are_no_update() -> None:
    model, steps = local(2)
    backward(model, 0)
    steps.step(skipped=True)
    steps.step(skipped=True)
    assert steps.load_update(False).is_useless


def test_the_shared_parameters_may_be_replaced_in_the_middle_and_own_steps_stay_on_top() -> None:
    model, steps = local(3)
    backward(model, 0)
    before = flat_parameters(model)
    steps.step()
    after = flat_parameters(model)
    with steps.at_anchor():
        assert torch.equal(flat_parameters(model), before)
    assert torch.equal(flat_parameters(model), after), "nothing was replaced: bit for bit"
    with steps.at_anchor(), torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert torch.allclose(flat_parameters(model), after + 1.0, atol=1e-6)
    steps.load_update(False)
    assert torch.equal(flat_parameters(model), before + 1.0)


def test_what_goes_with_the_anchor_is_of_its_step() -> None:
    """A scheduler is stepped within a round: who takes the anchor over takes the scheduler as it
    was there."""
    _, steps = local(2)
    now = {"value": [0]}
    steps._run.model.extra.latest = lambda: now

    def step_once() -> None:
        steps.step(skipped=True)
        now["value"].append(now["value"][-1] + 1)

    step_once()
    assert steps.anchor_extra == {"value": [0]}
    step_once()
    steps.load_update(False)
    assert steps.anchor_extra == {"value": [0]}, "the script has yet to step behind it"
    steps.note_script_ready()
    assert steps.anchor_extra is None, "it is what the script has now"


@pytest.mark.parametrize(
    "said",
    [
        7,
        {},
        {"step": "3", "groups": [{}]},
        {"step": 3, "groups": []},
        {"step": 3, "groups": [{"lr": 1.0}]},
    ],
)
def test_settings_of_another_optimizer_are_refused(said: object) -> None:
    _, optimizer = small_model()
    with pytest.raises(StateMismatch):
        read_settings(said, optimizer)


def test_settings_are_taken_over_as_they_were_given() -> None:
    _, optimizer = small_model()
    said = copy.deepcopy(settings_of(optimizer, 60))
    optimizer.param_groups[0]["lr"] = 0.123
    step, groups = read_settings(said, optimizer)
    assert (step, groups[0]["lr"]) == (60, said["groups"][0]["lr"])
    assert read_settings(None, optimizer)[1][0]["lr"] == 0.123


# --- rules with a judge ---------------------------------------------------------------------------

AS_A_GRADIENT = "the rule {} makes updates as long as the judge's gradient"


@pytest.mark.parametrize("given", [{"local_steps": 4}, {"outer": "mean"}])
@pytest.mark.parametrize("rule", ["zeno_pp", "fltrust"])
@pytest.mark.parametrize("topology", ["rolling", "full"])
def test_differences_that_would_be_made_as_long_as_a_gradient_are_refused_before_a_run(
    given: dict[str, Any], rule: str, topology: str
) -> None:
    values = {"peers": 8, "topology": topology}
    with pytest.raises(ConfigError, match=AS_A_GRADIENT.format(rule)) as refused:
        fitting.check_rule(resolve({**values, **given, "aggregator": rule}))
    assert refused.value.hint == f"write {rule}:lengths=updates"
    fitting.check_rule(resolve({**values, **given, "aggregator": f"{rule}:lengths=updates"}))
    fitting.check_rule(resolve({**values, "aggregator": rule}))


def test_a_session_refuses_them_too() -> None:
    model, optimizer = small_model()
    with (
        FakeNodeSwarm(lambda n: n.halt(), aggregator="fltrust", peers=4, local_steps=2) as swarm,
        pytest.raises(ConfigError, match=AS_A_GRADIENT.format("fltrust")),
    ):
        swarm.session.prepare(model, optimizer, judge=lambda: model(torch.ones(1, 5)).sum())


def test_zeno_judges_a_step_of_the_outer_optimizer_from_the_shared_parameters() -> None:
    model, optimizer = small_model()
    seen: list[torch.Tensor] = []
    sent: list[torch.Tensor] = []

    def judge() -> torch.Tensor:
        seen.append(flat_parameters(model))
        return model(torch.ones(1, 5)).square().sum()

    def node(n: FakeNode) -> None:
        elements = n.prepared().elements
        n.offered(0)
        fd = allocate(4 * 4 * elements)
        rows = map_rows(fd, 4, elements)
        sent.append(torch.from_numpy(n.arena.updates[0].copy()))  # type: ignore[union-attr]
        rows[:3] = sent[0]
        n.send(control.JudgeCommand(1, 0, 3, 4, 1, -1, False), fds=[fd])
        assert n.expect(control.JudgeReply).reason == ""
        n.lost(0)
        n.end(1)

    given = {"aggregator": "zeno", "local_steps": 2, "outer": "heavy_ball:lr=0.25,momentum=0"}
    with FakeNodeSwarm(node, peers=4, **given) as swarm:
        swarm.session.prepare(model, optimizer, judge=judge)
        before = flat_parameters(model)
        for seed in range(2):
            step(model, optimizer, seed)
            assert seed or not torch.equal(flat_parameters(model), before)
    assert torch.equal(seen[0], before)
    torch.testing.assert_close(seen[1], before - 0.25 * sent[0][: len(before)])


# --- a session ------------------------------------------------------------------------------------


def test_one_peer_with_the_mean_trains_as_it_would_alone() -> None:
    """The anchor less the difference is where the steps led to, up to rounding."""
    model, optimizer = small_model()
    twin, twin_optimizer = small_model()
    with FakeNodeSwarm(echo, local_steps=4, outer="mean") as swarm:
        swarm.session.prepare(model, optimizer)
        for seed in range(12):
            assert swarm.session.step == seed
            step(model, optimizer, seed)
            step(twin, twin_optimizer, seed)
        assert swarm.session.round == 3
        assert torch.allclose(flat_parameters(model), flat_parameters(twin), atol=1e-6)


def test_a_round_of_local_steps_is_sent_once_and_stepped_by_the_outer_optimizer() -> None:
    model, optimizer = small_model()
    twin, twin_optimizer = small_model()
    sent = []

    def script(n: FakeNode) -> None:
        n.prepared()
        for round_id in range(2):
            n.offered(round_id, slot=1)
            sent.append(n.arena.updates[1].copy())  # type: ignore[union-attr]
            n.applied(round_id, 1, 0.5 * sent[-1][: -len(list(model.parameters()))])
        n.end(2)

    with FakeNodeSwarm(script, local_steps=3, outer=NESTEROV) as swarm:
        swarm.session.prepare(model, optimizer)
        outer_twin = outer.load(NESTEROV).optimizer(twin.parameters())
        for first in (0, 3):
            anchor = flat_parameters(twin)
            for seed in range(first, first + 3):
                step(model, optimizer, seed)
                step(twin, twin_optimizer, seed)
            difference = anchor - flat_parameters(twin)
            assert np.array_equal(sent[-1][: len(difference)], difference.numpy())
            sizes = [parameter.numel() for parameter in twin.parameters()]
            pieces = zip(anchor.split(sizes), difference.split(sizes), strict=True)
            for parameter, (was, moved) in zip(twin.parameters(), pieces, strict=True):
                parameter.data.copy_(was.view_as(parameter))
                parameter.grad = 0.5 * moved.view_as(parameter)
            outer_twin.step()
            assert same_bits(model, twin)
    assert len(sent) == 2


def test_a_session_that_ends_within_a_round_ends_at_the_anchor_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with prepared_swarm(echo, local_steps=3, outer="mean") as (_, model, optimizer):
        for seed in range(3):
            step(model, optimizer, seed)
        shared = flat_parameters(model)
        step(model, optimizer, 3)
        assert not torch.equal(flat_parameters(model), shared)
    assert torch.equal(flat_parameters(model), shared)
    assert "1 local steps were undone" in capsys.readouterr().err


def test_who_is_stopped_within_a_round_says_how_many_of_its_steps_count_for_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, optimizer = small_model()
    swarm = FakeNodeSwarm(echo, local_steps=4, outer="mean")
    swarm.session.prepare(model, optimizer)
    for seed in range(5):
        step(model, optimizer, seed)
    swarm.termination.since = time.monotonic()
    with pytest.raises(SystemExit):
        step(model, optimizer, 5)
    said = "stopped within a round: the 2 of 4 local steps that this peer has taken are lost"
    assert capsys.readouterr().err.count(f"peer 0: {said}") == 1


def test_a_state_that_was_taken_over_brings_the_settings_of_the_users_optimizer() -> None:
    model, optimizer = small_model()
    other, other_optimizer = small_model()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    other_optimizer.param_groups[0]["lr"] = 0.0625
    layout = Layout(other, other_optimizer)
    theirs = local_steps(layout, other_optimizer.step, 2, NESTEROV)
    state = pack_state(other, theirs.outer, {STATE: settings_of(other_optimizer, 8)})

    def script(n: FakeNode) -> None:
        n.prepared()
        n.restore(4, state)
        assert n.expect(events.Restored).error == ""
        n.end(4)

    with FakeNodeSwarm(script, local_steps=2) as swarm:
        swarm.session.prepare(model, optimizer)
        assert swarm.session.step == 8
        assert same_bits(model, other)
        assert optimizer.param_groups[0]["lr"] == 0.0625


def test_a_state_of_local_steps_fits_the_outer_optimizer_and_no_other() -> None:
    model, optimizer = small_model()
    state = pack_state(model, optimizer, {})
    steps = local_steps(Layout(model, optimizer), optimizer.step, 2, NESTEROV)
    step(model, optimizer, 0)
    with pytest.raises(StateMismatch):
        unpack_state(
            pack_state(model, torch.optim.AdamW(model.parameters()), {}), model, steps.outer
        )
    unpack_state(state, model, optimizer)


def test_a_loop_that_would_end_within_a_round_is_refused_before_it_begins() -> None:
    with FakeNodeSwarm(echo, local_steps=30) as swarm:
        swarm.prepare()
        with pytest.raises(ConfigError, match=r"steps\(100\) is not a multiple.*30") as raised:
            swarm.session.steps(100)
        assert raised.value.hint == "use 90 or 120"


# --- checkpoints ----------------------------------------------------------------------------------


def test_a_checkpoint_is_due_behind_the_first_round_that_has_come_so_far(tmp_path: Path) -> None:
    plan = SavePlan(tmp_path, 7, 3, of_round=5)
    saver = CheckpointSaver(plan, 0, {}, print)
    assert [step for step in range(5, 50, 5) if saver.is_due(step)] == [10, 15, 25, 30, 35, 45]


@pytest.mark.parametrize(
    ("saved", "said", "hint"),
    [
        ({}, "local_steps = 1, and this run has 5", "resume with --local-steps 1"),
        ({"local_steps": 10}, "local_steps = 10", "resume with --local-steps 10"),
        (
            {"local_steps": 5},
            f"outer = none, and this run has {NESTEROV}",
            "resume without --outer",
        ),
        ({"local_steps": 5, "outer": "mean"}, "outer = mean", "resume with --outer mean"),
    ],
)
def test_a_checkpoint_of_other_rounds_is_not_resumed_from(
    tmp_path: Path, saved: dict[str, Any], said: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        check_rounds(Checkpoint(50, tmp_path, saved), RunConfig(local_steps=5))
    assert raised.value.hint == hint
    check_rounds(
        Checkpoint(50, tmp_path, {"local_steps": 5, "outer": NESTEROV}), RunConfig(local_steps=5)
    )


# --- what comes between ---------------------------------------------------------------------------


def test_a_step_that_is_interrupted_is_undone() -> None:
    model, steps = local(3)
    before = flat_parameters(model)

    def interrupted() -> None:
        with torch.no_grad():
            next(model.parameters()).add_(1.0)
        raise KeyboardInterrupt

    steps._inner_step = interrupted
    with pytest.raises(KeyboardInterrupt):
        steps.step()
    assert steps.undo_steps() == 1
    assert torch.equal(flat_parameters(model), before)


def test_steps_that_are_undone_while_the_shared_parameters_are_there_stay_undone() -> None:
    """As at Ctrl-C in a collective operation, in which a round was applied."""
    model, steps = local(3)
    backward(model, 0)
    before = flat_parameters(model)
    steps.step()
    with steps.at_anchor():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        assert steps.undo_steps() == 1
    assert torch.equal(flat_parameters(model), before + 1.0)


def test_every_local_step_is_a_place_of_its_own_for_collective_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with prepared_swarm(echo, local_steps=3, outer="mean") as (swarm, model, optimizer):
        places: list[int] = []
        answers = swarm.session._collectives.answers
        monkeypatch.setattr(answers, "reached", places.append)
        for seed in range(6):
            step(model, optimizer, seed)
        assert places == [1, 3, 5, 7, 9, 11]


def test_a_state_that_comes_between_local_steps_is_the_one_that_is_handed_on() -> None:
    _, steps = local(3)
    steps.step(skipped=True)
    steps.on_state_loaded({"from": "others"})
    assert steps.anchor_extra == {"from": "others"}
