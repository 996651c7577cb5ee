"""Hunts the mutants of the protocol with the simulator: which invariant catches each, at which
seed, and which survive.

    python tests/mutants/hunt.py  # all of them, up to 2,000 schedules each
    python tests/mutants/hunt.py --known  # each at the seed that has killed it before
    python tests/mutants/hunt.py --only quorum-of-half --seeds 50
    python tests/mutants/hunt.py --json mutants.json --jobs 4

A mutant is killed by the first seed whose schedule breaks an invariant with it and breaks none
without it. The seed that mutants.toml has for it is played first. Schedules in which it would
compute nothing else than the package does are not played with it: `reach.py` finds them. Exit 1
when fewer than 95 % are killed. Ctrl-C and SIGTERM end the hunt, its processes and its copies of
the package.
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
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

import reach
from catalogue import Mutant, load, plant

SEEDS = 2000
SHARE_TO_KILL = 0.95
BLOCK = 100
"""Seeds of the first block; the end of the next is ``GROWTH`` times as far. After a block only
those that live go on."""
GROWTH = 5
SHARE = 10
"""Of them, seeds that one process looks at."""
PIPELINES = 1_000_000
"""The seed n beyond this is that of the n-th schedule with a pipeline. A hunt tries none by itself:
a mutant that only a pipeline shows names one."""
EVENTS_MAX = 100_000
"""In one schedule: five times what the busiest has.
A mutant that answers itself for ever is killed by it."""
SEED_S = 300.0
"""For one that does so within an event: far more than a schedule takes on the slowest machine. It
is time of the processor: a hunt that is stopped for a while kills nobody by that."""


# --- the worker: schedules one after the other, in a copy of the package --------------------------


class _Endless(BaseException):
    """No Exception, or the simulator would take it for a finding inside a core."""


def _time_is_up(number: int, frame: FrameType | None) -> None:
    raise _Endless


def work(seeds: Iterable[int]) -> dict[str, Any]:
    """Plays the schedules of ``seeds`` until one breaks an invariant.
    The seed is -1 when none does."""
    for seed in seeds:
        if (broken := _play(seed)) is not None:
            return {"seed": seed, "invariant": broken[0], "text": broken[1]}
    return {"seed": -1, "invariant": "", "text": ""}


def look(seeds: Iterable[int]) -> dict[str, Any]:
    """Plays them all in a copy with probes: the mutants that differ in each, by number, and the
    invariant that it breaks."""
    # It exists in the copies that reach.py makes, and nowhere else.
    from gossip import mutant_probes  # type: ignore[attr-defined]

    looked = {}
    for seed in seeds:
        mutant_probes.differing.clear()
        _forget()
        broken = _play(seed)
        looked[str(seed)] = [
            sorted(mutant_probes.differing.union(mutant_probes.always)),
            broken[0] if broken else "",
        ]
    return {"looked": looked}


PACKAGES = (
    "gossip.core",
    "gossip.topologies",
    "gossip_lab.simulation",
    "gossip_pipelines.protocol",
)
"""Packages that a mutant may be in."""


def _forget() -> None:
    """What functions have kept of former schedules: a mutant may differ in computing it."""
    for name, module in sys.modules.items():
        for kept in vars(module).values() if name.startswith(PACKAGES) else ():
            if hasattr(kept, "cache_clear"):
                kept.cache_clear()


def _play(seed: int) -> tuple[str, str] | None:
    """The invariant that the schedule of ``seed`` breaks, and how."""
    from gossip_lab.simulation.campaign.play import run
    from gossip_lab.simulation.schedules.generator import generate
    from gossip_lab.simulation.schedules.pipelines import generate_pipeline
    from gossip_lab.simulation.world import driver

    driver.DELIVERIES_MAX = EVENTS_MAX
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
    """What became of a mutant. ``invariant`` is "" for a survivor; ``seed`` is the one that killed
    it, else the one not tried."""

    name: str
    why: str
    invariant: str
    seed: int
    text: str
    differs_in: int
    """Schedules up to there in which it makes a difference: only those were played with it."""


@dataclass(slots=True)
class Hunted:
    """A mutant that lives."""

    number: int
    mutant: Mutant
    where: Path
    differs_in: int = 0


class GivenUp(Exception):
    """The hunt is over; what becomes of this mutant is not known."""


class Workers:
    """The processes that play schedules, so that none of them outlives the hunt."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._over = False

    def run(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Raises: GivenUp: ``end`` was called."""
        with self._lock:
            if self._over:
                raise GivenUp
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
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
    """Args: ``folder`` takes the copies of the package."""

    def __init__(self, folder: Path, mutants: Sequence[Mutant], pool: ThreadPoolExecutor) -> None:
        self.workers = Workers()
        self._pool = pool
        self._probed = reach.plant_probes(mutants, folder / "probed")
        self._living = [
            Hunted(number, mutant, plant(mutant, folder / mutant.name))
            for number, mutant in enumerate(mutants)
        ]
        # seed -> invariant that it breaks without a mutant: such a seed proves nothing
        self.broken: dict[int, str] = {}

    def known(self) -> Iterator[Fate]:
        """The fates of the mutants that their known seeds kill."""
        seeds = sorted({each.mutant.seed for each in self._living if each.mutant.seed is not None})
        print(f"{len(seeds)} known seeds", file=sys.stderr, flush=True)
        differing = self._differing(seeds)
        yield from self._chased(
            {
                hunted.number: [seed]
                for hunted in self._living
                if (seed := hunted.mutant.seed) in differing[hunted.number] and seed is not None
            }
        )

    def fates(self, first: int, last: int) -> Iterator[Fate]:
        """One by one, as they are known, of all mutants that live with the seeds from
        ``first`` up to ``last``."""
        begun, size = first, BLOCK
        while first < last and self._living:
            print(f"{len(self._living)} live; seed {first} of {last}", file=sys.stderr, flush=True)
            end = min(last, begun + size)
            differing = self._differing(range(first, end))
            yield from self._chased(differing)
            first, size = end, GROWTH * size
        for hunted in self._living:
            yield Fate(hunted.mutant.name, hunted.mutant.why, "", last, "", hunted.differs_in)

    def _chased(self, seeds: Mapping[int, list[int]]) -> Iterator[Fate]:
        """The fates of those that die.

        Args:
            seeds: Number of a mutant -> what it is played with.
        """
        # Those that are quickly played come first: a hunt that is not waited for has told of most.
        order = sorted(self._living, key=lambda hunted: len(seeds.get(hunted.number, ())))
        chases = {
            self._pool.submit(self._chase, hunted, seeds.get(hunted.number, [])): hunted
            for hunted in order
        }
        for chase in as_completed(chases):
            if (fate := chase.result()) is not None:
                self._living.remove(chases[chase])
                shutil.rmtree(chases[chase].where)
                yield fate

    def _differing(self, seeds: Sequence[int]) -> dict[int, list[int]]:
        """Number of a mutant -> those of the seeds in which it makes a difference,
        and which break nothing without it."""
        shares = [list(seeds[start : start + SHARE]) for start in range(0, len(seeds), SHARE)]
        found: dict[int, list[int]] = defaultdict(list)
        for said in self._pool.map(
            lambda share: self._told(self._probed, ["--look", *map(str, share)]), shares
        ):
            for seed, (numbers, invariant) in said["looked"].items():
                if invariant:
                    self.broken[int(seed)] = invariant
                for number in () if invariant else numbers:
                    found[number].append(int(seed))
        return found

    def _chase(self, hunted: Hunted, seeds: list[int]) -> Fate | None:
        """None: it lives on."""
        found = self._told(hunted.where, ["--work", *map(str, seeds)]) if seeds else None
        if found is None or not found["invariant"]:
            hunted.differs_in += len(seeds)
            return None
        differs_in = hunted.differs_in + seeds.index(found["seed"]) + 1
        return Fate(
            hunted.mutant.name,
            hunted.mutant.why,
            found["invariant"],
            found["seed"],
            found["text"],
            differs_in,
        )

    def _told(self, where: Path, order: list[str]) -> dict[str, Any]:
        environment = {**os.environ, "PYTHONPATH": str(where), "PYTHONDONTWRITEBYTECODE": "1"}
        done = self.workers.run([sys.executable, __file__, *order], environment)
        if done.returncode:
            if order[0] == "--look" or "SyntaxError" in done.stderr or "Error" not in done.stderr:
                raise RuntimeError(f"{where.name} cannot be played:\n{done.stderr[-3000:]}")
            # Not even a schedule could be drawn or a swarm be made: nobody would miss that.
            return {
                "seed": int(order[1]),
                "invariant": "import",
                "text": done.stderr.strip().splitlines()[-1],
            }
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        if not Path(said.pop("package")).is_relative_to(where):
            raise RuntimeError(f"the worker did not import gossip from {where}")
        return said


def hunt(
    mutants: Sequence[Mutant], first: int, last: int, jobs: int, quiet: bool = False
) -> tuple[list[Fate], dict[int, str]]:
    """The fate of each, as they became known, with its known seed and then with those from
    ``first`` up to ``last``; and which seeds break an invariant without any mutant.

    Raises: ValueError: one of them does not fit the source.
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
            for fate in chain(chase.known(), chase.fates(first, last)):
                fates.append(fate)
                if not quiet:
                    print(line_of(fate), flush=True)
        finally:
            chase.workers.end()  # or the pool would wait for them
    return fates, chase.broken


def line_of(fate: Fate) -> str:
    if not fate.invariant:
        return (
            f"{'SURVIVED':10} {fate.name:36} up to seed {fate.seed}, makes a difference in "
            f"{fate.differs_in}: {fate.why}"
        )
    return (
        f"{fate.invariant:10} {fate.name:36} seed {fate.seed}, the {fate.differs_in}. with a "
        f"difference: {fate.text}"
    )[:230]


def _ended(number: int, frame: FrameType | None) -> None:
    # once is enough: what is being cleared away is not left half done
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help="schedules until a mutant counts as a survivor"
    )
    parser.add_argument(
        "--known",
        action="store_true",
        help="only mutants whose seed is known, with that alone (minutes)",
    )
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutants")
    parser.add_argument("--json", type=Path, help="file for the fates")
    parser.add_argument("--work", type=int, nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--look", type=int, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work or options.look:
        import gossip

        said = work(options.work) if options.work else look(options.look)
        print(json.dumps({**said, "package": gossip.__file__}))
        return 0
    known = {mutant.name: mutant for mutant in load()}
    unknown = [name for name in options.only or () if name not in known]
    if unknown:
        parser.error(f"there is no mutant {unknown[0]!r}; there are: {', '.join(known)}")
    chosen = [known[name] for name in options.only or known]
    if options.known:
        chosen = [mutant for mutant in chosen if mutant.seed is not None]
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
        seeds = ", ".join(f"{seed} ({broken[seed]})" for seed in sorted(broken))
        print(f"seeds that break an invariant without any mutant, and were passed over: {seeds}")
    if options.json is not None:
        options.json.write_text(
            json.dumps([asdict(fate) for fate in fates], indent=1) + "\n", "utf-8"
        )
    return int(share < SHARE_TO_KILL)


if __name__ == "__main__":
    sys.exit(main())
