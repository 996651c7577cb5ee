"""Which of its addresses a machine says it is reached at."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import psutil
import pytest

from gossip.errors import ConfigError
from gossip.launch.local.advertise import own_address, own_addresses
from gossip.launch.registry.join_calls import join, source_towards, split

ADDRESSES = {
    "lo": ["127.0.0.1", "::1"],
    "eth0": ["10.0.0.7", "fd00::7", "fe80::7%eth0"],
    "eth1": ["192.168.1.7", "192.168.1.8"],
    "mac": [],
}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def family(number: str) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in number else socket.AF_INET

    found = {
        name: [SimpleNamespace(address=number, family=family(number)) for number in numbers]
        for name, numbers in ADDRESSES.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)


def test_an_interface_a_network_and_a_number_are_understood() -> None:
    assert own_address("eth0") == "10.0.0.7"
    assert own_address("10.0.0.0/8") == "10.0.0.7"
    assert own_address("fd00::/16") == "fd00::7"
    assert own_address("192.168.1.8") == "192.168.1.8"
    assert own_address("[fd00::7]") == "fd00::7"


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("eth1", "eth1 has several addresses: 192.168.1.7, 192.168.1.8"),
        ("192.168.0.0/16", "192.168.0.0/16 has several addresses: 192.168.1.7, 192.168.1.8"),
        ("172.16.0.0/12", "this machine has no address 172.16.0.0/12"),
        ("10.0.0.9", "this machine has no address 10.0.0.9"),
        ("wlan0", "'wlan0' is not an interface, address or network"),
    ],
)
def test_what_this_machine_has_not_or_has_twice_is_refused(wanted: str, why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        own_address(wanted)
    assert str(raised.value) == why
    if "several" not in why:
        assert (
            raised.value.hint
            == "it has eth0 10.0.0.7, fd00::7; eth1 192.168.1.7, 192.168.1.8; lo 127.0.0.1, ::1"
        )


def test_addresses_that_name_an_interface_are_of_no_use_to_others() -> None:
    assert own_addresses()["eth0"] == ["10.0.0.7", "fd00::7"]


def test_the_address_towards_a_loopback_host_is_loopback() -> None:
    assert source_towards("127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize("address", ["10.0.0.5:7421", "[fe80::1]:7421"])
def test_addresses_come_apart_and_together(address: str) -> None:
    assert join(*split(address)) == address


@pytest.mark.parametrize(
    "address",
    ["", "10.0.0.5", "10.0.0.5:", ":7421", "10.0.0.5:70000", "10.0.0.5:0", "fe80::1:7421", "a:b"],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|needs brackets"):
        split(address)
