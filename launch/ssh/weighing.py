"""Weights of servers: how often the peers of each host serve, from the measured rates of the
network."""

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
"""Ratio of rates up to which hosts get equal weights. A measurement of a quarter of a second shows
only the order of magnitude."""
# maximum number of halvings: the slowest hosts serve at least an eighth as often as the fastest
STEPS = 3
NAMED_MAX = 4


def speeds(names: Sequence[str], measured: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """Return the rate of each host in its slower direction, in Mbit/s. Return {} if a host was not
    measured in both directions.

    A connection is as fast as the slower of its two hosts, so the fastest connection of a host
    shows the rate of that host, even if its other connections are slow.

    Args:
        measured: Rate of each (from, to), in Mbit/s.
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
    """Return the weights of the hosts. They are powers of two, so that noise rarely changes them,
    and 1 for the slowest host. Return {} if no host is more than twice as fast as another."""
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
    """Return the settings with weights from the measured rates, and add a line to the report. If
    the user has set weights, or the hosts are similar, the settings are unchanged."""
    config = resolved.config
    if resolved.sources["server_weights"] != "default" or all(map(is_loopback, addresses.values())):
        return resolved
    if config.pipeline is not None:
        # Each stage has its own servers, and the plan already accounts for the links.
        return resolved
    carried = speeds([host.name for host in hosts], measured)
    topology = topologies.load(config.topology)
    if "weights" in topology.bound:
        return resolved
    best = max(carried.values(), default=0.0)
    # If a host has at least half of the peers, sending their updates loads its link as much as
    # receiving the other updates as a server. Serving less often would save nothing.
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
                    f"{host.name}, with {rates}, has {count}: equal load for any choice of server",
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
            f"{config.topology} {why}: {slowest}, with {rates}, has as much load as the others",
        )
        return resolved
    counted = within_bounds([found[host.name] for host in hosts for _ in range(host.slots)])
    placed = place(hosts)
    found = {host.name: counted[placed[host.name][0]] for host in hosts}
    report.add("ok", "servers", describe_weights(found, carried))
    return resolved.with_values(MEASURED, server_weights=_by_peer(hosts, found))


def describe_weights(weights: Mapping[str, int], carried: Mapping[str, float]) -> str:
    """Return a text such as ``each peer of a, b serves 4 times as often as each of c (940 / 210
    Mbit/s)``."""
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
