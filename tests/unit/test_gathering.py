"""With whose weights to begin, when those that were awaited did not come."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from fixed_view import FixedView

from gossip.core.lifecycle.bootstrap import BeginFresh, Bootstrap, Decision, TakeState, WaitForPeers
from gossip.core.messages import Hello, PeerId
from gossip.core.settings import PARDONS_MAX, CoreSettings

PEERS = (0, 1, 2, 3)


class BootstrapBench:
    """Peer 1 of four, each with weights of its own, after all have said hello:
    it wants those of peer 0."""

    def __init__(self, f: int = 0) -> None:
        needed = {"updates_for": (1, 3)} if f else {}
        self.settings = CoreSettings(b"run-0001", b"lineage!", 1, PEERS, f, **needed)
        self.view, self.now = FixedView(PEERS), 0.0
        self.core = Bootstrap(1, self.settings, self.view)
        self.core.start(0.0)
        self.all_say_hello()
        assert self.followed() == 0

    def hear(self, peer: PeerId, **fields: object) -> None:
        said = Hello(
            b"lineage!", b"layout", b"weights of %d" % peer, 0, "ready", "control", "bulk", b"", ()
        )
        self.core.record_hello(peer, replace(said, **fields), self.now)  # type: ignore[arg-type]

    def all_say_hello(self) -> None:
        for peer in PEERS:
            if peer not in self.view.gone:
                self.hear(peer)

    def decided(self, after_s: float = 0.1) -> Decision:
        self.now += after_s
        return self.core.decide(self.now)

    def followed(self) -> PeerId:
        decision = self.decided()
        assert isinstance(decision, TakeState)
        return decision.donor

    def in_vain(self, after_s: float) -> None:
        """Nobody had them."""
        self.now += after_s
        self.core.again(self.now)


def test_those_of_the_next_where_the_first_is_gone() -> None:
    bench = BootstrapBench()
    bench.view.gone.add(0)
    bench.in_vain(1.0)
    assert bench.decided() == WaitForPeers((2, 3)), "they may have begun meanwhile"
    bench.all_say_hello()
    assert bench.decided() == BeginFresh((1, 2, 3))


def test_who_comes_back_from_the_dead_is_waited_for_until_it_says_whose_weights_it_has() -> None:
    bench = BootstrapBench()
    bench.view.gone.add(0)
    bench.decided()
    bench.view.gone.clear()
    assert bench.decided() == WaitForPeers((0,))
    bench.hear(0, state=b"other weights")
    assert bench.followed() == 0


def test_who_is_there_and_late_is_followed_again_until_it_had_the_time_of_a_round() -> None:
    bench = BootstrapBench()
    bench.in_vain(1.0)
    bench.all_say_hello()
    assert bench.followed() == 0
    bench.in_vain(bench.settings.rounds.round_timeout_s)
    bench.all_say_hello()
    assert bench.decided() == BeginFresh(PEERS)


def test_who_gives_nothing_life_after_life_is_waited_for_no_more() -> None:
    bench = BootstrapBench()
    for _ in range(1 + PARDONS_MAX):
        assert bench.followed() == 0
        bench.in_vain(bench.settings.rounds.round_timeout_s + 1.0)
        bench.core.begins_anew(0)
        bench.all_say_hello()
    assert bench.decided() == BeginFresh(PEERS)


def test_what_was_said_of_having_begun_counts_when_it_is_said_again() -> None:
    """Nobody had a state. Who has come to one since says so."""
    bench = BootstrapBench()
    bench.view.gone.add(0)
    bench.hear(2, begun=True)
    assert bench.followed() == 2
    bench.in_vain(1.0)
    bench.hear(3)
    assert not isinstance(bench.decided(), TakeState)
    bench.hear(2, begun=True)
    assert bench.followed() == 2


@pytest.mark.parametrize(("f", "follows"), [(0, True), (1, False)])
def test_who_says_that_it_has_begun_and_gives_nothing_is_a_liar(f: int, follows: bool) -> None:
    bench = BootstrapBench(f)
    bench.in_vain(bench.settings.rounds.round_timeout_s + 1.0)
    bench.all_say_hello()
    bench.hear(0, begun=True)
    assert isinstance(bench.decided(), TakeState) is follows


def test_who_has_an_older_one_or_none_takes_the_state_of_who_has_the_newest() -> None:
    bench = BootstrapBench()
    for peer in PEERS:
        bench.hear(peer, round_id=7 if peer < 3 else 9, state=b"")
    assert bench.followed() == 3
    bench.hear(1, round_id=0)
    assert bench.followed() == 3
    bench.hear(1, round_id=9, state=b"")
    bench.hear(0, round_id=0)
    assert bench.decided() == BeginFresh(PEERS), "who has none waits for us to begin"


def test_where_a_hello_changes_nothing_the_whole_decision_is_only_to_wait() -> None:
    draw, waits = Random(3), 0
    for _ in range(500):
        bench = BootstrapBench()
        bench.core = Bootstrap(1, bench.settings, bench.view)
        bench.core.start(0.0)
        heard = [1, *draw.sample(PEERS, draw.randrange(4))]
        bench.view.gone = set(draw.sample((0, 2, 3), draw.choice((0, 0, 1, 3))))
        for peer in heard:
            layout = b"another" if draw.random() < 0.1 else b"layout"
            begun, round_id = draw.random() < 0.1, draw.choice((0, 0, 0, 0, 0, 0, 7))
            bench.hear(peer, layout=layout, begun=begun, round_id=round_id)
        now = draw.choice((0.1, 1.0, 6.0, 1e3))
        bench.core.report_waiting((), now - 1.0)
        if bench.core.only_waits(now):
            waits += 1
            assert isinstance(bench.core.decide(now), WaitForPeers)
    assert 50 < waits < 450
