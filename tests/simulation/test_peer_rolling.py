"""Whole peers on a virtual clock, rolling rounds: whatever happens, there is one history and the
replicas are bit-identical."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from checked_swarm import OnEffect, peer_swarm, toy_trainers
from effort import effort

from gossip.core.events import Aggregate, Effect, Received, Restore, Send, StartRound
from gossip.core.messages import Hello, PeerId
from gossip.core.peer import Peer
from gossip.core.settings import (
    BatchPolicy,
    CoreSettings,
    MembershipSettings,
    RoundSettings,
    Slices,
)
from gossip_lab.simulation.checkers import CheckerSuite, every_checker
from gossip_lab.simulation.world.driver import Swarm, address


def rolling_swarm(
    n: int,
    seed: int,
    *,
    rounds: RoundSettings | None = None,
    f: int = 0,
    probe_interval_s: float = 0.2,
    batch_policy: BatchPolicy = "fixed_local",
    slices: Slices = "speed",
    **trainer: Any,
) -> Swarm[Peer]:
    settings = CoreSettings(
        b"run-id!!",
        b"lineage!",
        seed=seed,
        peers=tuple(range(n)),
        f=f,
        batch_policy=batch_policy,
        slices=slices,
        rounds=rounds or RoundSettings(),
        membership=MembershipSettings(probe_interval_s=probe_interval_s),
    )
    return peer_swarm(settings, toy_trainers(seed, **trainer))


FOUR_TIMES_SLOWER: dict[str, Any] = {
    "compute_s": (0.095, 0.105),
    "by_samples": True,
    "slowness": {peer: 4.0 if peer == 3 else 1.0 for peer in range(6)},
}


def rounds_of(swarm: Swarm[Peer]) -> dict[PeerId, int]:
    return {peer: swarm.hosts[peer].core.rounds.round_id for peer in swarm.up}


def server_now(swarm: Swarm[Peer], peer: PeerId) -> PeerId:
    rounds = swarm.hosts[peer].core.rounds
    return rounds.topology(
        rounds.replicated.serving_roster(), rounds.round_id, swarm.seed, shards=1
    ).servers[0][0]


def assert_one_history(
    swarm: Swarm[Peer], *, among: tuple[PeerId, ...] | None = None, since: int = 0
) -> None:
    """At most one commit digest was applied for a round from ``since`` on, and equal histories mean
    equal parameters."""
    chains: dict[int, bytes] = {}
    for host in [*swarm.past, *swarm.hosts.values()]:
        if among is not None and host.peer not in among:
            continue
        for _, effect in host.commits:
            if effect.commit.round_id < since:
                continue
            known = chains.setdefault(effect.commit.round_id, effect.chain)
            assert known == effect.chain, (
                f"round {effect.commit.round_id} has two histories, one at peer {host.peer}"
            )
    by_round: dict[int, bytes] = {}
    for peer in swarm.up:
        trainer = swarm.trainer(peer)
        known = by_round.setdefault(trainer.next_round, trainer.digest)
        assert known == trainer.digest, f"peer {peer} differs after round {trainer.next_round - 1}"


def test_a_quiet_swarm_uses_every_sample_once_and_stays_identical() -> None:
    swarm = rolling_swarm(5, seed=1)
    restores: list[PeerId] = []
    swarm.hooks.append(
        OnEffect(
            lambda peer, effect: restores.append(peer) if isinstance(effect, Restore) else None
        )
    )
    swarm.run_for(4.0)
    assert restores == [], "nothing was lost"
    assert min(rounds_of(swarm).values()) > 80
    assert_one_history(swarm)
    for peer in swarm.up:
        told = swarm.reports(peer, "epoch")
        assert len(told) > 1
        assert [
            (r.fields["epoch"], r.fields["once"], r.fields["twice"], r.fields["left"]) for r in told
        ] == [(at, 997, 0, 0) for at in range(len(told))]
        assert len(told) == swarm.hosts[peer].core.rounds.replicated.cursor.epoch
    assert not [
        r
        for peer in swarm.up
        for r in swarm.reports(peer, "attempt") + swarm.reports(peer, "lost_round")
    ]


@pytest.mark.parametrize(("policy", "then"), [("fixed_local", 12), ("fixed_global", 16)])
def test_what_a_round_gives_out_is_told_with_each_new_size(policy: BatchPolicy, then: int) -> None:
    swarm = rolling_swarm(4, seed=2, batch_policy=policy, batch=4)
    swarm.run_for(2.0)
    swarm.crash(3)
    swarm.run_for(3.5)
    for peer in swarm.up:
        told = [r.fields for r in swarm.reports(peer, "batch")]
        assert [(each["peers"], each["samples"], each["policy"]) for each in told] == [
            (4, 16, policy),
            (3, then, policy),
        ]
    taken = [c.commit.contributors for _, c in swarm.hosts[0].commits]
    sizes = [sum(each.samples for each in contributors) for contributors in taken[-20:]]
    assert sum(size != then for size in sizes) <= 2, "but for the last two of an epoch"
    assert max(sizes) == then


@pytest.mark.parametrize("policy", effort(["fixed_global"], ["fixed_local", "fixed_global"]))
def test_a_peer_four_times_slower_contributes_with_smaller_slices(policy: BatchPolicy) -> None:
    swarm = rolling_swarm(6, seed=5, batch_policy=policy, batch=8, **FOUR_TIMES_SLOWER)
    swarm.run_for(40.0)
    assert_one_history(swarm)
    for peer in swarm.up:
        told = [
            (r.fields["subject"], r.fields["was"], r.fields["share"])
            for r in swarm.reports(peer, "share")
        ]
        assert told == [(3, 1.0, 0.5), (3, 0.5, 0.25)], "it is moved twice, and never again"
        doubted = [r for what in ("skip", "suspect", "dead") for r in swarm.reports(peer, what)]
        assert not [r for r in doubted if r.fields.get("subject") == 3]
        epochs = [report.fields for report in swarm.reports(peer, "epoch")]
        assert sum(each["once"] for each in epochs) + epochs[-1]["left"] == 997 * len(epochs)
        assert epochs[-1]["left"] < 997 * len(epochs) / 8
        assert policy == "fixed_local" or epochs[-1]["left"] == 0
    commits = [effect.commit for _, effect in swarm.hosts[0].commits][60:]
    took_part = [commit for commit in commits if any(c.peer == 3 for c in commit.contributors)]
    assert len(commits) > 200
    assert len(took_part) > 0.98 * len(commits)


def test_a_long_first_round_does_not_fill_the_network_with_hellos() -> None:
    """Simulation seed 10: peers that were both in round 0 answered each other's hellos, at the
    speed of the network."""
    swarm = rolling_swarm(4, seed=10, compute_s=(8.0, 8.0))
    hellos: list[PeerId] = []
    swarm.hooks.append(
        OnEffect(
            lambda peer, effect: (
                hellos.append(peer)
                if isinstance(effect, Send) and isinstance(effect.message, Hello)
                else None
            )
        )
    )
    swarm.run_for(6.0)
    assert max(rounds_of(swarm).values()) == 0
    swarm.inject(1, Received(2, 0, hello := swarm.hosts[2].core.hello_exchange.hello()))
    swarm.inject(2, Received(1, 0, replace(hello, address=address(1)[0], bulk=address(1)[1])))
    swarm.run_for(1.0)
    assert 0 < len(hellos) < 100


@pytest.mark.parametrize(
    ("asleep_s", "compute_s"),
    [(0.3, 0.01), (3.0, 0.01), *effort([], [(1.0, 0.01), (5.0, 0.01), (40.0, 0.05)])],
)
def test_a_sleeper_wakes_harmless_and_catches_up(asleep_s: float, compute_s: float) -> None:
    """What it has missed may be 20 rounds or 800: no commit that was kept reaches back so far."""
    swarm = rolling_swarm(5, seed=4, compute_s=(compute_s, 2 * compute_s))
    swarm.run_for(2.0)
    before = rounds_of(swarm)[0]
    swarm.pause_for(2, asleep_s)
    swarm.run_for(1.0)
    assert rounds_of(swarm)[0] > before + 0.25 / compute_s, (
        "the others waited more than half a second"
    )
    swarm.run_for(asleep_s)
    swarm.run_until(
        lambda: (
            swarm.hosts[2].core.rounds.mode == "active" and 2 in swarm.hosts[0].core.rounds.roster
        ),
        10.0,
    )
    swarm.run_for(2.0)
    assert max(rounds_of(swarm).values()) - min(rounds_of(swarm).values()) <= 2
    assert_one_history(swarm)


def test_all_who_stop_leave_together_and_nobody_is_called_dead() -> None:
    swarm = rolling_swarm(4, seed=12)
    swarm.run_for(2.0)
    for peer in range(4):
        swarm.stop(peer, "finished")
    swarm.run_for(8.0)
    assert all(host.state == "halted" for host in swarm.hosts.values())
    assert not [r for peer in range(4) for r in swarm.reports(peer, "dead")]


def shake(swarm: Swarm[Peer], rng: random.Random, kinds: list[str], bouts: int = 6) -> None:
    """Bouts of faults, never more than a minority away at once, with pauses for breath; then
    calm, and all come back."""
    n = len(swarm.hosts)
    for _ in range(bouts):
        victims = rng.sample(range(n), rng.randint(1, (n - 1) // 2))
        kind = rng.choice(kinds)
        for victim in victims:
            if not swarm.hosts[victim].running:
                continue  # it has yet to come back from the last bout
            if kind == "crash":
                swarm.crash(victim)
                swarm.restart(victim, after_s=rng.uniform(0.01, 2.0))
            elif kind == "pause":
                swarm.pause_for(victim, rng.uniform(0.05, 3.0))
        swarm.run_for(rng.uniform(0.5, 3.5))
        swarm.run_for(rng.uniform(0.5, 5.0))


def settle(swarm: Swarm[Peer]) -> None:
    n = len(swarm.hosts)
    swarm.run_until(
        lambda: (
            len(swarm.up) == n and all(h.core.rounds.mode == "active" for h in swarm.hosts.values())
        ),
        30.0,
    )
    goal = max(rounds_of(swarm).values()) + 20
    swarm.run_until(lambda: min(rounds_of(swarm).values()) >= goal, 30.0)


@pytest.mark.parametrize("pause_s", effort([0.35], [0.35, 0.45, 0.9]))
def test_a_server_that_slept_while_its_rule_ran_commits_nothing_that_was_handed_on_meanwhile(
    pause_s: float,
) -> None:
    """Seed 240: with probes every half second a server that was stopped for 372 ms noticed nothing,
    and the others' heartbeats had. It committed attempt 0 when attempt 1 was history."""
    swarm = rolling_swarm(5, seed=240, probe_interval_s=1.0, compute_s=(0.1, 0.15), rule_s=0.01)
    suite = CheckerSuite(every_checker())
    swarm.hooks.append(suite)
    paused: list[float] = []

    def pause_now_and_then(peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Aggregate) and swarm.now > 2.0 * (1 + len(paused)):
            paused.append(swarm.now)
            swarm.at(swarm.now, lambda: swarm.pause_for(peer, pause_s))

    swarm.hooks.append(OnEffect(pause_now_and_then))
    swarm.run_for(14.0)
    assert len(paused) >= 5
    assert suite.judged()["S10"] > 100
    assert_one_history(swarm)


def test_a_server_that_slept_while_the_updates_came_takes_them_for_what_they_are() -> None:
    """It had no timer so near that it could have noticed: what came first when it woke up was the
    quorum of its attempt."""
    swarm = rolling_swarm(5, seed=56, probe_interval_s=1.0, compute_s=(0.33, 0.36))
    suite, dice = CheckerSuite(every_checker()), random.Random(56)
    swarm.hooks.append(suite)
    paused: list[float] = [0.0]

    def pause_now_and_then(peer: PeerId, effect: Effect) -> None:
        if (
            isinstance(effect, StartRound)
            and swarm.now > paused[-1] + 1.5
            and server_now(swarm, peer) == peer
        ):
            paused.append(swarm.now)
            awake_s, pause_s = dice.uniform(0.2, 0.33), dice.uniform(0.31, 0.4)
            swarm.at(swarm.now + awake_s, lambda: swarm.pause_for(peer, pause_s))

    swarm.hooks.append(OnEffect(pause_now_and_then))
    swarm.run_for(16.0)
    assert len(paused) > 5
    assert_one_history(swarm)
