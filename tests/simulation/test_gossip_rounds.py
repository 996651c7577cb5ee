"""Gossip rounds of whole swarms on a virtual clock: replicas drift, mix,
lose peers, and stay close."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from gossip.core.events import (
    Aggregated,
    Applied,
    Connect,
    Contributed,
    Effect,
    Event,
    LinkDown,
    LinkUp,
    Prepared,
    Received,
    Started,
    TimerFired,
)
from gossip.core.rounds.gossip import GossipRounds
from gossip.core.settings import CoreSettings, GossipSettings, RoundSettings
from gossip.core.timers import Timers
from gossip.topologies import load
from gossip_lab.simulation.world.driver import Swarm, address
from gossip_lab.simulation.world.toy_trainer import ToyTrainer, Values, Vector

N = 8


class LinkedPeer:
    """The rounds alone: whoever has a link is there, whoever lost it is skipped.
    No membership protocol."""

    def __init__(self, local: int, topology: str, gossip: GossipSettings, f: int = 0) -> None:
        self.local, self.linked, self.started = local, set[int](), False
        self.timers: Timers[Any] = Timers()
        rounds = RoundSettings(round_timeout_s=2.0)
        settings = CoreSettings(
            b"\0" * 8, b"line-001", 1, tuple(range(N)), f, rounds=rounds, gossip=gossip
        )
        self.rounds = GossipRounds(
            local, settings, load(topology), self, self.timers, Random(local)
        )

    def skip_reason(self, peer: int) -> str:
        return "" if peer in self.linked else "no link"

    @property
    def version(self) -> int:
        return 0

    def is_gone(self, peer: int) -> bool:
        return False

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Started():
                return [Connect(peer, *address(peer)) for peer in range(N) if peer != self.local]
            case Prepared():
                self.rounds.shard_bytes = event.shard_bytes
            case LinkUp():
                self.linked.add(event.peer)
                return self._begin(now) or self.rounds.on_view_change(now)
            case LinkDown():
                self.linked.discard(event.peer)
                return self.rounds.on_view_change(now)
            case Received():
                return self.rounds.on_message(event, now)
            case Contributed():
                return self.rounds.on_contributed(event, now)
            case Aggregated():
                return self.rounds.on_aggregated(event, now)
            case Applied():
                return self.rounds.on_applied(event, now)
            case TimerFired():
                what = self.timers.fire(event.token)
                return self.rounds.on_timer(what, now) if what is not None else []
            case _:
                return []
        return self._begin(now)

    def _begin(self, now: float) -> list[Effect]:
        if self.started or len(self.linked) < N - 1 or not self.rounds.shard_bytes:
            return []
        self.started = True
        return self.rounds.begin(0, now)


def swarm_of(
    topology: str = "random_k",
    gossip: GossipSettings | None = None,
    f: int = 0,
    seed: int = 1,
    **trainer: Any,
) -> Swarm[LinkedPeer]:
    chosen = gossip or GossipSettings()
    return Swarm(
        lambda peer, incarnation: LinkedPeer(peer, topology, chosen, f),
        N,
        seed,
        make_trainer=lambda peer, incarnation: ToyTrainer(
            peer, seed, noise=1.0, **trainer_of(peer, trainer)
        ),
    )


def trainer_of(peer: int, fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value(peer) if callable(value) else value for name, value in fields.items()}


def parameters(swarm: Swarm[LinkedPeer], peers: tuple[int, ...]) -> Vector:
    trainers = [swarm.trainer(peer) for peer in peers]
    assert all(isinstance(trainer, ToyTrainer) for trainer in trainers)
    return np.stack([trainer.parameters for trainer in trainers if isinstance(trainer, ToyTrainer)])


def apart(swarm: Swarm[LinkedPeer], peers: tuple[int, ...]) -> float:
    """Consensus distance."""
    x = parameters(swarm, peers)
    return float(np.sqrt(((x - x.mean(axis=0)) ** 2).sum(axis=1).mean()))


def off_target(swarm: Swarm[LinkedPeer], peers: tuple[int, ...]) -> float:
    """Of the worst replica, root mean square."""
    worst = [
        trainer.distance for peer in peers if isinstance(trainer := swarm.trainer(peer), ToyTrainer)
    ]
    return max(worst)


def run_to(swarm: Swarm[LinkedPeer], round_id: int, peers: tuple[int, ...]) -> None:
    swarm.run_until(
        lambda: all(swarm.cores[peer].rounds.round_id >= round_id for peer in peers), limit_s=60
    )


EVERYBODY = tuple(range(N))


@pytest.mark.parametrize("topology", ["random_k", "ring", "full"])
def test_replicas_reach_the_target_and_stay_close_to_each_other(topology: str) -> None:
    swarm = swarm_of(topology)
    run_to(swarm, 100, EVERYBODY)
    assert off_target(swarm, EVERYBODY) < 0.3
    assert apart(swarm, EVERYBODY) < 0.5


def test_without_mixing_replicas_stay_farther_apart() -> None:
    mixed, alone = swarm_of(), swarm_of(gossip=GossipSettings(mix_every=10_000))
    for swarm in (mixed, alone):
        run_to(swarm, 100, EVERYBODY)
    assert apart(mixed, EVERYBODY) < 0.8 * apart(alone, EVERYBODY)


def test_a_crash_costs_the_others_no_grace() -> None:
    swarm = swarm_of()
    run_to(swarm, 30, EVERYBODY)
    swarm.crash(3)
    began, alive = swarm.now, tuple(peer for peer in EVERYBODY if peer != 3)
    first = max(swarm.cores[peer].rounds.round_id for peer in alive)
    run_to(swarm, first + 70, alive)
    assert (swarm.now - began) / 70 < 0.03  # a round is 5 to 15 ms of computing
    assert off_target(swarm, alive) < 0.3
    assert apart(swarm, alive) < 0.5


def test_a_slow_peer_slows_nobody_passes_over_rounds_and_stays_near() -> None:
    swarm = swarm_of(slowness=lambda peer: 12.0 if peer == 2 else 1.0)
    quick = tuple(peer for peer in EVERYBODY if peer != 2)
    run_to(swarm, 200, quick)
    assert len(swarm.reports(2, "behind")) > 3
    assert swarm.cores[2].rounds.round_id > 180
    assert apart(swarm, EVERYBODY) < 0.6


def test_a_peer_that_slept_wakes_harmless_and_catches_up() -> None:
    swarm = swarm_of()
    run_to(swarm, 30, EVERYBODY)
    swarm.pause(4)
    others = tuple(peer for peer in EVERYBODY if peer != 4)
    swarm.run_for(3.0)
    reached = min(swarm.cores[peer].rounds.round_id for peer in others)
    assert reached > 60
    swarm.resume(4)
    run_to(swarm, reached + 30, EVERYBODY)
    assert off_target(swarm, EVERYBODY) < 0.4


def test_a_quarter_of_liars_ruins_plain_averaging_and_not_a_robust_rule() -> None:
    def median(
        rows: Sequence[Values],
        samples: Sequence[int],
        f: int,
        previous: Values | None,
        round_id: int,
    ) -> Values:
        medians: list[float] = np.median(np.stack(rows), axis=0).tolist()
        return medians

    def lie(peer: int) -> Callable[[Vector, int], Vector] | None:
        return (lambda update, round_id: -10 * update) if peer in (5, 6) else None

    honest = tuple(peer for peer in EVERYBODY if peer not in (5, 6))
    robust = swarm_of("random_k:k=5", f=2, lie=lie, reducer=lambda peer: median)
    plain = swarm_of("random_k:k=5", f=2, lie=lie)
    for swarm in (robust, plain):
        run_to(swarm, 100, honest)
    assert off_target(robust, honest) < 0.3
    assert off_target(plain, honest) > 10


def test_a_run_repeats_to_the_last_bit() -> None:
    hashes = []
    for _ in range(2):
        swarm = swarm_of()
        run_to(swarm, 20, EVERYBODY)
        hashes.append(swarm.trace_hash)
    assert hashes[0] == hashes[1]
