"""Patient liars against every rule that claims f = 2, in real processes, with and without the trust
table.

    # two runs a rule, each a minute or two of a core
    python benchmarks/sleepers_real.py --into runs/sleepers.jsonl

Ten peers train a network on the digits, whose labels a Dirichlet(0.1) split shares out among the
eight honest ones. Two are honest until round 124, and then send the negated gradient ten times
over. Each run is a line of ``--into``; one that has its line is not run again, so the command goes
on where it was ended. A run that fails has no line, and its folder stays; of one that has not ended
after five minutes ``not_ended.txt`` there says what each process is at. Printed is the accuracy at
the end: with the trust table, without it, and whether that is within the bounds: no rule more than
3 points below what it has without trust, and none under 80 % that holds otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from digits_train import digits
from torch import nn
from whole_runs import GOSSIP, Failed, environment, run_all, scratch

from gossip.aggregators import load, names
from gossip_lab.bench.splits import split

PEERS, F = 10, 2
WAITS = 124
FALLS, HOLDS = 3.0, 80.0


def claims(rule: str) -> bool:
    """Whether it declares to tolerate two of ten."""
    bound = load(rule)
    return bound.robust and bound.at_least(F, centered=bound.needs_center) <= PEERS


def train(rounds: int, seed: int, into: Path) -> None:
    """Train one peer of the run. Peer 0 writes the accuracy."""
    import gossip

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    data, x_test, y_test = digits()
    x, y = data.tensors
    model: nn.Module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loss_of = nn.CrossEntropyLoss()
    plain = model
    peer = gossip.init(reference=data)
    model, optimizer = peer.prepare(
        model, optimizer, judge=lambda batch: loss_of(plain(batch[0]), batch[1])
    )
    honest = PEERS - F
    shares = split("dirichlet:0.1", y, honest, 32, seed)
    mine = shares[peer.id] if peer.id < honest else torch.arange(len(y))
    draws = torch.Generator().manual_seed(1000 * seed + peer.id)
    for _ in peer.steps(rounds):
        chosen = mine[torch.randint(len(mine), (32,), generator=draws)]
        optimizer.zero_grad()
        loss_of(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
    if peer.id == 0:
        with torch.no_grad():
            right = (model(x_test).argmax(dim=1) == y_test).float().mean()
        into.write_text(json.dumps({"accuracy": round(100 * float(right), 2)}))


def measured(rule: str, trust: bool, options: argparse.Namespace) -> dict[str, Any]:
    """One run. Raises: Failed."""
    bound = load(rule)
    with scratch("gossip-sleepers-") as folder:
        result, run = folder / "result.json", folder / "run"
        command = [*GOSSIP, "run", "-n", str(PEERS), "-f", str(F), "--aggregator", rule]
        command += ["--topology", "full" if bound.needs_center else "rolling"]
        command += ["--trust" if trust else "--no-trust", "--seed", str(options.seed)]
        command += ["--fault", f"sleeper:8,9*{WAITS}", "--run-dir", str(run)]
        command += ["--reference", "256"] if bound.needs_trainer else []
        command += [str(Path(__file__).resolve()), "--as-peer", str(result)]
        command += ["--rounds", str(options.rounds), "--seed", str(options.seed)]
        run_all([(command, environment())], folder / "log")
        summary = json.loads((run / "summary.json").read_text())
        told = {key: summary[key] for key in ("quarantined", "rounds_lost", "exit_code")}
        events = (run / "events.jsonl").read_text().splitlines()
        return {**json.loads(result.read_text()), **told, "locked": locked_in(events)}


def locked_in(events: list[str]) -> list[tuple[int, int, int]]:
    """Each quarantine as peer 0 has it: who, and the rounds with which it began and ended; -1: the
    run ended before."""
    found: list[tuple[int, int, int]] = []
    for line in map(json.loads, events):
        if line.get("peer") != 0 or line["event"] not in ("quarantined", "parole"):
            continue
        subject, at = line["subject"], line["round"]
        if line["event"] == "quarantined":
            found.append((subject, at, -1))
        else:
            found = [(p, a, at if (p, b) == (subject, -1) else b) for p, a, b in found]
    return found


def table(lines: list[dict[str, Any]], seed: int) -> int:
    """Prints what was measured with one seed. Returns how many rules are out of bounds."""
    known = {(line["rule"], line["trust"]): line for line in lines if line["seed"] == seed}
    out = 0
    print("| rule | with trust | without | locked up | |\n|---|---|---|---|---|")
    for rule in sorted({rule for rule, _ in known}):
        pair = known.get((rule, True)), known.get((rule, False))
        if pair[0] is None or pair[1] is None:
            continue
        trust, without = pair[0]["accuracy"], pair[1]["accuracy"]
        fails = trust < without - FALLS or trust < HOLDS <= without
        out += fails
        locked = ", ".join(f"{p} ({a} to {b})" for p, a, b in pair[0]["locked"]) or "nobody"
        verdict = "**falls**" if fails else "holds"
        print(f"| `{rule}` | {trust:.1f} | {without:.1f} | {locked} | {verdict} |")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--into", type=Path, default=Path("runs/sleepers.jsonl"))
    parser.add_argument("--rules", nargs="+", help="all that claim f = 2, and nnm+trimmed_mean")
    parser.add_argument("--rounds", type=int, default=260)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="run nothing")
    parser.add_argument("--as-peer", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_peer is not None:
        train(options.rounds, options.seed, options.as_peer)
        return 0
    options.into.parent.mkdir(parents=True, exist_ok=True)
    options.into.touch()
    lines = [json.loads(line) for line in options.into.read_text().splitlines()]
    done = {(line["rule"], line["trust"], line["seed"], line["rounds"]) for line in lines}
    rules = options.rules or [*filter(claims, names()), "nnm+trimmed_mean"]
    for rule in () if options.show else rules:
        for trust in (True, False):
            key = {"rule": rule, "trust": trust, "seed": options.seed, "rounds": options.rounds}
            if tuple(key.values()) in done:
                continue
            try:
                line = {**key, **measured(rule, trust, options)}
            except Failed as failure:
                print(f"{rule}, trust {trust}: {failure}", file=sys.stderr)
                continue
            lines.append(line)
            with options.into.open("a") as out:
                out.write(json.dumps(line) + "\n")
    return table(lines, options.seed)


if __name__ == "__main__":
    sys.exit(main())
