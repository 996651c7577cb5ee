"""A report as one self-contained HTML file: no network, no other file, no script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import (
    comparing,
    incidents,
    learning,
    overview,
    participation,
    rounds,
    templates,
    timeline,
    trusting,
)
from .charts import Section
from .recorded import RecordedRun

TEMPLATE = "page.html.j2"


@dataclass(frozen=True, slots=True)
class RunPart:
    """Part of the page on one run. ``prefix``: Prefix of its anchors, if there are several runs."""

    run: RecordedRun
    prefix: str
    headline: str
    verdict: str
    facts: tuple[overview.Fact, ...]
    incidents: tuple[incidents.Incident, ...]
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True)
class RunReport:
    """``comparison``: Comparison of several runs, or None."""

    parts: tuple[RunPart, ...]
    comparison: Section | None


def make(folders: Sequence[Path]) -> RunReport:
    """Read runs from their folders, and return the report on them.

    Raises: ConfigError: One of them cannot be read.
    """
    runs = [RecordedRun(folder) for folder in folders]
    _disambiguate_labels(runs)
    befell = [incidents.of(run) for run in runs]
    parts = tuple(
        _part(run, found, f"run{at}-" if len(runs) > 1 else "")
        for at, (run, found) in enumerate(zip(runs, befell, strict=True), 1)
    )
    comparison = comparing.section(runs, befell) if len(runs) > 1 else None
    return RunReport(parts, comparison)


def _disambiguate_labels(runs: list[RecordedRun]) -> None:
    """Add the folder to the labels of runs of the same name."""
    names = Counter(run.name for run in runs)
    for run in runs:
        if names[run.name] > 1:
            run.label = f"{run.name} ({run.folder.name})"


def _part(run: RecordedRun, found: list[incidents.Incident], prefix: str) -> RunPart:
    marks = overview.marks(run, found)
    sections = (
        overview.incidents_section(run, found, prefix),
        learning.section(run, marks),
        timeline.section(run, marks, found),
        trusting.section(run, marks),
        rounds.section(run, marks),
        participation.section(run, marks, found),
        comparing.configuration(run),
    )
    facts = tuple(overview.facts(run))
    headline, verdict = overview.headline(run, found), overview.verdict(run, found)
    return RunPart(run, prefix, headline, verdict, facts, tuple(found), sections)


def render(report: RunReport) -> str:
    """Return the page. Raises: ConfigError: jinja2 is not installed."""
    names = ", ".join(part.run.name for part in report.parts)
    return templates.fill(TEMPLATE, title=names, report=report)
