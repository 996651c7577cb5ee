"""``gossip top``: what is drawn of a run, and that the terminal is left as it was."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from recorded_run import BEGAN, ROUNDS, RecordedRun, now_running

from gossip.errors import ConfigError
from gossip.launch.report import top
from gossip.launch.report.folding import folded
from gossip.launch.report.peer_table import SILENT_S, Size, peer_lines
from gossip.launch.report.run_reader import Happening, RunReader
from gossip.launch.report.top_frame import frame
from gossip.launch.report.words import short_bytes

ON_VM = {"name": "digits-0a1b", "hosts": ["vm"]}
RUNNING = SimpleNamespace(state="running", in_words="running", over=False, **ON_VM)
OVER = SimpleNamespace(state="ended", in_words="ended: finished", over=True, **ON_VM)


@pytest.fixture
def run(tmp_path: Path) -> RecordedRun:
    return RecordedRun(tmp_path / "run")


def drawn(run: RecordedRun, state: Any, at: float, width: int = 80) -> list[str]:
    reader = RunReader(run.folder)
    reader.state = state
    reader.update()
    return [line.plain for line in frame(reader, BEGAN + at, Size(width, 40))]


def row(lines: list[str], peer: int) -> str:
    return next(line for line in lines if line.startswith(f"{peer:>4} "))


def test_at_80_columns_all_but_the_last_column_fit_and_no_line_is_cut(run: RecordedRun) -> None:
    run.rounds(0, 28)
    lines = drawn(run, RUNNING, 4.0)
    assert max(map(len, lines)) <= 79
    assert not [line for line in lines if "…" in line]
    head = next(line for line in lines if line.startswith("peer"))
    assert " ".join(head.split()) == ("peer state step lag steps/s waits late part trust mem pid")
    assert "step 28/40" in "\n".join(lines)


def test_each_peer_has_its_state_and_the_reason_for_it(run: RecordedRun) -> None:
    run.rounds(0, 28)
    lines = drawn(run, RUNNING, 4.0)
    assert row(lines, 0).split()[:4] == ["0", "training", "28", "0"]
    assert "gone" in row(lines, 1)
    shown = [str(100 + peer) in row(lines, peer).split() for peer in range(4)]
    assert shown == [True, False, True, True], "pids of the trainers that run"
    assert row(lines, 2).split()[6:8] == ["64%", "36%"]  # late, and its part
    assert "quarantined" in row(lines, 3)
    assert any("[sign_flip]  round 15: 15 updates stood out" in line for line in lines)
    assert any("killed by 9" in line for line in lines)


def test_a_narrow_terminal_has_what_matters_most(run: RecordedRun) -> None:
    run.rounds(0, 28)
    lines = drawn(run, RUNNING, 4.0, width=40)
    assert max(map(len, lines)) <= 39
    assert next(line for line in lines if line.startswith("peer")).split()[:3] == [
        "peer",
        "state",
        "step",
    ]


def test_of_more_peers_than_rows_those_in_trouble_are_on_top(run: RecordedRun) -> None:
    for peer in range(4, 60):
        run.event(0.1, peer, "started", pid=1, incarnation=0)
        run.event(0.2, peer, "ready", present=[0])
    run.rounds(0, 28)
    reader = RunReader(run.folder)
    reader.state = RUNNING
    reader.update()
    lines = [line.plain for line in frame(reader, BEGAN + 4.0, Size(80, 24))]
    assert len(lines) <= 24
    table = lines[lines.index(next(line for line in lines if line.startswith("peer"))) + 1 :]
    order = [int(line.split()[0]) for line in table if line[:5].strip().isdecimal()]
    assert order[:3] == [1, 3, 2]
    others = next(line for line in lines if line.startswith(" +"))
    assert int(others.split()[0]) == 60 - len(order)


def test_a_peer_of_which_nothing_is_heard_is_silent(run: RecordedRun) -> None:
    run.rounds(0, 28)
    lines = drawn(run, RUNNING, 4.0 + SILENT_S)
    assert "silent" in row(lines, 0)
    assert any("no report for 0:15" in line for line in lines)


def test_after_the_end_it_tells_how_it_ended(run: RecordedRun) -> None:
    lines = drawn(run.whole(), OVER, 5.7)
    assert lines[0].startswith("digits-0a1b  ended: finished  0:06")
    assert lines[2:4] == ["over: 4 of 4 peers finished", "model: ckpt"]
    assert all("done" in row(lines, peer) for peer in range(4))


def test_a_peer_that_ends_while_others_go_on_has_left_early(run: RecordedRun) -> None:
    run.event(0.3, 4, "started", pid=1, incarnation=0)
    run.event(0.5, 4, "halted", reason="finished", exit_code=0, round=2)
    run.event(0.6, 4, "exited", code=0, signal=None, how="exit code 0")
    run.rounds(0, 20)
    lines = drawn(run, RUNNING, 4.0)
    assert "left early" in row(lines, 4)
    assert any("others continued from step" in line for line in lines)


def test_a_peer_that_joined_is_counted(run: RecordedRun) -> None:
    run.event(0.3, 4, "started", pid=1, incarnation=0)
    assert "5 peers" in drawn(run, RUNNING, 1.0)[0]


def test_a_peer_that_has_not_told_of_its_end_is_lost(run: RecordedRun) -> None:
    run.rounds(0, 28)
    assert "lost" in row(drawn(run, OVER, 4.0), 0)


def test_who_serves_is_told(run: RecordedRun) -> None:
    run.rounds(0, 12)
    lines = drawn(run, RUNNING, 2.5)
    assert lines[3] == "served: round 11 by 2"


def test_events_of_a_kind_are_one_line_with_their_number() -> None:
    happened = [Happening(float(at), f"~ peer {at} is back") for at in range(5)]
    happened.insert(2, Happening(1.5, "x peer 1 dead"))
    happened.append(Happening(9.0, "x peer 2 dead"))
    assert folded(happened, 10) == [
        (Happening(1.5, "x peer 1 dead"), 1),
        (Happening(4.0, "~ peer 4 is back"), 5),
        (Happening(9.0, "x peer 2 dead"), 1),
    ]
    assert len(folded(happened, 2)) == 2


def test_control_characters_of_others_do_not_reach_the_terminal(run: RecordedRun) -> None:
    run.rounds(0, 2)
    run.event(1.2, 0, "error", message="\x1b[2J gone")
    run.event(1.2, 1, "exited", code=None, signal=9, how="\x1b]0;mine\x07")
    assert all(line.isprintable() for line in drawn(run, RUNNING, 1.4))


def test_json_has_the_same_figures(run: RecordedRun, capsys: pytest.CaptureFixture[str]) -> None:
    run.whole()
    top.show_json(run.folder)
    told = json.loads(capsys.readouterr().out)
    assert (told["step"], told["steps"], told["state"]) == (ROUNDS, ROUNDS, "ended: finished")
    peers = {each["peer"]: each for each in told["peers"]}
    assert peers[2]["participation"] == 0.25
    assert peers[3]["reasons"] == ["15 updates stood out"]
    assert peers[0]["sent_bytes"] == 5 << 20


def test_without_a_name_the_latest_run_that_runs_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_running(tmp_path / "older")
    RecordedRun(tmp_path / "newer")
    os.utime(tmp_path / "older" / "config.json", (time.time() - 60,) * 2)
    assert top.choose(None, tmp_path) == tmp_path / "newer"  # neither runs
    alive = {"older": RUNNING}
    monkeypatch.setattr(top, "RunState", lambda folder: alive.get(folder.name, OVER))
    assert top.choose(None, tmp_path) == tmp_path / "older"
    with pytest.raises(ConfigError, match="no runs"):
        top.choose(None, tmp_path / "nowhere")


def test_a_record_is_read_anew_when_its_files_were_put_together(run: RecordedRun) -> None:
    run.rounds(0, 5)
    view = top.TopView(run.folder)
    view.render_lines(Size(80, 24))
    events = run.folder / "events.jsonl"
    merged = events.with_name("events.jsonl.new")
    merged.write_text(events.read_text())
    merged.replace(events)
    run.rounds(5, 8)
    view.render_lines(Size(80, 24))
    assert view.to_json()["step"] == 8


def test_bytes_have_four_characters() -> None:
    told = {0: "0", 999: "999", 1000: "1.0k", 31 << 20: "31M", 5 << 29: "2.5G", 1 << 50: "1024T"}
    assert {count: short_bytes(count) for count in told} == told


def test_lines_of_peers_are_those_of_the_view(run: RecordedRun) -> None:
    run.rounds(0, 28)
    reader = RunReader(run.folder)
    reader.update()
    lines = peer_lines(reader.view, BEGAN + 4.0)
    assert [line.row.peer for line in lines] == [0, 1, 2, 3]
    assert [line.trouble for line in lines] == [0, 9, 1, 6]


def test_printed_after_the_end_it_tells_every_fault_its_time_and_its_effect(
    run: RecordedRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run.whole()
    monkeypatch.setattr(top, "PLAIN_WIDTH", 80)
    top.show(run.folder, once=True, every_s=1.0)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) < 80
    told = " ".join(out.split())
    assert "0:00.0 round 0, peer 3: false updates: sign_flip" in told
    assert "0:03.1 round 19, peer 1: killed, not in the fault plan noticed:" in told
    assert "back: in round 30, 1.0 s after its death effect: rounds continued as before" in told


def test_a_run_that_is_over_has_no_time_left(run: RecordedRun) -> None:
    run.rounds(0, 28)
    assert "left" in drawn(run, RUNNING, 4.0)[1]
    lines = drawn(run, OVER, 4.0)
    assert "left" not in lines[1]
    assert "lost, without a last report: peers 0,2,3" in lines[2]


def test_a_machine_in_trouble_is_told_of_with_what_is_wrong(run: RecordedRun) -> None:
    hardware = {"usable_cores": 2, "memory_bytes": 8 << 30}
    (run.folder / "environment.json").write_text(json.dumps({"host": "lab", "hardware": hardware}))
    run.rounds(0, 12)
    assert drawn(run, RUNNING, 2.5)[4] == "lab: load 1.0 on 2 cores"
    left = {"machine_memory_free": 300 << 20, "disk_free": 5 << 30, "load": 0.5}
    used = {"cpu_s": 1.0, "memory": 1, "sent_bytes": 0, "received_bytes": 0}
    run.event(2.4, 1, "usage", **used, **left)
    line = "lab: load 0.5 on 2 cores, free memory 300M of 8.0G (low), disk 5.0G"
    assert drawn(run, RUNNING, 2.5)[4] == line
    run.event(2.45, 1, "usage", **used, **{**left, "machine_memory_free": 4 << 30})
    assert "(low)" not in drawn(run, RUNNING, 2.5)[4]
    assert drawn(run, OVER, 2.5)[5].startswith("lab at worst: load 1.0 on 2 cores, free memory 300")


def paused(run: RecordedRun) -> None:
    """Peer 2 waits for a quorum after 28 rounds."""
    run.rounds(0, 28)
    run.event(3.95, 2, "paused", alive=[2], need=3, round=28)


def test_time_counts_from_the_start_of_the_launcher_as_on_its_screen(run: RecordedRun) -> None:
    (run.folder / "environment.json").write_text(json.dumps({"started": BEGAN - 3.0}))
    run.rounds(0, 12)
    assert "  0:06  " in drawn(run, RUNNING, 2.6)[0]


def test_who_waits_for_a_quorum_is_shown_with_whom_it_has(run: RecordedRun) -> None:
    paused(run)
    lines = drawn(run, RUNNING, 4.0, width=120)
    assert "no quorum" in row(lines, 2)
    assert "since round 28: alive are 2, a round needs 3" in " ".join(lines)
    lines = drawn(run, OVER, 4.0, width=120)
    assert "lost" in row(lines, 2)
    assert "102" not in row(lines, 2).split(), "its process has ended"
    assert "it waited for a quorum since round 28: alive are 2" in " ".join(lines)
    run.event(4.0, 2, "resumed", alive=[0, 1, 2, 3])
    assert "training" in row(drawn(run, RUNNING, 4.1), 2)


def test_a_run_that_is_over_has_no_column_for_who_lags(run: RecordedRun) -> None:
    head = next(line for line in drawn(run.whole(), OVER, 5.7) if line.startswith("peer"))
    assert head.split()[:4] == ["peer", "state", "step", "steps/s"]


def test_a_peer_that_was_stopped_with_the_run_is_not_gone(run: RecordedRun) -> None:
    run.rounds(0, 5)
    run.event(1.6, 1, "exited", code=None, signal=2, how="killed by SIGINT", stopping=True)
    line = row(drawn(run, RUNNING, 1.7), 1)
    assert "ended" in line
    assert "SIGINT" not in line


def test_a_script_that_raised_has_a_line_unless_the_run_was_stopped(run: RecordedRun) -> None:
    run.rounds(0, 5)
    run.event(1.6, 1, "exited", code=1, signal=None, how="exit code 1")
    run.event(1.7, 2, "exited", code=1, signal=None, how="exit code 1", stopping=True)
    (line,) = [line for line in drawn(run, RUNNING, 1.8) if " x peer " in line]
    assert line.endswith(" x peer 1 ended at round 5 (exit code 1)")


def test_how_many_events_are_not_shown_is_told(
    run: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(30):
        run.event(0.3 + at / 100, 0, "error", message=f"kind {'x' * at}")
    monkeypatch.chdir(run.folder.parent)
    lines = drawn(run, RUNNING, 1.0)
    (above,) = [at for at, line in enumerate(lines) if "events before" in line]
    shown = len(lines) - above - 1
    assert lines[above].strip() == f"{30 - shown} events before (all: gossip report run)"
    monkeypatch.chdir("/")  # from where its path does not fit
    narrow = drawn(run, RUNNING, 1.0, width=60)
    assert [line for line in narrow if line.endswith(" events before")]
    assert not any("gossip report" in line for line in narrow)


def test_without_a_loss_it_says_which_line_to_add(run: RecordedRun) -> None:
    run.rounds(0, 12)
    assert not any("no loss is shown" in line for line in drawn(run, RUNNING, 2.5))
    (run.folder / "events.jsonl").write_text(
        (run.folder / "events.jsonl").read_text().replace('"loss": ', '"other": ')
    )
    assert any("peer.log(loss=loss.item())" in line for line in drawn(run, RUNNING, 2.5))


def test_a_run_without_faults_says_so(run: RecordedRun, capsys: pytest.CaptureFixture[str]) -> None:
    config = run.folder / "config.json"
    config.write_text(config.read_text().replace('"sign_flip:3"', ""))
    top.show(run.folder, once=True, every_s=1.0)
    assert "No round has been trained." in capsys.readouterr().out
