"""Which addresses peers may listen on, and connect to on another's word."""

from __future__ import annotations

from typing import Any

import pytest

from gossip.config import resolve
from gossip.errors import ConfigError
from gossip.transport.sockets import endpoint

ONE_HOST = ["10.0.0.7", "fd00::7"]
NO_HOST = ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "example.org", "", "10.0.0.0/8"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1", "[::1]"])
@pytest.mark.parametrize("insecure", [False, True])
def test_loopback_is_always_allowed(host: str, insecure: bool) -> None:
    assert resolve({"host": host, "insecure": insecure}).config.host == host


@pytest.mark.parametrize("host", ONE_HOST)
def test_another_address_takes_keys_or_insecure(host: str) -> None:
    with pytest.raises(ConfigError, match="without keys, any process that reaches it"):
        resolve({"host": host, "keys": False})
    assert resolve({"host": host, "keys": False, "insecure": True}).config.host == host
    assert resolve({"host": host}).config.host == host


@pytest.mark.parametrize(
    ("given", "keyed"),
    [
        ({}, False),
        ({"host": "::1"}, False),
        ({"keys": True}, True),
        ({"host": "10.0.0.7"}, True),
        ({"host": "10.0.0.7", "keys": True}, True),
        ({"host": "10.0.0.7", "insecure": True}, False),
    ],
)
def test_where_peers_listen_decides_about_keys_unless_somebody_says_so(
    given: dict[str, Any], keyed: bool
) -> None:
    assert resolve(given).config.keyed is keyed


def test_insecure_keys_are_a_contradiction() -> None:
    with pytest.raises(ConfigError, match="leave one of them out"):
        resolve({"keys": True, "insecure": True})


@pytest.mark.parametrize("host", NO_HOST)
def test_what_others_cannot_be_told_is_refused_even_insecurely(host: str) -> None:
    for insecure in (False, True):
        with pytest.raises(ConfigError, match="address of one host"):
            resolve({"host": host, "insecure": insecure})


@pytest.mark.parametrize(
    ("address", "securely", "insecurely"),
    [
        ("tcp://127.0.0.1:5", True, True),
        ("tcp://[::1]:5", True, True),
        ("tcp://10.0.0.7:5", False, True),
        ("tcp://[fd00::7]:65535", False, True),
        ("tcp://10.0.0.7:0", False, False),
        ("tcp://10.0.0.7:65536", False, False),
        ("tcp://0.0.0.0:5", False, False),
        ("tcp://224.0.0.1:5", False, False),
        ("tcp://10.0.0.256:5", False, False),
        ("tcp://example.org:5", False, False),
        ("ipc://10.0.0.7:5", False, False),
    ],
)
def test_nobody_connects_beyond_loopback_on_a_peers_word_unless_told_so(
    address: str, securely: bool, insecurely: bool
) -> None:
    assert (endpoint(address), endpoint(address, anywhere=True)) == (securely, insecurely)
