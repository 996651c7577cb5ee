"""``gossip doctor``: examines this machine, or the way to another,
and says what to do about what is wrong."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
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
        str | None, optional("Examine the way to this address instead.", metavar="HOST:PORT")
    ] = None,
    key: Annotated[Path | None, optional("With --to: the swarm key of that run.")] = None,
    hosts: Annotated[
        str | None,
        optional("Examine these hosts over ssh instead, as for gossip hosts.", "-H", "--hosts"),
    ] = None,
    ssh: Annotated[str, typer.Option(help="With --hosts: command that reaches a host.")] = "ssh",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all as JSON, for a bug report.")
    ] = False,
) -> None:
    """Examine this machine, the way to another (--to) or many (--hosts): each line says ok, warn or
    fail, and what to do."""
    from gossip.errors import ConfigError

    from . import findings

    if key is not None and to is None:
        raise ConfigError(
            "--key needs --to HOST:PORT",
            "gossip doctor --to HOST:PORT --key FILE",
        )
    if hosts is not None and to is not None:
        raise ConfigError(
            "--to is about the way from here, --hosts about others", "leave one of both out"
        )
    began, found = time.monotonic(), []
    for finding in _examination(to, key, hosts, ssh, as_json):
        found.append(finding)
        if not as_json:
            print_lines(shown_lines("\n".join(findings.lines(finding))).split("\n"))
    failed = any(finding.level == "fail" for finding in found)
    if as_json:
        print(json.dumps(report(found), indent=1))
    else:
        by = f" --ssh {shlex.quote(ssh)}" if ssh != "ssh" else ""
        about = (
            f" --to {to}"
            if to is not None
            else f" --hosts {hosts}{by}"
            if hosts is not None
            else ""
        )
        again = f"gossip doctor{about} --json > doctor.json"
        took = f"{time.monotonic() - began:.1f} s"
        print_lines([f"{findings.tally(found)} in {took}; for a bug report: {again}"])
    raise typer.Exit(1 if failed else 0)


def _examination(
    to: str | None, key: Path | None, hosts: str | None, ssh: str, as_json: bool
) -> Iterator[Finding]:
    if hosts is not None:
        from .hosts import examine_hosts

        return examine_hosts(hosts, ssh, folded=not as_json)
    return examine_way(to, key) if to is not None else examine_machine(Path("runs"))


def report(found: list[Finding]) -> dict[str, object]:
    import sys

    from gossip.run import environment

    return {
        "schema": SCHEMA,
        "findings": [finding.to_json() for finding in found],
        "environment": environment(sys.argv),
    }


def examine_machine(runs: Path) -> Iterator[Finding]:
    """One finding after the other. What imports torch takes longest,
    so it is begun first and told last."""
    from . import check_speed, checks

    threads = check_speed.Threads()
    try:
        yield from checks.versions()
        yield from checks.keys(runs)
        (addresses,) = checks.addresses()
        yield addresses
        yield from checks.hostname()
        yield from checks.port(str(addresses.facts["advertised"]))
        yield from checks.shared_memory()
        yield from checks.open_files()
        yield from checks.clock()
        yield from checks.disk(runs)
        yield from checks.memory()
        yield from checks.on_gpus()
        yield from checks.tools()
        yield from check_speed.loopback()
        yield from threads.findings()
    finally:
        threads.close()


def examine_way(address: str, key: Path | None) -> Iterator[Finding]:
    from . import check_reach

    yield from check_reach.reach(address, key)
