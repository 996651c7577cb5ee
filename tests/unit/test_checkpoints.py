from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gossip.errors import ConfigError
from gossip.run import checkpoints
from gossip.run.checkpoints import DamagedCheckpoint

FILES = {
    "model.safetensors": bytes(range(200)),
    "training.safetensors": b"moments" * 9,
    "ledger.json": b'{"round": 7}',
}
ABOUT = {"run": "0123456789abcdef", "lr": 1e-05, "roster": [0, 1, 2], "name": "größer"}


def write(folder: Path, step: int, keep: int = 3, **about: Any) -> Path:
    files = {name: data + b"%d" % step for name, data in FILES.items()}
    return checkpoints.write(folder, step, files, {**ABOUT, **about}, keep)


@pytest.fixture(autouse=True)
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for a disk. That everything is synced is seen by who counts."""
    monkeypatch.setattr(os, "fsync", lambda fd: os.fstat(fd))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ckpt"


@pytest.fixture
def two(folder: Path) -> Path:
    write(folder, 500)
    write(folder, 1000)
    return folder


def steps(folder: Path) -> list[int]:
    return [step for step, _ in checkpoints.listed(folder)]


def test_a_module_that_trainers_and_launchers_share_imports_no_torch() -> None:
    code = "import sys\nfrom gossip.run import checkpoints\ncheckpoints.write\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "assert 'torch' not in sys.modules"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# --- writing --------------------------------------------------------------------------------------


def test_what_is_written_is_what_is_read(folder: Path) -> None:
    path = write(folder, 500)

    assert path == folder / "step-000000500"
    assert sorted(os.listdir(path)) == sorted([*FILES, "manifest.json"])
    found, damaged = checkpoints.newest_good(folder)
    assert (found.path, found.step, damaged) == (path, 500, [])
    assert {name: found.read(name) for name in FILES} == {
        name: data + b"500" for name, data in FILES.items()
    }
    assert {key: found.manifest[key] for key in ABOUT} == ABOUT
    assert (found.manifest["format"], found.manifest["step"]) == (2, 500)
    assert found.nbytes == sum(len(data) + 3 for data in FILES.values())
    assert (folder / "latest").read_text() == "step-000000500\n"
    assert sorted(os.listdir(folder)) == ["latest", "step-000000500"]


def test_any_buffer_can_be_written(folder: Path) -> None:
    wide = memoryview(bytearray(range(64))).cast("d", (2, 4))
    files = {"a": bytearray(b"x"), "b": wide, "c": b"", "d": memoryview(b"")}
    found = checkpoints.open_at(checkpoints.write(folder, 1, files, {}, 1))
    assert [found.read(name) for name in files] == [b"x", bytes(range(64)), b"", b""]
    assert checkpoints.verify(found) == []


def test_a_file_of_several_chunks_is_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "CHUNK_BYTES", 7)
    found = checkpoints.open_at(write(folder, 1))
    assert checkpoints.verify(found) == []
    assert found.read("model.safetensors") == FILES["model.safetensors"] + b"1"


def test_a_file_is_held_once_while_it_is_read(folder: Path) -> None:
    size = 64 * 2**20
    found = checkpoints.open_at(checkpoints.write(folder, 1, {"a": bytes(size)}, {}, 1))
    tracemalloc.start()
    try:
        data = found.read("a")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(data) == size
    assert peak < 1.5 * size


def test_a_short_write_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:5]))
    assert checkpoints.verify(checkpoints.open_at(write(folder, 1))) == []


def test_old_checkpoints_go_once_there_are_enough(folder: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        write(folder, step, keep=2)
    assert steps(folder) == [4, 5]
    assert sorted(os.listdir(folder)) == ["latest", "step-000000004", "step-000000005"]


def test_the_newest_stays_whatever_keep_says(folder: Path) -> None:
    write(folder, 1)
    write(folder, 2, keep=0)
    assert steps(folder) == [2]


def test_damaged_ones_do_not_count_as_kept(folder: Path) -> None:
    for step in (1, 2, 3, 4):
        write(folder, step, keep=9)
    for step in (2, 3):
        (folder / checkpoints.name_of(step) / "ledger.json").unlink()
    write(folder, 5, keep=3)
    assert steps(folder) == [1, 2, 3, 4, 5], "4 and 5 are whole, and so is 1"
    write(folder, 6, keep=3)
    assert steps(folder) == [4, 5, 6]


def test_later_checkpoints_are_left_alone(two: Path) -> None:
    write(two, 600, keep=1)
    assert steps(two) == [600, 1000]
    assert (two / "latest").read_text() == "step-000001000\n"


def test_an_intact_one_of_the_step_stays_as_it_is(two: Path) -> None:
    place = two / "step-000001000"
    before = {path.name: path.stat().st_mtime_ns for path in place.iterdir()}
    inode = place.stat().st_ino

    assert write(two, 1000, wall="later") == place

    assert {path.name: path.stat().st_mtime_ns for path in place.iterdir()} == before
    assert place.stat().st_ino == inode


def test_a_damaged_one_of_the_step_is_moved_aside(two: Path) -> None:
    place = two / "step-000001000"
    (place / "model.safetensors").write_bytes(b"other")

    write(two, 1000)

    found, damaged = checkpoints.newest_good(two)
    assert (found.step, damaged) == (1000, [])
    assert (two / ".step-000001000.aside" / "model.safetensors").read_bytes() == b"other"
    for step in (1001, 1002):
        write(two, step, keep=2)
    assert not (two / ".step-000001000.aside").exists()


def test_one_of_another_history_is_not_taken_for_the_same(folder: Path) -> None:
    write(folder, 500, history="aa", why="first")
    write(folder, 500, history="aa", why="second")
    assert checkpoints.open_at(folder / "step-000000500").manifest["why"] == "first"

    write(folder, 500, history="bb", why="third")

    assert checkpoints.open_at(folder / "step-000000500").manifest["why"] == "third"
    aside = checkpoints.open_at(folder / ".step-000000500.aside")
    assert aside.manifest["why"] == "first"


def test_what_dead_processes_left_half_done_goes(two: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host = checkpoints._host()
    gone = (
        f".step-000000007.{host}.{ended.pid}.incomplete",
        f".latest.{host}.{os.getpid()}.incomplete",
    )
    stays = (
        f".step-000000007.{host}.{os.getppid()}.incomplete",
        f".step-000000007.other-{host}.{ended.pid}.incomplete",
        "notes.txt",
        "step-7",
    )
    for name in (*gone, *stays):
        (two / name).mkdir()
        (two / name / "model.safetensors").write_text("half")

    write(two, 1001)

    there = os.listdir(two)
    assert not set(gone) & set(there)
    assert set(stays) <= set(there)


def test_two_processes_that_write_the_same_step_agree(folder: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom gossip.run import checkpoints\n"
        "for step in range(30):\n"
        "    files = {'a': bytes(5000)}\n"
        "    checkpoints.write(Path(sys.argv[1]), step, files, {'who': sys.argv[2]}, 9)"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(folder), who], stderr=subprocess.PIPE)
        for who in "ab"
    ]
    assert [(one.communicate()[1], one.returncode) for one in both] == [(b"", 0)] * 2
    assert steps(folder) == list(range(21, 30))
    for _, path in checkpoints.listed(folder):
        assert checkpoints.verify(checkpoints.open_at(path)) == []
    assert (folder / "latest").read_text() == "step-000000029\n"


def test_threads_of_one_process_take_turns(folder: Path) -> None:
    threads = [threading.Thread(target=write, args=(folder, step)) for step in (1, 1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert steps(folder) == [1, 2, 3]


def test_nothing_goes_and_nothing_is_named_before_it_is_synced(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, 500)
    told: list[str] = []
    rename, rmdir = os.rename, os.rmdir

    def fsync(fd: int) -> None:
        told.append(f"sync {Path(os.readlink(f'/proc/self/fd/{fd}')).relative_to(folder)}")

    def renamed(old: Path, new: Path) -> None:
        told.append(f"rename {old.relative_to(folder)} {new.relative_to(folder)}")
        rename(old, new)

    def removed(path: Path, **others: Any) -> None:
        told.append(f"remove {path.relative_to(folder)}")
        rmdir(path, **others)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(os, "rmdir", removed)
    write(folder, 1000, keep=1)

    scratch = f"{checkpoints._own()}.incomplete"
    new, latest, old = (
        f".{name}.{scratch}" for name in ("step-000001000", "latest", "step-000000500")
    )
    assert told == [
        *(f"sync {new}/{name}" for name in (*FILES, "manifest.json")),
        f"sync {new}",
        f"rename {new} step-000001000",
        "sync .",
        f"sync {latest}",
        f"rename {latest} latest",
        "sync .",
        f"rename step-000000500 {old}",
        f"remove {old}",
    ]


# --- what goes wrong while it is written ----------------------------------------------------------


def assert_as_before(folder: Path) -> None:
    found, damaged = checkpoints.newest_good(folder)
    assert (found.step, damaged) == (1000, [])
    assert found.read("ledger.json") == FILES["ledger.json"] + b"1000"
    assert (folder / "latest").read_text() == "step-000001000\n"
    assert steps(folder) == [500, 1000]
    assert sorted(os.listdir(folder)) == ["latest", "step-000000500", "step-000001000"]


@pytest.mark.parametrize("call", ["fsync", "rename", "write", "mkdir"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_disk_that_is_full_or_broken_leaves_what_was_there(
    two: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(OSError, match=os.strerror(number)) as raised:
            write(two, 1500, keep=1)
    assert raised.value.errno == number
    assert_as_before(two)
    write(two, 1500, keep=1)
    assert steps(two) == [1500]


def test_a_folder_that_is_read_only_leaves_what_was_there() -> None:
    """Root writes everywhere, so where tests run as root a process of nobody tries it."""
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom gossip.run import checkpoints\n"
        "checkpoints.write\nif os.geteuid() == 0:\n"
        "    os.setgroups([])\n    os.setgid(65534)\n    os.setuid(65534)\n"
        "try:\n    checkpoints.write(Path(sys.argv[1]), 1500, {'a': b'x'}, {}, 1)\n"
        "except PermissionError:\n    print('refused')\n"
    )
    # pytest's own folders are closed to others.
    with tempfile.TemporaryDirectory() as open_to_all:
        os.chmod(open_to_all, 0o755)
        folder = Path(open_to_all, "ckpt")
        write(folder, 500)
        write(folder, 1000)
        folder.chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False
        )
        folder.chmod(0o755)
        assert done.stdout.split() == ["refused"], done.stderr
        assert_as_before(folder)


def test_a_file_in_place_of_the_folder_is_an_oserror(tmp_path: Path) -> None:
    (tmp_path / "ckpt").write_text("")
    with pytest.raises(OSError):
        write(tmp_path / "ckpt", 1)


def test_a_file_system_that_cannot_sync_a_folder_will_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    write(folder, 1)
    assert steps(folder) == [1]


class Crash(BaseException):
    """Nothing catches it: the process is gone at this call."""


CALLS = (
    "open",
    "mkdir",
    "write",
    "fsync",
    "close",
    "rename",
    "unlink",
    "rmdir",
    "listdir",
    "scandir",
)


class Calls:
    """Counts calls of ``os``, and ends everything from the n-th on, after or before it is done."""

    def __init__(self, patched: pytest.MonkeyPatch, last: int | None, done: bool = False) -> None:
        self.seen: list[str] = []
        for name in CALLS:
            patched.setattr(os, name, self._wrapped(name, getattr(os, name), last, done))

    def _wrapped(
        self, name: str, real: Callable[..., Any], last: int | None, done: bool
    ) -> Callable[..., Any]:
        def call(*args: Any, **others: Any) -> Any:
            self.seen.append(name)
            if last is not None and len(self.seen) > last:
                if name == "close":
                    with contextlib.suppress(OSError):  # what is closed twice
                        real(*args)
                elif done and len(self.seen) == last + 1:
                    found = real(*args, **others)
                    if name == "open":
                        os.closerange(found, found + 1)
                raise Crash(name)
            return real(*args, **others)

        return call


def prepared(folder: Path) -> None:
    """Three checkpoints of which one goes, one is damaged and of the step that is written, and
    leftovers."""
    for step in (250, 500, 1000, 1500):
        write(folder, step, keep=9)
    (folder / "step-000001500" / "ledger.json").write_text("")
    (folder / "latest").write_text("step-000001000\n")
    (folder / f".step-000000001.{checkpoints._host()}.{os.getpid()}.incomplete").mkdir()


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_crash_at_any_call_leaves_a_checkpoint_and_latest_that_can_be_used(
    tmp_path: Path, done: bool
) -> None:
    before, whole = tmp_path / "before", tmp_path / "whole"
    prepared(before)
    shutil.copytree(before, whole)
    with pytest.MonkeyPatch.context() as patched:
        calls = Calls(patched, None)
        write(whole, 1500, keep=2)
        count = len(calls.seen)
    assert steps(whole) == [1000, 1500]
    assert {"open", "mkdir", "write", "fsync", "rename", "unlink"} <= set(calls.seen)

    outcomes = set()
    for last in range(count):
        folder = tmp_path / f"at-{last}"
        shutil.copytree(before, folder)
        with pytest.MonkeyPatch.context() as patched:
            Calls(patched, last, done)
            with pytest.raises(Crash):
                write(folder, 1500, keep=2)

        found, _ = checkpoints.newest_good(folder)
        assert found is not None, last
        assert found.step in (1000, 1500), last
        assert found.read("ledger.json") == FILES["ledger.json"] + b"%d" % found.step
        named = (folder / "latest").read_text().strip()
        assert named in ("step-000001000", "step-000001500"), last
        assert checkpoints.verify(checkpoints.open_at(folder / named)) == [], last
        if found.step == 1000:
            assert {500, 1000} <= set(steps(folder)), "nothing goes before the new one is durable"
        outcomes.add((found.step, named))

        write(folder, 1500, keep=2)
        assert steps(folder) == [1000, 1500], last
        assert (folder / "latest").read_text() == "step-000001500\n", last
        assert not [name for name in os.listdir(folder) if name.endswith(".incomplete")], last
        shutil.rmtree(folder)
    assert len(outcomes) == 3, "before, between checkpoint and latest, and after"


@pytest.mark.parametrize("call", ["open", "mkdir", "write", "fsync", "rename", "unlink", "listdir"])
def test_an_error_at_any_call_leaves_a_checkpoint_and_latest_that_can_be_used(
    tmp_path: Path, call: str
) -> None:
    real, before = getattr(os, call), tmp_path / "before"
    prepared(before)
    for at in range(200):
        folder = tmp_path / f"at-{at}"
        shutil.copytree(before, folder)
        seen = 0

        def fail(*args: Any, at: int = at, **others: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == at + 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*args, **others)

        failed = False
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, call, fail)
            try:
                write(folder, 1500, keep=2)
            except OSError:
                failed = True
        found, _ = checkpoints.newest_good(folder)
        assert found.step == 1500 or failed, f"error {at} of {call} was lost"
        named = (folder / "latest").read_text().strip()
        assert checkpoints.verify(checkpoints.open_at(folder / named)) == []
        if seen <= at:
            break
    else:
        pytest.fail(f"{call} is called more than 200 times")


# --- damage ---------------------------------------------------------------------------------------


def damages(place: Path, seed: int) -> Iterator[tuple[str, str, Callable[[], object]]]:
    """200 times one file that is not what was written: which, how, and what does it."""
    draw = Random(seed)
    names = sorted([*FILES, "manifest.json"])
    for _ in range(200):
        path = place / draw.choice(names)
        data, how = path.read_bytes(), draw.choice(["flip", "flip", "flip", "cut", "more", "gone"])
        if how == "flip":
            at, bit = draw.randrange(len(data)), draw.randrange(8)
            other = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            yield path.name, f"bit {bit} of byte {at}", lambda p=path, d=other: p.write_bytes(d)
        elif how == "cut":
            to = draw.randrange(len(data))
            yield path.name, f"cut to {to}", lambda p=path, d=data[:to]: p.write_bytes(d)
        elif how == "more":
            yield path.name, "one byte more", lambda p=path, d=data + b"\n": p.write_bytes(d)
        else:
            yield path.name, "gone", path.unlink


def test_no_damage_loads_in_silence(two: Path, tmp_path: Path) -> None:
    place, kept = two / "step-000001000", tmp_path / "kept"
    shutil.copytree(place, kept)
    for name, how, hurt in damages(place, seed=1):
        hurt()
        try:
            found, damaged = checkpoints.newest_good(two)
            assert found is not None, (name, how)
            assert found.step == 500, (name, how)
            assert len(damaged) == 1, (name, how)
            assert str(place / name) in damaged[0], (name, how, damaged)
            with pytest.raises(DamagedCheckpoint) as raised:
                checkpoints.newest_good(two, 1000)
            assert raised.value.file == str(place / name), (name, how)
            assert "@500" in (raised.value.hint or "")
            with pytest.raises(DamagedCheckpoint) as raised:
                checkpoints.open_at(place).read(name)
            assert raised.value.file == str(place / name), (name, how)
            assert raised.value.expected in str(raised.value)
            assert raised.value.found in str(raised.value)
        finally:
            shutil.copy(kept / name, place / name)
    assert checkpoints.newest_good(two, 1000)[0] is not None, "all is as it was"


def test_every_bit_of_a_manifest_counts(folder: Path) -> None:
    place = checkpoints.write(folder, 3, {"a": b"x"}, {"lr": 1e-05, "name": "ä"}, 1)
    manifest = place / "manifest.json"
    data = manifest.read_bytes()
    for at in range(len(data)):
        for bit in range(8):
            manifest.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            with pytest.raises(DamagedCheckpoint, match=r"manifest\.json"):
                checkpoints.open_at(place)
    manifest.write_bytes(data)
    assert checkpoints.open_at(place).read("a") == b"x"


def test_a_file_that_changes_after_it_was_opened_is_found_when_it_is_read(two: Path) -> None:
    found = checkpoints.open_at(two / "step-000001000")
    path = two / "step-000001000" / "ledger.json"
    data = path.read_bytes()
    path.write_bytes(b"x" + data[1:])
    with pytest.raises(DamagedCheckpoint, match="expected blake2b"):
        found.read("ledger.json")
    path.write_bytes(data[1:])
    with pytest.raises(
        DamagedCheckpoint, match=f"expected {len(data)} bytes, found {len(data) - 1}"
    ):
        found.read("ledger.json")
    assert len(checkpoints.verify(found)) == 1


def test_all_damaged_files_are_named(two: Path) -> None:
    place = two / "step-000001000"
    found = checkpoints.open_at(place)
    for name in ("ledger.json", "model.safetensors"):
        data = (place / name).read_bytes()
        (place / name).write_bytes(data[:-1] + b"?")
    assert [line.split(" is damaged")[0] for line in checkpoints.verify(found)] == [
        str(place / "ledger.json"),
        str(place / "model.safetensors"),
    ]
    _, damaged = checkpoints.newest_good(two)
    assert damaged[0].endswith(", and 1 more")


def test_without_any_good_one_there_is_none_and_all_are_named(two: Path) -> None:
    for _, path in checkpoints.listed(two):
        (path / "ledger.json").unlink()
    found, damaged = checkpoints.newest_good(two)
    assert found is None
    assert [line.split("/")[-2] for line in damaged] == ["step-000001000", "step-000000500"]
    with pytest.raises(DamagedCheckpoint) as raised:
        checkpoints.newest_good(two, 500)
    assert raised.value.hint == "there is no undamaged checkpoint in the folder"


def test_a_step_that_is_not_there_names_those_that_are(two: Path) -> None:
    with pytest.raises(ConfigError, match="no checkpoint of step 7") as raised:
        checkpoints.newest_good(two, 7)
    assert raised.value.hint == "there are: 500, 1000"


def test_no_folder_has_no_checkpoints(tmp_path: Path) -> None:
    assert checkpoints.listed(tmp_path / "none") == []
    assert checkpoints.newest_good(tmp_path / "none") == (None, [])
    with pytest.raises(ConfigError, match="there is no checkpoint"):
        checkpoints.open_at(tmp_path / "none")


def test_a_folder_by_the_name_of_another_step_is_damaged(two: Path) -> None:
    (two / "step-000001000").rename(two / "step-000001001")
    with pytest.raises(DamagedCheckpoint, match="expected step 1001, found step 1000"):
        checkpoints.open_at(two / "step-000001001")


def test_a_file_that_the_checkpoint_does_not_have_is_asked_for_in_vain(two: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no file optimizer\.bin") as raised:
        checkpoints.open_at(two / "step-000001000").read("optimizer.bin")
    assert "ledger.json" in (raised.value.hint or "")


def test_the_error_crosses_processes() -> None:
    error = DamagedCheckpoint("a", "2 bytes", "1 bytes", "look elsewhere")
    again = DamagedCheckpoint(*error.args)
    assert (str(again), again.hint, again.file) == (str(error), error.hint, "a")


# --- folders of others ----------------------------------------------------------------------------


def forged(folder: Path, **changed: Any) -> Path:
    """A checkpoint whose manifest says something else, with a digest that is right."""
    place = write(folder, 1)
    manifest = json.loads((place / "manifest.json").read_bytes())
    manifest.update(changed)
    manifest["digest"] = checkpoints._manifest_digest(manifest)
    (place / "manifest.json").write_bytes(checkpoints._manifest_text(manifest))
    return place


@pytest.mark.parametrize(
    "files",
    [
        {"../../secret": {"bytes": 1, "blake2b": "0" * 32}},
        {"/etc/passwd": {"bytes": 1, "blake2b": "0" * 32}},
        {".hidden": {"bytes": 1, "blake2b": "0" * 32}},
        {"a": {"bytes": -1, "blake2b": "0" * 32}},
        {"a": {"bytes": True, "blake2b": "0" * 32}},
        {"a": {"bytes": 1, "blake2b": "0"}},
        {"a": {"bytes": 1}},
        {"a": []},
        [],
        None,
        {f"f{number}": {"bytes": 0, "blake2b": "0" * 32} for number in range(5000)},
    ],
)
def test_a_manifest_that_names_what_no_checkpoint_has_is_refused(folder: Path, files: Any) -> None:
    with pytest.raises(DamagedCheckpoint, match="expected a step and files"):
        checkpoints.open_at(forged(folder, files=files))


@pytest.mark.parametrize("step", [-1, "1", 1.0, None, True])
def test_a_step_that_is_none_is_refused(folder: Path, step: Any) -> None:
    with pytest.raises(DamagedCheckpoint):
        checkpoints.open_at(forged(folder, step=step))


def test_another_format_is_not_damage_but_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="has format 3, this gossip reads 2") as raised:
        checkpoints.open_at(forged(folder, format=3))
    assert not isinstance(raised.value, DamagedCheckpoint)
    found, passed_over = checkpoints.newest_good(folder)
    assert found is None
    assert "use the version of gossip that wrote it" in passed_over[0]


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"[" * 100_000, b'{"digest": NaN}', b'{"a": ' + b"9" * 5000 + b"}", b"\xff"],
)
def test_a_manifest_that_is_none_is_refused(folder: Path, text: bytes) -> None:
    place = write(folder, 1)
    (place / "manifest.json").write_bytes(text)
    with pytest.raises(DamagedCheckpoint, match=r"manifest\.json"):
        checkpoints.open_at(place)


def test_a_manifest_without_end_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write(folder, 1)
    monkeypatch.setattr(checkpoints, "MANIFEST_BYTES_MAX", 50)
    with pytest.raises(DamagedCheckpoint, match="more than 50 bytes"):
        checkpoints.open_at(place)


@pytest.mark.parametrize("name", ["ledger.json", "manifest.json"])
@pytest.mark.parametrize("what", ["link", "pipe", "folder"])
def test_links_pipes_and_folders_are_not_read(two: Path, name: str, what: str) -> None:
    path = two / "step-000001000" / name
    if what == "link":
        path.rename(two / "elsewhere")
        path.symlink_to(two / "elsewhere")
    else:
        path.unlink()
        path.mkdir() if what == "folder" else os.mkfifo(path)
    found, damaged = checkpoints.newest_good(two)
    assert found.step == 500
    assert str(path) in damaged[0]
    write(two, 1000)
    assert steps(two) == [500, 1000]
    assert checkpoints.newest_good(two)[1] == []


def test_a_link_in_place_of_a_checkpoint_is_none(two: Path) -> None:
    (two / "step-000001000").rename(two / "elsewhere")
    (two / "step-000001000").symlink_to(two / "elsewhere")
    assert steps(two) == [500]
    with pytest.raises(DamagedCheckpoint, match="link"):
        checkpoints.open_at(two / "step-000001000")
    write(two, 1000)
    assert steps(two) == [500, 1000]
    assert (two / "elsewhere" / "manifest.json").exists()


def test_what_only_looks_like_a_step_is_none(folder: Path) -> None:
    folder.mkdir()
    for name in ("step-1", "step-0000000001", "step-00000000a", "step-000000001.bak"):
        (folder / name).mkdir()
    (folder / "step-000000002").write_text("")
    assert checkpoints.listed(folder) == []


# --- where a run saves to -------------------------------------------------------------------------


def test_a_run_says_where_it_saves_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    assert checkpoints.folder_of(run) is None

    checkpoints.note_folder(run, Path("ckpt"))
    checkpoints.note_folder(run, Path("ckpt"))

    assert checkpoints.folder_of(run) == tmp_path / "ckpt"
    assert os.listdir(run) == ["checkpoints.json"]
    checkpoints.note_folder(run, Path("other"))
    assert checkpoints.folder_of(run) == tmp_path / "other"


@pytest.mark.parametrize(
    "text", ["", "{}", '{"folder": "ckpt"}', '{"folder": 1}', '{"folder": "/\\u0000"}']
)
def test_a_note_that_says_nothing_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "checkpoints.json").write_text(text)
    with pytest.raises(ConfigError, match=r"checkpoints\.json"):
        checkpoints.folder_of(tmp_path)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """runs/mine saves to ckpt, runs/none to nowhere."""
    monkeypatch.chdir(tmp_path)
    for step in (500, 1000):
        write(tmp_path / "ckpt", step)
    for name in ("mine", "none"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").write_text("{}")
    checkpoints.note_folder(tmp_path / "runs" / "mine", tmp_path / "ckpt")
    return tmp_path


@pytest.mark.parametrize(
    ("said", "step"),
    [
        ("mine", None),
        ("mine@500", 500),
        ("runs/mine", None),
        ("runs/mine@1000", 1000),
        ("ckpt", None),
        ("./ckpt/@500", 500),
        ("ckpt/step-000000500", 500),
        ("ckpt/step-000000500@500", 500),
        ("ckpt@7", 7),
    ],
)
def test_a_run_and_a_folder_can_be_named(runs: Path, said: str, step: int | None) -> None:
    assert checkpoints.resolve(said) == (runs / "ckpt", step)


def test_a_folder_with_an_at_in_its_name_is_meant(runs: Path) -> None:
    (runs / "ckpt").rename(runs / "ckpt@9")
    assert checkpoints.resolve("ckpt@9") == (runs / "ckpt@9", None)
    assert checkpoints.resolve("ckpt@9@500") == (runs / "ckpt@9", 500)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("", "there is no run or folder of checkpoints"),
        ("@5", "there is no run or folder of checkpoints"),
        ("nothing", "there is no run or folder of checkpoints 'nothing'"),
        ("nothing@5", "there is no run or folder of checkpoints 'nothing'"),
        ("a\0b", "there is no run or folder of checkpoints"),
        ("mine@last", "'last' is not a step"),
        ("mine@-5", "'-5' is not a step"),
        ("mine@", "'' is not a step"),
        ("mine@²", "is not a step"),
        ("none", "none has saved no checkpoint"),
        ("ckpt/step-000000500@501", "is the checkpoint of step 500, not of 501"),
        ("ckpt/latest", "latest is not a folder"),
        ("runs", "there is no checkpoint in"),
        ("renamed", "does not have the name of its step"),
        ("moved", "gone, which does not exist"),
    ],
)
def test_what_names_none_is_explained(runs: Path, said: str, why: str) -> None:
    shutil.copytree(runs / "ckpt" / "step-000000500", runs / "renamed")
    (runs / "moved").mkdir()
    checkpoints.note_folder(runs / "moved", runs / "gone")
    with pytest.raises(ConfigError) as raised:
        checkpoints.resolve(said)
    assert why in str(raised.value)


def _half_and_an_end() -> Iterator[bytes]:
    yield b"half"
    raise MemoryError


def test_a_file_takes_the_place_of_what_a_killed_process_of_the_same_id_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, where each process that is started has the same id."""
    out = tmp_path / "model.pt"
    with monkeypatch.context() as killed:
        killed.setattr(checkpoints, "_remove", lambda path: None)
        with pytest.raises(MemoryError):
            checkpoints.store(out, _half_and_an_end())
    assert [path.name.endswith(".incomplete") for path in tmp_path.iterdir()] == [True]
    checkpoints.store(out, iter((b"whole",)))
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]
    assert out.read_bytes() == b"whole"
