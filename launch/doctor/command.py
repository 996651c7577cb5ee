"""``gossip doctor``: checks this machine or its connection to another one, and prints a hint for
each problem."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gossip.launch.optional import optional
from gossip.launch.report import print_lines
from gossip.run import shown_lines

if TYPE_CHECKING:
    from .findings import Finding

SCHEMA = "gossip.doctor/1"


def doctor(
    to: Annotated[
        str | None, optional("Check the connection to this address instead.", metavar="HOST:PORT")
    ] = None,
    key: Annotated[Path | None, optional("With --to: file with the swarm key of the run.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all findings as JSON, for a bug report.")
    ] = False,
) -> None:
    """Check this machine, or the connection to another (--to): each line is ok, warn or fail,
    with a hint."""
    from gossip.errors import ConfigError

    from . import findings

    if key is not None and to is None:
        raise ConfigError(
            "--key needs --to HOST:PORT",
            "gossip doctor --to HOST:PORT --key FILE",
        )
    began, found = time.monotonic(), []
    if to is None:
        examined: Iterable[Finding] = examine_machine(Path("runs"))
    else:
        from . import check_reach

        examined = check_reach.reach(to, key)
    for finding in examined:
        found.append(finding)
        if not as_json:
            print_lines(shown_lines("\n".join(findings.lines(finding))).split("\n"))
    failed = any(finding.level == "fail" for finding in found)
    if as_json:
        print(json.dumps(report(found), indent=1))
    else:
        again = f"gossip doctor{'' if to is None else f' --to {to}'} --json > doctor.json"
        took = f"{time.monotonic() - began:.1f} s"
        print_lines([f"{findings.tally(found)} in {took}; for a bug report: {again}"])
    raise typer.Exit(1 if failed else 0)


def report(found: list[Finding]) -> dict[str, object]:
    import sys

    from gossip.run import environment

    return {
        "schema": SCHEMA,
        "findings": [asdict(finding) for finding in found],
        "environment": environment(sys.argv),
    }


def examine_machine(runs: Path) -> Iterator[Finding]:
    """Yield the findings one by one; the import of torch comes last because it takes longest."""
    from . import checks

    yield checks.versions()
    yield checks.keys(runs)
    yield checks.addresses()
    yield checks.shared_memory()
    yield checks.open_files()
    yield checks.disk(runs)
    yield checks.memory()
    yield checks.threads()
    yield checks.torch()
