"""Steps per second of gossip, rolling with the mean, against PyTorch DDP over gloo: same model,
batch and data, one machine.

    python benchmarks/ddp.py                                    # 4 peers, 7 interleaved repetitions
    python benchmarks/ddp.py --peers 2 --steps 500 --json out.json

The sides take turns, in the other order every other time (A B C, C B A, ...), so that whatever else
the machine does meets all of them. The first turn of each is thrown away. Printed are medians,
their spread, the ratio of the medians, and the median of the ratios within a turn: that one stands
still where the machine's own speed does not. A fixed sum before each run tells that speed; virtual
processors differ by two times within a minute where others compute on the same cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parent
TRAIN = HERE / "digits_train.py"
SIDES = ("ddp", "gossip", "none")
NAMES = {
    "ddp": "DDP over gloo",
    "gossip": "gossip, rolling, mean",
    "none": "no exchange (the limit)",
}
RUN_TIMEOUT_S = 300.0
END_S = 10.0


_asked_to_end: list[int] = []
"""The signals that did: not heeded while a process is being started, of which nobody would know."""


def ask_to_end(number: int, frame: FrameType | None) -> None:
    _asked_to_end.append(number)


class Failed(Exception):
    """A run did not end well; the message holds its last words."""


def environment(**extra: str) -> dict[str, str]:
    """One thread a process, loopback only, and nothing of an outer gossip run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GOSSIP_")}
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "GLOO_SOCKET_IFNAME": "lo",
        **extra,
    }


def last_words(log: Path) -> str:
    return "\n".join(log.read_text().splitlines()[-15:])


def run_all(commands: Sequence[tuple[list[str], dict[str, str]]], log: Path) -> None:
    """Runs the commands side by side; ends them all when one fails or the time is up.
    Raises ``Failed``."""
    deadline = time.monotonic() + RUN_TIMEOUT_S
    with log.open("w+") as out:
        running: list[subprocess.Popen[bytes]] = []
        try:
            for command, env in commands:
                running.append(
                    subprocess.Popen(
                        command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
                    )
                )
            while any(process.poll() is None for process in running) and not _asked_to_end:
                if time.monotonic() > deadline:
                    raise Failed(f"not done in {RUN_TIMEOUT_S:.0f} s\n{last_words(log)}")
                if any(process.poll() for process in running):
                    break  # one failed: the others would wait for it
                time.sleep(0.02)
            if _asked_to_end:
                sys.exit(128 + _asked_to_end[0])
            if codes := [process.poll() for process in running if process.poll()]:
                raise Failed(f"exit code {codes[0]}\n{last_words(log)}")
        finally:
            end_all(running)


def end_all(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """Asks first: a `gossip run` ends its peers."""
    for process in running:
        process.terminate()
    deadline = time.monotonic() + END_S
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def machine_speed() -> float:
    """How often a second one process does a fixed piece of work now, in units of 1e4 additions:
    what a run finds itself on."""
    began, total = time.perf_counter(), 0
    for number in range(1_000_000):
        total += number
    return 100 / (time.perf_counter() - began)


def measure(side: str, peers: int, steps: int, batch: int) -> dict[str, Any]:
    """One run of one side. Returns what its rank 0 measured: steps_per_s, accuracy."""
    with tempfile.TemporaryDirectory(prefix="gossip-bench-") as folder:
        result = Path(folder, "result.json")
        own = [
            "--exchange",
            side,
            "--steps",
            str(steps),
            "--batch",
            str(batch),
            "--result",
            str(result),
        ]
        if side == "gossip":
            gossip = str(Path(sys.executable).with_name("gossip"))
            rules = [
                "--topology",
                "rolling",
                "--aggregator",
                "mean",
                "--run-dir",
                str(Path(folder, "run")),
            ]
            commands = [
                ([gossip, "run", "-n", str(peers), *rules, str(TRAIN), *own], environment())
            ]
        else:
            own += ["--rendezvous", str(Path(folder, "rendezvous"))]
            ranks = [environment(RANK=str(rank), WORLD_SIZE=str(peers)) for rank in range(peers)]
            commands = [([sys.executable, str(TRAIN), *own], env) for env in ranks]
        log = Path(folder, "log")
        run_all(commands, log)
        if not result.exists():
            raise Failed(f"rank 0 did not come to its end\n{last_words(log)}")
        measured: dict[str, Any] = json.loads(result.read_text())
        return measured


def rates_of(side: str, rows: Sequence[dict[str, Any]]) -> list[float]:
    """Steps per second of every turn, in the order of the turns."""
    return [row["steps_per_s"] for row in rows if row["side"] == side]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument(
        "--steps", type=int, default=1000, help="steps a run; the middle 70 %% are measured"
    )
    parser.add_argument("--batch", type=int, default=32, help="samples a process and step")
    parser.add_argument(
        "--repetitions",
        type=int,
        default=7,
        help="measured turns of each side, after one that is not",
    )
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--json", type=Path, help="write every number there")
    options = parser.parse_args()
    if options.peers < 1 or options.steps < 20 or options.repetitions < 1:
        parser.error("--peers and --repetitions must be at least 1, --steps at least 20")
    return options


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, ask_to_end)
    rows: list[dict[str, Any]] = []
    for turn in range(options.repetitions + 1):
        for side in options.sides if turn % 2 == 0 else options.sides[::-1]:
            speed = machine_speed()
            try:
                row = measure(side, options.peers, options.steps, options.batch)
            except Failed as failure:
                print(f"{NAMES[side]} failed: {failure}", file=sys.stderr)
                return 1
            load = os.getloadavg()[0]
            print(
                (
                    f"turn {turn} {NAMES[side]:<24} {row['steps_per_s']:8.0f} steps/s  accuracy "
                    f"{row['accuracy']:.3f}  machine {speed:5.0f}"
                )
                + ("  (warm-up, not counted)" if turn == 0 else ""),
                flush=True,
            )
            if turn:
                rows.append(
                    {"side": side, "turn": turn, "load_1m": load, "machine_speed": speed, **row}
                )

    cores, turns = os.cpu_count(), options.repetitions
    print(
        f"\n{options.peers} peers on {cores} cores, batch {options.batch} each, {turns} "
        "repetitions in turns"
    )
    median = {}
    for side in options.sides:
        rates = sorted(rates_of(side, rows))
        median[side] = statistics.median(rates)
        print(
            f"{NAMES[side]:<24} {rates[0]:7.0f} / {median[side]:7.0f} / {rates[-1]:7.0f} steps/s "
            "(min / median / max)"
        )
    ratios, paired = {}, {}
    for side in median if "gossip" in median else ():
        if side != "gossip":
            ratios[side] = median["gossip"] / median[side]
            pairs = sorted(
                a / b for a, b in zip(rates_of("gossip", rows), rates_of(side, rows), strict=True)
            )
            paired[side] = statistics.median(pairs)
            print(
                f"gossip to {NAMES[side]}: {ratios[side]:.2f} by medians, {pairs[0]:.2f} / "
                f"{paired[side]:.2f} / {pairs[-1]:.2f} within a turn (min / median / max)"
            )
    if options.json:
        import torch

        machine = {
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        }
        settings = {
            "peers": options.peers,
            "steps": options.steps,
            "batch": options.batch,
            "repetitions": options.repetitions,
        }
        options.json.write_text(
            json.dumps(
                {
                    "machine": machine,
                    "settings": settings,
                    "median": median,
                    "ratios": ratios,
                    "paired": paired,
                    "rows": rows,
                },
                indent=2,
            )
            + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
