"""Run folders that somebody has tampered with, read by ``gossip ls``, ``logs``, ``stop``,
``explain``, ``report``, ``top``, ``join`` and ``checkpoints``, in one process.

    python tests/folders/mutate.py --count 200000
    python tests/folders/mutate.py --only report,top --count 20000

A small run is trained first, and rows of every kind are added to its events. Then its folder is
changed, read and put back, again and again. Nothing may end in a traceback, take two seconds of
processor time or 200 MB, write a control character or HTML of the folder's author, import a module
that the folder names, or send a signal.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import typer

from gossip.config import RunConfig
from gossip.errors import GossipError
from gossip.launch.checkpoints import command as checkpoints
from gossip.launch.guardian import stat
from gossip.launch.join import joining
from gossip.launch.report import command as tend, launchers
from gossip.observe import EVENTS, fields
from gossip.run import read_file

SECONDS_MAX, GROWTH_MAX_MB = 2.0, 200.0
ALARM_S = 60.0
"""A command that waits for longer is blocked."""
ADDRESS_SPACE_BYTES = 2**30
"""More than what the process has when the first folder is read."""
EVIL = "evil_module_of_a_folder"
HTML = "<script>evil()</script>"
RUN = "from gossip.launch.cli import main; main()"
SCRIPT = """
import pathlib, gossip, torch
peer = gossip.init()
model = torch.nn.Linear(4, 2)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in peer.steps(3, save=pathlib.Path(__file__).with_name("runs") / "one" / "ckpt", every=1):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    peer.log(accuracy=0.5)
    print("step", step, flush=True)
"""
SHELLS = (
    b"\x1b]0;owned\x07",
    b"\x1b[2J\x1b[H",
    b"\x9b31m",
    "\u202e".encode(),
    b"\x00",
    b"\r\n\r",
    b"[red]markup[/red]",
)
STRANGE = (
    *("null", "true", "[]", "{}", '"x"', "-1", "1e999", "NaN", "1" * 400, "1" * 5000),
    *('"\\ud800"', '"\\u001b[2J"', "[[[[1]]]]", "-5", "0.5", "1e15", "1e308", "-Infinity"),
    *(str(2**bits) for bits in (31, 39, 53, 63)),
    *("[" * 900 + "]" * 900, "[0, 1, -1, 1000000000]", '[{"peer": -1}, {"peer": []}, 7]'),
    *('{"-1": 0.5, "1000000000": 0.5, "x": []}', f'"{HTML}"', f'"{EVIL}:rule"'),
    *(json.dumps("x" * 200_000), json.dumps(["x" * 50] * 2000)),
)


@dataclass(slots=True)
class MutationFinding:
    """What went wrong. ``change``: how the folder had been changed."""

    seed: int
    tool: str
    change: str
    why: str
    where: str = ""

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: gossip {self.tool}: {self.why[:300]}\n"
            f"  {self.where}\n  {self.change}"
        )


@dataclass(slots=True)
class MutationReport:
    folders: int = 0
    findings: list[MutationFinding] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    grown_mb: float = 0.0
    signals: list[str] = field(default_factory=list)


# --- a run, and what is done to its folder --------------------------------------------------------


def train(into: Path, start: Callable[..., object] = subprocess.run) -> Path:
    """A run of two peers that leaves a file of every kind. Returns its folder."""
    script = into / "script.py"
    script.write_text(SCRIPT)
    words = ["run", "-n", "2", "--rounds", "3", "--run-dir", str(into / "runs" / "one")]
    start(
        [sys.executable, "-c", RUN, *words, str(script)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    add_rows(into / "runs" / "one")
    return into / "runs" / "one"


def add_rows(run: Path) -> None:
    """Append an event of every name, with every field that a reader computes with."""
    values = {
        fields.PEER: 1,
        fields.ROUND: 2,
        fields.COUNT: 3,
        fields.REAL: 0.5,
        fields.TEXT: "why",
        fields.TEXTS: ["far out"],
        fields.FLAG: True,
        fields.PEERS: [0, 1],
        fields.ALIVE: [0, 1],
        fields.BY_PEER: {"0": 1.0, "1": 0.5},
        fields.COUNTS: [100, 200],
        fields.FIGURES: [
            {"index": 0, "busy": 0.5, "memory": 7, "memory_total": 9, "celsius": 50.0}
        ],
        fields.TRAFFIC: {"sent_bytes": 7},
    }
    lines = (run / "events.jsonl").read_bytes().splitlines()
    last = json.loads(lines[-1])

    def row(name: str, **more: object) -> dict[str, object]:
        found = {field: values.get(kind) for field, kind in EVENTS[name].types.items()}
        stamp = {"t": last["t"], "wall": last["wall"], "peer": 0, "event": name}
        return {**found, **stamp, **more}

    told = [row(name) for name in EVENTS]
    told += [
        row("fault", fault=fault, kind=fault.partition(":")[0])
        for fault in ("crash:1@2", "hang:1@2:0.5s", "partition:0|1@2:0.5s", "slow:1@2")
    ]
    told += [row("round", alive=2)]
    more = [json.dumps(row, separators=(",", ":")).encode() for row in told]
    (run / "events.jsonl").write_bytes(b"\n".join([*lines[:-1], *more, lines[-1], b""]))


def copy(run: Path, into: Path) -> Path:
    """A copy that says that its checkpoints are its own. Returns its folder."""
    made = Path(shutil.copytree(run, into / "runs" / "one"))
    for note in made.rglob("*.json"):
        note.write_text(note.read_text().replace(str(run / "ckpt"), str(made / "ckpt")))
    return made


class Folder:
    """One run's folder as it was, which ``changed`` changes, and puts back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = {
            str(file.relative_to(path)): file.read_bytes()
            for file in sorted(path.rglob("*"))
            if file.is_file()
        }

    @contextlib.contextmanager
    def changed(self, random: Random) -> Iterator[str]:
        """Says how."""
        names = random.sample(sorted(self.files), random.choice((1, 1, 2, 3)))
        changes = [random.choice(CHANGES) for _ in names]
        if forged in changes:
            names = [next(name for name in self.files if name.startswith(launchers.FOLDER))]
            changes = [forged]
        # by itself: nothing else may be written through that link
        if folder_behind_link in changes:
            names, changes = names[:1], [folder_behind_link]
        try:
            for name, change in zip(names, changes, strict=True):
                change(self.path / name, self.files[name], random)
            yield ", ".join(
                f"{name}: {change.__name__}" for name, change in zip(names, changes, strict=True)
            )
        finally:
            for name in names:
                self._put_back(self.path / name, self.files[name])

    @staticmethod
    def _put_back(file: Path, data: bytes) -> None:
        if file.parent.is_symlink():
            file.parent.unlink()
            (file.parent.with_name(f"{file.parent.name}.away")).rename(file.parent)
        if file.is_dir() and not file.is_symlink():
            file.rmdir()
        file.unlink(missing_ok=True)
        file.write_bytes(data)


Change = Callable[[Path, bytes, Random], None]


def flip(file: Path, data: bytes, random: Random) -> None:
    changed = bytearray(data or b"x")
    for _ in range(random.randint(1, 8)):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    file.write_bytes(changed)


def cut(file: Path, data: bytes, random: Random) -> None:
    file.write_bytes(data[: random.randrange(len(data) + 1)])


def noise(file: Path, data: bytes, random: Random) -> None:
    file.write_bytes(random.randbytes(random.randint(0, 4096)))


def deep(file: Path, data: bytes, random: Random) -> None:
    file.write_bytes(
        random.choice((b"[", b'{"a":', b'{"event": "round", "round": ['))
        * random.choice((10, 1000, 100_000))
    )


def strange_values(file: Path, data: bytes, random: Random) -> None:
    """Fields of a JSON object, or of some rows, may become anything, or stand there twice."""
    if file.suffix in (".json", ".addr"):
        with contextlib.suppress(ValueError):
            file.write_text(_strange(json.loads(data), random, whole=True))
        return
    lines = data.decode("utf-8", "replace").splitlines() or ["{}"]
    for at in random.sample(range(len(lines)), min(len(lines), random.choice((1, 1, 2, 8)))):
        with contextlib.suppress(ValueError):
            lines[at] = _strange(json.loads(lines[at]), random, whole=random.random() < 0.2)
    file.write_text("\n".join([*lines, ""]), "utf-8", "backslashreplace")


def _strange(value: object, random: Random, whole: bool) -> str:
    """JSON of the value with some fields changed. ``whole``: as many as come."""
    if not isinstance(value, dict) or not value or random.random() < 0.05:
        return random.choice(STRANGE)
    chosen = random.sample(sorted(value), random.randint(1, len(value)) if whole else 1)
    fields = []
    for name, inner in value.items():
        text = json.dumps(inner)
        if name in chosen:
            changed = _strange_inside(inner, random)
            fields += [f"{json.dumps(name)}: {text}"] * (random.random() < 0.1)
            text = changed
        fields.append(f"{json.dumps(name)}: {text}")
    return "{" + ", ".join(fields) + "}"


def _strange_inside(inner: object, random: Random) -> str:
    if isinstance(inner, dict) and inner and random.random() < 0.6:
        return _strange(inner, random, whole=False)
    if isinstance(inner, list) and inner and random.random() < 0.6:
        at = random.randrange(len(inner))
        items = [
            _strange_inside(each, random) if n == at else json.dumps(each)
            for n, each in enumerate(inner)
        ]
        return "[" + ", ".join(items) + "]"
    return random.choice(STRANGE)


def missing_fields(file: Path, data: bytes, random: Random) -> None:
    with contextlib.suppress(ValueError):
        said = json.loads(data)
        if isinstance(said, dict) and said:
            kept = random.sample(sorted(said), random.randrange(len(said)))
            file.write_text(json.dumps({name: said[name] for name in kept}))


def escapes(file: Path, data: bytes, random: Random) -> None:
    at = random.randrange(len(data) + 1)
    file.write_bytes(data[:at] + random.choice(SHELLS) * random.randint(1, 3) + data[at:])


def long_line(file: Path, data: bytes, random: Random) -> None:
    file.write_bytes(data + b"x" * random.choice((10_000, 300_000)))


def repeated(file: Path, data: bytes, random: Random) -> None:
    file.write_bytes(data * random.randint(2, 20))


def sparse(file: Path, data: bytes, random: Random) -> None:
    with file.open("wb") as out:
        out.truncate(random.choice((3_000_000, 2**34)))


def gone(file: Path, data: bytes, random: Random) -> None:
    file.unlink()


def pipe(file: Path, data: bytes, random: Random) -> None:
    file.unlink()
    os.mkfifo(file)


def folder_instead(file: Path, data: bytes, random: Random) -> None:
    file.unlink()
    file.mkdir()


def closed(file: Path, data: bytes, random: Random) -> None:
    """Not even its owner may read it, which keeps root from nothing (``give_up_privileges``)."""
    file.chmod(random.choice((0o000, 0o222)))


def link(file: Path, data: bytes, random: Random) -> None:
    file.unlink()
    file.symlink_to(
        random.choice(
            ("/dev/zero", "/etc/passwd", "/dev/tty", "/nowhere", ".", str(file), "/proc/self/mem")
        )
    )


def folder_behind_link(file: Path, data: bytes, random: Random) -> None:
    if (
        file.parent.name in ("launchers", "seeds", "peer-0", "peer-1", "ckpt")
        and not file.parent.is_symlink()
    ):
        away = file.parent.with_name(f"{file.parent.name}.away")
        file.parent.rename(away)
        file.parent.symlink_to(away)


def forged(file: Path, data: bytes, random: Random) -> None:
    """A record that names a process that is there, and is no launcher: this one, its parent, the
    first. Often all of it fits."""
    pid = random.choice((os.getpid(), os.getppid(), 1, 0, -1, 2**31 - 1, 2**40))
    there = stat(pid) if 0 < pid < 2**22 else None
    started = (
        there.started if there is not None and random.random() < 0.7 else random.randrange(2**33)
    )
    fields = json.loads(data) | {
        "pid": pid,
        "started": started,
        "ended": 0.0,
        "machine": launchers.this_machine(),
    }
    fields["user"] = random.choice((os.getuid(), 0, 65534))
    file.write_text(json.dumps(fields))


CHANGES: tuple[Change, ...] = (
    *(flip, cut, noise, deep, strange_values, strange_values, missing_fields, escapes, escapes),
    *(long_line, repeated, sparse, gone, pipe, folder_instead, closed, link, link),
    *(folder_behind_link, forged, forged),
)


# --- reading it -----------------------------------------------------------------------------------


COMMANDS = ("ls", "logs", "stop", "explain", "report", "top", "join", "checkpoints")


def tools(folder: Path) -> dict[str, Callable[[], None]]:
    runs, name = folder.parent, folder.name
    return {
        "ls": lambda: tend.ls(runs, as_json=False),
        "ls --json": lambda: tend.ls(runs, as_json=True),
        "logs": lambda: tend.logs(name, runs=runs),
        "logs -n 3": lambda: tend.logs(name, lines=3, runs=runs),
        "stop": lambda: tend.stop(name, False, 0.1, runs),
        "stop --now": lambda: tend.stop(name, True, 0.1, runs),
        "explain": lambda: tend.explain(name, None, runs),
        "explain PEER": lambda: tend.explain(name, "1", runs),
        "explain @ROUND": lambda: tend.explain(name, "@2", runs),
        "report": lambda: report_on(folder),
        "report A B": lambda: report_on(folder, beside(folder)),
        "top": lambda: tend.top(name, True, 1.0, False, runs),
        "top --json": lambda: tend.top(name, True, 1.0, True, runs),
        "join": lambda: read_before_joining(folder),
        "checkpoints": lambda: checkpoints.list_(str(folder), False, False),
        "checkpoints --verify": lambda: checkpoints.list_(str(folder / "ckpt"), True, False),
        "checkpoints --json": lambda: checkpoints.list_(str(folder / "ckpt"), True, True),
    }


def beside(folder: Path) -> Path:
    """Another run to compare with: a copy of the folder as it is first, where ``ls`` finds none."""
    other = folder.parents[1] / "other"
    if not other.exists():
        shutil.copytree(folder, other)
    return other


def report_on(*folders: Path) -> None:
    """Make the page of a run beside its folder, and look for HTML that the folder has brought."""
    runs = folders[0].parent
    page = runs / "report.html"
    tend.report([str(folder) for folder in folders], page, runs)
    if HTML in page.read_text("utf-8"):
        raise AssertionError("HTML of the folder is in the page as it is")


def read_before_joining(folder: Path) -> None:
    """All that ``gossip join`` reads of a folder before it starts anything."""
    place = joining.JoinableRun(
        folder, RunConfig.load(path := folder / "config.json", read_file(path))
    )
    joining.difference(place, folder)
    with contextlib.suppress(GossipError):
        joining.program(place, None)
    joining.find_joinable(str(folder))


def end_of(tool: Callable[[], None], out: io.StringIO) -> str:
    """How it ended: "" well, or the name of an error that is told; another kind is raised."""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            tool()
        except GossipError as error:
            print(f"{error}\n{error.hint}")
            return type(error).__name__
        except typer.Exit as end:
            return f"exit {end.exit_code}"
    return ""


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in what takes longer."""

    def ring(number: int, frame: object) -> None:
        raise TimeoutError(f"took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def nothing_outside() -> Iterator[None]:
    """Joining connects to no address of a folder, and starts no git."""
    before = joining.answers, joining.code_version
    joining.answers = lambda seed: True
    joining.code_version = lambda folder: {"commit": "0" * 40, "changed_files": 0}
    try:
        yield
    finally:
        joining.answers, joining.code_version = before


@contextlib.contextmanager
def no_signals(sent: list[str]) -> Iterator[None]:
    """Whatever would leave is noted, and does not."""
    before = signal.pidfd_send_signal, os.kill, os.killpg
    signal.pidfd_send_signal = lambda handle, number, *rest: sent.append(f"pidfd {number}")  # type: ignore[assignment]
    os.kill = lambda pid, number: sent.append(f"kill {pid} {number}")
    os.killpg = lambda group, number: sent.append(f"killpg {group} {number}")
    try:
        yield
    finally:
        signal.pidfd_send_signal, os.kill, os.killpg = before


def campaign(
    count: int,
    first_seed: int,
    run: Path,
    say: Callable[[str], None] = lambda line: None,
    commands: Sequence[str] = COMMANDS,
) -> MutationReport:
    """Reads ``count`` changes of a run's folder, each with every command in one of its forms."""
    folder = Folder(run)
    for tool in tools(run).values():  # what is imported, and kept, once
        end_of(tool, io.StringIO())
    report, grown_from = MutationReport(), _memory_mb()
    with no_signals(report.signals), nothing_outside():
        began = told = time.monotonic()
        for seed in range(first_seed, first_seed + count):
            found = len(report.findings)
            _read_one(folder, seed, report, commands)
            for finding in report.findings[found:]:
                say(str(finding))
            if time.monotonic() - told > 10.0:
                told = time.monotonic()
                rate = report.folders / (told - began)
                say(
                    f"{report.folders} of {count}: {rate:.0f}/s, {len(report.findings)} findings, "
                    f"{len(report.signals)} signals"
                )
    report.grown_mb = _memory_mb() - grown_from
    return report


def _read_one(folder: Folder, seed: int, report: MutationReport, commands: Sequence[str]) -> None:
    random = Random(f"folders/{seed}")
    every = tools(folder.path)
    chosen = [
        random.choice([name for name in every if name.split()[0] == command])
        for command in commands
    ]
    with folder.changed(random) as change:
        report.folders += 1
        for tool in chosen:
            out, began = io.StringIO(), time.process_time()
            try:
                with alarm(ALARM_S):
                    report.ends[f"{tool}: {end_of(every[tool], out) or 'well'}"] += 1
                if EVIL in sys.modules or EVIL in str(out.getvalue()).partition("No module")[2]:
                    raise AssertionError("a module that the folder names was imported")
            except BaseException as error:  # noqa: BLE001 - whatever else it is, is a finding
                report.findings.append(
                    MutationFinding(
                        seed, tool, change, f"{type(error).__name__}: {error}", _where(error)
                    )
                )
            took_s = time.process_time() - began
            report.slowest_s = max(report.slowest_s, took_s)
            if took_s > SECONDS_MAX:
                report.findings.append(MutationFinding(seed, tool, change, f"took {took_s:.2f} s"))
            raw = [
                each
                for each in out.getvalue()
                if not each.isprintable() and each not in "\n\t\u00a0"
            ]
            if raw:
                report.findings.append(MutationFinding(seed, tool, change, f"writes {raw[:3]}"))


def _where(error: BaseException) -> str:
    """The place in gossip at which it was raised."""
    frames = [
        each for each in traceback.extract_tb(error.__traceback__) if "gossip" in each.filename
    ]
    return " < ".join(
        f"{each.filename.rpartition('/')[2]}:{each.lineno}" for each in frames[:-4:-1]
    )


def bound_memory() -> None:
    """Of this process: an allocation beyond it is a MemoryError."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + ADDRESS_SPACE_BYTES,) * 2)


def give_up_privileges() -> None:
    """Of root: from here on modes of files hold for this process, too."""
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, none) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200_000, help="folders; 200,000 by default")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(COMMANDS), help="commands; all by default")
    parser.add_argument("--run", type=Path, help="a run that was trained so; none by default")
    given = parser.parse_args()
    give_up_privileges()
    with tempfile.TemporaryDirectory(
        prefix="gossip-folders-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    ) as into:
        run = train(Path(into)) if given.run is None else copy(given.run, Path(into))
        began = time.monotonic()
        for tool in tools(run).values():
            end_of(tool, io.StringIO())
        bound_memory()
        report = campaign(
            given.count,
            given.first_seed,
            run,
            lambda line: print(line, flush=True),
            given.only.split(","),
        )
    print(*(f"{number:8d}  {end}" for end, number in sorted(report.ends.items())), sep="\n")
    found = f"{len(report.findings)} findings, {len(report.signals)} signals"
    cost = (
        f"the slowest reading took {report.slowest_s:.3f} s, memory grew by {report.grown_mb:.0f} "
        "MB"
    )
    print(
        f"{report.folders} folders from seed {given.first_seed} in {time.monotonic() - began:.0f} "
        f"s: {found}, {cost}"
    )
    return 1 if report.findings or report.signals or report.grown_mb > GROWTH_MAX_MB else 0


if __name__ == "__main__":
    sys.exit(main())
