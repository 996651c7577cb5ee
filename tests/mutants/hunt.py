"""Hunt for the mutants of the protocol with the simulator: which invariant kills each, at which
seed, and which survive.

    python tests/mutants/hunt.py  # all of them, up to 2,000 schedules each
    python tests/mutants/hunt.py --known  # each at its known seed, or with its test
    python tests/mutants/hunt.py --only quorum-of-half --seeds 50
    python tests/mutants/hunt.py --json mutants.json --jobs 4

A mutant is killed by the first seed with a schedule that breaks an invariant with the mutant and
none without it. The seed in mutants.toml is played first. If no seed kills a mutant, the test in
mutants.toml runs: it has to fail with the mutant only. The exit code is 1 if fewer than 95 % are
killed. Ctrl-C and SIGTERM end the hunt and its processes, and delete its copies of the package.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from catalogue import ROOT, Mutant, load, plant

SEEDS = 2000
SHARE_TO_KILL = 0.95
BLOCK = 100
"""Seeds of the first block. Each block is ``GROWTH`` times as long as the one before, and plays
only the surviving mutants."""
GROWTH = 5
PIPELINES = 1_000_000
"""Offset of the seeds of schedules with a pipeline. A hunt plays such a seed only if a mutant names
it."""
EVENTS_MAX = 100_000
"""Largest number of deliveries of a schedule: five times those of the busiest one. The limit kills
a mutant with endless traffic."""
SEED_S = 300.0
"""Largest processor time of a schedule, far above that of the slowest machine. The limit kills a
mutant that computes without end within an event."""


Try: TypeAlias = int | str
"""Seed of a schedule, or a test."""


# --- the worker: schedules one after the other, in a copy of the package --------------------------


class _Endless(BaseException):
    """The time limit is exceeded. A BaseException, because the simulator reports an Exception as a
    finding inside a core."""


def _time_is_up(number: int, frame: FrameType | None) -> None:
    raise _Endless


def work(seeds: Iterable[Try]) -> dict[str, Any]:
    """Play schedules until one breaks an invariant; the seed is -1 if none does."""
    for seed in seeds:
        if (broken := _run(seed) if isinstance(seed, str) else _play(seed)) is not None:
            return {"seed": seed, "invariant": broken[0], "text": broken[1]}
    return {"seed": -1, "invariant": "", "text": ""}


def _run(test: str) -> tuple[str, str] | None:
    """Run a test. Return "test" and how the test ends, or None if it passes."""
    import pytest

    code = pytest.main(["-q", "-p", "no:cacheprovider", str(ROOT / test)])
    return None if code == pytest.ExitCode.OK else ("test", f"exit code {int(code)} of pytest")


def _play(seed: int) -> tuple[str, str] | None:
    """Return the invariant that the schedule of ``seed`` breaks, and how."""
    from gossip_lab.simulation.campaign.play import run
    from gossip_lab.simulation.schedules.generator import generate
    from gossip_lab.simulation.schedules.pipelines import generate_pipeline
    from gossip_lab.simulation.world import dispatcher

    dispatcher.HANDLED_MAX = EVENTS_MAX
    signal.signal(signal.SIGPROF, _time_is_up)
    signal.setitimer(signal.ITIMER_PROF, SEED_S)
    try:
        drawn = generate(seed) if seed < PIPELINES else generate_pipeline(seed - PIPELINES)
        violation = run(drawn).violation
    except _Endless:
        return "endless", f"the run was not over after {SEED_S:.0f} s of the processor"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None if violation is None else (violation.invariant, str(violation))


# --- the hunter -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fate:
    """Result of a mutant. ``invariant`` is "" for a survivor. ``seed``, which may be a test, killed
    the mutant; for a survivor it is the first that was not tried."""

    name: str
    why: str
    invariant: str
    seed: Try
    text: str


class GivenUp(Exception):
    """The hunt ended before the fate of this mutant was known."""


class Workers:
    """The processes that play schedules. None outlives the hunt."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._over = False

    def play(self, where: Path, seeds: Iterable[Try]) -> dict[str, Any]:
        """Return what ``work`` finds in the copy of the package at ``where``.

        Raises: GivenUp: ``end`` was called.
        """
        command = [sys.executable, __file__, "--work", *map(str, seeds)]
        environment = {**os.environ, "PYTHONPATH": str(where), "PYTHONDONTWRITEBYTECODE": "1"}
        with self._lock:
            if self._over:
                raise GivenUp
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            self._running.add(process)
        try:
            output, errors = process.communicate()
        finally:
            with self._lock:
                self._running.discard(process)
        if process.returncode:
            if "SyntaxError" in errors or "Error" not in errors:
                raise RuntimeError(f"{where.name} cannot be played:\n{errors[-3000:]}")
            # With this mutant, making a swarm fails.
            last_line = errors.strip().splitlines()[-1]
            return {"seed": next(iter(seeds)), "invariant": "import", "text": last_line}
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        if not Path(found.pop("package")).is_relative_to(where):
            raise RuntimeError(f"the worker did not import gossip from {where}")
        return found

    def end(self) -> None:
        """End all processes; no more are started."""
        with self._lock:
            self._over = True
            for process in self._running:
                process.kill()


class Hunt:
    """A hunt for mutants. ``folder``: folder for the copies of the package."""

    def __init__(self, folder: Path, mutants: Sequence[Mutant], pool: ThreadPoolExecutor) -> None:
        self.workers = Workers()
        self._pool = pool
        self._sound = plant(None, folder / "sound")
        self._living = {mutant: plant(mutant, folder / mutant.name) for mutant in mutants}
        # seed -> invariant that its schedule breaks without a mutant: such seeds are skipped
        self.broken: dict[Try, str] = {}

    def fates(self, first: int, last: int) -> Iterator[Fate]:
        """Yield the fate of each mutant when it is known: first with the known seeds, then with the
        seeds from ``first`` up to ``last``, at last with the tests."""
        yield from self._killed(
            {mutant: [mutant.seed] for mutant in self._living if mutant.seed is not None}
        )
        begun, size = first, BLOCK
        while first < last and self._living:
            print(f"{len(self._living)} live; seed {first} of {last}", file=sys.stderr, flush=True)
            end = min(last, begun + size)
            yield from self._killed(dict.fromkeys(self._living, range(first, end)))
            first, size = end, GROWTH * size
        yield from self._killed({mutant: [mutant.test] for mutant in self._living if mutant.test})
        for mutant in self._living:
            yield Fate(mutant.name, mutant.why, "", last, "")

    def _killed(self, seeds: dict[Mutant, Any]) -> Iterator[Fate]:
        """Yield the fates of the mutants that these seeds kill."""
        chases = [self._pool.submit(self._chase, mutant, each) for mutant, each in seeds.items()]
        for chase in as_completed(chases):
            mutant, fate = chase.result()
            if fate is not None:
                shutil.rmtree(self._living.pop(mutant))
                yield fate

    def _chase(self, mutant: Mutant, seeds: Sequence[Try]) -> tuple[Mutant, Fate | None]:
        """Return the fate of the mutant; None if it survives all seeds."""
        left = [seed for seed in seeds if seed not in self.broken]
        while left:
            found = self.workers.play(self._living[mutant], left)
            if not found["invariant"]:
                break
            seed = found["seed"]
            alone = self.workers.play(self._sound, [seed])["invariant"]
            if not alone:
                return mutant, Fate(mutant.name, mutant.why, **found)
            self.broken[seed] = alone
            left = left[left.index(seed) + 1 :]
        return mutant, None


def hunt(
    mutants: Sequence[Mutant], first: int, last: int, jobs: int, quiet: bool = False
) -> tuple[list[Fate], dict[Try, str]]:
    """Return the fates in the order in which they became known, and the seeds that break an
    invariant without a mutant.

    Raises: ValueError: A mutant does not fit the source.
    """
    for mutant in mutants:
        mutant.texts()
    fates = []
    with (
        tempfile.TemporaryDirectory(prefix="gossip-mutants-") as folder,
        ThreadPoolExecutor(jobs) as pool,
    ):
        chase = Hunt(Path(folder), mutants, pool)
        try:
            for fate in chase.fates(first, last):
                fates.append(fate)
                if not quiet:
                    print(line_of(fate), flush=True)
        finally:
            chase.workers.end()  # otherwise the pool waits for them
    return fates, chase.broken


def line_of(fate: Fate) -> str:
    if not fate.invariant:
        return f"{'SURVIVED':10} {fate.name:36} up to seed {fate.seed}: {fate.why}"
    by = f"seed {fate.seed}" if isinstance(fate.seed, int) else fate.seed
    return f"{fate.invariant:10} {fate.name:36} {by}: {fate.text}"[:230]


def _ended(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help="number of schedules for each mutant"
    )
    parser.add_argument("--known", action="store_true", help="known seeds and tests only (minutes)")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutants")
    parser.add_argument("--json", type=Path, help="file for the fates")
    parser.add_argument("--work", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        import gossip

        tries = [int(each) if each.isdigit() else each for each in options.work]
        print(json.dumps({**work(tries), "package": gossip.__file__}))
        return 0
    known = {mutant.name: mutant for mutant in load()}
    unknown = [name for name in options.only or () if name not in known]
    if unknown:
        parser.error(f"there is no mutant {unknown[0]!r}; there are: {', '.join(known)}")
    chosen = [known[name] for name in options.only or known]
    if options.known:
        chosen = [mutant for mutant in chosen if mutant.seed is not None or mutant.test]
        options.seeds = 0
    signal.signal(signal.SIGTERM, _ended)
    began = time.monotonic()
    fates, broken = hunt(chosen, options.first, options.first + options.seeds, options.jobs)
    killed = [fate for fate in fates if fate.invariant]
    share = len(killed) / len(fates)
    print(
        f"{len(killed)} of {len(fates)} mutants killed ({share:.1%}) in "
        f"{time.monotonic() - began:.0f} s"
    )
    if broken:
        seeds = ", ".join(f"{seed} ({broken[seed]})" for seed in sorted(broken, key=str))
        print(f"skipped seeds, which break an invariant without a mutant: {seeds}")
    if options.json is not None:
        options.json.write_text(
            json.dumps([asdict(fate) for fate in fates], indent=1) + "\n", "utf-8"
        )
    return int(share < SHARE_TO_KILL)


if __name__ == "__main__":
    sys.exit(main())
