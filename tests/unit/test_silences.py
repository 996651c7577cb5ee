"""Servers whose results do not come although they answer are passed over,
and nothing else happens to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossip.core.ledger.omissions import OmissionTracker
from gossip.core.ledger.replicated_state import ReplicatedState
from gossip.core.ledger.trust import TrustTable
from gossip.core.messages import Accusation, Commit, PeerId
from gossip.core.settings import ACCUSED_ROUNDS, CoreSettings, TrustSettings

ROSTER = tuple(range(8))
SETTINGS = TrustSettings(quarantine_rounds=10)
SILENT = 5


def commit(round_id: int, server: PeerId, *silent: tuple[PeerId, int]) -> Commit:
    accusations = tuple([Accusation(peer, at, silent=True) for peer, at in silent])
    where = b"l", round_id, 0, 0, 0, server, b"", b"d" * 16
    return Commit(*where, (), (), ROSTER, None, "", accusations=accusations)


def told(
    table: OmissionTracker,
    of_round: int,
    by: tuple[PeerId, ...],
    peer: PeerId = SILENT,
    first: int = 100,
) -> list[str]:
    """What changes when each of ``by`` says in a round of its own that it has waited
    for that result."""
    rounds = [
        table.observe_round([commit(first + i, each, (peer, of_round))], ())
        for i, each in enumerate(by)
    ]
    return [f"{who} {what}" for changes in rounds for who, what in changes]


def test_a_server_for_which_more_than_f_have_waited_in_three_rounds_is_passed_over_for_a_while():
    table = OmissionTracker(SETTINGS, f=2)
    assert told(table, 90, (0, 1, 2)) == []
    assert told(table, 91, (0, 1, 2)) == []
    assert told(table, 92, (0, 1)) == []
    assert table.may_serve(SILENT)
    assert told(table, 92, (3,)) == ["5 passed_over"]
    assert not table.may_serve(SILENT)
    later = [table.observe_round([commit(110 + i, 0)], ()) for i in range(10)]
    assert later == [[]] * 9 + [[(SILENT, "serves_again")]]
    assert table.may_serve(SILENT)
    told(table, 121, (0, 1, 2))
    assert told(table, 122, (0, 1, 2)) == ["5 passed_over"], (
        "whoever keeps silent again is passed over sooner"
    )


def test_f_liars_cannot_have_a_server_passed_over() -> None:
    table = OmissionTracker(SETTINGS, f=2)
    for of_round in range(40):
        assert told(table, of_round + 80, (6, 7, 6)) == []
    assert table.may_serve(SILENT)
    assert told(OmissionTracker(SETTINGS, f=0), 90, (0, 1, 2, 3)) == []


def test_one_does_not_speak_of_itself_and_a_charge_for_a_refused_result_is_no_silence() -> None:
    table, trust = OmissionTracker(SETTINGS, f=0), TrustTable(SETTINGS, f=0)
    table.observe_round([commit(9, SILENT, (SILENT, 8))], ())
    refused = replace(commit(9, 1), accusations=(Accusation(SILENT, 8),))
    table.observe_round([refused], ())
    assert table.pack() == ()
    trust.observe_round([commit(9, 1, (SILENT, 8))])
    assert trust.score(SILENT) == 1.0, "nobody is suspected for it"


def test_at_most_f_are_passed_over_those_in_quarantine_counted_in_and_never_a_majority() -> None:
    table = OmissionTracker(TrustSettings(), f=2)
    for peer in (4, 5, 6):
        for of_round in (90, 91, 92):
            told(table, of_round, (0, 1, 2), peer)
    assert [peer for peer in ROSTER if not table.may_serve(peer)] == [4, 5]
    table = OmissionTracker(SETTINGS, f=1)
    for of_round in (90, 91, 92):
        for i, by in enumerate((0, 1)):
            assert table.observe_round([commit(100 + i, by, (SILENT, of_round))], (7,)) == []


def test_results_that_come_bring_hope_back() -> None:
    table = OmissionTracker(SETTINGS, f=1)
    for at in range(200):
        table.observe_round([commit(100 + at, SILENT)], ())
        if at % 20 == 0:
            assert told(table, 100 + at, (0, 1), first=100 + at) == [], "one of twenty"
    assert table.may_serve(SILENT)


def test_the_same_word_again_and_one_too_old_are_of_no_use() -> None:
    table = OmissionTracker(SETTINGS, f=2)
    told(table, 90, (0,))
    assert not table.lacks(0, SILENT, 90, 101)
    assert table.lacks(1, SILENT, 90, 101)
    assert not table.lacks(1, SILENT, 4, 101)
    for of_round in range(60, 90):
        told(table, of_round, (6,))
    assert len(table.pack()[0][-1]) == ACCUSED_ROUNDS


def test_it_travels_with_the_state_and_what_is_none_is_refused() -> None:
    table, other = OmissionTracker(SETTINGS, f=2), OmissionTracker(SETTINGS, f=2)
    for of_round in (90, 91, 92):
        told(table, of_round, (0, 1, 2))
    told(table, 93, (0,), 3)
    other.unpack(table.pack())
    assert other.pack() == table.pack()
    assert not other.may_serve(SILENT)
    for junk in (
        3,
        (3,),
        ((1, 2.0, 0, ()),),
        ((1, 1.0, -1, ()),),
        ((1, 1.0, 0, ((1,),)),),
        ((1, 1.0, 0, ((1, ("a",)),)),),
    ):
        with pytest.raises(ValueError, match=r"omissions|accusations"):
            other.unpack(junk)
    assert other.pack() == table.pack()


def test_a_server_that_is_passed_over_and_one_in_quarantine_do_not_serve() -> None:
    state = ReplicatedState(CoreSettings(b"run", b"lineage", 0, ROSTER, f=2))
    for of_round in (90, 91, 92):
        told(state.omissions, of_round, (0, 1, 2))
    for at in (103, 104):
        state.trust.observe_round([commit(at, 0)], proven=(6,))
    assert state.serving_roster().peers == (0, 1, 2, 3, 4, 7)
