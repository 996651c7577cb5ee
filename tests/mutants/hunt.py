"""Hunts the mutants of the protocol with the simulator: which invariant catches each, at which seed, and which survive.

    python tests/mutants/hunt.py                                      # all of them, up to 2,000 schedules each
    python tests/mutants/hunt.py --only quorum-of-half --seeds 50
    python tests/mutants/hunt.py --json mutants.json --jobs 4

A mutant is killed by the first seed whose schedule breaks an invariant with it and breaks none without it. Exit 1 when fewer than
95 % are killed. Ctrl-C and SIGTERM end the hunt, its processes and its copies of the package.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from catalogue import ROOT, Mutant, load, plant

SEEDS = 2000
SHARE_TO_KILL = 0.95
EVENTS_MAX = 100_000
"""In one schedule: five times what the busiest has. A mutant that answers itself for ever is killed by it."""
SEED_S = 300.0
"""For one that does so within an event: far more than a schedule takes on the slowest machine. It is time of the processor: a
hunt that is stopped for a while kills nobody by that."""


# --- the worker: schedules one after the other, in a copy of the package --------------------------------------------------


class _Endless(BaseException):
    """No Exception, or the simulator would take it for a finding inside a core."""


def _time_is_up(number: int, frame: FrameType | None) -> None:
    raise _Endless


def work(first: int, last: int) -> dict[str, Any]:
    """Plays the schedules of the seeds from ``first`` up to ``last``, until one breaks an invariant."""
    from gossip.sim import driver
    from gossip.sim.generate import generate
    from gossip.sim.play import run

    driver.DELIVERIES_MAX = EVENTS_MAX
    signal.signal(signal.SIGPROF, _time_is_up)
    for seed in range(first, last):
        signal.setitimer(signal.ITIMER_PROF, SEED_S)
        try:
            violation = run(generate(seed)).violation
        except _Endless:
            return {"seed": seed, "invariant": "endless", "text": f"the run was not over after {SEED_S:.0f} s of the processor"}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if violation is not None:
            return {"seed": seed, "invariant": violation.invariant, "text": str(violation)}
    return {"seed": last, "invariant": "", "text": ""}


# --- the hunter -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a mutant. ``invariant`` is "" for a survivor; ``seed`` is the one that killed it, else the one not tried."""

    name: str
    why: str
    invariant: str
    seed: int
    text: str
    wall_s: float
    passed_over: list[int] = field(default_factory=list)
    """Seeds that break an invariant without any mutant: they prove nothing."""


class GivenUp(Exception):
    """The hunt is over; what becomes of this mutant is not known."""


class Workers:
    """The processes that play schedules, so that none of them outlives the hunt."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._over = False

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Raises: GivenUp: ``end`` was called."""
        with self._lock:
            if self._over:
                raise GivenUp
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self._running.add(process)
        try:
            said, errors = process.communicate()
        finally:
            with self._lock:
                self._running.discard(process)
        return subprocess.CompletedProcess(command, process.returncode, said, errors)

    def end(self) -> None:
        """Ends them all; no more are started."""
        with self._lock:
            self._over = True
            for process in self._running:
                process.kill()


class Hunt:
    """Args: ``folder`` takes the copies of the package; ``last`` is the seed before which the hunt is given up."""

    def __init__(self, folder: Path, first: int, last: int) -> None:
        self.folder, self.first, self.last = folder, first, last
        self.workers = Workers()
        self._sound = plant(None, folder / "sound")
        self._lock = threading.Lock()
        self._known: dict[int, str] = {}  # seed -> invariant that it breaks without a mutant

    def fate_of(self, mutant: Mutant) -> Fate:
        began = time.monotonic()
        where = plant(mutant, self.folder / mutant.name)
        seed, passed_over = self.first, []
        while True:
            found = self._play(where, seed, self.last)
            if not found["invariant"] or not self._breaks_by_itself(found["seed"]):
                wall_s = round(time.monotonic() - began, 1)
                return Fate(mutant.name, mutant.why, found["invariant"], found["seed"], found["text"], wall_s, passed_over)
            passed_over.append(found["seed"])
            seed = found["seed"] + 1

    def _breaks_by_itself(self, seed: int) -> bool:
        with self._lock:
            if seed not in self._known:
                self._known[seed] = self._play(self._sound, seed, seed + 1)["invariant"]
            return bool(self._known[seed])

    def _play(self, where: Path, first: int, last: int) -> dict[str, Any]:
        environment = {**os.environ, "PYTHONPATH": str(where), "PYTHONDONTWRITEBYTECODE": "1"}
        done = self.workers.run([sys.executable, __file__, "--work", str(first), str(last)], environment)
        if done.returncode:
            if "SyntaxError" in done.stderr or "Error" not in done.stderr:
                raise RuntimeError(f"{where.name} cannot be played:\n{done.stderr[-3000:]}")
            # Not even a schedule could be drawn or a swarm be made: nobody would miss that.
            return {"seed": first, "invariant": "import", "text": done.stderr.strip().splitlines()[-1]}
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        if not Path(said.pop("package")).is_relative_to(where):
            raise RuntimeError(f"the worker did not import gossip from {where}")
        return said


def hunt(mutants: Sequence[Mutant], first: int, last: int, jobs: int, quiet: bool = False) -> list[Fate]:
    """The fate of each, in their order. Raises: ValueError: one of them does not fit the source."""
    for mutant in mutants:
        mutant.texts(ROOT / "gossip")
    with tempfile.TemporaryDirectory(prefix="gossip-mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        chase = Hunt(Path(folder), first, last)
        fates = []
        try:
            for fate in pool.map(chase.fate_of, mutants):
                fates.append(fate)
                if not quiet:
                    print(line_of(fate), flush=True)
        finally:
            chase.workers.end()  # or the pool would wait for them
        return fates


def line_of(fate: Fate) -> str:
    if not fate.invariant:
        return f"{'SURVIVED':10} {fate.name:36} {fate.seed} schedules, {fate.wall_s:.0f} s: {fate.why}"
    return f"{fate.invariant:10} {fate.name:36} seed {fate.seed}, {fate.wall_s:.0f} s: {fate.text}"[:230]


def _ended(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # once is enough: what is being cleared away is not left half done
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="schedules until a mutant counts as a survivor")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutants")
    parser.add_argument("--json", type=Path, help="file for the fates")
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        import gossip

        print(json.dumps({**work(*options.work), "package": gossip.__file__}))
        return 0
    known = {mutant.name: mutant for mutant in load()}
    unknown = [name for name in options.only or () if name not in known]
    if unknown:
        parser.error(f"there is no mutant {unknown[0]!r}; there are: {', '.join(known)}")
    chosen = [known[name] for name in options.only or known]
    signal.signal(signal.SIGTERM, _ended)
    began = time.monotonic()
    fates = hunt(chosen, options.first, options.first + options.seeds, options.jobs)
    killed = [fate for fate in fates if fate.invariant]
    share = len(killed) / len(fates)
    print(f"{len(killed)} of {len(fates)} mutants killed ({share:.1%}) in {time.monotonic() - began:.0f} s")
    wild = sorted({seed for fate in fates for seed in fate.passed_over})
    if wild:
        print(f"seeds that break an invariant without any mutant, and were passed over: {', '.join(map(str, wild))}")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(fate) for fate in fates], indent=1) + "\n", "utf-8")
    return int(share < SHARE_TO_KILL)


if __name__ == "__main__":
    sys.exit(main())
