"""Program and settings of a run, and comparison of several runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from gossip.observe import documents
from gossip.run import shown

from .charts import Section, TextTable
from .figures import NONE
from .incidents import Incident
from .learning import compare_by_round
from .overview import STATE_WORDS, facts
from .recorded import RecordedRun

OWN = ("run", "name", "run_dir")
"""Settings in which any two runs differ."""
VALUE_MAX = 300


def configuration(run: RecordedRun) -> Section:
    found = Section("configuration", "Configuration")
    rows = [(label, value) for label, value in _facts(run.environment) if value]
    found.parts.append(TextTable("Where and how it was started", ("What", "Value"), tuple(rows)))
    own = tuple(row for row in run.sources if row[2] != "default")
    rest = tuple(row for row in run.sources if row[2] == "default")
    head = ("Setting", "Value", "From")
    if own:
        found.parts.append(TextTable("Settings that are not the default", head, own))
    if rest:
        found.parts.append(TextTable("Settings that are the default", head, rest, folded=True))
    return found


def _facts(environment: documents.RunEnvironment) -> list[tuple[str, str]]:
    hardware = documents.Hardware.pick(environment.hardware)
    memory, packages = hardware.memory_bytes, environment.packages or {}
    versions = [f"{name} {version}" for name, version in packages.items() if version]
    return [
        ("Command", shown(shlex.join(environment.command or ()))),
        ("Folder", shown(environment.folder)),
        ("Code", _describe_code(environment)),
        ("Host", shown(environment.host)),
        ("Platform", shown(environment.platform)),
        ("Processors", str(hardware.usable_cores or "")),
        ("Memory", f"{memory / 2**30:.1f} GiB" if memory is not None else ""),
        ("Python", shown(environment.python)),
        ("Packages", shown(", ".join(versions))),
    ]


def _describe_code(environment: documents.RunEnvironment) -> str:
    if environment.code is None:
        return "not in git"
    code = documents.CodeVersion.pick(environment.code)
    more = f", {code.changed_files} files changed" if code.changed_files else ""
    return shown(f"git {(code.commit or '')[:12]}{more}")


def differences(runs: Sequence[RecordedRun]) -> TextTable:
    """Return a table of the settings, versions and code in which runs differ, a column each."""
    flat = [_flat(run) for run in runs]
    keys = sorted({key for each in flat for key in each})
    rows = []
    for key in keys:
        values = [each.get(key, NONE) for each in flat]
        if len(set(values)) > 1:
            rows.append((key, *values))
    rows = rows or [("nothing: settings, versions and code are equal", *[NONE] * len(runs))]
    head = ("What", *(run.name for run in runs))
    return TextTable("What differs between the runs", head, tuple(rows))


def _flat(run: RecordedRun) -> dict[str, str]:
    found = {
        shown(key): shown(json.dumps(value))[:VALUE_MAX]
        for key, value in run.config.items()
        if key not in OWN
    }
    for label, value in _facts(run.environment):
        if value and label != "Folder":
            found[label.lower()] = value[:VALUE_MAX]
    return found


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
    found.text += [f"{run.name} continued at {run.origin}." for run in runs if run.origin]
    return found
