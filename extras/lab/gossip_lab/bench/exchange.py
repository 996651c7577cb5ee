"""``gossip bench exchange`` and ``gossip bench step``: comparison with gloo. The same processes run
gloo and gossip alternately. Each result is printed with the limits of the machine."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from gossip.errors import ConfigError, LocalError
from gossip.interpreter import python_command
from gossip_lab.workers import end_process

from .side_by_side import GLOO, GOSSIP, TURN, BenchTask
from .turns import REPETITIONS, Spread, as_json, draw, progress, ratios

END_S = 20.0
TURN_S = 0.3
"""Duration of one side's part of a turn, in seconds."""
NUMBER_S = 3e-9
"""Estimated time of an exchange on two cores, in seconds per element and peer."""
STEPS_MAX = 50
PEERS, NUMBERS = [2, 4], [100_000, 1_000_000]

Sides = list[tuple[str, str]]
"""Rows of a table: a name, and its figures."""

PeerCounts = Annotated[
    list[int], typer.Option("-n", "--peers", min=2, max=64, help="Number of peers. Repeatable.")
]
Repetitions = Annotated[
    int, typer.Option(min=1, help="Number of measured turns of gloo and of gossip.")
]
Aggregator = Annotated[str, typer.Option(help="Aggregation rule of gossip.")]
Topology = Annotated[str, typer.Option(help="Topology of gossip.")]
Encoding = Annotated[str, typer.Option(help="Encoding of gossip's updates.")]
Device = Annotated[
    str, typer.Option(help="Device of the model: cpu, or cuda, which all peers share.")
]
Keys = Annotated[
    bool, typer.Option("--keys", help="Let gossip authenticate and encrypt its messages.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, and nothing else, to stdout.")
]


@dataclass(frozen=True, slots=True)
class Contest:
    """Settings of gossip in the comparison."""

    aggregator: str
    topology: str
    encoding: str
    keys: bool

    @property
    def words(self) -> list[str]:
        words = ["--aggregator", self.aggregator, "--topology", self.topology]
        words += ["--encoding", self.encoding, "--keys" if self.keys else "--no-keys"]
        return [*words, "--start-timeout", "250"]


def exchange(
    peers: PeerCounts = PEERS,
    numbers: Annotated[
        list[int], typer.Option(min=1, help="Number of elements of an update. Repeatable.")
    ] = NUMBERS,
    repetitions: Repetitions = REPETITIONS,
    aggregator: Aggregator = "mean",
    topology: Topology = "rolling",
    encoding: Encoding = "float32",
    device: Device = "cpu",
    keys: Keys = False,
    as_json_only: Json = False,
) -> None:
    """Time an exchange of updates and the step of the optimizer (SGD), in milliseconds.

    Gossip is compared with a gloo all-reduce, a division by the number of peers, and the same
    optimizer step. The same processes run both sides alternately; a turn ends when the last process
    has finished. For comparison, the table has the time to copy an update once, and to send it to
    another process over a unix socket and over TCP.
    """
    contest = Contest(aggregator, topology, encoding, keys)
    tasks = []
    for count in numbers:
        for n in peers:
            steps = max(1, min(STEPS_MAX, int(TURN_S / (NUMBER_S * count * n))))
            task = BenchTask("vector", device, count, 0, steps, repetitions, n)
            tasks.append((task, f"{n} peers, {count:,} numbers, {contest.aggregator}"))
    rows = _compare(tasks, contest, _exchanges, as_json_only)
    if as_json_only:
        print(as_json("exchange", {"contest": asdict(contest), "rows": rows}))


def step(
    peers: PeerCounts = PEERS,
    model: Annotated[
        str, typer.Option(help="Model: digits-mlp, cnn, wide-mlp or char-gpt.")
    ] = "digits-mlp",
    batch: Annotated[int, typer.Option(min=1, help="Samples per peer and step.")] = 32,
    repetitions: Repetitions = REPETITIONS,
    aggregator: Aggregator = "mean",
    topology: Topology = "rolling",
    encoding: Encoding = "float32",
    device: Device = "cpu",
    keys: Keys = False,
    as_json_only: Json = False,
) -> None:
    """Compare the training steps per second of gossip and of PyTorch DDP over gloo.

    The same processes train the same model with both, alternately, with one thread each. All
    batches are generated before the first step, so no data loader is measured.
    """
    from .workloads import WORKLOADS

    if model not in WORKLOADS:
        raise ConfigError(f"there is no model {model!r}", f"use one of {', '.join(WORKLOADS)}")
    contest = Contest(aggregator, topology, encoding, keys)
    count = sum(each.numel() for each in WORKLOADS[model].model().parameters())
    steps = max(1, min(STEPS_MAX, int(1e6 / count)))
    about = f"{model} ({WORKLOADS[model].about}), batch {batch}"
    tasks = [
        (BenchTask(model, device, count, batch, steps, repetitions, n), f"{n} peers, {about}")
        for n in peers
    ]
    rows = _compare(tasks, contest, _steps, as_json_only)
    if as_json_only:
        found = {"contest": asdict(contest), "model": model, "batch": batch, "rows": rows}
        print(as_json("step", found))


def _check_device(device: str) -> None:
    """Raise ConfigError if this machine does not have the device."""
    import torch

    if device not in ("cpu", "cuda"):
        raise ConfigError(f"there is no device {device!r}", "use cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("torch finds no CUDA device", "use --device cpu")


def _compare(
    tasks: Sequence[tuple[BenchTask, str]],
    contest: Contest,
    sides_of: Callable[[dict[str, Any]], tuple[str, Sides]],
    quiet: bool,
) -> list[dict[str, Any]]:
    """Run both sides on each task, show the row of each task under its title, and return all
    rows."""
    from . import limits

    for task, _ in tasks:
        _check_device(task.device)
    limits_of = cache(limits.measure)
    rows = []
    with ended_by_signals():
        for task, title in tasks:
            best = limits_of(4 * task.numbers)
            rows.append({**_row(task, measure(task, contest)), "limits": asdict(best)})
            _show(rows[-1], title, *sides_of(rows[-1]), quiet)
    return rows


# --- a measurement --------------------------------------------------------------------------------


def measure(task: BenchTask, contest: Contest) -> dict[str, Any]:
    """Return the seconds per step for each side and turn, and the number of rounds that lack a
    peer's update. Raises: LocalError: The processes did not finish."""
    with tempfile.TemporaryDirectory(prefix="gossip-bench-") as folder:
        run = Path(folder, "run")
        command = python_command("-m", "gossip.launch.cli", "run", "--quiet")
        command += ["-n", str(task.peers), *contest.words, "--run-dir", str(run)]
        command += ["-m", "gossip_lab.bench.side_by_side", replace(task, folder=folder).dump()]
        title = f"{task.peers} peers, {task.numbers:,} numbers"
        said = _followed(command, title, task.repetitions)
        result = Path(folder, "result.json")
        if not result.exists():
            raise LocalError(f"{title}: the peers did not finish\n{said}")
        return {**json.loads(result.read_text("utf-8")), **missing(run, task.peers)}


def missing(run: Path, peers: int) -> dict[str, int]:
    """Return the number of rounds in a run's folder, and the number of rounds that lack a peer's
    update."""
    from gossip.run import read_lines

    commits = {
        row["round"]: row
        for path in run.glob("peer-*/commits.jsonl")
        for row in read_lines(path)
        if row["shard"] == 0
    }.values()
    partial = sum(len(row["contributors"]) < peers for row in commits)
    return {"rounds": len(commits), "rounds_without_somebody": partial}


def _followed(command: Sequence[str], title: str, turns: int) -> str:
    """Run the command and show its progress in one line. Return the last lines of its output."""
    last: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        try:
            assert running.stdout is not None
            for line in running.stdout:
                word = line.partition("| ")[2].strip()
                if word.startswith(TURN):
                    progress(f"{title}: turn {word.removeprefix(TURN)} of {turns}")
                else:
                    last = [*last[-14:], line.rstrip()]
        finally:
            progress("")
            end_process(running, END_S)
    return "\n".join(last)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Make Ctrl-C and SIGTERM end the started processes, and then this command with the exit code
    128 + signal number."""

    def ended(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, ended)
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted; the output above is complete", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


# --- tables ---------------------------------------------------------------------------------------


def _row(task: BenchTask, took: dict[str, Any]) -> dict[str, Any]:
    return {
        "peers": task.peers,
        "numbers": task.numbers,
        "seconds": {name: asdict(Spread.of(took[name])) for name in (GLOO, GOSSIP)},
        "ratio": asdict(ratios(took[GOSSIP], took[GLOO])),
        "processor_s": took["processor"],
        **{name: took[name] for name in ("rounds", "rounds_without_somebody")},
        "turns": {name: took[name] for name in (GLOO, GOSSIP)},
    }


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f}"


def _exchanges(row: dict[str, Any]) -> tuple[str, Sides]:
    """Return the unit, and the figures of both sides: the time of an exchange."""
    turns = row["turns"]
    return "ms", [
        ("gloo", Spread.of(turns[GLOO]).text(_ms)),
        ("gossip", Spread.of(turns[GOSSIP]).text(_ms)),
        ("gossip over gloo, within a turn", ratios(turns[GOSSIP], turns[GLOO]).text()),
    ]


def _steps(row: dict[str, Any]) -> tuple[str, Sides]:
    """Return the unit, and the figures of both sides: the steps in a second."""
    turns = row["turns"]
    gloo, gossip = (
        Spread.of([1 / each for each in turns[name]]).text("{:,.1f}".format)
        for name in (GLOO, GOSSIP)
    )
    within = ratios(turns[GLOO], turns[GOSSIP]).text()
    return "steps/s", [
        ("DDP over gloo", gloo),
        ("gossip", gossip),
        ("gossip over DDP, within a turn", within),
    ]


def _show(row: dict[str, Any], title: str, unit: str, sides: Sides, quiet: bool) -> None:
    """Print the times of both sides, their processor time, and the limits of the machine. Other
    load on the machine affects processor time less than the time of a step."""
    spent, best = row["processor_s"], row["limits"]
    drawn = [
        *sides,
        ("processor time of a peer, gloo, ms", _ms(spent[GLOO])),
        ("processor time of a peer, gossip, ms", _ms(spent[GOSSIP])),
        ("the same, gossip over gloo", f"{spent[GOSSIP] / spent[GLOO]:.2f}"),
        ("limit, ms: copy the numbers once", _ms(best["copy_s"])),
        ("limit, ms: over a unix socket", _ms(best["unix_s"])),
        ("limit, ms: over TCP", _ms(best["tcp_s"])),
        (
            "rounds that lack a peer's update",
            f"{row['rounds_without_somebody']} of {row['rounds']}",
        ),
    ]
    columns = (unit, "median (least to most)")
    draw(title, columns, drawn, sys.stderr if quiet else sys.stdout)
