"""Local steps with the round of a fragment in flight: Ctrl-C, a state of others, and a step that is
not finite."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from fragment_setups import IN_FLIGHT, deep_model, state_of_others
from trainer_fakes import FakeNode, FakeNodeSwarm, backward, flat_parameters, step

from gossip.core import events, squeeze
from gossip.ipc import messages as control
from gossip.run import checkpoints
from gossip.training.state import read_state_file


def echoes(last: int) -> Any:
    """Every update comes back as it was, up to round ``last``; what comes later stays in flight.
    One that is not finite changes nothing."""

    def script(n: FakeNode) -> None:
        n.prepared()
        round_id = 0
        n.go(0)
        while True:
            match message := n.next():
                case control.Contribute() if message.round_id <= last:
                    assert n.arena is not None
                    if message.samples and message.finite:
                        n.apply(
                            message.round_id, message.round_id % 4, n.arena.updates[message.slot]
                        )
                    else:
                        n.send(control.ApplyCommand(message.round_id, -1, 0.0))
                    round_id = message.round_id + 1
                    n.go(round_id, round_id % 4)
                case events.LedgerRequest():
                    ledger = {"chain": "00", "whole": True, "round": round_id}
                    n.send(events.LedgerReply(round_id, squeeze(json.dumps(ledger).encode())))
                case control.Close():
                    n.send(events.Halt(message.reason, 0))
                    return

    return script


def stopped_in_an_interval(folder: Path, last: int) -> tuple[int, dict[str, Any]]:
    """Ctrl-C behind the first of the third two steps, when a round is in flight. The step of the
    checkpoint, and what the peer keeps for itself."""
    model, optimizer = deep_model(momentum=0.0)
    swarm = FakeNodeSwarm(echoes(last), **IN_FLIGHT)
    swarm.session.prepare(model, optimizer)
    swarm.session.save_every(folder, 1000)
    for seed in range(4):
        step(model, optimizer, seed)
    backward(model, 4)
    swarm.termination.since = time.monotonic()
    with pytest.raises(SystemExit):
        optimizer.step()
    ((saved, _),) = checkpoints.listed(folder)
    (own,) = (folder / "own").iterdir()
    return saved, read_state_file(own.read_bytes())


def test_who_is_stopped_in_an_interval_saves_the_round_in_flight(tmp_path: Path) -> None:
    saved, own = stopped_in_an_interval(tmp_path, last=1)
    assert saved == 4, "both rounds, and none of the steps behind them"
    model, optimizer = deep_model(momentum=0.0)
    undisturbed = FakeNodeSwarm(echoes(1), **IN_FLIGHT)
    undisturbed.session.prepare(model, optimizer)
    for seed in range(4):
        step(model, optimizer, seed)
    undisturbed.session._rounds.drain()
    kept = torch.cat([part.reshape(-1) for part in own["parameters"]])
    assert torch.equal(kept, flat_parameters(model))
    undisturbed.session.close("stopped")


def test_who_leaves_its_round_to_the_others_keeps_no_steps_that_they_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossip.training.leaving.HURRIED_S", 0.05)
    saved, own = stopped_in_an_interval(tmp_path, last=0)
    assert saved == 2
    assert not own.get("parameters")


@pytest.mark.parametrize("options", [{"fragments": 2}, {"overlap": 1}, IN_FLIGHT])
def test_a_step_that_is_not_finite_costs_its_round_and_no_more(options: dict[str, Any]) -> None:
    model, optimizer = deep_model(momentum=0.0)
    finite = []
    with FakeNodeSwarm(echoes(99), **{**options, "local_steps": 4, "outer": "mean"}) as swarm:
        swarm.session.prepare(model, optimizer)
        for seed in range(16):
            backward(model, seed)
            if seed == 2:
                gradient = next(model.parameters()).grad
                gradient.fill_(float("nan"))
            optimizer.step()
            finite.append(bool(flat_parameters(model).isfinite().all()))
    assert not finite[2]
    assert all(finite[8:])


def test_a_state_of_others_that_comes_while_a_round_is_waited_for_ends_what_was_in_flight() -> None:
    model, optimizer = deep_model(momentum=0.0)
    other, their_optimizer = deep_model(momentum=0.0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    state = state_of_others(other, their_optimizer, 8)

    def script(n: FakeNode) -> None:
        n.first_update()
        n.restored(8, state)
        n.offered(8, slot=1)
        n.lost(8)
        n.end(9)

    with FakeNodeSwarm(script, **IN_FLIGHT) as swarm:
        swarm.session.prepare(model, optimizer)
        for seed in range(2):
            step(model, optimizer, seed)
        swarm.session._rounds.drain()
        assert torch.equal(flat_parameters(model), flat_parameters(other))
        for seed in range(2, 4):
            step(model, optimizer, seed)
            step(other, their_optimizer, seed)
        assert torch.equal(flat_parameters(model), flat_parameters(other)), "none was applied"
