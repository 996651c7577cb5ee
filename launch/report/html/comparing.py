"""Comparison of several runs."""

from __future__ import annotations

from collections.abc import Sequence

from .charts import Section, TextTable
from .configuration import differences
from .figures import NONE
from .incidents import Incident
from .learning import compare_by_round
from .overview import STATE_WORDS, facts
from .recorded import RecordedRun


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
        if (chart := compare_by_round(runs, name)) is not None:
            found.parts.append(chart)
    found.parts.append(differences(runs))
    found.text += [f"{run.name} went on at {run.origin}." for run in runs if run.origin]
    return found
