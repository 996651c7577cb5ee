from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from event_rows import event

from gossip.launch.report.live_frame import About, frame
from gossip.launch.report.peer_table import Size
from gossip.launch.report.run_model import RunModel
from gossip.launch.report.words import clock, numbers

ABOUT = About("train-5014", "3 peers, rolling, suspicion (f=0)", "/tmp/runs/train-5014")
WIDE = Size(80, 30)
HEAD = "peer  state            step    lag  steps/s  waits  trust"


def rounds(view: RunModel, until: int, peers: list[int], **fields: Any) -> float:
    """Steps of a tenth of a second from 0 on, of which each peer computes 25 ms. Returns when they
    are over."""
    for step in range(until):
        for peer in peers:
            own = {"contributors": peers, "took_us": [25_000] * len(peers), "alive": len(peers)}
            view.apply(event("round", peer, step / 10, round=step, step=step + 1, **own, **fields))
    return (until - 1) / 10


def drawn(view: RunModel, now: float = 0.0, size: Size = WIDE, about: About = ABOUT) -> list[str]:
    return [line.plain for line in frame(about, view, now, 0.0, size)]


def test_what_was_started_how_far_it_is_its_health_and_its_model_are_the_first_lines() -> None:
    view = RunModel(3)
    view.apply(event("plan", 0, steps=300, folder="/data/ckpt", every=50))
    now = rounds(view, 45, [0, 1, 2], loss=0.4123)
    assert drawn(view, now) == [
        "train-5014: 3 peers, rolling, suspicion (f=0)",
        "━━━─────────────────  step 45/300  10 steps/s  loss 0.412  0:26 left",
        "healthy: 3 of 3 peers train",
        "model: /data/ckpt, every 50 steps and at the end",
        "files: /tmp/runs/train-5014    stop: Ctrl-C",
        HEAD,
        "   0  training           45      0       10    75%   1.00",
        "   1  training           45      0       10    75%   1.00",
        "   2  training           45      0       10    75%   1.00",
    ]


def test_of_a_run_with_local_steps_the_steps_of_the_script_are_counted() -> None:
    view = RunModel(2, local_steps=20)
    view.apply(event("plan", 0, steps=80, folder="/ckpt", every=10))
    lines = drawn(view, rounds(view, 45, [0, 1]))
    assert lines[1] == "━━━━━━━━━━━─────────  step 900/1600  200 steps/s  0:04 left"
    assert lines[3] == "model: /ckpt, every 200 steps and at the end"
    assert lines[6].split()[:5] == ["0", "training", "900", "0", "200"]


def test_where_the_launcher_knows_of_the_model_it_says_so_from_the_start() -> None:
    about = About("demo-1", "the digits", "/runs/demo-1", model="/runs/demo-1/final, at the end")
    assert drawn(RunModel(2), about=about)[3] == "model: /runs/demo-1/final, at the end"


def test_why_a_peer_is_doubted_is_told_with_its_round_and_not_cut() -> None:
    view = RunModel(2)
    now = rounds(view, 20, [0, 1])
    why = ["16 of the last 16 updates stood out, 13.2x farther out than typical"]
    view.apply(event("suspected", 0, now, subject=1, round=15, trust=0.1, reasons=why))
    assert drawn(view, now)[8:] == [
        "     round 15: 16 of the last 16 updates stood out, 13.2x farther out than",
        "     typical",
    ]
    view.apply(event("trusted", 0, now, subject=1, round=19, trust=0.9))
    assert len(drawn(view, now)) == 8


def test_without_a_planned_end_there_is_no_bar_and_without_a_loss_no_loss() -> None:
    view = RunModel(2)
    view.apply(event("plan", 0, steps=2**40, folder=""))
    now = rounds(view, 20, [0, 1])
    lines = drawn(view, now)
    assert lines[1] == "step 20  10 steps/s  since 0:02"
    assert lines[3].startswith("model: saved only by your script; peer.epochs(N, save=")


def test_a_collective_operation_is_a_round_and_no_step() -> None:
    view = RunModel(1)
    view.apply(event("plan", 0, steps=10))
    view.apply(event("round", 0, 0.0, round=7, step=5))
    assert "step 5/10" in drawn(view)[1]


def test_before_the_first_round_it_says_who_is_here() -> None:
    view = RunModel(3)
    view.apply(event("started", 1, incarnation=0, pid=7))
    lines = drawn(view, 4.0)
    assert lines[1] == "starting: 1 of 3 peers here  0:04"
    assert lines[2] == "waiting for peers 0,2"


def test_a_run_whose_peers_all_ended_before_a_round_does_not_start_any_more() -> None:
    view = RunModel(2)
    for peer in (0, 1):
        view.apply(event("started", peer, incarnation=0, pid=7))
    view.apply(event("exited", 0, code=1, how="exit code 1"))
    assert drawn(view, 4.0)[1].startswith("starting: ")
    assert "has not reported yet" in drawn(view, 4.0)[3]
    view.apply(event("exited", 1, code=1, how="exit code 1"))
    assert drawn(view, 4.0)[1:4] == [
        "no round was done  0:04",
        "failed: 0 of 2 peers are done; gone: peers 0,1",
        "model: none was saved",
    ]


def test_what_is_wrong_is_in_the_line_of_health() -> None:
    view = RunModel(4)
    now = rounds(view, 20, [0, 1, 2, 3])
    view.apply(event("exited", 1, now, code=None, signal=9, how="killed by SIGKILL"))
    view.apply(event("suspected", 0, now, subject=3, trust=0.1, reasons=["far from the others"]))
    lines = drawn(view, now)
    assert lines[2] == "degraded: 3 of 4 peers train; gone: peer 1; suspected: peer 3"
    assert (
        lines[7] == "   1  gone               20      -       10    75%   1.00  killed by SIGKILL"
    )
    assert lines[9].endswith("10    75%   0.10  far from the others")
    view.apply(event("paused", 0, now, round=21, alive=[0, 2], need=3))
    assert drawn(view, now)[2].startswith("paused: too few peers are alive; 3 of 4")
    rounds(view, 23, [0, 2, 3])
    assert drawn(view, now)[2].startswith("degraded")


def test_a_peer_that_left_in_order_is_no_fault() -> None:
    view = RunModel(2)
    now = rounds(view, 20, [0, 1])
    view.apply(event("left", 0, now, subject=1))
    view.apply(event("exited", 1, now, code=143, signal=None, how="exit code 143"))
    assert drawn(view, now)[2] == "healthy: 1 of 2 peers train"


def test_a_run_that_was_stopped_is_not_degraded() -> None:
    view = RunModel(2)
    now = rounds(view, 20, [0, 1])
    for peer in (0, 1):
        how = {"code": None, "signal": 2, "how": "killed by SIGINT", "stopping": True}
        view.apply(event("exited", peer, now, **how))
    assert drawn(view, now)[2] == "over: 0 of 2 peers are done, 2 stopped"
    table = [line.split() for line in drawn(view, now) if line[:4].strip().isdigit()]
    assert [cells[1] for cells in table] == ["ended", "ended"]
    assert not any("SIGINT" in line for line in drawn(view, now))


def test_peers_of_other_launchers_are_counted_and_shown_when_they_are_suspected() -> None:
    view = RunModel([4])
    view.apply(event("joined", 4, subject=0))
    view.apply(event("joined", 4, subject=1))
    assert drawn(view)[1] == "starting: 0 of 1 peer here  0:00"
    view.apply(event("round", 4, 0.0, round=3, alive=3))
    view.apply(event("suspected", 4, subject=1, trust=0.1, reasons=["far out"]))
    lines = drawn(view)
    assert lines[2] == "degraded: 1 of 1 peer trains, 3 alive in all; suspected: peer 1"
    assert [line.split()[:2] for line in lines[6:]] == [["4", "training"], ["1", "elsewhere"]]


def test_a_run_of_which_nobody_is_left_has_failed() -> None:
    view = RunModel(2)
    now = rounds(view, 20, [0, 1])
    for peer in (0, 1):
        view.apply(event("exited", peer, now, code=1, signal=None, how="exit code 1"))
    assert drawn(view, now)[2] == "failed: 0 of 2 peers are done; gone: peers 0,1"


def test_who_lags_is_behind_and_who_tells_of_its_step_a_moment_later_is_not() -> None:
    view = RunModel(2)
    rounds(view, 20, [0, 1])
    for step in range(20, 22):
        view.apply(event("round", 0, step / 10, round=step))
    assert "      0  " in drawn(view, 2.1)[7]
    for step in range(22, 40):
        view.apply(event("round", 0, step / 10, round=step))
    line = drawn(view, 3.9)[7]
    assert line.split()[:4] == ["1", "training", "20", "20"]


def test_a_swarm_that_stands_still_gets_slower_and_slower() -> None:
    view = RunModel(1)
    now = rounds(view, 20, [0])
    shown = [drawn(view, now + after)[1].split()[2] for after in (0.0, 5.0, 60.0)]
    assert shown[0] == "10"
    assert float(shown[2]) < float(shown[1]) < 5


def test_of_many_peers_the_table_has_those_that_need_attention_and_counts_the_others() -> None:
    view = RunModel(200)
    now = rounds(view, 20, list(range(200)))
    view.apply(event("exited", 7, now, code=None, signal=9, how="killed by SIGKILL"))
    view.apply(event("quarantined", 0, now, subject=150, trust=0.0))
    table = drawn(view, now)[6:]
    assert [line.split()[0] for line in table] == ["7", "150", "+198"]
    assert table[-1] == " +198  198 training; step 20"


@pytest.mark.parametrize(
    "size", [Size(80, 24), Size(80, 10), Size(40, 30), Size(20, 12), Size(1, 1)]
)
@pytest.mark.parametrize("peers", [1, 8, 12, 13, 400])
def test_no_line_is_wider_than_the_terminal_nor_the_table_longer(size: Size, peers: int) -> None:
    view = RunModel(peers)
    view.apply(event("plan", 0, steps=10**9, folder="/data/" + "long/" * 100, every=50))
    now = rounds(view, 3, list(range(peers)), loss=1e30)
    for peer in range(peers):
        why = ["its update is far from all others, 漢字 included, round after round"]
        view.apply(event("suspected", 0, now, subject=peer, trust=0.1, reasons=why))
    about = About("n" * 100, "w" * 100, "/" + "f" * 300)
    lines = frame(about, view, now, 0.0, size)
    assert max(line.cell_len for line in lines) < max(size.width, 21)
    assert len(lines) <= max(size.height - 2, 1)


def test_no_word_of_a_peer_is_a_command_to_the_terminal() -> None:
    view = RunModel(1)
    view.apply(event("plan", 0, steps=3, folder="/a\x1b[2Jb"))
    view.apply(event("suspected", 0, subject=0, trust=0.1, reasons=["\x1b]0;owned\x07"]))
    rounds(view, 2, [0])
    assert all(line.isprintable() for line in drawn(view, about=About("\x1b[2J", "", "\x07")))


def test_a_folder_inside_the_working_folder_is_named_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    view = RunModel(1)
    view.apply(event("plan", 0, steps=3, folder=str(tmp_path / "ckpt")))
    lines = drawn(view, about=About("a", "b", str(tmp_path / "runs/a")))
    assert lines[3] == "model: ckpt, at the end"
    assert lines[4] == "files: runs/a    stop: Ctrl-C"


def test_figures() -> None:
    assert [clock(s) for s in (21, 3723, 100_000)] == ["0:21", "1:02:03", "1 d 03:46"]
    assert numbers([5, 0, 1, 2, 8, 9]) == "0-2,5,8,9"
