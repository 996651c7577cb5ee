"""What went wrong in a run, told from its folder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from gossip.config import resolve
from gossip.launch.report.html import incidents, membership, recorded
from gossip.launch.report.html.incidents import Incident
from gossip.launch.report.html.recorded import RecordedRun
from gossip.run.telemetry import JsonLines, write_json

BEGAN = 1_760_000_000.0


def made(
    folder: Path, events: list[dict[str, Any]], rounds: int = 0, **options: Any
) -> RecordedRun:
    """A run of four peers with these events; ``t`` of each is seconds since its begin."""
    folder.mkdir(exist_ok=True)
    resolved = resolve({"peers": 4, "name": "t", "run_dir": str(folder), **options})
    resolved.with_values("x", run="00" * 8, f=1).config.dump(folder / "config.json")
    file = JsonLines(folder / "events.jsonl", "events")
    begin = [
        {"t": 0.0, "peer": peer, "event": name, "incarnation": 0}
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
                "chain": f"h{at}",
                "parent": f"h{at - 1}",
                "digest": f"d{at}",
                "contributors": [{"peer": peer, "weight": 0.25} for peer in range(4)],
            }
        )
    commits.close()
    return recorded.read(folder)


def one(run: RecordedRun, word: str) -> Incident:
    (found,) = [each for each in incidents.of(run) if word in each.what]
    return found


def launcher(folder: Path, ended: float) -> None:
    (folder / "launchers").mkdir(parents=True)
    row = {"pid": 2**22 + 1, "started": 1, "machine": "none/1", "host": "h", "user": 0}
    write_json(
        folder / "launchers" / "1.json", {**row, "since": BEGAN, "peers": [0], "ended": ended}
    )


def test_a_peer_that_somebody_killed_is_told_of_as_nobodys_plan(tmp_path: Path) -> None:
    run = made(
        tmp_path,
        [
            {"t": 2.0, "peer": 1, "event": "exited", "signal": 9, "how": "killed by SIGKILL"},
            {"t": 2.1, "peer": 0, "event": "skip", "subject": 1, "reason": "disconnected"},
            {"t": 3.0, "peer": 0, "event": "dead", "subject": 1, "by": 0},
        ],
        rounds=60,
    )
    found = one(run, "nobody had planned it")
    assert (found.who, found.t) == ((1,), BEGAN + 2.0)
    assert found.noticed == "skipped by all after 100 ms; dead for all after 1.0 s"
    assert found.back == "never"
    assert found.effect == "rounds went on as before (longest 100 ms)"


def test_a_hang_is_over_when_the_peer_is_in_a_round_again(tmp_path: Path) -> None:
    fault = "hang:2@10+3s"
    run = made(
        tmp_path,
        [
            {"t": 1.0, "peer": 2, "event": "fault", "kind": "hang", "fault": fault, "seconds": 3.0},
            {"t": 1.4, "peer": 0, "event": "skip", "subject": 2, "reason": "no answer"},
            {"t": 4.0, "peer": 2, "event": "continued"},
            {"t": 4.5, "peer": 2, "event": "round", "round": 50, "step": 51},
        ],
        faults=[fault],
    )
    found = one(run, "SIGSTOP")
    assert found.noticed == "skipped by all after 400 ms"
    assert found.back == "woken after 3.0 s; in a round again 3.5 s after it was stopped"
    (stopped,) = [each for each in membership.spans(run)[2] if each.state == "stopped"]
    assert (stopped.start, stopped.stop) == (1.0, 4.0)


def test_a_peer_that_is_dead_for_others_without_a_reason_is_an_incident(tmp_path: Path) -> None:
    run = made(
        tmp_path,
        [
            {"t": 5.0, "peer": 0, "event": "dead", "subject": 3, "by": 0, "reason": "no answer"},
            {"t": 5.1, "peer": 1, "event": "dead", "subject": 3, "by": 0, "reason": "no answer"},
            {"t": 9.0, "peer": 0, "event": "alive_again", "subject": 3},
        ],
    )
    found = one(run, "held for dead")
    assert (found.who, found.noticed) == ((3,), "by peer 0: no answer")
    assert found.back == "alive again after 4.0 s"


def test_who_is_gone_because_the_run_is_over_is_none(tmp_path: Path) -> None:
    over = [
        {"t": 8.0, "peer": 1, "event": "halted", "exit_code": 0, "round": 5},
        {"t": 8.5, "peer": 0, "event": "dead", "subject": 1, "by": 0},
    ]
    assert incidents.of(made(tmp_path, over)) == []


def test_a_partition_says_who_waited_and_when_all_were_back(tmp_path: Path) -> None:
    fault = "partition:0,1|2,3@2s+4s"
    run = made(
        tmp_path,
        [
            {
                "t": 2.0,
                "peer": 0,
                "event": "fault",
                "kind": "partition",
                "fault": fault,
                "round": 7,
            },
            {"t": 2.3, "peer": 0, "event": "skip", "subject": 2, "reason": "no link"},
            {"t": 2.4, "peer": 2, "event": "paused", "alive": [2, 3], "need": 3, "round": 8},
            {"t": 3.4, "peer": 0, "event": "dead", "subject": 2, "by": 0},
            {"t": 6.0, "peer": 0, "event": "fault_over", "fault": fault, "round": 8},
            {"t": 6.5, "peer": 2, "event": "resumed", "alive": [0, 1, 2, 3]},
        ],
        faults=[fault],
    )
    found = one(run, "partition of the network")
    assert (found.round, found.who) == (7, (0, 1, 2, 3))
    assert found.noticed == "first peer skipped after 300 ms"
    assert found.back == "whole again after 4.0 s; the last peer was back 500 ms later"
    assert "peer 2 waited for a quorum" in found.effect
    assert len(incidents.of(run)) == 1, "its dead are explained by it"


def test_a_drill_that_makes_peers_lie_for_a_while_is_a_row_with_its_end(tmp_path: Path) -> None:
    fault = "drill 2: sign_flip:1,3*10"
    said = {"peer": 0, "subject": 3, "reasons": ["it stood out"], "round": 9}
    run = made(
        tmp_path,
        [
            {"t": 2.0, "peer": 1, "event": "fault", "kind": "sign_flip", "fault": fault},
            {"t": 3.0, "event": "suspected", "trust": 0.4, **said},
            {"t": 6.0, "peer": 1, "event": "fault_over", "kind": "sign_flip", "fault": fault},
        ],
    )
    found = one(run, "injected")
    assert (found.who, found.back) == ((1, 3), "over after 4.0 s")
    assert found.noticed == "suspected at 0:03.0 (round 9), 1 of 2 (it stood out)"


def test_rounds_that_were_lost_one_after_the_other_are_one_row(tmp_path: Path) -> None:
    run = made(
        tmp_path,
        [
            {"t": 1.0 + at, "peer": peer, "event": "lost_round", "round": at, "reason": "too few"}
            for at in (3, 4, 5, 9)
            for peer in (0, 1)
        ],
    )
    found = [each for each in incidents.of(run) if "lost" in each.what]
    assert [(each.round, each.what[:8]) for each in found] == [(3, "3 rounds"), (9, "1 round ")]
    assert found[0].effect == "too few"


def test_a_suspect_that_no_fault_explains_is_told_of(tmp_path: Path) -> None:
    said = {"peer": 0, "subject": 1, "reasons": ["it stood out"], "round": 4}
    run = made(tmp_path, [{"t": 1.0, "event": "suspected", "trust": 0.4, **said}])
    found = one(run, "suspicion")
    assert (found.who, found.noticed) == ((1,), "suspected at 0:01.0 (round 4) (it stood out)")


def test_a_killed_launcher_is_the_last_incident_and_says_what_is_lost(tmp_path: Path) -> None:
    launcher(tmp_path, ended=0.0)
    run = made(tmp_path, [{"t": 9.0, "peer": 0, "event": "round", "round": 469, "step": 470}])
    assert run.state.state in ("killed", "elsewhere")
    run.state = dataclasses.replace(run.state, state="killed")
    run.saved = [recorded.SavedState(450, BEGAN + 8.0, 1, "")]
    found = incidents.of(run, incidents.Continuation("second", BEGAN + 20.0, 0))[-1]
    assert found.who == (0, 1, 2, 3)
    assert found.back == "run second went on from a checkpoint 11.0 s later"
    assert found.effect == (
        "the last words are of step 470; the newest checkpoint of before is that of step 450, so "
        "20 steps are lost"
    )
    # That one may be gone since: what counts is where the next run went on.
    found = incidents.of(run, incidents.Continuation("second", BEGAN + 20.0, 460))[-1]
    assert found.effect == (
        "the last words are of step 470; it went on at step 460, so 10 steps are lost"
    )


def test_a_fault_that_never_came_is_the_last_row_and_has_no_time(tmp_path: Path) -> None:
    why = {"fault": "crash:1@500", "struck": False, "why": "round 20 was the last"}
    write_json(tmp_path / "summary.json", {"exit_code": 0, "faults_missed": [why]})
    run = made(tmp_path, [{"t": 1.0, "peer": 0, "event": "round", "round": 1}])
    found = incidents.of(run)[-1]
    assert (found.t, found.effect) == (None, "round 20 was the last")
    assert "never took place: crash:1@500" in found.what


def test_rows_of_another_version_do_not_end_the_report(tmp_path: Path) -> None:
    odd: list[dict[str, Any]] = [
        {"t": 1.0, "peer": 0, "event": "round", "round": "x", "trust": 3, "contributors": 7},
        {"t": 1.1, "peer": "0", "event": "dead", "subject": None},
        {"t": 1.2, "peer": 0, "event": "fault", "kind": "hang", "seconds": "long", "round": None},
        {"t": 1.3, "peer": 0, "event": "late", "missing": 3, "round": 2},
        {"t": 1.4, "peer": 0, "event": "halted", "traffic": [1]},
        {"t": 1.5, "peer": 0, "event": 5},
    ]
    run = made(tmp_path, odd, rounds=3)
    incidents.of(run)
    membership.spans(run)
    (tmp_path / "peer-0").mkdir()
    (tmp_path / "peer-0" / "metrics.jsonl").write_text('{"loss": [1], "peer": 0}\n{"t": "x"}\n[]\n')
    with (tmp_path / "commits.jsonl").open("a") as file:
        for row in ({"round": 3, "contributors": {"a": 1}}, {"round": 4, "contributors": [[1], 2]}):
            file.write(json.dumps({"wall": BEGAN + 2, **row}) + "\n")
    assert len(recorded.read(tmp_path).commits) >= 3


@pytest.mark.parametrize("name", ["events.jsonl", "commits.jsonl"])
def test_a_run_whose_rows_are_gone_has_a_report(name: str, tmp_path: Path) -> None:
    made(tmp_path, [], rounds=3)
    (tmp_path / name).unlink()
    assert incidents.of(recorded.read(tmp_path)) == []
