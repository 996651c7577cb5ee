"""A state that is asked for between two local steps: who comes back does not wait for the rest."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch
from test_local_steps import NESTEROV
from trainer_fakes import (
    PATIENCE_S,
    FakeNode,
    FakeNodeSwarm,
    flat_parameters,
    pack_state,
    prepared_swarm,
    small_model,
    step,
    unpack_state,
)

from gossip.core import events
from gossip.ipc import messages as control
from gossip.training.collectives import pack_object, packed


def play_first_round(n: FakeNode) -> None:
    """Up to the Go of the second."""
    n.first_update()
    n.apply(0, 0, n.arena.updates[0])  # type: ignore[union-attr]
    n.expect(control.AppliedReply)
    n.go(1, 1)


class Asked:
    """A run of two rounds of four steps each. In the second the node says something behind the
    first step, and the trainer goes on when it has."""

    def __init__(self, *said: Any, slices: str = "speed", round_id: int = 1) -> None:
        """``round_id``: that the node is in behind what it has ``said``."""
        self._slices, self._round_id = slices, round_id
        self.model, self.optimizer = small_model()
        self.answers: list[object] = []
        self.state = b""
        self.shared = torch.empty(0)
        self._said = said
        self._stepped, self._sent = threading.Event(), threading.Event()

    def play(self) -> None:
        options = {"local_steps": 4, "outer": NESTEROV, "slices": self._slices}
        with FakeNodeSwarm(self._node, **options) as swarm:
            swarm.session.prepare(self.model, self.optimizer)
            for at in range(8):
                if at == 4:
                    self.shared = flat_parameters(self.model)
                step(self.model, self.optimizer, at)
                if at == 4:
                    self._stepped.set()
                    assert self._sent.wait(PATIENCE_S)

    def _node(self, n: FakeNode) -> None:
        play_first_round(n)
        assert self._stepped.wait(PATIENCE_S)
        for each in self._said:
            if callable(each):
                each(n)
            else:
                n.send(each)
        self._sent.set()
        while not isinstance(said := n.next(), control.Close):
            self.answers.append(said)
            if isinstance(said, control.Contribute) and said.round_id == self._round_id:
                n.apply(1, 1, n.arena.updates[1])  # type: ignore[union-attr]
                n.go(2)
            elif isinstance(said, control.Snapshot):
                self.state = os.pread(n.fds.pop(0), said.nbytes, 0)
        n.send(events.Halt(said.reason, 0))


def test_a_state_is_given_between_two_local_steps_and_is_that_of_the_round() -> None:
    asked, undisturbed = Asked(events.TakeSnapshot()), Asked()
    asked.play()
    snapshot, contribution, *_ = asked.answers
    assert isinstance(snapshot, control.Snapshot)
    assert snapshot.round_id == 1
    assert isinstance(contribution, control.Contribute)
    taken, _ = small_model()
    unpack_state(asked.state, taken, torch.optim.SGD(taken.parameters(), lr=0.7, momentum=0.9))
    assert torch.equal(flat_parameters(taken), asked.shared), "none of its own steps is in it"
    undisturbed.play()
    assert torch.equal(flat_parameters(asked.model), flat_parameters(undisturbed.model))


def test_a_state_that_comes_behind_something_else_waits_for_the_end_of_the_round() -> None:
    """The node has said before that a round is over: what it asks for then is the state behind."""
    asked = Asked(control.ApplyCommand(1, -1, 0.0), events.TakeSnapshot())
    asked.play()
    kinds = [type(said) for said in asked.answers]
    assert kinds.index(control.Contribute) < kinds.index(control.Snapshot)
    (snapshot,) = [said for said in asked.answers if isinstance(said, control.Snapshot)]
    assert snapshot.round_id == 2


@pytest.mark.parametrize(("slices", "taken"), [("speed", 2), ("equal", 4)])
def test_a_round_that_is_decided_ends_behind_the_present_step(slices: str, taken: int) -> None:
    """An update of it counts for nothing, and the next round has begun."""
    asked = Asked(control.ApplyCommand(1, -1, 0.0), slices=slices)
    asked.play()
    first, *_ = [said for said in asked.answers if isinstance(said, control.Contribute)]
    assert (first.round_id, first.steps) == (1, (taken, 4))


def test_the_state_of_others_ends_the_steps_that_are_taken_from_the_old_one() -> None:
    taken, _ = small_model()
    state = pack_state(taken, torch.optim.SGD(taken.parameters(), lr=0.7, momentum=0.9), {})
    asked = Asked(lambda n: n.restore(5, state))
    asked.play()
    first, *_ = [said for said in asked.answers if isinstance(said, control.Contribute)]
    assert (first.round_id, first.steps) == (1, (2, 4))


def test_a_collective_operation_of_others_ends_no_local_steps() -> None:
    """They are in a round of their own, which this peer's own call is answered with."""
    said: list[control.Contribute] = []
    stepped, sent = threading.Event(), threading.Event()
    operation = packed((13, 0, "mean"), pack_object({"a": 1.0}), 4096)

    def node(n: FakeNode) -> None:
        play_first_round(n)
        assert stepped.wait(PATIENCE_S)
        n.send(control.ApplyCommand(1, -1, 0.0, collected=((1, operation),), is_step=False))
        n.send(control.StartRoundCommand(2, 2, False, 0, (), False, 1, 1, collectives=1))
        sent.set()
        while not isinstance(heard := n.next(), control.Close):
            if isinstance(heard, control.Contribute):
                said.append(heard)
                n.apply(2, 2, n.arena.updates[heard.slot])  # type: ignore[union-attr]
                n.go(3, 3)
        n.send(events.Halt(heard.reason, 0))

    with prepared_swarm(node, local_steps=4, outer=NESTEROV) as (swarm, model, optimizer):
        for at in range(8):
            step(model, optimizer, at)
            if at == 4:
                stepped.set()
                assert sent.wait(PATIENCE_S)
            if at == 6:
                swarm.session.mean(a=0.0)
    assert [(each.round_id, each.steps) for each in said if each.samples] == [(2, (4, 4))]


def test_behind_an_operation_of_others_a_decided_round_is_noticed() -> None:
    asked = Asked(
        control.ApplyCommand(1, -1, 0.0, is_step=False),
        control.StartRoundCommand(2, 2, False, 0, (), False, 1, 1, collectives=1),
        control.ApplyCommand(2, -1, 0.0),
        control.StartRoundCommand(3, 3, False, 0, (), False, 1, 1, collectives=1),
        round_id=3,
    )
    asked.play()
    first, *_ = [said for said in asked.answers if isinstance(said, control.Contribute)]
    assert first.steps == (3, 4)
