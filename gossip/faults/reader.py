"""Parses and formats the parts of a fault on the command line: peers, durations, numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gossip.errors import BadFault

PEERS_NAMED_MAX = 4096  # more peers than any run has; limits the memory that a word can use
# Factor and divisor to get seconds. A factor alone is not exact: 59 * 0.001 is not 0.059.
_UNITS = {"ms": (1.0, 1000.0), "s": (1.0, 1.0), "m": (60.0, 1.0)}


@dataclass(slots=True)
class Reader:
    """Parser of one word. An error names the position of the first invalid part, and has ``usage``
    as its hint. ``what`` names the kind of word in errors."""

    word: str
    what: str = "fault"
    usage: str | None = None
    at: int = 0

    @property
    def at_end(self) -> bool:
        return self.at == len(self.word)

    def wrong(self, expected: str) -> BadFault:
        rest = self.word[self.at :]
        found = f"{rest!r} at position {self.at}" if rest else "the end"
        return self.bad(f"expected {expected}, found {found}")

    def bad(self, why: str) -> BadFault:
        return BadFault(f"bad {self.what} {self.word!r}: {why}", self.usage)

    def expect(self, pattern: str, expected: str) -> str:
        match = re.compile(pattern).match(self.word, self.at)
        if match is None:
            raise self.wrong(expected)
        self.at = match.end()
        return match.group()

    def skip(self, text: str) -> bool:
        """Skip ``text`` if it comes next. Return whether it was skipped."""
        found = self.word.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def end(self) -> None:
        if not self.at_end:
            raise self.wrong("nothing more")

    def peers(self, expected: str = "a peer's number") -> tuple[int, ...]:
        """Read peers such as ``0-4,7``."""
        peers = self._span(expected)
        while self.skip(","):
            peers += self._span("a peer's number")
        if len(set(peers)) != len(peers):
            raise self.bad("a peer is named twice")
        return tuple(peers)

    def _span(self, expected: str) -> list[int]:
        first = last = int(self.expect(r"\d{1,9}", expected))
        if self.skip("-"):
            last = int(self.expect(r"\d{1,9}", "the last of a row of peers"))
            if not first <= last < first + PEERS_NAMED_MAX:
                raise self.bad(f"{first}-{last} is not a range of peers")
        return list(range(first, last + 1))

    def number(self, expected: str) -> float:
        return float(self.expect(r"-?\d+(\.\d+)?(e[+-]?\d{1,3})?", expected))

    def seconds(self) -> float:
        amount = float(self.expect(r"\d+(\.\d+)?", "a duration such as 2s or 500ms"))
        unit = self.expect(r"(ms|s|m)(?![A-Za-z])", "a unit of time: ms, s or m")
        times, over = _UNITS[unit]
        return amount * times / over

    def is_time(self) -> bool:
        """Whether a number with a unit of time comes next."""
        return re.compile(r"\d+(\.\d+)?(ms|s|m)").match(self.word, self.at) is not None


def peers_of(text: str) -> tuple[int, ...]:
    """Read peers such as ``0-4,7``. Raises: BadFault."""
    reader = Reader(text.strip(), "peers", "peers are typed as 3, as 1,5 or as 0-4")
    peers = reader.peers()
    reader.end()
    return peers


def seconds_of(text: str) -> float:
    """Read a duration: ``2s``, ``500ms``, ``1m``. Raises: BadFault."""
    reader = Reader(text.strip(), "duration", "durations are typed as 2s, 500ms or 1m")
    seconds = reader.seconds()
    reader.end()
    return seconds


def duration(seconds: float) -> str:
    """Return a duration in the syntax of the command line: ``2s`` or ``500ms``."""
    amount, unit = (seconds, "s") if seconds >= 1 else (seconds * 1000, "ms")
    return f"{amount:.6f}".rstrip("0").rstrip(".") + unit


def peers_word(peers: tuple[int, ...]) -> str:
    """Return peers in the syntax of the command line: ``0-4,7``. Three or more consecutive peers
    become a range."""
    words: list[str] = []
    at = 0
    while at < len(peers):
        end = at
        while end + 1 < len(peers) and peers[end + 1] == peers[end] + 1:
            end += 1
        if end - at < 2:
            end = at
        words.append(str(peers[at]) if end == at else f"{peers[at]}-{peers[end]}")
        at = end + 1
    return ",".join(words)
