"""``gossip run --plan`` with real peers, each of which trains its stage of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command import gossip
from effort import effort
from pipeline_models import char_batch, char_layers, char_loss, char_makers
from safetensors.torch import load_file
from torch import Tensor, nn

from gossip.run.telemetry import read_lines
from gossip_pipelines.planning import (
    PipelinePlan,
    PlannedStage,
    make_layer,
    model_of,
    walk_without_data,
    write_plan,
)

MICRO_BATCHES, SAMPLES = 5, 2
SCRIPT = """
import sys
import torch
import gossip
from safetensors.torch import save_file
sys.path.insert(0, {tests!r})
from pipeline_models import char_batch, char_loss, char_makers

peer = gossip.init()
pipe = peer.pipeline(
    char_makers(), char_batch(0, 1)[0], loss=char_loss,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.3, momentum=0.9),
)
for step in peer.steps(int(sys.argv[1]), save="saved", every=4):
    loss = pipe.step(*char_batch(step, {rows}))
    if loss is not None:
        peer.log(loss=loss)
save_file(pipe.model.state_dict(), peer.run_dir / f"stage-{{pipe.stage}}-{{peer.id}}.safetensors")
"""


def one_process(steps: int) -> tuple[dict[str, Tensor], list[float]]:
    """The parameters and losses of the same training on whole batches."""
    made = [make_layer(layer, at, 0) for at, layer in enumerate(char_makers())]
    model, losses = nn.Sequential(*made), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    for step in range(steps):
        x, y = char_batch(step, MICRO_BATCHES * SAMPLES)
        optimizer.zero_grad()
        loss = char_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model.state_dict(), losses


def write_files(folder: Path, stages: list[tuple[int, int, tuple[str, ...]]]) -> None:
    walked = walk_without_data(char_layers(), char_batch(0, 1)[0])
    plan = PipelinePlan(
        model_of([each.signature for each in walked]),
        MICRO_BATCHES,
        SAMPLES,
        1,
        0.1,
        tuple(PlannedStage((first, last), peers) for first, last, peers in stages),
    )
    (folder / "plan.toml").write_text(write_plan(plan))
    tests = str(Path(__file__).parent.parent)
    (folder / "train.py").write_text(SCRIPT.format(tests=tests, rows=MICRO_BATCHES * SAMPLES))


def run(folder: Path, *words: str, steps: int) -> dict[str, Any]:
    options = ("--plan", "plan.toml", "--json", *words)
    found: dict[str, Any] = json.loads(
        gossip(folder, "run", *options, "train.py", str(steps)).stdout
    )
    return found


def check_parameters(run: Path, expected: dict[str, Tensor], peers: tuple[int, ...]) -> None:
    """Each of these peers has its part of the parameters, and together they have all."""
    found: set[str] = set()
    for path in run.glob("stage-*.safetensors"):
        peers = tuple(peer for peer in peers if not path.name.endswith(f"-{peer}.safetensors"))
        for name, tensor in load_file(path).items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)
            found.add(name)
    assert found == set(expected)
    assert peers == ()


def counted(folder: Path, stage: int) -> list[list[int]]:
    """The micro-batches that the commits of a stage have, round by round."""
    rows = [row for row in read_lines(folder / "out" / "commits.jsonl") if "round" in row]
    own = {row["round"]: row for row in rows if row["stage"] == stage}
    return [
        sorted(b for each in own[at]["contributors"] for b in each["micro_batches"])
        for at in sorted(own)
    ]


def test_a_member_that_negates_activations_is_found_by_audits(tmp_path: Path) -> None:
    write_files(tmp_path, [(0, 2, ("a", "b", "c")), (3, 5, ("d",))])
    lies = ("--fault", "negated_activations:1*0.5", "--audit", "0.5")
    summary = run(tmp_path, "--run-dir", "out", *lies, steps=20)
    assert (summary["status"], summary["finished"]) == ("finished", [0, 1, 2, 3])
    assert summary["quarantined"] == [1]
    events = list(read_lines(tmp_path / "out" / "events.jsonl"))
    found = {(e["event"], e["subject"]) for e in events if "audit" in str(e.get("event"))}
    assert found == {("audit_differs", 1), ("found_by_audit", 1)}
    by = min(e["round"] for e in events if e.get("event") == "found_by_audit")
    rows = read_lines(tmp_path / "out" / "commits.jsonl")
    first = {row["round"]: row for row in rows if row.get("stage") == 0}
    worked = [1 in [each["peer"] for each in first[at]["contributors"]] for at in sorted(first)]
    # on a busy machine others may do all the work of a round
    assert any(worked[: by + 1])
    assert len(worked) == 20
    assert not any(worked[by + 1 :])
    for stage in (0, 1):
        assert counted(tmp_path, stage) == [[*range(MICRO_BATCHES)]] * 20


def test_a_run_of_three_stages_that_loses_members_and_is_resumed_trains_as_one_process_would(
    tmp_path: Path,
) -> None:
    write_files(tmp_path, [(0, 1, ("a", "b")), (2, 3, ("c",)), (4, 5, ("d", "e"))])
    killed = ("--fault", "crash:1@6", "--fault", "crash:4@9")
    summary = run(tmp_path, "--run-dir", "out", *killed, steps=13)
    ended = [0, 2, 3]
    assert (summary["status"], summary["rounds"], summary["finished"]) == ("finished", 13, ended)
    assert [stage["names"] for stage in summary["stages"]] == [["a", "b"], ["c"], ["d", "e"]]
    expected, losses = one_process(13)
    check_parameters(tmp_path / "out", expected, (0, 2, 3))
    rows = read_lines(tmp_path / "out/peer-3/metrics.jsonl")
    alone = [row["loss"] for row in rows if "loss" in row][10:]  # with all micro-batches
    assert alone == pytest.approx(losses[10:], abs=1e-5)
    assert summary["partitions"] == []  # commits of three stages are no fork
    for stage in (0, 1, 2):
        assert counted(tmp_path, stage) == [[*range(MICRO_BATCHES)]] * 13
    (tmp_path / "saved/stage-1/step-000000013/manifest.json").unlink()  # so not every stage has it
    summary = run(tmp_path, "--run-dir", "again", "--resume", "auto", steps=16)
    assert (summary["rounds"], summary["replicas_identical"]) == (4, True)
    expected, _ = one_process(16)
    check_parameters(tmp_path / "again", expected, (0, 1, 2, 3, 4))
    said = gossip(tmp_path, "checkpoints", "export", "saved", "model.safetensors").stdout
    assert said == "model.safetensors: the model of step 16, from 3 stages\n"
    model = load_file(tmp_path / "model.safetensors")
    assert set(model) == set(expected)
    for name, tensor in model.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("first", "lost"), effort((("checkpoint", 2),), (("checkpoint", 2), ("neighbours", 10)))
)
def test_a_stage_whose_peers_are_all_killed_goes_on_when_one_is_back(
    tmp_path: Path, first: str, lost: int
) -> None:
    write_files(tmp_path, [(0, 1, ("a",)), (2, 3, ("b", "c")), (4, 5, ("d",))])
    killed = ("--fault", "crash:1@10", "--fault", "restart:2@10+1s", "--lost-stage", first)
    summary = run(tmp_path, "--run-dir", "out", *killed, steps=26)
    assert (summary["status"], summary["rounds"], summary["finished"]) == (
        "finished",
        26,
        [0, 2, 3],
    )
    assert summary["partitions"] == []  # a stage that was made anew is no fork
    (made,) = [
        row
        for row in read_lines(tmp_path / "out/peer-2/events.jsonl")
        if row.get("event") == "stage_rebuilt"
    ]
    assert (made["stage"], made["source"], made["fresh"]) == (1, first, 0)
    # On a busy machine the checkpoint of step 8 may not be whole yet: then that of step 4 is used.
    assert made["round"] - made["lost"] in {10 - lost, max(0, 6 - lost)}
    for stage in (0, 1, 2):
        assert counted(tmp_path, stage) == [[*range(MICRO_BATCHES)]] * 26
    rows = read_lines(tmp_path / "out/peer-3/metrics.jsonl")
    losses = [row["loss"] for row in rows if "loss" in row]
    assert sum(losses[-5:]) < sum(losses[5:10]) - 1.0, losses  # 1.0 of 15
