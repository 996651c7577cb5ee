"""Who tells different peers different results in one turn is proven to, by more than f of each;
nobody else ever is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossip.core.ledger.equivocation import EquivocationDetector, EquivocationWitness
from gossip.core.ledger.trust import TrustTable
from gossip.core.messages import Accusation, Commit, PeerId
from gossip.core.settings import ACCUSED_TURNS, ACCUSED_TURNS_BY_PEER, TURNS_KEPT, TrustSettings

ATTACKER = 7
TRUE = Commit(b"l", 5, 0, 0, 0, ATTACKER, b"p" * 16, b"d" * 16, (), (), tuple(range(8)), None, "")
FALSE = replace(TRUE, digest=b"e" * 16)
NOTHING = EquivocationDetector(f=1)


def stated(by: PeerId, *accusations: Accusation) -> Commit:
    return replace(TRUE, round_id=9, server=by, accusations=accusations)


def receipt(content: bytes, round_id: int = 5, turn: bytes = b"t" * 16) -> Accusation:
    return Accusation(ATTACKER, round_id, turn=turn, content=content * 16)


def test_two_contents_with_more_than_f_voices_each_are_proof_once() -> None:
    table = EquivocationDetector(f=1)
    said = [(0, b"a"), (1, b"b"), (2, b"a"), (2, b"b"), (3, b"b"), (4, b"b"), (5, b"a")]
    assert [table.observe_round([stated(by, receipt(content))]) for by, content in said] == [
        [],
        [],
        [],
        [],
        [ATTACKER],
        [],
        [],
    ]
    assert not table.wants(6, receipt(b"a"))


def test_f_liars_prove_nothing_whatever_they_state() -> None:
    table = EquivocationDetector(f=2)
    for by in range(5):
        assert table.observe_round([stated(by, receipt(b"a"))]) == []
    for by in (5, 6, 5, 6):
        assert table.observe_round([stated(by, receipt(b"b"))]) == []
    assert table.observe_round([stated(ATTACKER, receipt(b"b"))]) == [], "of itself it says nothing"


def test_no_peer_can_push_out_what_others_state() -> None:
    table = EquivocationDetector(f=1)
    table.observe_round(
        [stated(0, receipt(b"a")), stated(1, receipt(b"a")), stated(2, receipt(b"b"))]
    )
    for round_id in range(6, 60):
        table.observe_round([stated(3, receipt(b"c", round_id))])
    assert len(table.pack()[0]) == 3 + ACCUSED_TURNS
    assert not table.wants(3, receipt(b"c", 2))
    assert table.observe_round([stated(4, receipt(b"b"))]) == [ATTACKER]


def test_a_witness_states_it_too_when_it_reads_of_another() -> None:
    table = EquivocationDetector(f=1)
    witness, other = EquivocationWitness(0), EquivocationWitness(1)
    witness.saw(ATTACKER, 0, TRUE)
    other.saw(ATTACKER, 0, FALSE)
    assert (witness.statements(table, 0), other.statements(table, 0)) == ([], [])
    other.saw(3, 0, TRUE)
    table.observe_round([stated(1, *other.statements(table, 0))])
    [accusation] = witness.statements(table, 0)
    assert accusation.turn.hex() == table.pack()[0][0][3]


def test_another_life_attempt_shard_or_history_is_another_turn() -> None:
    turns = set()
    for incarnation, commit in (
        (0, TRUE),
        (1, TRUE),
        (0, replace(TRUE, made_at=8)),
        (0, replace(TRUE, shard=1)),
        (0, replace(TRUE, parent=b"q" * 16)),
    ):
        witness = EquivocationWitness(0)
        witness.saw(ATTACKER, incarnation, commit)
        witness.saw(3, 0, replace(commit, digest=b"x" * 16))
        turns.update(accusation.turn for accusation in witness.statements(NOTHING, 0))
    assert len(turns) == 5


def test_what_is_remembered_is_bounded_for_each_who_says_it() -> None:
    witness = EquivocationWitness(0)
    for round_id in range(2 * TURNS_KEPT):
        witness.saw(ATTACKER, 0, replace(TRUE, round_id=round_id))
        witness.saw(3, 0, replace(TRUE, round_id=round_id, digest=b"z" * 16))
    assert [accusation.round_id for accusation in witness.statements(NOTHING, 0)] == list(
        range(TURNS_KEPT, 2 * TURNS_KEPT)
    )
    assert max(map(len, (*witness._heard.values(), *witness._handed.values()))) == TURNS_KEPT


def test_turns_that_a_liar_makes_up_push_out_nothing_of_others() -> None:
    witness = EquivocationWitness(0)
    other = replace(TRUE, server=6)
    for commit in (TRUE, other):
        witness.saw(commit.server, 0, commit)
        witness.saw(3, 0, replace(commit, digest=b"z" * 16))
    for made_at in range(4 * TURNS_KEPT):
        witness.saw(5, 0, replace(TRUE, server=5, made_at=made_at))
        witness.saw(5, 0, replace(TRUE, server=6, made_at=made_at))
        witness.saw(ATTACKER, 0, replace(TRUE, round_id=4, made_at=made_at))
    assert {accusation.peer for accusation in witness.statements(NOTHING, 0)} == {ATTACKER, 6}


def test_what_one_peer_says_of_all_servers_is_bounded_and_ages() -> None:
    table = EquivocationDetector(f=1)
    for server in range(20):
        table.observe_round(
            [
                replace(
                    TRUE,
                    round_id=9,
                    server=30,
                    accusations=(replace(receipt(b"a", 9), peer=server),),
                )
            ]
        )
    assert len(table.pack()[0]) == ACCUSED_TURNS_BY_PEER
    table.observe_round([replace(TRUE, round_id=9 + table.window, server=30)])
    assert len(table.pack()[0]) == ACCUSED_TURNS_BY_PEER
    table.observe_round([replace(TRUE, round_id=10 + table.window, server=30)])
    assert table.pack()[0] == ()
    late = replace(TRUE, round_id=10 + table.window, server=30, accusations=(receipt(b"a", 9),))
    table.observe_round([late])
    assert table.pack()[0] == ()
    witness = EquivocationWitness(0)
    witness.saw(ATTACKER, 0, replace(TRUE, round_id=9))
    witness.saw(3, 0, replace(TRUE, round_id=9, digest=b"z" * 16))
    assert [len(witness.statements(table, at)) for at in (9 + table.window, 10 + table.window)] == [
        1,
        0,
    ]


def test_two_proofs_are_enough_for_quarantine_and_the_reason_is_told() -> None:
    trust = TrustTable(TrustSettings(), f=2)
    commit = replace(TRUE, server=0)
    assert [c.change for c in trust.observe_round([commit], [ATTACKER])] == ["suspected"]
    [change] = trust.observe_round([replace(commit, round_id=6)], [ATTACKER])
    assert (change.peer, change.change) == (ATTACKER, "quarantined")
    assert change.reasons == ("it sent different results to different peers in 2 of its turns",)


def test_it_travels_with_the_state_and_what_is_none_is_refused() -> None:
    table, other = EquivocationDetector(f=1), EquivocationDetector(f=1)
    for by, content in ((0, b"a"), (1, b"a"), (2, b"b"), (3, b"b")):
        table.observe_round([stated(by, receipt(content))])
    other.unpack(table.pack())
    assert other.pack() == table.pack()
    row = (ATTACKER, 0, 5, "0a" * 16, "0b" * 16)
    for junk in (
        3,
        ((), 3),
        (((1, 2),), ()),
        (((*row[:4], "0x" * 16),), ()),
        ((), ((ATTACKER, -1, row[3]),)),
    ):
        with pytest.raises(ValueError, match="equivocations"):
            other.unpack(junk)
    with pytest.raises(ValueError, match="too many accusations"):
        other.unpack((tuple((*row[:2], at, *row[3:]) for at in range(ACCUSED_TURNS + 1)), ()))
    assert other.pack() == table.pack()
