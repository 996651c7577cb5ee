"""Checkpoints on disk. A checkpoint is a folder such as ``FOLDER/step-000000500/`` with data files
and a manifest, which has the digest of each data file.

A checkpoint is written completely or not at all, and a complete checkpoint is durable: first each
file is synced, then the folder. Then the folder is renamed to its final name, and the rename is
synced. Only after that an older checkpoint may be removed. Digests detect bits that flip later: the
manifest has digests of the data files and of itself.

Any process with write access may put anything into the folder, so all reads use ``untrusted``.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeAlias

from gossip.errors import ConfigError

from .untrusted import object_in, open_in, read_at_most, read_object, shown, whole

FORMAT = 2
"""Version of the format of manifests, and of the parts of a state, on disk and between peers."""
MANIFEST = "manifest.json"
BASE_FILE, MODEL_FILE = "base.safetensors", "model.safetensors"
"""Names of two files. The first has the parameters that no round changes, the second the rest of
the model."""
LATEST = "latest"
NOTE = "checkpoints.json"
HOSTS = "hosts.json"  # file in a run's folder that lists its hosts, if it has several
RUNS = "runs"
MANIFEST_BYTES_MAX = 16 * 2**20
"""Maximum size of a manifest. With the records of 1,024 peers it has less than 1 MiB."""
CHUNK_BYTES = 4 * 2**20
DIGEST_BYTES = 16
FILES_MAX = 4096

Buffer: TypeAlias = bytes | bytearray | memoryview
Pieces: TypeAlias = Iterator[bytes] | Iterator[memoryview]

_STEP = re.compile(r"step-([0-9]{9,18})")
_STAGE = re.compile(r"stage-(0|[1-9][0-9]{0,3})")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SCRATCH = re.compile(r"\..+\.(?P<host>[A-Za-z0-9-]+)\.(?P<pid>[0-9]{1,9})\.incomplete")
_OURS = ("format", "step", "wall_time_s", "files", "digest")
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS)
_one_writer = threading.Lock()  # so all other scratch files of this process are unused


class DamagedCheckpoint(ConfigError):
    """A file of a checkpoint is missing, or differs from what was written."""

    def __init__(self, file: str, expected: str, found: str, hint: str | None = None) -> None:
        super().__init__(f"{shown(file)} is damaged: expected {expected}, found {found}", hint)
        self.file, self.expected, self.found = file, expected, found


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint with a valid manifest. Its data files are verified when they are read."""

    path: Path
    step: int
    manifest: dict[str, Any]

    @property
    def everybody(self) -> bool:
        """Whether every earlier round had an update of every peer."""
        return self.manifest.get("everybody", True) is True

    @property
    def nbytes(self) -> int:
        """Number of bytes of all data files."""
        return sum([entry["bytes"] for entry in self.manifest["files"].values()])

    @property
    def model_files(self) -> list[str]:
        """Names of the files that together contain the model."""
        base = [BASE_FILE] if BASE_FILE in self.manifest["files"] else []
        return [*base, MODEL_FILE]

    def read(self, name: str) -> bytes:
        """Return the contents of a data file.

        Raises:
            DamagedCheckpoint: The file differs from what was written; the message has the
                difference.
            ConfigError: The checkpoint has no such file.
        """
        if name not in self.manifest["files"]:
            raise ConfigError(
                f"{shown(self.path)} has no file {shown(name)}",
                f"it has {', '.join(self.manifest['files'])}",
            )
        data = io.BytesIO()  # Does not hold the data twice, unlike the join of a list of chunks.
        data.writelines(self.chunks(name))
        return data.getvalue()

    def copy(self, name: str, out: Path) -> None:
        """Copy a data file to ``out`` atomically, and verify it.

        Raises: DamagedCheckpoint: The file differs from what was written. OSError: ``out`` cannot
            be written.
        """
        store(out, self.chunks(name))

    def check_size(self, name: str) -> None:
        """Check that a data file exists and has the right size. Raises: DamagedCheckpoint: The file
        is missing, or has another size."""
        try:
            self.open(name).close()
        except (OSError, ConfigError) as error:
            expected = f"{self.manifest['files'][name]['bytes']} bytes"
            _not_readable(str(self.path / name), expected, error)

    def verify(self, name: str) -> None:
        """Verify the digest of a data file. Raises: DamagedCheckpoint: The file differs from what
        was written."""
        for _ in self.chunks(name):
            pass

    def open(self, name: str) -> BinaryIO:
        """Open a data file, and compare its size with the manifest.

        Raises: DamagedCheckpoint: The size differs. ConfigError: The file is not a plain file, or
            cannot be read. FileNotFoundError: There is no such file.
        """
        file = open_in(self.path.parent, f"{self.path.name}/{name}")
        expected, size = self.manifest["files"][name]["bytes"], os.fstat(file.fileno()).st_size
        if size != expected:
            file.close()
            raise DamagedCheckpoint(str(self.path / name), f"{expected} bytes", f"{size} bytes")
        return file

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield a data file in pieces. If the file is damaged, raise DamagedCheckpoint, possibly
        only after the last piece."""
        entry, where = self.manifest["files"][name], str(self.path / name)
        digest, size = blake2b(digest_size=DIGEST_BYTES), 0
        try:
            with self.open(name) as file:
                while size < entry["bytes"] and (
                    chunk := file.read(min(entry["bytes"] - size, CHUNK_BYTES))
                ):
                    digest.update(chunk)
                    size += len(chunk)
                    yield chunk
        except (OSError, ConfigError) as error:
            _not_readable(where, f"{entry['bytes']} bytes", error)
        if size != entry["bytes"]:
            raise DamagedCheckpoint(where, f"{entry['bytes']} bytes", f"{size} bytes")
        if (found := digest.hexdigest()) != entry["blake2b"]:
            raise DamagedCheckpoint(where, f"blake2b {entry['blake2b']}", f"blake2b {found}")


# --- writing --------------------------------------------------------------------------------------


def store(out: Path, pieces: Pieces) -> None:
    """Write a file durably and atomically. Raises OSError, and the exceptions of ``pieces``."""
    scratch = out.with_name(f".{out.name}.{_own()}.incomplete")
    try:
        # In a container, a new process often has the id of an earlier process, which may have been
        # killed while it wrote this file.
        _remove(scratch)
        store_new(scratch, pieces)
        os.rename(scratch, out)
    finally:
        with contextlib.suppress(OSError):
            _remove(scratch)
    sync_folder(out.parent)


def write(
    folder: Path,
    step: int,
    files: Mapping[str, Buffer | Checkpoint],
    about: Mapping[str, Any],
    keep: int,
) -> Path:
    """Write the checkpoint of ``step`` durably, and return its folder.

    If there is an intact checkpoint of this step and history, nothing is written. Any other
    checkpoint of this step is moved aside. Older checkpoints are removed when the new one is
    durable.

    Args:
        files: For each file name, the contents, or another checkpoint with the same file. Contents
            must not change during the call.
        about: Further entries of the manifest: JSON types, all numbers finite. Two checkpoints of
            one step count as equal if they have the same ``history``.
        keep: Number of checkpoints to keep, of those up to this step. The new checkpoint is always
            kept.
    Raises: OSError: The checkpoint could not be written. Existing checkpoints are unchanged.
    """
    assert files, "a checkpoint has files"
    outgoing = OutgoingCheckpoint(folder, step)
    try:
        if not _is_there(outgoing.place, about):
            for name, data in files.items():
                outgoing.add(name, data if isinstance(data, Checkpoint) else _pieces(data))
        return outgoing.finish(about, keep)
    finally:
        outgoing.drop()


class OutgoingCheckpoint:
    """Checkpoint that is written in two phases. In the first phase, its files are written; the
    memory that they are written from may change afterwards. In the second phase, any thread makes
    the checkpoint durable (``finish``) or drops it. A process writes only one checkpoint at a time.

    Attributes:
        place: Folder of the finished checkpoint.
    """

    def __init__(self, folder: Path, step: int) -> None:
        assert 0 <= step < 10**18, step
        self._folder, self._step = folder.absolute(), step
        self.place = self._folder / name_of(step)
        self._scratch = self._folder / f".{self.place.name}.{_own()}.incomplete"
        self._open: list[int] = []
        self._written: dict[str, Any] = {}  # entry of each file in the manifest
        self._has_scratch = False
        _one_writer.acquire()
        self._is_writer = True

    def add(self, name: str, content: Checkpoint | Pieces) -> None:
        """Write a file.

        Args:
            content: Pieces of the file. Each piece is written before the next piece is generated.
                Or another checkpoint with the same file, which is added as a hard link. If the file
                system has no hard links, a verified copy is added. Linked data stay on disk until
                no checkpoint with the file exists.
        Raises: DamagedCheckpoint: The file of the other checkpoint differs from what was written.
            OSError: The file could not be written.
        """
        if isinstance(content, Checkpoint):
            self._link(name, content)
        else:
            self._open.append(_create(self._path_of(name)))
            self._written[name] = _append(self._open[-1], content)

    def _link(self, name: str, source: Checkpoint) -> None:
        source.check_size(name)
        place = self._path_of(name)
        try:
            os.link(source.path / name, place, follow_symlinks=False)
        except OSError:
            self.add(name, source.chunks(name))
        else:
            self._written[name] = source.manifest["files"][name]

    def _path_of(self, name: str) -> Path:
        """Return the path of a file in the scratch folder. Create the scratch folder if
        necessary."""
        assert _FILE.fullmatch(name), name
        assert name != MANIFEST, name
        if not self._has_scratch:
            _make_folder(self._folder)
            _remove(self._scratch)
            self._has_scratch = True
            os.mkdir(self._scratch)
        return self._scratch / name

    def finish(self, about: Mapping[str, Any], keep: int) -> Path:
        """Make the checkpoint durable, if a file was added, and remove older checkpoints.
        Arguments, return value and exceptions are those of ``write``."""
        assert not set(about) & set(_OURS), list(about)
        try:
            if self._written:
                for fd in self._open:
                    os.fsync(fd)
                _conclude(self._scratch, self._step, self._written, about)
                _put(self._scratch, self.place, about)
                self._clear()
            sync_folder(self._folder)
            _point_latest(self._folder)
            _tidy(self._folder, self._step, max(1, keep))
        finally:
            self.drop()
        return self.place

    def drop(self) -> None:
        """Remove the files, unless the checkpoint is finished. Then another checkpoint may be
        written."""
        if not self._is_writer:
            return
        try:
            self._clear()
        finally:
            self._is_writer = False
            _one_writer.release()

    def _clear(self) -> None:
        while self._open:
            # On a shared folder, closing may exceed a quota. Ignore errors: a file that is needed
            # has been synced.
            with contextlib.suppress(OSError):
                os.close(self._open.pop())
        if self._has_scratch:
            with contextlib.suppress(OSError):
                _remove(self._scratch)
            self._has_scratch = False


def name_of(step: int) -> str:
    """Return the name of the folder of a checkpoint."""
    return f"step-{step:09d}"


def _conclude(
    scratch: Path, step: int, written: Mapping[str, Any], about: Mapping[str, Any]
) -> None:
    """Write the manifest. The other files must be durable already."""
    manifest = {
        **about,
        "format": FORMAT,
        "step": step,
        "wall_time_s": round(time.time(), 3),
        "files": dict(written),
    }
    text = _manifest_text({**manifest, "digest": _manifest_digest(manifest)})
    assert len(text) <= MANIFEST_BYTES_MAX, f"the manifest has {len(text)} bytes"
    store_new(scratch / MANIFEST, _pieces(text))
    sync_folder(scratch)


def _put(scratch: Path, place: Path, about: Mapping[str, Any]) -> None:
    """Rename the scratch folder to its final name. If another process has already written the same
    checkpoint, keep that one."""
    if os.path.lexists(place):
        if _is_there(place, about):
            return
        aside = place.with_name(f".{place.name}.aside")
        _remove(aside)
        os.rename(place, aside)
    try:
        os.rename(scratch, place)
    except OSError:
        if not _is_there(place, about):
            raise


def _pieces(data: Buffer) -> Iterator[memoryview]:
    view = memoryview(data)
    if view.nbytes:
        view = view.cast("B")
        for at in range(0, view.nbytes, CHUNK_BYTES):
            yield view[at : at + CHUNK_BYTES]


def store_new(path: Path, pieces: Pieces) -> dict[str, Any]:
    """Write a new file durably. Return its entry for the manifest."""
    fd = _create(path)
    try:
        written = _append(fd, pieces)
        os.fsync(fd)
    finally:
        os.close(fd)
    return written


def _create(path: Path) -> int:
    """Create a file that does not exist yet, and return its file descriptor."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o666)


def _append(fd: int, pieces: Pieces) -> dict[str, Any]:
    """Append pieces to a file. Return the file's entry for the manifest."""
    digest, size = blake2b(digest_size=DIGEST_BYTES), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(fd, rest) :]
    return {"bytes": size, "blake2b": digest.hexdigest()}


def sync_folder(folder: Path) -> None:
    """Flush a folder to disk, so that its entries survive a power failure. Do nothing if the file
    system cannot flush folders."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(fd)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        sync_folder(folder.parent)


def _point_latest(folder: Path) -> None:
    """Write the name of the newest checkpoint to ``latest``, for users and scripts. This program
    does not read the file."""
    newest = next(
        (path.name for _, path in reversed(_listed(folder)) if open_or_none(path) is not None), None
    )
    if newest is None or _text_in(folder, LATEST) == newest:
        return
    store(folder / LATEST, _pieces(f"{newest}\n".encode()))


def _text_in(folder: Path, name: str) -> str:
    try:
        with open_in(folder, name) as file:
            return read_at_most(file, 256, folder / name).decode("utf-8", "replace").strip()
    except (OSError, ConfigError):
        return ""


def _tidy(folder: Path, step: int, keep: int) -> None:
    """Remove old checkpoints: of the complete checkpoints up to ``step``, the newest ``keep`` stay.
    Also remove partial checkpoints of dead processes on this host. Entries that cannot be removed
    stay."""
    older = [(each, path) for each, path in _listed(folder) if each <= step]
    opened = {each: found for each, path in older if (found := open_or_none(path)) is not None}
    oldest = min(list(opened)[-keep:], default=0)
    # A deterministic run can resume only from a checkpoint before the first loss of a peer, so the
    # newest such checkpoint stays, too.
    spared = max([each for each, found in opened.items() if found.everybody], default=0)
    with contextlib.suppress(OSError):
        for each, path in older:
            if each < oldest and each != spared:
                # Rename the folder first, because a partly removed folder must not look like a
                # checkpoint.
                doomed = folder / f".{path.name}.{_own()}.incomplete"
                with contextlib.suppress(OSError):
                    os.rename(path, doomed)
        for name in os.listdir(folder):
            if _is_left(name) or _is_aside_of(name, oldest):
                with contextlib.suppress(OSError):
                    _remove(folder / name)


def _is_left(name: str) -> bool:
    """Whether the process that wrote a partial file is dead. This can only be checked for files of
    this host. A file with the id of this process was left by an earlier process with that id, or is
    about to be removed."""
    found = _SCRATCH.fullmatch(name)
    if found is None or found["host"] != _host():
        return False
    pid = int(found["pid"])
    return pid in (0, os.getpid()) or not _lives(pid)


def _is_aside_of(name: str, oldest: int) -> bool:
    found = re.fullmatch(rf"\.{_STEP.pattern}\.aside", name)
    return found is not None and int(found[1]) < oldest


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # the process exists, but belongs to another user
    return True


def _remove(path: Path) -> None:
    """Remove a file or folder without following links."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        pass


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:64] or "localhost"


def _own() -> str:
    return f"{_host()}.{os.getpid()}"


# --- reading --------------------------------------------------------------------------------------


def open_at(path: Path) -> Checkpoint:
    """Open the checkpoint in a folder. Check its manifest, and the existence and size of all files.
    Digests of data are checked when the data are read, or by ``verify``.

    Raises:
        DamagedCheckpoint: A file differs from what was written.
        ConfigError: There is no such folder.
    """
    path = path.absolute()
    if not path.is_dir():
        raise ConfigError(f"there is no checkpoint {shown(path)}")
    manifest = _read_manifest(path)
    if (step := _step_of(path.name)) is not None and step != manifest["step"]:
        raise DamagedCheckpoint(str(path / MANIFEST), f"step {step}", f"step {manifest['step']}")
    checkpoint = Checkpoint(path, manifest["step"], manifest)
    for name in manifest["files"]:
        checkpoint.check_size(name)
    return checkpoint


def verify(checkpoint: Checkpoint) -> list[str]:
    """Verify the digests of all files of a checkpoint. Return a line for each damaged file."""
    problems = []
    for name in checkpoint.manifest["files"]:
        try:
            checkpoint.verify(name)
        except DamagedCheckpoint as error:
            problems.append(str(error))
    return problems


def listed(folder: Path | None) -> list[tuple[int, Path]]:
    """Return the steps and folders of all checkpoints in ``folder``, including damaged ones, in
    ascending order. Return [] if there is no such folder. Raises: ConfigError: The folder cannot be
    listed."""
    if folder is None:
        return []
    try:
        return _listed(folder.absolute())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(
            f"the checkpoints in {shown(folder)} cannot be listed: {error.strerror}"
        ) from error


def newest_good(
    folder: Path, step: int | None = None, everybody: bool = False, most: int | None = None
) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest undamaged checkpoint, or the checkpoint of ``step``.

    Args:
        everybody: Whether to skip a checkpoint if an earlier round lacked the update of a peer.
        most: Maximum step; later checkpoints are skipped.
    Returns: The checkpoint, or None, and a line for each newer checkpoint that is damaged.
    Raises:
        DamagedCheckpoint: The checkpoint of ``step`` is damaged. The hint names the newest
        undamaged checkpoint.
        ConfigError: There is no checkpoint of ``step``. The hint lists the existing checkpoints.
    """
    there = listed(folder)
    if step is not None:
        return _good_at(folder, step, there), []
    passed_over: list[str] = []
    for at, path in reversed(there):
        if most is not None and at > most:
            continue
        try:
            checkpoint = open_at(path)
            problems = verify(checkpoint)
        except ConfigError as error:
            if not os.path.lexists(path):
                continue  # an old checkpoint that another process has just removed
            problems = [f"{error} ({error.hint})" if error.hint else str(error)]
        else:
            if not problems and everybody and not checkpoint.everybody:
                continue
            if not problems:
                return checkpoint, passed_over
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        passed_over.append(problems[0] + more)
    return None, passed_over


def _good_at(folder: Path, step: int, there: list[tuple[int, Path]]) -> Checkpoint:
    path = next((path for each, path in there if each == step), None)
    if path is None:
        steps = [str(each) for each, _ in there]
        which = ", ".join([*(["..."] if len(steps) > 20 else []), *steps[-20:]]) or "none"
        raise ConfigError(
            f"there is no checkpoint of step {step} in {shown(folder)}", f"there are: {which}"
        )
    try:
        checkpoint = open_at(path)
        for name in checkpoint.manifest["files"]:
            checkpoint.verify(name)
    except DamagedCheckpoint as error:
        good, _ = newest_good(folder)
        hint = (
            f"the newest undamaged one is of step {good.step}: {shown(folder)}@{good.step}"
            if good is not None
            else "there is no undamaged checkpoint in the folder"
        )
        raise DamagedCheckpoint(error.file, error.expected, error.found, hint) from error
    return checkpoint


def open_or_none(path: Path) -> Checkpoint | None:
    try:
        return open_at(path)
    except ConfigError:
        return None


def _is_there(place: Path, about: Mapping[str, Any]) -> bool:
    """Whether ``place`` is an undamaged checkpoint with the ``history`` of ``about``."""
    if place.is_symlink() or (checkpoint := open_or_none(place)) is None:
        return False
    same = checkpoint.manifest.get("history") == about.get("history")
    return same and not verify(checkpoint)


def _listed(folder: Path) -> list[tuple[int, Path]]:
    with os.scandir(folder) as entries:
        found = [
            (step, folder / entry.name)
            for entry in entries
            if (step := _step_of(entry.name)) is not None and entry.is_dir(follow_symlinks=False)
        ]
    return sorted(found)


def _step_of(name: str) -> int | None:
    found = _STEP.fullmatch(name)
    if found is None or name_of(int(found[1])) != name:
        return None
    return int(found[1])


# --- the manifest ---------------------------------------------------------------------------------


def _manifest_text(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"


def _manifest_digest(manifest: Mapping[str, Any]) -> str:
    """Return the digest of all entries of a manifest, except the entry ``digest``."""
    rest = {key: value for key, value in manifest.items() if key != "digest"}
    text = json.dumps(rest, separators=(",", ":"), sort_keys=True, allow_nan=False)
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def _read_manifest(path: Path) -> dict[str, Any]:
    """Read and check a manifest. Raises: DamagedCheckpoint: The file differs from what was written.
    ConfigError: Another version of gossip has written the manifest."""
    where = str(path / MANIFEST)
    try:
        with open_in(path.parent, f"{path.name}/{MANIFEST}") as file:
            data = read_at_most(file, MANIFEST_BYTES_MAX, where)
        manifest = object_in(data, path / MANIFEST)
        digest, text = _manifest_digest(manifest), _manifest_text(manifest)
    except (OSError, ConfigError) as error:
        _not_readable(where, "a manifest", error)
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpoint(where, "a manifest", f"invalid JSON: {shown(error)}") from error
    if (stored := manifest.get("digest")) != digest:
        raise DamagedCheckpoint(where, f"digest {_short(stored)}", f"digest {digest}")
    if manifest.get("format") != FORMAT:
        raise ConfigError(
            f"{shown(where)} has format {_short(manifest.get('format'))}, this gossip reads "
            f"{FORMAT}",
            "use the version of gossip that wrote it",
        )
    # Compare the text, too: a flipped bit may leave the meaning of JSON unchanged, as in 1e-05 and
    # 1E-05.
    if text != data:
        raise DamagedCheckpoint(where, "exactly the bytes that were written", "other bytes")
    if whole(manifest.get("step")) is None or not _are_files(manifest.get("files")):
        raise DamagedCheckpoint(where, "a step and files", "something else")
    return manifest


def _are_files(files: object) -> bool:
    return (
        isinstance(files, dict)
        and len(files) <= FILES_MAX
        and all(
            _FILE.fullmatch(name)
            and isinstance(entry, dict)
            and whole(entry.get("bytes")) is not None
            and isinstance(entry.get("blake2b"), str)
            and re.fullmatch(rf"[0-9a-f]{{{2 * DIGEST_BYTES}}}", entry["blake2b"])
            for name, entry in files.items()
        )
    )


def _not_readable(where: str, expected: str, error: OSError | ConfigError) -> NoReturn:
    match error:
        case DamagedCheckpoint():
            raise error
        case FileNotFoundError():
            found = "no such file"
        case OSError():
            found = f"that it cannot be read: {error.strerror or error}"
        case _:
            found = str(error).removeprefix(f"{shown(where)} ")
    raise DamagedCheckpoint(where, expected, found) from error


def _short(value: object) -> str:
    text = shown(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


# --- where a run saves to -------------------------------------------------------------------------


def stage_folder(folder: Path, stage: int) -> Path:
    """Return the folder of a stage of a pipeline, inside the run's folder of checkpoints."""
    return folder / f"stage-{stage}"


def stage_folders(folder: Path) -> dict[int, Path]:
    """Return the folders of stages in ``folder``; the key is the stage's number, ascending. A host
    may lack some stages. Raises: ConfigError: ``folder`` cannot be listed."""
    try:
        names = [path.name for path in folder.iterdir() if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ConfigError(f"{shown(folder)} cannot be listed: {error.strerror}") from error
    found = [int(number[1]) for name in names if (number := _STAGE.fullmatch(name))]
    return {number: stage_folder(folder, number) for number in sorted(found)}


def note_folder(run_dir: Path, folder: Path) -> None:
    """Record in the run's folder where the run saves its checkpoints. Raises OSError."""
    saved = {"folder": str(folder.absolute())}
    with contextlib.suppress(ConfigError):
        if read_object(run_dir, NOTE) == saved:
            return
    store(run_dir / NOTE, _pieces(json.dumps(saved, indent=1).encode() + b"\n"))


def folder_of(run_dir: Path) -> Path | None:
    """Return the folder to which a run saves its checkpoints; None if the run has not recorded it.
    Raises: ConfigError: The record is invalid."""
    found = read_object(run_dir, NOTE)
    if found is None:
        return None
    folder = found.get("folder")
    if not isinstance(folder, str) or not os.path.isabs(folder) or "\0" in folder:
        raise ConfigError(f"{shown(run_dir / NOTE)} does not name the folder that the run saves to")
    return Path(folder)


def resolve(resume: str) -> tuple[Path, int | None]:
    """Split ``resume``, in the form ``RUN|PATH[@STEP]``, into a folder of checkpoints and a step or
    None. RUN is a run under ``runs/``. PATH is a run's folder, a folder of checkpoints, or one
    checkpoint.

    Raises: ConfigError: ``resume`` has none of these forms, or there is no checkpoint.
    """
    named, step = resume, None
    if not _exists(resume):
        named, at, number = resume.rpartition("@")
        if not at:
            named = resume
        elif not is_step(number):
            raise ConfigError(
                f"{shown(resume)}: there is no such folder, and {shown(number)!r} is not a step",
                "a step is a whole number, as in ckpt@500",
            )
        else:
            step = int(number)
    place = next(
        (each for each in (Path(named), Path(RUNS) / named) if named and _exists(each)), None
    )
    if place is None:
        raise ConfigError(
            f"there is no run or folder of checkpoints {shown(named)!r}",
            f"name a run's folder, its name under {RUNS}/, or the folder that it saves to",
        )
    place = place.resolve()
    if not place.is_dir():
        raise ConfigError(f"{shown(place)} is not a folder", "name the folder of the file")
    if (single := _step_of(place.name)) is not None:
        if step not in (None, single):
            raise ConfigError(f"{shown(place)} is the checkpoint of step {single}, not of {step}")
        return place.parent, single
    return _folder_at(place), step


def _folder_at(place: Path) -> Path:
    saves_to = folder_of(place)
    if saves_to is not None:
        if not saves_to.is_dir():
            raise ConfigError(
                f"the run in {shown(place)} saved to {shown(saves_to)}, which does not exist",
                "name the folder that has its checkpoints now",
            )
        return saves_to
    if listed(place) or stage_folders(place):
        return place
    if os.path.lexists(place / HOSTS):
        raise ConfigError(
            f"checkpoints of the run in {shown(place)} can only be on its hosts",
            "copy the folder that the script saves to from each host, as with rsync -a",
        )
    if os.path.lexists(place / "config.json"):
        raise ConfigError(
            f"the run in {shown(place)} has saved no checkpoint",
            "a script saves with peer.steps(N, save=FOLDER, every=500)",
        )
    if os.path.lexists(place / MANIFEST):
        raise ConfigError(
            f"{shown(place)} does not have the name of its step",
            "restore the original name of the checkpoint, such as step-000000500",
        )
    raise ConfigError(f"there is no checkpoint in {shown(place)}")


def is_step(text: str) -> bool:
    """Whether the text is the number of a step."""
    return text.isascii() and text.isdecimal() and len(text) <= 18


def _exists(path: Path | str) -> bool:
    try:
        return bool(path) and os.path.exists(path)
    except ValueError:  # not a valid path
        return False
