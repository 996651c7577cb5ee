"""Beginning without those who are missing: how many, after how long, and what is said of it."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from event_rows import event

from gossip.config import RunConfig, resolve
from gossip.core.events import Halt
from gossip.core.lifecycle.bootstrap import BeginFresh, Bootstrap, Decision, WaitForPeers
from gossip.core.lifecycle.exit_codes import NEVER_STARTED
from gossip.core.messages import Hello
from gossip.core.settings import CoreSettings, RoundSettings
from gossip.errors import ConfigError
from gossip.launch.local.awaiting import ReachabilityProbe, WaitingReminder, name_log, waiting
from gossip.launch.local.peer_process import ProcessLife
from gossip.launch.local.program import Program
from gossip.launch.local.running import OngoingRun
from gossip.launch.local.start_wait import StartWait
from gossip.launch.report.run_model import RunModel
from gossip.run import fitting
from gossip.run.rendezvous import SeedFolder, announce_end

PATIENCE_S, START_S = 10.0, 60.0
HELLO = Hello(b"lineage!", b"layout", b"state", 0, "ready", "control", "bulk", b"", ())


def gathering(min_peers: int, peers: int = 5, ended: Collection[int] = ()) -> Bootstrap:
    rounds = RoundSettings(min_peers=min_peers, patience_s=PATIENCE_S, start_timeout_s=START_S)
    view: Any = SimpleNamespace(
        version=0,
        has_ended=lambda peer: peer in ended,
        skip_reason=lambda peer: "",
        is_gone=lambda peer: False,
        met=tuple,
    )
    ids = tuple(range(peers))
    found = Bootstrap(0, CoreSettings(b"run-0001", b"lineage!", 1, ids, rounds=rounds), view)
    found.start(0.0)
    return found


def come(found: Bootstrap, *peers: int, at: float) -> Decision:
    for peer in peers:
        found.record_hello(peer, HELLO, at)
    return found.decide(at)


def test_enough_peers_begin_when_their_patience_is_over() -> None:
    found = gathering(min_peers=4)
    assert come(found, 0, 1, 2, at=20.0) == WaitForPeers((3, 4)), "a quorum, but not enough"
    assert come(found, 3, at=25.0) == WaitForPeers((4,))
    assert found.decide(25.0 + PATIENCE_S) == WaitForPeers((4,))
    assert found.decide(25.1 + PATIENCE_S) == BeginFresh((0, 1, 2, 3))


def test_the_patience_counts_from_when_they_were_enough_whoever_comes_later() -> None:
    found = gathering(min_peers=3)
    come(found, 0, 1, 2, at=1.0)
    assert come(found, 3, at=10.0) == WaitForPeers((4,))
    assert found.decide(11.1) == BeginFresh((0, 1, 2, 3))


def test_all_of_them_do_not_wait() -> None:
    assert come(gathering(min_peers=3), 0, 1, 2, 3, 4, at=1.0) == BeginFresh((0, 1, 2, 3, 4))


def test_who_has_ended_and_is_not_started_again_is_not_waited_for() -> None:
    """Its model was refused before it had a link to anybody: nobody has seen it leave."""
    ended = set[int]()
    found = gathering(min_peers=0, peers=3, ended=ended)
    assert come(found, 0, 1, at=1.0) == WaitForPeers((2,))
    ended.add(2)
    assert found.decide(1.1) == BeginFresh((0, 1))


def test_fewer_than_that_do_not_begin_though_they_are_a_quorum() -> None:
    found = gathering(min_peers=4)
    assert come(found, 0, 1, 2, at=1.0) == WaitForPeers((3, 4))
    said = "3 of 4 needed peers started in 61 s; missing: 3, 4"
    assert found.decide(START_S + 1) == Halt(said, NEVER_STARTED)


def test_without_a_number_only_the_start_timeout_ends_the_wait() -> None:
    found = gathering(min_peers=0)
    come(found, 0, 1, 2, 3, at=1.0)
    assert found.decide(START_S - 1) == WaitForPeers((4,))
    assert found.decide(START_S + 1) == BeginFresh((0, 1, 2, 3))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"peers": 4, "min_peers": 2}, "2: at least 3 peers are needed, the majority of 4"),
        ({"peers": 4, "min_peers": 5}, "5: only 4 peers start"),
        (
            {"peers": 9, "min_peers": 6, "aggregator": "krum", "f": 2},
            "6: at least 7 peers are needed, for krum to tolerate f=2",
        ),
    ],
)
def test_a_number_that_could_not_train_is_refused_before_the_start(
    options: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=f"min_peers = {said}") as refused:
        fitting.check_rule(resolve(options))
    assert "--min-peers" in str(refused.value.hint)


def test_with_the_quorum_available_any_number_will_do() -> None:
    found = fitting.check_rule(resolve({"peers": 4, "min_peers": 1, "quorum": "available"}))
    assert found.config.needed_to_start == 1


def test_what_peers_need_to_start_is_what_the_core_counts() -> None:
    config = RunConfig(peers=5, min_peers=4, patience_s=3.0, run="00" * 8, f=0)
    rounds = config.settings().rounds
    assert (config.needed_to_start, rounds.min_peers, rounds.patience_s) == (4, 4, 3.0)


def test_a_launcher_of_one_peer_names_whom_that_lacks_and_who_has_come() -> None:
    view, config = RunModel([0]), RunConfig(peers=4, min_peers=3)
    view.apply(event("started", 0, incarnation=0))
    view.apply(event("waiting", 0, 5.0, missing=[2, 3]))
    assert view.lives.awaited(5.1) == [2, 3]
    said = "! waiting for peers 2, 3 since 7 s (at most 60 s; 10 s once 3 are here); here: 0, 1"
    assert waiting(view, config, 7.0, 5.1) == said
    assert view.lives.awaited(16.0) == [], "it would have said so again"
    assert view.apply(event("ready", 0, 5.2, present=[0, 1, 2])) == [
        "! it begins without 3: peers that arrive later receive the state of the others"
    ]


def test_a_peer_of_ours_that_is_here_and_not_ready_is_waited_for() -> None:
    view = RunModel(3)
    for peer in range(3):
        view.apply(event("started", peer, incarnation=0))
    view.apply(event("waiting", 0, 6.0, missing=[2]))
    said = "! waiting for peer 2 since 6 s (at most 60 s); here: 0, 1"
    assert waiting(view, RunConfig(peers=3), 6.0, 6.0) == said


@pytest.mark.parametrize(
    ("options", "failed", "round_id", "stopped"),
    [
        ({}, 3, 0, [3]),
        ({}, 2, 0, []),  # one trains, and can send its state
        ({}, 3, 1, []),  # the state is lost, which is another end
        ({"quorum": "available"}, 3, 0, []),
        ({"room": 5}, 3, 0, []),
        ({"peers": 5, "min_peers": 5}, 3, 0, []),  # another launcher has the fifth
    ],
)
def test_a_peer_is_stopped_if_all_that_began_without_it_failed_and_nobody_else_can_come(
    tmp_path: Path, options: dict[str, Any], failed: int, round_id: int, stopped: list[int]
) -> None:
    config = RunConfig(**{"peers": 4, "run_dir": str(tmp_path), **options})
    screen: Any = SimpleNamespace(print_line=lambda line: None)
    run = OngoingRun(
        config, Program(""), screen, dict.fromkeys(range(4), 0), joins=False, relays=False
    )
    run.began = time.monotonic()
    run.view.apply(event("started", 3, incarnation=0))
    for peer in range(3):
        run.view.apply(event("ready", peer, present=[0, 1, 2]))
    run.view.apply(event("round", 0, round=round_id))
    for peer in range(failed):
        run.view.apply(event("exited", peer, code=1))
        run.outcome.lives.append(ProcessLife(peer, 0, 1, None, (), 0.0, 0.0))
        run.ended.add(peer)
    processes: Any = SimpleNamespace(running={3: 3})
    shutdown: Any = SimpleNamespace(unneeded=set(), dismiss=lambda process: None)
    StartWait(run, processes, shutdown, None).check()
    assert sorted(run.outcome.dismissed) == stopped


@pytest.mark.parametrize(("is_done", "ends"), [(True, []), (False, ["never_started"])])
def test_scripts_without_a_swarm_are_not_waited_for(
    tmp_path: Path, is_done: bool, ends: list[str]
) -> None:
    config = RunConfig(peers=3, run_dir=str(tmp_path))
    screen: Any = SimpleNamespace(print_line=lambda line: None, remind=lambda line: None)
    run = OngoingRun(
        config, Program(""), screen, dict.fromkeys(range(3), 0), joins=False, relays=False
    )
    run.open(tmp_path)
    run.view.apply(event("exited", 0, code=0) if is_done else event("started", 0, incarnation=0))
    ended: list[str] = []
    processes: Any = SimpleNamespace(
        running={}, first_start=run.began - 1000, is_here=lambda peer: False
    )
    shutdown: Any = SimpleNamespace(unneeded=set(), end=lambda status, *line: ended.append(status))
    StartWait(run, processes, shutdown, None).check()
    assert ended == ends


def test_a_start_says_whom_it_waits_for_at_longer_and_longer_intervals() -> None:
    reminder = WaitingReminder(100.0, 5.0)
    times = [at for at in range(200) if reminder.is_due(100.0 + at, {2, 3})]
    assert times == [5, 15, 45, 135]
    reminder = WaitingReminder(100.0, 5.0)
    times = [at for at in range(60) if reminder.is_due(100.0 + at, {2, 3} if at < 7 else {3})]
    assert times == [5, 10, 30]


def test_only_a_log_that_is_there_is_named(tmp_path: Path) -> None:
    log = tmp_path / "peer-1" / "out.log"
    assert not name_log(tmp_path, 1)
    log.parent.mkdir()
    log.touch()
    assert not name_log(tmp_path, 1), "it is empty"
    log.write_text("a line\n")
    assert name_log(tmp_path, 1) == f": {log}"


async def test_why_somebody_is_missing_is_found_out_in_the_background(tmp_path: Path) -> None:
    for peer in (1, 2):
        address = "tcp://127.0.0.1:9"
        SeedFolder(tmp_path / "seeds", peer, 9).announce(address, address, 0)
    announce_end(tmp_path / "seeds", 2, 0)
    tries = ReachabilityProbe(tmp_path, own={0})
    assert tries.troubles([0, 1, 2, 3], shared=True) == []
    assert tries._task is not None
    await tries._task
    assert tries.troubles([0, 1, 2, 3], shared=True) == [
        "0 has not completed gossip.init() and peer.prepare()",
        "1 at 127.0.0.1:9: connection refused: nothing listens there",
        "2 has ended",
        f"3 has no address in {tmp_path}/seeds: it was not started, or it uses another folder",
    ]
    tries.close()
