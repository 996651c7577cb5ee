"""Both sides of a partition go on: when it heals there is one lineage again,
and it is that of the heavier side."""

from __future__ import annotations

from itertools import product

import pytest
from effort import effort
from test_peer_rolling import assert_one_history, rolling_swarm, rounds_of

from gossip.core.events import Received, SetTimer
from gossip.core.messages import Hello, PeerId
from gossip.core.peer import Peer
from gossip.core.settings import RoundSettings
from gossip_lab.simulation.world.driver import Swarm

AVAILABLE, CONTINUE = RoundSettings(quorum="available"), RoundSettings(on_minority="continue")
SLOW, FAST = (0.2, 0.24), (0.08, 0.12)


def is_partitioned(
    sides: tuple[tuple[PeerId, ...], ...],
    rounds: RoundSettings,
    fast: tuple[PeerId, ...],
    for_s: float,
) -> Swarm[Peer]:
    """A swarm of eight whose sides have been without each other for so long."""
    swarm = rolling_swarm(
        8, 1, rounds=rounds, compute_s={peer: FAST if peer in fast else SLOW for peer in range(8)}
    )
    swarm.run_for(2.0)
    swarm.network.partition(*sides)
    swarm.run_for(for_s)
    return swarm


def heads(swarm: Swarm[Peer]) -> dict[PeerId, tuple[int, bytes]]:
    return {
        peer: (host.core.rounds.round_id - 1, host.core.rounds.chain)
        for peer, host in swarm.hosts.items()
    }


def survivors(swarm: Swarm[Peer]) -> set[PeerId]:
    """Heals; four seconds later all are in one roster, in step and alike. Returns those whose
    branch it is that all are on."""
    before = heads(swarm)
    swarm.network.heal()
    swarm.run_for(4.0)
    rounds = rounds_of(swarm)
    assert max(rounds.values()) - min(rounds.values()) <= 1
    assert all(host.core.rounds.roster.peers == tuple(range(8)) for host in swarm.hosts.values()), (
        "somebody is not taken in again"
    )
    digests: dict[int, bytes] = {}
    for peer in swarm.up:
        trainer = swarm.trainer(peer)
        assert digests.setdefault(trainer.next_round, trainer.digest) == trainer.digest, (
            f"peer {peer} holds something else"
        )
    parents = {
        effect.chain: effect.commit.parent
        for host in swarm.hosts.values()
        for _, effect in host.commits
    }
    at, branch = swarm.hosts[0].core.rounds.chain, set()
    while at in parents:
        branch.add(at)
        at = parents[at]
    return {peer for peer, (_, chain) in before.items() if chain in branch}


FIVE, THREE = (0, 1, 2, 3, 4), (5, 6, 7)


@pytest.mark.parametrize(
    ("rounds", "fast"),
    effort(
        [(AVAILABLE, FIVE), (CONTINUE, THREE)], list(product((AVAILABLE, CONTINUE), (FIVE, THREE)))
    ),
)
def test_the_lighter_side_joins_the_heavier_though_it_be_ahead(
    rounds: RoundSettings, fast: tuple[PeerId, ...]
) -> None:
    swarm = is_partitioned((FIVE, THREE), rounds, fast, 5.0)
    before = heads(swarm)
    assert before[0][1] != before[7][1]
    assert (before[0][0] > before[7][0]) == (fast == FIVE), "the faster side is ahead"
    assert survivors(swarm) == set(FIVE)


@pytest.mark.parametrize("rounds", effort([AVAILABLE], [AVAILABLE, CONTINUE]))
def test_of_equal_sides_the_one_with_the_lowest_peer_counts_more(rounds: RoundSettings) -> None:
    swarm = is_partitioned(((1, 2, 3, 4), (0, 5, 6, 7)), rounds, (1, 2, 3, 4), 5.0)
    assert survivors(swarm) == {0, 5, 6, 7}


def test_of_three_sides_the_lightest_does_not_stay() -> None:
    swarm = is_partitioned(((0, 1), (2, 3, 4), (5, 6, 7)), CONTINUE, (0, 1), 5.0)
    before = heads(swarm)
    assert len({chain for _, chain in before.values()}) == 3
    # The lightest joins one of the others first, which thereby is the heaviest.
    assert survivors(swarm) in ({2, 3, 4}, {5, 6, 7})


def test_a_minority_that_pauses_has_nothing_to_give_up() -> None:
    swarm = is_partitioned((FIVE, THREE), RoundSettings(), THREE, 5.0)
    at = rounds_of(swarm)
    assert at[7] + 10 < at[0]
    assert survivors(swarm) == set(range(8)), "what the three held is part of what the five have"
    assert_one_history(swarm)


def test_one_that_continues_waits_until_the_others_are_dead_for_it() -> None:
    swarm = rolling_swarm(8, 1, rounds=CONTINUE, compute_s=SLOW)
    swarm.run_for(2.0)
    at = rounds_of(swarm)[7]
    swarm.network.partition(FIVE, THREE)
    swarm.run_for(0.5)
    assert rounds_of(swarm)[7] - at <= 1
    assert not any(report.event == "minority_continues" for _, report in swarm.hosts[7].reports)
    swarm.run_for(3.5)
    told = [
        report.fields
        for peer in THREE
        for _, report in swarm.hosts[peer].reports
        if report.event == "minority_continues"
    ]
    assert [(fields["alive"], fields["of"]) for fields in told] == [([5, 6, 7], 8)], (
        "who serves says so"
    )
    assert not any(
        report.event == "minority_continues"
        for peer in FIVE
        for _, report in swarm.hosts[peer].reports
    )
    assert rounds_of(swarm)[7] > at + 5


def test_a_peer_counts_for_another_side_only_by_its_own_word() -> None:
    """One liar that says of itself to be on a branch of all others carries nobody away."""
    swarm = is_partitioned(((0, 1, 2, 3, 4, 5, 6), (7,)), AVAILABLE, (), 3.0)
    hello = swarm.hosts[7].core.hello_exchange.hello()
    lie = Hello(
        hello.lineage,
        hello.layout,
        hello.state,
        3,
        "ready",
        hello.address,
        hello.bulk,
        chain=b"x" * 16,
        side=tuple(range(8)),
    )
    sides = swarm.hosts[0].core.rounds.lag_detector.fork_choice
    assert sides.on_hello(7, lie) == "fork"
    assert sides.heavier() is None
    for peer in (3, 4, 5, 6):
        sides.on_hello(peer, lie)
    heavier = sides.heavier()
    assert heavier[1] == "5 peers train on another branch, 3 on ours"


def test_one_behind_on_another_branch_is_told_so_and_one_ahead_has_to_show_its_branch_first():
    swarm = is_partitioned((FIVE, THREE), AVAILABLE, THREE, 4.0)
    behind, ahead = swarm.hosts[0].core, swarm.hosts[7].core
    assert behind.rounds.round_id < ahead.rounds.round_id
    assert behind.rounds.on_hello(7, ahead.hello_exchange.hello(), swarm.now) == []
    assert 7 not in behind.rounds.joining
    assert not behind.rounds.lag_detector.fork_choice.is_on_other_branch(7)
    (answer,) = ahead.rounds.on_hello(0, behind.hello_exchange.hello(), swarm.now)
    behind.rounds.on_message(Received(7, 0, answer.message), swarm.now)
    assert behind.rounds.lag_detector.fork_choice.is_on_other_branch(7)
    assert behind.rounds.lag_detector.lost_track is None


def test_what_one_of_us_says_of_its_progress_is_looked_into_before_its_state_is_taken() -> None:
    """Its acks may be of the branch that it has left."""
    swarm = is_partitioned((FIVE, THREE), AVAILABLE, (), 3.0)
    rounds = swarm.hosts[0].core.rounds
    (asked,) = rounds.on_progress(1, rounds.round_id + 1000, swarm.now)
    assert rounds.lag_detector.lost_track is None
    assert isinstance(asked, SetTimer)


@pytest.mark.parametrize("seed", range(effort(1, 3)))
@pytest.mark.parametrize(
    "fast", [FIVE, THREE], ids=["the heavier ahead", "the lighter nearly as far"]
)
def test_whoever_is_on_the_lighter_side_learns_it_as_soon_as_the_links_stand(
    seed: int, fast: tuple[PeerId, ...]
) -> None:
    """What a peer that is behind is told in answer to its hello is lost where the way back stands
    later than the way there; then it had only requests for commits to learn it by,
    one each half a second."""
    swift, slow = (0.02, 0.03), (0.025, 0.035)
    compute_s = {peer: swift if peer in fast else slow for peer in range(8)}
    swarm = rolling_swarm(8, seed, rounds=CONTINUE, compute_s=compute_s)
    swarm.run_for(2.0)
    swarm.network.partition(FIVE, THREE)
    swarm.run_for(4.0)
    assert rounds_of(swarm)[7] < rounds_of(swarm)[0], (
        "the lighter side is behind, and cannot tell by a hello alone"
    )
    assert not any(
        report.event == "recovering" for peer in THREE for _, report in swarm.hosts[peer].reports
    )
    swarm.network.heal()
    swarm.run_for(2 * swarm.network.reconnect_s)
    for peer in THREE:
        assert "recovering" in {report.event for _, report in swarm.hosts[peer].reports}, (
            f"peer {peer} goes on by itself"
        )
