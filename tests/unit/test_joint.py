"""Rounds whose shards decide together, message by message: what is measured, decided, combined, and
what becomes of it if not."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations_with_replacement
from typing import Any

import pytest
from test_rolling import RollingTable, vector

from gossip.core.events import Aggregate, Aggregated, Contributed, Received, ShardStatistics
from gossip.core.messages import (
    ROUND_MAX,
    Commit,
    Message,
    PartialOverdue,
    PartialStatistics,
    Update,
    UpdateRequest,
)
from gossip.core.rounds.cross_shard import points_of
from gossip.core.settings import STATISTICS_REPLIES

PEERS, SHARDS = 7, 3


def measure(values: list[float]) -> bytes:
    """Inner products of numbers, in the form of real ones, without points."""
    triangle = [a * b for a, b in combinations_with_replacement(values, 2)]
    return struct.pack(f"<{2 + len(triangle)}d", 0.0, 0.0, *triangle)


def squares(part: ShardStatistics) -> dict[int, float]:
    count = len(part.peers)
    numbers = struct.unpack(f"<{len(part.statistics) // 8}d", part.statistics)[2:]
    places = [sum(count - row for row in range(at)) for at in range(count)]
    return {peer: numbers[place] for peer, place in zip(part.peers, places, strict=True)}


class CrossShardTable(RollingTable):
    """Its rule takes the update with the least sum of squares over all shards, whole."""

    def __init__(self, n: int = PEERS, shards: int = SHARDS, f: int = 0) -> None:
        self.steps: list[tuple[int, Aggregate]] = []
        super().__init__(n, shards, f=f, cross_shard=True)

    def answer(self, i: int, ask: Aggregate) -> None:
        self.steps.append((i, ask))
        if ask.step == "whole" or not ask.rows:
            super().answer(i, ask)
            return
        here = {row.peer: row.payload.data for row in ask.rows}
        if ask.step == "measure":
            self.aggregated(
                i, Aggregated(ask.ticket, None, statistics=measure(list(here.values())))
            )
            return
        if ask.step == "decide":
            total = {peer: sum(squares(part)[peer] for part in ask.parts) for peer in ask.peers}
            best = min(total, key=lambda peer: total[peer])
            weights = tuple(float(peer == best) for peer in ask.peers)
            result = vector(here[best], digest=True)
            self.aggregated(
                i, Aggregated(ask.ticket, result, weights, (1.0,) * len(weights), decision=weights)
            )
            return
        result = vector(
            sum(weight * value for weight, value in zip(ask.decision, here.values(), strict=True)),
            digest=True,
        )
        self.aggregated(i, Aggregated(ask.ticket, result))

    def offer(self, values: Callable[[int, int], float], *who: int) -> None:
        """``values(peer, shard)`` are what a peer comes with."""
        for i in who or [i for i in range(len(self.peers)) if i not in self.crashed]:
            payloads = tuple(
                vector(values(i, shard)) for shard in range(len(self.peers[i].shard_bytes))
            )
            self.run(
                i,
                self.peers[i].on_contributed(
                    Contributed(self.peers[i].round_id, 4, payloads), self.now
                ),
            )

    def made_by_step(self, step: str) -> list[tuple[int, Aggregate]]:
        return [(i, ask) for i, ask in self.steps if ask.step == step]

    def commits(self, round_id: int) -> list[Commit]:
        held = self.alive[0].log.get(round_id)
        assert held is not None
        return [commit for commit, _ in held]

    def servers(self, attempt: int = 0) -> list[int]:
        return [self.order(shard)[attempt] for shard in range(SHARDS)]


def apart(n: int = PEERS) -> CrossShardTable:
    """A table at whose round the first two servers of each shard are all different,
    so that one can fail alone."""
    table = CrossShardTable(n)
    for _ in range(500):
        servers = table.servers()
        if len(set(servers)) == SHARDS and not set(servers) & set(table.servers(1)):
            return table
        table.play()
    raise AssertionError("no such round")


def uneven(peer: int, shard: int) -> float:
    """Peer 2 is the best of all; in each shard somebody else is."""
    return 2.0 if peer == 2 else 1.0 if peer == shard + 3 else 9.0 + peer


def test_all_shards_are_combined_by_one_decision() -> None:
    table = CrossShardTable()
    for number in range(4):
        table.offer(uneven)
        table.deliver()
        commits = table.commits(number)
        assert [commit.digest for commit in commits] == [vector(2.0, digest=True).digest] * SHARDS
        assert {commit.contributors for commit in commits} == {commits[0].contributors}
        assert {c.peer: c.weight for c in commits[0].contributors} == {
            peer: float(peer == 2) for peer in range(PEERS)
        }
    table.assert_one_history(4)
    assert len(table.made_by_step("measure")) == 4 * SHARDS
    assert len(table.made_by_step("decide")) == 4
    assert len(table.made_by_step("combine")) == 4 * (SHARDS - 1)


def test_one_shard_is_aggregated_in_one_step() -> None:
    table = CrossShardTable(5, shards=1)
    table.play()
    assert [ask.step for _, ask in table.steps] == ["whole"]
    assert not [message for _, _, message in table.sent if isinstance(message, PartialStatistics)]


def test_only_what_has_come_to_all_servers_counts() -> None:
    table = apart()
    number, (_, second, third) = table.peers[0].round_id, table.servers()
    absent = next(peer for peer in range(PEERS) if peer not in table.servers())
    other = next(peer for peer in range(PEERS) if peer not in (*table.servers(), absent))

    def lose(sender: int, to: int, message: Message) -> bool:
        here = isinstance(message, Update) and message.attempt == 0
        return here and ((sender, to) == (absent, second) or (sender, to) == (other, third))

    table.lose = lose
    table.offer(lambda peer, shard: float(peer + 1))
    table.pass_time(8.0)
    commits = table.commits(number)
    assert {tuple(c.peer for c in commit.contributors) for commit in commits} == {
        tuple(peer for peer in range(PEERS) if peer not in (absent, other))
    }
    table.assert_one_history(number + 1)


def test_a_part_that_was_lost_is_asked_for_and_costs_no_attempt() -> None:
    table = apart()
    number, (_, second, _) = table.peers[0].round_id, table.servers()
    lost: list[Message] = []

    def lose(sender: int, to: int, message: Message) -> bool:
        lost.extend(
            [message]
            if isinstance(message, PartialStatistics) and sender == second and not lost
            else []
        )
        return bool(lost) and lost[0] is message

    table.lose = lose
    table.offer(uneven)
    table.pass_time(2.0)
    assert lost
    assert [commit.made_at for commit in table.commits(number)] == [0] * SHARDS
    assert not [
        report for reports in table.reports for report in reports if report.event == "attempt"
    ]


def test_a_server_that_dies_with_what_was_decided_on_costs_the_round_and_not_the_next() -> None:
    table = apart()
    number, (_, _, victim) = table.peers[0].round_id, table.servers()
    table.lose = lambda sender, to, message: isinstance(message, Commit) and sender == victim
    table.offer(uneven)
    table.deliver()
    table.crash(victim)
    table.pass_time(3.0)
    commits = table.commits(number)
    assert [bool(commit.digest) for commit in commits] == [True, True, False]
    assert "lost with a server" in commits[2].reason
    assert table.applied[table.servers()[0]][number] == (number, b""), (
        "a part of a decision is applied"
    )
    table.lose = lambda sender, to, message: False
    table.contribute()
    table.pass_time(3.0)
    table.assert_one_history(number + 2)


def handed_on(change: Callable[[Any], None]) -> tuple[CrossShardTable, int]:
    """Have a peer hand a shard on after the decision. ``change``: changes that peer before.
    Return the table and the number of the round."""
    table = apart()
    number, (_, _, late) = table.peers[0].round_id, table.servers()
    table.lose = lambda sender, to, message: (
        isinstance(message, Commit) and to == late and message.attempt == 0
    )
    table.offer(uneven)
    table.deliver()
    attacker = next(
        peer for peer in range(PEERS) if peer not in (*table.servers(), *table.servers(1))
    )
    change(table.peers[attacker])
    table.run(
        attacker,
        table.peers[attacker].participant.advance(
            table.peers[attacker].shards[2], "a whim", table.now
        ),
    )
    table.pass_time(25.0)
    return table, number


def test_the_same_updates_measured_again_are_combined_by_the_decision() -> None:
    """Whoever has a shard handed on after the decision gains nothing,
    and the round loses nothing."""
    table, number = handed_on(lambda peer: None)
    assert table.commits(number)[2].made_at == 1
    assert all(commit.digest for commit in table.commits(number))
    table.assert_one_history(number + 1)


def test_another_update_for_the_server_of_a_later_attempt_is_not_counted_by_the_old_decision():
    def change(peer: Any) -> None:
        own = peer.present.own
        peer.present.own = replace(own, payloads=(*own.payloads[:2], vector(1e30)))

    table, number = handed_on(change)
    assert not table.commits(number)[2].digest
    assert not [
        ask
        for _, ask in table.made_by_step("combine")
        if any(row.payload.data == 1e30 for row in ask.rows)
    ]


def test_a_decision_that_is_lost_with_all_who_had_it_is_not_made_again() -> None:
    table = apart()
    number, (first, _, third) = table.peers[0].round_id, table.servers()

    def lose(sender: int, to: int, message: Message) -> bool:
        return (
            isinstance(message, Commit)
            and message.shard == 0
            and (sender, to) != (first, third)
            and sender in (first, third)
        )

    table.lose = lose
    table.offer(uneven)
    table.deliver()
    assert [shard.commit is not None for shard in table.alive[0].shards] == [False, False, True]
    table.crash(first)
    table.crash(third)
    table.pass_time(25.0)
    first_one, _, third_one = table.commits(number)
    assert third_one.digest
    assert not first_one.digest
    assert "decision that is lost" in first_one.reason
    table.assert_one_history(number + 1)


def test_whoever_keeps_back_what_it_has_measured_is_handed_on_in_time() -> None:
    table = apart()
    began, number = table.now, table.peers[0].round_id
    _, attacker, third = table.servers()
    table.lose = lambda sender, to, message: (
        isinstance(message, PartialStatistics) and sender == attacker
    )
    table.offer(uneven)
    timeout_s = max(peer.deadline.round_timeout_s() for peer in table.peers)
    while table.peers[0].round_id == number and table.now < began + 30.0:
        table.pass_time(0.1)
    assert table.now - began <= 2 * timeout_s
    commits = table.commits(number)
    assert commits[0].made_at == 0, "the server of the first shard is not to blame"
    assert (commits[1].made_at, commits[2].made_at, commits[2].server) == (1, 0, third)
    table.assert_one_history(number + 1)


def test_two_that_keep_back_what_they_have_measured_one_after_the_other_are_both_handed_on():
    table = apart()
    number, attackers = table.peers[0].round_id, {table.order(1)[0], table.order(1)[1]}
    table.lose = lambda sender, to, message: (
        isinstance(message, PartialStatistics) and sender in attackers
    )
    table.offer(uneven)
    table.pass_time(60.0)
    assert table.commits(number)[1].made_at >= 2
    table.assert_one_history(number + 1)


def deciding() -> tuple[CrossShardTable, int, int, int, PartialStatistics]:
    """A table where the last part is on its way to the server of the first shard: from whom,
    and what it says."""
    table = apart()
    first, second, _ = table.servers()
    kept: list[PartialStatistics] = []

    def lose(sender: int, to: int, message: Message) -> bool:
        kept.extend(
            [message] if isinstance(message, PartialStatistics) and sender == second else []
        )
        return isinstance(message, PartialStatistics) and sender == second

    table.lose = lose
    table.offer(uneven)
    table.deliver()
    table.lose = lambda sender, to, message: False
    return table, first, second, table.peers[0].round_id, kept[0]


NAN, HUGE = struct.pack("<d", math.nan), struct.pack("<d", math.inf)


@pytest.mark.parametrize(
    "forge",
    [
        lambda part: {"statistics": part.statistics[:-8]},
        lambda part: {"statistics": part.statistics[:-1]},
        lambda part: {"statistics": part.statistics + bytes(8)},
        lambda part: {"statistics": b""},
        lambda part: {"statistics": part.statistics[:-8] + NAN},
        lambda part: {"statistics": part.statistics[:-8] + HUGE},
        lambda part: {"contributors": ()},
        lambda part: {"contributors": part.contributors[:-1]},
        lambda part: {"contributors": (*part.contributors[:-1], ROUND_MAX)},
        lambda part: {"contributors": part.contributors[::-1]},
        lambda part: {"contributors": (part.contributors[0],) * len(part.contributors)},
        lambda part: {"parent": b"another"},
        lambda part: {"round_id": part.round_id + 1},
        lambda part: {"shard": 0},
        lambda part: {"shard": SHARDS},
        lambda part: {"shard": ROUND_MAX},
        lambda part: {"attempt": 1},
        lambda part: {"lineage": b"foreign!"},
    ],
)
def test_what_is_no_measure_counts_as_nothing_said(
    forge: Callable[[PartialStatistics], dict[str, object]],
) -> None:
    table, first, second, number, partial = deciding()
    before = len(table.made_by_step("decide"))
    table.mail.append((second, first, replace(partial, **forge(partial)), None))  # type: ignore[arg-type]
    table.deliver()
    assert len(table.made_by_step("decide")) == before, "it decides on that"
    table.mail.append((second, first, partial, None))
    table.deliver()
    assert len(table.made_by_step("decide")) == before + 1
    table.assert_one_history(number + 1)


def test_only_who_serves_a_shard_speaks_for_it_and_does_not_take_it_back() -> None:
    table, first, second, _, partial = deciding()
    stranger = next(peer for peer in range(PEERS) if peer not in (first, second))
    held = table.peers[first].participant.cross_shard._parts.get(1)
    table.run(
        first, table.peers[first].participant.cross_shard.on_message(stranger, partial, table.now)
    )
    assert table.peers[first].participant.cross_shard._parts.get(1) is held is None
    other = replace(partial, statistics=measure([5.0] * len(partial.contributors)))
    table.held_back = []
    table.run(
        first, table.peers[first].participant.cross_shard.on_message(second, partial, table.now)
    )
    table.run(
        first, table.peers[first].participant.cross_shard.on_message(second, other, table.now)
    )
    assert (
        table.peers[first].participant.cross_shard._parts[1].part.statistics == partial.statistics
    )


def test_a_liar_cannot_have_servers_handed_on_as_often_as_it_likes() -> None:
    table, first, _, number, partial = deciding()
    victim = next(peer for peer in range(PEERS) if peer not in table.servers())
    rounds = table.peers[victim]
    for attempt in (0, 1, 2, 3, ROUND_MAX):
        where = (rounds.settings.lineage, number, 2, attempt, rounds.chain)
        table.run(
            victim,
            rounds.participant.cross_shard.on_message(
                first, PartialOverdue(*where, 0, True), table.now
            ),
        )
    assert rounds.shards[2].attempt == 1
    where = (rounds.settings.lineage, number, 1, 0, rounds.chain)
    stranger = next(peer for peer in partial.contributors if peer not in (first, victim))
    table.run(
        victim,
        rounds.participant.cross_shard.on_message(
            stranger, PartialOverdue(*where, 0, True), table.now
        ),
    )
    assert rounds.shards[1].attempt == 0, (
        "somebody else than the server of the first shard says what is overdue"
    )


def test_a_liar_is_not_given_the_same_for_ever() -> None:
    table, first, second, number, _ = deciding()
    rounds, given = table.peers[second], 0
    for _ in range(10):
        where = (rounds.settings.lineage, number, 1, 0, rounds.chain)
        given += len(
            rounds.participant.cross_shard.on_message(
                first, PartialOverdue(*where, 0, False), table.now
            )
        )
    assert given == STATISTICS_REPLIES


def test_a_server_about_to_commit_what_was_decided_is_not_moved_on_by_a_query() -> None:
    table = apart()
    number, (_, _, server) = table.peers[0].round_id, table.servers()
    table.offer(uneven)
    while not (isinstance(table.mail[0][2], Commit) and table.mail[0][1] == server):
        sender, to, message, payload = table.mail.popleft()
        table.receive(to, sender, message, payload)
    table.held_back = []  # its rule takes some time
    sender, _, commit, payload = table.mail.popleft()
    table.receive(server, sender, commit, payload)
    assert [ask.step for _, ask in table.held_back] == ["combine"]
    rounds, later = table.peers[server], table.order(2)[1]
    query = UpdateRequest(rounds.settings.lineage, number, 2, 1, rounds.chain)
    assert rounds.on_message(Received(later, 1, query), table.now) == []
    assert rounds.shards[2].attempt == 0


def test_points_are_told_from_updates_by_the_length() -> None:
    for points in range(4):
        assert points_of(measure([1.0] * (5 + points)), 5) == points
    assert points_of(measure([1.0] * 10), 5) is None
    assert points_of(measure([1.0] * 4), 5) is None
    assert points_of(b"", 0) is None
    assert points_of(bytes(8 * 10**4), 139) is None
