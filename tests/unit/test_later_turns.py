"""What peers say of later turns: who is followed at once, and whose word waits."""

from __future__ import annotations

from itertools import pairwise

import pytest
from test_rolling import LINEAGE, RollingTable, vector

from gossip.core.events import Effect, Received, Send
from gossip.core.messages import Message, NotServing, Update, UpdateRequest
from gossip.core.rounds.later_turns import CREDIT_TURNS, ENOUGH, REGAINED, TurnCredit
from gossip.core.rounds.shard import ShardRound
from gossip.core.settings import RoundSettings

N = 5
TIMEOUT_S = RoundSettings().round_timeout_s


class Bench(RollingTable):
    """All have given their updates to the first server, and nothing arrives any more. ``peer`` is
    one of those who serve later."""

    def __init__(self, f: int = 1) -> None:
        super().__init__(N, f=f)
        self.turns = self.order()
        self.first, self.second, self.third, self.peer, self.last = self.turns
        self.lose = lambda sender, to, message: True
        self.contribute()

    @property
    def shard(self) -> ShardRound:
        return self.peers[self.peer]._shards[0]

    def hears(self, sender: int, message: Message) -> list[Effect]:
        payload = vector(1.0) if isinstance(message, Update) else None
        effects = self.peers[self.peer].on_message(Received(sender, 1, message, payload), self.now)
        self.run(self.peer, effects)
        return effects

    def asks(self, attempt: int) -> bool:
        """Whether the update is given to the server of that attempt, who asks for it."""
        server = self.turns[attempt % N]
        query = UpdateRequest(LINEAGE, 0, 0, attempt, self.peers[self.peer].chain)
        return any(
            isinstance(effect, Send) and isinstance(effect.message, Update)
            for effect in self.hears(server, query)
        )

    def gives(self, sender: int, attempt: int) -> bool:
        """Whether that attempt, which is a turn of ``peer``, is served when ``sender`` gives it an
        update."""
        assert self.turns[attempt % N] == self.peer
        chain = self.peers[self.peer].chain
        self.hears(sender, Update(LINEAGE, 0, 0, attempt, chain, 4, None))
        return self.shard.serving == attempt

    def spend_all(self, *who: int) -> None:
        for peer in who:
            credit = self.peers[self.peer].later_turns.credit
            credit.spend(peer, CREDIT_TURNS + 1, TIMEOUT_S, self.now)


def test_a_word_that_nothing_explains_is_followed_at_once() -> None:
    bench = Bench()
    assert bench.asks(N + 1)
    assert bench.asks(3 * N)
    assert bench.gives(bench.last, 3 * N + 3)


def test_what_is_waited_in_vain_on_such_words_spends_a_credit_and_then_they_are_put_off() -> None:
    bench, turns = Bench(), 0
    for turn in range(1, 100):
        if not bench.asks(turn * N):
            break
        turns += 1
        bench.pass_time(TIMEOUT_S / 2)
    assert 2 * CREDIT_TURNS <= turns <= 2 * CREDIT_TURNS + 1
    assert bench.shard.attempt == turns * N


def test_words_that_come_one_upon_the_other_spend_no_more_than_the_time_that_passes() -> None:
    bench = Bench()
    for turn in range(1, 100):
        assert bench.asks(turn * N)
        bench.pass_time(0.001)


def test_a_commit_in_time_costs_nothing() -> None:
    for share, spent in ((ENOUGH - 0.1, 0.0), (ENOUGH + 0.1, ENOUGH + 0.1)):
        bench = Bench()
        turns = bench.peers[bench.peer].later_turns
        assert bench.asks(N)
        turns.end(bench.shard, bench.now + share * TIMEOUT_S)
        assert turns.credit.spent(bench.first, TIMEOUT_S, bench.now) == pytest.approx(
            spent, abs=0.02
        )


def test_a_credit_comes_back_slowly_and_in_turns() -> None:
    credit = TurnCredit()
    credit.spend(3, 2.0, 5.0, 100.0)
    assert credit.spent(3, 5.0, 100.0) == 2.0
    assert credit.spent(3, 5.0, 100.0 + 5.0 / REGAINED) == pytest.approx(1.0)
    assert credit.spent(3, 1.0, 100.0 + 2.0 / REGAINED) == 0.0
    credit.spend(3, 1000.0, 5.0, 100.0)
    assert credit.spent(3, 5.0, 100.0) == CREDIT_TURNS + 1, "nobody is put off for ever"


def test_what_was_put_off_is_taken_up_when_this_peer_hands_the_shard_on() -> None:
    bench = Bench()
    bench.spend_all(bench.third)
    assert not bench.asks(N + 2)
    assert not bench.asks(2 * N + 2)
    bench.pass_time(TIMEOUT_S - 0.01)
    assert bench.shard.attempt == 0, "the present server has all of its time"
    bench.pass_time(0.02)
    assert bench.shard.attempt == 2 * N + 2


def test_an_update_that_was_put_off_is_asked_for_when_it_is_taken_up() -> None:
    bench = Bench()
    bench.spend_all(bench.last)
    assert not bench.gives(bench.last, N + 3)
    bench.pass_time(TIMEOUT_S + 0.01)
    assert bench.shard.serving == N + 3
    bench.pass_time(RoundSettings().query_after_s + 0.01)
    asked = [
        (sender, to, said.attempt)
        for sender, to, said in bench.sent
        if isinstance(said, UpdateRequest)
    ]
    assert (bench.peer, bench.last, N + 3) in asked


def test_a_peer_that_stood_still_takes_up_no_turn_of_its_own() -> None:
    bench = Bench()
    bench.spend_all(bench.last)
    bench.shard.attempt = 3
    assert not bench.gives(bench.last, N + 3)
    bench.run(bench.peer, bench.peers[bench.peer].on_stalled(2.0, bench.now))
    assert bench.shard.attempt == 4
    assert bench.shard.serving is None


def test_all_others_may_have_a_turn_before_it_is_taken_up_again() -> None:
    bench = Bench()
    bench.spend_all(bench.first)
    at: list[float] = []
    for turn in range(2, 400):
        bench.asks(turn * 100 * N)
        bench.pass_time(TIMEOUT_S / 4)
        if bench.shard.granted.get(bench.first, 0) > len(at):
            at.append(bench.now)
    pauses = [round((after - before) / TIMEOUT_S) for before, after in pairwise(at)]
    assert pauses[0] >= N
    assert pauses[1] >= 2 * N
    assert pauses[2] >= 4 * N


def test_who_is_next_is_believed_without_credit_once_a_server_has_had_its_turn() -> None:
    bench = Bench()
    bench.spend_all(*range(N))
    bench.pass_time((ENOUGH - 0.01) * TIMEOUT_S)
    assert not bench.asks(1)
    bench.pass_time(0.02 * TIMEOUT_S)
    assert not bench.asks(2), "that passes over one who has had no turn"
    assert not bench.asks(N), "and that over all others"
    assert bench.asks(1)


def test_who_is_skipped_need_have_no_turn() -> None:
    bench = Bench()
    bench.spend_all(*range(N))
    for gone in (bench.first, bench.second):
        bench.views[bench.peer].skipped[gone] = "closed its connection"
    assert bench.asks(2)


def test_a_server_that_hands_on_itself_or_says_that_it_does_not_serve_is_believed() -> None:
    bench = Bench()
    bench.spend_all(*range(N))
    bench.shard.attempt = N + 2
    assert bench.gives(bench.third, N + 3)
    bench = Bench()
    bench.spend_all(*range(N))
    bench.shard.attempt = N
    chain = bench.peers[bench.peer].chain
    bench.hears(bench.first, NotServing(LINEAGE, 0, 0, N, 0, chain))
    assert bench.asks(N + 1)


def test_credit_is_kept_over_links_and_rounds() -> None:
    bench = Bench()
    bench.spend_all(bench.third)
    rounds = bench.peers[bench.peer]
    rounds.on_disconnect(bench.third)
    rounds.stop(bench.now)
    rounds.resume(bench.now)
    assert not bench.asks(N + 2)


def test_where_nobody_lies_all_are_followed_at_once() -> None:
    bench = Bench(f=0)
    bench.spend_all(*range(N))
    assert bench.asks(N + 2)
    assert bench.gives(bench.last, 2 * N + 3)


def test_a_server_does_not_use_the_update_of_one_who_was_drawn_away() -> None:
    bench = Bench()
    bench.lose = lambda sender, to, message: False
    server = bench.peers[bench.first]._shards[0]
    own = server.answers[bench.first]
    server.answers[bench.peer] = own
    assert bench.asks(N + 2)
    sender, to, message, payload = bench.mail.popleft()
    assert (sender, to) == (bench.peer, bench.first)
    bench.run(to, bench.peers[to].on_message(Received(sender, 1, message, payload), bench.now))
    assert list(server.answers) == [bench.first]


def test_turns_that_a_word_passes_over_do_not_make_the_others_longer() -> None:
    bench = Bench()
    server = bench.peers[bench.peer].server
    server.transfer_tracker.takes_time = True
    assert bench.asks(100 * N)
    assert server.back_off(bench.shard) == 1
    bench.shard.attempt += 2 * N
    assert server.back_off(bench.shard) == 4
