"""Membership, simulated: how fast swarms of 8 to 1,000 detect crashes, the traffic that this takes,
and whether any live peer is declared dead.

    python benchmarks/membership_scale.py all  # rain, pauses, scale, page: some hours of processor
                                               # time
    python benchmarks/membership_scale.py rain --node-seconds 1e6 --jobs 4
    python benchmarks/membership_scale.py scale --sizes 8 64 512

``rain``: swarms of 2 to 32 at 20 % loss, 20 % duplication and 100 ms of jitter; in some, members
pause and restart all along. No healthy peer may be declared dead. ``pauses``: some peers pause for
0.1 s to ten minutes, with and without loss; no other peer may be declared dead. ``scale``: a tenth
of the swarm crashes at once. ``page`` makes docs/results/membership_scale.json and .png of these
results. Every run is kept in --into and not run again, so all of it can be interrupted and resumed;
runs of other code (of the core, the simulator or the codec) do not count.

Exit codes: 0 all is well, 1 a live peer was declared dead or a swarm did not agree again, 130
Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cache
from hashlib import blake2b
from pathlib import Path
from statistics import median
from typing import Any

import gossip
import gossip_lab
from gossip_lab.cells import CellStore, Row, run_cells
from gossip_lab.simulation.campaign.false_deaths import (
    FalseDeathCounts,
    LossySwarm,
    Pause,
    pause,
    rain,
)
from gossip_lab.simulation.campaign.mass_crash import MassCrash, mass_crash
from gossip_lab.simulation.world.driver import SimulationStuck
from gossip_lab.simulation.world.membership_only import MemberCore, StallBlindCore

SIZES = (8, 16, 32, 64, 128, 256, 512, 1000)
# of the node-seconds; a large one costs more
RAIN_SHARES = {2: 0.03, 3: 0.12, 4: 0.17, 5: 0.15, 8: 0.42, 16: 0.08, 32: 0.03}
RAIN_RUN_S = 4000.0  # node-seconds in one run
PAUSES_S = (0.1, 0.15, 0.25, 0.35, 0.5, 0.8, 1.2, 2.0, 3.0, 5.0, 10.0)
LONG_PAUSES_S = (30.0, 120.0, 600.0)
COUNTS = ("suspect", "excused", "true deaths", "sent", "lost", "duplicated", "paused", "restarted")

World = LossySwarm | Pause | MassCrash


# --- what is run ----------------------------------------------------------------------------------


def rains(node_seconds: float) -> list[World]:
    """Return the lossy swarms. Every second one keeps the order of messages; every fourth one has
    sleepers, from 5 peers up."""
    worlds: list[World] = []
    for n, share in RAIN_SHARES.items():
        for seed in range(max(1, round(node_seconds * share / RAIN_RUN_S))):
            sleepers = n // 3 if n >= 5 and seed % 4 == 3 else 0
            worlds.append(
                LossySwarm(n, seed, RAIN_RUN_S, in_order=seed % 2 == 0, sleepers=sleepers)
            )
    return worlds


def pauses(seeds: int) -> list[World]:
    """Return pauses of one observer, half of the swarm, and all but one; with and without a report
    of the driver; with and without loss."""
    worlds: list[World] = []
    for pause_s in (*PAUSES_S, *LONG_PAUSES_S):
        long = pause_s in LONG_PAUSES_S
        for n in (3, 8) if long else (3, 5, 8, 16):
            for observers in sorted({1, n - 1} if long else {1, n // 2, n - 1}):
                for core in (MemberCore, StallBlindCore):
                    for loss, deaf in ((0.0, False), (0.2, False), (0.2, True)):
                        for seed in range(1 if long else seeds):
                            worlds.append(Pause(n, seed, pause_s, observers, loss, deaf, core))
    return worlds


def crashes(sizes: Iterable[int], seeds: int) -> list[World]:
    return [
        MassCrash(n, seed, connections_close)
        for n in sorted(sizes)
        for seed in range(seeds if n <= 128 else max(1, seeds // 2) if n <= 256 else 1)
        for connections_close in (True, False)
    ]


def facts_of(world: World) -> Row:
    """Return the world as plain data, with the code that it is run by."""
    facts = asdict(world)
    if "core" in facts:
        facts["core"] = facts["core"].__name__
    return {**facts, "code": code()}


@cache
def code() -> str:
    """Return the digest of all source that a run depends on: results of other code do not count."""
    package, lab = Path(gossip.__file__).parent, Path(gossip_lab.__file__).parent
    state = blake2b(digest_size=8)
    for root, path in [
        *((package, path) for path in sorted((package / "core").rglob("*.py"))),
        *((lab, path) for path in sorted((lab / "simulation").rglob("*.py"))),
        *((package, path) for path in codec_of(package)),
    ]:
        state.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return state.hexdigest()


def codec_of(package: Path) -> list[Path]:
    return [package / "transport" / name for name in ("chunks.py", "codec.py")]


def play(world: World) -> Row:
    """Play one run, in a worker, and return its settings and results."""
    row: Row = {"world": facts_of(world)}
    try:
        row |= (
            asdict(mass_crash(world))
            if isinstance(world, MassCrash)
            else build_row(rain(world) if isinstance(world, LossySwarm) else pause(world))
        )
    except SimulationStuck as stuck:
        row["stuck"] = str(stuck)
    return row


def build_row(seen: FalseDeathCounts) -> Row:
    counts = {what: seen.counts[what] for what in COUNTS}
    return {
        "node_seconds": seen.node_seconds,
        "false_deaths": [asdict(death) for death in seen.false_deaths],
        "counts": counts,
    }


# --- running it -----------------------------------------------------------------------------------


def store_of(kind: str, options: argparse.Namespace) -> CellStore[World, Row]:
    return CellStore(options.into / kind, facts_of)


def wrong(row: Row) -> bool:
    return "stuck" in row or bool(row["false_deaths"])


def run_all(kind: str, worlds: list[World], options: argparse.Namespace) -> int:
    """Run what is not in ``--into`` yet, and print what is wrong. Returns the exit code."""
    rows = list(run_cells(worlds, play, store_of(kind, options), options.jobs).values())
    bad = [row for row in rows if wrong(row)]
    for row in bad:
        print(f"{kind} {row['world']}: {row.get('stuck') or row['false_deaths']}")
    facts: Row = {"experiment": kind, "runs": len(rows), "bad": len(bad)}
    if kind != "scale":
        facts["node_seconds"] = round(sum(row.get("node_seconds", 0.0) for row in rows))
    print(json.dumps(facts), flush=True)
    return int(bool(bad) or not rows)


def run_rain(options: argparse.Namespace) -> int:
    return run_all("rain", rains(options.node_seconds), options)


def run_pauses(options: argparse.Namespace) -> int:
    return run_all("pauses", pauses(options.pause_seeds), options)


def run_scale(options: argparse.Namespace) -> int:
    return run_all("scale", crashes(options.sizes, options.seeds), options)


# --- the page -------------------------------------------------------------------------------------


def summed(rows: list[Row], *keys: str) -> list[Row]:
    """Return the sums of rows with the same ``keys`` of their worlds."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row["world"][key] for key in keys)].append(row)
    sums = []
    for group, members in sorted(groups.items()):
        counts: Counter[str] = Counter()
        for row in members:
            counts.update(row.get("counts", {}))
        facts = dict(zip(keys, group, strict=True)) | {
            "runs": len(members),
            "stuck": sum("stuck" in row for row in members),
        }
        facts["node_seconds"] = round(sum(row.get("node_seconds", 0.0) for row in members))
        facts["false_deaths"] = sum(len(row.get("false_deaths", ())) for row in members)
        sums.append(facts | dict(counts))
    return sums


def run_page(options: argparse.Namespace) -> int:
    """Write the page of the rows in ``--into``."""
    rain_rows, pause_rows, crash_rows = (
        [row for row in store_of(kind, options).rows() if row["world"]["code"] == code()]
        for kind in ("rain", "pauses", "scale")
    )
    if not crash_rows:
        print(f"{options.into / 'scale'} has no run of this code: run `scale` first")
        return 1
    report = {
        "schema": "gossip.membership_scale/2",
        "code": code(),
        "rain": summed(rain_rows, "n", "in_order", "sleepers"),
        "pauses": summed(pause_rows, "pause_s", "loss", "deaf"),
        "scale": sorted(
            crash_rows,
            key=lambda row: (
                row["world"]["n"],
                row["world"]["connections_close"],
                row["world"]["seed"],
            ),
        ),
    }
    text = "{\n" + ",\n".join(f'"{key}": {lines(value)}' for key, value in report.items()) + "\n}\n"
    options.write.with_suffix(".json").write_text(text)
    draw([row for row in crash_rows if "stuck" not in row], options.write.with_suffix(".png"))
    print(f"wrote {options.write.with_suffix('.json')} and {options.write.with_suffix('.png')}")
    return 0


def lines(value: Any) -> str:
    """Return JSON with one row a line."""
    return (
        json.dumps(value)
        if isinstance(value, str)
        else "[\n" + ",\n".join(json.dumps(row) for row in value) + "\n]"
    )


def draw(rows: list[Row], picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import NullLocator, ScalarFormatter

    ink, blue, red, grey = "#1a1a1a", "#1f5fbf", "#c23b22", "#8a8a8a"
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.4), dpi=150)
    sizes = sorted({row["world"]["n"] for row in rows})

    def curve(
        axes: Any,
        close: bool | None,
        what: Callable[[Row], float],
        **look: Any,
    ) -> None:
        chosen = [
            row for row in rows if close is None or row["world"]["connections_close"] == close
        ]
        points = [(n, [what(row) for row in chosen if row["world"]["n"] == n]) for n in sizes]
        points = [(n, values) for n, values in points if values]
        xs, ys = [n for n, _ in points], [median(values) for _, values in points]
        axes.plot(xs, ys, marker="o", markersize=3, **look)
        axes.fill_between(
            xs,
            [min(v) for _, v in points],
            [max(v) for _, v in points],
            color=look["color"],
            alpha=0.12,
            linewidth=0,
        )

    curve(
        left,
        False,
        lambda row: row["known_all_s"],
        color=red,
        linestyle="-",
        label="silent: everybody knows of every death",
    )
    curve(
        left,
        False,
        lambda row: row["known_median_s"],
        color=red,
        linestyle="--",
        label="silent: median survivor knows",
    )
    curve(
        left,
        False,
        lambda row: row["suspected_median_s"],
        color=red,
        linestyle=":",
        label="silent: first suspicion",
    )
    curve(
        left,
        True,
        lambda row: row["known_all_s"],
        color=blue,
        linestyle="-",
        label="connections close: everybody knows",
    )
    curve(
        left,
        True,
        lambda row: row["known_median_s"],
        color=blue,
        linestyle="--",
        label="connections close: median survivor knows",
    )
    left.set(
        xlabel="peers", ylabel="seconds after a tenth of them crashed", xscale="log", ylim=(0, None)
    )
    curve(
        right,
        False,
        lambda row: row["crash_bytes_per_peer_s"] / 1000,
        color=red,
        linestyle="-",
        label="silent crash, until all is known",
    )
    curve(
        right,
        True,
        lambda row: row["crash_bytes_per_peer_s"] / 1000,
        color=blue,
        linestyle="-",
        label="connections close, until all is known",
    )
    curve(
        right,
        None,
        lambda row: row["calm_bytes_per_peer_s"] / 1000,
        color=ink,
        linestyle="-",
        label="nothing happens",
    )
    curve(
        right,
        None,
        lambda row: row["calm_table_bytes_per_peer_s"] / 1000,
        color=grey,
        linestyle="--",
        label="of that, tables",
    )
    right.set(xlabel="peers", ylabel="kB sent by a peer in a second", xscale="log", yscale="log")
    for axes in (left, right):
        axes.set_xticks(sizes)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_locator(NullLocator())
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(picture)
    pyplot.close(figure)


def run_everything(options: argparse.Namespace) -> int:
    return max([act(options) for act in (run_rain, run_pauses, run_scale, run_page)])


ACTS = {
    "rain": run_rain,
    "pauses": run_pauses,
    "scale": run_scale,
    "page": run_page,
    "all": run_everything,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=tuple(ACTS))
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count(),
        help="processes; a run of 1,000 peers takes 3 GB",
    )
    parser.add_argument(
        "--into", type=Path, default=Path("runs/membership"), help="folder of the runs made so far"
    )
    parser.add_argument(
        "--write",
        type=Path,
        default=Path("docs/results/membership_scale"),
        help="page: where .json and .png go",
    )
    parser.add_argument(
        "--node-seconds", type=float, default=1e6, help="rain: peers times virtual seconds"
    )
    parser.add_argument("--pause-seeds", type=int, default=3, help="pauses: runs of each kind")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="scale: peers")
    parser.add_argument(
        "--seeds",
        type=int,
        default=6,
        help="scale: runs up to 128 peers; half as many of 256, one above",
    )
    options = parser.parse_args()
    try:
        code: int = ACTS[options.what](options)
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on from {options.into}", file=sys.stderr)
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
