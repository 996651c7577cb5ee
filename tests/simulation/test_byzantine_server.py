"""A server that lies whenever it serves: it is found out by all alike, and nobody honest is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from checked_swarm import assert_sound, typed
from effort import effort
from test_ending import run_to, swarm_that_ends

from gossip.core.events import Committed, Effect, Received, Report, StartRound
from gossip.core.messages import Commit, Gossip, PeerId, Rumor
from gossip.faults.kinds import Crash, Hang
from gossip.faults.world import HangServer, NodeAttack
from gossip.inject.byzantine import ByzantinePeer, Instead, Letter
from gossip.inject.message_attacks import LIES
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.observer import Observer

ATTACKER = 0


class Verdicts(Observer):
    """Who was locked up at whose table, and who says that it has refused whose result."""

    def __init__(self) -> None:
        self.locked: set[PeerId] = set()
        self.by: set[PeerId] = set()
        self.charged: dict[PeerId, set[PeerId]] = {}
        self.reasons: set[str] = set()

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Report) and effect.event == "quarantined":
            self.locked.add(effect.fields["subject"])
            self.by.add(peer)
            self.reasons.update(effect.fields["reasons"])
        elif isinstance(effect, Committed):
            for accusation in effect.commit.accusations:
                self.charged.setdefault(accusation.peer, set()).add(effect.commit.server)


class Pauses(Observer):
    """The longest time that some peer was without a commit, once it had its first."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._last: dict[PeerId, float] = {}

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Committed):
            self.longest_s = max(self.longest_s, swarm.now - self._last.get(peer, swarm.now))
            self._last[peer] = swarm.now


@pytest.mark.parametrize(
    "lie", ["wrong_results", "high_rates", "lone_roster", *effort([], ["scaled_results"])]
)
def test_a_server_that_lies_in_its_turns_is_locked_up_by_all_and_nobody_else_is(lie: str) -> None:
    seen = Verdicts()
    schedule = Schedule(
        7, peers=5, active_s=3.0, duration_s=3.0, compute_s=(0.02, 0.04), aggregator="suspicion"
    )
    assert_sound(replace(schedule, faults=(NodeAttack(lie, (ATTACKER,)),)), [seen])
    assert seen.locked == {ATTACKER}
    # which may have missed that round, and taken over a state instead
    assert seen.by | {ATTACKER} == set(range(5))
    assert len(seen.charged[ATTACKER]) > 1


@pytest.mark.parametrize(
    ("seed", "peers", "attackers", "lie"),
    [
        (3, 5, (0,), "nan_results"),
        (0, 7, (3,), "wrong_results"),
        *effort([], [(2, 8, (5, 6), "nan_results")]),
    ],
)
def test_nobody_waits_for_a_timeout_since_a_server_has_lied(
    seed: int, peers: int, attackers: tuple[int, ...], lie: str
) -> None:
    """The round after is served by whoever holds the lie, and is on a branch of its own: it is
    handed on at once. Who comes back from there in the midst of a round hears what it was asked
    meanwhile. Nobody waits for the update of one that has handed over a lie."""
    seen = Pauses()
    world = Schedule(
        seed,
        peers=peers,
        active_s=2.0,
        duration_s=2.0,
        compute_s=(0.02, 0.04),
        aggregator="suspicion",
    )
    # f counts who lies about states
    faults = (NodeAttack(lie, attackers), NodeAttack("kept_states", attackers))
    assert_sound(replace(world, faults=faults, round_timeout_s=3.0), [seen])
    assert seen.longest_s < 0.7


def test_a_server_that_puts_the_dead_into_the_next_roster_again_is_not_followed() -> None:
    """Believed, it makes the majority of a roster one of all who ever were: six of ten,
    of whom five are there."""
    schedule = Schedule(
        7,
        peers=6,
        active_s=4.0,
        duration_s=4.0,
        compute_s=(0.02, 0.04),
        aggregator="median",
        joins_s=(9.0,) * 4,
    )
    outcome = assert_sound(
        replace(schedule, faults=(NodeAttack("ghost_roster", (0,)), Crash(1, at_s=0.5)))
    )
    assert outcome.struck["lie_ghost_roster"] == 1
    assert outcome.reports["refused_result"] > 20
    assert outcome.rounds > 60


def test_a_server_that_keeps_its_results_is_passed_over_and_costs_few_timeouts() -> None:
    """Nobody suspects it for that: from outside a slow link looks the same."""
    schedule = Schedule(
        7, peers=5, active_s=8.0, duration_s=8.0, compute_s=(0.02, 0.04), aggregator="suspicion"
    )
    seen = Verdicts()
    outcome = assert_sound(
        replace(schedule, faults=(NodeAttack("kept_results", (ATTACKER,)),), round_timeout_s=0.5),
        [seen],
    )
    assert outcome.reports["passed_over"] >= 4
    assert seen.locked == set()
    assert "suspected" not in outcome.reports


def turned(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Half of the peers are told the truth, the others 1.01 times that, and in the next turn the
    other way round: all of it looks right,
    and each peer agrees with everybody else in some turn."""
    commit, truth = letter.message, letter.payload
    if not isinstance(commit, Commit) or commit.server != attacker.peer or truth is None:
        return None
    turns: list[int] = attacker.heard.setdefault("turns", [])  # type: ignore[arg-type,assignment]
    if commit.round_id not in turns:
        turns.append(commit.round_id)
    if (letter.to + turns.index(commit.round_id)) % 2 == 0 or commit.digest in attacker.forged:
        return None
    digest = commit.digest
    lie = attacker.once(
        ("turned", digest), lambda: attacker.forge(truth.data * np.float32(1.01), commit)
    )
    attacker.forged.add(lie.digest)
    return [letter.holding(lie)]


@pytest.mark.parametrize(("peers", "attacker"), [(6, 0), *effort([], [(8, 6)])])
@pytest.mark.parametrize("lie", [None, turned], ids=["half is refused", "all looks right"])
def test_a_server_that_tells_peers_different_results_is_locked_up(
    lie: Any, peers: int, attacker: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what they say it handed them. Where nobody refuses one, each side goes on with what it
    has, and the smaller takes over a state: nobody hears of both, but all see the fork."""
    if lie is not None:
        monkeypatch.setitem(LIES, "two_results", lie)
    seen, for_s = Verdicts(), 4.0 if lie else 2.0
    schedule = Schedule(7, peers=peers, active_s=for_s, duration_s=for_s, compute_s=(0.02, 0.04))
    faults = (NodeAttack("two_results", (attacker,)),)
    assert_sound(
        replace(schedule, aggregator="suspicion", faults=faults, round_timeout_s=0.5), [seen]
    )
    assert seen.locked == {attacker}
    told = ["different results" in reason for reason in seen.reasons]
    assert all(told) if lie else any(told)


class ForgesFarewells(Observer):
    """Peer 0 tells whoever serves a round, and nobody else, that more than f others have left."""

    def __init__(self) -> None:
        self.told: dict[int, PeerId] = {}

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
        if not isinstance(effect, StartRound) or effect.round_id in self.told:
            return
        core = swarm.hosts[peer].core
        server = core.rounds.shards[0].order[0]
        victims = [victim for victim in swarm.hosts if victim not in (ATTACKER, server)][:2]
        self.told[effect.round_id] = server
        members = core.membership.members
        left = Gossip(
            tuple(
                [
                    Rumor(victim, "left", members[victim].standing, "", "", victim)
                    for victim in victims
                ]
            )
        )
        swarm.at(swarm.now + 0.003, lambda: swarm.inject(server, Received(ATTACKER, 0, left)))


class Rosters(Observer):
    """What rosters were committed, and which were refused."""

    def __init__(self) -> None:
        self.rosters: set[tuple[PeerId, ...]] = set()
        self.refused: list[tuple[PeerId, dict[str, Any]]] = []

    def on_effect(self, swarm: Swarm[Any], peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Committed):
            self.rosters.add(effect.commit.roster)
        elif isinstance(effect, Report) and "roster" in effect.fields.get("reason", ""):
            self.refused.append((peer, effect.fields))


def test_farewells_that_are_forged_for_a_server_alone_cost_it_nothing() -> None:
    swarm = swarm_that_ends(3, n=6, f=1)
    lies, seen = ForgesFarewells(), Rosters()
    run_to(swarm, 2)
    swarm.hooks.extend([lies, seen])
    run_to(swarm, 50)
    assert len(lies.told) > 40
    assert seen.rosters == {tuple(range(6))}
    assert not seen.refused


SLEPT_THROUGH = Schedule(
    3,
    peers=5,
    aggregator="median",
    active_s=18.0,
    duration_s=18.191,
    compute_s=(0.46, 0.58),
    rule_s=0.1,
    stable_addresses=True,
    prepare_s=0.2,
    piece_bytes=4,
    faults=(NodeAttack("nan_results", (4,)), Hang(2, None, 2.3, 15.0), HangServer(16.2, 1.4)),
)
"""The others refuse a result of NaN, and go on with one of their own. The liar, which lies no more,
shows it as it is to one that has slept through all that."""


def test_who_wakes_up_may_be_shown_the_result_of_a_liar_that_the_others_have_refused() -> None:
    assert_sound(SLEPT_THROUGH)


LEAPS = Schedule(
    923456,
    peers=6,
    server_weights="1:2,3:10,4:4,5:4",
    aggregator="trimmed_mean",
    active_s=10.66,
    duration_s=10.66,
    compute_s=(0.46, 0.58),
    rule_s=0.01,
    shards=(4, 4, 4),
    probe_interval_s=1.0,
    stable_addresses=True,
    piece_bytes=4,
    faults=typed(
        "strange_roster:5 partition:3|0-2,4,5@3.653s+4.897s restart:0@4.198s+3.151s "
        "hang_server:server@9.7s+860ms"
    ),
)
"""One wakes up whose links come back one by one. It leaps over the servers that it skips."""


def test_a_server_that_is_leapt_over_has_had_no_turn() -> None:
    assert_sound(LEAPS)
