"""What belongs to a checkpoint beside the trainer's state, and a core that begins with it."""

from __future__ import annotations

import json
import zlib

import pytest

from gossip.core import events
from gossip.core.ledger import pack_ledger, planned_peers, unpack_json, unpack_ledger
from gossip.core.ledger.data_cursor import DataCursor
from gossip.core.peer import Peer
from gossip.core.settings import CoreSettings
from gossip.topologies import load

CHAIN = bytes(range(16))
TABLES = ([0, 1, 2], [], [1, 2], [], [])


def test_a_ledger_comes_back_with_the_roster_of_those_who_train_now() -> None:
    packed = pack_ledger(7, CHAIN, TABLES, whole=False)
    assert unpack_ledger(packed, (0, 1)) == (CHAIN, ([0, 1], [], [1, 2], [], []), False)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": 99}, "another version"),
        ({"chain": "00"}, "no valid hash"),
        ({"chain": "no hex"}, "fromhex"),
        ({"tables": 3}, "lacks"),
    ],
)
def test_what_is_no_ledger_is_refused(change: dict[str, object], why: str) -> None:
    document = {**json.loads(pack_ledger(7, CHAIN, TABLES, whole=True)), **change}
    with pytest.raises(ValueError, match=why):
        unpack_ledger(json.dumps(document).encode(), (0, 1))


def test_a_ledger_says_how_many_peers_epochs_are_planned_for() -> None:
    cursor = DataCursor(4, 80, 10)
    cursor.commit((0, 1), dict.fromkeys((0,), 99))
    tables = ([0, 1], [], cursor.pack(), [], [], 0)
    assert planned_peers(pack_ledger(1, CHAIN, tables, whole=True)) == 4
    for wrong in (([0, 1], []), ([0, 1], [], [1, 2], [], [], 0)):
        with pytest.raises(ValueError, match="data cursor"):
            planned_peers(pack_ledger(1, CHAIN, wrong, whole=True))


def peer_alone() -> Peer:
    settings = CoreSettings(b"run-0001", b"lineage!", 1, (0,))
    return Peer(0, 1, settings, load("rolling"), control="c", bulk="b")


def asked(peer: Peer) -> events.LedgerReply:
    (reply,) = peer.handle(events.LedgerRequest(), 1.0)
    assert isinstance(reply, events.LedgerReply)
    return reply


def prepared(peer: Peer, round_id: int = 0, ledger: bytes = b"") -> list[events.Effect]:
    said = events.Prepared(b"layout", b"state", (4,), 8, round_id, ledger)
    return [*peer.handle(events.Started(), 0.0), *peer.handle(said, 0.5)]


def test_a_core_that_is_given_its_ledger_goes_on_with_that_round_and_history() -> None:
    first = peer_alone()
    prepared(first)
    ledger = asked(first)
    assert ledger.round_id == 0
    second = peer_alone()
    effects = prepared(second, 7, ledger.ledger)
    assert [effect.round_id for effect in effects if isinstance(effect, events.StartRound)] == [7]
    again = asked(second)
    assert again.round_id == 7
    assert unpack_json(again.ledger)["chain"] == unpack_json(ledger.ledger)["chain"]
    rolling = second._rolling
    assert not rolling.server._requests_in(0), "nobody holds a result of that round"


def test_a_ledger_that_is_damaged_ends_the_peer_and_says_so() -> None:
    peer = peer_alone()
    halts = [e for e in prepared(peer, 7, b"{}") if isinstance(e, events.Halt)]
    assert [halt.exit_code for halt in halts] == [2]
    assert "the checkpoint of step 7 cannot be used" in halts[0].reason


def test_before_the_first_round_there_is_no_ledger() -> None:
    assert asked(peer_alone()).ledger == b""


def test_who_stood_out_when_it_was_saved_is_told_of_once_more() -> None:
    first = peer_alone()
    prepared(first)
    document = unpack_json(asked(first).ledger)
    in_quarantine = (0.1, True, "quarantined", 50, [], 1.0, 0, 0, [])
    # peer 7 was in the run that was saved, and is not in this one
    document["tables"][1][0] = [[peer, *in_quarantine] for peer in (0, 7)]
    effects = prepared(peer_alone(), 7, zlib.compress(json.dumps(document).encode()))
    told = [each for each in effects if isinstance(each, events.Report) and "trust" in each.fields]
    same = {"subject": 0, "trust": 0.1, "reasons": [], "round": 6}
    assert [(each.event, each.fields) for each in told] == [
        ("suspected", same),
        ("quarantined", same),
    ]
    assert [type(each) for each in effects].index(events.StartRound) > effects.index(told[1])
