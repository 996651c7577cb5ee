from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossip.errors import AddressInUse
from gossip.transport.holders import _duration, holder_of


@pytest.fixture
def port() -> Iterator[int]:
    """One that this process listens on."""
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        end.listen()
        yield end.getsockname()[1]


@pytest.mark.parametrize("place", ["", "peer-3"])
def test_a_process_of_a_run_is_told_with_the_name_of_the_run(
    port: int, tmp_path: Path, place: str
) -> None:
    folder = tmp_path / place
    folder.mkdir(exist_ok=True)
    (tmp_path / "config.json").write_text(json.dumps({"name": "digits-0a1b"}))
    with (folder / "events.jsonl").open("a"):
        holder = holder_of(port)
    assert holder is not None
    assert (holder.pid, holder.run) == (os.getpid(), "digits-0a1b")
    assert str(holder).startswith(f"pid {os.getpid()} (gossip, run digits-0a1b, up ")


def test_any_other_process_is_told_by_its_command(port: int) -> None:
    holder = holder_of(port)
    assert holder is not None
    assert holder.run == ""
    assert str(holder).startswith(f"pid {os.getpid()} ({holder.command}, up ")


def test_a_port_that_nobody_has_has_no_holder() -> None:
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        assert holder_of(end.getsockname()[1]) is None, "it is bound, and nobody listens"


def test_the_error_says_how_to_get_the_port() -> None:
    error = AddressInUse(
        "tcp://127.0.0.1:7421", "pid 21411 (gossip, run demo-11aa, up 3 h)", "demo-11aa"
    )
    assert (
        str(error) == "tcp://127.0.0.1:7421 is taken by pid 21411 (gossip, run demo-11aa, up 3 h)"
    )
    assert error.hint == "leave the port out: a free one is chosen; or gossip stop demo-11aa"
    assert AddressInUse("tcp://127.0.0.1:7421").hint == "leave the port out: a free one is chosen"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(3.2, "3 s"), (119.0, "119 s"), (120.0, "2 min"), (3 * 3600, "3 h"), (2e5, "2 days")],
)
def test_a_time_is_told_in_the_largest_unit_that_makes_sense(seconds: float, said: str) -> None:
    assert _duration(seconds) == said
