"""Compares the time of a round of two versions of gossip in paired turns, for each rule.

    git worktree add ../before e62a7da
    python benchmarks/versions.py --before ../before --rules mean suspicion --pairs 8

Both versions run ``digits_train.py`` of this checkout. A turn is one run of each version. Their
order changes from turn to turn, so that other work on the machine affects both. The benchmark
measures the time of a round inside rank 0, in the middle of a run (20 to 90 % of the steps). It
also measures the processor time of the whole run with its start, which other work affects less. It
prints the ratio of this version to the previous version: the geometric mean over the turns with its
95 % confidence interval (Student's t). A result is ``within`` the bound if the whole interval is
below it, ``beyond`` if the whole interval is above it, else ``undecided``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import resource
import sys
from pathlib import Path

from whole_runs import HERE, Failed, last_words, run_gossip, scratch

from gossip_lab.bench.exchange import ended_by_signals
from gossip_lab.bench.turns import in_order
from gossip_lab.estimates import Estimate


def processor_s() -> float:
    """Return the processor seconds of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(checkout: Path, rule: str, options: argparse.Namespace) -> dict[str, float]:
    """Return the seconds per round and the processor seconds of one run of one version. Raises:
    Failed."""
    with scratch("gossip-versions-") as folder:
        result, log = folder / "result.json", folder / "log"
        words = ["run", "-n", str(options.peers), "--topology", "rolling", "--aggregator", rule]
        words += ["--run-dir", str(folder / "run"), str(HERE / "digits_train.py")]
        words += ["--steps", str(options.steps), "--result", str(result)]
        before_s = processor_s()
        with contextlib.chdir(folder):  # python -m imports from the working directory first
            run_gossip(words, log, PYTHONPATH=str(checkout))
        if not result.exists():
            raise Failed(f"rank 0 did not finish\n{last_words(log)}")
        rate = json.loads(result.read_text())["steps_per_s"]
        return {"round": 1 / rate, "processor": processor_s() - before_s}


def ratios_of(rule: str, options: argparse.Namespace) -> dict[str, Estimate]:
    """Return the mean logarithm of the ratio of each figure over the pairs. The first pair is a
    warm-up and is not used."""
    logarithms: dict[str, list[float]] = {"round": [], "processor": []}
    for pair in range(options.pairs + 1):
        sides = [HERE.parent, options.before.resolve()]
        runs = {side: measured(side, rule, options) for side in in_order(sides, pair)}
        now, before = (runs[side] for side in sides)
        told = [f"{1e3 * before['round']:.2f} -> {1e3 * now['round']:.2f} ms a round"]
        told += [f"{before['processor']:.1f} -> {now['processor']:.1f} s of processor"]
        print(f"{rule} pair {pair}: {', '.join(told)}", file=sys.stderr, flush=True)
        if pair:
            for what, found in logarithms.items():
                found.append(math.log(now[what] / before[what]))
    return {what: Estimate(tuple(found)) for what, found in logarithms.items()}


def verdict(low: float, high: float, bound: float) -> str:
    return "within" if high <= bound else "beyond" if low > bound else "undecided"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, required=True, help="checkout of the older version")
    parser.add_argument("--rules", nargs="+", default=["mean", "suspicion", "trimmed_mean"])
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pairs", type=int, default=8, help="measured pairs, after a warm-up")
    parser.add_argument("--bound", type=float, default=1.05, help="bound of the ratio")
    options = parser.parse_args()
    if options.pairs < 2 or options.steps < 20:
        parser.error("--pairs must be at least 2, --steps at least 20")
    print(f"| rule | to before | ratio | 95 % interval | bound {options.bound:g} |")
    print("|---|---|---|---|---|")
    with ended_by_signals():
        for rule in options.rules:
            try:
                ratios = ratios_of(rule, options)
            except Failed as failure:
                print(f"{rule}: {failure}", file=sys.stderr)
                return 1
            for what, found in ratios.items():
                low, high = (math.exp(end) for end in found.interval)
                ratio = f"{math.exp(found.mean):.2f} | {low:.2f} to {high:.2f}"
                print(
                    f"| `{rule}` | {what} | {ratio} | {verdict(low, high, options.bound)} |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
