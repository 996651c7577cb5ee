"""Two or three peers with ``--quorum available``: one is killed and comes back, and until it has a
state again others are killed, too. Do fresh random weights ever become the swarm's model?

    python benchmarks/few_peers.py                          # 20 runs of half a minute
    python benchmarks/few_peers.py --runs 3 --first 5

Each run has a seed, by which its peers, local steps and kills are drawn, as in
``tests/simulation/test_fresh_weights.py``. All peers tell the loss of the model behind each round.
It is far below that of fresh weights when the first is killed, so who has fresh weights shows.

Exit 1 when a peer told such a loss after the first kill, when a run has two beginnings, or when it
ended otherwise than well or by saying that its state is lost.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paced_train import FRESH
from storm import commits_of, end
from whole_runs import GOSSIP, HERE, conclude, environment, folder, parser, summary_of

from gossip.faults import FaultPlan, Restart
from gossip.run.telemetry import read_lines

SCRIPT = HERE / "paced_train.py"
WAVES_S = (6.0, 14.0)
AFTER_S = 8.0
START_S, END_S = 180.0, 90.0
STATE_LOST = 7
LOOKS_FRESH = 0.9 * FRESH
"""Nats. What the swarm has learnt when the first is killed is below; fresh weights are above."""


@dataclass(frozen=True)
class Drawn:
    """Run that is drawn from a seed."""

    seed: int
    peers: int
    local_steps: int
    set_up_s: float
    plan: FaultPlan


def drawn(seed: int) -> Drawn:
    lot = random.Random(f"few peers/{seed}")
    peers, set_up_s = lot.choice([2, 3]), lot.uniform(0.5, 2.0)
    faults = []
    for wave_s in WAVES_S[: lot.choice([1, 2])]:
        joiner, back_s = lot.randrange(peers), lot.uniform(0.1, 1.0)
        faults.append(Restart(joiner, None, round(back_s, 3), wave_s))
        spared = lot.random() < 0.5
        for peer in range(peers):
            if peer != joiner and not (spared and lot.random() < 0.7):
                at_s = wave_s + back_s + lot.uniform(0.0, set_up_s)
                faults.append(Restart(peer, None, round(lot.uniform(0.1, 3.0), 3), round(at_s, 3)))
    plan = FaultPlan(tuple(faults)).real().checked(peers)
    return Drawn(seed, peers, lot.choice([1, 5]), round(set_up_s, 3), plan)


@dataclass(frozen=True)
class Outcome:
    """Outcome of one run.

    Attributes:
        before: The last loss that was reported before the first kill.
        worst: The highest loss that was reported after it; None: no peer reported any.
        beginnings: Different results of the run's first round.
        restored: How often a peer restored the state of others.
    """

    seed: int
    peers: int
    local_steps: int
    exit_code: int
    rounds: int
    before: float
    worst: float | None
    beginnings: int
    restored: int
    kills: int

    @property
    def wrong(self) -> list[str]:
        found = []
        if not self.before < LOOKS_FRESH:
            found.append(f"says nothing: the loss was {self.before:.2f} before the first kill")
        if self.worst is not None and self.worst >= LOOKS_FRESH:
            found.append(f"fresh weights: a loss of {self.worst:.2f}")
        if self.beginnings != 1:
            found.append(f"{self.beginnings} beginnings")
        if self.exit_code not in (0, STATE_LOST):
            found.append(f"exit code {self.exit_code}")
        return found


def play(run: Path, one: Drawn) -> Outcome:
    """Raises: SystemExit: It did not begin, or not end in time."""
    plan, log = run.with_suffix(".toml"), run.with_suffix(".log")
    plan.write_text(one.plan.to_toml())
    command = [
        *[*GOSSIP, "run", "-n", str(one.peers), "--aggregator", "mean", "--quorum", "available"],
        *["--local-steps", str(one.local_steps), "--faults", str(plan), "--seed", str(one.seed)],
        *["--quiet", "--run-dir", str(run), str(SCRIPT), "--local-steps", str(one.local_steps)],
        *["--told-every", "1", "--batch", "32", "--lr", "0.003", "--pause", "0.02"],
        *["--set-up", str(one.set_up_s)],
    ]
    last_s = max(fault.at_s or 0.0 for fault in one.plan if isinstance(fault, Restart))
    with log.open("w") as out:
        launcher = subprocess.Popen(command, stdout=out, stderr=out, env=environment())
        try:
            _wait(launcher, START_S, lambda: bool(commits_of(run)))
            _wait(launcher, last_s + AFTER_S, lambda: False)
            if launcher.poll() is None:
                end(run)
            code = launcher.wait(END_S)
        finally:
            if launcher.poll() is None:
                launcher.terminate()
                launcher.wait(END_S)
    return _outcome(run, one, code)


def _wait(launcher: subprocess.Popen[bytes], within_s: float, what: Any) -> None:
    """Until it is so, the launcher has ended, or the time is up."""
    ends = time.monotonic() + within_s
    while not what() and launcher.poll() is None and time.monotonic() < ends:
        time.sleep(0.2)


def _outcome(run: Path, one: Drawn, code: int) -> Outcome:
    events = list(read_lines(run / "events.jsonl"))
    kills = [row["t"] for row in events if row.get("event") == "fault"]
    told = [
        json.loads(line)
        for file in run.glob("losses-*.jsonl")
        for line in file.read_text().splitlines()
        if line.endswith("}")  # a peer may be killed in the middle of one
    ]
    losses = sorted((row["t"], row["loss"]) for row in told if "loss" in row)
    first = min(kills, default=float("inf"))
    first_rounds = {
        row["chain"]
        for file in run.glob("peer-*/commits.jsonl")
        for row in read_lines(file)
        if row.get("round") == 0
    }
    return Outcome(
        seed=one.seed,
        peers=one.peers,
        local_steps=one.local_steps,
        exit_code=code,
        rounds=summary_of(run)["rounds"],
        before=next((loss for t, loss in reversed(losses) if t < first), FRESH),
        worst=max((loss for t, loss in losses if t > first), default=None),
        beginnings=len(first_rounds),
        restored=sum(row.get("event") == "restored" for row in events),
        kills=len(kills),
    )


def main() -> int:
    made = parser(__doc__, peers=3, seed="not used: each run has its own")
    made.add_argument("--runs", type=int, default=20)
    made.add_argument("--first", type=int, default=0, help="seed of the first run")
    options = made.parse_args()
    rows: list[Outcome] = []
    print("| seed | peers | H | kills | took over | rounds | loss before | worst after | end |")
    print("|---|---|---|---|---|---|---|---|---|")
    with folder(options.into) as into:
        for seed in range(options.first, options.first + options.runs):
            row = play(into / f"run-{seed}", drawn(seed))
            rows.append(row)
            worst = "-" if row.worst is None else f"{row.worst:.2f}"
            end = {0: "finished", STATE_LOST: "state lost"}.get(row.exit_code, str(row.exit_code))
            wrong = "".join(f" WRONG: {what}" for what in row.wrong)
            print(
                f"| {seed} | {row.peers} | {row.local_steps} | {row.kills} | {row.restored} | "
                f"{row.rounds} | {row.before:.2f} | {worst} | {end} |{wrong}",
                flush=True,
            )
    lost = sum(row.exit_code == STATE_LOST for row in rows)
    before = statistics.median(row.before for row in rows)
    print(
        f"{len(rows)} runs, {lost} lost their state; fresh weights have a loss above {FRESH:.2f}, "
        f"and {before:.2f} was the median before the first kill"
    )
    found = [f"seed {row.seed}: {what}" for row in rows for what in row.wrong]
    return conclude({"runs": [asdict(row) for row in rows], "wrong": found}, options.json, found)


if __name__ == "__main__":
    sys.exit(main())
