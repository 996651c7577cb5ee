"""What an examination found: a line each that says how it is and, where something is wrong, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Level = Literal["ok", "warn", "fail", "skip"]
"""``fail``: runs do not work, or not as they should. ``skip``: not there, and only some need it; or it cannot be known."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``do``: what to do about it. ``facts``: the figures behind the words, for --json."""

    level: Level
    topic: str
    said: str
    do: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def lines(finding: Finding) -> list[str]:
    """For people."""
    return [f"{finding.level:5} {finding.topic}: {finding.said}", *([f"      try: {finding.do}"] if finding.do else [])]


def counted(findings: Iterable[Finding]) -> str:
    """``0 errors, 2 warnings``"""
    levels = [finding.level for finding in findings]
    fails, warnings = levels.count("fail"), levels.count("warn")
    return f"{fails} error{'' if fails == 1 else 's'}, {warnings} warning{'' if warnings == 1 else 's'}"


def bytes_word(count: float) -> str:
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:.1f} {unit}" if count < 100 * size else f"{count / size:.0f} {unit}"
    return f"{count / 1024:.0f} KiB"
