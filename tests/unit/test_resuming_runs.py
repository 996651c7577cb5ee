"""Which run went on from a checkpoint of another, by the folders beside it."""

import json
from pathlib import Path

from recorded_run import BEGAN, RecordedRun

from gossip.launch.report.explain import explain
from gossip.launch.report.html import incidents, overview, recorded
from gossip.launch.report.html.incident_lines import lines_of
from gossip.run import checkpoints


def run_in(folder: Path, began: float, resume: str = "", saves_to: Path = Path("/ckpt")) -> Path:
    RecordedRun(folder, began, name=folder.name).whole()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "resume": resume}))
    (folder / checkpoints.NOTE).write_text(json.dumps({"folder": str(saves_to)}))
    return folder


def count_from(step: int, folder: Path) -> None:
    """As of a run that has begun there."""
    for path in folder.glob("peer-*/commits.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        later = [json.dumps({**row, "round": row["round"] + step}) for row in rows]
        path.write_text("\n".join(later) + "\n")


def test_a_run_says_where_it_went_on(tmp_path: Path) -> None:
    run_in(tmp_path / "first", BEGAN)
    second = run_in(tmp_path / "second", BEGAN + 70, "/ckpt@30")
    count_from(30, second)
    assert (
        lines_of(recorded.RecordedRun(second), 80)[0]
        == "It continued at step 30, from checkpoint /ckpt@30."
    )
    assert "It continued" not in lines_of(recorded.RecordedRun(tmp_path / "first"), 80)[0]


def test_a_death_that_nobody_planned_has_the_round_of_its_time(tmp_path: Path) -> None:
    found = incidents.of(recorded.RecordedRun(run_in(tmp_path / "first", BEGAN)))
    assert [each.round for each in found if "not in the fault plan" in each.what] == [19]


def test_a_run_of_local_steps_counts_those_of_its_script(tmp_path: Path) -> None:
    """Its commits count rounds, and its checkpoints steps."""
    run_in(tmp_path / "first", BEGAN)
    second = run_in(tmp_path / "second", BEGAN + 70, "/ckpt@150")
    count_from(30, second)
    config = json.loads((second / "config.json").read_text())
    told = json.dumps({**config, "local_steps": 10, "fragments": 2})
    (second / "config.json").write_text(told)
    plan = {"t": 0.1, "wall": BEGAN + 70.1, "peer": 0, "event": "plan", "steps": 80}
    with (second / "events.jsonl").open("a") as file:  # scripts tell how many rounds they make
        file.write(json.dumps(plan) + "\n")
    assert (
        lines_of(recorded.RecordedRun(second), 80)[0]
        == "It continued at step 150, from checkpoint /ckpt@150."
    )
    steps = overview.facts(recorded.RecordedRun(second))[0]
    assert (steps.label, steps.value, steps.more) == ("Steps", "200", "of 400")
    assert explain(second, "0")[0].startswith("Peer 0: done, 200 steps done, ")
