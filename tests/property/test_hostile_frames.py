"""The campaign of hostile frames (``make frames``), a small part of it; and that it finds what it
is for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from effort import effort

from gossip.core.ledger import packing
from gossip.errors import Malformed
from gossip.launch.ssh import remote
from gossip.training import state
from gossip.transport import lending
from gossip.vectors import sparse

sys.path.insert(0, str(Path(__file__).parents[1] / "frames"))

import hostile

PARTS, FRAMES = effort((2, 30_000), (4, 2_000_000))
"""Several processes share them."""
BUSY_S = 5 * hostile.FRAME_CPU_S
"""Processor time of a frame beside whatever else a machine does; what was found took 100 ms."""


@pytest.mark.timeout(effort(300, 3000))
@pytest.mark.parametrize("part", range(PARTS))
def test_no_frame_raises_takes_long_or_grows(part: int) -> None:
    count = FRAMES // PARTS
    report = hostile.campaign(range(part * count, (part + 1) * count), most_s=BUSY_S)
    assert report.frames == count
    assert report.findings == []
    assert report.grown_mb < hostile.GROWTH_MAX_MB
    assert set(report.slowest) == {reader.name for reader in hostile.readers()}


def test_every_reader_takes_some_frames_and_refuses_others() -> None:
    """Else it would not be reached, or not be asked anything."""
    report = hostile.campaign(range(40 * len(hostile.turns())), most_s=BUSY_S)
    for reader in hostile.readers():
        head = f"{reader.name}: "
        ends = {end.removeprefix(head) for end in report.ends if end.startswith(head)}
        assert ends & {"refused", "nothing"}, reader.name
        # a snapshot that is taken gives nothing back
        assert ends & {"taken", "nothing"}, reader.name


def test_the_same_number_is_the_same_frame() -> None:
    for reader in hostile.readers():
        ends = {
            hostile.with_end(reader, reader.frame(Random("7")))
            for _ in range(2)
            # which keep or draw something
            if reader.name not in ("headers", "lent", "sessions", "unix")
        }
        assert len(ends) <= 1


def broken_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "Malformed", lambda why: IndexError(why))


def broken_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is nested too deep is left to the reader of JSON."""
    monkeypatch.setattr(packing, "RecursionError", Malformed, raising=False)
    monkeypatch.setattr(packing, "LISTS_MAX", 10**9)


def broken_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LISTS_MAX", 10**9)
    monkeypatch.setattr(packing, "VALUES_MAX", 10**9)
    monkeypatch.setattr(packing, "UNPACKED_BYTES_MAX", 2**22)
    monkeypatch.setattr(hostile, "UNPACKED_BYTES_MAX", 2**22)
    hostile.bombs.cache_clear()


def broken_nesting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_DAMAGED", (KeyError, TypeError, IndexError, ValueError))


def broken_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent's word that is no dict, or counts to infinity, ends what reads that host."""
    monkeypatch.setattr(remote, "NONSENSE", (LookupError, OSError, TypeError, ValueError))


def broken_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a sender's memory more is read than there is."""
    monkeypatch.setattr(
        lending.MappedMemory, "part", lambda mapped, at, nbytes: mapped._bytes[at : at + nbytes]
    )


@pytest.mark.parametrize(
    ("reader", "defect", "why"),
    [
        ("states", broken_nesting, "raised RecursionError"),
        ("hosts", broken_words, "raised"),
        ("unix", broken_bounds, "raised"),
        ("topk:0.4", broken_places, "raised IndexError"),
        ("tables", broken_depth, "raised RecursionError"),
        ("tables", broken_size, "took"),
    ],
)
def test_a_defect_is_found(
    reader: str,
    defect: Callable[[pytest.MonkeyPatch], None],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not hostile.campaign(range(40), reader, most_s=BUSY_S).findings, "without the defect"
    defect(monkeypatch)
    hostile.readers.cache_clear()
    report, numbers = hostile.FrameReport(), iter(range(400))
    order = [each for each in hostile.turns() if each.name == reader]
    while not any(why in finding[2] for finding in report.findings):
        number = next(numbers)  # or it is not found
        hostile.read_one(number, order[number % len(order)], report, BUSY_S)
    # What a defect has left in a reader is not for the tests behind this one.
    hostile.readers.cache_clear()
    if defect is broken_size:  # to make them takes half a second
        hostile.bombs.cache_clear()
