"""What went wrong in a run, told from its folder."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from event_rows import event_row

from gossip.config import resolve
from gossip.launch.report import explain, html
from gossip.launch.report.html import (
    impact,
    incidents,
    learning,
    membership,
    overview,
    participation,
    recorded,
    rounds,
)
from gossip.launch.report.html.charts import Line, LineChart, TextTable
from gossip.launch.report.html.incidents import Incident
from gossip.launch.report.html.recorded import RecordedRun
from gossip.observe import documents
from gossip.run import checkpoints
from gossip.run.telemetry import JsonLines, write_json

BEGAN = 1_760_000_000.0


def made(
    folder: Path,
    events: list[dict[str, Any]],
    rounds: int = 0,
    of: Callable[[int], Iterable[int]] = lambda at: range(4),
    handed_on: Iterable[int] = (),
    **options: Any,
) -> RecordedRun:
    """A run of four peers with these events; ``t`` of each is seconds since its begin. ``of``: who
    contributes to a round. ``handed_on``: rounds that the second server in order has made."""
    folder.mkdir(exist_ok=True)
    resolved = resolve({"peers": 4, "name": "t", "run_dir": str(folder), **options})
    resolved.with_values("x", run="00" * 8, f=1).config.dump(folder / "config.json")
    file = JsonLines(folder / "events.jsonl", "events")
    begin = [
        event_row(name, peer, 0.0, incarnation=0)
        for peer in range(4)
        for name in ("spawned", "started", "ready")
    ]
    for row in [*begin, *events]:
        file.write({**row, "wall": BEGAN + row["t"]})
    file.close()
    commits = JsonLines(folder / "commits.jsonl", "commits")
    for at in range(rounds):
        commits.write(
            {
                "t": at / 10,
                "wall": BEGAN + at / 10,
                "round": at,
                "server": at % 4,
                "made_at": 1 if at in handed_on else 0,
                "chain": f"h{at}",
                "parent": f"h{at - 1}",
                "digest": f"d{at}",
                "contributors": [{"peer": peer, "weight": 0.25} for peer in of(at)],
            }
        )
    commits.close()
    return recorded.RecordedRun(folder)


def one(run: RecordedRun, word: str) -> Incident:
    (found,) = [each for each in incidents.of(run) if word in each.what]
    return found


def launcher(folder: Path, ended: float) -> None:
    (folder / "launchers").mkdir(parents=True)
    row = {"pid": 2**22 + 1, "started": 1, "machine": "none/1", "host": "h", "user": 0}
    write_json(
        folder / "launchers" / "1.json", {**row, "since": BEGAN, "peers": [0], "ended": ended}
    )


def test_who_noticed_a_death_counts_also_when_the_launcher_read_it_first(tmp_path: Path) -> None:
    """It reads what peers have sent one peer after the other."""
    run = made(
        tmp_path,
        [
            event_row("skip", 0, 2.05, subject=1, reason="disconnected"),
            event_row("fault", 1, 2.0, kind="crash", round=20),
            event_row("dead", 0, 3.0, subject=1, by=0),
        ],
        rounds=60,
    )
    assert (
        one(run, "killed").noticed == "skipped by all after 50 ms; declared dead by all after 1.0 s"
    )


def test_a_peer_that_somebody_killed_is_told_of_as_nobodys_plan(tmp_path: Path) -> None:
    run = made(
        tmp_path,
        [
            event_row("exited", 1, 2.0, signal=9, how="killed by SIGKILL"),
            event_row("skip", 0, 2.1, subject=1, reason="disconnected"),
            event_row("dead", 0, 3.0, subject=1, by=0),
        ],
        rounds=60,
    )
    found = one(run, "not in the fault plan")
    assert (found.who, found.t) == ((1,), BEGAN + 2.0)
    assert found.noticed == "skipped by all after 100 ms; declared dead by all after 1.0 s"
    assert found.back == "never"
    assert found.effect == "rounds continued as before (longest 100 ms)"


def test_a_hang_is_over_when_the_peer_is_in_a_round_again(tmp_path: Path) -> None:
    fault = "hang:2@10+3s"
    run = made(
        tmp_path,
        [
            event_row("fault", 2, 1.0, kind="hang", fault=fault, seconds=3.0),
            event_row("skip", 0, 1.4, subject=2, reason="no answer"),
            event_row("continued", 2, 4.0),
            event_row("round", 2, 4.5, round=50, step=51),
        ],
        faults=[fault],
    )
    found = one(run, "SIGSTOP")
    assert found.noticed == "skipped by all after 400 ms"
    assert found.back == "woken after 3.0 s; in a round again 3.5 s after it was stopped"
    (stopped,) = [each for each in run.spans[2] if each.state == "stopped"]
    assert (stopped.start, stopped.stop) == (1.0, 4.0)


@pytest.mark.parametrize(
    ("written", "log", "said"),
    [
        (
            {
                "type": "NameError",
                "message": "no 'x'\nmore",
                "frames": [{"file": "a/t.py", "line": 3}],
            },
            "Traceback ...\nNameError: no 'x'\n",
            "its script ended with an error: NameError: no 'x' (t.py:3)",
        ),
        # Before gossip.init() nobody writes more than the log.
        (
            None,
            "  x = (\nSyntaxError: '(' was never closed\n\n",
            "SyntaxError: '(' was never closed",
        ),
        ({"type": 5, "message": [], "frames": [7]}, "", "its script ended with an error: error"),
        (None, None, "its script ended with an error"),
    ],
)
def test_what_a_script_died_of_is_told(
    written: dict[str, Any] | None, log: str | None, said: str, tmp_path: Path
) -> None:
    (tmp_path / "peer-1").mkdir()
    if written is not None:
        write_json(tmp_path / "peer-1" / "error.json", written)
    if log is not None:
        (tmp_path / "peer-1" / "out.log").write_text(log)
    died = event_row("exited", 1, 2.0, signal=None, code=1, how="exit code 1")
    found = one(made(tmp_path, [died]), "its script ended with an error")
    assert found.what.endswith(said)
    assert found.noticed == "by its launcher; its output is in peer-1/out.log"


def test_a_script_that_raised_did_so_when_it_left_the_rounds_and_not_when_its_process_ended(
    tmp_path: Path,
) -> None:
    halted = event_row("halted", 1, 1.45, reason="raised", round=13)
    ended = event_row("exited", 1, signal=None, code=1, how="exit code 1")
    run = made(tmp_path, [halted, {**ended, "t": 3.3}], rounds=30)
    found = one(run, "its script ended with an error")
    assert (found.t, found.round) == (BEGAN + 1.45, 13)
    assert found.effect == "rounds continued as before (longest 100 ms)"


def test_who_falls_silent_behind_a_script_that_raised_is_an_incident(tmp_path: Path) -> None:
    raised = event_row("halted", 1, 1.0, reason="raised", round=5)
    dead = event_row("dead", 0, subject=2, round=12, by=0, reason="no answer")
    run = made(tmp_path, [raised, {**dead, "t": 2.0}], rounds=30)
    assert one(run, "fell silent").who == (2,)


def test_of_a_peer_that_came_back_it_is_told_when_its_process_was_started(tmp_path: Path) -> None:
    fault = "restart:1@10+3s"
    run = made(
        tmp_path,
        [
            event_row("fault", 1, 1.0, kind="restart", fault=fault, round=10),
            event_row("exited", 1, 1.1, signal=9, how="killed by SIGKILL"),
            event_row("spawned", 1, 4.0, incarnation=1),
            event_row("started", 1, 6.0, incarnation=1),
            event_row("round", 1, 9.0, round=80, step=81, incarnation=1),
        ],
        faults=[fault],
    )
    assert one(run, "to be restarted").back == (
        "in round 80, 8.0 s after its death; its process was started after 3.0 s"
    )


def test_only_rounds_that_another_server_has_made_went_to_one(tmp_path: Path) -> None:
    def went(peer: int, at: int, reason: str) -> dict[str, Any]:
        turn = {"round": at, "shard": 0, "attempt": 1, "reason": reason}
        return event_row("attempt", peer, at / 10, **turn)

    refused = "a result of 1 is refused: it opposes this peer's update, with a cosine of -0.5"
    alone = [went(3, at, refused) for at in range(10)]
    run = made(
        tmp_path,
        [*alone, went(0, 5, "1 is skipped: suspect"), went(2, 5, "1 is skipped: suspect")],
        rounds=10,
        handed_on=(5,),
    )
    assert run.handed_on == {5: "1 is skipped: suspect"}
    (told,) = rounds.section(run, ()).text
    assert told.endswith("Reasons: the server is skipped: suspect (1).")
    effect = impact.effect(run, run.began, None)
    assert effect.endswith(f"until {run.clock(run.ended)}, 1 went to another server")


def speed(folder: Path, told: Iterable[tuple[int, float, int]]) -> Line:
    rows = [event_row("round", peer, t, round=step - 1, step=step) for peer, t, step in told]
    parts = learning.section(made(folder, rows), ()).parts
    (found,) = [each for each in parts if isinstance(each, LineChart) and "Speed" in each.title]
    return found.lines[0]


def test_what_a_peer_took_over_counts_as_no_speed_of_its_own(tmp_path: Path) -> None:
    told = [(1, at / 10, at) for at in (*range(1, 51), *range(151, 201))]
    line = speed(tmp_path, [*told, *((0, at / 10, at) for at in range(1, 201))])
    assert line.y[np.isfinite(line.y)].max() == pytest.approx(10.0, rel=0.05)


def test_fast_rounds_of_one_report_count_but_none_that_a_peer_received(tmp_path: Path) -> None:
    """Each report from 5 to 6 s is of seven rounds. Peer 2 goes back; 3 is absent from 1 to 3."""
    steps = {at / 10: at + 6 * min(max(at - 50, 0), 10) for at in range(1, 101)}
    told = [(peer, t, steps[t]) for t in steps for peer in range(4) if peer < 3 or not 1 < t < 3.1]
    line = speed(tmp_path, [(3, 3.0, 11), (2, 0.01, 900), (2, 0.02, 1), *told])
    y, x = line.y, line.x
    assert y[(x > 5.5) & (x < 5.9)].tolist() == pytest.approx([70.0])
    assert y[(x > 1.5) & (x < 4.5)].max() == pytest.approx(10.0, rel=0.05)


def test_what_befell_most_peers_hides_none_that_had_trouble_of_its_own(tmp_path: Path) -> None:
    cut = "partition:0,1|2,3@1s+1s"
    quarantined = {"subject": 3, "reasons": ["far"], "trust": 0.1, "round": 10}
    run = made(
        tmp_path,
        [
            event_row("fault", 0, 1.0, kind="partition", fault=cut),
            event_row("quarantined", 0, 1.0, **quarantined),
            event_row("fault_over", 0, 2.0, fault=cut),
            event_row("exited", 2, 2.0, code=None, signal=9, how="killed"),
        ],
        rounds=50,
        faults=[cut],
    )
    spans, found = run.spans, incidents.of(run)
    assert incidents.in_trouble(spans, found, 1) == [2]
    assert incidents.in_trouble(spans, found, 2) == [2, 3]


def test_a_peer_that_is_dead_for_others_without_a_reason_is_an_incident(tmp_path: Path) -> None:
    run = made(
        tmp_path,
        [
            event_row("dead", 0, 5.0, subject=3, by=0, reason="no answer"),
            event_row("dead", 1, 5.1, subject=3, by=0, reason="no answer"),
            event_row("alive_again", 0, 9.0, subject=3),
        ],
    )
    found = one(run, "declared dead")
    assert (found.who, found.noticed) == ((3,), "declared dead by peer 0: no answer")
    assert found.back == "alive again after 4.0 s"
    assert found.what.endswith("explains it")


def test_who_fell_silent_did_so_when_first_skipped_and_stood_still(tmp_path: Path) -> None:
    away = "2 was paused"
    run = made(
        tmp_path,
        [
            event_row("skip", 0, 4.0, subject=3, by=0, round=39),
            event_row("skip", 1, 4.1, subject=2, by=1, round=40),
            event_row("dead", 0, 5.0, subject=2, by=0, round=49),
            event_row("attempt", 2, 6.0, round=41, attempt=1, reason=away),
            event_row("alive_again", 0, 6.1, subject=2),
        ],
        rounds=90,
    )
    found = one(run, "fell silent")
    assert found.what.endswith("it was paused like a stopped process")
    assert (found.t, found.round, found.who) == (BEGAN + 4.1, 40, (2,))
    assert (
        found.noticed == "first skipped by peer 1; declared dead by peer 0 after 900 ms: no answer"
    )
    assert found.back == "alive again after 2.0 s"


def test_a_silence_that_only_an_ended_peer_reported_is_none_of_a_later_one(tmp_path: Path) -> None:
    run = made(
        tmp_path,
        [
            event_row("skip", 0, 1.0, subject=2, by=0, round=10),
            event_row("exited", 0, 2.0, code=None, signal=9, how="killed by SIGKILL"),
            event_row("dead", 1, 60.0, subject=2, by=1, round=590),
        ],
    )
    assert one(run, "fell silent").noticed == "declared dead by peer 1: no answer"


@pytest.mark.parametrize("load", [3.0, 15.0])
def test_an_overloaded_machine_explains_who_fell_silent(tmp_path: Path, load: float) -> None:
    """From more than two waiting processes for each core on."""
    (tmp_path / "environment.json").write_text(
        json.dumps({"host": "h", "hardware": {"usable_cores": 2}})
    )
    used = {"event": "usage", "cpu_s": 1.0, "memory": 1, "sent_bytes": 1, "received_bytes": 1}
    dead = {"event": "dead", "subject": 3, "by": 0, "reason": "no answer", "round": 49}
    run = made(
        tmp_path,
        [
            {"t": 4.0, "peer": 3, "load": 99.0, **used},
            {"t": 5.0, "peer": 0, **dead},
            {"t": 8.0, "peer": 3, "load": load, **used},
        ],
    )
    cause = "no fault or end of its process explains it"
    if load > 4:
        cause = "its machine was overloaded then, load 15.0 on 2 cores"
    assert one(run, "declared dead").what == f"fell silent and was declared dead: {cause}"


def test_a_node_that_was_started_again_explains_the_silence_of_its_peer(tmp_path: Path) -> None:
    run = made(
        tmp_path,
        [
            event_row("dead", 0, 5.0, subject=3, by=0),
            event_row("started", 3, 7.0, incarnation=1),
            event_row("alive_again", 0, 7.1, subject=3),
        ],
    )
    assert one(run, "declared dead").what.endswith("its node ended, and a new one was started")


def test_who_is_gone_because_the_run_is_over_is_none(tmp_path: Path) -> None:
    over = [
        event_row("halted", 1, 8.0, exit_code=0, round=5),
        event_row("dead", 0, 8.5, subject=1, by=0),
    ]
    assert incidents.of(made(tmp_path, over)) == []


def test_a_partition_says_who_waited_and_when_all_were_back(tmp_path: Path) -> None:
    fault = "partition:0,1|2,3@2s+4s"
    run = made(
        tmp_path,
        [
            event_row("fault", 0, 2.0, kind="partition", fault=fault, round=7),
            event_row("skip", 0, 2.3, subject=2, reason="no link"),
            event_row("paused", 2, 2.4, alive=[2, 3], need=3, round=8),
            event_row("dead", 0, 3.4, subject=2, by=0),
            event_row("fault_over", 0, 6.0, fault=fault, round=8),
            event_row("resumed", 2, 6.5, alive=[0, 1, 2, 3]),
        ],
        faults=[fault],
        rounds=60,
        of=lambda at: range(4) if at < 22 else (0, 1),
    )
    found = one(run, "partition between peers 0,1 and peers 2,3")
    assert (found.round, found.who) == (7, (0, 1, 2, 3))
    assert found.noticed == "first peer skipped after 300 ms"
    assert found.back == "repaired after 4.0 s; the last peer was back 500 ms later"
    assert found.effect == (
        "peers 0,1 continued; peer 2 waited for a quorum; "
        "rounds continued as before (longest 100 ms)"
    )
    assert len(incidents.of(run)) == 1, "its dead are explained by it"


def test_who_was_killed_during_a_partition_is_not_skipped_for_it(tmp_path: Path) -> None:
    fault, kill = "partition:0,1|2,3@2s+4s", "crash:1@4s"
    events = [
        {"t": 2.0, "event": "fault", "kind": "partition", "fault": fault, "round": 7},
        {"t": 4.0, "event": "fault", "kind": "crash", "fault": kill, "round": 20},
        {"t": 4.1, "event": "skip", "subject": 1, "reason": "disconnected"},
        {"t": 6.0, "event": "fault_over", "fault": fault, "round": 40},
    ]
    events = [{"peer": 1 if row.get("kind") == "crash" else 0, **row} for row in events]
    run = made(tmp_path, events, faults=[fault, kill], rounds=60)
    assert one(run, "partition between").noticed == "-"
    assert "skipped by" in one(run, "killed (SIGKILL)").noticed


def test_a_fault_of_many_peers_names_them_as_a_range(tmp_path: Path) -> None:
    (tmp_path / "wide").mkdir()
    run = made(tmp_path / "wide", [], faults=["sign_flip:12-63*10"], peers=64)
    assert incidents.of(run)[0].fault == "sign_flip:12-63*10"


def test_a_drill_that_makes_peers_lie_for_a_while_is_a_row_with_its_end(tmp_path: Path) -> None:
    fault = "drill 2: sign_flip:1,3*10"
    said = {"peer": 0, "subject": 3, "reasons": ["it stood out"], "round": 9}
    run = made(
        tmp_path,
        [
            event_row("fault", 1, 2.0, kind="sign_flip", fault=fault),
            {"t": 3.0, "event": "suspected", "trust": 0.4, **said},
            event_row("fault_over", 1, 6.0, kind="sign_flip", fault=fault),
        ],
    )
    found = one(run, "injected by hand")
    assert (found.who, found.back) == ((1, 3), "over after 4.0 s")
    assert found.noticed == "suspected at 0:03.0 (round 9), 1 of 2: it stood out"


def test_rounds_that_were_lost_one_after_the_other_are_one_row(tmp_path: Path) -> None:
    run = made(
        tmp_path,
        [
            event_row("lost_round", peer, 1.0 + at, round=at, reason="too few")
            for at in (3, 4, 5, 9)
            for peer in (0, 1)
        ],
    )
    found = [each for each in incidents.of(run) if "lost" in each.what]
    assert [(each.round, each.what[:8]) for each in found] == [(3, "3 rounds"), (9, "1 round ")]
    assert found[0].effect == "too few"


def test_a_suspect_that_no_fault_explains_is_told_of(tmp_path: Path) -> None:
    said = {"peer": 0, "subject": 1, "reasons": ["it stood out"], "round": 4}
    run = made(tmp_path, [{"t": 1.0, "event": "suspected", "trust": 0.4, **said}], rounds=20)
    found = one(run, "was suspected")
    assert (found.who, found.noticed) == ((1,), "suspected at 0:01.0 (round 4): it stood out")
    assert found.effect.startswith("in 100 % of the rounds; 0 % of updates")


def test_who_is_suspected_once_more_at_the_end_is_not_trusted_again(tmp_path: Path) -> None:
    said = {"peer": 0, "subject": 1, "reasons": ["it stood out"], "trust": 0.4}
    names = "suspected", "trusted", "suspected"
    rows = [{"t": 1.0 + at, "event": name, "round": at, **said} for at, name in enumerate(names)]
    assert one(made(tmp_path, rows), "was suspected").back == "suspected at the end"


def test_a_killed_launcher_is_the_last_incident_and_says_what_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher(tmp_path, ended=0.0)
    run = made(tmp_path, [event_row("round", 0, 9.0, round=469, step=470)])
    assert run.state.state in ("killed", "elsewhere")
    run.state.state = "killed"
    checkpoints.note_folder(tmp_path, tmp_path / "ckpt")
    for step, at in ((440, 7.0), (450, 8.0), (460, 8.5), (480, 99.0)):
        monkeypatch.setattr(time, "time", lambda at=at: BEGAN + at)
        checkpoints.write(tmp_path / "ckpt", step, {"model.bin": b"weights"}, {}, keep=9)
    next((tmp_path / "ckpt").glob("*460/manifest.json")).write_text("{")
    found = incidents.of(run)[-1]
    assert found.who == (0, 1, 2, 3)
    assert found.effect == (
        "the last record is of step 470; the newest earlier checkpoint is of step 450, so "
        "20 are lost"
    )
    assert "was killed, after" in overview.headline(run, [found])


@pytest.mark.parametrize(("others", "missing"), [("step 7 to ck: no room", True), (None, False)])
def test_a_last_checkpoint_that_is_missing_is_an_incident_with_the_reason(
    tmp_path: Path, others: str | None, missing: bool
) -> None:
    said = {0: "step 7 to ck: no room", 1: others, 2: others, 3: others}
    ends = [event_row("halted", p, 5.0, exit_code=0, not_saved=why) for p, why in said.items()]
    run = made(tmp_path, ends, rounds=50)
    lines = " ".join(" ".join(html.lines_of(run, 80)).split())
    assert ("effect: step 7 to ck: no room" in lines) is missing
    if missing:
        found = one(run, "the last checkpoint was not written")
        assert (found.t, found.round) == (BEGAN + 5.0, 49)
        assert "a missing checkpoint" in overview.headline(run, [found])


def test_a_fault_that_never_came_is_the_last_row_and_has_no_time(tmp_path: Path) -> None:
    why = {"fault": "crash:1@500", "struck": False, "why": "round 20 was the last"}
    write_json(tmp_path / "summary.json", {"exit_code": 0, "faults_missed": [why]})
    run = made(tmp_path, [event_row("round", 0, 1.0, round=1)])
    found = incidents.of(run)[-1]
    assert (found.t, found.effect) == (None, "round 20 was the last")
    assert found.described == "never took place (fault: crash:1@500)"


@pytest.mark.parametrize("fault", ["slow:3*2", "sign_flip:3*10", "wrong_results:3"])
def test_a_fault_that_never_came_has_no_row_with_a_time(fault: str, tmp_path: Path) -> None:
    why = {"fault": fault, "struck": False, "why": "peer 3 never trained"}
    write_json(tmp_path / "summary.json", {"exit_code": 0, "faults_missed": [why]})
    run = made(tmp_path, [event_row("round", 0, 1.0, round=1)], faults=(fault,))
    assert [(each.what, each.t) for each in incidents.of(run) if each.fault == fault] == [
        ("never took place", None)
    ]


def test_rows_of_another_version_do_not_end_the_report(tmp_path: Path) -> None:
    odd: list[dict[str, Any]] = [
        event_row("round", 0, 1.0, round="x", trust=3, contributors=7),
        event_row("dead", "0", 1.1, subject=None),
        event_row("fault", 0, 1.2, kind="hang", seconds="long", round=None),
        event_row("late", 0, 1.3, missing=3, round=2),
        event_row("halted", 0, 1.4, traffic=[1]),
        event_row(5, 0, 1.5),
    ]
    run = made(tmp_path, odd, rounds=3)
    incidents.of(run)
    assert run.spans
    (tmp_path / "peer-0").mkdir()
    (tmp_path / "peer-0" / "metrics.jsonl").write_text('{"loss": [1], "peer": 0}\n{"t": "x"}\n[]\n')
    with (tmp_path / "commits.jsonl").open("a") as file:
        for row in ({"round": 3, "contributors": {"a": 1}}, {"round": 4, "contributors": [[1], 2]}):
            file.write(json.dumps({"wall": BEGAN + 2, **row}) + "\n")
    assert len(recorded.RecordedRun(tmp_path).commits) >= 3


@pytest.mark.parametrize("name", ["events.jsonl", "commits.jsonl"])
def test_a_run_whose_rows_are_gone_has_a_report(name: str, tmp_path: Path) -> None:
    made(tmp_path, [], rounds=3)
    (tmp_path / name).unlink()
    assert incidents.of(recorded.RecordedRun(tmp_path)) == []


def cut_in_two(t: float, large: tuple[int, ...], small: tuple[int, ...]) -> list[dict[str, Any]]:
    """Rows of a partition: each side holds the other for dead, and the smaller one waits."""
    held = [(by, of) for by in small for of in large] + [(by, of) for by in large for of in small]
    return [
        *(event_row("paused", peer, t + 0.5, alive=list(small), need=3) for peer in small),
        *(event_row("dead", by, t + 1.0, subject=of, by=by) for by, of in held),
    ]


def states(run: RecordedRun, peer: int) -> list[tuple[str, float]]:
    return [(each.state, each.start) for each in run.spans[peer]][1:]


def test_in_a_partition_those_are_dead_whom_most_hold_for_dead(tmp_path: Path) -> None:
    run = made(tmp_path, [*cut_in_two(5.0, (0, 1, 2), (3,)), {"t": 9.0, "event": "end"}])
    assert [states(run, peer) for peer in (0, 1, 2)] == [[], [], []], "they train all the time"
    assert membership.away_s(run.spans[0]) == 0.0
    assert states(run, 3) == [("paused", 5.5)], "it waits, whatever it is for the others"
    assert membership.away_s(run.spans[3]) == pytest.approx(3.5)


def test_whom_those_hold_for_dead_who_wait_is_dead_for_nobody_who_trains(tmp_path: Path) -> None:
    run = made(tmp_path, [*cut_in_two(5.0, (3,), (0, 1, 2)), {"t": 9.0, "event": "end"}])
    assert states(run, 3) == []


def test_who_is_dead_for_one_of_many_trains_for_the_report(tmp_path: Path) -> None:
    dead = [event_row("dead", by, 5.0 + by, subject=2, by=by) for by in (0, 1, 3)]
    back = [event_row("alive_again", by, 9.0, subject=2) for by in (0, 1)]
    run = made(tmp_path, [*dead, *back, {"t": 10.0, "event": "end"}])
    assert states(run, 2) == [("dead", 8.0), ("training", 9.0)], "three of four are most, two not"


def killed(folder: Path, events: list[dict[str, Any]], **options: Any) -> RecordedRun:
    """A run like that of ``made`` whose launcher was killed."""
    run = made(folder, events, **options)
    run.state.state = "killed"
    return run


def test_the_round_of_a_killed_launcher_is_that_of_the_last_commit(tmp_path: Path) -> None:
    # Peers tell of rounds ten times a second at most.
    run = killed(tmp_path, [event_row("round", 0, 5.0, round=50)], rounds=60)
    assert incidents.of(run)[-1].round == 59


def test_who_waited_for_a_quorum_when_all_were_killed_is_told_so(tmp_path: Path) -> None:
    run = killed(tmp_path, [*cut_in_two(5.0, (0, 1, 2), (3,)), {"t": 9.0, "event": "end"}])
    (table,) = [
        part
        for part in participation.section(run, (), []).parts
        if isinstance(part, TextTable) and part.caption == "Each peer"
    ]
    assert [row[1] for row in table.rows] == [
        *["trained at the last report"] * 3,
        "waited for a quorum at the last report",
    ]


def test_each_side_of_a_partition_is_not_silent_for_the_round_it_held_up(tmp_path: Path) -> None:
    fault = "partition:0-2|3@2s+4s"
    begun = event_row("fault", 0, 5.85, kind="partition", fault=fault)
    skips = [(0, 3), (3, 0), (3, 1), (3, 2)]
    rows = [event_row("skip", by, 5.88, subject=of, reason="x") for by, of in skips]
    run = made(tmp_path, [begun, *rows], rounds=60)
    duration = run.commits.lasted_s
    who, longest = run.commits.slowest()
    told = rounds.why(run, 59, float(duration[59]), who, longest)
    assert told == f"network fault: {fault}"


def test_liars_whom_nobody_suspected_are_named_where_all_seems_well(tmp_path: Path) -> None:
    run = made(tmp_path, [], rounds=30, faults=["sign_flip:1,3"])
    told = overview.verdict(run, incidents.of(run))
    assert told.endswith("Peers 1,3 were Byzantine but never suspected.")
    seen = event_row("suspected", 0, 2.0, subject=3, trust=0.4, round=9)
    run = made(tmp_path / "seen", [seen], rounds=30, faults=["sign_flip:1,3"])
    assert learning.unseen_liars(run) == [1]


@pytest.mark.parametrize(
    ("fault", "about"),
    [
        ("sign_flip:1", "updates"),
        ("wrong_results:1", "results or states"),
        ("negated_gradients:1", "results of micro-batches"),
    ],
)
def test_what_a_liar_lies_about_is_told(fault: str, about: str, tmp_path: Path) -> None:
    run = made(tmp_path, [], faults=[fault])
    assert one(run, f"false {about}: ").who == (1,)


def test_the_page_counts_who_took_part_in_all_rounds_also_in_short_ones(tmp_path: Path) -> None:
    """Of the rounds of a peer one a second is looked at in full."""
    told = [
        event_row("round", at % 4, at / 50, round=at, step=at + 1, alive=4)
        | {"contributors": list(range(2 if at % 5 else 4)), "server": 0}
        for at in range(100)
    ]
    rows = made(tmp_path, told).view.progress.participation
    assert rows.mean is not None
    assert round(rows.mean, 12) == 0.6


def test_a_run_in_which_nothing_went_wrong_tells_of_refused_results(tmp_path: Path) -> None:
    refused = event_row("refused_result", 0, server=2, round=4, reason="x")
    assert overview.nothing_noticed(made(tmp_path, [])) == "No round has been trained."
    found = overview.nothing_noticed(made(tmp_path / "fine", [], rounds=2))
    assert found.endswith("that any peer noticed.")
    run = made(tmp_path / "refused", [refused, {**refused, "t": 1.1}], rounds=2)
    assert overview.verdict(run, []).endswith(
        "Nothing went wrong that any peer noticed. Peers rejected results 2 times, and accepted "
        "the next server's. Noisy updates cause this, but so does a server that rarely sends wrong "
        "results."
    )


def test_warnings_of_scripts_are_incidents(tmp_path: Path) -> None:
    """A run that learns nothing, or whose peers all do the same, has not gone well."""
    metrics = JsonLines(tmp_path / "metrics.jsonl", "metrics")
    for t in (2.0, 3.0):
        about = {"peer": 5 - int(t), "round": 0}
        metrics.write({"wall": BEGAN + t, **about, "warning": "call backward"})
        metrics.write({"wall": BEGAN + t, **about, "warning": t})  # logged by the script
    metrics.close()
    alike = event_row("identical_updates", 1, 0.5, round=3, peers=[0, 1])
    run = made(tmp_path, [alike, alike])
    found = incidents.of(run)
    assert [(each.who, each.round, run.clock(each.t or 0.0)) for each in found] == [
        ((), 3, "0:00.5"),
        ((2, 3), 0, "0:02.0"),
    ]
    assert overview.headline(run, found).endswith("2 warnings")
    told = " ".join(explain.explain(tmp_path, None))
    assert "peer.shard(loader)" in told
    assert "warning: call backward" in told
    assert "Nothing went wrong" not in told + overview.verdict(run, found)


def test_a_headline_has_the_result_and_the_gravest_incidents(tmp_path: Path) -> None:
    write_json(tmp_path / "summary.json", {"exit_code": 0, "status": "finished"})
    run = made(
        tmp_path,
        [
            event_row("round", 0, 1.0, round=119, step=120, loss=0.5),
            event_row("fault", 2, 1.0, kind="crash", fault="crash:server@9"),
        ],
        faults=["sign_flip:1,3*10"],
    )
    run.state.state = "ended"
    found = incidents.of(run)
    assert overview.headline(run, found) == (
        "Loss 0.5 after 120 steps, in spite of a killed server and 2 Byzantine peers"
    )
    kinds = [dataclasses.replace(SOME, kind=f"{name} fault") for name in "abcde"]
    run.state.outcome = documents.Outcome(exit_code=5, status="quorum_lost")
    assert overview.headline(run, [*kinds, SOME]) == (
        "The run ended with exit code 5 (quorum_lost), after 120 steps, with an a fault, a b "
        "fault, a c fault, a d fault and 1 other incident"
    )
    assert (
        overview.headline(run, [])
        == "The run ended with exit code 5 (quorum_lost), after 120 steps"
    )
    run.state.state, run.state.outcome = "killed", documents.Outcome()
    assert overview.headline(run, []) == "The run was killed, after 120 steps"
    end = dataclasses.replace(SOME, what="the launcher was killed")
    assert "Nothing went wrong" not in overview.verdict(run, [end])


def test_injected_faults_and_others_have_a_table_each(tmp_path: Path) -> None:
    rows = [dataclasses.replace(SOME, fault=fault, number=n) for n, fault in enumerate("ab", 1)]
    section = overview.incidents_section(made(tmp_path, []), [*rows, SOME])
    injected, others = [part for part in section.parts if isinstance(part, TextTable)]
    assert (injected.caption, injected.anchors) == (
        "Injected faults",
        ("incident-1", "incident-2"),
    )
    assert (others.caption, len(others.rows)) == ("Not injected", 1)


def test_from_when_the_times_of_a_plan_count_is_told_where_it_has_any(tmp_path: Path) -> None:
    run = made(tmp_path, [])
    run.view.lives.began_at = BEGAN + 3.0
    at = dataclasses.replace(SOME, fault="partition:0|1@45s+6s")
    of_round = dataclasses.replace(SOME, fault="crash:server@150")
    assert overview.times_of_faults(run, [at]).endswith("the start of training, at 0:03.0.")
    assert overview.times_of_faults(run, [of_round]) == ""


SOME = Incident("x", (0,), BEGAN, 1, "", "", "")


def test_what_was_sent_is_a_figure_of_a_run_without_a_summary(tmp_path: Path) -> None:
    used = {"t": 2.0, "event": "usage", "sent_bytes": 3 << 20, "received_bytes": 0}
    used |= {"cpu_s": 1.0, "memory": 1}
    run = killed(tmp_path, [{**used, "peer": peer} for peer in (0, 1)])
    assert [fact.value for fact in overview.facts(run) if fact.label == "Sent"] == ["6.0 MiB"]


def test_the_side_that_went_on_in_a_partition_is_named_whole(tmp_path: Path) -> None:
    """Who is in quarantine has no part in rounds, and is on that side all the same."""
    fault = "partition:0-2|3@2s+4s"
    told = [
        event_row("fault", 0, 2.0, kind="partition", fault=fault, round=7),
        event_row("fault_over", 0, 6.0, fault=fault, round=8),
    ]
    run = made(
        tmp_path, told, faults=[fault], rounds=80, of=lambda at: (0, 2) if at < 58 else range(4)
    )
    assert one(run, "partition").effect.startswith("peers 0-2 continued; ")
