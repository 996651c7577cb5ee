"""Real runs as cells of a grid: ``gossip run`` on this machine, with the values of a cell in its
command line."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gossip.errors import ConfigError, UnknownName
from gossip.interpreter import python_command
from gossip.launch.signals import AT_ONCE
from gossip.run import read_lines
from gossip_lab.workers import end_process

from .fields import write_toml
from .played import Row

LAST_LINES = 8
"""Number of output lines in the error message of a failed run."""
TIMEOUT_S = 86400.0
END_S = 60.0
"""Time for a launcher to end its peers, in seconds. A launcher that hangs is then killed."""
PR_SET_PDEATHSIG = 1
_PLACEHOLDER = re.compile(r"{(\w+)}")
_Logged = dict[int, dict[str, dict[int, list[float]]]]


@dataclass(frozen=True)
class RunCommand:
    """Command line of a real run. It takes the place of a world in a cell.

    Attributes:
        command: Options, script and arguments of ``gossip run``. A placeholder ``{name}`` is
            replaced by a value of the grid.
        values: Pairs of a placeholder's name and its value.
        timeout_s: Seconds after which a run is ended, which is an error of the cell.
    """

    command: str
    values: tuple[tuple[str, Any], ...] = ()
    timeout_s: float = TIMEOUT_S

    def __getattr__(self, name: str) -> Any:
        # Still missing while pickle creates the object.
        known = dict(self.__dict__.get("values", ()))
        if name not in known:
            raise AttributeError(name)
        return known[name]

    @classmethod
    def make(cls, values: Mapping[str, Any]) -> RunCommand:
        """Return the command in the table ``[run]`` of a TOML file. Raises: ConfigError: The table
        has no command."""
        others = dict(values)
        command, timeout_s = others.pop("command", None), others.pop("timeout_s", TIMEOUT_S)
        if not isinstance(command, str):
            raise ConfigError("[run] has no command", 'such as command = "-n 4 train.py --lr {lr}"')
        return cls(command, timeout_s=timeout_s).replace(**others)

    @property
    def names(self) -> list[str]:
        """Names of the placeholders in the command."""
        return list(dict.fromkeys(_PLACEHOLDER.findall(self.command)))

    def replace(self, **changes: Any) -> RunCommand:
        """Return the command with other values. Raises: ConfigError: The command has no such
        placeholder, or a value is neither a number nor a text."""
        for name, value in changes.items():
            if name not in self.names:
                raise UnknownName("name in the command", name, self.names)
            if not isinstance(value, str | int | float):
                raise ConfigError(f"{name} = {value!r}", "a value is a number or a text")
        return replace(self, values=tuple(sorted({**dict(self.values), **changes}.items())))

    def facts(self) -> dict[str, Any]:
        """Return everything that affects the rows, as JSON values."""
        return {**dict(self.values), "command": self.command}

    def to_toml(self) -> str:
        """Return all fields as TOML."""
        return write_toml({**self.facts(), "timeout_s": self.timeout_s})

    def check(self) -> None:
        """Raise ConfigError if a quotation in the command is not closed, a placeholder has no value
        or a reserved name, or the timeout is not a number above 0."""
        if not isinstance(self.timeout_s, int | float) or not self.timeout_s > 0:
            raise ConfigError(f"timeout_s = {self.timeout_s!r}", "seconds, such as 3600")
        try:
            shlex.split(self.command)
        except ValueError as error:
            raise ConfigError(
                f"command = {self.command!r}: {error}", "quote it as for a shell"
            ) from error
        if taken := {*dir(self), "command"}.intersection(self.names):
            raise ConfigError(
                f"the command has {{{min(taken)}}}, a reserved name", "use another name"
            )
        known = dict(self.values)
        if missing := [name for name in self.names if name not in known]:
            raise ConfigError(f"the command has no value for {missing[0]}", "add it to [grid]")

    @property
    def words(self) -> list[str]:
        """Words of the command line, with values in place of the placeholders."""
        known = {name: str(value) for name, value in self.values}
        return [
            _PLACEHOLDER.sub(lambda found: known[found[1]], word)
            for word in shlex.split(self.command)
        ]

    def evaluations(self, rounds: int, every: int) -> Iterator[list[Row]]:
        """Run the command to its end, and yield the rows of each interval of ``every`` rounds.
        ``rounds`` is not used, because the script decides when the run ends.

        Raises: ConfigError: The run failed, or its script has logged nothing. The folder of the run
        is not deleted.
        """
        folder = Path(tempfile.mkdtemp(prefix="gossip-sweep-"))
        began, log, run = time.time(), folder / "output", folder / "run"
        words = python_command("-m", "gossip.launch.cli", "run", "-q", "--run-dir", str(run))
        with log.open("w", encoding="utf-8") as output:
            launcher = subprocess.Popen(
                [*words, *self.words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=_ends_with_parent(),
            )
            how = ""
            try:
                launcher.wait(self.timeout_s)
            except subprocess.TimeoutExpired:
                how = f"was ended after {self.timeout_s:g} s, the timeout_s of [run]"
            finally:
                end_process(launcher, END_S, AT_ONCE)  # without waiting for the end of the round
        if launcher.returncode:
            how = how or f"ended with {launcher.returncode}"
            last = " | ".join(log.read_text("utf-8", "replace").splitlines()[-LAST_LINES:])
            raise ConfigError(f"gossip run {how}: {last}", f"see {run}")
        found = read_run(run, int(dict(self.values).get("seed", 0)), every, began)
        if not found:
            raise ConfigError("the script logged no metrics", f"peer.log(accuracy=...); see {run}")
        shutil.rmtree(folder)
        yield from found


def _ends_with_parent() -> Callable[[], None]:
    """Return the function that a child process calls before it starts. The child then receives
    SIGTERM when this process dies, for whatever reason; a launcher ends its peers on SIGTERM."""
    libc, parent = ctypes.CDLL(None, use_errno=True), os.getpid()

    def call() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return call


def read_run(folder: Path, seed: int, every: int, began: float) -> list[list[Row]]:
    """Return the rows of a run for each interval of ``every`` rounds, from the values that its
    honest peers have logged.

    First the values of each peer are averaged over the interval. ``worst``, ``mean`` and ``p10``
    are then the minimum, mean and tenth percentile of ``accuracy`` over the peers. All other
    metrics are means over the peers.

    Args:
        began: Start of the run, in seconds since the epoch.
    """
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    logged: _Logged = {}
    ends: dict[int, float] = {}
    for path in folder.glob("peer-*/metrics.jsonl"):
        for line in read_lines(path):
            peer, at = line.pop("peer"), -(-line.pop("round") // every) * every
            ends[at] = max(ends.get(at, began), line.pop("wall"))
            del line["t"]
            for name, value in line.items() if peer not in summary["byzantine"] else ():
                if isinstance(value, int | float):
                    by_peer = logged.setdefault(at, {}).setdefault(name, {})
                    by_peer.setdefault(peer, []).append(value)
    counted = [_sent_bytes(path) for path in folder.glob("peer-*/events.jsonl")]
    sent = [each for each in counted if each[0]]
    found = []
    for at, by_name in sorted(logged.items()):
        nbytes = round(sum(np.interp(ends[at], *each) for each in sent))
        place = seed, at, ends[at] - began, nbytes
        found.append([Row(*place, *each) for each in _metrics(by_name)])
    return found


def _metrics(by_name: Mapping[str, Mapping[int, list[float]]]) -> Iterator[tuple[str, float]]:
    for name, by_peer in by_name.items():
        values = [float(np.mean(each)) for each in by_peer.values()]
        if name == "accuracy":
            yield "worst", min(values)
            yield "mean", float(np.mean(values))
            yield "p10", float(np.quantile(values, 0.1))
        else:
            yield name, float(np.mean(values))


def _sent_bytes(events: Path) -> tuple[list[float], list[float]]:
    """Return the times at which a peer reported its sent bytes, and the total sent bytes at these
    times. A restarted peer reports from 0 again, so its earlier bytes are added."""
    lines = [line for line in read_lines(events) if line.get("event") == "usage"]
    counts, before = list[float](), 0.0
    for line in lines:
        if counts and line["sent_bytes"] < counts[-1] - before:
            before = counts[-1]
        counts.append(before + line["sent_bytes"])
    return [line["wall"] for line in lines], counts
