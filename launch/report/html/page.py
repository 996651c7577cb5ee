"""A report as one self-contained HTML file: no network, no other file, no script."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import (
    configuration,
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

FOOTER = "Made from the files of the run alone: events.jsonl, commits.jsonl, metrics.jsonl."


@dataclass(frozen=True, slots=True)
class RunReport:
    """Content of the page."""

    run: RecordedRun
    headline: str
    verdict: str
    facts: tuple[overview.Fact, ...]
    incidents: tuple[incidents.Incident, ...]
    sections: tuple[Section, ...]


def make(folder: Path) -> RunReport:
    """Read a run from its folder, and return the report on it.

    Raises: ConfigError: It cannot be read.
    """
    run = RecordedRun(folder)
    found = incidents.of(run)
    marks = overview.marks(run, found)
    sections = (
        overview.incidents_section(run, found),
        learning.section(run, marks),
        timeline.section(run, marks, found),
        trusting.section(run, marks),
        rounds.section(run, marks),
        participation.section(run, marks, found),
        configuration.section(run),
    )
    facts = tuple(overview.facts(run))
    headline, verdict = overview.headline(run, found), overview.verdict(run, found)
    return RunReport(run, headline, verdict, facts, tuple(found), sections)


def render(report: RunReport) -> str:
    """Return the page. Raises: ConfigError: jinja2 is not installed."""
    return templates.render_page(
        report.run.name, report.facts, report.sections, FOOTER, report=report
    )
