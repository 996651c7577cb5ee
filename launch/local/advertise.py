"""Addresses of this machine that it can advertise. The hostname is not used."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

from gossip.errors import ConfigError
from gossip.transport import is_loopback


def own_address(wanted: str) -> str:
    """Return the address of this machine that ``wanted`` names. ``wanted`` is the address itself,
    its interface, or a network (CIDR) that contains it.

    Raises: ConfigError: ``wanted`` names no address of this machine, or several.
    """
    addresses = own_addresses()
    numbers = addresses_named(wanted, addresses)
    if numbers is None:
        raise ConfigError(f"{wanted!r} is not an interface, address or network", _have(addresses))
    if not numbers:
        raise ConfigError(f"this machine has no address {wanted}", _have(addresses))
    # An interface usually has one IPv4 and one IPv6 address. Prefer IPv4.
    same = [number for number in numbers if (":" in number) == (":" in numbers[0])]
    if len(same) > 1:
        raise ConfigError(f"{wanted} has several addresses: {', '.join(same)}", "name one of them")
    return numbers[0]


def addresses_named(wanted: str, addresses: Mapping[str, list[str]]) -> list[str] | None:
    """Return those of the addresses that ``wanted`` names; None if ``wanted`` is not an address,
    an interface or a network.

    Args:
        addresses: Addresses of this machine by interface.
    """
    if wanted in addresses:
        return addresses[wanted]
    try:
        # An address without a prefix length parses as a network of one address.
        network = ipaddress.ip_network(wanted.strip("[]"), strict=False)
    except ValueError:
        return None
    everything = [number for numbers in addresses.values() for number in numbers]
    return [number for number in everything if ipaddress.ip_address(number) in network]


def resolve_advertised(wanted: str) -> str:
    """Return the address that ``wanted`` names, for use by other machines. Raises: ConfigError:
    ``wanted`` is a loopback address, or the name of this machine."""
    names_itself = wanted in ("localhost", socket.gethostname())
    found = "" if names_itself else own_address(wanted)
    if not names_itself and not is_loopback(found):
        return found
    leads = (
        "the name of this machine, which usually resolves to 127.0.0.1 or 127.0.1.1"
        if names_itself
        else f"{found} on every machine"
    )
    others = {
        interface: usable
        for interface, numbers in own_addresses().items()
        if (usable := [number for number in numbers if not is_loopback(number)])
    }
    instead = (
        f"--advertise {next(iter(others))}; {_have(others)}"
        if others
        else "this machine has no address that other machines reach"
    )
    raise ConfigError(
        f"peers cannot advertise {wanted!r}: it is {leads}, so other machines cannot reach "
        "this one with it",
        f"{instead}. If all peers run on this machine, leave it out",
    )


def own_addresses() -> dict[str, list[str]]:
    """Return the addresses of each interface, IPv4 first. Link-local addresses with an interface
    (fe80::1%eth0) are left out, because other machines cannot use them."""
    import psutil  # Imported here: it takes 50 ms, which `gossip --help` must not need.

    found: dict[str, list[str]] = {}
    for interface, entries in psutil.net_if_addrs().items():
        numbers = [
            entry.address for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)
        ]
        if usable := [number for number in numbers if "%" not in number]:
            found[interface] = sorted(usable, key=lambda number: ":" in number)
    return found


def _have(addresses: dict[str, list[str]]) -> str:
    return "it has " + "; ".join(
        f"{interface} {', '.join(numbers)}" for interface, numbers in sorted(addresses.items())
    )
