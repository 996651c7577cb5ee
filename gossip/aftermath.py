"""Whether a run is over, as who comes late finds out from what its peers have left in the folder that they share."""

from __future__ import annotations

import json
import os
from collections.abc import Container
from pathlib import Path
from typing import Any

from .rendezvous import answers, peers_in, read_seed

TAIL_BYTES = 16 * 1024  # of a peer's events: its end is the last of them


def over(folder: Path, but: Container[int]) -> tuple[int, ...]:
    """Who has completed the training of the run in ``folder``, when nobody answers who has not; else nobody.

    Args:
        but: Those who ask: they are not meant.
    """
    finished = [peer for peer in _peers(folder) if peer not in but and _has_finished(folder, peer)]
    if not finished:
        return ()  # others have yet to come, or were killed and may come back: nobody can tell that apart
    seeds = folder / "seeds"
    others = [seed for peer in peers_in(seeds) if peer not in but and (seed := read_seed(seeds, peer)) is not None]
    if any(answers(seed) for seed in others if not seed.ended):
        return ()
    return tuple(finished)


def nobody_left(seeds: Path, but: Container[int]) -> bool:
    """Whether all peers of whom there is a file are known not to come back: their launchers say so. ``but``: who asks."""
    others = [read_seed(seeds, peer) for peer in peers_in(seeds) if peer not in but]
    return bool(others) and all(seed is not None and seed.ended for seed in others)


def _peers(folder: Path) -> list[int]:
    names = [path.parent.name.removeprefix("peer-") for path in folder.glob("peer-*/events.jsonl")]
    return sorted(int(name) for name in names if name.isdecimal())


def _has_finished(folder: Path, peer: int) -> bool:
    """Whether its last node said that its script had had all its rounds, and had had any."""
    for row in reversed(_last_rows(folder / f"peer-{peer}" / "events.jsonl")):
        if row.get("event") == "halted":
            return row.get("reason") == "finished" and int(row.get("round", -1)) >= 0
        if row.get("event") == "started":
            break
    return False


def _last_rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        for line in file.read().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue  # cut off: the first, or one that somebody is just writing
            if isinstance(row, dict):
                rows.append(row)
    return rows
