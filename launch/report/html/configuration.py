"""Program and settings of a run, and the differences between several runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gossip.run import shown

from .charts import Section, TextTable
from .figures import NONE
from .recorded import RecordedRun

OWN = ("run", "name", "run_dir")
"""Settings in which any two runs differ."""
VALUE_MAX = 300


def section(run: RecordedRun) -> Section:
    found = Section("configuration", "Configuration")
    rows = [(label, value) for label, value in _facts(run.environment) if value]
    found.parts.append(TextTable("Where and how it was started", ("What", "Value"), tuple(rows)))
    own = tuple(row for row in run.settings if row[2] != "default")
    rest = tuple(row for row in run.settings if row[2] == "default")
    head = ("Setting", "Value", "From")
    if own:
        found.parts.append(TextTable("Settings that are not the default", head, own))
    if rest:
        found.parts.append(TextTable("Settings that are the default", head, rest, folded=True))
    return found


def _facts(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    command = environment.get("command")
    hardware, packages = environment.get("hardware"), environment.get("packages")
    hardware = hardware if isinstance(hardware, dict) else {}
    packages = packages if isinstance(packages, dict) else {}
    memory = hardware.get("memory_bytes")
    told = shlex.join(map(str, command)) if isinstance(command, list) else ""
    return [
        ("Command", shown(told)),
        ("Folder", shown(environment.get("folder") or "")),
        ("Code", _code(environment.get("code"))),
        ("Host", shown(environment.get("host") or "")),
        ("Platform", shown(environment.get("platform") or "")),
        ("Processors", shown(hardware.get("usable_cores") or "")),
        ("Memory", f"{memory / 2**30:.1f} GiB" if isinstance(memory, int) else ""),
        ("Python", shown(environment.get("python") or "")),
        (
            "Packages",
            shown(", ".join(f"{name} {version}" for name, version in packages.items() if version)),
        ),
    ]


def _code(code: Any) -> str:
    if not isinstance(code, dict):
        return "not in git"
    changed = code.get("changed_files")
    more = f", {changed} files changed" if changed else ""
    return shown(f"git {str(code.get('commit'))[:12]}{more}")


def differences(runs: Sequence[RecordedRun]) -> TextTable:
    """Settings, versions and code in which runs differ: a column each."""
    flat = [_flat(run) for run in runs]
    keys = sorted({key for each in flat for key in each})
    rows = []
    for key in keys:
        values = [each.get(key, NONE) for each in flat]
        if len(set(values)) > 1:
            rows.append((key, *values))
    rows = rows or [("nothing: all settings, versions and code are the same", *[NONE] * len(runs))]
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
