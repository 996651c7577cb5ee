"""Two of eight peers lie about every result that they serve, while all train on digits:
what each such lie costs.

    # every lie of a server, 400 rounds each
    python benchmarks/lying_servers.py
    python benchmarks/lying_servers.py --lies wrong_results two_results --rounds 250 \\
        --json lies.json

For each lie a run of ``gossip demo --only`` with rolling rounds, beside one without faults of the
same seed and the same f. Exit 1 when the honest peers end with different bits, a round or more than
0.01 of the accuracy is lost, an honest peer was suspected, a liar whose lie can be proven was never
put into quarantine, or a lie was never told.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import whole_runs

from gossip.faults.world import RESULT_ATTACKS
from gossip.run.telemetry import read_lines

ACCURACY_LOSS_MAX = 0.01
UNPROVEN = ("slightly_wrong_results", "kept_results")
"""Lies without proof: one cannot be distinguished from the truth, and the other is silence, which
is no evidence."""


def main() -> int:
    parser = whole_runs.parser(__doc__, peers=8, seed="of servers and data order")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--liars", type=int, nargs="+", default=[5, 6])
    parser.add_argument(
        "--lies",
        nargs="+",
        choices=RESULT_ATTACKS,
        default=list(RESULT_ATTACKS),
        metavar="LIE",
        help=", ".join(RESULT_ATTACKS),
    )
    options = parser.parse_args()
    with whole_runs.folder(options.into) as into:
        honest = demo(into / "fault-free", options, [])
        rows = [row_of("", honest, into / "fault-free", honest, options)]
        print(line(rows[0]), flush=True)
        for lie in options.lies:
            named = ",".join(map(str, options.liars))
            rows.append(
                row_of(
                    lie, demo(into / lie, options, [f"{lie}:{named}"]), into / lie, honest, options
                )
            )
            print(line(rows[-1]), flush=True)
    return whole_runs.conclude(
        {"cores": os.cpu_count(), "rows": rows}, options.json, any(row["wrong"] for row in rows)
    )


def demo(folder: Path, options: argparse.Namespace, faults: Sequence[str]) -> dict[str, Any]:
    words = "--seed", str(options.seed), "-f", str(len(options.liars))
    return whole_runs.demo(folder, options.peers, options.rounds, faults, *words)


def row_of(
    lie: str,
    summary: dict[str, Any],
    folder: Path,
    honest: dict[str, Any],
    options: argparse.Namespace,
) -> dict[str, Any]:
    events = list(read_lines(folder / "events.jsonl"))
    attackers = options.liars if lie else []
    row: dict[str, Any] = {
        "lie": lie,
        "accuracy": summary["accuracy"]["worst_replica"],
        "fault_free": honest["accuracy"]["worst_replica"],
        "quarantined": {peer: quarantined_in(events, peer, attackers) for peer in attackers},
        "suspected": summary["suspected"],
        "rounds": summary["rounds"],
        "rounds_lost": summary["rounds_lost"],
        "rounds_per_s": summary["rounds_per_s"],
        "longest_pause_s": longest_pause_s(folder),
        "replicas_identical": summary["replicas_identical"],
        "samples": summary["samples"],
        "told": {
            row["peer"]: row.get("attacks", {}).get(lie, 0)
            for row in events
            if row.get("event") == "halted" and row["peer"] in attackers
        },
    }
    wrong = {
        "replicas differ": row["replicas_identical"] is not True,
        "rounds were lost": row["rounds_lost"] or row["rounds"] != options.rounds,
        "less accurate": None in (row["accuracy"], row["fault_free"])
        or row["accuracy"] < row["fault_free"] - ACCURACY_LOSS_MAX,
        "an honest peer was suspected": set(row["suspected"]) - set(attackers),
        "a liar was never in quarantine": lie not in UNPROVEN
        and not all(row["quarantined"].values()),
        "a lie was never told": not all(row["told"].values()) or len(row["told"]) < len(attackers),
    }
    return {**row, "wrong": [what for what, is_so in wrong.items() if is_so]}


def quarantined_in(
    events: Sequence[dict[str, Any]], peer: int, attackers: Sequence[int]
) -> list[int]:
    """In which rounds the honest peers put it there: of all at the same one, or they have not held
    the same commits."""
    told = [
        row for row in events if row.get("event") == "quarantined" and row["peer"] not in attackers
    ]
    return sorted({row["round"] for row in told if row["subject"] == peer})


def longest_pause_s(folder: Path) -> float:
    """Between two commits that somebody made."""
    made_at = sorted(row["t"] for row in read_lines(folder / "commits.jsonl"))
    return round(max((later - before for before, later in pairwise(made_at)), default=0.0), 2)


def line(row: dict[str, Any]) -> str:
    locked = "; ".join(
        f"{peer} in {', '.join(map(str, rounds)) or 'none'}"
        for peer, rounds in row["quarantined"].items()
    )
    told = " + ".join(str(times) for times in row["told"].values())
    text = (
        f"| {row['lie'] or 'no faults'} | {row['accuracy']:.3f} | {locked or '-'} | {told or '-'} "
        f"| {row['rounds_lost']} | {row['rounds_per_s']} | {row['longest_pause_s']:.2f} | "
        f"{row['replicas_identical']} |"
    )
    return "\n".join([text, *(f"WRONG: {what} ({row['suspected']})" for what in row["wrong"])])


if __name__ == "__main__":
    sys.exit(main())
