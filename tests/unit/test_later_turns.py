"""A server that keeps its result, and names later turns of its own in place of it."""

from __future__ import annotations

import pytest
from test_rolling import LINEAGE, RollingTable

from gossip.core.events import Received, Send
from gossip.core.messages import Message, Update, UpdateRequest
from gossip.core.rounds.server import PUT_OFF
from gossip.core.rounds.shard import ShardRound
from gossip.core.settings import RoundSettings

N = 5
TIMEOUT_S = RoundSettings().round_timeout_s
SOON_S = 0.1


class Bench(RollingTable):
    """The first server of the round is the liar: nothing of it arrives but what ``asks`` says."""

    def __init__(self, f: int = 1) -> None:
        super().__init__(N, f=f)
        self.order_of_round = self.order()
        self.liar, self.second, *_ = self.order_of_round
        self.lose = self.is_lost
        self.contribute()
        self.deliver()

    def is_lost(self, sender: int, to: int, message: Message) -> bool:
        return sender == self.liar

    def asks(self, attempt: int, *who: int) -> list[int]:
        """Who gives it an update at once. ``who``: all others."""
        given: list[int] = []
        for peer in who or [peer for peer in range(N) if peer != self.liar]:
            query = UpdateRequest(LINEAGE, 0, 0, attempt, self.peers[peer].chain)
            effects = self.peers[peer].on_message(Received(self.liar, 1, query), self.now)
            self.run(peer, effects)
            given += [
                peer
                for effect in effects
                if isinstance(effect, Send) and isinstance(effect.message, Update)
            ]
        return given

    def goes_on(self, seconds: float, every_s: float) -> None:
        """It names a later turn every so often, to each peer another one."""
        until, turn = self.now + seconds, 1
        while self.now < until and self.peers[self.second].round_id == 0:
            for peer in range(N):
                turn += 1
                if peer != self.liar and self.peers[peer].round_id == 0:
                    self.asks(turn * N, peer)
            self.pass_time(every_s)


@pytest.mark.parametrize("every_s", [0.05, 1.0, 4.0])
def test_a_round_ends_although_a_server_names_ever_later_turns_of_its_own(every_s: float) -> None:
    bench = Bench()
    began = bench.now
    bench.goes_on(10 * TIMEOUT_S, every_s)
    assert {bench.peers[peer].round_id for peer in range(N) if peer != bench.liar} == {1}
    assert bench.now - began <= TIMEOUT_S + 2 * every_s + SOON_S
    assert len({c.digest for c in bench.made if c.server != bench.liar}) == 1


def test_its_time_goes_on_while_it_names_later_turns() -> None:
    bench = Bench()
    bench.pass_time(0.9 * TIMEOUT_S)
    assert len(bench.asks(N)) == N - 1, "until then they do as it says"
    bench.pass_time(0.1 * TIMEOUT_S + SOON_S)
    at = {bench.peers[peer]._shards[0].attempt for peer in range(N) if peer != bench.liar}
    assert at == {N + 1}


def test_where_nobody_lies_it_gets_its_time_anew() -> None:
    bench = Bench(f=0)
    bench.pass_time(0.9 * TIMEOUT_S)
    bench.asks(N)
    bench.pass_time(0.1 * TIMEOUT_S + SOON_S)
    assert bench.peers[bench.second]._shards[0].attempt == N


def _waited_in_vain() -> tuple[Bench, int, ShardRound]:
    """A peer that gives its update to the second server, of whom nothing arrives either."""
    bench = Bench()
    bench.lose = lambda sender, to, message: True
    bench.pass_time(TIMEOUT_S + SOON_S)
    peer = bench.order_of_round[3]
    return bench, peer, bench.peers[peer]._shards[0]


def test_what_it_asks_for_after_that_is_put_off_for_a_while() -> None:
    bench, peer, shard = _waited_in_vain()
    assert bench.asks(2 * N, peer) == []
    assert bench.asks(3 * N, peer) == []
    assert shard.attempt == 1
    bench.sent.clear()
    bench.pass_time(PUT_OFF * TIMEOUT_S + SOON_S)
    given = [to for sender, to, message in bench.sent if sender == peer and type(message) is Update]
    assert given == [bench.liar]
    assert shard.attempt == 3 * N


def test_others_are_followed_at_once_and_so_is_it_over_a_new_link() -> None:
    bench, peer, shard = _waited_in_vain()
    third = bench.order_of_round[2]
    query = UpdateRequest(LINEAGE, 0, 0, 2, bench.peers[peer].chain)
    bench.run(peer, bench.peers[peer].on_message(Received(third, 1, query), bench.now))
    assert shard.attempt == 2
    bench.peers[peer].on_disconnect(bench.liar)
    assert bench.asks(2 * N, peer) == [peer]


def test_a_server_does_not_wait_for_who_says_that_it_is_elsewhere() -> None:
    bench = Bench()
    bench.pass_time(TIMEOUT_S + SOON_S)
    second = bench.peers[bench.second]
    assert second.round_id == 0, "it waits for the liar, whose update it lacks"
    bench.asks(2 * N, bench.second)
    bench.deliver()
    assert second.round_id == 1


def test_a_server_that_comes_to_its_turn_again_gives_others_the_time_to_put_it_off() -> None:
    """One of them may be making the result of another attempt meanwhile."""
    shard = ShardRound(0, tuple(range(N)))
    server = Bench().peers[0].server
    for since_s, waits in ((0.2 * TIMEOUT_S, False), (0.3 * TIMEOUT_S, True)):
        shard.served_at, shard.first_at = 100.0, 100.0 + since_s
        assert server._may_be_put_off(shard) == waits
