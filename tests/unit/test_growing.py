"""Files of JSON lines that are read while they grow: each row once, whatever happens to them."""

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gossip.launch.report.growing import LATE_S_MAX, GrowingFile, RunFiles, in_order


def line(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@pytest.fixture
def growing(path: Path) -> GrowingFile:
    return GrowingFile(path.parent, path.name)


def numbers(growing: GrowingFile) -> list[int]:
    return [row["n"] for row in growing.rows()]


def test_a_row_is_given_out_once_when_its_line_ends(path: Path, growing: GrowingFile) -> None:
    assert numbers(growing) == []  # there is no such file yet
    append(path, line(schema="gossip.events/2") + line(n=1) + line(n=2)[:4])
    assert numbers(growing) == [1]
    append(path, line(n=2)[4:])
    assert numbers(growing) == [2]
    assert numbers(growing) == []


def test_a_line_torn_by_a_crash_is_counted_and_left_out(path: Path, growing: GrowingFile) -> None:
    append(path, line(n=1) + b'{"n":2, "ev\n' + line(n=3) + b"[]\n")
    assert numbers(growing) == [1, 3]
    assert growing.refused == 2


def test_a_file_is_followed_through_its_rotations(path: Path, growing: GrowingFile) -> None:
    append(path, line(n=1))
    assert numbers(growing) == [1]
    append(path, line(n=2))
    path.rename(f"{path}.000001")
    append(path, line(n=3))
    path.rename(f"{path}.000002")
    Path(f"{path}.000001.gz").write_bytes(gzip.compress(Path(f"{path}.000001").read_bytes()))
    os.unlink(f"{path}.000001")
    append(path, line(n=4))
    assert numbers(growing) == [2, 3, 4]
    append(path, line(n=5))
    assert numbers(growing) == [5]
    assert not growing.replaced


def test_a_file_between_two_names_is_read_the_next_time(path: Path, growing: GrowingFile) -> None:
    append(path, line(n=1))
    assert numbers(growing) == [1]
    append(path, line(n=2))
    path.rename(f"{path}.000001")
    assert numbers(growing) == []  # the new one is not there yet
    append(path, line(n=3))
    assert numbers(growing) == [2, 3]


def test_another_file_in_its_place_is_not_its_rest(path: Path, growing: GrowingFile) -> None:
    append(path, line(n=1))
    assert numbers(growing) == [1]
    scratch = path.with_name("new")
    scratch.write_bytes(line(n=7) + line(n=8))
    scratch.replace(path)
    assert numbers(growing) == []
    assert growing.replaced


def test_a_line_longer_than_any_of_ours_is_not_kept(path: Path, growing: GrowingFile) -> None:
    append(path, b'"' + b"x" * (3 << 20) + b'"\n' + line(n=2))
    assert numbers(growing) == [2]
    assert growing.refused


def test_a_link_is_not_followed(path: Path, growing: GrowingFile) -> None:
    other = path.with_name("other")
    other.write_bytes(line(n=1))
    path.symlink_to(other)
    assert numbers(growing) == []
    assert "link" in growing.why_not


def test_rows_of_several_files_come_by_time_on_the_wall_clock(tmp_path: Path) -> None:
    for peer, walls in ((0, (100.0, 102.0)), (1, (101.0, 103.0))):
        (tmp_path / f"peer-{peer}").mkdir()
        rows = [line(t=7.0 * (1 - peer), wall=wall, peer=peer) for wall in walls]
        (tmp_path / f"peer-{peer}" / "events.jsonl").write_bytes(b"".join(rows))
    files = RunFiles(tmp_path)
    assert [(event.t, event.peer) for event in files.events()] == [
        (100.0, 0),
        (101.0, 1),
        (102.0, 0),
        (103.0, 1),
    ]
    assert files.peers() == [0, 1]


def test_rows_that_a_launcher_has_read_late_come_by_time(tmp_path: Path) -> None:
    """It reads from one peer after the other: that peer 1 was killed it reads last."""

    def row(n: int, wall: float) -> bytes:
        return line(round=n, wall=wall)

    path = tmp_path / "events.jsonl"
    append(path, row(2, 10.2) + row(3, 10.4) + row(1, 10.0) + row(5, 10.9) + row(4, 10.9))
    append(path, row(6, 30.0) + row(8, 32.0) + row(7, 31.0))
    append(path, row(11, 900.0) + row(9, 33.0) + row(10, 33.5))  # a clock was wrong for a moment
    files = RunFiles(tmp_path)
    assert [event.round for event in files.events()] == [1, 2, 3, 5, 4, 6, 7, 8, 9, 10, 11]
    append(path, row(12, 9.0))
    assert [event.round for event in files.events()] == [12], "it is given out at once"


def test_no_more_rows_are_held_back_than_may_be_late() -> None:
    taken = []

    def rows() -> Iterator[dict[str, Any]]:
        for number in range(1000):
            taken.append(number)
            yield {"t": number / 10}

    assert next(in_order(rows())) == {"t": 0.0}
    assert len(taken) == round(10 * LATE_S_MAX) + 2


def test_what_launchers_have_written_goes_before_what_peers_have(tmp_path: Path) -> None:
    (tmp_path / "peer-0").mkdir()
    (tmp_path / "peer-0" / "events.jsonl").write_bytes(line(wall=1.0, round=1))
    files = RunFiles(tmp_path)
    (tmp_path / "events-3.jsonl").write_bytes(line(wall=2.0, round=2))
    (tmp_path / "events.jsonl").write_bytes(line(wall=3.0, round=3))
    assert [event.round for event in files.events()] == [2, 3]
