"""Collective operations on a virtual clock: all who live get the same answer, whoever dies in the
middle of one, and an operation is no step."""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from checked_swarm import core_settings, peer_swarm, toy_trainers
from effort import effort

from gossip.core import Event, events
from gossip.core.messages import Collected, PeerId
from gossip.core.peer import Peer
from gossip.core.settings import RoundSettings
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.toy_payloads import bytes_of_state, packed_of
from gossip_lab.simulation.world.toy_trainer import ToyTrainer

EVERY = 5
"""Steps between two operations."""


@dataclass(eq=False, repr=False)
class Caller(ToyTrainer):
    """Calls an operation before each ``EVERY``-th step. Its answers are part of its state.

    Args:
        slow_calls: Seconds that it takes until it gives something.
    """

    slow_calls: float = 0.0
    answers: dict[int, list[PeerId]] = field(default_factory=dict)
    steps: int = 0

    def _start(self, effect: events.StartRound) -> list[tuple[float, Event]]:
        self.steps = step = effect.round_id - effect.collectives
        if step % EVERY or step in self.answers:
            return super()._start(effect)
        self.computing = given = events.Contributed(
            effect.round_id, 0, (), collective=f"{step}/{self.peer}".encode()
        )
        return [(self.rng.uniform(*self.pace.compute_s) + self.slow_calls, given)]

    def _apply(self, apply: events.Apply, now: float) -> None:
        super()._apply(apply, now)
        for step, peers in _by_step(apply.collected).items():
            self.answers.setdefault(step, peers)

    def on_effect(self, effect: events.Effect, now: float) -> list[tuple[float, Event]]:
        if not isinstance(effect, events.TakeSnapshot) or self.computing is not None:
            return super().on_effect(effect, now)
        settings = struct.pack("<f", self.step_size) + json.dumps(self.answers).encode()
        parts = [self._here.tobytes(), settings, struct.pack("<i", self.peer)]
        packed = packed_of(parts, self.piece_bytes)
        sizes = tuple([len(part) for part in parts])
        return [(self.pace.snapshot_s, events.SnapshotTaken(self.next_round, packed, sizes))]

    def _restore(self, restore: events.Restore, now: float) -> events.Restored:
        whole, most = bytes_of_state(restore.payload), 4 * len(self._here)
        answers = json.loads(whole[most + 4 : -4] or b"{}")
        plain = packed_of([whole[:most], whole[most : most + 4], whole[-4:]])
        restored = super()._restore(replace(restore, payload=plain), now)
        self.answers = {int(step): peers for step, peers in answers.items()}
        return restored


def _by_step(collected: tuple[Collected, ...]) -> dict[int, list[PeerId]]:
    found: dict[int, list[PeerId]] = {}
    for given in collected:
        step, peer = given.data.decode().split("/")
        assert int(peer) == given.peer
        found.setdefault(int(step), []).append(given.peer)
    return found


def swarm_of_callers(n: int, seed: int, f: int = 0, **options: Any) -> Swarm[Peer]:
    settings = core_settings(n, seed, f=f, rounds=RoundSettings(round_timeout_s=4.0))
    return peer_swarm(settings, toy_trainers(seed, Caller, **options))


def trainers(swarm: Swarm[Peer]) -> list[Caller]:
    found = [swarm.trainer(peer) for peer in swarm.up]
    assert all(isinstance(each, Caller) for each in found)
    return found  # type: ignore[return-value]


def answers_of_all(swarm: Swarm[Peer]) -> dict[int, list[PeerId]]:
    """Step -> who answered, that all have the same of."""
    everybody = trainers(swarm)
    common = set.intersection(*[set(each.answers) for each in everybody])
    for step in {step for each in everybody for step in each.answers}:
        known = [each.answers[step] for each in everybody if step in each.answers]
        assert all(each == known[0] for each in known), f"step {step}: {known}"
    return {step: everybody[0].answers[step] for step in sorted(common)}


def suspected(swarm: Swarm[Peer]) -> set[PeerId]:
    """Who was, by anybody: with two pings lost that can be somebody who lives."""
    return {
        report.fields["subject"]
        for host in swarm.hosts.values()
        for _, report in host.reports
        if report.event == "suspect"
    }


@pytest.mark.parametrize(("n", "f"), [(1, 0), (2, 0), (4, 1), *effort([], [(4, 0), (7, 2)])])
def test_without_a_fault_everybody_is_in_every_answer(n: int, f: int) -> None:
    swarm = swarm_of_callers(n, 7, f)
    swarm.run_for(6.0)
    answers = answers_of_all(swarm)
    assert len(answers) > 10
    there = set(range(n)) - suspected(swarm)
    assert len(there) >= n - 1
    assert all(set(peers) >= there for peers in answers.values())
    assert sum([peers == list(range(n)) for peers in answers.values()]) > 10


def test_an_operation_is_no_step() -> None:
    """As many samples of the epoch are given out as without one."""
    swarm = swarm_of_callers(3, 4)
    swarm.run_for(5.0)
    for host in swarm.hosts.values():
        replicated = host.core.rounds.replicated
        assert replicated.collectives > 5
        calls = {c.commit.round_id for _, c in host.commits if c.commit.collected}
        assert len(calls) == replicated.collectives
        epochs = [r.fields for _, r in host.reports if r.event == "epoch"]
        assert epochs
        assert all(epoch["once"] == 997 for epoch in epochs)
        assert all(epoch["rounds"] <= 997 // 12 + 3 for epoch in epochs), "no batch was lost"
        assert not [r for _, r in host.reports if r.event == "lost_round"]


def test_one_that_takes_long_is_waited_for() -> None:
    """It evaluates for 60 usual rounds: nobody else may go on, nor try another server."""
    swarm = swarm_of_callers(4, 5, slow_calls={2: 1.0})
    swarm.run_for(20.0)
    answers = answers_of_all(swarm)
    assert len(answers) > 10
    assert all(peers == [0, 1, 2, 3] for peers in answers.values())
    assert not [r for h in swarm.hosts.values() for _, r in h.reports if r.event == "attempt"]


@pytest.mark.parametrize("seed", range(effort(2, 100)))
def test_a_peer_is_killed_in_the_middle_of_one_and_all_get_the_same(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.choice([3, 4, 6])
    f = rng.choice([0, 1]) if n > 3 else 0
    swarm = swarm_of_callers(n, seed, f, compute_s=(0.02, 0.04))
    swarm.run_for(2.0)
    victim, until = rng.randrange(n), swarm.now + 5.0
    trainer = swarm.trainer(victim)
    assert isinstance(trainer, Caller)
    while swarm.now < until and not (trainer.computing and trainer.computing.collective):
        swarm.run_for(0.001)
    assert trainer.computing is not None, "it never came to an operation"
    called_at = trainer.steps
    swarm.run_for(rng.uniform(0.0, 0.02))
    swarm.crash(victim)
    swarm.run_for(3.0)
    if rng.random() < 0.5:
        swarm.restart(victim)
    swarm.run_for(6.0)
    answers = answers_of_all(swarm)
    others = {peer for peer in range(n) if peer != victim} - suspected(swarm)
    assert called_at in answers
    assert set(answers[called_at]) >= others
    assert max(answers) > called_at + 4 * EVERY
