"""What peers say of later turns: who is followed at once, and whose word waits."""

from __future__ import annotations

from itertools import pairwise

import pytest
from test_rolling import LINEAGE, RollingTable, vector

from gossip.core.events import Effect, Payload, Received, Send
from gossip.core.messages import Message, NotServing, Update, UpdateRequest
from gossip.core.rounds.credit import TokenBucket
from gossip.core.rounds.shard import ShardRound
from gossip.core.settings import (
    AFTER_PAUSE_S,
    CREDIT_REGAINED,
    CREDIT_TURNS,
    REFUND_TURNS,
    TURN_SHARE,
    RoundSettings,
)

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
        return self.peers[self.peer].shards[0]

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
        return self.shard.served.attempt == attempt

    def spent(self, peer: int) -> float:
        """Turns, of what ``peer`` has with the one that is looked at."""
        credit = self.peers[self.peer].participant.later_turns.credit
        return credit.spent(peer, self.now, TIMEOUT_S)

    def spend_all(self, *who: int) -> None:
        for peer in who:
            credit = self.peers[self.peer].participant.later_turns.credit
            credit.spend(peer, CREDIT_TURNS + 1, self.now, TIMEOUT_S)

    def takes_up(self, *attempts: int) -> int:
        """Where ``peer`` hands the shard on to when those who ask for its update under these
        attempts have no credit."""
        self.spend_all(*[self.turns[attempt % N] for attempt in attempts])
        for attempt in attempts:
            assert not self.asks(attempt)
        self.pass_time(TIMEOUT_S + 0.01)
        return self.shard.attempt


def test_what_is_waited_in_vain_on_such_words_spends_a_credit_and_then_they_are_put_off() -> None:
    bench, turns = Bench(), 0
    for turn in range(1, 100):
        if not bench.asks(turn * N):
            break
        turns += 1
        bench.pass_time(TIMEOUT_S / 2)
    assert 2 * CREDIT_TURNS <= turns <= 2 * CREDIT_TURNS + 1
    assert bench.shard.attempt == turns * N


def test_a_commit_in_time_costs_nothing() -> None:
    for share, spent in ((TURN_SHARE - 0.1, 0.0), (TURN_SHARE + 0.1, TURN_SHARE + 0.1)):
        bench = Bench()
        turns = bench.peers[bench.peer].participant.later_turns
        assert bench.asks(N)
        turns.end(bench.shard, bench.second, bench.now + share * TIMEOUT_S)
        assert turns.credit.spent(bench.first, bench.now, TIMEOUT_S) == pytest.approx(
            spent, abs=0.02
        )


def test_a_credit_comes_back_slowly_and_in_turns() -> None:
    credit = TokenBucket()
    credit.spend(3, 2.0, 100.0, 5.0)
    assert credit.spent(3, 100.0, 5.0) == 2.0
    assert credit.spent(3, 100.0 + 5.0 / CREDIT_REGAINED, 5.0) == pytest.approx(1.0)
    assert credit.spent(3, 100.0 + 2.0 / CREDIT_REGAINED, 1.0) == 0.0
    credit.refund(3, 1.5, 100.0, 5.0)
    assert credit.spent(3, 100.0, 5.0) == 0.5
    credit.refund(3, 1.5, 100.0, 5.0)
    assert credit.spent(3, 100.0, 5.0) == 0.0
    credit.spend(3, 1000.0, 100.0, 5.0, most=CREDIT_TURNS + 1)
    assert credit.spent(3, 100.0, 5.0) == CREDIT_TURNS + 1, "nobody is put off for ever"


def test_an_update_that_was_put_off_is_asked_for_when_it_is_taken_up() -> None:
    bench = Bench()
    bench.spend_all(bench.last)
    assert not bench.gives(bench.last, N + 3)
    bench.pass_time(TIMEOUT_S + 0.01)
    assert bench.shard.served.attempt == N + 3
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
    bench.run(bench.peer, bench.peers[bench.peer].on_pause(2.0, bench.now))
    assert bench.shard.attempt == 4
    assert bench.shard.served.attempt == -1


def test_all_others_may_have_a_turn_before_it_is_taken_up_again() -> None:
    bench = Bench()
    bench.spend_all(bench.first)
    at: list[float] = []
    for turn in range(2, 400):
        bench.asks(turn * 100 * N)
        bench.pass_time(TIMEOUT_S / 4)
        if bench.shard.claims.granted.get(bench.first, 0) > len(at):
            at.append(bench.now)
    pauses = [round((after - before) / TIMEOUT_S) for before, after in pairwise(at)]
    assert pauses[0] >= N
    assert pauses[1] >= 2 * N
    assert pauses[2] >= 4 * N


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


def test_where_nobody_lies_all_are_followed_at_once() -> None:
    bench = Bench(f=0)
    bench.spend_all(*range(N))
    assert bench.asks(N + 2)
    assert bench.gives(bench.last, 2 * N + 3)


def test_a_server_does_not_use_the_update_of_one_who_was_drawn_away() -> None:
    bench = Bench()
    bench.lose = lambda sender, to, message: False
    server = bench.peers[bench.first].shards[0]
    own = server.served.answers[bench.first]
    server.served.answers[bench.peer] = own
    assert bench.asks(N + 2)
    sender, to, message, payload = bench.mail.popleft()
    assert (sender, to) == (bench.peer, bench.first)
    bench.receive(to, sender, message, payload)
    assert list(server.served.answers) == [bench.first]


def test_turns_that_a_word_passes_over_do_not_make_the_others_longer() -> None:
    bench = Bench()
    patience = bench.peers[bench.peer].patience
    patience.transfer_tracker.takes_time = True
    assert bench.asks(100 * N)
    assert patience.timeout_factor(bench.shard) == 1
    bench.shard.attempt += 2 * N
    assert patience.timeout_factor(bench.shard) == 4


def test_a_turn_that_was_given_on_a_word_and_ends_without_a_commit_is_charged() -> None:
    bench = Bench()
    assert bench.asks(N + 2)
    bench.pass_time(TIMEOUT_S + 0.01)
    assert bench.shard.attempt > N + 2
    assert bench.spent(bench.third) == pytest.approx(1.0, abs=0.02)


def test_a_commit_that_comes_late_is_charged() -> None:
    bench = Bench()
    assert bench.gives(bench.last, N + 3)
    bench.pass_time(0.9 * TIMEOUT_S)
    for sender in (bench.first, bench.second, bench.third):
        bench.gives(sender, N + 3)
    bench.pass_time(0.01)
    assert bench.peers[bench.peer].round_id == 1
    assert bench.spent(bench.last) == pytest.approx(0.9, abs=0.02)


def test_who_makes_a_result_has_a_part_of_its_credit_back() -> None:
    bench = Bench()
    bench.lose = lambda sender, to, message: False
    server = bench.peers[bench.first]
    bench.spend_all(*range(N))
    spent = bench.spent(bench.first)
    for sender in range(N):
        given = Update(LINEAGE, 0, 0, 0, server.chain, 4, None)
        bench.receive(bench.first, sender, given, vector(1.0))
    bench.deliver()
    assert bench.peers[bench.peer].round_id == 1
    assert bench.spent(bench.first) == spent - REFUND_TURNS
    assert all(bench.spent(other) == spent for other in bench.turns[1:])


def test_who_goes_on_without_need_of_a_word_takes_nothing_back() -> None:
    for skipped, attempt in ((False, 0), (True, 2)):
        bench = Bench()
        if skipped:
            for gone in (bench.first, bench.second):
                bench.views[bench.peer].skipped[gone] = "closed its connection"
        else:
            attempt = 1
            bench.pass_time((TURN_SHARE + 0.01) * TIMEOUT_S)
        assert bench.asks(attempt)
        assert not any(isinstance(said, NotServing) for _, _, said in bench.sent)


def test_a_turn_is_as_long_as_its_server_has_where_payloads_take_time() -> None:
    bench = Bench()
    bench.spend_all(*range(N))
    bench.peers[bench.peer].patience.transfer_tracker.takes_time = True
    bench.shard.attempt, bench.shard.claims.came_at = N, bench.now  # twice as long as the first
    bench.now += 1.4 * TIMEOUT_S
    assert not bench.asks(N + 1)
    bench.now += 0.2 * TIMEOUT_S
    assert bench.asks(N + 1)


def test_of_the_words_of_several_the_latest_is_taken_up() -> None:
    assert Bench().takes_up(2 * N + 2, N + 4) == 2 * N + 2


def test_a_word_that_is_taken_up_does_not_make_the_turns_longer_either() -> None:
    bench = Bench()
    assert bench.takes_up(100 * N + 2) == 100 * N + 2
    bench.shard.timeouts = 0
    bench.peers[bench.peer].patience.transfer_tracker.takes_time = True
    assert bench.peers[bench.peer].patience.timeout_factor(bench.shard) == 1


def test_what_was_passed_over_is_known_when_a_round_is_come_back_to() -> None:
    bench = Bench()
    rounds = bench.peers[bench.peer]
    rounds.patience.transfer_tracker.takes_time = True
    assert bench.asks(100 * N)
    rounds.stop(bench.now)
    rounds.resume(bench.now)
    assert bench.shard.attempt == 100 * N
    assert rounds.patience.timeout_factor(bench.shard) == 1


# --- who stood still ------------------------------------------------------------------------------


def test_who_stood_still_goes_on_credit_when_it_serves_again() -> None:
    bench = Bench()
    bench.run(bench.peer, bench.peers[bench.peer].on_pause(2.0, bench.now))
    assert not bench.gives(bench.last, N + 3)
    bench.pass_time(AFTER_PAUSE_S + 0.01)
    assert bench.shard.served.attempt == N + 3
    assert bench.shard.claims.led_here == bench.last
    assert any(isinstance(said, NotServing) and said.attempt == 0 for _, _, said in bench.sent)


def test_who_stood_still_is_not_drawn_away_by_who_has_no_credit() -> None:
    bench = Bench()
    bench.spend_all(bench.last)
    bench.run(bench.peer, bench.peers[bench.peer].on_pause(2.0, bench.now))
    assert not bench.gives(bench.last, 1000 * N + 3)
    bench.pass_time(AFTER_PAUSE_S + 0.01)
    assert bench.shard.attempt == 0
    assert bench.shard.claims.deferred == {bench.last: 1000 * N + 3}


def test_a_credit_that_is_spent_meanwhile_is_none_when_it_serves_again() -> None:
    bench = Bench()
    bench.run(bench.peer, bench.peers[bench.peer].on_pause(2.0, bench.now))
    bench.gives(bench.last, N + 3)
    bench.spend_all(bench.last)
    bench.pass_time(AFTER_PAUSE_S + 0.01)
    assert bench.shard.attempt == 0


# --- updates that are taken back ------------------------------------------------------------------


class Taking(Bench):
    """``peer`` has gone on, and what it says to the first server is its present round and
    attempt 0. The server has its own update, and no other."""

    def __init__(self, f: int = 1) -> None:
        super().__init__(f)
        self.rounds = self.peers[self.first]
        self.server = self.rounds.shards[0]

    def update(self, attempt: int = 0) -> None:
        given = Update(LINEAGE, 0, 0, attempt, self.rounds.chain, 4, None)
        self.tells(given, vector(1.0))

    def take_back(self, attempt: int = 0, chain: bytes | None = None) -> None:
        chain = self.rounds.chain if chain is None else chain
        self.tells(NotServing(LINEAGE, 0, 0, attempt, 0, chain))

    def tells(self, message: Message, payload: Payload | None = None) -> None:
        heard = Received(self.peer, 1, message, payload)
        self.run(self.first, self.rounds.on_message(heard, self.now))

    def is_counted(self) -> bool:
        return self.peer in self.server.served.answers


def test_an_update_of_a_later_attempt_is_not_taken_back_with_the_first() -> None:
    bench = Taking()
    bench.take_back()
    bench.take_back(attempt=2 * N)
    bench.take_back()  # an older one changes nothing
    bench.update(attempt=N)
    assert bench.is_counted()
    bench.update(attempt=2 * N)
    assert bench.server.served.attempt == 2 * N
    assert not bench.is_counted()
    bench.update(attempt=3 * N)
    assert bench.is_counted()
    assert not bench.server.served.withdrawn


def test_only_who_is_in_this_round_takes_back() -> None:
    bench = Taking()
    bench.update()
    bench.take_back(chain=bench.rounds.replicated.lineage.unbegun)
    assert bench.is_counted()
    bench.take_back()
    assert not bench.is_counted()


def test_where_nobody_lies_nothing_is_taken_back() -> None:
    bench = Taking(f=0)
    bench.update()
    bench.take_back()
    assert bench.is_counted()


def test_what_the_rule_is_running_on_is_not_taken_back() -> None:
    bench = Taking()
    bench.held_back = []
    for sender in range(N):
        given = Update(LINEAGE, 0, 0, 0, bench.rounds.chain, 4, None)
        heard = Received(sender, 1, given, vector(1.0))
        if sender != bench.first:
            bench.run(bench.first, bench.rounds.on_message(heard, bench.now))
    assert bench.server.served.ticket is not None
    bench.take_back()
    assert bench.is_counted()


def test_an_update_of_an_earlier_attempt_is_not_counted() -> None:
    bench = Taking()
    bench.take_back(attempt=N)
    bench.update(attempt=N)
    assert bench.server.served.attempt == N
    bench.update()
    assert not bench.is_counted()
