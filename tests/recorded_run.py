"""The folder of a run as its launcher and its peers leave it, small and with known times: for tests
of what reads such folders. That real runs write such rows, ``tests/integration`` shows.

Four peers make 40 rounds, ten a second. Peer 3 lies, and is suspected and quarantined. Peer 2 is
slow: its update is late from round 10 on. Peer 1 is killed in round 20, and back in round 30.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gossip.config import RunConfig

ROUNDS = 40
BEGAN = 1_700_000_000.0
ROUND_S = 0.1
TOOK_S = {0: 0.03, 1: 0.03, 2: 0.09, 3: 0.03}
LATE_FROM, KILLED_AT, BACK_AT = 10, 20, 30
SUSPECTED_AT, QUARANTINED_AT = 6, 15


class RecordedRun:
    """Writes it.

    Args:
        folder: Is made.
        began: Seconds since 1970.
    """

    def __init__(self, folder: Path, began: float = BEGAN, name: str = "digits-0a1b") -> None:
        self.folder, self.began = folder, began
        folder.mkdir(parents=True)
        config = RunConfig(name=name, run="0" * 16, peers=4, f=1, faults=("sign_flip:3",))
        (folder / "config.json").write_text(config.model_dump_json())
        (folder / "environment.json").write_text(json.dumps({"started": began}))
        self._write("events.jsonl", {"schema": "gossip.events/2"})
        for peer in range(4):
            (folder / f"peer-{peer}").mkdir()
            self.event(0.0, peer, "spawned", pid=100 + peer, incarnation=0)
            self.event(0.1, peer, "started", pid=200 + peer, trainer_pid=100 + peer, incarnation=0)
            self.event(0.2, peer, "ready", present=[0, 1, 2, 3])
            self.usage(1.0, peer, cpu_s=2.0)
        self.event(0.2, 0, "plan", steps=ROUNDS, folder="ckpt", every=10)

    def whole(self) -> RecordedRun:
        """Until its end."""
        self.rounds(0, ROUNDS)
        for peer in range(4):
            self.usage(5.5, peer, cpu_s=4.0)
            self.event(5.6, peer, "halted", reason="finished", exit_code=0, round=ROUNDS - 1)
            self.event(5.7, peer, "exited", code=0, signal=None, how="exit code 0")
        (self.folder / "summary.json").write_text(json.dumps({"status": "finished"}))
        return self

    def rounds(self, first: int, last: int) -> None:
        """Those from the first to the one before the last."""
        for number in range(first, last):
            self._round(number)

    def at(self, number: int) -> float:
        """When a round is committed; seconds from the beginning."""
        return 1.0 + ROUND_S * (number + 1)

    def event(self, at: float, peer: int, name: str, **fields: Any) -> None:
        row = {"t": at + 7.0, "wall": self.began + at, "peer": peer, "event": name, **fields}
        self._write("events.jsonl", row)

    def log_losses(self, peer: int, first: int, last: int) -> None:
        """What its script logs in these rounds."""
        for number in range(first, last):
            row = {"t": self.at(number), "wall": self.began + self.at(number), "peer": peer}
            row |= {"round": number, "loss": 1 / (number + 1), "skipped": "overflow"}
            self._write(f"peer-{peer}/metrics.jsonl", row)

    def usage(self, at: float, peer: int, cpu_s: float) -> None:
        used = {"memory": 300 << 20, "load": 1.0, "sent_bytes": 5 << 20, "received_bytes": 1 << 20}
        self.event(at, peer, "usage", cpu_s=cpu_s, **used)

    def _round(self, number: int) -> None:
        at, server = self.at(number), number % 3 if number < KILLED_AT or number % 3 != 1 else 0
        for event in self._incidents(number):
            self.event(at - 0.01, **event)
        there = [peer for peer in range(4) if self._takes_part(peer, number)]
        came = [peer for peer in there if peer != 2 or number < LATE_FROM]
        if came != there:
            late = {"round": number, "shard": 0, "missing": [2], "waited_s": 0.05}
            self.event(at - 0.005, server, "late", **late)
        trust = {"0": 1.0, "1": 1.0, "2": 1.0, "3": max(0.0, 1.0 - 0.08 * number)}
        loss = 2.0 - number / 40
        row = {"round": number, "step": number + 1, "loss": loss, "server": server, "attempt": 0}
        took_us = [int(1e6 * TOOK_S[peer]) for peer in came]
        row |= {"contributors": came, "took_us": took_us, "alive": len(there), "trust": trust}
        for peer in there:
            self.event(at, peer, "round", **row)
        given = [
            {
                "peer": peer,
                "samples": 32,
                "weight": 0.0 if peer == 3 else 0.5,
                "outlyingness": 12.0 if peer == 3 else 1.0,
                "took_us": took,
            }
            for peer, took in zip(came, took_us, strict=True)
        ]
        commit = {"t": at + 7.0, "wall": self.began + at, "round": number, "shard": 0}
        commit |= {"server": server, "made_at": 0, "contributors": given, "rejected": []}
        commit |= {"roster": there, "loss": loss, "trust": trust, "rule_ms": 4.0, "reason": ""}
        commit |= {"chain": f"{number:02x}", "parent": f"{number - 1:02x}", "epoch": 0}
        self._write(f"peer-{server}/commits.jsonl", commit)

    def _takes_part(self, peer: int, number: int) -> bool:
        return peer != 1 or not KILLED_AT <= number < BACK_AT

    def _incidents(self, number: int) -> Iterator[dict[str, Any]]:
        far = {"subject": 3, "reasons": [f"{number} updates stood out"], "round": number}
        if number == SUSPECTED_AT:
            yield {"peer": 0, "name": "suspected", "trust": 0.48, **far}
        if number == QUARANTINED_AT:
            yield {"peer": 0, "name": "quarantined", "trust": 0.18, **far}
        if number == KILLED_AT:
            yield {"peer": 1, "name": "exited", "code": None, "signal": 9, "how": "killed by 9"}
            for peer in (0, 2, 3):
                skip = {"subject": 1, "round": number, "reason": "disconnected"}
                yield {"peer": peer, "name": "skip", **skip}
        if number == BACK_AT:
            yield {"peer": 1, "name": "started", "pid": 301, "incarnation": 1}
            yield {"peer": 1, "name": "restored", "round": number, "from": 2, "nbytes": 1000}
            for peer in (0, 2, 3):
                yield {"peer": peer, "name": "unskip", "subject": 1, "round": number}

    def _write(self, name: str, row: dict[str, Any]) -> None:
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(row) + "\n")


def now_running(folder: Path) -> RecordedRun:
    """One that has had 25 rounds by now."""
    return RecordedRun(folder, began=time.time() - 3.6)
