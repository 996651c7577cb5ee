r"""Effect of attacks on local steps: rules, attacks, and momentum before and after the rule.

    python benchmarks/local_steps_attacks.py --write PAGE  # minutes
    python benchmarks/local_steps_attacks.py --mnist mnist.npz \
        --write docs/results/local_steps_attacks.md

Eight workers of which two lie, with the same number of steps in rounds of 1 and of 30 steps, and
without network. By default the digits, a small MLP, some rules and attacks and one seed; with
--mnist a small CNN, all of them and three, some hours of one processor. Each table is one `gossip
bench robustness`, which remembers every run in --into: after Ctrl-C the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from cells import put_between
from whole_runs import GOSSIP, environment

RULES = (
    "mean",
    "suspicion",
    "trimmed_mean",
    "krum",
    "geometric_median",
    "nnm+trimmed_mean",
    "centered_clipping",
    "zeno_pp:lengths=updates",
)
ATTACKS = (
    "none",
    "sign_flip*10",
    "scale",
    "gaussian",
    "alie*1.5",
    "ipm*10",
    "min_max",
    "stale",
    "label_flip",
    "outer_momentum",
    "outer_momentum*4",
)
OUTER = {
    "after the rule": "nesterov:lr=0.7,momentum=0.9",
    "before the rule": "heavy_ball:lr=0.7,momentum=0",
}
SENDER = {"after the rule": "", "before the rule": "momentum:beta=0.9,form=sum"}
"""Senders with which momentum moves about as far before as after the rule, if no worker lies: under
the mean, momentum of all is the mean of each one's. ``nesterov`` is 8 % ahead in 16 rounds."""
MOMENTUM = tuple(OUTER)
LOCAL_STEPS = (30, 1)
FAILS_BELOW = 0.9
FEW_RULES = ("mean", "suspicion", "krum", "nnm+trimmed_mean")
FEW_ATTACKS = ("none", "label_flip", "alie*1.5", "outer_momentum", "outer_momentum*4")
"""Rules and attacks that are shown by default."""


@dataclass(frozen=True)
class Size:
    """How much is run: rules, attacks, steps of a worker, seeds, and further options."""

    about: str
    rules: tuple[str, ...]
    attacks: tuple[str, ...]
    steps: int
    seeds: int
    options: tuple[str, ...]


def size_of(mnist: Path | None, steps: int | None, seeds: int | None) -> Size:
    if mnist is None:
        about = "The digits and an MLP with one hidden layer of 32"
        return Size(about, FEW_RULES, FEW_ATTACKS, steps or 240, seeds or 1, ("--lr", "0.1"))
    about = "MNIST and the CNN `small_cnn`"
    options = "--data", str(mnist), "--model", "small_cnn", "--lr", "0.05", "--test-samples", "2000"
    return Size(about, RULES, ATTACKS, steps or 480, seeds or 3, options)


def play(size: Size, local_steps: int, momentum: str, kept: Sequence[str]) -> dict[str, Any]:
    """One table, as ``gossip bench robustness --json`` has it. Raises: CalledProcessError."""
    command = [
        *[*GOSSIP, "bench", "robustness", "--n", "8", "--f", "2", "--no-plot", "--json"],
        *["--rules", " ".join(size.rules), "--attacks", " ".join(size.attacks)],
        *["--outer", OUTER[momentum], "--sender", SENDER[momentum]],
        *["--local-steps", str(local_steps), "--rounds", str(size.steps // local_steps)],
        *["--seeds", str(size.seeds), *size.options, *kept],
    ]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, check=True)
    (table,) = json.loads(done.stdout)
    found: dict[str, Any] = table
    return found


def section(local_steps: int, momentum: str, found: dict[str, Any]) -> list[str]:
    attacks = list(dict.fromkeys(cell["attack"] for cell in found["cells"]))
    honest = found["without_attackers"]["mean"]
    cells = {(cell["rule"], cell["attack"]): cell for cell in found["cells"]}
    lines = [
        f"### {local_steps} local step{'s' if local_steps > 1 else ''}, momentum {momentum}",
        "",
        f"Without liars averaging reaches {honest:.1%}.",
        "",
        f"| rule | {' | '.join(f'`{attack}`' for attack in attacks)} |",
        "|---|" + "---|" * len(attacks),
    ]
    for rule in dict.fromkeys(cell["rule"] for cell in found["cells"]):
        row = [shown(cells[rule, attack], FAILS_BELOW * honest) for attack in attacks]
        lines.append(f"| `{rule}` | {' | '.join(row)} |")
    return [*lines, ""]


def shown(cell: dict[str, Any], limit: float) -> str:
    """Percent, bold where it is below ``limit``."""
    if cell["mean"] is None:
        return "-"
    error = cell["standard_error"]
    text = f"{100 * cell['mean']:.1f}" + ("" if error is None else f" ± {100 * error:.1f}")
    return text if cell["mean"] >= limit else f"**{text}**"


def head(size: Size, command: Sequence[str]) -> list[str]:
    seeds = (
        "one seed, so without error bars"
        if size.seeds == 1
        else f"{size.seeds} seeds, ± is the standard error"
    )
    return [
        f"Made by `{' '.join(command)}`.",
        "",
        f"{size.about}; 8 workers of which 2 lie and know what the honest send; {size.steps} steps "
        f"of each, 32 samples a step; {seeds}. Test accuracy in percent at the end; bold: below "
        f"{FAILS_BELOW:g} of what averaging reaches without liars. Momentum after the rule is the "
        "outer step `nesterov`; before the rule each worker has its own (`--sender "
        f"{SENDER['before the rule']} --outer {OUTER['before the rule']}`).",
        "",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mnist", type=Path, help="mnist.npz: the CNN, in hours")
    parser.add_argument("--steps", type=int, help="of each worker")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--into", type=Path, default=Path("runs/local-steps-attacks"))
    parser.add_argument("--write", type=Path, required=True, help="the page, between two markers")
    options = parser.parse_args()
    size = size_of(options.mnist, options.steps, options.seeds)
    os.nice(10)
    command = ["python", "benchmarks/local_steps_attacks.py", *_command_of(options)]
    lines = head(size, command)
    kept = ["--into", str(options.into), "--jobs", str(options.jobs)]
    for local_steps, momentum in product(LOCAL_STEPS, MOMENTUM):
        found = play(size, local_steps, momentum, kept)
        lines += section(local_steps, momentum, found)
        put_between(options.write, "images", "\n".join(lines))
    return 0


def _command_of(options: argparse.Namespace) -> list[str]:
    """The options that decide what the page holds."""
    given = {"--steps": options.steps, "--seeds": options.seeds}
    words = ["--mnist", "mnist.npz"] if options.mnist is not None else []
    return [*words, *[w for name, value in given.items() if value for w in (name, str(value))]]


if __name__ == "__main__":
    sys.exit(main())
