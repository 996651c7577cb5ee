"""What of Kubernetes there is without a cluster: a reader of the manifest, and pods that are processes of this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read(text: str) -> list[Any]:
    """The documents in a manifest: mappings, lists, and scalars written as JSON; what is written otherwise is refused."""
    documents = []
    for part in text.split("---\n"):
        rows = [line for line in part.splitlines() if line and not line.startswith("#")]
        value, rest = _block([(len(row) - len(row.lstrip()), row.strip()) for row in rows])
        assert not rest, rest
        documents.append(value)
    return documents


def _block(rows: list[tuple[int, str]]) -> tuple[Any, list[tuple[int, str]]]:
    indent, is_list = rows[0][0], rows[0][1].startswith("- ")
    items: list[Any] = []
    fields: dict[str, Any] = {}
    while rows and rows[0][0] == indent:
        (_, text), rows = rows[0], rows[1:]
        if is_list:
            text = text.removeprefix("- ")
            if re.match(r'[^"]*?:( |$)', text):
                value, rows = _block([(indent + 2, text), *rows])
            else:
                value = json.loads(text)
            items.append(value)
            continue
        key, _, scalar = text.partition(":")
        assert key not in fields, key
        if scalar:
            fields[key] = json.loads(scalar)
        else:
            fields[key], rows = _block(rows)
    return items if is_list else fields, rows


def pod(container: Mapping[str, Any], index: int, volume: Path, address: str, out: Path) -> subprocess.Popen[bytes]:
    """What a kubelet would start, as a process here: the volume is a folder, the image this interpreter, the address ours."""
    (mounted,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "shared"]
    known = {"JOB_COMPLETION_INDEX": str(index)}
    for variable in container["env"]:
        field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        assert field in (None, "status.podIP")
        known[variable["name"]] = variable["value"] if field is None else address
    words = [*container["command"], *container["args"]]
    words = [re.sub(r"\$(\$?)\((\w+)\)", lambda m: f"$({m[2]})" if m[1] else known.get(m[2], m[0]), word) for word in words]
    words = [sys.executable, *(word.replace(mounted, str(volume), 1) if word.startswith(mounted) else word for word in words[1:])]
    with out.open("ab") as file:
        return subprocess.Popen(words, cwd=volume, env={**os.environ, **known}, stdout=file, stderr=file)
