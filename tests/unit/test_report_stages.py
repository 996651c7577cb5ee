"""A pipeline in ``gossip top``, ``explain`` and the report: each stage has commits of its own."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from gossip.config import RunConfig
from gossip.launch.report import RunModel, run_state, stages_of, summary
from gossip.launch.report.explain import explain
from gossip.launch.report.growing import RunFiles
from gossip.launch.report.html import incidents, recorded
from gossip.launch.report.live_frame import About, frame as live
from gossip.launch.report.peer_table import Size
from gossip.launch.report.run_reader import RunReader
from gossip.launch.report.stages import PeerStage, stages_in
from gossip.launch.report.top import TopView
from gossip.run.machine import started_at, this_machine

BEGAN, ROUNDS, KILLED_AT = 1_700_000_000.0, 8, 4
STAGES = ((0, 1), (2, 3))


def write(folder: Path, name: str, *rows: dict[str, Any]) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def stamped(at: float, **fields: Any) -> dict[str, Any]:
    return {"t": at, "wall": BEGAN + at, **fields}


def commit(stage: int, number: int) -> dict[str, Any]:
    roster = [peer for peer in STAGES[stage] if peer != 3 or number < KILLED_AT]
    given = [{"peer": peer, "samples": 4, "weight": 1.0, "outlyingness": 1.0} for peer in roster]
    about = {"round": number, "shard": 0, "stage": stage, "made_at": 0, "contributors": given}
    chain = {"chain": f"{stage}-{number}", "parent": f"{stage}-{number - 1}"}
    end = {"server": roster[0], "rejected": [], "roster": roster, "loss": float(stage), "trust": {}}
    return stamped(2.0 + number, **about, **chain, **end)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four peers in two stages, of which peer 3 is killed in round 4 and does not come back."""
    folder = tmp_path_factory.mktemp("runs") / "pipe"
    stages = [{"layers": (0, 2), "peers": STAGES[0]}, {"layers": (3, 3), "peers": STAGES[1]}]
    pipeline = {
        "model": "0" * 16,
        "micro_batches": 2,
        "samples": 2,
        "names": ("a", "b", "c", "d"),
        "stages": stages,
    }
    config = RunConfig.model_validate(
        {"name": "pipe", "run": "0" * 16, "peers": 4, "f": 0, "pipeline": pipeline}
    )
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config.model_dump_json())
    for peer in range(4):
        for name in ("spawned", "started", "ready"):
            row = stamped(0.1, peer=peer, event=name, pid=100 + peer, incarnation=0)
            write(folder, "events.jsonl", row)
    for number in range(ROUNDS):
        for stage in range(len(STAGES)):
            made = commit(stage, number)
            write(folder, f"peer-{made['server']}/commits.jsonl", made)
            for peer in made["roster"]:
                about = {"round": number, "step": number + 1, "server": made["server"]}
                about |= {"contributors": made["roster"], "alive": len(made["roster"])}
                row = stamped(2.0 + number, peer=peer, event="round", **about)
                write(folder, "events.jsonl", row)
        if number == KILLED_AT - 1:
            how = {"code": None, "signal": 9, "how": "killed by SIGKILL"}
            write(folder, "events.jsonl", stamped(5.5, peer=3, event="exited", **how))
    return folder


def read(folder: Path) -> RunReader:
    reader = RunReader(folder)
    reader.update()
    return reader


def test_a_peer_takes_part_in_the_rounds_of_its_stage(folder: Path) -> None:
    view = read(folder).view
    figures = [view.rows[peer].figures for peer in range(4)]
    assert [each.participation for each in figures] == [1.0, 1.0, 1.0, 0.5]
    assert [each.served for each in figures] == [8, 0, 8, 0]
    assert view.progress.alive == 3


def test_all_stages_count_for_how_many_are_alive(folder: Path, tmp_path: Path) -> None:
    running = tmp_path / "pipe"
    shutil.copytree(folder, running)
    here = {"pid": os.getpid(), "started": started_at(os.getpid()), "machine": this_machine()}
    about = {"incarnation": 0, "host": "here", "since": BEGAN, "ended": None, "exit_code": None}
    write(running, "peer-0/peer.json", {"schema": "gossip.peer/1", **here, **about})
    assert run_state.RunState(running).alive == 3


def test_top_and_the_launcher_show_the_stage_of_each_peer(folder: Path) -> None:
    lines = [line.plain for line in TopView(folder).render_lines(Size(120, 40))]
    begin = next(at for at, line in enumerate(lines) if line.startswith("peer"))
    end = lines.index("", begin)
    table = [cells for line in lines[begin:end] if len(cells := line.split()) > 6]
    assert [row[:2] for row in table] == [
        ["peer", "stage"],
        *(["0", "0"], ["1", "0"], ["2", "1"], ["3", "1"]),
    ]
    assert "2 stages" in lines[0]
    assert "served: stage 0 round 7 by 0, stage 1 round 7 by 2" in lines
    drawn = live(About("pipe", "", ""), read(folder).view, 10.0, 0.0, Size(100, 40))
    rows = [line.plain.split()[:3] for line in drawn]
    assert ["peer", "stage", "state"] in rows
    assert ["3", "1", "gone"] in rows
    peers = TopView(folder).to_json()["peers"]
    assert [peer["stage"] for peer in peers] == [0, 0, 1, 1]


def test_explain_names_the_stage_of_who_failed(folder: Path) -> None:
    lines = explain(folder, None)
    assert "Stage 0 (layers 0 to 2): peers 0,1." in lines
    assert "Stage 1 (layer 3): peers 2,3, of which 3 did not return." in lines
    assert any("peer 3 of stage 1: killed, not in the fault plan" in line for line in lines)
    assert explain(folder, "3")[0].startswith("Peer 3, of stage 1 (layer 3), d in the plan: gone")
    told = explain(folder, "@5")
    assert [line.partition(":")[0] for line in told if line.startswith("Round 5 of")] == [
        "Round 5 of stage 0",
        "Round 5 of stage 1",
    ]


def test_commits_of_two_stages_are_no_fork_and_count_for_all_peers(folder: Path) -> None:
    run = recorded.RecordedRun(folder)
    assert [one.who for one in incidents.of(run)] == [(3,)]
    assert len(run.commits) == ROUNDS
    counts = [int((run.commits.who == peer).sum()) for peer in range(4)]
    assert counts == [8, 8, 8, 4]
    assert [int((run.commits.makers == peer).sum()) for peer in range(4)] == [8, 0, 8, 0]


def test_a_plan_that_somebody_has_changed_is_read_as_far_as_it_goes() -> None:
    stage = {"layers": [1, 2], "peers": [5, "x"]}
    assert stages_in({"names": [], "stages": [stage, 3, {"layers": 1}, {}]}) == {
        5: PeerStage(0, (1, 2), "")
    }
    for told in (None, [], {"stages": 3}, {"stages": {}}):
        assert stages_in(told) == {}


def test_a_stage_that_lost_all_its_peers_says_of_what_it_grew(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "pipe"
    shutil.copytree(folder, run)
    about = {"stage": 1, "peers": [2, 3], "round": 5}
    for t, name in ((3.0, "stage_lost"), (3.2, "stage_back")):  # it was there all the time
        write(run, "events.jsonl", stamped(t, peer=0, event=name, **about))
    write(run, "events.jsonl", stamped(7.1, peer=0, event="stage_lost", **about))
    write(run, "events.jsonl", stamped(7.3, peer=1, event="stage_lost", **about))
    write(run, "events.jsonl", stamped(8.0, peer=0, event="stage_back", **about))
    made = {"stage": 1, "round": 5, "source": "checkpoint", "lost": 3, "fresh": 0}
    write(run, "events.jsonl", stamped(8.1, peer=2, event="stage_rebuilt", **made))
    (found,) = [one for one in incidents.of(recorded.RecordedRun(run)) if "lost all" in one.what]
    assert (found.who, found.round) == ((2, 3), 5)
    assert found.back == (
        "stage 1 continues in round 5, with its last checkpoint, 3 rounds older than the others; "
        "after 1.0 s"
    )
    write(run, "events.jsonl", stamped(8.2, peer=1, event="stage_back", **about))
    write(run, "events.jsonl", stamped(9.0, peer=0, event="stage_lost", **about))
    lost = [one for one in incidents.of(recorded.RecordedRun(run)) if "lost all" in one.what]
    assert [(one.back, round(one.t - found.t, 3)) for one in lost[1:]] == [("never", 1.9)]


def test_a_pipeline_saves_to_the_folder_of_all_stages(folder: Path, tmp_path: Path) -> None:
    """That is the one to resume from, and to export."""
    run = tmp_path / "pipe"
    shutil.copytree(folder, run)
    plan = {"steps": 8, "folder": "/x/saved/stage-1", "every": 4}
    write(run, "events.jsonl", stamped(1.0, peer=2, event="plan", **plan))
    assert read(run).view.progress.saves_to == "/x/saved"


def test_a_summary_that_is_built_from_the_record_is_that_of_the_launcher(folder: Path) -> None:
    """Of a stage that is not the first rows come of the same rounds again, with its own peers: they
    tell nothing of who took part in the run."""
    config = RunConfig.load(folder / "config.json")
    view = RunModel(config.peers, config.plan, config.steps_per_round, stages_of(config))
    for event in RunFiles(folder).events():
        view.apply(event)
    of_launcher = summary.build(folder, 0, 9.0, seen=(config, view))
    assert summary.build(folder, 0, 9.0) == of_launcher
    assert of_launcher["participation"] is None
    assert (of_launcher["rounds"], len(of_launcher["stages"])) == (ROUNDS, 2)
