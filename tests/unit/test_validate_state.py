"""Each part finds a state that cannot be. The simulator and the table of rounds check it after each
event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from test_gossiping import GossipTable
from test_rolling import RollingTable, a_commit


def give_an_answer(rounds: Any, peer: int = 0) -> None:
    rounds.shards[0].served.answers[peer] = None


def commit_and_keep(rounds: Any, **kept: Any) -> None:
    shard = rounds.shards[0]
    shard.record_commit(a_commit(0), None, False)
    for name, value in kept.items():
        setattr(shard if name == "pulse" else shard.served, name, value)


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda rounds: setattr(rounds.present, "proven", frozenset({1})), "in quarantine"),
        (lambda rounds: setattr(rounds.present, "mode", "off"), "has no shards"),
        (lambda rounds: setattr(rounds.present, "round_id", 3), "an update of its round"),
        (lambda rounds: setattr(rounds.shards[0].served, "attempt", 5), "before its turn"),
        (lambda rounds: give_an_answer(rounds, peer=9), "peers of the roster"),
        (lambda rounds: commit_and_keep(rounds, pulse=7), "no timers"),
        (lambda rounds: commit_and_keep(rounds, ticket=7), "runs no rule"),
        (lambda rounds: rounds.trainer.set_state(1), "not applied yet"),
        (lambda rounds: setattr(rounds.trainer, "_started", 1), "no later round"),
        (lambda rounds: rounds.replicated.lineage.restart(4, b"h"), "after the last commit"),
    ],
)
def test_rolling_rounds_find_an_impossible_state(spoil: Callable[[Any], None], found: str) -> None:
    table = RollingTable(3)
    table.lose = lambda sender, to, message: True
    table.contribute()
    rounds = table.peers[0]
    rounds.validate_state()
    spoil(rounds)
    with pytest.raises(AssertionError, match=found):
        rounds.validate_state()


def test_a_peer_out_of_the_rounds_has_recorded_its_own_commit() -> None:
    rounds = RollingTable(3).peers[0]
    rounds.stop(0.0)
    rounds.validate_state()
    rounds.commits.own_commit = (rounds, a_commit(0), None)  # type: ignore[assignment]
    with pytest.raises(AssertionError, match="its own commit"):
        rounds.validate_state()


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda rounds: rounds._round.tickets.update({1: False}), "while it aggregates"),
        (lambda rounds: setattr(rounds, "phase", "applying"), "only a collecting"),
        (lambda rounds: setattr(rounds._round, "own", None), "an update of its round"),
    ],
)
def test_gossip_rounds_find_an_impossible_state(spoil: Callable[[Any], None], found: str) -> None:
    table = GossipTable(at=0)
    table.contribute()
    table.rounds.validate_state()
    spoil(table.rounds)
    with pytest.raises(AssertionError, match=found):
        table.rounds.validate_state()
