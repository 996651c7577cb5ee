"""Findings of ``gossip doctor``: one line each, with a level and, for a problem, a hint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gossip.launch.report import counted

Level = Literal["ok", "warn", "fail"]
"""``fail`` means that runs do not work, or produce wrong results."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check. ``do``: a hint. ``facts``: the values in the text, for ``--json``."""

    level: Level
    topic: str
    said: str
    do: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


def level_of(value: float, fail_below: float, warn_below: float) -> Level:
    """Return the level of a value, of which more is better."""
    return "fail" if value < fail_below else "warn" if value < warn_below else "ok"


def lines(finding: Finding) -> list[str]:
    """Return a finding as text."""
    return [
        f"{finding.level:5} {finding.topic}: {finding.said}",
        *([f"      try: {finding.do}"] if finding.do else []),
    ]


def tally(findings: Iterable[Finding]) -> str:
    """Return a count such as ``0 errors, 2 warnings``."""
    levels = [finding.level for finding in findings]
    return f"{counted(levels.count('fail'), 'error')}, {counted(levels.count('warn'), 'warning')}"
