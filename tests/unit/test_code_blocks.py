"""Each code block of README.md, CONTRIBUTING.md and docs/ is run: Python is executed, command lines
are read by the command's own parser, with all settings of theirs resolved, those that only look are
carried out, and TOML is read by the reader of fault plans. What cannot be run is counted here."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import made_up_run
import pytest
import shown_commands
import shown_python
import torch
import typer.testing
import zygote
from code_blocks import ROOT, Block, every_block
from effort import LONG, effort
from torch import nn

from gossip.faults import load
from gossip.launch.cli import commands
from gossip_lab import World
from gossip_lab.playground.grids import Grid
from gossip_pipelines.planning import (
    PipelinePlan,
    PlannedStage,
    model_of,
    read_plan,
    walk_without_data,
    write_plan,
)

BLOCKS = every_block()
SHELL = [block for block in BLOCKS if block.language in ("bash", "console")]
LANGUAGES = {"bash", "console", "diff", "mermaid", "python", "text", "toml"}
NOT_RUN: dict[str, int] = {}
"""Reason above a block that is not run -> how many blocks have it."""
FOREIGN = {
    ".": 1,
    "condor_submit": 1,
    "git": 3,
    "kubectl": 1,
    "scp": 1,
    "sed": 1,
    "srun": 1,
    "tensorboard": 1,
    "torchrun": 2,
}
"""Programs of others in command lines, and how often: shown_commands.FOREIGN says why."""
PLAYGROUND = "docs/playground.md"
LOOKED_AT = ("ls", "top", "explain", "report", "note", "simulate --replay")
LOOKS = (*(f"gossip {word}" for word in LOOKED_AT), "gossip checkpoints ckpt")
LOOKS += ("gossip checkpoints export",)
RUNS = ("RUN", "digits-91c0", "demo-7f3a", "demo-11aa", "concepts", "x")
TRAIN = """\
import gossip
import torch

peer = gossip.init()
model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in peer.steps(120, save="ckpt", every=20):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
peer.close()
"""


def pages(blocks: list[Block]) -> list[str]:
    return sorted({block.page for block in blocks})


def test_each_block_says_its_language() -> None:
    assert [str(block) for block in BLOCKS if block.language not in LANGUAGES] == []


def test_what_is_not_run_is_counted_with_its_reason() -> None:
    assert Counter(block.why_not for block in BLOCKS if block.why_not) == NOT_RUN
    programs = (shown_commands.words_of(line)[0] for block in SHELL for line in block.commands)
    assert Counter(word for word in programs if word in shown_commands.FOREIGN) == FOREIGN


# --- command lines --------------------------------------------------------------------------------


@pytest.mark.parametrize("page", pages(SHELL))
def test_command_lines_are_understood(page: str) -> None:
    lines = [(str(b), line) for b in SHELL if b.page == page for line in b.commands]
    wrong = {f"{at} {line}": shown_commands.complaint(line) for at, line in lines}
    assert {line: why for line, why in wrong.items() if why} == {}


def starting(blocks: list[Block]) -> list[list[str]]:
    """The words of each command line that starts peers here, or would on other hosts."""
    lines = (shown_commands.words_of(line) for block in blocks for line in block.commands)
    whole = (words for words in lines if "..." not in words and "--task" not in words)
    return [words for words in whole if words[:2] in (["gossip", "run"], ["gossip", "hosts"])]


PLAN = PipelinePlan(
    "0" * 16,
    4,
    2,
    1,
    0.1,
    (PlannedStage((0, 1), ("lab1", "lab2")), PlannedStage((2, 2), ("lab3",))),
)
MODEL = """
import torch
from torch import nn

loss_of = nn.functional.cross_entropy

def layers():
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), torch.zeros(4, 4)

def batch(step):
    return torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader types: a script, a rule, a plan, and a file with hosts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "plan.toml").write_text(write_plan(PLAN))
    shutil.copy(ROOT / "examples" / "my_rules.py", tmp_path)
    shutil.copytree(ROOT / "docs" / "charts", tmp_path / "docs" / "charts")
    hosts = next(
        b for b in BLOCKS if b.page == "docs/hosts.md" and b.text.startswith("nodea slots")
    )
    (tmp_path / "hosts.txt").write_text(hosts.text)
    return tmp_path


def invoke(words: list[str]) -> str:
    """What a command of ours prints, run within this process; it must succeed."""
    done = typer.testing.CliRunner().invoke(commands.app, words[1:])
    assert done.exit_code == 0, f"{words}: {done.output}{done.exception!r}"
    return done.output


@pytest.mark.parametrize("page", pages([b for b in SHELL if starting([b])]))
def test_settings_of_runs_are_resolved(page: str, folder: Path) -> None:
    """Rules, faults, encodings, topologies and hosts are read, and fit the number of peers."""
    for words in starting([block for block in SHELL if block.page == page]):
        if "--advertise" in words:  # an address of the page's machine
            at = words.index("--advertise")
            del words[at : at + 2]
        assert "aggregator" in invoke([*words[:2], "--show-config", *words[2:]])


def looking() -> Iterator[tuple[Block, list[str]]]:
    """Command lines that only look at a run, at checkpoints or into the simulator. Checkpoints
    are dear."""
    for block in SHELL:
        for line in block.commands:
            words = shown_commands.words_of(line)
            dear = words[:2] == ["gossip", "checkpoints"]
            if not line.startswith(LOOKS) or (dear and not LONG):
                continue
            yield block, words


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs that pages name."""
    place = tmp_path_factory.mktemp("reader") / "runs"
    for name in RUNS:
        made_up_run.write(made_up_run.MadeUp(rounds=160, peers=8, pace=8.0), place / name)
    return place


STAGES = """
import torch
from torch import nn

import gossip

peer = gossip.init()
makers = [lambda: nn.Linear(4, 8), lambda: nn.Linear(8, 2)]
pipe = peer.pipeline(
    makers,
    torch.zeros(4, 4),
    loss=nn.functional.mse_loss,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
)
for _ in peer.steps(4, save="saved", every=2):
    pipe.step(torch.ones(8, 4), torch.ones(8, 2))
"""


def train_stages(folder: Path) -> None:
    """Leaves the checkpoints of a model in two stages in ``saved``."""
    walked = walk_without_data([nn.Linear(4, 8), nn.Linear(8, 2)], torch.zeros(4, 4))
    stages = PlannedStage((0, 0), ("a",)), PlannedStage((1, 1), ("b",))
    plan = PipelinePlan(model_of([each.signature for each in walked]), 2, 4, 1, 0.1, stages)
    (folder / "stages.toml").write_text(write_plan(plan))
    (folder / "stages.py").write_text(STAGES)
    words = ["gossip.launch.cli", "run", "--run-dir", "staged", "--plan", "stages.toml"]
    done = zygote.run(
        [sys.executable, "-m", *words, "stages.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", pages([block for block, _ in looking()]))
def test_command_lines_that_look_are_carried_out(page: str, folder: Path, runs: Path) -> None:
    (folder / "runs").symlink_to(runs)
    if page == "docs/checkpoints.md":
        longer = TRAIN.replace("120, save", "1000, save").replace("every=20", "every=500")
        (folder / "longer.py").write_text(longer)
        runpy.run_path("longer.py")
    if page == "docs/plan.md" and LONG:
        train_stages(folder)
    for block, words in looking():
        if block.page == page:
            assert invoke(words) or "-o" in words or "note" in words, words


# In make test-long only; make test says that there is none of it.
@pytest.mark.parametrize("page", effort([], pages([b for b in SHELL if starting([b])])))
def test_runs_that_pages_show_train(page: str, folder: Path) -> None:
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(TRAIN)
    (folder / "examples").mkdir()
    (folder / "examples" / "train.py").write_text(TRAIN)
    for words in starting([block for block in SHELL if block.page == page]):
        # a host, an extra, a former run, another script
        elsewhere = {"--advertise", "--track", "RUN", "ckpt@500", "--plan"}
        if words[1] == "run" and not elsewhere & {*words}:
            if "--resume" not in words:
                shutil.rmtree(folder / "ckpt", ignore_errors=True)
            done = zygote.run(
                [sys.executable, "-m", "gossip.launch.cli", *words[1:]],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=200,
            )
            assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"


def test_worlds_and_grids_are_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in BLOCKS:
        if block.page == PLAYGROUND and block.language == "toml":
            name = "grid.toml" if "[grid]" in block.text else "world.toml"
            name = "runs.toml" if "[run]" in block.text else name  # test_run_sweep.py starts some
            (tmp_path / name).write_text(block.text)
        if block.page == PLAYGROUND and "@topology" in block.text:
            (tmp_path / "mine.py").write_text(block.text)
    for block in [block for block in SHELL if block.page == PLAYGROUND]:
        for line in block.commands:
            assert invoke(shown_commands.words_of(line))


# --- Python ---------------------------------------------------------------------------------------

PYTHON = [block for block in BLOCKS if block.language in ("python", "diff")]


OTHERWISE = ("docs/api.md", "docs/integrations.md")
"""Signatures; cells that follow each other and start peers, and loops of libraries that make test
does not install: test_adapters.py runs them."""


@pytest.mark.parametrize("block", [b for b in PYTHON if b.page not in OTHERWISE], ids=str)
def test_python_is_executed(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_model.py").write_text(MODEL)
    shutil.copy(ROOT / "examples" / "my_rules.py", tmp_path)
    shows_diff = block.language == "diff"
    code = shown_python.with_its_additions(block.text) if shows_diff else block.text
    shown_python.execute_beside_a_peer(code, str(block), tmp_path)


@pytest.mark.parametrize("page", effort([], ["docs/integrations.md"]))
def test_the_cells_of_a_notebook_run(page: str, tmp_path: Path) -> None:
    here = [block.text for block in PYTHON if block.page == page]
    cells = [text for text in here if "gossip.integrations" not in text]
    (tmp_path / "cells.py").write_text("\n\n".join([*cells, "print({*weights})"]))
    command = [sys.executable, "cells.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "weight" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("page", ["docs/api.md"])
def test_signatures_are_of_python(page: str) -> None:
    """test_api_page.py compares them with the real ones."""
    texts = [block.text for block in PYTHON if block.page == page]
    calls = [text for text in texts if not text.startswith(("len(", "for batch in"))]
    assert [text for text in calls if not shown_python.is_signature(text)] == []
    assert len(calls) > 40
    assert not shown_python.is_signature("load(spec: str -> Topology")


# --- TOML and JSON --------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "toml"], ids=str)
def test_toml_is_read(block: Block, tmp_path: Path) -> None:
    """As a world, a grid, a plan of stages, or one of faults."""
    path = tmp_path / "plan.toml"
    path.write_text(block.text)
    if "[grid]" in block.text:
        assert len(Grid.from_toml(path).cells) > 1
        return
    if block.page == PLAYGROUND:
        assert World.from_toml(path) != World()
        return
    if "[[stage]]" in block.text:
        assert len(read_plan(path).stage) == block.text.count("[[stage]]")
        return
    plan = load(path)
    assert len(plan.faults) == block.text.count("[[fault]]")
    assert json.dumps(plan.to_toml())
