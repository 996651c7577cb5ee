"""The campaign of hostile frames (``make frames``), a small part of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from effort import effort

sys.path.insert(0, str(Path(__file__).parents[1] / "frames"))

import hostile

PARTS, FRAMES = effort((2, 16_000), (4, 2_000_000))
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
