"""Findings of an examination: a line each with its level and, if something is wrong, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gossip.launch.report import counted

Level = Literal["ok", "warn", "fail"]
"""``fail``: runs do not work, or not as they should."""


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
    return [
        f"{finding.level:5} {finding.topic}: {finding.said}",
        *([f"      try: {finding.do}"] if finding.do else []),
    ]


def tally(findings: Iterable[Finding]) -> str:
    """``0 errors, 2 warnings``"""
    levels = [finding.level for finding in findings]
    return f"{counted(levels.count('fail'), 'error')}, {counted(levels.count('warn'), 'warning')}"
