"""A peer whose address cannot be written down: nobody can meet it, which is said,
and it tries again."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from event_rows import event_row

from gossip.launch.local.awaiting import ReachabilityProbe
from gossip.launch.report.run_model import RunModel
from gossip.observe import read_event
from gossip.run.records import WriteFailures
from gossip.run.rendezvous import Announcement, SeedFolder, read_seed


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A disk that has room for files, and none for what is to be in them. ``undo()`` makes room."""

    def refuse(path: Path, *_: Any) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", refuse)
    return monkeypatch


def test_an_address_that_finds_no_room_leaves_nothing_behind(
    full: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="No space left"):
        SeedFolder(tmp_path / "seeds", 0, 2).announce("tcp://a:1", "tcp://a:2", 0)
    assert os.listdir(tmp_path / "seeds") == []


def test_it_is_written_when_there_is_room(full: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seeds = tmp_path / "seeds"
    told: list[dict[str, Any]] = []
    troubles = WriteFailures(lambda path, why: told.append({"event": "cannot_write"}))
    announcement = Announcement(
        seeds,
        lambda: SeedFolder(seeds, 0, 2).announce("tcp://a:1", "tcp://a:2", 0),
        lambda event, **fields: told.append({"event": event, **fields}),
        troubles,
    )
    for now in (10.0, 10.5, 11.0, 12.0):
        announcement.tick(now)
    assert told == [{"event": "unannounced", "path": str(seeds), "why": "No space left on device"}]
    assert troubles.lacking == {str(seeds): 0}
    full.undo()
    announcement.tick(12.5)
    assert read_seed(seeds, 0) is None, "not before its time"
    for now in (13.0, 14.0, 15.0):
        announcement.tick(now)
    assert read_seed(seeds, 0) is not None
    assert [each["event"] for each in told] == ["unannounced", "announced"]
    assert not troubles.lacking


async def test_the_waiting_line_says_that_peers_cannot_meet(tmp_path: Path) -> None:
    view = RunModel(2)
    rows: list[dict[str, Any]] = [
        event_row(event, peer, 5.0 + peer, path=f"{tmp_path}/seeds", why="No space left on device")
        for peer in range(2)
        for event in ("started", "unannounced")
    ]
    lines = [line for row in rows for line in view.apply(read_event({**row}))]
    assert lines == [
        (
            f"! peers cannot meet: cannot write {tmp_path}/seeds (No space left on device), where "
            "they exchange addresses"
        ),
        "  make room on the disk, or find out what changed the folder",
    ]
    tries = ReachabilityProbe(tmp_path, {0, 1}, view.lives.unannounced)
    assert tries.troubles([0, 1], shared=True) == []
    assert tries._task is not None
    await tries._task
    assert tries.troubles([0, 1], shared=True) == [
        (
            f"{peer} cannot be reached: its address cannot be written to {tmp_path}/seeds (No "
            "space left on device)"
        )
        for peer in (0, 1)
    ]
    tries.close()
    view.apply(read_event(event_row("announced", 0, 9.0)))
    assert list(view.lives.unannounced) == [1]
