"""Time without progress after ``kill -9`` of one of four, in gossip and in torchft: same model, one
machine, taking turns.

    pip install torchft                # with its lighthouse; not among what gossip needs
    python benchmarks/torchft_kill.py  # 7 repetitions of each, about 5 minutes
    python benchmarks/torchft_kill.py --repetitions 3 --json out.json

The digits MLP of ``digits_train.py``, 17,226 parameters, SGD with momentum, four processes that
average their gradients in each step and write down when it was over. Once all have made --steps
steps, one drawn at random is killed (in gossip trainer and node together), and the survivors go on
until they have made as many again. Measured is the longest time that a survivor had between two
steps from then on, and, of it, what is beyond the usual step.

``torchft`` runs with its defaults: over gloo, operations that wait for 60 s, and a lighthouse that
declares a replica dead after 5 s of silence. ``torchft-quick`` sets these to 5 s and 1 s. Its time
without progress depends on the moment: some of the survivors see a connection close, some wait for
those. The lighthouse of torchft must not die; gossip has no such process. The rule of gossip is the
mean and its quorum the majority, as in torchft. No progress in three minutes counts as three
minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
PEERS = 4
SIDES = ("gossip", "torchft", "torchft-quick")
LIGHTHOUSE = PEERS  # its rank
BATCH = 32
LOOK_S = 0.05
SIDE_TIMEOUT_S = 180.0
FOR_EVER = 10**9  # steps


_kept: list[Any] = []
"""Objects that have to live as long as this process."""


# --- one process of a run -------------------------------------------------------------------------


def train(side: str, rank: int, into: Path) -> None:
    """Train until the process is killed, and write a line a step: the step's number and the
    time."""
    import torch
    from digits_train import digits, mlp, repeated, slices
    from torch.nn.functional import cross_entropy

    peer = None
    if side == "gossip":
        import gossip

        peer = gossip.init()
        rank = peer.id
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data, _, _ = digits()
    model: Any = mlp()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = slices(data, rank, PEERS, BATCH, 0)
    if peer is not None:
        model, optimizer = peer.prepare(model, optimizer)
        batches = repeated(
            peer.shard(torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True))
        )
        steps: Callable[[], int] = lambda: peer.round  # noqa: E731
        average: Callable[[], None] = lambda: None  # noqa: E731 - a part of the step
    else:
        optimizer, steps, average = under_torchft(
            model, optimizer, rank, quick=side == "torchft-quick"
        )
    with (into / f"steps-{rank}").open("w", buffering=1) as log:
        log.write(f"pid {os.getpid()}\n")
        for x, y in batches:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            average()
            optimizer.step()
            log.write(f"{steps()} {time.monotonic()}\n")


def under_torchft(
    model: Any, optimizer: Any, rank: int, quick: bool
) -> tuple[Any, Callable[[], int], Callable[[], None]]:
    """The optimizer in torchft's wrapper, how many steps were committed,
    and what averages the gradients.

    They are averaged as one vector, as torchft's own DDP does in its buckets; with this version of
    torch that raises as soon as a step has failed.
    """
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torchft import Manager, Optimizer, ProcessGroupGloo

    patience = timedelta(seconds=5 if quick else 60)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    _kept.append(store)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=patience),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=PEERS // 2 + 1,
        timeout=patience,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=f"peer-{rank}",
        hostname="127.0.0.1",
    )

    def average() -> None:
        gradients = [parameter.grad for parameter in model.parameters()]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        manager.allreduce(flat).wait()
        for gradient, part in zip(
            gradients, torch.split(flat, [gradient.numel() for gradient in gradients]), strict=True
        ):
            gradient.copy_(part.view_as(gradient))

    return Optimizer(manager, optimizer), lambda: manager.current_step(), average


def keep_lighthouse(quick: bool) -> None:
    from torchft.coordination import LighthouseServer

    dead_after_ms = 1000 if quick else None
    server = LighthouseServer(
        os.environ["TORCHFT_LIGHTHOUSE"], PEERS // 2 + 1, heartbeat_timeout_ms=dead_after_ms
    )
    signal.pause()
    server.shutdown()


# --- a run ----------------------------------------------------------------------------------------


class StepLog:
    """Steps that the processes of a run have written so far."""

    def __init__(self, into: Path) -> None:
        self._into = into

    def of(self, rank: int) -> list[tuple[int, float]]:
        """Return (step, time of its end) of each committed step, once."""
        rows = [line.split() for line in self._lines(rank)[1:]]
        made: dict[int, float] = {}
        for step, at in rows:
            made.setdefault(int(step), float(at))
        return sorted(made.items())

    def pid(self, rank: int) -> int:
        return int(self._lines(rank)[0].split()[1])

    def _lines(self, rank: int) -> list[str]:
        path = self._into / f"steps-{rank}"
        return (
            [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
            if path.exists()
            else []
        )


def measure(side: str, steps: int, victim: int, into: Path) -> dict[str, float]:
    """Start a run, kill ``victim``, and return the time without progress of the others. Raises:
    SystemExit: There was no progress."""
    made = StepLog(into)
    with running(side, into):
        if not moves(lambda: all(len(made.of(rank)) >= steps for rank in range(PEERS))):
            raise SystemExit(
                f"{side}: does not start in {SIDE_TIMEOUT_S:.0f} s\n"
                f"{(into / 'log').read_text()[-2000:]}"
            )
        others = [rank for rank in range(PEERS) if rank != victim]
        before = {rank: len(made.of(rank)) for rank in others}
        killed_at = time.monotonic()
        kill(side, made.pid(victim))
        if not moves(lambda: all(len(made.of(rank)) >= before[rank] + steps for rank in others)):
            return {
                "longest_ms": 1000 * SIDE_TIMEOUT_S,
                "usual_ms": 0.0,
                "lost_ms": 1000 * SIDE_TIMEOUT_S,
            }
        found = [stall(made.of(rank), killed_at) for rank in others]
    longest, usual = (
        max(longest for longest, _ in found),
        statistics.median(usual for _, usual in found),
    )
    return {
        "longest_ms": 1000 * longest,
        "usual_ms": 1000 * usual,
        "lost_ms": 1000 * max(0.0, longest - usual),
    }


def stall(made: list[tuple[int, float]], killed_at: float) -> tuple[float, float]:
    """Return the longest time between two steps with the later one after the kill, and the usual
    time before it, in seconds."""
    times = [at for _, at in made]
    gaps = [(later - earlier, later) for earlier, later in pairwise(times)]
    return max(gap for gap, later in gaps if later > killed_at), statistics.median(
        gap for gap, later in gaps if later <= killed_at
    )


def kill(side: str, pid: int) -> None:
    if side == "gossip":
        os.killpg(os.getpgid(pid), signal.SIGKILL)  # its node, too
    else:
        os.kill(pid, signal.SIGKILL)


def moves(what: Callable[[], bool]) -> bool:
    """Whether ``what`` becomes true in time."""
    until = time.monotonic() + SIDE_TIMEOUT_S
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(LOOK_S)
    return True


@contextlib.contextmanager
def running(side: str, into: Path) -> Iterator[None]:
    """Run all processes of a side; they are killed at the end."""
    me = [str(HERE), "--side", side, "--into", str(into)]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GOSSIP_", "TORCHFT_"))
    }
    environment |= {
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    with (into / "log").open("w") as log:
        started: list[subprocess.Popen[bytes]] = []

        def start(*command: str, **extra: str) -> None:
            started.append(
                subprocess.Popen(
                    [sys.executable, *command],
                    env={**environment, **extra},
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

        try:
            if side == "gossip":
                options = [
                    "-n",
                    str(PEERS),
                    "--aggregator",
                    "mean",
                    "--rounds",
                    str(FOR_EVER),
                    "--run-dir",
                    str(into / "run"),
                ]
                start("-m", "gossip.launch.cli", "run", "--quiet", *options, *me)
            else:
                with socket.create_server(("127.0.0.1", 0)) as free:
                    address = f"127.0.0.1:{free.getsockname()[1]}"
                start(*me, "--rank", str(LIGHTHOUSE), TORCHFT_LIGHTHOUSE=address)
                for rank in range(PEERS):
                    start(*me, "--rank", str(rank), TORCHFT_LIGHTHOUSE=f"http://{address}")
            yield
        finally:
            for process in started:
                with contextlib.suppress(ProcessLookupError):
                    # gossip's peers detect the end of their launcher, and leave
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100, help="before the kill, and after it")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--seed", type=int, default=0, help="of who is killed")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side and options.rank == LIGHTHOUSE:
        keep_lighthouse(quick=options.side == "torchft-quick")
        return 0
    if options.side:
        train(options.side, options.rank, options.into)
        return 0
    # its children would go on for ever
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    draw = random.Random(options.seed)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in options.sides}
    for turn in range(options.repetitions):
        for side in options.sides if turn % 2 == 0 else options.sides[::-1]:
            victim = draw.randrange(PEERS)
            with tempfile.TemporaryDirectory(prefix="gossip-torchft-") as scratch:
                found[side].append(measure(side, options.steps, victim, Path(scratch)))
            last = found[side][-1]
            print(
                f"{turn + 1}/{options.repetitions} {side}: {last['longest_ms']:.0f} ms",
                file=sys.stderr,
                flush=True,
            )
    print(page(found))
    if options.json:
        options.json.write_text(
            json.dumps({"cores": os.cpu_count(), "seed": options.seed, "sides": found}, indent=1)
            + "\n",
            "utf-8",
        )
    return 0


def page(found: dict[str, list[dict[str, float]]]) -> str:
    rows = [
        (
            f"{os.cpu_count()} cores, {PEERS} peers, one killed; medians (least to most) of "
            f"{len(next(iter(found.values())))}"
        )
    ]
    for side, runs in found.items():
        longest = sorted(run["longest_ms"] for run in runs)
        usual, lost = (
            statistics.median(run[what] for run in runs) for what in ("usual_ms", "lost_ms")
        )
        middle = f"{statistics.median(longest):8.1f} ms ({longest[0]:.1f} to {longest[-1]:.1f})"
        rows.append(
            f"{side:14} without a step for {middle}, a step takes {usual:.1f} ms, lost {lost:.1f} "
            "ms"
        )
    ours = (
        statistics.median(run["longest_ms"] for run in found["gossip"])
        if "gossip" in found
        else None
    )
    for side, runs in found.items():
        if ours is not None and side != "gossip":
            rows.append(
                f"{side} to gossip: "
                f"{statistics.median(run['longest_ms'] for run in runs) / ours:.0f} times as long"
            )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
