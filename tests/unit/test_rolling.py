"""Rolling rounds, message by message, on a table of peers without membership:
who is skipped is said by hand."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import pytest
from fixed_view import FixedView

from gossip.core.events import (
    AfterSends,
    Aggregate,
    Aggregated,
    Applied,
    Apply,
    CancelTimer,
    Committed,
    Contributed,
    Effect,
    Payload,
    Received,
    Report,
    ResultSimilarity,
    Send,
    SetTimer,
    StartRound,
)
from gossip.core.messages import (
    Commit,
    CommitRequest,
    Contribution,
    Envelope,
    Hello,
    Message,
    NotServing,
    Rejection,
    Update,
    UpdateRequest,
    is_further,
)
from gossip.core.requests import LostTrack
from gossip.core.rounds.lag import CatchUpOverdue
from gossip.core.rounds.punctuality import LatenessTracker
from gossip.core.rounds.rolling import RollingRounds
from gossip.core.rounds.shard import ShardRound
from gossip.core.rounds.timeouts import Deadline
from gossip.core.settings import (
    AMENDS_ROUNDS,
    COMPILING_MAX_S,
    FORWARDED_MAX,
    NOT_SLOW_S,
    CoreSettings,
    RoundSettings,
)
from gossip.core.timers import Timers
from gossip.topologies.rolling import rolling
from gossip.transport.codec import decode, encode

LINEAGE = b"lineage!"


def vector(value: float, digest: bool = False) -> Payload:
    raw = repr(value).encode()
    return Payload(
        value, 4, value == value, hashlib.blake2b(raw, digest_size=16).digest() if digest else b""
    )


class RollingTable:
    """n peers; ``deliver`` carries messages one by one, ``lose`` says which never arrive."""

    def __init__(
        self,
        n: int,
        shards: int = 1,
        quorum: str = "majority",
        f: int = 0,
        cross_shard: bool = False,
        updates_for: tuple[int, ...] = (1,),
    ) -> None:
        settings = CoreSettings(
            b"run-id!!",
            LINEAGE,
            seed=7,
            peers=tuple(range(n)),
            f=f,
            cross_shard=cross_shard,
            updates_for=updates_for,
            rounds=RoundSettings(quorum=quorum),  # type: ignore[arg-type]
        )
        self.settings, self.now = settings, 100.0
        self.views = [FixedView(tuple(range(16))) for _ in range(n)]
        self.timers = [Timers() for _ in range(n)]
        self.peers = [
            RollingRounds(i, settings, rolling, self.views[i], self.timers[i]) for i in range(n)
        ]
        for rounds in self.peers:
            rounds.replicated.lineage.begin(b"weights")  # before, nobody is on a branch
        self.mail: deque[tuple[int, int, Message, Payload | None]] = deque()
        self.lose: Callable[[int, int, Message], bool] = lambda sender, to, message: False
        self.sent: list[tuple[int, int, Message]] = []
        self.due: list[dict[int, float]] = [{} for _ in range(n)]
        self.applied: list[list[tuple[int, bytes]]] = [[] for _ in range(n)]
        self.go: list[int] = [-1] * n
        self.began_at = [0.0] * n  # the round of ``go``
        self.busy: set[int] = set()  # whose trainers apply nothing
        self.reports: list[list[Report]] = [[] for _ in range(n)]
        self.made: list[Commit] = []
        self.crashed: set[int] = set()
        self.aggregations = 0
        self.asked: list[Aggregate] = []
        self.held_back: list[tuple[int, Aggregate]] | None = None
        for peer in self.peers:
            peer.shard_bytes = (4,) * shards
        for i in range(n):
            self.run(i, self.peers[i].start(self.now))

    def run(self, i: int, effects: list[Effect]) -> None:
        self.peers[i].validate_state()
        for effect in effects:
            self.carry_out(i, effect)

    def carry_out(self, i: int, effect: Effect) -> None:
        match effect:
            case Send():
                self.send(i, effect)
            case AfterSends():
                self.run(i, self.peers[i].commits.record_own_commit(self.now))
            case SetTimer() | CancelTimer():
                self.set_timer(self.due[i], effect)
            case Aggregate():
                self.aggregate(i, effect)
            case Apply():
                self.apply(i, effect)
            case StartRound(round_id=round_id):
                assert effect.roster == self.peers[i].roster.peers
                self.go[i], self.began_at[i] = round_id, effect.began_at
            case Report():
                self.reports[i].append(effect)
            case Committed(commit=commit, made=True):
                self.made.append(commit)

    def send(self, i: int, sent: Send) -> None:
        self.sent.append((i, sent.peer, sent.message))
        if not self.lose(i, sent.peer, sent.message):
            self.mail.append((i, sent.peer, sent.message, sent.payload))

    @staticmethod
    def set_timer(due: dict[int, float], effect: SetTimer | CancelTimer) -> None:
        due.pop(effect.token, None)
        if isinstance(effect, SetTimer):
            due[effect.token] = effect.at

    def apply(self, i: int, what: Apply) -> None:
        self.applied[i].append((what.round_id, b"".join(p.digest for p in what.payloads)))
        if i not in self.busy:
            self.run(i, self.peers[i].on_applied(Applied(what.round_id), self.now))

    def aggregate(self, i: int, effect: Aggregate) -> None:
        self.aggregations += 1
        self.asked.append(effect)
        if self.held_back is not None:
            self.held_back.append((i, effect))
        else:
            self.answer(i, effect)

    def answer(self, i: int, ask: Aggregate) -> None:
        if not ask.rows:
            self.aggregated(i, Aggregated(ask.ticket, None, reason="nobody had samples"))
            return
        mean = sum(row.payload.data for row in ask.rows) / len(ask.rows)
        n = len(ask.rows)
        answer = Aggregated(ask.ticket, vector(mean, digest=True), (1 / n,) * n, (1.0,) * n)
        self.aggregated(i, answer)

    def aggregated(self, i: int, answer: Aggregated) -> None:
        self.run(i, self.peers[i].on_aggregated(answer, self.now))

    def contribute(self, *who: int, value: float = 1.0, samples: int = 4) -> None:
        for i in who or [i for i in range(len(self.peers)) if i not in self.crashed]:
            payloads = tuple(vector(value + i) for _ in self.peers[i].shard_bytes)
            self.run(
                i,
                self.peers[i].on_contributed(
                    Contributed(self.peers[i].round_id, samples, payloads), self.now
                ),
            )

    def play(self, *who: int, value: float = 1.0, samples: int = 4) -> None:
        """Lets these, or all, contribute to a round, and the mail arrive."""
        self.contribute(*who, value=value, samples=samples)
        self.deliver()

    def offer(self, i: int, event: Contributed) -> None:
        self.run(i, self.peers[i].on_contributed(event, self.now))

    def receive(
        self,
        i: int,
        sender: int,
        message: Message,
        payload: Payload | None = None,
        similarity: ResultSimilarity | None = None,
    ) -> None:
        event = Received(sender, 1, message, payload, similarity)
        self.run(i, self.peers[i].on_message(event, self.now))

    def mark_skipped(self, i: int, other: int, reason: str) -> None:
        self.views[i].skipped[other] = reason
        self.notice(i)

    def notice(self, i: int) -> None:
        """Has a peer look at a view that was changed by hand."""
        self.run(i, self.peers[i].on_view_change(self.now))

    @property
    def at(self) -> list[int]:
        """The round of each peer."""
        return [peer.round_id for peer in self.peers]

    def deliver(self) -> None:
        steps = 0
        while self.mail:
            steps += 1
            assert steps < 10_000, "the peers talk for ever"
            sender, to, message, payload = self.mail.popleft()
            if to not in self.crashed and sender not in self.crashed:
                self.run(
                    to, self.peers[to].on_message(Received(sender, 1, message, payload), self.now)
                )

    def pass_time(self, seconds: float) -> None:
        """Fires what is due, in order, delivering mail in between."""
        until = self.now + seconds
        while True:
            self.deliver()
            pending = [
                (at, i, token)
                for i, due in enumerate(self.due)
                if i not in self.crashed
                for token, at in due.items()
            ]
            at, i, token = min(pending, default=(float("inf"), 0, 0))
            if at > until:
                break
            del self.due[i][token]
            self.now = max(self.now, at)
            timer = self.timers[i].fire(token)
            if timer is not None:
                self.run(i, self.peers[i].on_timer(timer, self.now))
        self.now = until

    def crash(self, i: int, noticed: bool = True) -> None:
        self.crashed.add(i)
        if noticed:
            for j, view in enumerate(self.views):
                if j != i and j not in self.crashed:
                    view.skipped[i] = "closed its connection"
                    self.run(j, self.peers[j].on_view_change(self.now))

    def order(self, shard: int = 0) -> tuple[int, ...]:
        alive = next(p for i, p in enumerate(self.peers) if i not in self.crashed)
        return rolling(alive.roster, alive.round_id, 7, shards=len(alive.shard_bytes)).servers[
            shard
        ]

    @property
    def alive(self) -> list[RollingRounds]:
        return [p for i, p in enumerate(self.peers) if i not in self.crashed]

    def assert_one_history(self, rounds: int) -> None:
        assert {peer.round_id for peer in self.alive} == {rounds}
        assert len({peer.chain for peer in self.alive}) == 1
        logs = [log[:rounds] for i, log in enumerate(self.applied) if i not in self.crashed]
        assert all(log == logs[0] and len(log) == rounds for log in logs)


def a_commit(server: int, parent: bytes = b"", digest: bytes = b"", n: int = 3) -> Commit:
    roster = tuple(range(n))
    return Commit(LINEAGE, 0, 0, 0, 0, server, parent, digest, (), (), roster, None, "")


def commit_for(table: RollingTable, victim: int, **changes: object) -> Commit:
    """What the first server of round 0 would rightly send."""
    right = a_commit(
        table.order()[0], table.peers[victim].chain, vector(1.0, True).digest, len(table.peers)
    )
    return replace(right, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_round_ends_with_the_same_chain_everywhere(shards: int) -> None:
    table = RollingTable(5, shards)
    for _ in range(4):
        table.play()
    table.assert_one_history(4)
    assert table.aggregations == 4 * shards
    assert table.go == [4] * 5


def test_whoever_serves_is_given_the_last_aggregate_of_its_shard() -> None:
    table = RollingTable(5, shards=2)
    table.peers[2].adopt(0, table.peers[2].chain, table.peers[2].snapshot(0)[1])  # type: ignore[index]
    last: dict[int, bytes] = {}
    for number in range(6):
        table.play(samples=0 if number == 3 else 4)
        asked, table.asked = table.asked, []
        for ask in asked:
            assert (b"" if ask.previous is None else ask.previous.digest) == last.get(
                ask.shard, b""
            )
        if number != 3:  # a round that changes nothing is not remembered
            last = {commit.shard: commit.digest for commit in table.made[-2:]}
    assert len({commit.server for commit in table.made}) > 2
    stranger = table.peers[3]
    snapshot = stranger.snapshot(6)
    stranger.stop(table.now)
    stranger.adopt(6, *snapshot)
    stranger.start(table.now)
    assert stranger.server.log.previous == {}, "what was applied elsewhere is not known here"


def test_a_swarm_of_one_trains() -> None:
    table = RollingTable(1)
    table.contribute()
    table.assert_one_history(1)
    assert table.go == [1]


def test_the_server_role_moves() -> None:
    table = RollingTable(4)
    for _ in range(24):
        table.play()
    assert {commit.server for commit in table.made} == {0, 1, 2, 3}


def test_a_peer_known_to_be_skipped_costs_no_wait() -> None:
    table = RollingTable(5)
    server = table.order()[0]
    table.crash(server)
    table.play()  # no timer has fired
    table.assert_one_history(1)
    assert table.made[0].made_at == 1


def test_a_server_that_dies_while_it_collects_is_replaced_in_the_same_round() -> None:
    table = RollingTable(5)
    server, successor = table.order()[:2]
    table.held_back = []  # the rule never answers on the first server
    table.play()
    assert table.held_back, "the first server was about to aggregate"
    table.held_back = None
    table.crash(server)
    table.deliver()
    table.assert_one_history(1)
    assert table.made[0].server == successor
    assert {c.peer for c in table.made[0].contributors} == set(range(5)) - {server}


def test_a_commit_that_reached_one_peer_is_spread_and_not_made_again() -> None:
    table = RollingTable(5)
    server, successor = table.order()[:2]
    lucky = next(i for i in range(5) if i not in (server, successor))
    table.lose = lambda sender, to, message: (
        isinstance(message, Commit) and sender == server and to != lucky
    )
    table.play()
    assert table.peers[lucky].round_id == 1
    table.crash(server)
    table.contribute(lucky)  # the lucky one is in the next round already
    table.pass_time(0.1)
    table.assert_one_history(1)
    assert len(table.made) == 1, "the round was aggregated twice"


def test_a_commit_that_reached_nobody_is_made_again() -> None:
    table = RollingTable(4)
    server = table.order()[0]
    table.lose = lambda sender, to, message: isinstance(message, Commit) and sender == server
    table.play()
    table.crash(server)
    table.deliver()
    table.assert_one_history(1)
    assert [commit.made_at for commit in table.made] == [0, 1]


def test_two_servers_in_a_row_may_die() -> None:
    table = RollingTable(6)
    first, second, third = table.order()[:3]
    table.held_back = []
    table.play()
    table.crash(first)
    table.deliver()
    table.held_back = None
    table.crash(second)
    table.deliver()
    table.assert_one_history(1)
    assert table.made[0].server == third


def test_a_silent_server_is_given_up_after_the_round_timeout() -> None:
    table = RollingTable(4)
    server = table.order()[0]
    table.crash(server, noticed=False)
    table.play()
    assert {peer.round_id for peer in table.alive} == {0}
    # Nothing is learnt yet: the timeout to give up on it,
    # then as long as its successor waits for it.
    table.pass_time(2 * table.settings.rounds.round_timeout_s)
    table.assert_one_history(1)


def test_who_has_moved_on_takes_no_result_of_an_earlier_attempt() -> None:
    table = RollingTable(5)
    server, successor = table.order()[:2]
    mover = next(i for i in range(5) if i not in (server, successor))
    table.lose = lambda sender, to, message: True
    table.contribute()
    table.mark_skipped(mover, server, "suspected")
    commit = commit_for(table, mover)
    table.receive(mover, server, commit, vector(1.0, True))
    assert table.peers[mover].round_id == 0, "it broke its promise"
    assert (mover, successor, commit) in table.sent, "it did not tell the server of its attempt"
    again = replace(commit, attempt=1)
    table.receive(mover, successor, again, vector(1.0, True))
    assert table.peers[mover].round_id == 1


def test_the_server_of_a_later_attempt_hands_on_an_earlier_commit() -> None:
    table = RollingTable(5)
    server, successor = table.order()[:2]
    mistaken = next(i for i in range(5) if i not in (server, successor))
    table.mark_skipped(mistaken, server, "suspected")
    table.contribute()
    table.pass_time(0.5)
    table.assert_one_history(1)
    assert len({commit.digest for commit in table.made}) == 1


def test_a_server_that_hears_of_a_commit_while_its_rule_runs_spreads_that_one() -> None:
    table = RollingTable(5)
    server, successor, holder = table.order()[:3]

    def lose(sender: int, to: int, message: Message) -> bool:
        return sender in (server, holder) and isinstance(message, Commit) and to != holder

    table.lose = lose
    table.play()
    assert table.at.count(1) == 2, "its commit reached more than the holder"
    held = table.peers[holder].log.get(0)
    commit, payload = held[0]
    table.held_back = []
    table.views[successor].skipped[holder] = "silent"
    table.crash(server)
    table.pass_time(0.2)
    asked, table.held_back, table.lose = table.held_back, None, lambda sender, to, message: False
    assert [i for i, _ in asked] == [successor]
    table.receive(successor, holder, commit, payload)
    for i, ask in asked:
        table.answer(i, ask)
    table.deliver()
    table.assert_one_history(1)
    assert {applied[0][1] for i, applied in enumerate(table.applied) if i != server} == {
        commit.digest
    }


def test_a_zombie_server_is_harmless() -> None:
    table = RollingTable(5)
    server = table.order()[0]
    table.held_back = []
    table.play()
    asleep = table.held_back[:]
    table.held_back = None
    table.crashed.add(server)
    for i, view in enumerate(table.views):
        if i != server:
            view.skipped[server] = "silent"
            table.notice(i)
    table.deliver()
    assert {peer.round_id for peer in table.alive} == {1}
    table.crashed.discard(server)  # it wakes up in the middle of what it did
    for i, ask in asleep:
        if i == server:
            table.answer(i, ask)
    for view in table.views:
        view.skipped.clear()
    table.contribute()
    table.pass_time(1.0)
    chains = {peer.replicated.lineage.at(0) for i, peer in enumerate(table.peers) if i != server}
    assert len(chains) == 1, "the zombie's commit was taken by somebody"


def test_a_minority_does_not_commit() -> None:
    table = RollingTable(5)
    table.lose = lambda sender, to, message: (sender < 2) != (to < 2)
    for i, view in enumerate(table.views):
        view.skipped = {j: "cut off" for j in range(5) if (j < 2) != (i < 2)}
    for i in range(5):
        table.notice(i)
    table.contribute()
    table.pass_time(60.0)
    assert table.at == [0, 0, 1, 1, 1]


def test_with_quorum_available_a_minority_goes_on() -> None:
    table = RollingTable(5, quorum="available")
    for view in table.views[:2]:
        view.skipped = {2: "cut", 3: "cut", 4: "cut"}
    table.lose = lambda sender, to, message: (sender < 2) != (to < 2)
    for i in range(2):
        table.notice(i)
    table.play(0, 1)
    assert [peer.round_id for peer in table.peers[:2]] == [1, 1]


def without(table: RollingTable, *lost: int) -> None:
    """Plays a round without these, who have died and will not be of the next roster."""
    for view in table.views:
        view.gone.update(lost)
    for peer in lost:
        table.crash(peer)
    table.play()


def test_where_too_few_are_left_for_the_rule_the_round_waits_until_it_can_let_somebody_in() -> None:
    table = RollingTable(6, f=1, updates_for=(3, 5))
    without(table, 5)
    without(table, 4)
    here = table.peers[:4]
    assert [peer.round_id for peer in here] == [1] * 4, (
        "four can make nothing of a round against one liar"
    )
    table.pass_time(60.0)
    assert [peer.round_id for peer in here] == [1] * 4
    back = Hello(LINEAGE, b"", b"", 1, "ready", "", "")
    for i, view in enumerate(table.views[:4]):
        table.run(i, table.peers[i].on_hello(5, back, table.now))
        assert table.peers[i].round_id == 1, "it is not back yet, for all that one knows"
        view.skipped.pop(5)
        view.gone.discard(5)
        table.notice(i)
    table.deliver()
    assert [peer.round_id for peer in here] == [2] * 4
    assert table.made[-1].roster == (0, 1, 2, 3, 5)


@pytest.mark.parametrize(
    ("locked", "proven", "rounds"), [((), (), 0), ((3,), (), 0), ((3,), (3,), 1)]
)
def test_one_proven_to_lie_is_one_less_to_tolerate_and_a_suspect_is_not(locked, proven, rounds):
    table = RollingTable(4, f=1, updates_for=(3, 5))
    for peer in table.peers:
        peer.present.locked, peer.present.proven = frozenset(locked), frozenset(proven)
    table.play()
    assert set(table.at) == {rounds}


def test_with_quorum_available_fewer_liars_are_tolerated_rather_than_none_trained() -> None:
    table = RollingTable(6, quorum="available", f=2, updates_for=(1, 3, 5))
    told = []
    for lost in (5, 4, 3, 2, 1):
        without(table, lost)
        told.append(table.asked[-1].f)
    assert told == [2, 1, 1, 0, 0]
    assert table.peers[0].round_id == 5
    less = [report.fields for report in table.reports[0] if report.event == "reduced_tolerance"]
    assert less[-1]["f"] == 0


def test_one_that_is_late_is_waited_for_and_one_that_is_late_again_and_again_for_the_grace_only():
    table = RollingTable(4)
    for _ in range(24):  # so that each server has learnt the grace
        table.play()
    slow, waits = 3, []
    quick = [i for i in range(4) if i != slow]
    while len(waits) < 6:
        here = table.peers[quick[0]].round_id
        if table.order()[0] == slow:  # the others' updates would wait for its own
            table.play()
            continue
        known = table.peers[quick[0]].patience.lateness.is_slow(slow)
        waits.append(table.settings.rounds.grace_floor_s if known else NOT_SLOW_S)
        table.contribute(*quick)
        table.pass_time(0.9 * waits[-1])
        assert table.peers[quick[0]].round_id == here
        table.pass_time(0.2 * waits[-1])
        assert set(table.at) == {here + 1}, "the slow one follows, too"
        assert slow not in {c.peer for c in table.made[-1].contributors}
    assert waits[:2] == [NOT_SLOW_S] * 2
    assert waits[-1] == table.settings.rounds.grace_floor_s
    table.play()
    table.assert_one_history(here + 2)
    assert slow in {c.peer for c in table.made[-1].contributors}


def test_the_lag_of_one_that_comes_after_the_end_teaches_the_grace() -> None:
    """Else those who take as long as ever would be late for good: two peers, of which one needs no
    network for its own update."""
    lateness = RollingTable(2).peers[0].patience.lateness
    update = Update(LINEAGE, 0, 0, 0, b"", 4, None)
    for round_id in range(8):
        lateness.came(1, replace(update, round_id=round_id), 0.0, 0.05)
    assert lateness.patience_s(()) == pytest.approx(0.05)
    for round_id in range(8):
        lateness.record_late_update(1, replace(update, round_id=round_id), 2.0)
    assert lateness.patience_s(()) > 2.0


@pytest.mark.parametrize(("others", "slow"), [((), False), ((2,), True)])
def test_who_takes_a_little_longer_than_it_used_to_is_slow_only_beside_others_that_do_not(
    others: tuple[int, ...], slow: bool
) -> None:
    """A link gives the same time each time, to a fraction of a millisecond, and a busy processor a
    little more for a while."""
    lateness = LatenessTracker(Deadline(4.0, 0.001, 10.0))
    update = Update(LINEAGE, 0, 0, 0, b"", 4, None)
    for round_id in range(60):
        now = 0.016 if round_id < 52 else 0.019
        for peer in (1, *others):
            lateness.came(
                peer, replace(update, round_id=round_id), 0.0, now if peer == 1 else 0.016
            )
    assert lateness.is_slow(1) is slow
    assert lateness.patience_s([1]) == pytest.approx(0.016 if slow else NOT_SLOW_S)


def test_one_that_is_in_time_now_and_then_holds_up_the_others_seldom() -> None:
    lateness = LatenessTracker(Deadline(4.0, 0.05, 10.0))
    held_up = 0
    for round_id in range(90):
        held_up += not lateness.is_slow(2) and round_id % 3 != 0
        lateness.committed((0, 1, 2), (0, 1, 2), (0, 1, 2) if round_id % 3 == 0 else (0, 1))
    assert held_up <= 12
    for _ in range(AMENDS_ROUNDS):
        lateness.committed((0, 1, 2), (0, 1, 2), ())  # a round that is lost tells nothing
        lateness.committed((0, 1, 2), (0, 1, 2), (0, 1, 2))
        lateness.committed((0, 1, 2), (0, 1, 2), (0, 1, 2))
    assert not lateness.is_slow(2)


def test_an_update_that_is_not_finite_never_reaches_the_rule() -> None:
    table = RollingTable(4)
    table.contribute(0, 1, 2)
    bad = Contributed(0, 4, (vector(float("nan")),))
    table.offer(3, bad)
    table.deliver()
    table.assert_one_history(1)
    assert [c.peer for c in table.made[0].contributors] == [0, 1, 2]
    assert [(r.peer, r.reason) for r in table.made[0].rejected] == [(3, "non_finite")]


@pytest.mark.parametrize(("peers", "f"), [(5, 1), (4, 1), (3, 0)])
def test_one_without_numbers_is_one_of_f_only_where_the_others_are_too_few(peers: int, f: int):
    """An honest model may overflow: then the liar is among the others."""
    table = RollingTable(peers, f=1, updates_for=(1, 3))
    table.contribute(*range(peers - 1))
    bad = Contributed(0, 4, (vector(float("nan")),))
    last = peers - 1
    table.offer(last, bad)
    table.deliver()
    table.assert_one_history(1)
    assert [ask.f for ask in table.asked] == [f]


def test_a_round_without_samples_changes_nothing_but_counts() -> None:
    table = RollingTable(3)
    table.play(samples=0)
    assert list(table.applied) == [[(0, b"")]] * 3
    assert set(table.at) == {1}


def test_one_that_missed_a_commit_asks_for_it() -> None:
    table = RollingTable(4)
    server = table.order()[0]
    unlucky = next(i for i in range(4) if i != server)
    table.lose = lambda sender, to, message: (
        isinstance(message, Commit) and to == unlucky and message.round_id == 0
    )
    table.play()
    assert table.peers[unlucky].round_id == 0
    table.lose = lambda sender, to, message: False
    for _ in range(3):
        table.contribute(*[i for i in range(4) if table.peers[i].round_id > 0])
        table.pass_time(NOT_SLOW_S + 0.1)
    assert table.peers[unlucky].round_id == table.peers[server].round_id >= 1
    assert any(isinstance(message, CommitRequest) for _, _, message in table.sent)


def test_who_begins_a_round_late_says_how_long_its_steps_took_and_not_how_late_it_was() -> None:
    """Else a peer that is back has others think that rounds take ten times as long."""
    table = RollingTable(3)
    table.pass_time(4.0)
    steps = {0: ((2, 20), 200_000), 1: ((20, 20), 2_000_000), 2: ((20, 20), 0)}
    for peer, (taken, lasted_us) in steps.items():
        given = Contributed(0, 4, (vector(1.0),), steps=taken, lasted_us=lasted_us)
        table.offer(peer, given)
    table.deliver()
    took = {each.peer: each.took_us for each in table.made[0].contributors}
    assert took == {0: 2_000_000, 1: 2_000_000, 2: 4_000_000}


def lost_track(peer: RollingRounds) -> LostTrack:
    found = peer.lag_detector.lost_track
    assert found is not None
    return found


def test_one_that_is_told_that_the_commits_are_not_kept_asks_for_the_state_and_not_again() -> None:
    """Whoever has taken over a state keeps no earlier commits. Seed 407 with a median: asked 50
    times a second for 18 s."""
    table = RollingTable(4)
    server = table.order()[0]
    unlucky = next(i for i in range(4) if i != server)
    table.lose = lambda sender, to, message: isinstance(message, Commit) and to == unlucky
    for _ in range(4):
        table.contribute(
            *[i for i in range(4) if table.peers[i].round_id > 0 or len(table.sent) == 0]
        )
        table.pass_time(NOT_SLOW_S + 0.1)
    late = table.peers[unlucky]
    assert late.round_id == 0
    ahead = max(peer.round_id for peer in table.peers)
    assert ahead >= 2
    for peer in table.peers:
        peer.log.clear()
    asked = len(table.sent)
    notice = NotServing(LINEAGE, 0, 0, 0, ahead, b"h" * 16)
    table.receive(unlucky, server, notice)
    assert late.lag_detector.lost_track is None, "it has not been asked for commits yet"
    table.pass_time(1.0)
    assert sum(isinstance(message, CommitRequest) for _, _, message in table.sent[asked:]) == 1
    assert "are not kept" in lost_track(late).reason


def test_one_too_far_behind_for_the_log_asks_for_the_state() -> None:
    table = RollingTable(3)
    late = table.peers[2]
    notice = NotServing(LINEAGE, 0, 0, 0, 1000, b"h" * 16)
    late.on_message(Received(0, 1, notice), table.now)
    assert lost_track(late).donor == 0


def test_one_liar_who_is_far_ahead_does_not_make_a_peer_leave_its_rounds_and_two_sayers_do():
    table = RollingTable(5, f=1)
    peer = table.peers[2]
    far = NotServing(LINEAGE, 0, 0, 0, 10**9, b"h" * 16)
    for _ in range(3):
        peer.on_message(Received(0, 1, far), table.now)
    peer.on_progress(0, 10**9, table.now)
    assert peer.lag_detector.lost_track is None, "one peer says so"
    peer.on_message(Received(4, 1, NotServing(LINEAGE, 0, 0, 0, 1000, b"h" * 16)), table.now)
    assert peer.lag_detector.lost_track is not None


def test_one_liar_on_a_branch_of_its_own_draws_nobody_over_and_two_peers_do() -> None:
    """Of equals the lower hash wins, which a liar chooses."""
    table = RollingTable(5, f=1)
    peer = table.peers[2]
    assert peer.lag_detector.record_branch(0, b"\0" * 16, table.now)
    assert peer.lag_detector.lost_track is None
    assert peer.lag_detector.record_branch(1, b"\0" * 16, table.now)
    assert peer.lag_detector.lost_track is not None


@pytest.mark.parametrize("answer", ["not kept", "another branch"])
def test_the_answer_of_one_who_was_asked_for_commits_is_not_enough_while_the_others_are_here(
    answer: str,
) -> None:
    table = RollingTable(5, f=1)
    peer = table.peers[2]

    def answers(sender: int) -> None:
        if answer == "not kept":
            peer.on_message(
                Received(sender, 1, NotServing(LINEAGE, 0, 0, 0, 5, b"h" * 16)), table.now
            )
        else:
            commit = a_commit(sender, b"their branch ...", n=5)
            peer.on_message(Received(sender, 1, commit), table.now)

    peer.on_progress(0, 5, table.now)
    peer.lag_detector.still_behind(CatchUpOverdue(0, 0), table.now)
    answers(0)
    assert peer.lag_detector.lost_track is None
    peer.on_progress(1, 5, table.now)
    peer.lag_detector.still_behind(CatchUpOverdue(0, 1), table.now)
    answers(1)
    assert peer.lag_detector.lost_track is not None


@pytest.mark.parametrize("turn", [1, 5])
def test_a_lone_peer_on_another_branch_hears_so_from_all_at_once_also_when_it_serves_itself(
    turn: int,
) -> None:
    """Real run: three of eight had to say so. One that had taken a lying server's result was told
    by two and was the third server in the order; nobody answered what it asked then, and all waited
    7 s for its update."""
    table = RollingTable(8, f=2)
    other = table.peers[table.order()[turn]]
    other.replicated.lineage.restart(0, b"another branch!!")
    other.present.parent = other.chain
    table.play(other.local)
    table.pass_time(0.1)
    assert other.lag_detector.lost_track is not None


def test_a_larger_part_that_waits_changes_over_to_the_branch_that_goes_on() -> None:
    """Simulation seed 2101: four of nine waited on one branch, three of the five that had gone on
    were left on the other."""
    table = RollingTable(9)
    for peer in table.peers[:4]:
        peer.replicated.lineage.restart(0, b"another branch!!")
    waiting = table.peers[0]
    for mate in (1, 2, 3):
        assert not waiting.lag_detector.record_branch(mate, b"another branch!!", table.now)
    commit = a_commit(4, b"their branch ...", n=9)
    assert waiting.lag_detector.record_commit_branch(5, commit, table.now)
    assert waiting.lag_detector.lost_track is None, "it was not asked for that"
    waiting.lag_detector.still_behind(CatchUpOverdue(0, 4), 0.0)
    assert waiting.lag_detector.record_commit_branch(4, commit, table.now)
    assert lost_track(waiting).donor == 4


def test_one_that_has_left_its_round_asks_for_what_it_lacks_as_its_attempts_allow() -> None:
    """It may return to that round, and would not take a commit of an earlier attempt."""
    table = RollingTable(4, shards=3)
    table.lose = lambda sender, to, message: (
        to == 3 and isinstance(message, Commit) and message.shard != 0
    )
    table.play()
    one = table.peers[3]
    assert [shard.commit is not None for shard in one.shards] == [True, False, False]
    one.shards[2].attempt = 2
    table.run(3, one.stop(table.now))
    (asked,) = one.on_timer(CatchUpOverdue(0, 0), table.now + 1.0)
    assert asked == Send(0, CommitRequest(LINEAGE, 0, 2, (1, 2)))


def test_one_that_is_out_of_the_rounds_says_at_once_that_it_does_not_serve() -> None:
    """Simulation seed 55: a server that took over a state kept the updates that it was sent, and
    dropped them with its own."""
    table = RollingTable(4)
    server = table.order()[0]
    table.contribute()
    table.pass_time(0.1)
    out, other = table.peers[server], next(i for i in range(4) if i != server)
    out.stop(table.now)
    update = Update(LINEAGE, 5, 0, 0, b"p" * 16, 4, None)
    [answer] = out.on_message(Received(other, 1, update, vector(1.0)), table.now)
    assert isinstance(answer, Send)
    assert isinstance(answer.message, NotServing)
    assert (answer.message.asked_round, answer.message.attempt) == (5, 0)
    assert not out.future_buffer.pop_round(5)


def test_a_result_that_a_peer_may_not_take_is_handed_on_only_if_it_would() -> None:
    """Real run: a result a thousand times too long came when all had promised to take nothing of
    its attempt. They handed it to the next server, which counted them as ones who had taken it, and
    took it, too: the model was lost in round 0."""
    table = RollingTable(8, f=2)
    server, second, one, other = table.order()[:4]
    content = vector(1.0, digest=True)
    for local, product, handed in ((one, -0.9, []), (other, 0.9, [second])):
        peer = table.peers[local]
        peer.shards[0].attempt = 1
        commit = commit_for(table, local, loss=0.5)
        effects = peer.on_message(
            Received(server, 1, commit, content, ResultSimilarity(1.0, 1.0, product)), table.now
        )
        assert [
            effect.peer
            for effect in effects
            if isinstance(effect, Send) and effect.message == commit
        ] == handed
        assert peer.round_id == 0


def test_progress_told_in_an_ack_shows_a_missed_round() -> None:
    table = RollingTable(3)
    server = table.order()[0]
    unlucky = next(i for i in range(3) if i != server)
    table.lose = lambda sender, to, message: to == unlucky
    table.play()
    assert table.peers[unlucky].round_id == 0
    table.lose = lambda sender, to, message: False
    table.run(unlucky, table.peers[unlucky].on_progress(server, 1, table.now))
    table.pass_time(0.1)
    assert table.peers[unlucky].round_id == 1


def test_an_unasked_query_of_a_peer_that_does_not_serve_moves_nobody() -> None:
    table = RollingTable(4)
    table.lose = lambda sender, to, message: True
    order = table.order()
    stranger, victim = order[3], order[2]
    table.contribute(victim)
    before = len(table.sent)
    table.receive(victim, stranger, UpdateRequest(LINEAGE, 0, 0, 1, table.peers[victim].chain))
    assert len(table.sent) == before


def test_messages_of_another_lineage_are_ignored() -> None:
    table = RollingTable(3)
    update = Update(b"elsewhere", 0, 0, 0, table.peers[0].chain, 4, None)
    assert table.peers[0].on_message(Received(1, 1, update, vector(1.0)), table.now) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"server": 99},
        {"made_at": 1},
        {"roster": ()},
        {"roster": (0, 0, 1)},
        {"roster": (1, 0)},
        {"roster": (0, 77)},
        {"digest": b"x" * 16},
        {"contributors": (Contribution(1, 4, 0.5, 1.0), Contribution(1, 4, 0.5, 1.0))},
        {"contributors": (Contribution(2, 4, 0.5, 1.0), Contribution(0, 4, 0.5, 1.0))},
        {"contributors": (Contribution(77, 4, 1.0, 1.0),)},
        {"contributors": (Contribution(1, 0, 1.0, 1.0),)},
        {"contributors": (Contribution(1, 4, 1.0, 1e200),)},
        {"contributors": (Contribution(1, 4, 1.0, -1.0),)},
        {"contributors": (Contribution(1, 4, 1.0, 1.0),), "digest": b""},
        {
            "contributors": (Contribution(1, 4, 1.0, 1.0),),
            "rejected": (Rejection(1, "non_finite"),),
        },
        {"rejected": (Rejection(77, "non_finite"),)},
    ],
)
def test_a_commit_that_is_well_formed_and_wrong_is_refused(changes: dict[str, object]) -> None:
    table = RollingTable(4)
    table.lose = lambda sender, to, message: True
    server = table.order()[0]
    victim = next(i for i in range(4) if i != server)
    wrong = commit_for(table, victim, **changes)
    table.receive(victim, server, wrong, vector(1.0, True))
    assert table.peers[victim].round_id == 0
    assert [report.event for report in table.reports[victim]] == ["bad_commit"]
    right = commit_for(table, victim)
    table.receive(victim, server, right, vector(1.0, True))
    assert table.peers[victim].round_id == 1


def test_nobody_commits_a_round_that_it_does_not_serve() -> None:
    table = RollingTable(4)
    order = table.order()
    intruder, victim = order[3], order[2]
    table.lose = lambda sender, to, message: True
    forged = commit_for(table, victim, server=intruder)
    table.receive(victim, intruder, forged, vector(1.0, True))
    assert table.peers[victim].round_id == 0


def test_a_huge_loss_of_one_peer_freezes_nobody() -> None:
    table = RollingTable(3)
    for i in range(3):
        loss = 1.7e308 if i else 0.5
        table.offer(i, Contributed(0, 32, (vector(1.0 + i),), loss))
    table.deliver()
    table.assert_one_history(1)
    for made in table.made:
        assert made.loss is not None, "one peer's loss hid the others'"
        assert decode(encode(Envelope(b"run-id!!", 0, 0, made))).message == made


def test_a_rule_that_explains_itself_at_length_still_fits_a_message() -> None:
    table = RollingTable(3)
    table.held_back = []
    table.play()
    i, ask = table.held_back[0]
    table.aggregated(i, Aggregated(ask.ticket, None, reason="why " * 500))
    table.deliver()
    assert decode(encode(Envelope(b"run-id!!", 0, 0, table.made[0]))).message == table.made[0]


@pytest.mark.parametrize("roster", [[], [-1], [2**70], [1, 0], [0, 0], "012", None, [0.5]])
def test_a_donors_roster_that_is_none_is_not_adopted(roster: object) -> None:
    peer = RollingTable(3).peers[0]
    with pytest.raises(ValueError, match="roster"):
        peer.adopt(
            7, b"h" * 16, (roster, peer.replicated.trust.pack(), peer.replicated.cursor.pack())
        )
    assert peer.roster.peers == (0, 1, 2)


def test_a_peer_that_leaves_a_round_and_comes_back_to_it_keeps_its_promise() -> None:
    """It may have moved to attempt 1 there, and sent an update under that promise, before it took
    another's state and lost it."""
    table = RollingTable(4)
    table.lose = lambda sender, to, message: True
    order = table.order()
    one = order[2]
    peer = table.peers[one]
    before = peer.snapshot(0)
    assert before is not None
    table.contribute(one)
    table.mark_skipped(one, order[0], "link down")
    assert [m.attempt for _, _, m in table.sent if isinstance(m, Update)] == [0, 1]
    table.views[one].skipped.clear()
    for round_id, (chain, snapshot) in ((7, (b"another branch..", before[1])), (0, before)):
        table.run(one, peer.stop(table.now))
        peer.adopt(round_id, chain, snapshot)
        table.run(one, peer.start(table.now))
        table.contribute(one)
    assert [m.attempt for _, _, m in table.sent if isinstance(m, Update) and m.round_id == 0] == [
        0,
        1,
        1,
    ]


def test_a_commit_that_may_not_be_taken_is_passed_on_once_in_an_attempt() -> None:
    """Simulation seed cuts/1: two peers at attempts 7 and 10, each thinking that the other serves,
    filled the network with it."""
    shard, commit = ShardRound(0, (0, 1, 2)), a_commit(server=2, digest=b"x" * 16)
    shard.attempt = 3
    assert [shard.mark_forwarded(commit) for _ in range(3)] == [True, False, False]
    assert shard.mark_forwarded(a_commit(server=1, digest=b"y" * 16))
    shard.attempt = 4
    assert [shard.mark_forwarded(commit) for _ in range(3)] == [True, False, False]


def told_of_results(
    *handed: tuple[int, dict[str, int]], is_ahead: bool = False
) -> list[tuple[int, int]]:
    """Whom a peer at attempt 1 tells of results, by their place in the order, and of which attempt.

    Args:
        handed: By whom, by its place, and what is particular about the commit.
        is_ahead: The server of attempt 1 has said that it is in a later round.
    """
    table = RollingTable(5, f=1)
    table.lose = lambda sender, to, message: True
    order = table.order()
    one = order[3]
    peer = table.peers[one]
    table.contribute(one)
    table.mark_skipped(one, order[0], "link down")
    if is_ahead:
        table.run(one, peer.lag_detector.behind(order[1], 1, table.now))
    for sender, changes in handed:
        server = order[changes["made_at"]]
        result = commit_for(table, one, server=server, **changes)
        event = Received(order[sender], 1, result, vector(1.0, True))
        table.run(one, peer.on_message(event, table.now))
    assert peer.round_id == 1
    return [(order.index(to), m.made_at) for _, to, m in table.sent if isinstance(m, Commit)]


EARLIER = {"attempt": 1, "made_at": 0}  # handed on to one that is at attempt 1


def test_who_takes_a_result_of_an_earlier_attempt_tells_the_server_of_its_own() -> None:
    """Simulation: a liar keeps its result until the next server collects updates, and shows it to
    the others. That one would make a second."""
    assert told_of_results((0, EARLIER)) == [(1, 0)]
    assert told_of_results((2, EARLIER)) == [(1, 0)]


def test_a_server_that_has_an_earlier_result_itself_is_not_told_of_it() -> None:
    assert told_of_results((1, EARLIER)) == []
    assert told_of_results((0, EARLIER), is_ahead=True) == []
    assert told_of_results((2, {"attempt": 1, "made_at": 1})) == [], "it has made that one"


def test_a_server_is_told_of_a_result_once_though_it_comes_again_and_is_taken_then() -> None:
    assert told_of_results((2, {"attempt": 0, "made_at": 0}), (2, EARLIER)) == [(1, 0)]


def test_nobody_makes_us_remember_commits_without_end() -> None:
    shard = ShardRound(0, (0, 1, 2), attempt=3)
    passed = [
        shard.mark_forwarded(a_commit(server=2, digest=number.to_bytes(16, "big")))
        for number in range(1000)
    ]
    assert passed.count(True) == FORWARDED_MAX


def test_the_trainer_is_told_what_it_will_probably_read_next() -> None:
    rounds = RollingTable(3).peers[1]
    told, go = rounds.configure_data(120, 10, 2)
    assert told == Report(
        "batch", {"round": 0, "policy": "fixed_local", "peers": 3, "local": 10, "samples": 30}
    )
    assert isinstance(go, StartRound)
    # Each round begins one peer later.
    assert (go.samples.ranges, go.samples.coming) == (
        ((10, 20),),
        ((0, ((30, 40),)), (0, ((80, 90),))),
    )


def test_a_commit_repeats_how_long_updates_took() -> None:
    table = RollingTable(3)
    table.now += 0.25
    table.contribute(0)
    table.now += 0.5
    table.play(1, 2)
    (commit,) = table.made[:1]
    assert [c.took_us for c in commit.contributors] == [250_000, 750_000, 750_000]


def test_who_has_compiled_says_of_no_round_how_long_it_took() -> None:
    """So its batches never shrink, whatever it took."""
    table = RollingTable(3)
    table.now += 0.25
    table.contribute(0, 1)
    event = Contributed(0, 4, (vector(1.0),), compiled=True)
    table.offer(2, event)
    table.deliver()
    assert [c.took_us for c in table.made[0].contributors] == [250_000, 250_000, 0]


def test_one_that_compiles_is_waited_for_until_its_credit_is_spent() -> None:
    table = RollingTable(3)
    compiles = table.order()[1]
    began = table.now
    for peer in table.order():
        if peer != compiles:
            table.contribute(peer)
    table.deliver()
    while not table.made and table.now < began + 2 * COMPILING_MAX_S:
        table.run(compiles, table.peers[compiles].on_compiling(table.now))
        table.pass_time(1.0)
    assert table.at == [1, 1, 1]
    assert COMPILING_MAX_S <= table.now - began <= COMPILING_MAX_S + RoundSettings().round_timeout_s
    assert compiles not in {c.peer for c in table.made[0].contributors}


# --- kinds of steps -------------------------------------------------------------------------------


def contribute_kinds(table: RollingTable, kinds: dict[int, int], samples: int = 4) -> Commit:
    """A round in which each peer is at a step of its own kind."""
    for i, kind in kinds.items():
        rounds = table.peers[i]
        payloads = (vector(1.0 + i),) if samples else ()
        table.offer(i, Contributed(rounds.round_id, samples, payloads, kind=kind))
    table.deliver()
    return table.made[-1]


@pytest.mark.parametrize(
    ("kinds", "taken", "kind"),
    [
        ({0: 2, 1: 2, 2: 2, 3: 5}, [0, 1, 2], 2),
        ({0: 5, 1: 2, 2: 5, 3: 5}, [0, 2, 3], 5),
        ({0: 5, 1: 2, 2: 5, 3: 2}, [1, 3], 2),  # as many: a step of the run
        ({0: 6, 1: 2, 2: 6, 3: 2}, [1, 3], 2),
    ],
)
def test_updates_of_one_kind_of_step_are_aggregated(
    kinds: dict[int, int], taken: list[int], kind: int
) -> None:
    table = RollingTable(4)
    commit = contribute_kinds(table, kinds)
    assert ([c.peer for c in commit.contributors], commit.kind) == (taken, kind)
    steps = int(not is_further(kind))
    assert [peer.round_id - peer.replicated.collectives for peer in table.peers] == 4 * [steps]


def test_a_further_step_uses_up_no_samples() -> None:
    table = RollingTable(3)
    for rounds in table.peers:
        rounds.configure_data(1000, 10)
    slices = [table.peers[0].replicated.slice_of(peer) for peer in range(3)]
    contribute_kinds(table, dict.fromkeys(range(3), 5))
    contribute_kinds(table, dict.fromkeys(range(3), 5), samples=0)  # lost
    assert [table.peers[0].replicated.slice_of(peer) for peer in range(3)] == slices
    contribute_kinds(table, dict.fromkeys(range(3), 2))
    assert [table.peers[0].replicated.slice_of(peer) for peer in range(3)] != slices


def test_a_rule_is_given_the_last_aggregate_of_the_same_kind() -> None:
    table = RollingTable(3)
    made: dict[int, bytes] = {}
    for round_id, kind in enumerate((2, 5, 2, 2, 5, 8, 2)):
        for i, rounds in enumerate(table.peers):
            event = Contributed(rounds.round_id, 4, (vector(10.0 * round_id + i),), kind=kind)
            table.offer(i, event)
        table.deliver()
        previous = table.asked[-1].previous
        assert (previous and previous.digest) == made.get(kind)
        made[kind] = table.made[-1].digest
    assert len(set(made.values())) == 3


def test_one_that_alone_has_samples_does_not_choose_the_kind_of_step() -> None:
    """A liar with a kind of its own would hold up all others for ever."""
    table = RollingTable(4, f=1, updates_for=(1, 3))
    for i in range(4):
        kind, samples = (7, 4) if i == 3 else (2, 0)
        table.offer(i, Contributed(0, samples, (vector(1.0),) if samples else (), kind=kind))
    table.deliver()
    assert (table.made[-1].kind, table.made[-1].digest) == (2, b"")


def test_shards_of_steps_of_different_kinds_change_nothing() -> None:
    """Each server of a shard chooses by the updates that have come to it."""
    table = RollingTable(4, shards=2)
    other = vector(5.0)

    def lose(sender: int, to: int, message: Message) -> bool:
        return isinstance(message, Update) and message.shard == (1 if sender < 2 else 0)

    table.lose = lose
    for i, rounds in enumerate(table.peers):
        table.offer(i, Contributed(rounds.round_id, 4, (other, other), kind=2 if i < 2 else 5))
    table.pass_time(30.0)
    kinds = {commit.shard: commit.kind for commit in table.made if commit.round_id == 0}
    assert set(kinds.values()) == {2, 5}
    assert [content for round_id, content in table.applied[0] if round_id == 0] == [b""]


def test_pauses_between_requests_for_commits_grow_while_their_results_are_rejected() -> None:
    table = RollingTable(3)
    table.lose = lambda sender, to, message: isinstance(message, CommitRequest)
    for _ in range(200):
        table.peers[2].lag_detector.on_refusal()
        table.run(2, table.peers[2].on_progress(0, 3, table.now))
        table.pass_time(0.01)
    asked = [message for _, _, message in table.sent if isinstance(message, CommitRequest)]
    assert 2 <= len(asked) <= 30


def test_a_peer_that_has_changed_branches_in_vain_changes_only_to_a_certainly_larger_branch():
    detector = RollingTable(5).peers[2].lag_detector
    for again in (False, True):
        assert detector.record_branch(0, b"\0" * 16, 100.0)
        assert (detector.lost_track is None) is again
        assert bool([*detector.requests.drain()]) is not again


def test_after_a_fork_a_peer_reports_the_result_that_it_received_from_the_server() -> None:
    table = RollingTable(5, f=1)
    table.play()
    server = table.made[0].server
    peer = table.peers[(server + 1) % 5]
    assert peer.participant.result_validator.accusations() == ()
    peer.lag_detector.forked[0] = None
    (stated,) = peer.participant.result_validator.accusations()
    assert (stated.peer, stated.round_id) == (server, 0)
