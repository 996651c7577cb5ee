"""Files of lines are cut when they are large, and no line is lost by that."""

import gzip
import json
from pathlib import Path

import pytest

from gossip.launch.report import growing as growing_files
from gossip.launch.report.growing import GrowingFile
from gossip.run import records, rotation, telemetry
from gossip.run.records import Appender, WriteFailures
from gossip.run.telemetry import JsonLines, read_lines

HEADER = b'{"schema":"x"}\n'


def appender(path: Path, rotate_bytes: int = 100) -> Appender:
    def no_trouble(path: str, why: str) -> None:
        raise AssertionError((path, why))

    return Appender(path, WriteFailures(no_trouble), HEADER, rotate_bytes=rotate_bytes)


def line(number: int) -> bytes:
    return json.dumps({"n": number, "filled": "x" * 40}).encode() + b"\n"


def numbers(path: Path) -> list[int]:
    return [row["n"] for row in read_lines(path)]


def compressed(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number:06d}.gz")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compresses in this thread."""

    class AtOnce:
        def __init__(self, target: object, args: tuple[Path], daemon: bool) -> None:
            self.path = args[0]

        def start(self) -> None:
            with gzip.open(f"{self.path}.gz", "wb") as packed:
                packed.write(self.path.read_bytes())
            self.path.unlink()

    monkeypatch.setattr(rotation.threading, "Thread", AtOnce)


@pytest.mark.usefixtures("at_once")
def test_every_line_is_read_in_order_from_all_segments(tmp_path: Path) -> None:
    path = tmp_path / "commits.jsonl"
    file = appender(path)
    for number in range(20):
        file.append(line(number))
    file.close()
    assert len(rotation.segments(path)) >= 5
    assert [each.suffix == ".gz" for each in rotation.segments(path)][-2:] == [True, False]
    assert numbers(path) == list(range(20))


@pytest.mark.usefixtures("at_once")
def test_who_follows_the_file_gets_every_line_once(tmp_path: Path) -> None:
    path = tmp_path / "commits.jsonl"
    file, growing = appender(path), GrowingFile(tmp_path, path.name)
    seen = []
    for number in range(40):
        file.append(line(number))
        if number % 7 == 0:
            seen += [row["n"] for row in growing.rows()]
    assert seen + [row["n"] for row in growing.rows()] == list(range(40))


def test_a_new_life_numbers_its_segments_on(tmp_path: Path) -> None:
    path = tmp_path / "commits.jsonl"
    for first in (0, 5):
        file = appender(path)
        for number in range(first, first + 5):
            file.append(line(number))
        file.close()
    assert numbers(path) == list(range(10))


def test_a_segment_is_compressed_by_a_thread_and_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(line(1))
    assert rotation.rotate(path) is None
    path.write_bytes(line(2))
    thread = rotation.rotate(path)
    thread.join(60)
    assert gzip.decompress(compressed(path, 1).read_bytes()) == line(1)
    assert not path.with_name("events.jsonl.000001").exists()
    assert path.with_name("events.jsonl.000002").read_bytes() == line(2)


def test_a_segment_that_cannot_be_compressed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rotation.shutil, "copyfileobj", full)
    path = tmp_path / "events.jsonl"
    for number in (1, 2):
        path.write_bytes(line(number))
        thread = rotation.rotate(path)
    thread.join(60)
    assert numbers(path) == [1, 2]
    assert not list(tmp_path.glob("*.new"))


def test_two_processes_that_append_to_one_file_both_go_on_in_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(records.time, "monotonic", lambda: now[0])
    path = tmp_path / "events.jsonl"
    one, other = appender(path), appender(path)
    other.append(line(0))
    for number in range(1, 3):
        one.append(line(number))
    assert len(rotation.segments(path)) == 1
    now[0] += records.AGAIN_S
    other.append(line(3))
    one.append(line(4))
    assert sorted(numbers(path)) == [0, 1, 2, 3, 4]
    assert b'"n": 3' in path.read_bytes()


def test_after_a_torn_line_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(HEADER + line(1) + line(2)[:9])
    file = appender(path, rotate_bytes=0)
    file.append(line(3))
    file.close()
    assert numbers(path) == [1, 3]


def test_metrics_have_nothing_but_rows(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = JsonLines(path, "metrics")
    file.write({"loss": 1.0})
    file.close()
    assert path.read_text() == '{"loss":1.0}\n'


@pytest.mark.parametrize("reader", ["all at once", "on and on"])
def test_a_segment_that_is_compressed_while_somebody_reads_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    path = tmp_path / "commits.jsonl"
    file = appender(path)
    for number in range(8):
        file.append(line(number))
    file.close()
    module = telemetry if reader == "all at once" else growing_files
    name = "open_file" if reader == "all at once" else "open_in"
    opens = getattr(module, name)

    def compressed_before(*where: object) -> object:
        """Whatever plain segment there is when somebody opens one is compressed first."""
        for segment in rotation.segments(path):
            if segment.suffix != ".gz":
                rotation._compress(segment)
        return opens(*where)

    for segment in rotation.segments(path):
        if segment.suffix == ".gz":  # by a thread that was quick
            segment.with_suffix("").write_bytes(gzip.decompress(segment.read_bytes()))
            segment.unlink()
    monkeypatch.setattr(module, name, compressed_before)
    monkeypatch.setattr(rotation.os, "setpriority", lambda *_: None)
    if reader == "all at once":
        assert numbers(path) == list(range(8))
    else:
        assert [row["n"] for row in GrowingFile(tmp_path, path.name).rows()] == list(range(8))


def test_a_file_that_is_cut_while_somebody_reads_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "commits.jsonl"
    file = appender(path)
    for number in range(3):
        file.append(line(number))
    rows = read_lines(path)
    assert next(rows)["n"] == 0  # everything is opened from here on
    for number in range(3, 6):
        file.append(line(number))
    rest = [row["n"] for row in rows]
    assert len(rest) >= 2
    assert rest == list(range(1, 1 + len(rest)))
