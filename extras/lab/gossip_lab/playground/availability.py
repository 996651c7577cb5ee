"""Availability of peers: the times at which each peer of a world is present.

    availability = read_availability("spot:2h:10m", peers=100, seed=0)
    availability.present(3, now_s=60.0)

At the end of its presence a peer is killed without notice: its update of this round, its state and
its optimizer are lost. A returning peer joins like a restarted peer, and copies the state of
another peer. A peer that is absent at time 0 joins at its first arrival. Faults of the world apply
in addition: a peer takes part if it is present and no fault keeps it away.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gossip.errors import ConfigError

from .counters import draw_uniform
from .timing import read_csv, read_duration

CHURN_AWAY_S = 10.0
"""Duration of an absence in ``churn``, in seconds."""

_HINT = "spot:2h:10m, campus, campus:10m, churn:0.05, or a file trace.csv"


class Availability:
    """Presence of the peers of a world at any time. The times may be requested in any order.

    Args:
        changes: Yields the times at which a peer arrives, leaves, arrives, and so on, in seconds,
            ascending. Before the first time the peer is absent. By default every peer is always
            present.
    """

    def __init__(self, changes: Callable[[int], Iterator[float]] | None = None) -> None:
        self._changes = changes or (lambda peer: iter([0.0]))
        self._known: dict[int, tuple[list[float], Iterator[float]]] = {}

    def present(self, peer: int, now_s: float) -> bool:
        """Whether the peer is present. At the exact time of a change, the state after the change is
        returned."""
        return bisect_right(self._until(peer, now_s), now_s) % 2 == 1

    def next_change(self, peer: int, now_s: float) -> float:
        """Return the first time after ``now_s`` at which the peer arrives or leaves; infinity if it
        never does."""
        known = self._until(peer, now_s)
        at = bisect_right(known, now_s)
        return known[at] if at < len(known) else math.inf

    def present_peers(self, peers: int, now_s: float) -> NDArray[np.bool_]:
        """Return whether each of the peers 0 to ``peers - 1`` is present, ``(peers,)``."""
        return np.array([self.present(peer, now_s) for peer in range(peers)], bool)

    def _until(self, peer: int, now_s: float) -> list[float]:
        """Return the times of the peer's changes, up to the first change after ``now_s``."""
        if peer not in self._known:
            self._known[peer] = [], self._changes(peer)
        known, more = self._known[peer]
        while not known or known[-1] <= now_s:
            change = next(more, math.inf)
            if math.isinf(change):
                break
            known.append(change)
        return known


def read_availability(spec: str, peers: int, seed: int) -> Availability:
    """Read the availability of the peers of a world. Durations are numbers of seconds, or texts
    such as 500ms, 10m and 2h.

    - An empty text: every peer is always present.
    - ``FILE.csv``: a trace, see ``read_trace``.
    - ``spot:MEAN_UP:MEAN_DOWN``: durations of presence and absence are exponentially distributed.
      All peers are present at time 0, like the hosts of a run at its start.
    - ``campus:DAY``: desktops that their users need in the daytime. Time 0 is 18:00. Each day
      three of four leave at about 9:00 and return at about 18:00, each up to 90 minutes earlier or
      later. DAY is the length of a day, 24h by default.
    - ``churn:RATE``: RATE is the share of the present peers that leave within a minute, at random
      times. Each returns after 10 s, as if a new peer replaced it.

    Raises: ConfigError: There is no such availability, or the file is not valid.
    """
    if not spec:
        return Availability()
    if spec.endswith(".csv"):
        return read_trace(Path(spec), peers)
    name, *words = spec.split(":")
    try:
        numbers = [float(word) if name == "churn" else read_duration(word) for word in words]
    except ValueError:
        numbers = [math.nan]
    if all(0 < number < math.inf for number in numbers):
        if name == "spot" and len(numbers) == 2:
            return Availability(lambda peer: _spot(peer, seed, numbers[0], numbers[1]))
        if name == "campus" and len(numbers) <= 1:
            day_s = numbers[0] if numbers else 86400.0
            return Availability(lambda peer: _campus(peer, seed, day_s))
        if name == "churn" and len(numbers) == 1 and numbers[0] < 1:
            mean_s = -60 / math.log1p(-numbers[0])
            return Availability(lambda peer: _spot(peer, seed, mean_s, None))
    raise ConfigError(f"there is no availability {spec!r}", _HINT)


def read_trace(path: Path, peers: int) -> Availability:
    """Read a CSV file with the columns ``peer,from_s,to_s``: each line is a time span in which a
    peer is present.

    If ``to_s`` is empty, the presence has no end. The spans of a peer may have any order and may
    touch, but must not overlap. Lines of peers that the world does not have are ignored, so a
    smaller world can use the same file.

    Raises: ConfigError: There is no such file, or a line is not valid, or a peer has no line. The
        message has the number of the line.
    """
    spans: dict[int, list[tuple[float, float, int]]] = {peer: [] for peer in range(peers)}
    for number, words in read_csv(path, "peer,from_s,to_s", "availability", _HINT):
        peer, begin, end = _read_line(words, f"{path}, line {number}")
        if peer in spans:
            spans[peer].append((begin, end, number))
    changes = {peer: _join(found, path) for peer, found in spans.items()}
    if missing := [peer for peer, found in changes.items() if not found]:
        raise ConfigError(
            f"{path}: peer {missing[0]} has no line, so it would never be present",
            f"write {missing[0]},0, for a peer that is always present",
        )
    return Availability(lambda peer: iter(changes[peer]))


def _read_line(words: list[str], where: str) -> tuple[int, float, float]:
    try:
        peer, begin, end = (word.strip() for word in words)
        found = int(peer), float(begin), float(end) if end else math.inf
    except ValueError:
        raise ConfigError(
            f"{where}: {','.join(words)!r} is not a peer and two times", "as 3,0,120.5, in seconds"
        ) from None
    if found[0] < 0 or not 0 <= found[1] < found[2]:
        raise ConfigError(
            f"{where}: peer {found[0]} cannot be present from {found[1]:g} s to {found[2]:g} s",
            "peers and times are at least 0, and to_s is after from_s",
        )
    return found


def _join(spans: list[tuple[float, float, int]], path: Path) -> list[float]:
    """Return the times of a peer's changes. Touching spans are joined."""
    changes: list[float] = []
    last_line = 0
    for begin, end, line in sorted(spans):
        if changes and begin < changes[-1]:
            raise ConfigError(
                f"{path}, line {line}: the presence from {begin:g} s on overlaps with that in line "
                f"{last_line}"
            )
        if changes and begin == changes[-1]:
            changes.pop()
        else:
            changes.append(begin)
        changes.append(end)
        last_line = line
    return changes


def _spot(peer: int, seed: int, up_s: float, down_s: float | None) -> Iterator[float]:
    """Yield the times of a peer's changes, with exponentially distributed durations. If ``down_s``
    is None, each absence lasts ``CHURN_AWAY_S``."""
    now_s = 0.0
    for change in count():
        yield now_s
        mean_s = down_s if change % 2 else up_s
        if mean_s is None:
            now_s += CHURN_AWAY_S
        else:
            drawn = float(draw_uniform("availability", seed, peer, change))
            # The minimum is a little above 0, so that no two changes have the same time.
            now_s += mean_s * max(-math.log1p(-drawn), 1e-9)


def _campus(peer: int, seed: int, day_s: float) -> Iterator[float]:
    yield 0.0
    for day in count():
        draws = draw_uniform("availability", seed, peer, day, np.arange(3))
        leaves, early, late = draws.tolist()
        if leaves < 0.75:
            yield day_s * (day + (15 + 3 * (early - 0.5)) / 24)
            yield day_s * (day + (24 + 3 * (late - 0.5)) / 24)
