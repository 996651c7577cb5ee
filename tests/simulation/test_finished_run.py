"""The command of a run that is finished is given again: every peer loads the last checkpoint and
finds nothing left to do, whoever comes late too. Who has no state, and nobody left who could give
it one, ends as well."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from checked_swarm import core_settings

from gossip.core import Envelope, Payload
from gossip.core.events import AddressLearned, Halt, LedgerRequest, PeerEnded, Prepared
from gossip.core.lifecycle.exit_codes import QUORUM_LOST
from gossip.core.messages import Hello, PeerId
from gossip.core.peer import Peer
from gossip.core.settings import RoundSettings
from gossip.inject import OutMessage
from gossip.topologies import load
from gossip_lab.simulation.world.driver import Swarm, address
from gossip_lab.simulation.world.toy_trainer import Said, ToyPace, ToyTrainer

SEED = 3


class ResumedTrainer(ToyTrainer):
    """Begins with a checkpoint, given with ``with_checkpoint_of``."""

    loaded: Prepared

    def with_checkpoint_of(self, other: ToyTrainer) -> ResumedTrainer:
        self.parameters, self.next_round = other.parameters, other.ledger.round_id
        self.loaded = Prepared(
            b"", self.digest, (), round_id=other.ledger.round_id, ledger=other.ledger.ledger
        )
        return self

    def on_start(self, now: float) -> list[tuple[float, Said]]:
        told = super().on_start(now)
        loaded, state = self.loaded, self.loaded.state
        return [
            (
                at,
                replace(said, state=state, round_id=loaded.round_id, ledger=loaded.ledger)
                if isinstance(said, Prepared)
                else said,
            )
            for at, said in told
        ]


def swarm_of(
    n: int,
    f: int,
    make_trainer: Any,
    *,
    started: int,
    rounds: RoundSettings | None = None,
    topology: str = "rolling",
) -> Swarm[Peer]:
    """Of the ``n`` peers of the run ``started`` are there from the start."""
    settings = core_settings(n, SEED, f=f, rounds=rounds or RoundSettings())
    seeds = {peer: address(peer, 0) for peer in range(started)}

    def make_core(peer: PeerId, incarnation: int) -> Peer:
        control, bulk = seeds[peer] = address(peer, incarnation)
        return Peer(
            peer,
            incarnation,
            settings,
            load(topology),
            control=control,
            bulk=bulk,
            seeds={other: at for other, at in seeds.items() if other != peer},
        )

    return Swarm(make_core, started, SEED, make_trainer=make_trainer)


@cache
def checkpoint(n: int, f: int, after_s: float = 1.0, topology: str = "rolling") -> ToyTrainer:
    """A trainer whose ``ledger`` belongs to the parameters that it has; only to be read."""
    swarm = swarm_of(n, f, lambda peer, _: ToyTrainer(peer, SEED), started=n, topology=topology)
    swarm.run_for(after_s)
    trainer = swarm.hosts[0].trainer
    while trainer.ledger is None or trainer.ledger.round_id != trainer.next_round:
        swarm.inject(0, LedgerRequest())
        swarm.run_for(0.001)
    assert trainer.ledger.round_id > 0
    return trainer


def finished_again(
    n: int, f: int, *, began: int, rounds: RoundSettings | None = None
) -> Swarm[Peer]:
    """The command given again; so many peers come at first."""
    saved = checkpoint(n, f)

    def make_trainer(peer: PeerId, incarnation: int) -> ToyTrainer:
        trainer = ResumedTrainer(peer, SEED, incarnation=incarnation, rounds=saved.next_round)
        return trainer.with_checkpoint_of(saved)

    return swarm_of(n, f, make_trainer, started=began, rounds=rounds)


class HelloLoss:
    """What ``Swarm.outgoing`` is set to: nothing that others say about themselves reaches ``to``
    until ``until_s``: its socket has not taken their connection yet, and its own stands."""

    def __init__(self, swarm: Swarm[Peer], to: PeerId, until_s: float) -> None:
        self.swarm, self.to, self.until_s = swarm, to, until_s

    def __call__(
        self, sender: PeerId, to: PeerId, envelope: Envelope, payload: Payload | None
    ) -> Iterable[OutMessage]:
        is_lost = to == self.to and self.swarm.now < self.until_s
        return [] if is_lost and isinstance(envelope.message, Hello) else [(to, envelope, payload)]


def assert_all_ended_well(swarm: Swarm[Peer], n: int) -> None:
    ends = {peer: host.halt and host.halt.exit_code for peer, host in swarm.hosts.items()}
    assert ends == dict.fromkeys(range(n), 0)
    assert not [report for peer in range(n) for report in swarm.reports(peer, "error")]
    assert not [done for peer in range(n) for done in swarm.commits(peer)], "nothing was left to do"


@pytest.mark.parametrize(("n", "f"), [(3, 0), (4, 1)])
@pytest.mark.parametrize("late_s", [0.05, 2.0, 25.0])
def test_who_comes_when_others_were_enough_ends_as_they_do(n: int, f: int, late_s: float) -> None:
    rounds = RoundSettings(min_peers=n - 1, patience_s=0.5)
    swarm = finished_again(n, f, began=n - 1, rounds=rounds)
    swarm.run_for(late_s)
    swarm.join(n - 1)
    swarm.run_for(8.0)
    assert_all_ended_well(swarm, n)


@pytest.mark.parametrize(("n", "f"), [(3, 0), (4, 1)])
@pytest.mark.parametrize("deaf_s", [0.01, 0.1, 3.0])
def test_who_is_heard_before_it_hears_others_ends_as_they_do(n: int, f: int, deaf_s: float) -> None:
    swarm = finished_again(n, f, began=n - 1)
    swarm.run_for(1.0)
    swarm.outgoing = HelloLoss(swarm, n - 1, swarm.now + deaf_s)
    swarm.join(n - 1)
    swarm.run_for(8.0)
    assert_all_ended_well(swarm, n)


def test_who_does_not_come_keeps_nobody_for_longer_than_one_that_is_lost() -> None:
    rounds = RoundSettings(min_peers=2, patience_s=0.5)
    swarm = finished_again(3, 0, began=2, rounds=rounds)
    swarm.run_for(0.4 + rounds.linger_s)
    assert [swarm.hosts[peer].state for peer in (0, 1)] == ["up", "up"]
    assert swarm.reports(0, "lingering")[-1].fields["for"] == [2]
    swarm.run_for(1.0)
    assert [swarm.hosts[peer].state for peer in (0, 1)] == ["halted", "halted"]


def test_who_has_an_older_checkpoint_than_the_others_takes_over_theirs() -> None:
    swarm = finished_again(3, 0, began=2, rounds=RoundSettings(min_peers=2, patience_s=0.5))
    swarm.run_for(1.0)
    last, older = checkpoint(3, 0).next_round, checkpoint(3, 0, 0.5)
    assert 0 < older.next_round < last
    swarm.make_trainer = lambda peer, _: ResumedTrainer(peer, SEED, rounds=last).with_checkpoint_of(
        older
    )
    swarm.join(2)
    swarm.run_for(8.0)
    assert_all_ended_well(swarm, 3)
    trainer = swarm.hosts[2].trainer
    assert [round_id for round_id, _ in trainer.history.restored] == [last]


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("topology", ["rolling", "full", "random-k"])
@pytest.mark.parametrize("has_older", [True, False])
def test_who_comes_without_the_final_state_when_all_have_gone_ends_and_says_why(
    n: int, topology: str, has_older: bool
) -> None:
    last, older = checkpoint(3, 0, 1.0, topology), checkpoint(3, 0, 0.5, topology)

    def make_trainer(peer: PeerId, incarnation: int) -> ToyTrainer:
        if peer < n - 1:
            return ResumedTrainer(peer, SEED, rounds=last.next_round).with_checkpoint_of(last)
        late = ResumedTrainer if has_older else ToyTrainer
        trainer = late(peer, SEED, rounds=last.next_round, pace=ToyPace(prepare_s=40.0))
        return trainer.with_checkpoint_of(older) if isinstance(trainer, ResumedTrainer) else trainer

    rounds = RoundSettings(min_peers=n - 1, patience_s=0.5)
    swarm = swarm_of(n, 0, make_trainer, started=n, rounds=rounds, topology=topology)
    swarm.run_for(39.0)
    assert [swarm.hosts[peer].state for peer in range(n)] == ["halted"] * (n - 1) + ["up"]
    swarm.run_for(10.0)
    assert not swarm.reports(n - 1, "ready")
    assert swarm.hosts[n - 1].halt == Halt(
        f"the others have completed the training at round {last.next_round} and are gone: "
        f"this peer is in round {older.next_round if has_older else 0}, and no peer can send it "
        "the final state",
        QUORUM_LOST,
    )


@pytest.mark.parametrize("topology", ["rolling", "full"])
def test_who_still_loads_the_final_state_when_the_others_leave_ends_well(topology: str) -> None:
    last, older = checkpoint(3, 0, 1.0, topology), checkpoint(3, 0, 0.5, topology)

    def make_trainer(peer: PeerId, incarnation: int) -> ToyTrainer:
        pace = ToyPace(snapshot_s=10.0, prepare_s=3.0) if peer == 2 else ToyPace()
        trainer = ResumedTrainer(peer, SEED, rounds=last.next_round, pace=pace)
        return trainer.with_checkpoint_of(older if peer == 2 else last)

    rounds = RoundSettings(min_peers=2, patience_s=0.5)
    swarm = swarm_of(3, 0, make_trainer, started=3, rounds=rounds, topology=topology)
    swarm.run_for(60.0)
    trainer = swarm.hosts[2].trainer
    assert [round_id for round_id, _ in trainer.history.restored] == [last.next_round]
    assert_all_ended_well(swarm, 3)


@pytest.mark.parametrize("f", [0, 1])
def test_two_who_come_late_do_not_wait_for_each_other(f: int) -> None:
    last = checkpoint(5, f)

    def make_trainer(peer: PeerId, incarnation: int) -> ToyTrainer:
        trainer = ResumedTrainer(peer, SEED, rounds=last.next_round)
        trainer.pace.prepare_s += 12.0 if peer > 2 else 0.0
        return trainer.with_checkpoint_of(last)

    rounds = RoundSettings(min_peers=3, patience_s=0.5)
    swarm = swarm_of(5, f, make_trainer, started=5, rounds=rounds)
    swarm.run_for(40.0)
    assert_all_ended_well(swarm, 5)


def test_who_has_ended_for_good_keeps_nobody() -> None:
    swarm = finished_again(3, 0, began=2, rounds=RoundSettings(min_peers=2, patience_s=0.5))
    swarm.run_for(0.1)
    for peer in range(2):
        swarm.inject(peer, AddressLearned(2, *address(2, 0), 0))
        swarm.inject(peer, PeerEnded(2))
    swarm.run_for(8.0)
    assert [swarm.hosts[peer].state for peer in range(2)] == ["halted", "halted"]
