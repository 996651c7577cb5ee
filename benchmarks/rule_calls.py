"""Two versions of gossip in paired turns: the processor time that a server spends on a round's rule
and on the trust table, rule by rule.

    git worktree add ../before e62a7da
    python benchmarks/rule_calls.py --before ../before --rules suspicion krum --pairs 30

For a machine that is too busy to time whole rounds (``versions.py`` does that): a process of each
version calls the rule and lets the table learn from what it says, in short turns that follow each
other, in the other order every other time. Processor time counts, not time. Printed is the ratio,
this version to the one before: the geometric mean over the pairs with its 95 % interval. Where a
rule is not in the older version, ``--instead`` is what it is compared with there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
PEERS, F = 10, 2


class Turns:
    """Process of one version, which measures how long a call takes. Except for the trust table, it
    imports nothing that the older version has elsewhere."""

    def __init__(self, elements: int) -> None:
        import torch

        from gossip.aggregators import load
        from gossip.core import messages, settings

        torch.set_num_threads(1)
        try:
            home = importlib.import_module("gossip.core.ledger.trust")
        except ModuleNotFoundError:
            home = importlib.import_module("gossip.core.trust")
        draw = torch.Generator().manual_seed(0)
        common = torch.randn(elements, generator=draw)
        self.updates = common + torch.randn(PEERS, elements, generator=draw)
        self.gradient = common + 0.3 * torch.randn(elements, generator=draw)
        self.load, self.contribution = load, messages.Contribution
        self.table: Any = home.TrustTable(settings.TrustSettings(), F)
        self.round_id = 0

    def turn(self, rule: str, calls: int) -> float:
        """Processor seconds of a call."""
        bound = self.load(rule)
        options: dict[str, Any] = {"f": F, "learning_rate": 0.1}
        if bound.needs_trainer:
            options["gradient"] = self.gradient
            options["evaluate"] = lambda step: -float(step @ self.gradient)
        began = time.process_time()
        for _ in range(calls):
            verdict = bound.explain(self.updates, round_id=self.round_id, **options)
            told = zip(verdict.weights.tolist(), verdict.outlyingness.tolist(), strict=True)
            contributions = [
                self.contribution(peer, 32, weight, far) for peer, (weight, far) in enumerate(told)
            ]
            self.table.observe_commit(self.round_id, contributions, [], roster=range(PEERS))
            self.round_id += 1
        return (time.process_time() - began) / calls


def serve(elements: int) -> None:
    turns = Turns(elements)
    for line in sys.stdin:
        rule, calls = json.loads(line)
        print(json.dumps(turns.turn(rule, calls)), flush=True)


class Version:
    """A process that has imported one checkout."""

    def __init__(self, checkout: Path, elements: int) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--serve", str(elements)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=checkout,
            text=True,
        )

    def ask(self, rule: str, calls: int) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([rule, calls]) + "\n")
        self.process.stdin.flush()
        return float(json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(rule: str, instead: str, sides: list[Version], options: argparse.Namespace) -> str:
    """A row of the table."""
    from versions import verdict

    from gossip_lab.bench.estimates import Estimate

    before, now = sides
    calls = max(1, int(options.turn_s / max(1e-6, now.ask(rule, 3))))
    before.ask(instead, calls)
    logarithms, microseconds = [], []
    for pair in range(options.pairs):
        took = {}
        for side in sides if pair % 2 else sides[::-1]:
            took[side] = side.ask(rule if side is now else instead, calls)
        logarithms.append(math.log(took[now] / took[before]))
        microseconds.append(1e6 * took[now])
    found = Estimate(tuple(logarithms))
    low, high = (math.exp(end) for end in found.interval)
    each = sorted(microseconds)[len(microseconds) // 2]
    said = verdict(low, high, options.bound)
    return f"{math.exp(found.mean):.3f} | {low:.3f} to {high:.3f} | {each:.0f} us | {said} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="checkout of the older version")
    parser.add_argument("--rules", nargs="+", default=["mean", "suspicion", "trimmed_mean"])
    parser.add_argument("--instead", help="rule of the older version; the same when left out")
    parser.add_argument("--elements", type=int, default=17226, help="numbers of an update")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--turn-s", type=float, default=0.05)
    parser.add_argument("--bound", type=float, default=1.05, help="of the ratio")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve)
        return 0
    if options.before is None or options.pairs < 2:
        parser.error("--before is a checkout, --pairs at least 2")
    sides = [Version(side, options.elements) for side in (options.before.resolve(), HERE)]
    print(f"| rule | processor time to before | 95 % interval | now | bound {options.bound:g} |")
    print("|---|---|---|---|---|")
    try:
        for rule in options.rules:
            row = compare(rule, options.instead or rule, sides, options)
            print(f"| `{rule}` | {row}", flush=True)
    finally:
        for side in sides:
            side.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
