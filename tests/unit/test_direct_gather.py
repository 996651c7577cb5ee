"""Collective operations of gossip rounds: values that peers send each other directly."""

from __future__ import annotations

from typing import Any

import pytest

from gossip.core.events import Apply, Contributed, Effect, Received, Send, SetTimer, StartRound
from gossip.core.messages import Collected, GatherValue, Hello
from gossip.core.rounds.direct_gather import DirectGather, GatherOverdue
from gossip.core.rounds.gossip import GossipRounds
from gossip.core.settings import VALUES_KEPT, CoreSettings
from gossip.core.timers import Timers

PEERS = (0, 1, 2, 3)
OTHERS = (1, 2, 3)


class View:
    """Who is skipped."""

    def __init__(self) -> None:
        self.skipped: set[int] = set()
        self.version = 0

    def skip_reason(self, peer: int) -> str:
        return "dead" if peer in self.skipped else ""

    def is_gone(self, peer: int) -> bool:
        return False


def settings_of() -> CoreSettings:
    return CoreSettings(run=b"run", lineage=b"lineage", peers=PEERS, seed=1, f=0)


class Bench:
    def __init__(self) -> None:
        self.view, self.timers = View(), Timers[Any]()
        self.settings = settings_of()
        self.gather = DirectGather(0, self.settings, self.view, self.timers)  # type: ignore[arg-type]

    def give(self, data: bytes) -> list[Effect]:
        return self.gather.broadcast_value(data, OTHERS, 0.0)

    def hear(self, sender: int, number: int, data: bytes, incarnation: int = 0) -> list[Effect]:
        value = GatherValue(self.settings.lineage, number, data)
        return self.gather.on_message(Received(sender, incarnation, value, None))

    @property
    def over(self) -> bool:
        return self.gather.is_over(OTHERS)


def sent(effects: list[Effect]) -> list[tuple[int, int, bytes]]:
    return [
        (each.peer, each.message.number, each.message.data)
        for each in effects
        if isinstance(each, Send) and isinstance(each.message, GatherValue)
    ]


def test_nobody_waits_for_who_is_skipped_unless_all_are() -> None:
    bench = Bench()
    bench.give(b"own")
    bench.view.skipped = {1, 2, 3}
    assert not bench.over  # as a peer that has just come back sees them
    bench.view.skipped = {3}
    bench.hear(1, 1, b"")
    bench.hear(2, 1, b"")
    assert bench.over


def test_who_begins_anew_is_sent_the_last_value_and_gets_the_last_of_each() -> None:
    bench = Bench()
    for peer in OTHERS:
        bench.hear(peer, 9, b"a")
    bench.give(b"one")
    bench.give(b"two")
    bench.give(b"three")
    assert sent(bench.hear(1, 1, b"anew", incarnation=1)) == [(1, 3, b"three")]
    assert sent(bench.hear(1, 2, b"more", incarnation=1)) == []
    assert not bench.over  # what it gave in its former life does not count
    back = Bench()
    back.give(b"own")
    for peer in OTHERS:
        back.hear(peer, 7, b"seventh")
    assert back.over
    assert {each.data for each in back.gather.close()[1]} == {b"own", b"seventh"}


def test_strangers_and_other_lineages_are_not_heard_and_little_is_kept() -> None:
    bench = Bench()
    bench.give(b"own")
    value = GatherValue(b"another", 1, b"x")
    bench.gather.on_message(Received(1, 0, value, None))
    bench.hear(9, 1, b"x")
    assert bench.gather.close()[1] == (Collected(0, b"own"),)
    for number in range(1, 100):
        bench.hear(1, number, b"x")
    assert len(bench.gather._values[1]) == VALUES_KEPT


# --- in the rounds --------------------------------------------------------------------------------


def rounds_of(view: View) -> GossipRounds:
    from random import Random

    from gossip.topologies import load

    rounds = GossipRounds(
        0,
        settings_of(),
        load("random_k"),  # type: ignore[arg-type]
        view,  # type: ignore[arg-type]
        Timers[Any](),
        Random(0),
    )
    rounds.prepare((8,))
    rounds.start(0.0)
    return rounds


def test_an_operation_takes_no_round() -> None:
    rounds = rounds_of(View())
    effects = rounds.on_contributed(Contributed(0, 0, (), collective=b"own"), 0.0)
    assert [each[0] for each in sent(effects)] == list(OTHERS)
    for peer in OTHERS:
        value = GatherValue(rounds.settings.lineage, 1, b"theirs")
        effects = rounds.on_message(Received(peer, 0, value, None), 0.0)
    apply, go = [each for each in effects if isinstance(each, Apply | StartRound)]
    assert isinstance(apply, Apply)
    assert (apply.round_id, apply.payloads, apply.is_step) == (-1, (), False)
    assert len(apply.collected) == 4
    assert isinstance(go, StartRound)
    assert (go.round_id, rounds.phase) == (0, "computing")


def test_an_operation_ends_when_its_time_is_up() -> None:
    rounds = rounds_of(View())
    effects = rounds.on_contributed(Contributed(0, 0, (), collective=b"own"), 0.0)
    (timer,) = [each for each in effects if isinstance(each, SetTimer)]
    assert timer.at == pytest.approx(0.7 * rounds.settings.rounds.round_timeout_s)
    effects = rounds.on_timer(GatherOverdue(1), timer.at)
    (apply,) = [each for each in effects if isinstance(each, Apply)]
    assert apply.collected == (Collected(0, b"own"),)
    assert rounds.on_timer(GatherOverdue(1), timer.at) == []


def test_who_has_completed_the_training_is_not_waited_for() -> None:
    rounds = rounds_of(View())
    rounds.on_contributed(Contributed(0, 0, (), collective=b"own"), 0.0)
    for peer in OTHERS:
        hello = Hello(
            rounds.settings.lineage, b"", b"", 9, "completed", "", "", b"", (), False, True
        )
        effects = rounds.on_hello(peer, hello, 0.0)
    assert [each for each in effects if isinstance(each, Apply)]
