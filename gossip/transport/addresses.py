"""Checks of host addresses, and choice of the address of this host. The name of this host is never
resolved, because it often resolves to a loopback address."""

from __future__ import annotations

import ipaddress
import socket


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_one_host(host: str) -> bool:
    """Whether ``host`` is the IP address of a single host. 0.0.0.0 and multicast groups are not
    single hosts."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return not (address.is_unspecified or address.is_multicast)


def source_towards(host: str) -> str:
    """Return the local address from which this host would send packets to ``host``; "" if there is
    no route. No packet is sent."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return ""
