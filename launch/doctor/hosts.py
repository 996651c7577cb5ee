"""``gossip doctor --hosts``: every host of a list and every pair of them is examined,
over the user's own ssh."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from gossip.config import RunConfig
from gossip.errors import GossipError
from gossip.launch.report import RunModel, counted
from gossip.launch.ssh import (
    AgentProgram,
    Host,
    HostReport,
    HostsLauncher,
    RemoteAgent,
    hostlist,
    ssh,
)

from .findings import Finding

EXAMINED_S = 120.0
"""Timeout of a host's examination, in seconds. Importing torch takes longest; hosts may be busy."""


class _Nothing:
    """No peers, so nothing to show of them."""

    def output(self, peer: int, text: str, err: bool) -> None:
        pass

    def print_line(self, text: str) -> None:
        pass

    def tick(self, view: RunModel) -> None:
        pass

    def close(self, view: RunModel) -> None:
        pass


def examine_hosts(where: str, command: str, folded: bool) -> Iterator[Finding]:
    """Yield the findings of ``gossip hosts`` before a start, then those of ``gossip doctor`` on
    each host.

    Args:
        where: Hosts, as for ``gossip hosts -H``.
        command: Command that reaches a host.
        folded: Whether to show only what is wrong on each host, and a count of its other findings.
    Raises: ConfigError: The list or the command is invalid.
    """
    hosts = hostlist.load(where)
    said, answers = asyncio.run(_examine(hosts, ssh.parse(command)))
    for line in said.lines:
        yield Finding(line.level, line.about, line.text, line.hint)
    for name, found in answers.items():
        fine = [finding for finding in found if finding.level in ("ok", "skip")]
        for finding in found:
            if not folded or finding not in fine:
                yield replace(finding, topic=f"{name}, {finding.topic}")
        if folded and fine:
            skipped = sum(finding.level == "skip" for finding in fine)
            well = len(fine) - skipped
            there = f"{counted(well, 'more check')} {'is' if well == 1 else 'are'} ok there"
            yield Finding(
                "ok",
                name,
                f"{there}, and {skipped} {'is' if skipped == 1 else 'are'} for those who need it",
            )


async def _examine(
    hosts: Sequence[Host], words: tuple[str, ...]
) -> tuple[HostReport, dict[str, list[Finding]]]:
    config = RunConfig(
        peers=sum(host.slots for host in hosts), name="doctor", run_dir="runs/doctor"
    )
    launch = HostsLauncher(
        config, AgentProgram(tuple(hosts), "", workdir=os.getcwd(), ssh=words), _Nothing()
    )
    try:
        survey = await launch.survey_hosts()
        there = {
            name: place.remote for name, place in launch.places.items() if not place.remote.over
        }
        found = await asyncio.gather(*map(_of_itself, there.values()))
    finally:
        await launch.close()
    return survey.report, dict(zip(there, found, strict=True))


async def _of_itself(remote: RemoteAgent) -> list[Finding]:
    try:
        said = await remote.ask("examine", "examined", EXAMINED_S)
        return [_finding(row) for row in said["findings"]] or [
            Finding("fail", "doctor", str(said["error"]))
        ]
    except (GossipError, LookupError, TypeError) as error:
        return [
            Finding(
                "fail",
                "doctor",
                f"it has not said how it is: {error}",
                f"ssh {remote.host.target} gossip doctor",
            )
        ]


def _finding(row: dict[str, Any]) -> Finding:
    return Finding(
        row["level"], str(row["topic"]), str(row["said"]), str(row["do"]), dict(row["facts"])
    )
