"""Liars that name ever later turns: of their own, in place of the results of their turns, or of
others, to whom they give updates. Rounds go on once that has spent what others believe at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from checked_swarm import assert_sound
from effort import effort, rotated

from gossip.core import Commit, Committed, Effect, Event, PeerId, Update, UpdateRequest
from gossip.core.rounds.later_turns import LaterTurns
from gossip.faults import Fault, Flap, HangTrainer, NodeAttack
from gossip.inject import LIES, ByzantinePeer, Letter
from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.checkers import AT_ONCE_S
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world import Observer

ACTIVE_S = 20.0
EVERY_S = 0.01
"""How often a liar tells each of the others, at most."""
LEAST = 0.5
"""Of the rounds that there are where liars only keep their results."""

SOON_S = 0.01

FEW = Schedule(
    1,
    peers=5,
    aggregator="median",
    active_s=ACTIVE_S,
    duration_s=ACTIVE_S,
    compute_s=(0.1, 0.12),
    round_timeout_s=1.0,
)
# A link takes half a round timeout for an update.
SLOW = replace(FEW, shards=(200,), bytes_per_s=1.6e3, active_s=60.0, duration_s=60.0)
MORE = replace(FEW, peers=7, f=2, active_s=40.0, duration_s=40.0)
BREAKING = replace(
    FEW, faults=tuple([Flap((0, peer), 1.0, 18.0, 1.0 + 0.1 * peer) for peer in (1, 2, 3, 4)])
)

Words = Callable[[Any, PeerId, PeerId, int, bytes, tuple[PeerId, ...], int], Any]


def asks(
    core: Any, liar: PeerId, to: PeerId, round_id: int, chain: bytes, order: Any, turn: int
) -> UpdateRequest:
    """For an update, under a later turn of its own."""
    attempt = turn * len(order) + order.index(liar)
    return UpdateRequest(core.settings.lineage, round_id, 0, attempt, chain)


def gives(
    core: Any, liar: PeerId, to: PeerId, round_id: int, chain: bytes, order: Any, turn: int
) -> Update:
    """An update without samples, under a later turn of its receiver."""
    attempt = turn * len(order) + order.index(to)
    return Update(core.settings.lineage, round_id, 0, attempt, chain, 0, None)


class Outbidding(Observer):
    """The lie. With what else they say liars tell of ever later turns in the round that they are
    in, and in the one before, which others may still be in. Results of theirs they keep."""

    def __init__(self, words: Words) -> None:
        self.words, self.now, self.told = words, 0.0, 0
        self._told_at: dict[tuple[PeerId, PeerId], float] = {}
        self._rounds: dict[tuple[PeerId, int], tuple[bytes, tuple[PeerId, ...]]] = {}

    def on_event(self, swarm: Any, peer: PeerId, event: Event) -> None:
        self.now = swarm.now

    def __call__(self, attacker: ByzantinePeer, letter: Letter) -> list[Letter]:
        said, liar, rounds = letter.message, attacker.peer, attacker.core()._rolling
        to, keeps = letter.to, isinstance(said, Commit) and said.server == liar
        out = [] if keeps else [letter]
        if rounds.shards and self.now >= self._told_at.get((liar, to), 0.0) + EVERY_S:
            self._told_at[liar, to] = self.now
            self._rounds[liar, rounds.round_id] = rounds.chain, rounds.shards[0].order
            said_too = self._said(attacker.core(), liar, to, rounds.round_id)
            out += [Letter(to, replace(letter.envelope, message=word), None) for word in said_too]
        return out

    def _said(self, core: Any, liar: PeerId, to: PeerId, here: int) -> Iterator[Any]:
        for round_id in (here - 1, here):
            chain, order = self._rounds.get((liar, round_id), (b"", ()))
            if liar in order and to in order:
                self.told += 1
                yield self.words(core, liar, to, round_id, chain, order, self.told)


class Reached(Observer):
    """The last round that honest peers have come to, and when each round began first."""

    def __init__(self, liars: tuple[PeerId, ...], until_s: float) -> None:
        self.liars, self.until_s = liars, until_s
        self.rounds = 0
        self.began: dict[int, float] = {}

    def after_event(self, swarm: Any, peer: PeerId, event: Event) -> None:
        core = swarm.hosts[peer].core
        if peer not in self.liars and core is not None and swarm.now < self.until_s:
            self.rounds = max(self.rounds, core.rounds.round_id)
            self.began.setdefault(core.rounds.round_id, swarm.now)


def reached(schedule: Schedule, lie: str, liars: tuple[PeerId, ...], *observers: Observer) -> int:
    seen = Reached(liars, schedule.active_s)
    faults: tuple[Fault, ...] = (*schedule.faults, NodeAttack(lie, liars))
    outcome = run(replace(schedule, faults=faults), [seen, *observers])
    # Of peers that others hold for stalled liars are none: they ask for what fills their own links.
    # Nor does a liar serve that draws all others past its own turns.
    if (found := outcome.violation) is not None:
        is_held_up = found.invariant == "L1" and "peer 0," in found.text
        passes_itself = found.invariant == "L6" and found.peer in liars
        assert is_held_up or passes_itself, found
    return seen.rounds


@cache
def reached_where_results_are_kept(schedule: Schedule, liars: tuple[PeerId, ...]) -> int:
    return reached(schedule, "kept_results", liars)


# Updates make rounds no longer where they take no time.
@pytest.mark.parametrize(
    ("words", "schedule", "liars"),
    rotated(
        [
            pytest.param(words, schedule, liars, id=f"{words.__name__}-{who}")
            for who, schedule, liars, those in (
                ("one", FEW, (0,), effort([], [asks, gives])),
                ("one whose links break", BREAKING, (0,), effort([asks], [asks, gives])),
                ("f together", MORE, (0, 1), effort([asks], [asks, gives])),
                ("slow payloads", SLOW, (0,), effort([gives], [asks, gives])),
            )
            for words in those
        ],
        every=3,
    ),
)
def test_rounds_go_on_although_liars_name_ever_later_turns(
    words: Words, schedule: Schedule, liars: tuple[PeerId, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    lie = Outbidding(words)
    monkeypatch.setitem(LIES, "usurper", lie)  # simulated lies have the names of known ones
    lied_to = reached(schedule, "usurper", liars, lie)
    assert lied_to >= LEAST * reached_where_results_are_kept(schedule, liars)
    assert lie.told > 100


def test_a_round_that_stood_for_long_ends_as_soon_as_the_missing_update_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As fast as if all words were believed at once: nobody is put off where nobody lies."""
    hang = tuple([HangTrainer(peer, 2.0, 12.0 + peer) for peer in (2, 3, 4)])
    began: list[dict[int, float]] = []
    for believed in (False, True):
        if believed:
            monkeypatch.setattr(LaterTurns, "is_explained", lambda *args: True)
        seen = Reached((), ACTIVE_S)
        outcome = run(replace(FEW, faults=hang, duration_s=30.0), [seen])
        assert outcome.violation is None
        began.append(seen.began)
    bounded, free = began
    assert any(bounded[round_id + 1] - bounded[round_id] > 8.0 for round_id in range(30))
    assert bounded.keys() == free.keys()
    assert all(abs(bounded[round_id] - free[round_id]) < SOON_S for round_id in free)


class ShownLate(Observer):
    """Who took results that liars had kept, at a later attempt than the one that made them."""

    def __init__(self, liars: tuple[PeerId, ...]) -> None:
        self.liars = liars
        self.took: list[PeerId] = []

    def on_effect(self, swarm: Any, peer: PeerId, effect: Effect) -> None:
        if not isinstance(effect, Committed) or peer in self.liars or swarm.now < ACTIVE_S:
            return
        commit = effect.commit
        if commit.server in self.liars and commit.made_at < commit.attempt:
            self.took.append(peer)


@pytest.mark.parametrize(
    ("lie", "schedule", "liars"),
    [
        pytest.param("usurper", replace(MORE, seed=1), (0, 1), id="later turns"),
        pytest.param("kept_results", replace(FEW, seed=42), (0,), id="results kept"),
    ],
)
def test_a_result_that_a_liar_has_kept_and_shows_late_is_the_only_one_of_its_round(
    lie: str, schedule: Schedule, liars: tuple[PeerId, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of the next attempt has asked the liar in vain. It hears of the result from those
    to whom the liar shows it when its lie is over, and makes no second one."""
    outbids, seen = Outbidding(asks), ShownLate(liars)
    monkeypatch.setitem(LIES, "usurper", outbids)
    world = replace(schedule, active_s=ACTIVE_S, duration_s=ACTIVE_S)
    assert_sound(replace(world, faults=(NodeAttack(lie, liars),)), [outbids, seen])
    assert seen.took


def test_a_word_that_was_told_before_the_calm_costs_its_round_the_time_of_a_turn_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Peer 3 follows it to a turn of the liar, 0.1 s before the lies end, and the others do not:
    all updates come in the calm, and the first server waits its grace out for those two."""
    outbids, seen = Outbidding(asks), Reached((0, 1), 2 * ACTIVE_S)
    monkeypatch.setitem(LIES, "usurper", outbids)
    world = replace(MORE, seed=3, active_s=ACTIVE_S, duration_s=ACTIVE_S)
    assert_sound(replace(world, faults=(NodeAttack("usurper", (0, 1)),)), [outbids, seen])
    under_way = max([at for at in seen.began.values() if at <= ACTIVE_S])
    over = min([at for at in seen.began.values() if at > ACTIVE_S])
    assert AT_ONCE_S + world.compute_s[1] < over - under_way <= world.round_timeout_s
