"""Run folders that somebody has tampered with, read by ``gossip ls``,
``logs`` and ``stop``, in one process.

    python tests/folders/mutate.py --count 200000

A small run is trained first; then its folder is changed, read and put back, again and again.
Nothing may end in a traceback, take a second or 200 MB, write a control character,
or send a signal.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import typer

from gossip.errors import GossipError
from gossip.launch.guardian import stat
from gossip.launch.report import command as tend, launchers

SECONDS_MAX, GROWTH_MAX_MB = 1.0, 200.0
RUN = "from gossip.launch.cli import main; main()"
SCRIPT = """
import gossip, torch
peer = gossip.init()
model = torch.nn.Linear(4, 2)
model, optimizer = peer.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(3):
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
    "null",
    "true",
    "[]",
    "{}",
    '"x"',
    "-1",
    "1e999",
    "NaN",
    "1" * 400,
    "1" * 5000,
    '"\\ud800"',
    '"\\u001b[2J"',
    "[[[[1]]]]",
)


@dataclass(slots=True)
class MutationFinding:
    """What went wrong. ``change``: how the folder had been changed."""

    seed: int
    tool: str
    change: str
    why: str


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
    words = [
        "run",
        "-n",
        "2",
        "--rounds",
        "3",
        "--run-dir",
        str(into / "runs" / "one"),
        str(script),
    ]
    start([sys.executable, "-c", RUN, *words], check=True, capture_output=True, timeout=120)
    return into / "runs" / "one"


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
            names, changes = (
                [next(name for name in self.files if name.startswith(launchers.FOLDER))],
                [forged],
            )
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
    """Each field of a JSON object, or of the last row, may become anything."""
    lines = data.splitlines() or [b"{}"]
    with contextlib.suppress(ValueError):
        whole = file.suffix in (".json", ".addr")
        said = json.loads(data if whole else lines[-1])
        if isinstance(said, dict) and said:
            fields = {json.dumps(name): json.dumps(value) for name, value in said.items()}
            for name in random.sample(sorted(fields), random.randint(1, len(fields))):
                fields[name] = random.choice(STRANGE)
            text = "{" + ", ".join(f"{name}: {value}" for name, value in fields.items()) + "}"
            file.write_bytes(
                text.encode() if whole else b"\n".join([*lines[:-1], text.encode(), b""])
            )


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
        file.parent.name in ("launchers", "seeds", "peer-0", "peer-1")
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
    *(
        flip,
        cut,
        noise,
        deep,
        strange_values,
        strange_values,
        missing_fields,
        escapes,
        escapes,
        long_line,
        repeated,
        sparse,
    ),
    *(gone, pipe, folder_instead, closed, link, link, folder_behind_link, forged, forged),
)


# --- reading it -----------------------------------------------------------------------------------


def tools(folder: Path) -> dict[str, Callable[[], None]]:
    runs, name = folder.parent, folder.name
    return {
        "ls": lambda: tend.ls(runs, as_json=False),
        "ls --json": lambda: tend.ls(runs, as_json=True),
        "logs": lambda: tend.logs(name, None, False, None, runs),
        "logs -n 3": lambda: tend.logs(name, None, False, 3, runs),
        "stop": lambda: tend.stop(name, False, 0.1, runs),
        "stop --now": lambda: tend.stop(name, True, 0.1, runs),
    }


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
    count: int, first_seed: int, run: Path, say: Callable[[str], None] = lambda line: None
) -> MutationReport:
    """Reads ``count`` changes of a run's folder with one listing, one log and one stop each."""
    folder = Folder(run)
    report, grown_from = MutationReport(), _memory_mb()
    with no_signals(report.signals):
        began = told = time.monotonic()
        for seed in range(first_seed, first_seed + count):
            _read_one(folder, seed, report)
            if time.monotonic() - told > 10.0:
                told = time.monotonic()
                rate = report.folders / (told - began)
                say(
                    f"{report.folders} of {count}: {rate:.0f}/s, {len(report.findings)} findings, "
                    f"{len(report.signals)} signals"
                )
    report.grown_mb = _memory_mb() - grown_from
    return report


def _read_one(folder: Folder, seed: int, report: MutationReport) -> None:
    random = Random(f"folders/{seed}")
    every = tools(folder.path)
    chosen = [
        random.choice(names)
        for names in (("ls", "ls --json"), ("logs", "logs -n 3"), ("stop", "stop --now"))
    ]
    with folder.changed(random) as change:
        report.folders += 1
        for tool in chosen:
            out, began = io.StringIO(), time.monotonic()
            try:
                report.ends[f"{tool}: {end_of(every[tool], out) or 'well'}"] += 1
            except BaseException as error:  # noqa: BLE001 - whatever else it is, is a finding
                report.findings.append(
                    MutationFinding(seed, tool, change, f"{type(error).__name__}: {error}")
                )
            took_s = time.monotonic() - began
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
    given = parser.parse_args()
    give_up_privileges()
    with tempfile.TemporaryDirectory(
        prefix="gossip-folders-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    ) as into:
        began = time.monotonic()
        report = campaign(
            given.count, given.first_seed, train(Path(into)), lambda line: print(line, flush=True)
        )
    for finding in report.findings[:20]:
        print(f"seed {finding.seed}: gossip {finding.tool}: {finding.why}\n  {finding.change}")
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
