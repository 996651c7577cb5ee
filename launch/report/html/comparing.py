"""Several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .charts import Line, LineChart, Section, TextTable
from .configuration import differences
from .downsampling import Buckets
from .figures import NONE, lasted
from .incidents import Incident
from .learning import wants_log
from .overview import STATE_WORDS, facts
from .recorded import RecordedRun
from .resuming import resumed

STEPS_EACH = 3


def section(runs: Sequence[RecordedRun], incidents: Sequence[list[Incident]]) -> Section:
    found = Section("comparison", "The runs side by side")
    labels = []
    told = [{fact.label: fact.value for fact in facts(run)} for run in runs]
    for each in told:
        labels += [label for label in each if label not in labels]
    rows = [("State", *(STATE_WORDS[run.state.state] for run in runs))]
    rows += [(label, *(each.get(label, NONE) for each in told)) for label in labels]
    rows.append(("Incidents", *(str(len(each)) for each in incidents)))
    head = ("Figure", *(run.name for run in runs))
    found.parts.append(TextTable("Figures", head, tuple(rows), frozenset(range(1, len(head)))))
    for name in ("loss", "accuracy"):
        if (chart := _by_step(runs, name)) is not None:
            found.parts.append(chart)
    found.parts.append(differences(runs))
    for run, later, gap in resumed(runs):
        found.text.append(
            f"{later.name} went on from a checkpoint of {run.name}, {lasted(gap)} after its end."
        )
    return found


def _by_step(runs: Sequence[RecordedRun], name: str) -> LineChart | None:
    """The mean of the honest peers of each run, by step: so runs of different speed can be
    compared."""
    points = [(run, run.series.logged.rounds.get(name)) for run in runs]
    last = max(
        (float(each.all_x().max()) for _, each in points if each is not None and each.peers),
        default=0.0,
    )
    if last <= 0:
        return None
    buckets = Buckets(0.0, last, int(max(24, min(240, last // STEPS_EACH))))
    lines = []
    for style, (run, each) in enumerate(points):
        if each is None:
            continue
        honest = [p for p in each.peers if not (p in run.view.rows and run.view.rows[p].lie)]
        if honest:
            x = np.concatenate([each.x(peer) for peer in honest])
            y = np.concatenate([each.y(peer) for peer in honest])
            lines.append(Line(run.name, buckets.centers, buckets.curve(x, y), style))
    if not lines:
        return None
    return LineChart(
        f"chart-{name}-by-step",
        f"{name.capitalize()} by round",
        "The mean of the honest peers of each run.",
        tuple(lines),
        last,
        over_time=False,
        logarithmic=wants_log(tuple(lines)),
    )
