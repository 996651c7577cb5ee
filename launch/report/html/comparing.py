"""Comparison of several runs: results, curves by round, and differences between their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from . import configuration, incidents, learning, overview
from .charts import Section, TextTable
from .figures import NONE
from .recorded import RecordedRun

OWN = ("name", "run_dir", "Folder")
"""Values that differ between any two runs, so that they are not listed."""


def compare(runs: Mapping[str, RecordedRun]) -> list[Section]:
    """Return the sections of a page about several runs. ``runs``: run by label."""
    results = [
        {"Result": overview.headline(run, incidents.of(run)), "Continued at": run.origin}
        | {fact.label: fact.value for fact in overview.facts(run)}
        for run in runs.values()
    ]
    settings = [
        {key: value for key, value, _ in run.sources} | dict(configuration.facts(run.environment))
        for run in runs.values()
    ]
    rows = [row for row in _rows(settings) if len(set(row[1:])) > 1 and row[0] not in OWN]
    same = ("nothing: settings, versions and code are equal", *[NONE] * len(runs))
    names = dict.fromkeys(name for run in runs.values() for name in run.series.metrics)
    charts = [chart for name in names if (chart := learning.by_round(runs, name)) is not None]
    broken = [f"{label}: {line}" for label, run in runs.items() for line in run.broken]
    silent = [] if charts else ["No script logged a value by round."]
    unknown = [
        f"{label}: config.toml has no settings." for label in runs if not runs[label].sources
    ]
    head = ("What", *runs)
    return [
        Section(
            "results", "Results", broken, [TextTable("Final figures", head, tuple(_rows(results)))]
        ),
        Section("training", "Training", silent, [*charts]),
        Section(
            "differences",
            "Differences",
            unknown,
            [TextTable("Settings, versions and code that differ", head, tuple(rows or [same]))],
        ),
    ]


def _rows(found: Sequence[Mapping[str, str]]) -> list[tuple[str, ...]]:
    """Return a row for each key that has a value in some run, with its value in each run."""
    keys = dict.fromkeys(key for each in found for key, value in each.items() if value)
    return [(key, *(each.get(key) or NONE for each in found)) for key in keys]
