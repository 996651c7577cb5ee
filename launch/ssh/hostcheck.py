"""Evaluation of the facts from agents: a line for each host and each pair of hosts, and a remedy
for each problem. The functions are pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from gossip.launch.local import PEER_BYTES, Program
from gossip.launch.report import counted
from gossip.transport import is_loopback

from .hostlist import Host

CLOCK_S = 5.0
DISK_BYTES = 2**30
PAIRS_SHOWN = 15
SLOW_MS = 25.0
"""Round-trip time above which a measurement of ``pairs.MEASURE_S`` contains fewer than ten round
trips, in milliseconds."""
Facts: TypeAlias = Mapping[str, Any]
Level: TypeAlias = Literal["ok", "warn", "fail"]
Results: TypeAlias = Mapping[tuple[str, str], Mapping[str, Any]]
"""Result of the probe of each (from, to)."""


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One line of the report. ``about``: a host or a pair of hosts. ``problem``: False for the
    first line about a host, which is a summary."""

    level: Level
    about: str
    text: str
    hint: str = ""
    problem: bool = True


@dataclass(slots=True)
class HostReport:
    """Report of the checks."""

    lines: list[CheckLine] = field(default_factory=list)

    def add(self, level: Level, about: str, text: str, hint: str = "") -> None:
        self.lines.append(CheckLine(level, about, text, hint))

    @property
    def failed(self) -> list[CheckLine]:
        return [line for line in self.lines if line.level == "fail" and line.problem]

    def as_text(self) -> list[str]:
        """Return the report as lines with level, host and finding. A hint is an indented line below
        its finding."""
        width = max((len(line.about) for line in self.lines), default=0)
        found = []
        for line in self.lines:
            found.append(f"{line.level:4}  {line.about:{width}}  {line.text}")
            found += [f"      {'':{width}}  try: {line.hint}"] if line.hint else []
        return found

    def as_json(self) -> list[dict[str, str]]:
        return [
            {"level": line.level, "about": line.about, "text": line.text, "hint": line.hint}
            for line in self.lines
        ]


def judge_hosts(
    report: HostReport,
    hosts: Sequence[Host],
    found: Mapping[str, Facts],
    program: Program,
    digest: str | None,
) -> None:
    """Add a line for each host that replied, and a line for each problem of the host.

    Args:
        found: Facts from the agent of each host. They include ``clock_s``, the difference between
            the clocks of the host and this machine, in seconds.
        program: Program of the peers. If its name is "", no program is checked.
        digest: Digest of the program's file on this machine. If it is None, the file of the first
            host is the reference.
    """
    answered = [found[host.name] for host in hosts if host.name in found]
    first = next((facts for facts in answered if facts.get("script")), None)
    digest = digest if digest is not None else (first["script"]["digest"] if first else None)
    for host in hosts:
        if host.name in found:
            problems = [*_problems(host, found[host.name], answered[0], program, digest)]
            worst: Level = (
                "fail"
                if any(line.level == "fail" for line in problems)
                else "warn"
                if problems
                else "ok"
            )
            report.lines.append(
                CheckLine(worst, host.name, _line_of(host, found[host.name]), problem=False)
            )
            report.lines += problems


def _line_of(host: Host, facts: Facts) -> str:
    packages = facts["packages"]
    peers = f"{counted(host.slots, 'peer')} on {counted(facts['cores'], 'core')}"
    return "  ".join(
        (
            f"python {facts['python']}",
            f"torch {packages['torch'] or '-'}",
            f"gossip {packages['gossip-train'] or '-'}",
            f"clock {facts['clock_s']:+.3f} s",
            f"{peers}, {facts['memory_bytes'] / 2**30:.1f} GiB free",
        )
    )


def _problems(
    host: Host, facts: Facts, reference: Facts, program: Program, digest: str | None
) -> Iterable[CheckLine]:
    yield from _versions(host, facts, reference)
    if abs(facts["clock_s"]) > CLOCK_S:
        yield _warn(
            host,
            f"its clock is {facts['clock_s']:+.1f} s off: times in its logs are, too",
            "chronyc makestep, or ntpd -gq",
        )
    if facts["workdir_error"]:
        yield _fail(
            host,
            f"cannot work in {facts['workdir']}: {facts['workdir_error']}",
            f"workdir=... after {host.name} in a host file, or: "
            f"ssh {host.name} mkdir -p {facts['workdir']}",
        )
        return
    if program.script:
        yield from _script(host, facts, program, digest)
    yield from _room(host, facts)
    yield from _run_dir(host, facts)
    if facts["address_error"]:
        yield _fail(host, facts["address_error"], f"address=... after {host.name} in a host file")


def _fail(host: Host, text: str, hint: str = "") -> CheckLine:
    return CheckLine("fail", host.name, text, hint)


def _warn(host: Host, text: str, hint: str = "") -> CheckLine:
    return CheckLine("warn", host.name, text, hint)


def _versions(host: Host, facts: Facts, reference: Facts) -> Iterable[CheckLine]:
    """Compare the versions of torch, Python and gossip with those of the reference host."""
    packages, others = facts["packages"], reference["packages"]
    if packages["torch"] is None:
        yield _fail(
            host,
            f"{facts['executable']} has no torch",
            f"python=... of an environment with torch, after {host.name} in a host file",
        )
    elif packages["torch"].partition("+")[0] != str(others["torch"]).partition("+")[0]:
        yield _fail(
            host,
            f"torch is {packages['torch']}, but {others['torch']} elsewhere",
            "install the same version on all hosts",
        )
    elif packages["torch"] != others["torch"]:
        yield _warn(
            host,
            f"torch is {packages['torch']}, but {others['torch']} elsewhere: results may differ in "
            "their last bits",
        )
    if facts["python"].split(".")[:2] != reference["python"].split(".")[:2]:
        yield _fail(
            host,
            f"python is {facts['python']}, but {reference['python']} elsewhere",
            f"python=... after {host.name} in a host file",
        )
    if packages["gossip-train"] != others["gossip-train"]:
        versions = f"{packages['gossip-train']}, but {others['gossip-train']} elsewhere"
        yield _fail(host, f"gossip is {versions}", "install the same version on all hosts")
    elif facts["code"] != reference["code"]:
        yield _warn(
            host,
            "gossip has the same version as elsewhere, but different code",
            "install the same code on all hosts",
        )


def _script(host: Host, facts: Facts, program: Program, digest: str | None) -> Iterable[CheckLine]:
    copy = f"scp {program.script} {host.target}:{facts['workdir']}/"
    if program.module:
        copy = f"install or copy the same package of {program.script} there"
    if facts["script"] is None:
        yield _fail(host, f"there is no {' '.join(program.what)} in {facts['workdir']}", copy)
    elif digest is not None and facts["script"]["digest"] != digest:
        yield _warn(host, f"its {' '.join(program.what)} differs from the one here", copy)


def _room(host: Host, facts: Facts) -> Iterable[CheckLine]:
    """Check that the memory and the cores of a host are enough for its peers."""
    if facts["memory_bytes"] < host.slots * PEER_BYTES:
        fits = facts["memory_bytes"] // PEER_BYTES
        need = (
            f"{counted(host.slots, 'peer')} need{'s' if host.slots == 1 else ''} about "
            f"{host.slots * PEER_BYTES / 2**30:.1f} GiB"
        )
        yield _fail(
            host,
            f"{need}, {facts['memory_bytes'] / 2**30:.1f} GiB are free",
            _fewer(host, fits),
        )
    if facts["cores"] < host.slots:
        yield _warn(
            host,
            f"{host.slots} peers share {counted(facts['cores'], 'core')}",
            _fewer(host, facts["cores"]),
        )


def _fewer(host: Host, fits: int) -> str:
    """Return a hint about a host that has room for only ``fits`` peers."""
    if host.peers:  # The plan determines the peers of the host.
        return f"move some of {', '.join(host.peers)} to another host, or plan without them"
    return f"{host.name} slots={fits}" if fits else "another host"


def _run_dir(host: Host, facts: Facts) -> Iterable[CheckLine]:
    if facts["run_dir_error"]:
        yield _fail(
            host,
            f"the run folder {facts['run_dir']}: {facts['run_dir_error']}",
            "use another --name or --run-dir",
        )
    elif facts["disk_bytes"] < DISK_BYTES:
        yield _warn(
            host,
            f"{facts['disk_bytes'] / 2**20:.0f} MiB are free on the disk of {facts['run_dir']}",
        )


def choose(
    names: Sequence[str], listening: Mapping[str, Sequence[str]], probed: Mapping[str, Results]
) -> dict[str, str]:
    """Return an address for each host: the first one that all other hosts reach, or else the one
    that most of them reach.

    Args:
        listening: Addresses of each host, the most likely address first.
        probed: Results of the probes to each address.
    """

    def reached(name: str, address: str) -> int:
        return sum(
            "ms" in probed.get(address, {}).get((other, name), {})
            for other in names
            if other != name
        )

    loopback = {
        name: next((address for address in listening[name] if is_loopback(address)), "")
        for name in names
    }
    one_machine = all(
        address and reached(name, address) == len(names) - 1 for name, address in loopback.items()
    )
    if len(names) > 1 and one_machine:
        return loopback
    chosen = {}
    for name in names:
        own = [address for address in listening[name] if not is_loopback(address)] or list(
            listening[name]
        )
        chosen[name] = (
            max(own, key=lambda address: (reached(name, address), -own.index(address)))
            if own
            else ""
        )
    return chosen


def judge_pairs(
    report: HostReport,
    names: Sequence[str],
    chosen: Mapping[str, str],
    probed: Mapping[str, Results],
    measured: Mapping[tuple[str, str], float],
) -> None:
    """Add a line for each pair of hosts that reach each other, or one line for all if there are
    many pairs. Add a line for each direction that failed.

    Args:
        measured: Rate of each (from, to), in Mbit/s.
    """
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    fine: list[tuple[str, str]] = []
    for a, b in pairs:
        closed = False
        for source, target in ((a, b), (b, a)):
            said = probed.get(chosen[target], {}).get((source, target), {"error": "not tried"})
            if "error" in said:
                closed = True
                report.add(
                    "fail",
                    f"{source} -> {target}",
                    *_closed(chosen, source, target, str(said["error"])),
                )
            elif "stuck" in said:
                closed = True
                report.add(
                    "fail",
                    f"{source} -> {target}",
                    f"small messages reach {chosen[target]}, but payloads do not: {said['stuck']}",
                    "a link silently drops packets of 1,280 bytes; check it with: "
                    f"ping -M do -s 1252 {chosen[target]} on {source}",
                )
            elif said["seen"] != chosen[source] and not is_loopback(chosen[source]):
                seen = f"{target} sees {source} as {said['seen']}, not as {chosen[source]}"
                report.add(
                    "warn",
                    f"{source} -> {target}",
                    f"{seen}: there is a NAT or another route between them",
                )
        if not closed:
            fine.append((a, b))
    if len(pairs) <= PAIRS_SHOWN:
        for a, b in fine:
            report.add(
                "ok",
                f"{a} <-> {b}",
                f"{chosen[a]} <-> {chosen[b]}  {_figures([(a, b)], chosen, probed, measured)}",
            )
    elif fine:
        figures = _figures(fine, chosen, probed, measured)
        report.add("ok", counted(len(fine), "pair"), f"of {len(pairs)} reach each other  {figures}")


def _closed(chosen: Mapping[str, str], source: str, target: str, error: str) -> tuple[str, str]:
    address = chosen[target]
    if is_loopback(address):
        text = f"{target} has only the address {address}, which other machines cannot reach"
        return (
            text,
            (
                f"address=... after {target} in a host file: an interface, a network such as "
                "10.0.0.0/8, or a number"
            ),
        )
    text = f"no reply at {address} from {chosen[source]}: {error}"
    why = (
        "a firewall? Peers listen on ports that the system chooses"
        if "refused" not in error
        else "a firewall that rejects connections?"
    )
    return text, f"{why}; over another network: address=... after {target} in a host file"


def _figures(
    pairs: Sequence[tuple[str, str]],
    chosen: Mapping[str, str],
    probed: Mapping[str, Results],
    measured: Mapping[tuple[str, str], float],
) -> str:
    ways = [way for a, b in pairs for way in ((a, b), (b, a))]
    times = [float(probed[chosen[target]][source, target]["ms"]) for source, target in ways]
    rates = [measured[way] for way in ways if way in measured]
    # TCP needs about ten round trips to reach the full speed of a link.
    least = "at least " if max(times) > SLOW_MS else ""
    told = [f"{_span(times, 2)} ms", *([f"{least}{_span(rates, 0)} Mbit/s"] if rates else [])]
    return "  ".join(told)


def _span(numbers: Sequence[float], digits: int) -> str:
    least, most = f"{min(numbers):.{digits}f}", f"{max(numbers):.{digits}f}"
    return least if least == most else f"{least}..{most}"
