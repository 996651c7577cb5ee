"""Parts that benchmarks of whole runs share: options, a run of ``gossip``, its folder, and the exit
code."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gossip_lab.workers import end_process

HERE = Path(__file__).resolve().parent
GOSSIP = [sys.executable, "-m", "gossip.launch.cli"]
RUN_TIMEOUT_S = 300.0
END_S = 10.0


class Failed(Exception):
    """Failure of a run. The message has the last output of the run."""


def environment(**extra: str) -> dict[str, str]:
    """Return an environment with one thread for each process, and without variables of an outer
    gossip run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GOSSIP_")}
    return {**kept, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", **extra}


def last_words(log: Path) -> str:
    return "\n".join(log.read_text().splitlines()[-15:])


def run_gossip(words: Sequence[str], log: Path, **extra: str) -> None:
    """Run ``gossip`` with these arguments until it ends, and write its output to ``log``. If an
    exception ends this process first, end the run and its peers with SIGTERM.

    Args:
        extra: Further variables of the environment.
    Raises: Failed: The exit code is not 0, or the time is up.
    """
    with log.open("w") as out:
        running = subprocess.Popen(
            [*GOSSIP, *words],
            env=environment(**extra),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
        try:
            running.wait(RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"not done in {RUN_TIMEOUT_S:.0f} s\n{last_words(log)}") from None
        finally:
            end_process(running, END_S)
    if running.returncode:
        raise Failed(f"exit code {running.returncode}\n{last_words(log)}")


def parser(doc: str | None, seed: str) -> argparse.ArgumentParser:
    """Return a parser with ``--peers``, ``--seed``, ``--into`` and ``--json``. ``seed`` is the help
    text of ``--seed``."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("-n", "--peers", type=int, default=8)
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


def summary_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text("utf-8"))
    return found
