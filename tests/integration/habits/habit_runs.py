"""Runs one habit in one situation, and compares what its peers end with."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import zygote
from habit_table import HABITS
from safetensors.torch import load_file
from torch import Tensor

HERE = Path(__file__).parent
SUPPORT = HERE / "support"
PEERS = {"single": 1, "pair": 2, "late": 3, "killed": 3, "resumed": 3, "fewer": 2}
FAULT = "restart:2@20+0.1s"
HELD_AFTER = "00020"
"""End of the name of the checkpoint that a killed run is resumed from."""
LIMIT_S = 100.0
"""A peer that two of three have left waits for a quorum for 60 s."""
RELATIVE, ABSOLUTE = 1e-4, 1e-6
"""Tolerance where sums are made in another order."""
Tensors = dict[str, Tensor]


class Failed(Exception):
    """A run did not end as its habit should. The message says how."""


@dataclass
class Run:
    """What the processes of a run left: the results by peer, and the names of exceptions."""

    code: int
    text: str
    results: dict[int, Tensors] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)


class HabitRuns:
    """Runs of one habit in a folder of its own. What several situations need is run once."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.habit = name, folder, HABITS[name]
        self._plain: dict[int, Run] = {}
        self._first_life: Path | Run | None = None

    def outcome(self, situation: str) -> str:
        """Return ``ok``, ``refused NAME``, or ``FAILED`` with what was wrong."""
        try:
            run = self._run(situation)
            if run.refusals:
                return _named(run.refusals, self.habit.expected(situation))
            if run.code and f"exit code {run.code}" == self.habit.expected(situation):
                return f"exit code {run.code}"
            self._check(situation, run)
        except Failed as failed:
            return f"FAILED {failed}"
        return "ok"

    # --- runs -------------------------------------------------------------------------------------

    def _run(self, situation: str) -> Run:
        if situation == "single":
            return self._script("single", {}, ())
        if situation == "pair":
            return self._swarm("pair", "pair", "--deterministic")
        if situation == "late":
            return self._swarm("late", "late")
        if situation == "killed":
            return self._swarm("killed", "killed", "--fault", FAULT)
        if self._first_life is None:
            self._first_life = self._killed_run()
        if isinstance(self._first_life, Run):
            return self._first_life
        here = self._new_folder(situation)
        for saved in self._first_life.glob("**/ckpt"):
            shutil.copytree(saved, here / saved.relative_to(self._first_life))
        (here / "again").touch()
        exact = ["--deterministic"] if situation == "resumed" else []
        return self._swarm(situation, situation, "--resume", "auto", *exact)

    def plain(self, peers: int) -> Run:
        """Return the run in plain torch that gradients are averaged in by hand."""
        if peers not in self._plain:
            folder = self._new_folder(f"plain-{peers}")
            started = [
                self._start_script(
                    folder, {"HABIT_RANK": str(rank), "HABIT_PEERS": str(peers)}, plain=True
                )
                for rank in range(peers)
            ]
            ended = [_ended(each) for each in started]
            code = next((code for code, _ in ended if code), 0)
            text = "\n".join(text for _, text in ended)
            self._plain[peers] = Run(code, text, _results(folder))
        run = self._plain[peers]
        if run.code:
            raise Failed(f"by hand: {run.text[-800:]}")
        return run

    def _script(self, name: str, environment: Mapping[str, str], words: tuple[str, ...]) -> Run:
        folder = self._new_folder(name)
        code, text = _ended(self._start_script(folder, environment))
        return Run(code, text, _results(folder), _refusals(folder))

    def _start_script(
        self, folder: Path, environment: Mapping[str, str], plain: bool = False
    ) -> subprocess.Popen[Any]:
        own = {"HABIT_SITUATION": "single", "HABIT_SUPPORT": str(SUPPORT), **environment}
        if plain:
            own[zygote.FIRST] = str(SUPPORT / "begin.py")
        return self._start(folder, [], own, head=self.habit.head and not plain)

    def _start(
        self, folder: Path, launcher: list[str], environment: Mapping[str, str], head: bool
    ) -> subprocess.Popen[Any]:
        command = [sys.executable, *launcher, f"{self.name}.py", *self.habit.words]
        process = zygote.Popen(
            command,
            cwd=folder,
            env={**os.environ, "HABIT_OUT": str(folder), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "stderr").open("wb") if head else subprocess.STDOUT,
            start_new_session=True,
        )
        if head:
            assert process.stdout
            process.stdout.readline()
            process.stdout.close()
            process.stdout = None
        assert process.stdin
        process.stdin.write(self.habit.stdin.encode())
        process.stdin.close()
        process.stdin = None
        return process

    def _launch(
        self, folder: Path, situation: str, peers: int, *options: str
    ) -> subprocess.Popen[Any]:
        words = ["-m", "gossip.launch.cli", "run", "-n", str(peers), "--aggregator", "mean"]
        words += ["--run-dir", "out", "--output", "all", *options]
        about = {"HABIT_SITUATION": situation}
        return self._start(folder, words, about, head=self.habit.head)

    def _swarm(self, name: str, situation: str, *options: str) -> Run:
        folder = self.folder / name
        if not folder.exists():
            self._new_folder(name)
        code, text = _ended(self._launch(folder, situation, PEERS[situation], *options))
        run = Run(code, text, _results(folder), _refusals(folder))
        if not run.refusals and f"exit code {code}" != self.habit.expected(situation):
            summary = _summary(folder)
            if code or summary.get("exit_code"):
                raise Failed(f"exit code {code}: {text[-1500:]}")
            if summary["faults_missed"]:
                raise Failed(f"a fault did not take place: {summary['faults_missed']}")
            if summary["replicas_identical"] is False:
                raise Failed("summary.json: replicas differ")
            if situation == "late" and not (folder / "late").exists():
                raise Failed("no peer was late")
        return run

    def _killed_run(self) -> Path | Run:
        """Return the folder of a run that was killed behind a checkpoint, or the run if it ended by
        itself."""
        folder = self._new_folder("first-life")
        process = self._launch(folder, "resumed", 3, "--deterministic")
        until = time.monotonic() + LIMIT_S

        def is_held() -> bool:
            held = len(list(folder.glob("held-*"))) == 3
            return held and any(folder.glob(f"**/ckpt/*{HELD_AFTER}/manifest.json"))

        while not is_held() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        held = is_held()
        pids = [process.pid, *_children(process.pid)]
        for pid in pids:
            _kill(pid)
        text = _decoded(process.communicate(timeout=LIMIT_S)[0])
        if not held:
            return Run(process.returncode, text, {}, _refusals(folder))
        return folder

    def _new_folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(parents=True)
        for path in (HERE / "scripts" / f"{self.name}.py", SUPPORT / "habit.py"):
            shutil.copy(path, folder)
        return folder

    # --- comparison -------------------------------------------------------------------------------

    def _check(self, situation: str, run: Run) -> None:
        peers = PEERS[situation]
        if run.code:
            raise Failed(f"exit code {run.code}: {run.text[-1500:]}")
        if sorted(run.results) != list(range(peers)):
            raise Failed(f"results of peers {sorted(run.results)}: {run.text[-1500:]}")
        first = run.results[0]
        for peer, result in run.results.items():
            _compare(
                f"peer {peer} from peer 0", result, first, ("model", "shared", "count"), exact=True
            )
        if situation == "fewer":
            by_hand = self.plain(3).results
            for peer, result in run.results.items():
                _compare(f"peer {peer} from the plan", result, by_hand[0], ("count",), exact=True)
            return
        by_hand = self.plain(peers).results
        for peer, result in run.results.items():
            has_numbers = situation in self.habit.by_hand
            kinds = ("model", "shared", "own", "count") if has_numbers else ("count",)
            _compare(
                f"peer {peer} from by hand",
                result,
                by_hand[peer],
                kinds,
                exact=situation == "single",
            )


def _compare(about: str, one: Tensors, other: Tensors, kinds: tuple[str, ...], exact: bool) -> None:
    def chosen(tensors: Tensors) -> Tensors:
        return {n: t for n, t in tensors.items() if n.partition("/")[0] in kinds}

    one, other = chosen(one), chosen(other)
    if one.keys() != other.keys():
        raise Failed(f"{about}: {sorted(one.keys() ^ other.keys())} only in one")
    for name in one:
        a, b = one[name], other[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            raise Failed(f"{about}: {name} is {a.dtype} {list(a.shape)}, {b.dtype} {list(b.shape)}")
        exactly = exact or name.startswith("count") or not a.is_floating_point()
        same = (
            torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
            if exactly
            else torch.allclose(a, b, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)
        )
        if not same:
            gap = (a.double() - b.double()).abs().max().item()
            raise Failed(
                f"{about}: {name} differs by {gap:.3g}, of {b.double().abs().max().item():.3g}"
            )


def _named(refusals: list[str], expected: str) -> str:
    """Return the expected refusal if it is among those of all processes."""
    found = [f"refused {name}" for name in sorted(set(refusals))]
    return expected if expected in found else " and ".join(found)


def _results(folder: Path) -> dict[int, Tensors]:
    return {
        int(path.stem.removeprefix("peer-")): load_file(path)
        for path in folder.glob("peer-*.safetensors")
    }


def _refusals(folder: Path) -> list[str]:
    return [json.loads(path.read_text())["name"] for path in folder.glob("refused-*.json")]


def _summary(folder: Path) -> dict[str, Any]:
    path = folder / "out" / "summary.json"
    return json.loads(path.read_text()) if path.exists() else {"exit_code": 1}


def _ended(process: subprocess.Popen[Any]) -> tuple[int, str]:
    try:
        text, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        for pid in (process.pid, *_children(process.pid)):
            _kill(pid)
        text, _ = process.communicate(timeout=LIMIT_S)
        raise Failed(f"it did not end within {LIMIT_S:g} s: {_decoded(text)[-1500:]}") from None
    return process.returncode, _decoded(text)


def _decoded(text: bytes | None) -> str:
    """Return what was written to standard output; ``None`` stands for a closed pipe."""
    return (text or b"").decode()


def _children(pid: int) -> list[int]:
    try:
        direct = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [each for child in map(int, direct) for each in (child, *_children(child))]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
