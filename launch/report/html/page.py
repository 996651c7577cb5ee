"""A report as one self-contained HTML file: no network, no other file, no script."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossip.errors import ConfigError
from gossip.launch.report import run_state
from gossip.launch.report.words import counted
from gossip.run import shown

from . import (
    comparing,
    configuration,
    incidents,
    learning,
    overview,
    participation,
    rounds,
    svg,
)
from .charts import Section, TextTable
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
    """Read a run from its folder, and return its report. Raises: ConfigError: The run cannot be
    read.
    """
    run = RecordedRun(folder)
    found = incidents.of(run)
    marks = overview.marks(run, found)
    sections = (
        overview.incidents_section(run, found),
        learning.section(run, marks),
        participation.presence(run, marks, found),
        learning.trust(run, marks),
        rounds.section(run, marks),
        participation.section(run, marks, found),
        configuration.section(run),
    )
    facts = tuple(overview.facts(run))
    headline, verdict = overview.headline(run, found), overview.verdict(run, found)
    return RunReport(run, headline, verdict, facts, tuple(found), sections)


def render(report: RunReport) -> str:
    """Return the page. Raises: ConfigError: jinja2 is not installed."""
    return render_page(report.run.state.name, report.facts, report.sections, FOOTER, report=report)


def write(folders: Sequence[Path], out: Path | None) -> None:
    """Write a page to a file, atomically: the report of a run, or a comparison of several runs.

    Args:
        out: The file; None means ``report.html`` or ``comparison.html`` in the first folder.
    Raises: ConfigError: A run cannot be read, or the page cannot be written.
    """
    if len(folders) > 1:
        runs = {shown(run_state.word_for(folder)): RecordedRun(folder) for folder in folders}
        text = render_page(", ".join(runs), (), comparing.compare(runs), FOOTER)
        path, count = out or folders[0] / "comparison.html", counted(len(runs), "run")
    else:
        report = make(folders[0])
        runs, text = {report.run.state.name: report.run}, render(report)
        path, count = out or folders[0] / "report.html", counted(len(report.incidents), "incident")
    scratch = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with scratch.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise ConfigError(
            f"cannot write {shown(path)}: {error.strerror}", "--out names another file"
        ) from error
    for run in runs.values():
        for line in run.broken:
            print(f"! {shown(line)}", file=sys.stderr)
    print(f"{shown(path)}: {len(text.encode()) / 1e6:.2f} MB, {count}")


def render_page(
    title: str,
    facts: Sequence[overview.Fact],
    sections: Sequence[Section],
    footer: str,
    **more: Any,
) -> str:
    """Return a page with these sections and the present time. ``more``: further values for the
    template.

    Raises: ConfigError: jinja2 is not installed.
    """
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    values = {"title": title, "facts": facts, "sections": sections, "footer": footer, "made": made}
    page: str = _environment().get_template("page.html.j2").render(values | {"report": None} | more)
    return page


def _environment() -> Any:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ModuleNotFoundError as error:
        raise ConfigError(
            "a report needs jinja2, which is not installed", "pip install 'gossip-train[report]'"
        ) from error
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["draw"] = svg.draw
    environment.tests["table"] = lambda part: isinstance(part, TextTable)
    return environment
