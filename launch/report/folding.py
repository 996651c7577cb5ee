"""Folding of repeated events into one line with a count. This module reads no clock: the time is an
argument."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from .run_reader import Happening
from .words import numbers

BURST = 5
"""Maximum number of lines of one kind that are shown separately within ``WINDOW_S``."""
WINDOW_S = 10.0
"""Length of a window, in seconds. At its end, one line replaces the further lines of a kind."""
FOLDED = ("~", "!", "?", "+", "-", "=")
"""Marks of lines that are folded. Deaths, faults, pauses and errors have other marks."""
_NUMBER = re.compile(r"\d[\d.,]*(?:e[+-]?\d+)?")
_SUBJECT = re.compile(r". peer (\d{1,9})\b")


@dataclass(slots=True)
class _Kind:
    since: float
    shown: int = 0
    held: int = 0
    peers: set[int] = field(default_factory=set)
    last: str = ""
    last_at: float = 0.0


class EventFolder:
    """Folds lines of the same kind. Lines that differ only in the numbers they contain are of the
    same kind."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}
        self._held_last = False

    def fold(self, text: str, now: float) -> list[str]:
        """Add a line. Return the lines to show now."""
        if text.startswith("  "):  # a continuation of the line before
            return [] if self._held_last else [text]
        self._held_last = False
        if not text.startswith(FOLDED):
            return [text]
        ended = self.due(now)
        kind = self._kinds.setdefault(_NUMBER.sub("#", text), _Kind(now))
        if kind.shown < BURST:
            kind.shown += 1
            return [*ended, text]
        self._held_last = True
        kind.held += 1
        kind.last, kind.last_at = text, now
        if (subject := _SUBJECT.match(text)) is not None:
            kind.peers.add(int(subject[1]))
        return ended

    def due(self, now: float) -> list[str]:
        """Return the lines that replace folded lines, for all windows that are over."""
        over = [key for key, kind in self._kinds.items() if now - kind.since >= WINDOW_S]
        return self._end(over, now)

    def rest(self, now: float) -> list[str]:
        """Return the lines that replace folded lines, for all windows. This is called when the run
        is over."""
        return self._end(list(self._kinds), now)

    def _end(self, keys: list[str], now: float) -> list[str]:
        lines = []
        for key in keys:
            kind = self._kinds.pop(key)
            if not kind.held:
                continue
            who = f" (peers {numbers(kind.peers)})" if len(kind.peers) > 1 else ""
            took_s, since_s = max(1.0, kind.last_at - kind.since), now - kind.last_at
            ago = f" {since_s:.0f} s ago" if since_s >= 1 else ""
            lines.append(
                f"{kind.last[:1]} {kind.held} more in {took_s:.0f} s{who}, the last{ago}: "
                f"{kind.last[2:]}"
            )
            # The next window shows no line separately, only one line for all of them at its end.
            self._kinds[key] = _Kind(now, shown=BURST)
        return lines


def folded(happenings: Sequence[Happening], most: int) -> list[tuple[Happening, int]]:
    """Return at most ``most`` of the last events, in order, each with a number of occurrences. A
    kind of event has one entry, its last event. Each death, fault, pause and error has its own
    entry."""
    found: list[tuple[Happening, int]] = []
    places: dict[str, int] = {}
    for happening in reversed(happenings):
        if happening.text.startswith("  "):  # a continuation of the line before
            continue
        kind = _NUMBER.sub("#", happening.text)
        if kind in places and happening.text.startswith(FOLDED):
            last, count = found[places[kind]]
            found[places[kind]] = last, count + 1
        elif len(found) < most:
            places[kind] = len(found)
            found.append((happening, 1))
    return found[::-1]
