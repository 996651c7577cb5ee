"""Weights of the servers of each host, from the measured speed of its network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2

from gossip import topologies
from gossip.config import Resolved
from gossip.topologies import within_bounds, write_weights
from gossip.transport import is_loopback

from .hostcheck import HostReport
from .hostlist import Host, place

MEASURED = "the speeds of the hosts"
SPREAD = 2.0
"""Hosts with a smaller ratio of speeds get equal weights: a measurement of a quarter of a second
shows only the order of magnitude."""
STEPS = 3  # of halving: the slowest hosts serve at least an eighth as often as the fastest
NAMED_MAX = 4


def speeds(names: Sequence[str], measured: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """Return the rate of each host in its slower direction, in Mbit/s. Empty if a host was not
    measured in both.

    A connection is as fast as the slower of its two ends, so the best connection of a host shows
    its own rate. A host with one fast connection is fast, even if the others are slow.

    Args:
        measured: (from, to) -> Mbit/s.
    """
    found: dict[str, float] = {}
    for name in names:
        there = [rate for (source, _), rate in measured.items() if source == name]
        back = [rate for (_, target), rate in measured.items() if target == name]
        if not there or not back or min(max(there), max(back)) <= 0:
            return {}
        found[name] = min(max(there), max(back))
    return found


def weights_of(carried: Mapping[str, float]) -> dict[str, int]:
    """Return weights of the hosts: powers of two, so that noise does not change them, and 1 for the
    slowest. Empty if no host is more than twice as fast as another."""
    best, worst = max(carried.values(), default=0.0), min(carried.values(), default=0.0)
    if best <= SPREAD * worst:
        return {}
    steps = {name: min(STEPS, round(log2(best / rate))) for name, rate in carried.items()}
    return {name: 2 ** (max(steps.values()) - step) for name, step in steps.items()}


def by_bandwidth(
    resolved: Resolved,
    hosts: Sequence[Host],
    addresses: Mapping[str, str],
    measured: Mapping[tuple[str, str], float],
    report: HostReport,
) -> Resolved:
    """Return the config with weights by bandwidth, unless the user has set weights or the hosts are
    similar. Add a line to the report."""
    config = resolved.config
    if resolved.sources["server_weights"] != "default" or all(map(is_loopback, addresses.values())):
        return resolved
    if config.pipeline is not None:
        return resolved  # Each stage has its own servers, and the plan includes the links.
    carried = speeds([host.name for host in hosts], measured)
    topology = topologies.load(config.topology)
    if "weights" in topology.bound:
        return resolved
    best = max(carried.values(), default=0.0)
    # On this host, sending local updates is as much load as receiving those of others as a
    # server. Serving less often would save nothing.
    full = {host.name for host in hosts if 2 * host.slots >= config.peers}
    found = weights_of({name: best if name in full else rate for name, rate in carried.items()})
    if "weights" in topology.options:
        for host in hosts:
            if host.name in full and carried and SPREAD * carried[host.name] < best:
                rates = f"{carried[host.name]:.0f} of {best:.0f} Mbit/s"
                count = f"{host.slots} of {config.peers} peers"
                report.add(
                    "ok",
                    "servers",
                    f"{host.name}, with {rates}, has {count}: equal load whichever peer serves",
                )
    elif carried:
        found = weights_of(carried)
    if not found:
        return resolved
    if "weights" not in topology.options:
        slowest = min(carried, key=lambda name: carried[name])
        rates = f"{carried[slowest]:.0f} of {max(carried.values()):.0f} Mbit/s"
        why = "takes no weights" if topology.rolling else "has no servers"
        report.add(
            "ok",
            "servers",
            f"{config.topology} {why}: {slowest}, with {rates}, carries as much as the others",
        )
        return resolved
    counted = within_bounds([found[host.name] for host in hosts for _ in range(host.slots)])
    placed = place(hosts)
    found = {host.name: counted[placed[host.name][0]] for host in hosts}
    report.add("ok", "servers", describe_weights(found, carried))
    return resolved.with_values(MEASURED, server_weights=_by_peer(hosts, found))


def describe_weights(weights: Mapping[str, int], carried: Mapping[str, float]) -> str:
    """``each peer of a, b serves 4 times as often as each of c (940 / 210 Mbit/s)``."""
    groups: dict[int, list[str]] = {}
    for name, weight in weights.items():
        groups.setdefault(weight, []).append(name)
    heavy = sorted((weight for weight in groups if weight > 1), reverse=True)
    first, *others = heavy
    parts = [
        (
            f"each peer of {_names(groups[first])} serves {first} times as often as each of "
            f"{_names(groups[1])}"
        )
    ]
    parts += [f"of {_names(groups[weight])} {weight} times" for weight in others]
    rates = [f"{max(carried[name] for name in groups[weight]):.0f}" for weight in (*heavy, 1)]
    return f"{', '.join(parts)} ({' / '.join(rates)} Mbit/s)"


def _names(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names) if more < 2 else f"{', '.join(names[:NAMED_MAX])} and {more} more"


def _by_peer(hosts: Sequence[Host], weights: Mapping[str, int]) -> str:
    placed = place(hosts)
    return write_weights({peer: weights[host.name] for host in hosts for peer in placed[host.name]})
