"""Whom a server asks for updates: at a later attempt those again who could not give theirs before,
and in its first turn all, where it has come back with another's state."""

from __future__ import annotations

import pytest
from test_rolling import LINEAGE, RollingTable

from gossip.core.events import Effect, Received, Send
from gossip.core.messages import Hello, NotServing, UpdateRequest
from gossip.core.rounds.future_buffer import FutureBuffer
from gossip.core.rounds.rolling import RollingRounds

ROUND = 3


def served(table: RollingTable) -> tuple[RollingRounds, int]:
    """The server of attempt 1 of round ``ROUND``, that has asked all, and one of those."""
    table.lose = lambda sender, to, message: False
    for _ in range(ROUND):
        table.play()
    table.lose = lambda sender, to, message: True
    first, second, other = table.order()[:3]
    table.contribute(second)
    table.views[second].skipped[first] = "gone"
    server = table.peers[second]
    table.notice(second)
    table.pass_time(0.05)
    assert _asked(table, second).count(other) == 1
    return server, other


def _asked(table: RollingTable, server: int) -> list[int]:
    return [
        to
        for sender, to, message in table.sent
        if sender == server and isinstance(message, UpdateRequest)
    ]


def _asks(effects: list[Effect]) -> list[int]:
    return [
        effect.peer
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, UpdateRequest)
    ]


def _hello(round_id: int, chain: bytes) -> Hello:
    return Hello(LINEAGE, b"", b"", round_id, "ready", "", "", chain)


def test_who_had_nothing_to_give_is_asked_again_when_it_is_in_a_round_and_once() -> None:
    table = RollingTable(5)
    server, other = served(table)
    answer = NotServing(LINEAGE, ROUND, 0, 1, 0, b"")
    table.receive(server.local, other, answer)
    assert _asks(server.on_view_change(table.now)) == [], "not whenever anything changes"
    hello = _hello(ROUND, server.chain)
    assert _asks(server.on_hello(other, hello, table.now)) == [other]
    assert _asks(server.on_hello(other, hello, table.now)) == []


def test_who_does_not_serve_since_it_is_elsewhere_is_not_asked_with_each_of_its_hellos() -> None:
    """Each answer drew it back to the branch of who asked (seed 784 of two_results)."""
    table = RollingTable(5)
    server, other = served(table)
    answer = NotServing(LINEAGE, ROUND, 0, 1, ROUND, b"another branch")
    table.receive(server.local, other, answer)
    assert _asks(server.on_hello(other, _hello(ROUND, server.chain), table.now)) == []


def test_what_was_asked_over_a_link_that_broke_is_asked_again() -> None:
    table = RollingTable(5)
    server, other = served(table)
    server.on_disconnect(other)
    assert _asks(server.on_hello(other, _hello(ROUND, server.chain), table.now)) == [other]


@pytest.mark.parametrize(("asked", "refused"), [(90, False), (98, False), (99, True), (89, True)])
def test_one_without_a_round_says_so_when_it_keeps_no_request(asked: int, refused: bool) -> None:
    """It keeps what is of the round that the others are in, and of the next ones."""
    table = RollingTable(5, f=1)
    idle = table.peers[0]
    idle.adopt(ROUND, b"a branch", idle.replicated.first_snapshot())
    idle.stop(table.now)
    for peer, round_id in ((1, 90), (2, 90), (3, 1000)):  # one of them lies
        idle.future_buffer.record_round(peer, round_id)
    query = UpdateRequest(LINEAGE, asked, 0, 1, b"parent")
    effects = idle.on_message(Received(3, 1, query), table.now)
    told = [effect.message for effect in effects if isinstance(effect, Send)]
    assert bool(told) == refused
    assert all(isinstance(message, NotServing) for message in told)
    assert all(message.round_id == 0 for message in told), "it says nothing of a branch"


def test_after_a_state_was_taken_over_those_who_have_told_of_no_round_are_not_waited_for() -> None:
    kept = FutureBuffer()
    kept.record_round(1, 7)
    kept.mark_unreported([2])
    assert kept.why_not(1) == ""
    assert kept.why_not(2) == "it has reported no round yet"
    assert not kept.record_round(2, 0)
    assert kept.record_round(2, 7)
    assert kept.why_not(2) == ""


def back_in_its_round(returns: bool) -> tuple[RollingTable, RollingRounds, list[int]]:
    """The server of a round in its first turn, which has given its update, and the others, one of
    which is skipped there.

    Args:
        returns: It has just taken over a state of that round.
    """
    table = RollingTable(5)
    for _ in range(ROUND):
        table.play()
    first, *others = table.order()
    server = table.peers[first]
    snapshot = server.snapshot(ROUND)
    assert snapshot is not None
    if returns:
        table.run(first, server.stop(table.now))
        server.adopt(ROUND, *snapshot)
        server.come_back()
        table.run(first, server.start(table.now))
    table.lose = lambda sender, to, message: True
    table.views[first].skipped[others[0]] = "gone"
    table.contribute(first)
    table.pass_time(0.05)
    return table, server, others


def test_who_has_come_back_in_a_round_asks_in_its_first_turn_and_once() -> None:
    """Simulation: its former life had made a result, which the one peer held that had not died. The
    others came back, too, and their updates made a second."""
    table, server, others = back_in_its_round(returns=True)
    assert sorted(_asked(table, server.local)) == sorted(others[1:])
    table.views[server.local].skipped.clear()
    assert _asks(server.on_view_change(table.now)) == others[:1]
    assert _asks(server.on_view_change(table.now)) == []


def test_who_has_gone_on_gives_its_commit_to_the_server_that_has_come_back() -> None:
    """It asks in the attempt in which its former life has made that commit."""
    table = RollingTable(4)
    table.play()
    first, other = table.made[0].server, next(p for p in table.peers if p.round_id == 1)
    asks = UpdateRequest(LINEAGE, 0, 0, 0, b"parent")
    effects = other.on_message(Received(first, 2, asks), table.now)
    given = [effect.message for effect in effects if isinstance(effect, Send)]
    assert [(type(each).__name__, each.attempt) for each in given] == [("Commit", 0)]
