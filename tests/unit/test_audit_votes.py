"""Who is found to lie by what members of a stage say in commits: enough must agree, and no honest
member is found while each stage has one liar."""

from __future__ import annotations

import itertools
import json
from contextlib import nullcontext
from random import Random
from typing import Any

import pytest

from gossip.core import HISTORY_ROUNDS, AuditVote, Commit
from gossip.core.ledger import AuditTable, TrustTable
from gossip.core.settings import AUDIT_ROWS_MAX, AUDIT_VOTES_KEPT, TrustSettings

BEFORE, MEMBERS, BEHIND = (0, 1, 2), (3, 4, 5), (6, 7, 8)
LIAR, ONE, OTHER = 4, 3, 5


def commit(round_id: int, server: int, *votes: AuditVote) -> Commit:
    where = (b"lineage!", round_id, 0, 0, 0, server, b"")
    return Commit(*where, b"d" * 16, (), (), MEMBERS, None, "", audits=votes)


def told(table: AuditTable, round_id: int, server: int, *votes: AuditVote) -> list[int]:
    return table.observe_round([commit(round_id, server, *votes)])


def test_two_members_that_find_the_same_answer_wrong_are_enough_and_one_is_not() -> None:
    table = AuditTable(needed=2)
    vote = AuditVote(LIAR, 7, 2)
    assert told(table, 8, ONE, vote) == []
    assert told(table, 9, ONE, vote) == []
    assert told(table, 9, ONE, AuditVote(LIAR, 8, 2)) == []
    assert told(table, 10, OTHER, AuditVote(LIAR, 7, 3)) == [], "of another micro-batch"
    assert told(table, 11, LIAR, vote) == [], "nobody votes on itself"
    assert told(table, 12, OTHER, vote) == [LIAR]
    assert told(table, 13, OTHER, AuditVote(LIAR, 8, 2)) == [], "of the time before it was found"
    assert told(table, 14, OTHER, AuditVote(LIAR, 13, 0)) == []
    assert told(table, 15, ONE, AuditVote(LIAR, 13, 0)) == [LIAR], "it has lied again"


def dispute(round_id: int, before: int | None, behind: int | None) -> AuditVote:
    return AuditVote(LIAR, round_id, 0, before, behind)


def found_by(*disputes: tuple[int | None, int | None]) -> bool:
    """Whether contradictions that two members tell of, one a round, are enough."""
    table = AuditTable(needed=2)
    found: list[int] = []
    for at, (before, behind) in enumerate(disputes):
        for server in (ONE, OTHER):
            found += told(table, at, server, dispute(at, before, behind))
    return found == [LIAR]


def test_a_member_that_contradicts_more_of_the_next_stage_than_may_lie_is_found() -> None:
    assert not found_by((None, 6))
    assert not found_by((None, 6), (None, 6), (None, 6))
    assert found_by((None, 6), (None, 7))
    assert not found_by((0, None), (1, None), (2, None)), "a liar may have come before each"
    assert not found_by((0, 6), (1, 7), (2, 8))
    assert not found_by((None, 6), (0, 7))


def test_who_says_one_member_this_and_the_other_that_contradicts_somebody() -> None:
    table = AuditTable(needed=2)
    found: list[int] = []
    for at, behind in enumerate((6, 7)):
        found += told(table, at, ONE, AuditVote(LIAR, at, 0))  # to this one it admits it
        found += told(table, at, OTHER, dispute(at, None, behind))
    assert found == [LIAR]


def test_no_honest_member_is_found_while_each_stage_has_one_liar() -> None:
    """The honest one finds only what a neighbour has lied about; the liar says anything."""
    before, behind, liar, honest, victim = 0, 6, 5, 3, 4
    made_up = [(p, q) for p in (None, *BEFORE) for q in (None, *BEHIND)]
    for seed, at in itertools.product(range(60), range(40)):
        if at == 0:
            draw, table = Random(seed), AuditTable(needed=2)
        lied = draw.choice([(before, None), (None, behind), (before, behind)])
        votes = {(at, b): draw.choice([lied, None]) for b in range(3)}
        of_honest = [AuditVote(victim, at, b, *side) for (at, b), side in votes.items() if side]
        of_liar = [AuditVote(victim, at, b, *draw.choice(made_up)) for b in range(3)]
        for server, said in ((honest, of_honest), (liar, of_liar)):
            assert victim not in told(table, at, server, *said), seed


def test_votes_are_forgotten_and_nobody_pushes_out_those_of_others() -> None:
    table = AuditTable(needed=2)
    vote = AuditVote(LIAR, 7, 2)
    told(table, 8, ONE, vote)
    for b in range(3 * AUDIT_VOTES_KEPT):
        told(table, 9, OTHER, AuditVote(ONE, 8, b))
    assert len(table.pack()[0]) == 1 + AUDIT_VOTES_KEPT
    told(table, 9 + HISTORY_ROUNDS, OTHER)
    assert table.pack() == ((), ())
    assert told(table, 10 + HISTORY_ROUNDS, OTHER, vote) == []


def test_what_is_packed_goes_on_elsewhere() -> None:
    mine, theirs = AuditTable(needed=2), AuditTable(needed=2)
    told(mine, 3, ONE, dispute(3, 0, None), AuditVote(ONE, 3, 1))
    told(mine, 4, OTHER, dispute(3, 0, None))
    told(mine, 5, ONE, dispute(4, 1, 7))
    theirs.unpack(json.loads(json.dumps(mine.pack())))
    assert theirs.pack() == mine.pack()
    for table in (mine, theirs):
        assert told(table, 6, OTHER, dispute(4, 1, None)) == []
    assert theirs.pack() == mine.pack()


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize(
    "pack",
    [
        lambda rows: ([(at // 16, LIAR, at, 0, None, None) for at in range(rows)], ()),
        lambda rows: ((), [(at, 7) for at in range(rows)]),
    ],
)
def test_no_peer_fills_the_table_of_another_with_votes_or_convictions(pack: Any, more: int) -> None:
    refused = (
        pytest.raises(ValueError, match="expected a list of at most") if more else nullcontext()
    )
    with refused:
        AuditTable(needed=2).unpack(pack(AUDIT_ROWS_MAX + more))


def test_who_is_found_is_locked_up_at_once_also_where_f_is_0_and_is_tried_again_later() -> None:
    settings = TrustSettings(quarantine_rounds=5, parole_rounds=3)
    table = TrustTable(settings, f=0)
    changes = table.observe_round([commit(1, ONE)], (), [LIAR])
    assert [(c.peer, c.change) for c in changes] == [(LIAR, "suspected"), (LIAR, "quarantined")]
    assert "other members of its stage" in changes[-1].reasons[0]
    assert table.proven() == table.quarantined() == {LIAR}
    assert not table.may_serve(LIAR)
    table.observe_round([commit(2, ONE)], (), [OTHER])
    assert table.quarantined() == {LIAR}, "of three members a majority stays"
    copied = TrustTable(settings, f=0)
    copied.unpack(json.loads(json.dumps(table.pack())))
    assert copied.pack() == table.pack()
    told_later = [table.observe_round([commit(at, ONE)]) for at in range(3, 12)]
    later = [(c.peer, c.change) for c in itertools.chain(*told_later) if c.peer == LIAR]
    assert later[0] == (LIAR, "parole")
    assert LIAR not in table.quarantined()


def test_suspicion_alone_locks_up_nobody_where_f_is_0() -> None:
    table = TrustTable(TrustSettings(quarantine_below=0.9), f=0)
    table.observe_round([commit(1, ONE)], [LIAR])
    assert table.score(LIAR) < 0.9
    assert table.quarantined() == frozenset()
