"""Ways in which a run ends: each soon, with the documented exit code, a checkpoint where one is
due, and no process left.

``make test`` plays a few of them, TEST_LONG=1 all, under ``gossip run``, torchrun and alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import zygote
from effort import LONG, effort

from gossip.run import checkpoints, write_pair
from gossip.run.telemetry import read_lines
from gossip.transport import new_pair

START_S = 120.0
END_S = effort(30.0, 10.0)
"""From the event to the end of the last process; two test processes share the machine in ``make
test``."""
MARK = "GOSSIP_TEST_EXIT"
RUN, ALONE, TORCHRUN = "gossip run", "alone", "torchrun"
TERM, INT, HUP, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL
SCRIPT = """
import errno, os, resource, signal, stat, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
import gossip

what, workers = sys.argv[1], sys.argv[2]

class Data(Dataset):
    def __len__(self):
        return 4096
    def __getitem__(self, at):
        if what == "worker raises" and os.path.exists("begun-0"):
            raise ValueError("a broken sample")
        return torch.full((4,), at / 4096)

class Stream(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.rand(4)

def fail(step):
    if what == "hook raises" and step == 8:
        begun()
        raise ValueError("a broken hook")

def full(fd):
    raise OSError(errno.ENOSPC, "No space left on device")

def begun():
    open(f"begun-{peer.id}", "w").write(str(os.getpid()))

def strike():
    if what == "sys.exit":
        sys.exit(3)
    if what == "raises":
        raise ValueError("no")
    if what == "thread raises":
        threading.Thread(target=lambda: 1 / 0).start()
    if what == "os._exit":
        os._exit(3)
    if what == "out of memory":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "diverges":
        torch.manual_seed(peer.id)
    if what == "full disk" and stat.S_ISREG(os.fstat(2).st_mode):
        os.fsync = full  # the limit would be on what is said, too
    elif what == "full disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    if what == "stuck":
        time.sleep(3600)
    if what == "one leaves" and peer.id == 1:
        sys.exit(0)

if __name__ == "__main__":
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    peer = gossip.init()
    model, optimizer = peer.prepare(model, optimizer)
    how = {"num_workers": 0}
    if workers:
        how = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": workers}
    loader = peer.shard(DataLoader(Stream() if what == "stream" else Data(), batch_size=4, **how))
    peer.each_step(lambda: fail(peer.step))
    batches = (batch for _ in iter(int, 1) for batch in loader)
    steps = 20 if what in ("ends", "thread raises", "full disk") else 10**6
    if what in ("prints", "one leaves"):
        steps = 200  # so that others train when it happens
    every = 1 if what == "saves often" else 10**6
    for step in peer.steps(steps, save="ck", every=every):
        optimizer.zero_grad()
        model(next(batches)).square().mean().backward()
        optimizer.step()
        if what == "diverges" and peer.id == 1:
            with torch.no_grad():
                model.weight.add_(0.1)
        if peer.step == 8:
            begun()
            strike()
        if what == "prints":
            print("a line", flush=True)
        time.sleep(0.01)
"""


@dataclass
class Playground:
    """A run in a folder, and what may happen to it from outside."""

    folder: Path
    launcher: str
    root: subprocess.Popen[bytes]
    mark: str

    @property
    def processes(self) -> list[psutil.Process]:
        """All that the run has started and that has not ended, itself first."""
        found = []
        for process in psutil.process_iter():
            try:
                environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
                ours = f"{MARK}={self.mark}".encode() in environment
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (OSError, psutil.NoSuchProcess):
                continue  # it has ended
        return sorted(found, key=lambda process: process.pid != self.root.pid)

    def send(self, number: int, processes: Sequence[psutil.Process]) -> None:
        for process in processes:
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue

    def trainers(self) -> list[psutil.Process]:
        return [psutil.Process(int(path.read_text())) for path in self.folder.glob("begun-*")]

    def nodes(self) -> list[psutil.Process]:
        if self.launcher == RUN:
            rows = read_lines(self.folder / "runs" / "run" / "events.jsonl")
            return [psutil.Process(row["pid"]) for row in rows if row["event"] == "started"]
        return [p for p in self.processes if "gossip.node" in " ".join(p.cmdline())]


Action = Callable[[Playground], None]


def to_root(*numbers: int) -> Action:
    """As ``docker stop``, a terminal, ``kill``. Several signals come three seconds apart."""

    def act(run: Playground) -> None:
        for at, number in enumerate(numbers):
            if at:
                time.sleep(3.0)  # signals that come together count once
            run.send(number, [psutil.Process(run.root.pid)])

    return act


def to_all(number: int) -> Action:
    """As systemd and Slurm do."""
    return lambda run: run.send(number, run.processes[::-1])


def to_trainers(number: int, most: int = 9) -> Action:
    return lambda run: run.send(number, run.trainers()[:most])


def to_nodes(number: int) -> Action:
    def act(run: Playground) -> None:
        nodes = run.nodes()
        assert len(nodes) == len(run.trainers())
        run.send(number, nodes)

    return act


def to_fork_server(run: Playground) -> None:
    of_warm = [p for p in run.processes if "gossip.launch.local.warm" in p.cmdline()]
    assert of_warm
    run.send(signal.SIGKILL, of_warm[:1])


def then_term(action: Action) -> Action:
    """What happens harms nothing: the run ends when it is asked to."""

    def act(run: Playground) -> None:
        action(run)
        to_root(TERM)(run)

    return act


def close_stdout(run: Playground) -> None:
    run.root.stdout.close()


@dataclass(frozen=True)
class Exit:
    """``codes``: under each launcher, as a shell has them; none where the way does not exist.
    ``saves``: whether a checkpoint has to be on disk."""

    script: str
    codes: dict[str, int]
    action: Action | None = None
    saves: bool = False
    workers: str = ""
    peers: int = 2
    early: bool = False  # before the first step
    listed: tuple[int, ...] | None = None  # peers whose keys are on the allow-list, in a keyed run


ASKED = {RUN: 143, ALONE: 143, TORCHRUN: 1}  # torchrun ends with an exception of its own
EXITS = {
    "end": Exit("ends", {RUN: 0, ALONE: 0, TORCHRUN: 0}, saves=True),
    "end, forked workers": Exit("ends", {RUN: 0, ALONE: 0}, saves=True, workers="fork"),
    "end, spawned workers": Exit("ends", {RUN: 0, ALONE: 0}, saves=True, workers="spawn"),
    "sys.exit": Exit("sys.exit", {RUN: 3, ALONE: 3, TORCHRUN: 1}, workers="fork"),
    "exception": Exit("raises", {RUN: 1, ALONE: 1, TORCHRUN: 1}, workers="fork"),
    "exception in a hook": Exit("hook raises", {RUN: 1, ALONE: 1, TORCHRUN: 1}),
    "exception in a worker": Exit("worker raises", {RUN: 1, ALONE: 1, TORCHRUN: 1}, workers="fork"),
    "exception in a thread": Exit("thread raises", {RUN: 0, ALONE: 0, TORCHRUN: 0}, saves=True),
    "os._exit": Exit("os._exit", {RUN: 3, ALONE: 3, TORCHRUN: 1}, workers="fork"),
    "out of memory": Exit("out of memory", {RUN: 5, ALONE: 137, TORCHRUN: 1}, workers="fork"),
    "SIGTERM": Exit("", ASKED, to_root(TERM), saves=True),
    "SIGTERM, spawned workers": Exit("", ASKED, to_root(TERM), saves=True, workers="spawn"),
    "SIGTERM to all, forked workers": Exit("", ASKED, to_all(TERM), saves=True, workers="fork"),
    "SIGTERM to all, spawned workers": Exit("", ASKED, to_all(TERM), saves=True, workers="spawn"),
    "SIGTERM to all before the start": Exit("", {RUN: 143, ALONE: 143}, to_all(TERM), early=True),
    "SIGTERM to all, a stream": Exit("stream", ASKED, to_all(TERM), saves=True, workers="fork"),
    "SIGTERM to all while it saves": Exit("saves often", ASKED, to_all(TERM), saves=True),
    "SIGTERM to the trainers": Exit("", {RUN: 143}, to_trainers(TERM), saves=True, workers="fork"),
    "SIGTERM twice": Exit("stuck", ASKED, to_root(TERM, TERM), workers="fork"),
    "SIGINT": Exit("", {RUN: 130, ALONE: 130, TORCHRUN: 1}, to_root(INT), saves=True),
    "SIGINT twice": Exit("stuck", {RUN: 130, ALONE: 130}, to_root(INT, INT), workers="fork"),
    "SIGHUP": Exit("", {RUN: 143, ALONE: 129, TORCHRUN: 1}, to_root(HUP)),
    "a closed stdout": Exit("prints", {RUN: 0}, close_stdout, saves=True),
    "SIGPIPE": Exit("prints", {ALONE: 1, TORCHRUN: 1}, close_stdout),
    "kill of the nodes": Exit("", {RUN: 143, TORCHRUN: 1}, then_term(to_nodes(KILL))),
    "kill of the launcher": Exit("", {RUN: 137, TORCHRUN: 137}, to_root(KILL), workers="fork"),
    "kill of the fork server": Exit("", {RUN: 143}, then_term(to_fork_server)),
    "kill of all": Exit("", {RUN: 137, ALONE: 137, TORCHRUN: 137}, to_all(KILL), workers="fork"),
    "a lost quorum": Exit("", {RUN: 5, TORCHRUN: 1}, to_trainers(KILL, 2), peers=3),
    "a full disk": Exit("full disk", {RUN: 8, ALONE: 0, TORCHRUN: 0}),
    "a divergence": Exit("diverges", {RUN: 9, TORCHRUN: 1}),
    "one leaves, another saves": Exit("one leaves", {RUN: 0}, saves=True, peers=4),
    "right keys": Exit("ends", {RUN: 0, TORCHRUN: 0}, saves=True, listed=(0, 1)),
    "a wrong key": Exit("ends", {RUN: 2, TORCHRUN: 1}, listed=(0,)),
}
QUICK = [
    ("SIGTERM to all, forked workers", RUN),
    ("SIGTERM to all, spawned workers", ALONE),
    ("sys.exit", RUN),
]


def start(folder: Path, launcher: str, way: Exit) -> Playground:
    (folder / "train.py").write_text(SCRIPT)
    mark = uuid.uuid4().hex
    environment = {**os.environ, MARK: mark, "OMP_NUM_THREADS": "1"}
    environment["GOSSIP_QUORUM_TIMEOUT_S"] = "1"
    environment["RES_OPTIONS"] = "timeout:1 attempts:1"
    if way.listed is not None:
        pairs = [new_pair() for _ in range(way.peers)]
        for peer, pair in enumerate(pairs):
            write_pair(folder / f"{peer}.key", pair)
        allowed = "".join(f"{pairs[peer].public} peer-{peer}\n" for peer in way.listed)
        (folder / "allowed").write_text(allowed)
        environment |= {
            "GOSSIP_KEYS": "on",
            "GOSSIP_ALLOWED": "allowed",
            "GOSSIP_KEY": "{peer}.key",
        }
    script = ["train.py", way.script, way.workers]
    command = {
        RUN: ["-m", "gossip.launch.cli", "run", "-n", str(way.peers), "--name", "run"],
        ALONE: [],
        TORCHRUN: [
            *("-m", "torch.distributed.run", "--standalone"),
            f"--nproc-per-node={way.peers}",
        ],
    }[launcher]
    if signal.getsignal(INT) is signal.SIG_IGN:
        # This is a background job, and the run would inherit that it ignores Ctrl-C.
        signal.signal(INT, signal.default_int_handler)
    started = zygote.Popen if not LONG else subprocess.Popen
    with (folder / "err").open("wb") as err:
        root = started(
            [sys.executable, *command, *script],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if way.action is close_stdout else err,
            stderr=err,
            start_new_session=True,
        )
    return Playground(folder, launcher, root, mark)


CASES = [(name, launcher) for name, way in EXITS.items() for launcher in way.codes]


@pytest.mark.parametrize(("name", "launcher"), effort(QUICK, CASES))
def test_a_run_ends(tmp_path: Path, name: str, launcher: str) -> None:
    way = EXITS[name]
    run = start(tmp_path, launcher, way)
    try:
        peers = 1 if launcher == ALONE else way.peers
        until = time.monotonic() + START_S
        while len(list(tmp_path.glob("begun-*"))) < peers and run.root.poll() is None:
            if way.early and len(run.processes) > 1:
                break
            assert time.monotonic() < until, (tmp_path / "err").read_text()
            time.sleep(0.02)  # between two looks, not instead of one
        if way.action is not None:
            way.action(run)
        since = time.monotonic()
        code = run.root.wait(START_S)
        while left := run.processes:
            assert time.monotonic() < since + END_S, left
            time.sleep(0.02)  # between two looks, not instead of one
        took_s = time.monotonic() - since
        said = (tmp_path / "err").read_text()
        assert (code if code >= 0 else 128 - code) == way.codes[launcher], said
        assert took_s < END_S, said
        newest, damaged = checkpoints.newest_good(tmp_path / "ck")
        assert not damaged
        assert newest is not None or not way.saves, said
    finally:
        run.send(KILL, run.processes)
        run.root.wait()
