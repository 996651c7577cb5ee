"""Parts that benchmarks of whole runs share: options, concurrent processes, the folder of a run, a
run of ``gossip demo``, and the exit code."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parent
TRAIN = HERE / "digits_train.py"
GOSSIP = [sys.executable, "-m", "gossip.launch.cli"]
RUN_TIMEOUT_S = 300.0
END_S = 10.0

_asked_to_end: list[int] = []
"""Received SIGINT and SIGTERM. They are handled later, because a process that is being started is
not yet in the list of running processes."""


def ask_to_end(number: int, frame: FrameType | None) -> None:
    _asked_to_end.append(number)


class Failed(Exception):
    """Failure of a run. The message has the last output of the run."""


def environment(**extra: str) -> dict[str, str]:
    """Return an environment with one thread for each process, and without variables of an outer
    gossip run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GOSSIP_")}
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        **extra,
    }


def last_words(log: Path) -> str:
    return "\n".join(log.read_text().splitlines()[-15:])


def run_all(commands: Sequence[tuple[list[str], dict[str, str]]], log: Path) -> None:
    """Run the commands in parallel; end them all if one fails or the time is up. Raises
    ``Failed``."""
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
                    break  # One process failed; the others would wait for it.
                time.sleep(0.02)
            if _asked_to_end:
                sys.exit(128 + _asked_to_end[0])
            if codes := [process.poll() for process in running if process.poll()]:
                raise Failed(f"exit code {codes[0]}\n{last_words(log)}")
        finally:
            end_all(running)


def run_gossip(words: Sequence[str], within_s: float) -> None:
    """Run ``gossip run`` with these arguments until it ends. Raises: Failed: Its exit code is not
    0."""
    done = subprocess.run(
        [*GOSSIP, "run", *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=within_s,
    )
    if done.returncode:
        raise Failed(f"exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def end_all(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """End all processes, with SIGTERM first, so that a ``gossip run`` can end its peers."""
    for process in running:
        process.terminate()
    deadline = time.monotonic() + END_S
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def parser(doc: str | None, peers: int, seed: str) -> argparse.ArgumentParser:
    """Return a parser with ``--peers``, ``--seed``, ``--into`` and ``--json``. ``seed`` is the help
    text of ``--seed``."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("-n", "--peers", type=int, default=peers)
    made.add_argument("--seed", type=int, default=0, help=seed)
    made.add_argument(
        "--into", type=Path, help="folder for the runs; a temporary one when left out"
    )
    made.add_argument("--json", type=Path, help="file for the numbers")
    return made


@contextmanager
def scratch(prefix: str = "gossip-benchmark-") -> Iterator[Path]:
    """Yield a temporary folder. If one of its runs fails, the folder is kept with the records of
    the runs."""
    place = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield place
    except Failed as failure:
        raise Failed(f"{failure}\nits folder is kept: {place}") from failure
    except BaseException:
        shutil.rmtree(place)
        raise
    shutil.rmtree(place)


@contextmanager
def folder(into: Path | None) -> Iterator[Path]:
    """Yield the folder of the runs: ``into``, which is kept, or a temporary folder."""
    if into is None:
        with scratch() as place:
            yield place
    else:
        into.mkdir(parents=True, exist_ok=True)
        yield into


def conclude(numbers: dict[str, Any], into: Path | None, is_wrong: object) -> int:
    """Write the results to ``into``, the file of ``--json``. Return the exit code."""
    if into is not None:
        into.write_text(json.dumps(numbers, indent=1) + "\n", "utf-8")
    return 1 if is_wrong else 0


def demo(run: Path, peers: int, rounds: int, faults: Sequence[str], *words: str) -> dict[str, Any]:
    """Return the summary of one ``gossip demo --only`` with exactly these faults. Raises:
    SystemExit: The demo has written no summary."""
    command = [
        *GOSSIP,
        "demo",
        "--only",
        "--json",
        "-n",
        str(peers),
        "--rounds",
        str(rounds),
        "--run-dir",
        str(run),
        *words,
    ]
    command += [word for fault in faults for word in ("--fault", fault)]
    none = {**os.environ, "GOSSIP_FAULTS": ""}  # otherwise the demo has its default faults
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=none)
    if not (run / "summary.json").exists():
        raise SystemExit(f"gossip demo ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return summary_of(run)


def summary_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text("utf-8"))
    return found
