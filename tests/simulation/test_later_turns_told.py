"""A liar that keeps the results of its turns, and says that it serves ever later ones: that costs a
round the time of one turn, until the liar is passed over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gossip.core import Commit, Envelope, Event, Payload, PeerId, UpdateRequest
from gossip.faults import NodeAttack
from gossip.inject import LIES, ByzantinePeer, OutMessage
from gossip.simulation.campaign.play import run
from gossip.simulation.schedules.schedule import Schedule
from gossip.simulation.world import Observer

LIAR = 0
ACTIVE_S = 10.0
EVERY_S = 0.01
"""How often it asks each of the others."""
LEAST = 0.5
"""Of the rounds that there are where it keeps its results and asks for nothing."""

HONEST = Schedule(
    1,
    peers=5,
    aggregator="median",
    active_s=ACTIVE_S,
    duration_s=ACTIVE_S,
    compute_s=(0.1, 0.12),
    round_timeout_s=1.0,
)


class Outbidding(Observer):
    """The lie. With what else it says it asks for what belongs to the round that it is in, and to
    the one before, which others may still be in: each time under a later turn of its own."""

    def __init__(self) -> None:
        self.now, self.asked = 0.0, 0
        self._asked_at: dict[PeerId, float] = {}
        self._rounds: dict[int, tuple[bytes, tuple[PeerId, ...]]] = {}

    def on_event(self, swarm: Any, peer: PeerId, event: Event) -> None:
        self.now = swarm.now

    def __call__(
        self, attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
    ) -> list[OutMessage]:
        said, core = envelope.message, attacker.core()
        keeps = isinstance(said, Commit) and said.server == attacker.peer
        out: list[OutMessage] = [] if keeps else [(to, envelope, payload)]
        rounds = core._rolling
        if rounds._shards and self.now >= self._asked_at.get(to, 0.0) + EVERY_S:
            self._asked_at[to] = self.now
            self._rounds[rounds.round_id] = rounds.chain, rounds._shards[0].order
            out += [(to, replace(envelope, message=query), None) for query in self._queries(core)]
        return out

    def _queries(self, core: Any) -> Iterator[UpdateRequest]:
        for round_id, (chain, order) in list(self._rounds.items())[-2:]:
            if LIAR in order:
                self.asked += 1
                attempt = self.asked * len(order) + order.index(LIAR)
                yield UpdateRequest(core.settings.lineage, round_id, 0, attempt, chain)


class Reached(Observer):
    """The last round that the honest peers have come to in the time of the schedule."""

    def __init__(self) -> None:
        self.rounds = 0

    def after_event(self, swarm: Any, peer: PeerId, event: Event) -> None:
        core = swarm.hosts[peer].core
        if peer != LIAR and core is not None and swarm.now < ACTIVE_S:
            self.rounds = max(self.rounds, core.rounds.round_id)


def reached(lie: str, *observers: Observer) -> int:
    seen = Reached()
    outcome = run(replace(HONEST, faults=(NodeAttack(lie, (LIAR,)),)), [seen, *observers])
    assert outcome.violation is None, outcome.violation
    return seen.rounds


def test_rounds_go_on_although_one_peer_names_ever_later_turns_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lie = Outbidding()
    monkeypatch.setitem(LIES, "usurper", lie)  # simulated lies have the names of known ones
    lied_to, kept = reached("usurper", lie), reached("kept_results")
    assert lied_to >= LEAST * kept
    assert lie.asked > 100
