"""Files that cannot be written to: nothing is raised, it is told once,
and what is newest is kept."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from gossip.run import records
from gossip.run.records import KEPT_BYTES, Appender, WriteFailures


class Disk:
    """``os.write`` on a disk that has room for so many bytes more; a clock beside it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 10**9
        self.now = 100.0
        self.tries = 0
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)
        monkeypatch.setattr(records.time, "monotonic", lambda: self.now)

    def write(self, fd: int, data: bytes) -> int:
        self.tries += 1
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._write(fd, data[: self.room])
        self.room -= written
        return written


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def told() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def troubles(told: list[tuple[str, str]]) -> WriteFailures:
    return WriteFailures(lambda path, why: told.append((path, why)))


def test_lines_are_appended_behind_a_header(tmp_path: Path, troubles: WriteFailures) -> None:
    path = tmp_path / "a"
    for _ in range(2):
        file = Appender(path, troubles, b"head\n")
        file.append(b"one\n")
        file.close()
    assert path.read_bytes() == b"head\none\none\n"
    assert not troubles.lacking


def test_what_finds_no_room_is_told_of_once_kept_and_written_later(
    tmp_path: Path, troubles: WriteFailures, told: list[tuple[str, str]], disk: Disk
) -> None:
    file, other = Appender(tmp_path / "a", troubles), Appender(tmp_path / "b", troubles)
    disk.room = 6
    for line in (b"one\n", b"two\n", b"three\n"):
        file.append(line)
        other.append(line)
    assert told == [(str(tmp_path / "b"), "No space left on device")]
    assert (tmp_path / "a").read_bytes() == b"one\n"
    assert (tmp_path / "b").read_bytes() == b"on"
    disk.room, disk.now = 10**6, disk.now + 2.0
    for each in (file, other):
        each.append(b"four\n")
        each.close()
        assert each.path.read_bytes() == b"one\ntwo\nthree\nfour\n", "and no line is torn"
    assert troubles.lacking == {}, "nothing is missing in the end"


def test_a_full_disk_is_tried_once_a_second(
    tmp_path: Path, troubles: WriteFailures, disk: Disk
) -> None:
    file = Appender(tmp_path / "a", troubles)
    disk.room = 0
    for _ in range(100):
        file.append(b"line\n")
        disk.now += 0.1
    assert disk.tries <= 11


@pytest.mark.parametrize("gather", [False, True])
def test_what_is_kept_has_a_bound_and_what_is_lost_is_counted(
    tmp_path: Path, troubles: WriteFailures, disk: Disk, gather: bool
) -> None:
    file = Appender(tmp_path / "a", troubles, gather=gather)
    disk.room = 3
    line = b"x" * 1023 + b"\n"
    for _ in range(3000):
        file.append(line)
        file.flush()
    assert file._bytes <= KEPT_BYTES + len(line)
    lost = troubles.lacking[str(tmp_path / "a")]
    assert 3000 - lost == pytest.approx(1024, abs=2)
    disk.room, disk.now = 10**9, disk.now + 2.0
    file.close()
    lines = (tmp_path / "a").read_bytes().splitlines(keepends=True)
    assert len(lines) == 3000 - lost
    assert set(lines) == {line}


def test_what_still_waits_at_the_end_is_lost_and_counted(
    tmp_path: Path, troubles: WriteFailures, disk: Disk
) -> None:
    file = Appender(tmp_path / "a", troubles)
    disk.room = 0
    file.append(b"one\n")
    file.append(b"two\n")
    file.close()
    assert troubles.lacking == {str(tmp_path / "a"): 2}


def test_a_folder_that_is_not_there_may_come(
    tmp_path: Path, troubles: WriteFailures, told: list[tuple[str, str]], disk: Disk
) -> None:
    file = Appender(tmp_path / "folder" / "a", troubles)
    file.append(b"one\n")
    assert [why for _, why in told] == ["No such file or directory"]
    (tmp_path / "folder").mkdir()
    disk.now += 2.0
    file.append(b"two\n")
    assert (tmp_path / "folder" / "a").read_bytes() == b"one\ntwo\n"


def test_whatever_else_writes_says_whether_it_did(
    tmp_path: Path, troubles: WriteFailures, told: list[tuple[str, str]]
) -> None:
    assert troubles.try_to(tmp_path / "a", (tmp_path / "a").touch)
    assert not troubles.try_to(tmp_path / "b" / "c", (tmp_path / "b" / "c").touch)
    assert told == [(str(tmp_path / "b" / "c"), "No such file or directory")]
    assert troubles.lacking == {str(tmp_path / "b" / "c"): 0}


def test_a_file_that_was_deleted_lacks_all_its_lines_and_its_folder_stays_away(
    tmp_path: Path, troubles: WriteFailures, told: list[tuple[str, str]], disk: Disk
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    files = [Appender(folder / name, troubles, b"head\n", gather=name == "a") for name in "ab"]
    for file in files:
        file.append(b"one\n")
        file.flush()
    shutil.rmtree(folder)
    disk.now += 2.0
    for file in files:
        file.append(b"two\n")
        file.flush()
    assert told == [(str(folder / "a"), "No such file or directory")], (
        "at once, not only at the end"
    )
    for file in files:
        file.close()
    assert troubles.lacking == {str(folder / name): 2 for name in "ab"}
    assert not folder.exists()


def test_a_file_that_was_deleted_is_noticed_at_the_end_though_nothing_more_was_written(
    tmp_path: Path, troubles: WriteFailures, disk: Disk
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    file = Appender(folder / "a", troubles)
    file.append(b"one\n")
    file.flush()
    shutil.rmtree(folder)
    file.close()
    assert troubles.lacking == {str(folder / "a"): 1}


def test_a_file_that_alone_was_deleted_is_begun_again_and_lacks_what_it_had(
    tmp_path: Path, troubles: WriteFailures, disk: Disk
) -> None:
    file = Appender(tmp_path / "a", troubles, b"head\n")
    file.append(b"one\n")
    disk.room = 2
    file.append(b"two\n")
    file.path.unlink()
    disk.room, disk.now = 10**6, disk.now + 2.0
    file.append(b"three\n")
    file.close()
    assert file.path.read_bytes() == b"head\ntwo\nthree\n", "a line of which half was lost is whole"
    assert troubles.lacking == {str(tmp_path / "a"): 1}


@pytest.mark.parametrize("room", [0, 3])
def test_a_file_that_found_no_room_for_long_begins_with_its_header(
    tmp_path: Path, troubles: WriteFailures, disk: Disk, room: int
) -> None:
    disk.room = room
    file = Appender(tmp_path / "a", troubles, b"head\n")
    line = b"x" * 1023 + b"\n"
    for _ in range(1500):
        file.append(line)
    disk.room, disk.now = 10**9, disk.now + 2.0
    file.close()
    lines = file.path.read_bytes().splitlines(keepends=True)
    assert lines[0] == b"head\n"
    assert set(lines[1:]) == {line}
    assert troubles.lacking == {str(tmp_path / "a"): 1500 - len(lines[1:])}, (
        "the header is no line that could be lost"
    )
