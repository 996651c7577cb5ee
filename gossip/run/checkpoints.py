"""Checkpoints on disk: a folder for each step, with a manifest that has a digest of each file.

``FOLDER/step-000000500/`` is there as a whole or not at all: it is written under another name,
made durable and then renamed. ``FOLDER/latest`` names the newest one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

from gossip.errors import ConfigError

Buffer: TypeAlias = bytes | bytearray | memoryview

FORMAT = 1
MANIFEST, LATEST, NOTE = "manifest.json", "latest", "checkpoints.json"
MANIFEST_BYTES_MAX = 2**20
PIECE_BYTES = 2**24
_STEP = re.compile(r"step-(\d{9,19})")
_SCRATCH = re.compile(r"\.step-\d+\.(?P<host>.+)\.(?P<pid>\d+)\.incomplete")


class DamagedCheckpoint(ConfigError):
    """Something in a checkpoint is not what was written."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One whose manifest is whole, and whose files are there with their sizes."""

    path: Path
    step: int
    manifest: Mapping[str, Any]

    @property
    def whole(self) -> bool:
        """Whether every round before it had an update of every peer."""
        return bool(self.manifest.get("whole", True))

    def read(self, name: str) -> bytes:
        """A file of it. Raises DamagedCheckpoint: It is not what was written."""
        said = self.manifest["files"].get(name)
        if said is None:
            raise DamagedCheckpoint(f"{self.path} has no {name}")
        data = _read(self.path / name, said["bytes"])
        found = blake2b(data, digest_size=16).hexdigest()
        if found != said["blake2b"]:
            raise DamagedCheckpoint(
                f"{self.path / name} is damaged: its digest is {found}, the manifest says "
                f"{said['blake2b']}"
            )
        return data


def name_of(step: int) -> str:
    """The folder of a step."""
    return f"step-{step:09d}"


# --- writing --------------------------------------------------------------------------------------


def write(
    folder: Path, step: int, files: Mapping[str, Buffer], about: Mapping[str, Any], keep: int
) -> Path:
    """Makes a checkpoint durable, then removes older ones.

    One of the same step that is whole stays, and nothing is written. One that is damaged is
    replaced.

    Args:
        about: What the manifest says beside step and files; JSON.
        keep: How many stay: the newest, and beside them the newest that is ``whole``.
    Raises: OSError: Nothing has changed then, but that a scratch folder may be left.
    """
    place = folder / name_of(step)
    if place.exists() and not _damage_at(place):
        return place
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f".{name_of(step)}.{socket.gethostname()}.{os.getpid()}.incomplete"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir()
        written = {name: _write(scratch / name, data) for name, data in files.items()}
        manifest = {**about, "format": FORMAT, "step": step, "wall": time.time(), "files": written}
        _write(scratch / MANIFEST, _sealed(manifest))
        _sync(scratch)
        if place.exists():
            place.rename(folder / f".{place.name}.{time.time_ns()}.damaged")
        scratch.rename(place)
        _sync(folder)
        _point(folder, place.name)
    except OSError:
        shutil.rmtree(scratch, ignore_errors=True)
        if place.exists() and not _damage_at(place):
            return place  # another peer was faster
        raise
    _prune(folder, keep)
    return place


def _point(folder: Path, name: str) -> None:
    scratch = folder / f".{LATEST}.{socket.gethostname()}.{os.getpid()}"
    scratch.unlink(missing_ok=True)
    _write(scratch, f"{name}\n".encode())
    scratch.rename(folder / LATEST)
    _sync(folder)


def _prune(folder: Path, keep: int) -> None:
    """Never the newest, nor the newest whole one. What cannot be removed stays."""
    kept, whole = 0, False
    for _, path in reversed(listed(folder)):
        try:
            checkpoint = open_at(path)
        except (OSError, ConfigError):
            continue  # it is for somebody to look at
        if kept < keep or (checkpoint.whole and not whole):
            kept, whole = kept + 1, whole or checkpoint.whole
        else:
            shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(".step-*.incomplete"):
        match = _SCRATCH.fullmatch(path.name)
        if match and match["host"] == socket.gethostname() and not _lives(int(match["pid"])):
            shutil.rmtree(path, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _write(path: Path, data: Buffer) -> dict[str, Any]:
    view, digest = memoryview(data).cast("B"), blake2b(digest_size=16)
    with path.open("xb") as file:
        for at in range(0, len(view), PIECE_BYTES):
            file.write(view[at : at + PIECE_BYTES])
            digest.update(view[at : at + PIECE_BYTES])
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": len(view), "blake2b": digest.hexdigest()}


def _sync(folder: Path) -> None:
    """So that the names in it outlive a loss of power.
    Some file systems cannot do that for a folder."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _canonical(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()


def _sealed(manifest: Mapping[str, Any]) -> bytes:
    digest = blake2b(_canonical(manifest), digest_size=16).hexdigest()
    return json.dumps({**manifest, "digest": digest}, indent=1, sort_keys=True).encode() + b"\n"


# --- reading --------------------------------------------------------------------------------------


def listed(folder: Path) -> list[tuple[int, Path]]:
    """Steps and folders of the checkpoints there, ascending, damaged ones among them."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [(match, folder / name) for name in names if (match := _STEP.fullmatch(name))]
    return sorted([(int(match[1]), path) for match, path in found])


def open_at(path: Path) -> Checkpoint:
    """Looks at the manifest, and at the sizes of the files.

    Raises: DamagedCheckpoint: Something is missing, or not what was written.
    """
    match = _STEP.fullmatch(path.name)
    if match is None:
        raise ConfigError(f"{path} is no checkpoint", "its name would be step-000000500 or alike")
    place = path / MANIFEST
    try:
        manifest = json.loads(_read(place, None))
        digest = manifest.pop("digest")
        files = {name: (said["bytes"], said["blake2b"]) for name, said in manifest["files"].items()}
        step, version = manifest["step"], manifest["format"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{place} is damaged: {type(error).__name__}: {error}") from error
    if blake2b(_canonical(manifest), digest_size=16).hexdigest() != digest:
        raise DamagedCheckpoint(f"{place} is damaged: it does not have the digest that it names")
    if version != FORMAT:
        raise ConfigError(f"{place} has format {version}, this version of gossip reads {FORMAT}")
    if step != int(match[1]):
        raise DamagedCheckpoint(f"{place} is of step {step}, its folder of step {int(match[1])}")
    for name, (nbytes, _) in files.items():
        _check_size(path / name, nbytes)
    return Checkpoint(path, step, manifest)


def verify(checkpoint: Checkpoint) -> list[str]:
    """What is wrong with its files, all of which are read; nothing: it is whole."""
    problems = []
    for name in checkpoint.manifest["files"]:
        try:
            checkpoint.read(name)
        except DamagedCheckpoint as error:
            problems.append(str(error))
    return problems


def newest_good(
    folder: Path, step: int | None = None, whole: bool = False
) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint of ``folder`` that is not damaged, or that of ``step``. All its files
    are read.

    Args:
        whole: Only one before which every round had an update of every peer.
    Returns: None when there is none; and a line for each newer one that was passed over, and why.
    Raises: ConfigError: That of ``step`` is not there, or damaged.
    """
    there, passed_over = listed(folder), []
    if step is not None and step not in [known for known, _ in there]:
        known = ", ".join(str(known) for known, _ in there) or "none"
        raise ConfigError(f"{folder} has no checkpoint of step {step}; there are: {known}")
    for known, path in reversed(there):
        if step is not None and known != step:
            continue
        if damage := _damage_at(path):
            if step is not None:
                last, _ = newest_good(folder, None, whole)
                hint = "" if last is None else f"the last good one is of step {last.step}"
                raise DamagedCheckpoint(damage, hint or "there is no other")
            passed_over.append(f"passed over: {damage}")
            continue
        found = open_at(path)
        if whole and not found.whole and step is None:
            passed_over.append(
                f"passed over: {path} (--deterministic: a round before it lacked a peer's update)"
            )
            continue
        return found, passed_over
    if there and not passed_over:
        return None, passed_over
    if passed_over:
        raise DamagedCheckpoint(
            f"no checkpoint in {folder} can be used: {'; '.join(passed_over)}",
            "begin anew with another folder, or mend what is there",
        )
    return None, passed_over


def _damage_at(path: Path) -> str:
    """What is wrong with a checkpoint; empty: nothing."""
    try:
        problems = verify(open_at(path))
    except DamagedCheckpoint as error:
        return str(error)
    return "; ".join(problems)


def _check_size(path: Path, nbytes: int) -> None:
    try:
        found = path.lstat()
    except OSError as error:
        raise DamagedCheckpoint(f"{path} is missing") from error
    if not stat.S_ISREG(found.st_mode):
        raise DamagedCheckpoint(f"{path} is no plain file")
    if found.st_size != nbytes:
        raise DamagedCheckpoint(f"{path} has {found.st_size} bytes, the manifest says {nbytes}")


def _read(path: Path, nbytes: int | None) -> bytes:
    """``nbytes``: how many it must have; None: few. Raises DamagedCheckpoint."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error.strerror}") from error
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise DamagedCheckpoint(f"{path} is no plain file")
        if nbytes is None and found.st_size > MANIFEST_BYTES_MAX:
            raise DamagedCheckpoint(f"{path} has {found.st_size} bytes, too many for a manifest")
        if nbytes is not None and found.st_size != nbytes:
            raise DamagedCheckpoint(f"{path} has {found.st_size} bytes, the manifest says {nbytes}")
        return file.read()


# --- where ----------------------------------------------------------------------------------------


def note_folder(run_dir: Path, folder: Path) -> None:
    """The run in ``run_dir`` saves to ``folder``."""
    scratch = run_dir / f".{NOTE}.{os.getpid()}"
    scratch.write_text(json.dumps({"folder": str(folder)}) + "\n", "utf-8")
    scratch.replace(run_dir / NOTE)


def folder_of(run_dir: Path) -> Path | None:
    """Where the run in ``run_dir`` saves to, if it does."""
    try:
        said = json.loads(_read(run_dir / NOTE, None))
        return Path(said["folder"])
    except (DamagedCheckpoint, ValueError, KeyError, TypeError):
        return None


def resolve(resume: str, runs: Sequence[Path] = (Path("runs"),)) -> tuple[Path, int | None]:
    """What ``RUN|PATH[@STEP]`` means: a folder of checkpoints, and a step if one was said.

    Args:
        runs: Folders in which runs are looked for by their names.
    Raises: ConfigError: There is no such run or folder.
    """
    place, at, said = resume.rpartition("@")
    if not at or not said.isdigit():
        place, said = resume, ""
    step = int(said) if said else None
    for path in (Path(place), *[folder / place for folder in runs]):
        if _STEP.fullmatch(path.name) and path.is_dir():
            return path.parent.absolute(), int(path.name.removeprefix("step-"))
        if (folder := folder_of(path)) is not None:
            return folder, step
        if listed(path):
            return path.absolute(), step
    raise ConfigError(
        f"there is no run and no folder of checkpoints {place}",
        "gossip ls lists the runs; gossip checkpoints FOLDER lists checkpoints",
    )
