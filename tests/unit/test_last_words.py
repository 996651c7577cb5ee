"""A commit outlives the process that has sent it."""

from __future__ import annotations

from dataclasses import replace

from member_bench import NEXT_LIFE, MemberBench, rumor
from test_rolling import LINEAGE, RollingTable, vector

from gossip.core import STASH_ROUNDS
from gossip.core.events import Payload, Received
from gossip.core.messages import Commit, Update
from gossip.core.rounds.future_buffer import FutureBuffer


def committed(table: RollingTable) -> tuple[Commit, Payload]:
    """What the server of the present round has made, and spread to nobody."""
    table.lose = lambda sender, to, message: isinstance(message, Commit)
    table.play()
    return table.made[-1], vector(1.0 + (len(table.peers) - 1) / 2, digest=True)


def handed(table: RollingTable, commit: Commit, payload: Payload) -> Received:
    return Received(commit.server, 0, commit, payload)


def test_it_says_nothing_of_where_the_present_life_is() -> None:
    table = RollingTable(5)
    commit, payload = committed(table)
    taker = next(peer for peer in table.peers if peer.local != commit.server)
    taker.on_disconnect(commit.server)
    taker.on_former_commit(handed(table, commit, payload), table.now)
    assert taker.round_id == 1
    assert taker.skip_reason(commit.server) == "it has reported no round yet"


def test_what_is_of_no_turn_another_branch_or_damaged_is_not_taken() -> None:
    table = RollingTable(5)
    commit, payload = committed(table)
    taker = next(peer for peer in table.peers if peer.local != commit.server)
    wrong = [
        (replace(commit, parent=b"another branch"), payload),
        (replace(commit, made_at=1), payload),
        (replace(commit, lineage=b"another!"), payload),
        (replace(commit, shard=1), payload),
        (commit, vector(99.0, digest=True)),
    ]
    for message, content in wrong:
        assert taker.on_former_commit(handed(table, message, content), table.now) == []
        assert taker.round_id == 0, message


def test_of_a_round_to_come_it_is_kept() -> None:
    table = RollingTable(5)
    first, payload = committed(table)
    taker = next(peer for peer in table.peers if peer.local != first.server)
    second = replace(first, round_id=1)
    taker.on_former_commit(handed(table, second, payload), table.now)
    assert [event.message for event in taker.future_buffer.pop_round(1, is_former=True)] == [second]


def test_of_what_a_former_life_has_sent_early_only_commits_are_kept() -> None:
    kept = FutureBuffer()
    commit = Commit(LINEAGE, 7, 0, 0, 0, 1, b"parent", b"", (), (), (), None, "")
    update = Update(LINEAGE, 7, 0, 0, b"parent", 4, None)
    for message in (commit, update):
        kept.stash(6, 7, Received(1, 0, message, None), 0)
    kept.begins_anew(1, 1)
    assert kept.pop_round(7) == []
    assert [event.message for event in kept.pop_round(7, is_former=True)] == [commit]
    assert kept.pop_round(7, is_former=True) == []


def test_who_takes_over_a_state_keeps_what_is_of_the_round_that_the_others_are_in() -> None:
    kept = FutureBuffer(f=1)
    assert kept.next_round(2) == 2, "nobody has told of a round"
    kept.record_round(1, 73)
    assert kept.next_round(2) == 2, "that one may lie"
    kept.stash(2, 5, Received(1, 0, Update(LINEAGE, 5, 0, 0, b"parent", 4, None), None), 0)
    kept.record_round(2, 71)
    assert kept.next_round(2) == 71
    assert kept.pop_round(5) == [], "it was forgotten: memory is for so many rounds and no more"
    last = 71 + STASH_ROUNDS
    event = Received(1, 0, Update(LINEAGE, last, 0, 0, b"parent", 4, None), None)
    kept.stash(71, last, event, 0)
    kept.seen.clear()
    kept.next_round(2)
    assert kept.pop_round(last) == []


def test_only_a_life_before_the_known_one_is_a_former_one() -> None:
    bench = MemberBench(3)
    bench.speak_again(1)
    bench.gossip(2, rumor(1, "alive", NEXT_LIFE, control="new"))
    is_former = bench.core.is_former
    assert is_former(1, 0)
    assert not is_former(1, 1)
    assert not is_former(2, 0)
    assert not is_former(0, -1), "it is the local peer"
    assert not is_former(9, 0), "it is nobody"
