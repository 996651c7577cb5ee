"""Assignment of the peers of a pipeline plan to hosts. It depends only on names, never on the order
of hosts."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gossip.errors import ConfigError, suggest_name
from gossip.launch.report import counted

from .hostlist import Host

ABOUT_FILE = "in a host file: HOST peers=NAME,NAME"


def by_plan(hosts: Sequence[Host], names: Sequence[str], where: str) -> tuple[Host, ...]:
    """Return the hosts to which peers of the plan are assigned, with the ids of these peers.

    A host gets the peers that the user named for it, or else the peer with the name of the host,
    because by default a profile is named after its machine. The order of hosts is ignored, because
    the machines of a plan are unequal.

    Args:
        names: Names of the plan's peers, by id.
        where: Name of the plan in error messages.
    Raises: ConfigError: A peer has no host or two hosts, or a host has an unknown peer or a number
    of peers that does not fit.
    """
    own = {host.name: _peers_of(host, names, where) for host in hosts}
    _check_once(own, where)
    if missing := [name for name in names if all(name not in found for found in own.values())]:
        raise _lacking(missing, own, names, where)
    return tuple(
        replace(
            host,
            slots=len(own[host.name]),
            peers=own[host.name],
            numbers=tuple(names.index(name) for name in own[host.name]),
        )
        for host in hosts
        if own[host.name]
    )


def unplanned(hosts: Iterable[Host], planned: Iterable[Host]) -> str:
    """Return a warning about hosts that have no peer of the plan; "" if all have one."""
    used = {host.name for host in planned}
    rest = [host.name for host in hosts if host.name not in used]
    if not rest:
        return ""
    return f"! nothing is started on {', '.join(rest)}: the plan has no peer there"


def check_unnamed(hosts: Iterable[Host]) -> None:
    """Check the hosts of a run without a plan. Raises: ConfigError: A host has names of peers,
    which need a plan."""
    for host in hosts:
        if host.peers:
            raise ConfigError(
                f"{host.peers[0]} at {host.name} is the name of a peer, but there is no plan",
                f"--plan plan.toml, or a number of peers: -H {host.target}:{len(host.peers)}",
            )


def _peers_of(host: Host, names: Sequence[str], where: str) -> tuple[str, ...]:
    for name in host.peers:
        if name not in names:
            raise ConfigError(
                f"{host.name}: {where} has no peer {name}{suggest_name(name, names)}",
                f"its peers are {', '.join(names)}",
            )
    found = host.peers or tuple(
        name for name in names if any(_is_same(name, own) for own in _names_of(host))
    )
    found = tuple(sorted(dict.fromkeys(found), key=names.index))
    if found and host.slots not in (1, len(found)):
        raise ConfigError(
            f"{host.name} gets {counted(host.slots, 'peer')}, but {where} has "
            f"{len(found)} there: {', '.join(found)}",
            f"leave the number out, or name its peers: {_named(found, host)}; {ABOUT_FILE}",
        )
    return found


def _names_of(host: Host) -> tuple[str, ...]:
    """Return the names that a profile of the host may have."""
    return (host.name, socket.gethostname()) if host.is_local else (host.name,)


def _is_same(name: str, other: str) -> bool:
    """Whether two host names are the same, or differ only by a domain: ``lab1`` also matches
    ``lab1.local``."""
    short, long = sorted((name, other), key=len)
    return short == long or ("." not in short and long.startswith(f"{short}."))


def _check_once(own: dict[str, tuple[str, ...]], where: str) -> None:
    seen: dict[str, str] = {}
    for host, names in own.items():
        for name in names:
            if name in seen:
                raise ConfigError(
                    f"the peer {name} of {where} would be on {seen[name]} and on {host}",
                    f"name it once: -H {name}={host}; {ABOUT_FILE}",
                )
            seen[name] = host


def _lacking(
    missing: Sequence[str], own: dict[str, tuple[str, ...]], names: Sequence[str], where: str
) -> ConfigError:
    host_of = {name: host for host, found in own.items() for name in found}
    some = f"the peer {missing[0]}" if len(missing) == 1 else f"the peers {', '.join(missing)}"
    free = [host for host, found in own.items() if not found]
    rest = f"; {', '.join(free)} {'has' if len(free) == 1 else 'have'} no peer" if free else ""
    said = ",".join([f"{name}={host_of.get(name, 'HOST')}" for name in names])
    return ConfigError(
        f"no host has {some}: {where} has {', '.join(names)}, the hosts are {', '.join(own)}{rest}",
        f"a host gets the peer with its own name, or the one you name: -H {said}; {ABOUT_FILE}",
    )


def _named(names: Iterable[str], host: Host) -> str:
    return "-H " + ",".join([f"{name}={host.target}" for name in names])
