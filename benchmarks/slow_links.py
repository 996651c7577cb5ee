"""Four hosts behind slow links: the share of the time that they compute, with and without local
steps, compared with a formula.

    sudo python benchmarks/slow_links.py --json links.json        # 20 runs, some twenty minutes
    sudo python benchmarks/slow_links.py --mbit 10 --only 'H=30 int8'

Hosts are network namespaces of this machine (root, and ip and tc of iproute2), with one peer each;
tc narrows each cable both ways. The model has a million parameters, and a step mostly sleeps, so
that few cores suffice. The share is that of the steps in the commits, times what a step takes, of
the time between two commits. Predicted is

    H c / (H c + (n - 1) (update + result) / link)

where c is the time of a step, and update and result are the bytes of the longest shard. Its server
receives the updates of the n - 1 others, and then sends each of them its result. Other shards have
other servers at the same time. Nothing in it is measured but c.

Exit 1 if a run does not end well, or a peer was declared dead.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paced_train import model_of
from whole_runs import HERE, conclude, environment, folder, parser

from gossip.run.telemetry import read_lines
from gossip.vectors import WireFormat, load_encoding, shard_sizes

sys.path.append(str(HERE.parent / "tests"))  # hosts of namespaces are those of the tests

import zygote
from hosts import Hosts, hosts, why_no_hosts

HIDDEN, LAYERS, BATCH = 350, 8, 8
FRAGMENTS = 3
START_S, END_S = 300.0, 120.0
SETTLED = 2
"""Commits that are not counted: the start."""
ROUNDS_MIN = 2


@dataclass(frozen=True)
class Setting:
    """Settings of the exchange between peers."""

    local_steps: int
    encoding: str
    fragments: int = 1

    @property
    def name(self) -> str:
        cut = f", {self.fragments} fragments" if self.fragments > 1 else ""
        return f"H={self.local_steps} {self.encoding}{cut}"

    @property
    def steps(self) -> int:
        """Steps between two rounds."""
        return self.local_steps // self.fragments


SETTINGS = (
    Setting(1, "float32"),
    Setting(1, "int8"),
    Setting(30, "float32"),
    Setting(30, "int8"),
    Setting(30, "int4", FRAGMENTS),
)


@dataclass(frozen=True)
class Row:
    """Figures of one run. ``round_s``: the median time between two commits."""

    mbit: int
    setting: str
    rounds: int
    step_s: float
    round_s: float
    share: float
    predicted: float
    dead: int
    lacking: int  # updates that commits lack
    exit_code: int


def predicted(setting: Setting, mbit: int, peers: int, step_s: float) -> float:
    """Return the predicted share of the time that is spent computing."""
    elements = -(-_elements() // setting.fragments)
    sizes = shard_sizes(elements, peers, False)
    wire = WireFormat(load_encoding(setting.encoding), 0, sizes, elements, peers)
    nbytes = max(a + b for a, b in zip(wire.update_bytes, wire.result_bytes, strict=True))
    compute_s = setting.steps * step_s
    return compute_s / (compute_s + (peers - 1) * nbytes * 8 / (mbit * 1e6))


def _elements() -> int:
    return sum(parameter.numel() for parameter in model_of(HIDDEN, LAYERS).parameters())


def play(run: Path, on: Hosts, mbit: int, setting: Setting, options: argparse.Namespace) -> Row:
    """Play a run. Raises: SystemExit: The run did not begin, or not end in time."""
    command = [sys.executable, str(HERE / "paced_train.py")]
    command += ["--local-steps", str(setting.steps), "--pause", str(options.pause)]
    command += ["--hidden", str(HIDDEN), "--layers", str(LAYERS), "--batch", str(BATCH)]
    peers = len(on.names)
    settings = {
        "WORLD_SIZE": str(peers),
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": on.addresses[0],
        "MASTER_PORT": "29500",
        "GOSSIP_RUN_DIR": str(run),
        "GOSSIP_AGGREGATOR": "mean",
        "GOSSIP_F": "0",  # as the mean tolerates none: so no peer rejects results
        "GOSSIP_INSECURE": "true",
        "GOSSIP_LOCAL_STEPS": str(setting.local_steps),
        "GOSSIP_FRAGMENTS": str(setting.fragments),
        "GOSSIP_ENCODING": setting.encoding,
    }
    started: list[subprocess.Popen[bytes]] = []
    with run.with_suffix(".log").open("w") as out:
        try:
            for rank, address in enumerate(on.addresses):
                place = {"RANK": str(rank), "GOSSIP_LISTEN": address, **on.on(rank)}
                env = environment(**settings, **place)
                started.append(
                    zygote.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)
                )
            _wait(started, START_S, lambda: len(commits_of(run)) > SETTLED)
            began = time.monotonic()
            _wait(
                started,
                START_S,
                lambda: (
                    time.monotonic() - began > options.seconds
                    and len(commits_of(run)) > SETTLED + ROUNDS_MIN
                ),
            )
            end(run)
            codes = [process.wait(END_S) for process in started]
        finally:
            for process in started:
                if process.poll() is None:
                    process.terminate()
                    process.wait(END_S)
    return _row(run, mbit, setting, max(codes), peers)


def commits_of(run: Path) -> list[dict[str, Any]]:
    """Return one commit a round, ascending, of all peers: each host has a folder of its own peer's
    commits."""
    found: dict[int, dict[str, Any]] = {}
    for file in run.glob("peer-*/commits.jsonl"):
        found.update({row["round"]: row for row in read_lines(file) if "round" in row})
    return [found[number] for number in sorted(found)]


def end(run: Path) -> None:
    """Let the peers end after a round that none of them has reached yet."""
    (run / "until.new").write_text(str(commits_of(run)[-1]["round"] + 3))
    (run / "until.new").rename(run / "until")


def _wait(started: Sequence[subprocess.Popen[bytes]], within_s: float, what: Any) -> None:
    """Wait until the condition holds, a peer has ended, or the time is up."""
    ends = time.monotonic() + within_s
    while (
        not what()
        and all(process.poll() is None for process in started)
        and time.monotonic() < ends
    ):
        time.sleep(0.5)


def _row(run: Path, mbit: int, setting: Setting, code: int, peers: int) -> Row:
    # the last ones were made while peers left
    rows = commits_of(run)[SETTLED:-1]
    computed = [json.loads(file.read_text()) for file in run.glob("computed-*.json")]
    step_s = sum(peer["computed_s"] for peer in computed) / sum(peer["steps"] for peer in computed)
    used = [sum(each["samples"] for each in row["contributors"]) for row in rows[1:]]
    lasted_s = rows[-1]["t"] - rows[0]["t"]
    over_at = rows[-1]["t"]
    gaps = [after["t"] - before["t"] for before, after in itertools.pairwise(rows)]
    return Row(
        mbit=mbit,
        setting=setting.name,
        rounds=len(rows) - 1,
        step_s=step_s,
        round_s=statistics.median(gaps),
        share=sum(used) / BATCH / peers * step_s / lasted_s,
        predicted=predicted(setting, mbit, peers, step_s),
        dead=sum(
            row.get("event") == "dead" and row["t"] < over_at
            for file in run.glob("peer-*/events.jsonl")
            for row in read_lines(file)
        ),
        lacking=sum(peers - len(row["contributors"]) for row in rows),
        exit_code=code,
    )


def main() -> int:
    made = parser(__doc__, peers=4, seed="not used")
    made.add_argument("--mbit", type=int, nargs="+", default=[10, 50, 200, 1000])
    made.add_argument("--pause", type=float, default=0.1, help="seconds that a step sleeps")
    made.add_argument("--seconds", type=float, default=15.0, help="of a run, at least")
    made.add_argument("--only", help="of the settings those whose name has this in it")
    options = made.parse_args()
    if why := why_no_hosts():
        made.error(why)
    rows: list[Row] = []
    print("| Mbit/s | setting | rounds | s a round | computing | predicted | ratio | lacking |")
    print("|---|---|---|---|---|---|---|---|")
    with folder(options.into) as into, hosts(options.peers) as on:
        for mbit in options.mbit:
            for number in range(options.peers):
                on.narrow(number, mbit)
            for at, setting in enumerate(SETTINGS):
                if options.only and options.only not in setting.name:
                    continue
                row = play(into / f"links-{mbit}-{at}", on, mbit, setting, options)
                rows.append(row)
                wrong = f" WRONG: exit code {row.exit_code}" if row.exit_code else ""
                wrong += f" WRONG: {row.dead} times held for dead" if row.dead else ""
                print(
                    f"| {mbit} | {row.setting} | {row.rounds} | {row.round_s:.2f} | "
                    f"{row.share:.1%} | {row.predicted:.1%} | {row.share / row.predicted:.2f} | "
                    f"{row.lacking} |{wrong}",
                    flush=True,
                )
    numbers = {"rows": [asdict(row) for row in rows]}
    return conclude(numbers, options.json, any(row.exit_code or row.dead for row in rows))


if __name__ == "__main__":
    sys.exit(main())
