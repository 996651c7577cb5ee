"""What the number of a host may be. Names of hosts are never looked up: who asks decides what the answer is."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_one_host(host: str) -> bool:
    """Whether it is the number of one host: not of all (0.0.0.0), nor of a group."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return not (address.is_unspecified or address.is_multicast)
