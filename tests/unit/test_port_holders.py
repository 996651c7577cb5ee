from __future__ import annotations

import os
import socket

import psutil

from gossip.errors import AddressInUse
from gossip.transport import find_listener


def test_a_port_in_use_names_the_process_that_listens() -> None:
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        port = end.getsockname()[1]
        assert find_listener(port) is None, "it is bound, and nobody listens"
        end.listen()
        assert find_listener(port) == f"pid {os.getpid()} ({psutil.Process().name()})"


def test_the_error_says_how_to_get_a_port() -> None:
    error = AddressInUse("tcp://127.0.0.1:7421", "pid 21411 (python)")
    assert str(error) == "tcp://127.0.0.1:7421 is taken by pid 21411 (python)"
    assert error.hint.startswith("leave the port out")
