"""``gossip hosts --plan`` with real agents and peers: each host has its stages' checkpoints for
itself, one loses a member, and what is collected goes on under another plan."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from command import gossip
from safetensors.torch import load_file
from test_pipeline_run import one_process, write_files

FAKE_SSH = f"{sys.executable} {Path(__file__).resolve().parent.parent / 'fake_ssh.py'}"


def check_model(folder: Path, saved: str, steps: int) -> None:
    told = gossip(folder, "checkpoints", "export", saved, "model.safetensors").stdout
    assert told == f"model.safetensors: the model of step {steps}, from 2 stages\n"
    expected, _ = one_process(steps)
    model = load_file(folder / "model.safetensors")
    assert set(model) == set(expected)
    for name, tensor in model.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-4)


def test_two_hosts_lose_a_member_and_the_model_goes_on_under_another_plan(tmp_path: Path) -> None:
    desk = tmp_path / "desk"
    for folder in (desk, tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        write_files(folder, [(0, 2, ("a", "b")), (3, 5, ("c",))])
    (desk / "hosts.txt").write_text(
        f"two workdir={tmp_path / 'two'} peers=b,c\none workdir={tmp_path / 'one'} peers=a\n"
    )
    words = ("-H", "hosts.txt", "--ssh", FAKE_SSH, "--plan", "plan.toml", "--name", "x")
    words += ("--json", "--fault", "crash:0@6", "--", "train.py", "9")
    summary: dict[str, Any] = json.loads(gossip(desk, "hosts", *words).stdout)
    assert (summary["status"], summary["rounds"], summary["finished"]) == ("finished", 9, [1, 2])
    hosts = json.loads((desk / "runs/x/hosts.json").read_text())["hosts"]
    assert {name: row["peers"] for name, row in hosts.items()} == {"one": [0], "two": [1, 2]}
    assert not (tmp_path / "one/saved/stage-1").exists()
    assert not (tmp_path / "one/saved/stage-0/step-000000009").exists(), "it died before"

    for host in ("one", "two"):  # as rsync -a does
        shutil.copytree(tmp_path / host / "saved", desk / "got", dirs_exist_ok=True)
    check_model(desk, "got", 9)

    write_files(desk, [(0, 1, ("a",)), (2, 5, ("b",))])
    words = ("--plan", "plan.toml", "--resume", "got", "--json", "train.py", "12")
    summary = json.loads(gossip(desk, "run", *words).stdout)
    assert (summary["rounds"], summary["finished"]) == (3, [0, 1])
    check_model(desk, "saved", 12)
