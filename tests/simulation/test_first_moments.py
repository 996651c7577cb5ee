"""Runs whose peers have weights of their own begin in step under every quorum, and none that has
begun begins anew."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, Literal

import pytest
from checked_swarm import core_settings
from effort import effort, rotated

from gossip.core.events import Payload
from gossip.core.ledger.chain import genesis
from gossip.core.messages import Commit, Envelope, Hello, Message, PeerId, Update
from gossip.core.peer import Peer
from gossip.core.settings import RoundSettings
from gossip.inject.byzantine import OutMessage
from gossip.topologies import load
from gossip_lab.simulation.campaign.play import had_round
from gossip_lab.simulation.checkers import CheckerSuite, every_checker
from gossip_lab.simulation.world.driver import Swarm, address
from gossip_lab.simulation.world.toy_trainer import ToyPace, ToyTrainer

Policy = tuple[Literal["majority", "available"], Literal["pause", "continue"]]
POLICIES: list[Policy] = [("majority", "pause"), ("available", "pause"), ("majority", "continue")]


def swarm_of(
    n: int,
    seed: int,
    f: int = 0,
    policy: Policy = POLICIES[0],
    apart: bool = True,
    judged: bool = True,
    **rounds: Any,
) -> Swarm[Peer]:
    """``apart``: each life of each peer has weights of its own, as scripts without a seed have."""
    quorum, on_minority = policy
    wanted = RoundSettings(quorum=quorum, on_minority=on_minority, round_timeout_s=3.0, **rounds)
    needed = {"f": f, "updates_for": (1, 3)} if f else {}
    settings = core_settings(n, seed, rounds=wanted, **needed)
    made = list[Swarm[Peer]]()
    plan, folder = load("rolling"), {peer: address(peer, 0) for peer in range(n)}

    def make_core(peer: PeerId, incarnation: int) -> Peer:
        control, bulk = folder[peer] = address(peer, incarnation)
        known = replace(settings, had_round=max(map(had_round, made), default=0))
        return Peer(peer, incarnation, known, plan, control=control, bulk=bulk, seeds=dict(folder))

    def make_trainer(peer: PeerId, incarnation: int) -> ToyTrainer:
        initial = {"initial": peer + 64 * incarnation} if apart else {}
        return ToyTrainer(
            peer,
            seed,
            incarnation=incarnation,
            pace=ToyPace((0.1, 0.12)),
            samples_total=997,
            **initial,
        )

    swarm = Swarm(make_core, n, seed, make_trainer=make_trainer)
    made.append(swarm)
    # schedules are drawn with it alone, and the checkers know no round that one peer
    # closes by itself
    if judged and quorum == "majority":
        swarm.hooks.append(CheckerSuite(every_checker()))
    return swarm


def rounds_of(swarm: Swarm[Peer]) -> list[int]:
    return [host.core.rounds.round_id for host in swarm.hosts.values()]


@pytest.mark.parametrize("seed", range(effort(1, 12)))
@pytest.mark.parametrize(("n", "f"), rotated([(2, 0), (3, 0), (4, 1), (5, 1), (7, 1)]))
@pytest.mark.parametrize("policy", POLICIES, ids="-".join)
def test_where_nothing_goes_wrong_each_takes_one_state_and_nobody_sees_a_branch(
    policy: Policy, n: int, f: int, seed: int
) -> None:
    """Who has not begun is on no branch: neither does anybody change over to it, nor does it take
    who has for another side."""
    swarm = swarm_of(n, seed, f, policy)
    swarm.run_until(lambda: min(rounds_of(swarm)) >= 12, limit_s=12.0)
    recovered = [len(swarm.reports(peer, "recovering")) for peer in range(n)]
    assert sorted(recovered) == [0, *[1] * (n - 1)]
    assert not any(swarm.reports(peer, "no_state_found") for peer in range(n))


@pytest.mark.parametrize("seed", [2, 5, 7, *range(8, effort(8, 40))])
@pytest.mark.parametrize(("n", "f"), [(4, 1), (7, 1)])
def test_a_slow_copy_of_the_first_weights_costs_no_round_timeout(n: int, f: int, seed: int) -> None:
    """A receiver named a later round for the attestations, to which the others, still without a
    quorum in the first, could not come: the run stood until the round timeout, 3 s here."""
    swarm, draw = swarm_of(n, seed, f), Random(f"{n}/{f}/{seed}")
    prepared_s = 0.0
    for host in swarm.hosts.values():
        pace = host.trainer.pace
        pace.prepare_s = draw.choice([0.001, draw.uniform(0.0, 1.0)])
        pace.snapshot_s = draw.choice([0.001, 0.05, 0.3])
        prepared_s = max(prepared_s, pace.prepare_s)
    swarm.run_until(lambda: min(rounds_of(swarm)) >= 2, limit_s=prepared_s + 2.5)


@pytest.mark.parametrize("cut_off", [False, True], ids=["it hangs", "it is cut off"])
@pytest.mark.parametrize(("n", "f"), [(3, 0), (5, 1)])
def test_a_run_goes_on_where_it_was_when_the_only_one_that_has_its_state_was_away(
    n: int, f: int, cut_off: bool
) -> None:
    """All others were started again. They have heard in which round it was;
    it is held for dead, and comes back."""
    swarm = swarm_of(n, 1, f, apart=False)
    swarm.run_for(6.0)
    others = list(range(1, n))
    at = rounds_of(swarm)[0]
    assert at > 20
    for peer in others:
        swarm.restart(peer, 0.3)
    swarm.run_until(
        lambda: all(swarm.hosts[peer].core.phase == "recovering" for peer in others), limit_s=3.0
    )
    if cut_off:
        swarm.network.partition([0], others)
    else:
        swarm.pause_for(0, 20.0)
    swarm.run_for(20.0)
    assert not any(swarm.reports(peer, "ready") for peer in others)
    swarm.network.heal()
    swarm.run_until(lambda: min(rounds_of(swarm)) >= at + 8, limit_s=30.0)


@pytest.mark.parametrize("policy", POLICIES, ids="-".join)
@pytest.mark.parametrize("kind", [Commit, Update], ids=lambda kind: kind.__name__)
def test_who_names_what_it_was_before_anybody_had_begun_is_not_followed(
    kind: type[Message], policy: Policy
) -> None:
    """A liar may name it in any round. Nothing of such a branch is applied, and nothing raises."""
    # The checkers would see a fork: the liar holds what it has told nobody.
    swarm, attacker = swarm_of(5, 1, 0, policy, judged=False), 2
    of_nobody = genesis(b"run-id!!", b"lineage!")

    def outgoing(
        sender: PeerId, to: PeerId, envelope: Envelope, payload: Payload | None
    ) -> list[OutMessage]:
        message = envelope.message
        if (
            sender == attacker
            and isinstance(message, kind)
            and isinstance(message, Commit | Update)
            and message.round_id > 3
        ):
            told.append(to)
            envelope = replace(envelope, message=replace(message, parent=of_nobody))
        return [(to, envelope, payload)]

    told: list[PeerId] = []
    swarm.outgoing = outgoing
    honest = [peer for peer in range(5) if peer != attacker]
    swarm.run_until(lambda: min(rounds_of(swarm)[peer] for peer in honest) >= 24, limit_s=60.0)
    assert told
    assert len({swarm.hosts[peer].core.rounds.replicated.lineage.at(20) for peer in honest}) == 1


@pytest.mark.parametrize("policy", POLICIES, ids="-".join)
def test_only_who_has_begun_says_on_which_branch_it_is(policy: Policy) -> None:
    swarm = swarm_of(4, 1, 0, policy)
    said: list[Hello] = []

    def outgoing(
        sender: PeerId, to: PeerId, envelope: Envelope, payload: Payload | None
    ) -> list[OutMessage]:
        said.extend([envelope.message] if isinstance(envelope.message, Hello) else [])
        return [(to, envelope, payload)]

    swarm.outgoing = outgoing
    swarm.run_until(lambda: min(rounds_of(swarm)) >= 4, limit_s=8.0)
    assert {(hello.begun, bool(hello.chain)) for hello in said} == {(False, False), (True, True)}
