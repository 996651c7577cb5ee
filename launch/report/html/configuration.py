"""Program and settings of a run."""

from __future__ import annotations

import shlex

from gossip.observe import documents
from gossip.run import shown

from .charts import Section, TextTable
from .recorded import RecordedRun


def section(run: RecordedRun) -> Section:
    found = Section("configuration", "Configuration")
    rows = [(label, value) for label, value in facts(run.environment) if value]
    found.parts.append(TextTable("Where and how it was started", ("What", "Value"), tuple(rows)))
    own = tuple(row for row in run.sources if row[2] != "default")
    rest = tuple(row for row in run.sources if row[2] == "default")
    head = ("Setting", "Value", "From")
    if own:
        found.parts.append(TextTable("Settings that are not the default", head, own))
    if rest:
        found.parts.append(TextTable("Settings that are the default", head, rest, folded=True))
    return found


def facts(environment: documents.RunEnvironment) -> list[tuple[str, str]]:
    """Return (label, value) of each fact about program and host; the value is "" if not known."""
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
