"""What a newcomer may decide, whom its id is from, and how others find it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from fixed_view import FixedView

from gossip.core.events import Halt
from gossip.core.lifecycle.bootstrap import BeginFresh, Bootstrap, Decision, TakeState, WaitForPeers
from gossip.core.lifecycle.exit_codes import NEVER_STARTED, REFUSED
from gossip.core.messages import Hello
from gossip.core.settings import WAITING_REPORT_S, CoreSettings
from gossip.run.completion import nobody_left
from gossip.run.rendezvous import SeedFolder, announce_end, claim

PEERS, ROOM = 3, 8


def hello(round_id: int = 0, layout: bytes = b"layout", state: bytes = b"state") -> Hello:
    return Hello(b"lineage!", layout, state, round_id, "ready", "control", "bulk", b"", ())


def decided(local: int, hellos: dict[int, Hello], after_s: float = 0.1, f: int = 0) -> Decision:
    settings = CoreSettings(b"run-0001", b"lineage!", 1, tuple(range(PEERS)), f, room=ROOM)
    gathering = Bootstrap(local, settings, FixedView())
    gathering.start(0.0)
    for peer, said in hellos.items():
        gathering.record_hello(peer, said, 0.0)
    return gathering.decide(after_s)


FIRST = {peer: hello() for peer in range(PEERS)}
OTHERS = {peer: hello(layout=b"other!", state=b"theirs") for peer in range(PEERS, ROOM)}


def code_of(decision: Decision) -> int:
    assert isinstance(decision, Halt)
    return decision.exit_code


def test_newcomers_however_many_decide_neither_model_nor_weights_nor_who_begins() -> None:
    assert decided(0, FIRST | OTHERS) == BeginFresh((0, 1, 2))
    assert decided(0, {0: hello()} | OTHERS) == WaitForPeers((1, 2))


def test_a_newcomer_waits_for_the_run_to_begin_and_then_takes_its_state() -> None:
    assert decided(5, {5: hello(), 6: hello()}) == WaitForPeers((0, 1, 2))
    assert decided(5, {**FIRST, 5: hello(state=b"mine")}) == WaitForPeers(())
    assert isinstance(decided(5, {**FIRST, 5: hello(), 1: hello(round_id=4)}), TakeState)
    assert isinstance(decided(5, {5: hello(), 6: hello(round_id=4)}), TakeState), (
        "of the first peers nobody need be left"
    )
    assert code_of(decided(5, {5: hello(), 6: hello()}, after_s=61.0)) == NEVER_STARTED


def test_a_newcomer_with_another_model_is_sent_away_by_more_than_f() -> None:
    running = {peer: hello(round_id=4) for peer in (0, 1)}
    assert code_of(decided(5, {**running, 5: hello(layout=b"other!")}, f=1)) == REFUSED
    one_says_so = {0: hello(round_id=4), 5: hello(layout=b"other!")}
    assert decided(5, one_says_so, f=1) == WaitForPeers((1, 2)), "that one may lie"
    after_s = WAITING_REPORT_S + 1
    assert code_of(decided(5, one_says_so, f=1, after_s=after_s)) == REFUSED, (
        "and nobody says otherwise"
    )


def test_no_two_newcomers_take_the_same_id(tmp_path: Path) -> None:
    folder = tmp_path / "seeds"
    assert [claim(folder, 2, 4) for _ in range(3)] == [(2, 0), (3, 0), None]


@pytest.mark.parametrize(
    ("first", "taken"),
    [(2, {(2, 0), (3, 0)}), (4, {(0, 7), None})],
    ids=["fresh", "of one that has ended"],
)
def test_no_two_newcomers_that_have_seen_the_same_take_the_same_id(
    first: int, taken: set[tuple[int, int] | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce_end(tmp_path, 0, incarnation=6)
    opened, both, calls = Path.open, Barrier(2), count(1)

    def open_together(path: Path, *words: Any, **more: Any) -> Any:
        if path.suffix == ".claim" and next(calls) <= 2:
            both.wait(10.0)  # each has looked at the folder, and neither has claimed anything
        return opened(path, *words, **more)

    monkeypatch.setattr(Path, "open", open_together)
    with ThreadPoolExecutor(2) as newcomers:
        assert set(newcomers.map(lambda number: claim(tmp_path, first, 4), range(2))) == taken


def test_the_id_of_a_peer_elsewhere_is_not_given_to_who_joins_by_the_folder(tmp_path: Path) -> None:
    # as a door writes what it hears
    SeedFolder(tmp_path, 2, 4).announce("tcp://a:1", "tcp://a:2", 0)
    assert [claim(tmp_path, 2, 4) for _ in range(2)] == [(3, 0), None]


def test_the_id_of_one_that_has_ended_is_given_out_once_again(tmp_path: Path) -> None:
    SeedFolder(tmp_path, 0, 4).announce("tcp://a:1", "tcp://a:2", 6)
    assert claim(tmp_path, 1, 1) is None, "it is in use"
    announce_end(tmp_path, 0)
    assert [claim(tmp_path, 1, 1) for _ in range(2)] == [(0, 7), None]
    announce_end(tmp_path, 0, 7)  # before its node wrote anything
    assert claim(tmp_path, 1, 1) == (0, 8)


def test_nobody_is_left_when_all_have_ended_but_those_who_ask(tmp_path: Path) -> None:
    assert not nobody_left(tmp_path, [2]), "nobody has come yet"
    for peer in range(3):
        SeedFolder(tmp_path, peer, 4).announce("tcp://a:1", "tcp://a:2", 0)
    announce_end(tmp_path, 0)
    assert not nobody_left(tmp_path, [2])
    announce_end(tmp_path, 1)
    assert nobody_left(tmp_path, [2])
    assert not nobody_left(tmp_path, [3]), "the other newcomer is there"


def test_peers_find_a_newcomer_in_the_folder_and_nobody_beyond_their_room(tmp_path: Path) -> None:
    folder = SeedFolder(tmp_path, 0, 4)
    for peer in (3, 4):
        SeedFolder(tmp_path, peer, 9).announce("tcp://a:1", "tcp://a:2", 0)
    assert [seed.peer for seed in folder.poll_seeds(0.0, False)] == [3]
