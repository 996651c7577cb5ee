"""Processor time of one look of ``gossip top`` at a run that goes on.

A folder as a run with many peers leaves it is made up; between two looks it grows by what such
swarms write down in a second: of each peer a row of a round, and of some what they use.

    python benchmarks/top.py --peers 200 --rounds-per-look 1
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from gossip.config import RunConfig
from gossip.launch.report.live_frame import Size
from gossip.launch.report.top import TopView

USAGE_EVERY = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, default=200)
    parser.add_argument("--looks", type=int, default=50)
    parser.add_argument("--rounds-per-look", type=int, default=1)
    parser.add_argument("--size", default="80x40")
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))
    with tempfile.TemporaryDirectory() as name:
        run = MadeUpRun(Path(name), options.peers)
        run.begin()
        run.rounds(20)
        view = TopView(run.folder)
        size = Size(width, height)
        view.render_lines(size)
        spent = []
        for _ in range(options.looks):
            run.rounds(options.rounds_per_look)
            before = time.process_time()
            view.render_lines(size)
            spent.append(1000 * (time.process_time() - before))
    spent.sort()
    print(
        f"{options.peers} peers, {options.rounds_per_look} round(s) between two looks, "
        f"{options.size}: median {statistics.median(spent):.1f} ms of processor time, "
        f"95th percentile {spent[int(0.95 * len(spent))]:.1f} ms, most {spent[-1]:.1f} ms"
    )


class MadeUpRun:
    """Files as those of a real run; one peer in ten is slow, and one in twenty suspected."""

    def __init__(self, folder: Path, peers: int) -> None:
        self.folder, self.peers = folder, peers
        self._round, self._at = 0, time.time() - 100.0
        self._draw = random.Random(0)

    def begin(self) -> None:
        config = RunConfig(name="made-up", run="0" * 16, peers=self.peers, f=1)
        (self.folder / "config.json").write_text(config.model_dump_json())
        (self.folder / "peer-0").mkdir()
        (self.folder / "launchers").mkdir()
        self._events(*({"peer": p, "event": "spawned", "incarnation": 0} for p in self._all))
        self._events(*({"peer": p, "event": "started", "incarnation": 0} for p in self._all))
        self._events(*({"peer": p, "event": "ready"} for p in self._all))
        for peer in range(0, self.peers, 20):
            why = {"trust": 0.3, "reasons": ["9 of the last 20 updates stood out"]}
            self._events({"peer": 1, "event": "suspected", "subject": peer, "round": 3, **why})

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self._one()

    @property
    def _all(self) -> range:
        return range(self.peers)

    def _one(self) -> None:
        late = [peer for peer in self._all if peer % 10 == 7]
        there = [peer for peer in self._all if peer % 10 != 7]
        took = [self._draw.randrange(30_000, 40_000) for _ in there]
        trust = {str(peer): round(self._draw.random(), 3) for peer in self._all}
        row: dict[str, Any] = {
            "round": self._round,
            "step": self._round + 1,
            "loss": 1.0,
            "server": there[0],
        }
        row |= {"attempt": 0, "contributors": there, "took_us": took, "alive": self.peers}
        missing: dict[str, Any] = {
            "round": self._round,
            "shard": 0,
            "missing": late,
            "waited_s": 0.05,
        }
        self._events({"peer": there[0], "event": "late", **missing})
        self._events(
            *({"peer": peer, "event": "round", **row, "trust": trust} for peer in self._all)
        )
        use: dict[str, Any] = {"cpu_s": 1.0 * self._round, "memory": 5 << 28, "load": 1.0}
        use |= {"sent_bytes": 1 << 20, "received_bytes": 1 << 20}
        some = self._all[self._round % USAGE_EVERY :: USAGE_EVERY]
        self._events(*({"peer": peer, "event": "usage", **use} for peer in some))
        given = [
            {"peer": p, "samples": 32, "weight": 1 / len(there), "outlyingness": 1.0, "took_us": us}
            for p, us in zip(there, took, strict=True)
        ]
        commit: dict[str, Any] = {
            "round": self._round,
            "shard": 0,
            "server": there[0],
            "made_at": 0,
        }
        commit |= {"contributors": given, "roster": list(self._all), "trust": trust, "loss": 1.0}
        commit |= {"slices": {str(peer): [[32 * peer, 32 * peer + 32]] for peer in self._all}}
        self._write("peer-0/commits.jsonl", commit)
        self._round, self._at = self._round + 1, self._at + 1.0

    def _events(self, *rows: dict[str, Any]) -> None:
        self._write("events.jsonl", *rows)

    def _write(self, name: str, *rows: dict[str, Any]) -> None:
        stamp = {"t": self._at, "wall": self._at}
        lines = [json.dumps({**stamp, **row}, separators=(",", ":")) + "\n" for row in rows]
        with (self.folder / name).open("a") as file:
            file.writelines(lines)


if __name__ == "__main__":
    main()
