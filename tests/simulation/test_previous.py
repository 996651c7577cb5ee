"""A rule with a memory is given what was applied last, whoever serves: the rounds of a swarm are
those of one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from checked_swarm import checked_swarm, tamper

from gossip.aggregators import centered_clipping
from gossip.core.events import Aggregate, Effect, Event
from gossip_lab.simulation.campaign.play import reducer_of
from gossip_lab.simulation.checkers.base import Violation
from gossip_lab.simulation.checkers.panel import Panel
from gossip_lab.simulation.checkers.safety.contents import Conserved
from gossip_lab.simulation.world.toy_trainer import RuleResult, ToyTrainer, Values

SPEC = "centered_clipping:tau=0.05"


def as_rows(rows: Sequence[Values]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def test_centered_clipping_with_a_server_that_rotates_is_centered_clipping_in_one_process() -> None:
    reduce, _ = reducer_of(SPEC, 1)
    asked: list[tuple[Sequence[Values], int, Values]] = []

    def noting(
        rows: Sequence[Values],
        samples: Sequence[int],
        f: int,
        previous: Values | None,
        round_id: int,
    ) -> Values | RuleResult:
        found = reduce(rows, samples, f, previous, round_id)
        assert isinstance(found, RuleResult)
        asked.append((rows, f, found.aggregate))
        return found

    swarm = checked_swarm(Panel([Conserved()]), n=5, f=1, reducer=noting)
    swarm.run_for(4.0)
    served = {
        peer
        for peer, host in swarm.hosts.items()
        if isinstance(host.trainer, ToyTrainer) and host.trainer.served
    }
    assert len(served) > 2, "the server rotates"
    assert len(asked) > 10
    last = None
    for rows, f, aggregate in asked:
        last = centered_clipping.explain(as_rows(rows), f=f, tau=0.05, previous=last).aggregate
        assert torch.equal(last, torch.tensor(aggregate, dtype=torch.float32))
    rows, f, aggregate = asked[1]
    forgetful = centered_clipping(as_rows(rows), f=f, tau=0.05)
    assert not torch.allclose(forgetful, torch.tensor(aggregate), rtol=1e-3), (
        "the memory makes a difference"
    )


@pytest.mark.parametrize("topology", ["rolling", "full"])
def test_a_rule_that_is_given_another_aggregate_than_the_last_is_caught(topology: str) -> None:
    swarm = checked_swarm(Panel([Conserved()]), topology=topology)
    swarm.run_for(1.0)

    def forgetful(event: Event, effects: list[Effect]) -> list[Effect]:
        return [
            replace(effect, previous=None) if isinstance(effect, Aggregate) else effect
            for effect in effects
        ]

    for peer in range(4):
        tamper(swarm, peer, forgetful)
    with pytest.raises(Violation, match="not given the aggregate that was applied last"):
        swarm.run_for(4.0)
