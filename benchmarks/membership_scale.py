"""Membership in large swarms, simulated: how fast crashes are known, what it costs, and whether anybody dies who lives.

    python benchmarks/membership_scale.py scale --json docs/membership_scale.json --plot docs/membership_scale.png
    python benchmarks/membership_scale.py healthy --node-seconds 1e6 --jobs 4
    python benchmarks/membership_scale.py pauses

``scale`` crashes a tenth of n peers at once, with and without the kernel closing their connections. ``healthy`` runs swarms of 8
at 20 % loss, 20 % duplication and 100 ms jitter for so many node-seconds, in which nobody may be declared dead. ``pauses`` stops
one peer for 50 ms to ten minutes, after which that peer may not have declared anybody dead. The last two exit with 1 when it
happened all the same.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from gossip.core import events
from gossip.core.events import Effect, Event
from gossip.core.members import Change
from gossip.core.messages import Envelope, PeerId
from gossip.sim.driver import Swarm
from gossip.sim.membership_only import MemberCore, all_fine, member_swarm
from gossip.sim.network import LinkModel, Network
from gossip.transport.codec import encode

SIZES = (8, 16, 32, 64, 128, 256, 512, 1000)
SETTLE_S, CALM_S, LIMIT_S = 2.0, 5.0, 60.0
NODE_SECONDS_A_RUN = 4000.0
PAUSES_S = (0.05, 0.15, 0.25, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 120.0, 600.0)


class Meter(MemberCore):
    """Adds up what it sends: encoded messages, without the framing of ZeroMQ and TCP."""

    on = False
    sent_bytes = 0
    sent_messages = 0

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects = super().handle(event, now)
        if Meter.on:
            for effect in effects:
                if isinstance(effect, events.Send):
                    Meter.sent_messages += 1
                    Meter.sent_bytes += len(encode(Envelope(b"\0" * 8, self.peer, 0, effect.message)))
        return effects

    @staticmethod
    def read(peers: int, seconds: float) -> tuple[float, float]:
        """Bytes and messages a peer and second since the last time."""
        found = Meter.sent_bytes / peers / seconds, Meter.sent_messages / peers / seconds
        Meter.sent_bytes = Meter.sent_messages = 0
        return found


@dataclass(frozen=True, slots=True)
class Row:
    """One crash of a tenth. Times are seconds after it, over all pairs of a survivor and a victim."""

    n: int
    victims: int
    seed: int
    connections_close: bool
    suspected_first_s: float
    dead_median_s: float
    dead_last_s: float  # everybody knows every victim
    false_deaths: int
    calm_bytes_per_peer_s: float
    calm_messages_per_peer_s: float
    crash_bytes_per_peer_s: float
    wall_s: float


class Deaths:
    """When each survivor heard of each victim's death, and whoever else was called dead."""

    def __init__(self, victims: tuple[PeerId, ...]) -> None:
        self.victims = dict.fromkeys(victims)
        self.dead: dict[tuple[PeerId, PeerId], float] = {}
        self.suspected_first = math.inf
        self.false = 0

    def listen(self, now: float, by: PeerId, change: Change) -> None:
        if change.peer not in self.victims:
            self.false += change.what == "dead"
        elif by in self.victims:
            return
        elif change.what == "dead":
            self.dead.setdefault((by, change.peer), now)
        elif change.what == "suspect":
            self.suspected_first = min(self.suspected_first, now)


def started(n: int, seed: int, connections_close: bool, deaths: Deaths) -> Swarm[MemberCore]:
    """A swarm in which everybody has met everybody, and nobody has anything left to tell."""
    from gossip.core.timers import Timers

    network = Network() if connections_close else Network(closing_s=(1e6, 1e6), heartbeat_s=None)
    swarm: Swarm[MemberCore] = Swarm(
        lambda peer, life: Meter(peer, life, n, seed, Timers(), deaths.listen), n, seed, network, encoded=False
    )
    while swarm.now < SETTLE_S or any(len(host.core.membership.rumours) for host in swarm.hosts.values()):
        swarm.run_for(0.5)
    for host in swarm.hosts.values():
        assert len(host.core.membership.alive()) == n, f"after {swarm.now} s peer {host.peer} does not know everybody"
    return swarm


def crash_a_tenth(n: int, seed: int, connections_close: bool) -> Row:
    began = time.perf_counter()
    victims = tuple(range(0, n, 10))
    deaths = Deaths(victims)
    swarm = started(n, seed, connections_close, deaths)
    Meter.on = True
    Meter.read(1, 1.0)
    swarm.run_for(CALM_S)
    calm_bytes, calm_messages = Meter.read(n, CALM_S)
    crashed_at = swarm.now
    for victim in victims:
        swarm.crash(victim)
    survivors = n - len(victims)
    while len(deaths.dead) < survivors * len(victims) and swarm.now < crashed_at + LIMIT_S:
        swarm.run_for(0.1)
    crash_bytes, _ = Meter.read(survivors, swarm.now - crashed_at)
    Meter.on = False
    swarm.run_for(2.0)  # whoever is wrongly accused in the turmoil shall have had the time to die of it
    assert len(deaths.dead) == survivors * len(victims), f"n={n}: {len(deaths.dead)} of the deaths were heard of"
    times = [at - crashed_at for at in deaths.dead.values()]
    return Row(
        n,
        len(victims),
        seed,
        connections_close,
        deaths.suspected_first - crashed_at,
        median(times),
        max(times),
        deaths.false,
        calm_bytes,
        calm_messages,
        crash_bytes,
        time.perf_counter() - began,
    )


def scale(options: argparse.Namespace) -> int:
    rows: list[Row] = []
    if options.json is not None and options.json.exists() and options.resume:
        rows = [Row(**row) for row in json.loads(options.json.read_text())["rows"]]
    for n in options.sizes:
        for seed in range(options.seeds if n <= 256 else 1):
            for connections_close in (True, False):
                if any((row.n, row.seed, row.connections_close) == (n, seed, connections_close) for row in rows):
                    continue
                rows.append(crash_a_tenth(n, seed, connections_close))
                print(rows[-1], flush=True)
                if options.json is not None:
                    options.json.write_text(json.dumps({"rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    if options.plot is not None:
        draw(rows, options.plot)
    return int(any(row.false_deaths for row in rows))


def draw(rows: list[Row], picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import NullLocator, ScalarFormatter

    ink, blue, red = "#1a1a1a", "#1f5fbf", "#c23b22"
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), dpi=150)
    sizes = sorted({row.n for row in rows})

    def curve(axes: Any, close: bool, what: Callable[[Row], float], colour: str, style: str, label: str) -> None:
        points = [(n, [what(row) for row in rows if row.n == n and row.connections_close == close]) for n in sizes]
        points = [(n, values) for n, values in points if values]
        axes.plot(
            [n for n, _ in points], [median(v) for _, v in points], style, color=colour, label=label, marker="o", markersize=3
        )

    curve(left, True, lambda row: row.dead_median_s, blue, "-", "known dead, median; connections close")
    curve(left, True, lambda row: row.dead_last_s, blue, "--", "known to everybody; connections close")
    curve(left, False, lambda row: row.dead_median_s, red, "-", "known dead, median; silent")
    curve(left, False, lambda row: row.dead_last_s, red, "--", "known to everybody; silent")
    left.set(xlabel="peers", ylabel="seconds after a tenth of them crashed", xscale="log", ylim=(0, None))
    curve(right, True, lambda row: row.calm_bytes_per_peer_s / 1000, ink, "-", "nothing happens")
    curve(right, True, lambda row: row.crash_bytes_per_peer_s / 1000, blue, "-", "until all is known; connections close")
    curve(right, False, lambda row: row.crash_bytes_per_peer_s / 1000, red, "-", "until all is known; silent")
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


# --- nobody dies who lives ------------------------------------------------------------------------------------------------


def healthy_run(seed: int) -> Counter[str]:
    """One swarm of 8 in the rain."""
    seen: Counter[str] = Counter()

    def listen(now: float, by: PeerId, change: Change) -> None:
        seen[change.what] += 1

    n = 8
    network = Network(LinkModel(delay_s=(0.0, 0.1), loss=0.2, duplicate=0.2))
    swarm = member_swarm(n, seed, network, encoded=False, listen=listen)
    swarm.run_for(NODE_SECONDS_A_RUN / n)
    seen.update(swarm.counts)
    seen["node_seconds"] = int(NODE_SECONDS_A_RUN)
    seen[f"seed {seed} dead"] = seen["dead"]
    return seen


def healthy(options: argparse.Namespace) -> int:
    runs = math.ceil(options.node_seconds / NODE_SECONDS_A_RUN)
    total: Counter[str] = Counter()
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for number, seen in enumerate(pool.imap_unordered(healthy_run, range(options.first, options.first + runs)), 1):
            total.update(seen)
            print(f"{number}/{runs}: {total['node_seconds']} node-seconds, {total['dead']} dead", file=sys.stderr, flush=True)
    facts = {key: total[key] for key in ("node_seconds", "dead", "suspect", "sent", "lost", "duplicated", "delivered")}
    facts["loss"] = round(total["lost"] / total["sent"], 4)
    facts["duplication"] = round(total["duplicated"] / total["sent"], 4)
    facts["died_in"] = sorted(key for key, count in total.items() if key.startswith("seed") and count)
    print(json.dumps(facts))
    return int(total["dead"] > 0)


def pauses(options: argparse.Namespace) -> int:
    """Who pauses may be taken for dead, and rightly; it must not take others for dead."""
    guilty = 0
    for pause_s in PAUSES_S:
        others_killed = own_deaths = 0
        for seed in range(options.seeds):
            n = (3, 5, 8, 16)[seed % 4]
            swarm = member_swarm(n, seed)
            swarm.run_until(lambda swarm=swarm: all_fine(swarm), 5.0)
            swarm.run_for(0.31 * seed)
            swarm.pause_for(1, pause_s)
            swarm.run_for(pause_s + 0.01)
            swarm.run_until(lambda swarm=swarm: all_fine(swarm), 10.0)
            swarm.run_for(3.0)
            dead = [
                (peer, change.peer) for peer, core in swarm.cores.items() for _, change in core.changes if change.what == "dead"
            ]
            others_killed += sum(1 for _, subject in dead if subject != 1)
            own_deaths += sum(1 for _, subject in dead if subject == 1)
        guilty += others_killed
        taken = f"the paused taken for dead {own_deaths} times"
        print(f"pause {pause_s:7.2f} s, {options.seeds} swarms: others killed {others_killed}, {taken}")
    return int(guilty > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for_scale = commands.add_parser("scale")
    for_scale.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    for_scale.add_argument("--seeds", type=int, default=3, help="runs of each size, one above 256 peers")
    for_scale.add_argument("--json", type=Path, help="file for the numbers")
    for_scale.add_argument("--plot", type=Path, help="file for the picture")
    for_scale.add_argument("--resume", action="store_true", help="keep the rows that --json has already")
    for_scale.set_defaults(act=scale)
    for_healthy = commands.add_parser("healthy")
    for_healthy.add_argument("--node-seconds", type=float, default=1e6)
    for_healthy.add_argument("--jobs", type=int, default=os.cpu_count())
    for_healthy.add_argument("--first", type=int, default=0, help="first seed")
    for_healthy.set_defaults(act=healthy)
    for_pauses = commands.add_parser("pauses")
    for_pauses.add_argument("--seeds", type=int, default=12)
    for_pauses.set_defaults(act=pauses)
    options = parser.parse_args()
    code: int = options.act(options)
    return code


if __name__ == "__main__":
    sys.exit(main())
