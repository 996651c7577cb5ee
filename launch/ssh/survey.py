"""Checks of every host and every pair of hosts before the start. Agents collect facts, and
``hostcheck`` evaluates them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gossip.config import Resolved
from gossip.errors import ConfigError, GossipError
from gossip.transport import is_loopback

from . import hostcheck, ssh
from .agent_program import AgentProgram
from .frames import Frame
from .hostcheck import HostReport
from .hostfacts import digest
from .pairs import WORD_BYTES
from .remote import AgentLost, RemoteAgent

MEASURED_MAX = 8
"""Maximum number of hosts for which the rate of every pair is measured, which takes half a second
for each pair. With more hosts, each host is measured only with the next one."""


@dataclass(frozen=True, slots=True)
class HostSurvey:
    """Result of the checks. ``addresses``: address for the peers of each host. ``unreachable``:
    errors of hosts without an agent. ``measured``: rate of each (from, to), in Mbit/s. ``saved``:
    result of ``hostfacts.saved`` on each host."""

    report: HostReport
    addresses: Mapping[str, str]
    unreachable: Sequence[GossipError]
    measured: Mapping[tuple[str, str], float] = field(default_factory=dict)
    saved: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


async def survey(remotes: Mapping[str, RemoteAgent], program: AgentProgram) -> HostSurvey:
    """Connect to all hosts, and check the hosts and all pairs of them."""
    report = HostReport()
    hosts = [remote.host for remote in remotes.values()]
    answers = await asyncio.gather(
        *(_facts(remote, program) for remote in remotes.values()), return_exceptions=True
    )
    facts: dict[str, dict[str, Any]] = {}
    unreachable: list[GossipError] = []
    for host, answer in zip(hosts, answers, strict=True):
        if isinstance(answer, GossipError):
            unreachable.append(answer)
            report.add("fail", host.name, str(answer), answer.hint or "")
        elif isinstance(answer, BaseException):
            raise answer
        else:
            facts[host.name] = answer
    file = program.program.file
    hostcheck.judge_hosts(
        report, hosts, facts, program.program, digest(file) if file is not None else None
    )
    able = {name: remotes[name] for name, found in facts.items() if found.get("addresses")}
    addresses, measured = await _survey_pairs(report, able, facts) if able else ({}, {})
    saved = {name: found["saved"] for name, found in facts.items() if "saved" in found}
    return HostSurvey(report, addresses, unreachable, measured, saved)


async def _facts(remote: RemoteAgent, program: AgentProgram) -> dict[str, Any]:
    await remote.open()
    said = await remote.ask("check", "facts", **program.check_request(remote.host))
    return {**said["facts"], "clock_s": remote.clock_s}


async def _survey_pairs(
    report: HostReport, remotes: Mapping[str, RemoteAgent], facts: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, str], dict[tuple[str, str], float]]:
    names, word = list(remotes), secrets.token_hex(WORD_BYTES)
    try:
        heard = await asyncio.gather(
            *(
                remote.ask("listen", "listening", word=word, addresses=facts[name]["addresses"])
                for name, remote in remotes.items()
            )
        )
        listening = dict(zip(names, heard, strict=True))
        probed = await _probe(remotes, listening, word)
        chosen = hostcheck.choose(
            names, {name: list(said["ports"]) for name, said in listening.items()}, probed
        )
        measured: dict[tuple[str, str], float] = {}
        for a, b in _measured_pairs(names):
            for way in ((a, b), (b, a)):
                source, target_name = way
                address = chosen[target_name]
                results = probed.get(address, {})
                if "ms" in results.get(way, {}):
                    port = listening[target_name]["ports"][address]
                    target = {"address": address, "port": port}
                    result = (
                        await remotes[source].ask("measure", "measured", word=word, target=target)
                    )["result"]
                    if "mbit_s" in result:
                        measured[way] = result["mbit_s"]
                    elif "stuck" in result:
                        results[way] = {**results[way], **result}
    except AgentLost as lost:
        report.add("fail", "all", f"the pairs could not be checked: {lost}", "run it again")
        return {}, {}
    hostcheck.judge_pairs(report, names, chosen, probed, measured)
    return chosen, measured


async def _probe(
    remotes: Mapping[str, RemoteAgent],
    listening: Mapping[str, Frame],
    word: str,
    skip_lost: bool = False,
) -> dict[str, dict[tuple[str, str], Mapping[str, Any]]]:
    """Probe the listening agents from all other agents. Return the results by address.

    Args:
        listening: Reply of each listening agent.
        skip_lost: Whether to skip agents that are lost, instead of raising AgentLost.
    """
    targets = {
        name: [
            {"host": other, "address": address, "port": port, "agent": said["agent"]}
            for other, said in listening.items()
            if other != name
            for address, port in said["ports"].items()
        ]
        for name in remotes
    }
    answers = await asyncio.gather(
        *(
            remote.ask("probe", "probed", word=word, targets=targets[name])
            for name, remote in remotes.items()
        ),
        return_exceptions=True,
    )
    probed: dict[str, dict[tuple[str, str], Mapping[str, Any]]] = {}
    for name, answer in zip(remotes, answers, strict=True):
        if skip_lost and isinstance(answer, AgentLost):
            continue
        if isinstance(answer, BaseException):
            raise answer
        for target, result in zip(targets[name], answer["results"], strict=True):
            probed.setdefault(target["address"], {})[name, target["host"]] = result
    return probed


async def find_address(
    remote: RemoteAgent, addresses: Sequence[str], others: Iterable[RemoteAgent]
) -> str:
    """Return the address at which most of the other hosts reach the host of ``remote``.

    Raises: AgentLost: The host has no address, or its agent has ended.
    """
    word, name = secrets.token_hex(WORD_BYTES), remote.name
    said = await remote.ask("listen", "listening", word=word, addresses=addresses)
    if not said["ports"]:
        raise AgentLost(f"{name} has no address to listen on")
    there = {other.name: other for other in others if not other.over}
    probed = await _probe(there, {name: said}, word, skip_lost=True)
    listening = {name: list(said["ports"]), **dict.fromkeys(there, ())}
    return hostcheck.choose(list(listening), listening, probed)[name]


def _measured_pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    if len(names) <= MEASURED_MAX:
        return [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    return list(zip(names, [*names[1:], names[0]], strict=True))


def with_keys(resolved: Resolved, found: HostSurvey) -> Resolved:
    """Return the settings, with keys enabled if peers listen on other addresses than loopback.

    Raises: ConfigError: Keys are needed, but the user has disabled them without ``insecure``.
    """
    config = resolved.config
    if (
        config.insecure
        or config.keys
        or all(is_loopback(address) for address in found.addresses.values())
    ):
        return resolved
    if config.keys is False:
        raise ConfigError(
            "without keys any process that reaches the hosts could join, read gradients and "
            "send false updates",
            "leave out --no-keys, or add --insecure on a network with trusted machines only",
        )
    return resolved.with_values("addresses other than loopback", keys=True)


class HostsUnfit(ConfigError):
    """A host, or the network between two hosts, does not allow the run. Nothing was started."""


def refuse(found: HostSurvey) -> None:
    """Raise an error if a check has failed. If only one has failed, the message describes it.
    Raises: Unreachable, HostsUnfit."""
    failed = found.report.failed
    if not failed:
        return
    bad = {name for line in failed for name in line.about.split(" -> ")}
    fine = [
        line.about for line in found.report.lines if " " not in line.about and line.about not in bad
    ]
    rest = (
        f"{', '.join(dict.fromkeys(fine))} {'is' if len(set(fine)) == 1 else 'are'} fine, "
        if fine
        else ""
    )
    if len(failed) == 1 and found.unreachable and isinstance(found.unreachable[0], ssh.Unreachable):
        error = found.unreachable[0]
        raise ssh.Unreachable(error.host, error.why, f"{error.hint}. {rest}nothing was started")
    why = (
        f"{failed[0].about}: {failed[0].text}"
        if len(failed) == 1
        else f"{len(failed)} problems on {', '.join(sorted(bad))}"
    )
    hint = f"{failed[0].hint}. " if len(failed) == 1 and failed[0].hint else ""
    error_of_all = HostsUnfit(why, f"{hint}{rest}nothing was started")
    if found.unreachable or any("->" in line.about for line in failed):
        error_of_all.exit_code = ssh.Unreachable.exit_code
    raise error_of_all
