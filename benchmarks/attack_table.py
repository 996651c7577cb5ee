"""Every attack against some rules, on real processes: the demo's swarm, its serving peer killed on
the way, once a cell.

    # 4 rules x 8 attacks, 20 to 30 minutes
    python benchmarks/attack_table.py --into runs/attacks --write docs/results/attacks.md

A cell that has its summary in ``--into`` is not run again, so the table can be interrupted and gone
on with. Each cell is one run of ``gossip demo --only --json``; the page is written from the
summaries and says what they say.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ATTACKS = (
    "sign_flip:{liars}*10",
    "bit_flip:{liars}",
    "gaussian:{liars}",
    "scale:{liars}*1000",
    "nan:{liars}",
    "label_flip:{liars}",
    "stale:{liars}*10",
    "zero:{liars}",
)
RULES = ("suspicion", "zeno", "trimmed_mean", "krum")
HOLDS = 0.95


def cell(rule: str, attack: str, options: argparse.Namespace) -> dict[str, Any]:
    """The summary of one run: from its folder when it was run before."""
    folder = options.into / f"{options.topology}-{rule}-{attack.split(':')[0]}".replace(":", "_")
    summary = folder / "summary.json"
    if not summary.exists():
        faults = ["--fault", attack, "--fault", f"crash:server@{options.rounds // 2}"]
        swarm = [
            "-n",
            str(options.peers),
            "--rounds",
            str(options.rounds),
            "--seed",
            str(options.seed),
        ]
        chosen = ["--topology", options.topology, "--aggregator", rule, "--run-dir", str(folder)]
        command = [
            sys.executable,
            "-m",
            "gossip.launch.cli",
            "demo",
            "--only",
            "--json",
            *swarm,
            *chosen,
            *faults,
        ]
        subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    if not summary.exists():
        return {"status": "failed", "accuracy": {}, "suspected": [], "rounds_lost": None}
    read: dict[str, Any] = json.loads(summary.read_text())
    return read


def verdict(summary: dict[str, Any], attackers: list[int]) -> str:
    accuracy = (summary.get("accuracy") or {}).get("worst_replica")
    if accuracy is None:
        return f"**{summary['status']}**"
    text = f"{accuracy:.3f}" if accuracy >= HOLDS else f"**{accuracy:.3f}**"
    found = [peer for peer in summary["suspected"] if peer in attackers]
    wronged = [peer for peer in summary["suspected"] if peer not in attackers]
    text += f" · {len(found)}/{len(attackers)}"
    if wronged:
        text += f" · wrongly {', '.join(map(str, wronged))}"
    if summary["rounds_lost"]:
        text += f" · {summary['rounds_lost']} lost"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--into", type=Path, default=Path("runs/attacks"), help="folder of the runs"
    )
    parser.add_argument(
        "--write", type=Path, help="Markdown file to put the table in, between its two markers"
    )
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--topology", default="rolling")
    parser.add_argument("--rules", nargs="+", default=list(RULES))
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    count = options.peers // 4
    attackers = list(range(options.peers - 1 - count, options.peers - 1))
    rows = []
    for template in ATTACKS:
        attack = template.format(liars=",".join(map(str, attackers)))
        cells = []
        for rule in options.rules:
            summary = cell(rule, attack, options)
            cells.append(verdict(summary, attackers))
            print(f"{attack:22} {rule:14} {cells[-1]}", flush=True)
        rows.append(f"| `{attack}` | " + " | ".join(cells) + " |")
    head = "| attack | " + " | ".join(f"`{rule}`" for rule in options.rules) + " |"
    table = "\n".join([head, "|---" * (len(options.rules) + 1) + "|", *rows])
    print(table)
    if options.write:
        begin, end = (
            f"<!-- {options.topology} table -->",
            f"<!-- end of {options.topology} table -->",
        )
        page = options.write.read_text() if options.write.exists() else f"{begin}\n{end}\n"
        before, rest = page.split(begin, 1)
        options.write.write_text(before + begin + "\n" + table + "\n" + end + rest.split(end, 1)[1])


if __name__ == "__main__":
    main()
