"""Writes checkpoints of the run in the background. Decides when a checkpoint is due, and which peer
writes it."""

from __future__ import annotations

import fcntl
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gossip.errors import ConfigError
from gossip.run import checkpoints, shown

from .own_state import has_own, mean_of, write_own
from .state import StateFile

LOCK = ".writer.lock"
LEDGER_FILE = "ledger.json"
LINKS_MAX = 16
"""Maximum number of checkpoints that link to the same base file. After that the file is written
again."""
HANDED_OVER_S = 10.0
"""Seconds that other peers wait until the holder of the lock has written the last checkpoint. After
that every peer writes it, because the holder may hang. All peers write equal files, so this does no
harm."""
HOLDER_BYTES_MAX = 1024
TOLD_S, LOOK_AT_DISK_S = 5.0, 0.5
"""Seconds that a peer waits for the disk before it reports the wait, and seconds between two checks
whether the wait must end."""
SLOW_DISK_S = 2.0
"""Seconds that training waits for the previous checkpoint when the next one is due. If this wait
fails, training does not wait again, and no checkpoint is made until the previous one is written."""
ROOM_BYTES = 2**16
"""Spare bytes in the memory into which a file is copied, because the next file may be longer."""
OTHERS_S, LOOK_EVERY_S = 10.0, 0.1
"""In gossip rounds: seconds that the writer waits for the models of other peers, and seconds
between two checks. All peers save the same step, but not at the same time."""

logger = logging.getLogger(__name__)


class SavePlan(NamedTuple):
    """Schedule and form of checkpoints.

    ``every``: number of steps between two checkpoints; None means only at the end. ``keep``: number
    of checkpoints to keep. ``peers``: peers with models of their own, which are averaged; empty if
    replicas are equal. ``of_round``: number of steps of a round. A state can be saved only after a
    round. ``streams``: whether the state is written in blocks while training waits. Otherwise it is
    copied, and written in the background."""

    folder: Path
    every: int | None
    keep: int
    peers: tuple[int, ...] = ()
    of_round: int = 1
    streams: bool = False


class JobThread:
    """Thread that runs one job at a time, in parallel with the training."""

    def __init__(self, fails: Callable[[str], None]) -> None:
        """``fails``: function that receives the text of an unexpected error in a job."""
        self._fails = fails
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> None:
        self._idle.clear()
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="gossip-checkpoint", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # Python 3.12 starts no thread at exit, when training is over
                self._do(job)
                self._idle.set()
                return
            self._thread = thread
        self._jobs.put(job)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no job runs. Return False if a job still runs after ``timeout_s``."""
        return self._idle.wait(timeout_s)

    def close(self) -> None:
        """End the thread after its job."""
        if self._thread is not None:
            self._jobs.put(None)
            if self.wait_idle(0.0):
                self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(job)
            del job  # it references the memory of the checkpoint
            self._idle.set()

    def _do(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:  # or ``wait_idle`` would never succeed
            logger.exception("a checkpoint was not written")
            self._fails(f"{type(error).__name__}: {error}")


class CheckpointSaver:
    """Writer of checkpoints to one folder. Among the peers that share the folder, only the holder
    of the folder's lock writes. The system frees the lock when the holder's process dies.

    Attributes:
        folder: Folder of the checkpoints.
        every: Number of steps between two checkpoints; None means only at the end.
        failed: Error of the last checkpoint; "" if there was no error.
        newest: Step of the last checkpoint that this peer has begun to write.
    """

    def __init__(
        self,
        plan: SavePlan,
        peer: int,
        about: Mapping[str, Any],
        notify: Callable[[str], None],
    ) -> None:
        """
        Args:
            peer: The local peer.
            about: Entries of the manifest in addition to the step and the files.
            notify: Shows a message when checkpoints cannot be written, and when they can be again.
        """
        self.folder, self.every, self._keep, peers, self._of_round, self._streams = plan
        self._averaged = set(peers)  # peers that have saved their models in time so far
        self._peer = peer
        self._about, self._notify = dict(about), notify
        self.failed = ""
        self.newest = -1
        self._lock_fd = -1
        self._memory: dict[str, bytearray] = {}
        self._links = 0  # Number of links to the base file.
        self._written: Path | None = None  # Last checkpoint that this process wrote.
        self._disk_is_slow = False  # The previous checkpoint was not written in time.
        self._beside = JobThread(self._fails)

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint of ``step`` is due."""
        return self.every is not None and step % self.every < self._of_round

    def is_writer(self) -> bool:
        """Lock the folder if no other peer has locked it. Return whether this peer holds the lock,
        so that it writes. The holder keeps the lock until this peer leaves."""
        if self._lock_fd >= 0:
            return True
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # A lock of fcntl is not inherited by forked children.
            fd = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            self._fails(f"{error}")
            return False
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)  # another peer holds the lock, or the file system has no locks
            return False
        self._lock_fd = fd
        with suppress(OSError):  # the disk may be full, and the text is only used in messages
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(self._about.get("run", "")).encode()[:HOLDER_BYTES_MAX], 0)
        return True

    def check_folder(self, resumes: bool) -> None:
        """Raise ConfigError if another run is saving to the folder. Also raise it if another run
        has saved to the folder, and this run does not resume. Called before the first step."""
        run = str(self._about.get("run", ""))
        if not self.is_writer() and (holder := self._holder()) not in ("", run):
            raise ConfigError(
                f"the run {shown(holder)} saves to {self.folder} now",
                "save to another folder: peer.steps(N, save=...)",
            )
        if resumes:
            return
        others = {
            str(said): step
            for step, path in checkpoints.listed(self.folder)
            if (said := _run_of(path)) not in (None, run)
        }
        for other, step in others.items():
            raise ConfigError(
                f"{self.folder} has checkpoints of the run {shown(other)}, up to step {step}",
                "continue from them with --resume auto, or save to another folder",
            )

    def _holder(self) -> str:
        """Return the name of the run that holds the lock, read from the lock file."""
        try:
            with open(self.folder / LOCK, "rb") as file:
                return file.read(HOLDER_BYTES_MAX).decode("utf-8", "replace")
        except OSError:
            return ""

    def has(self, step: int) -> bool:
        """Whether there is a complete checkpoint of ``step``."""
        try:
            checkpoints.open_at(self.folder / checkpoints.name_of(step))
        except (OSError, ConfigError):
            return False
        return True

    def is_in_time(self, step: int) -> bool:
        """Whether the previous checkpoint is written, so that a checkpoint of ``step`` can begin.
        Wait only briefly, so that a slow disk does not delay training."""
        if self._beside.wait_idle(0.0 if self._disk_is_slow else SLOW_DISK_S):
            self._disk_is_slow = False
            return True
        if not self._disk_is_slow:
            self._notify(
                f"there is no checkpoint of step {step}: the previous one is still being written; "
                "training goes on"
            )
        self._disk_is_slow = True
        return False

    def save(
        self,
        step: int,
        own: StateFile | None,
        files: Mapping[str, StateFile],
        ledger: bytes,
        about: Mapping[str, Any],
    ) -> None:
        """Copy the state, or stream it to the disk without a sync. Another thread then makes the
        checkpoint durable. The previous save must be complete (``wait``).

        Args:
            own: Per-peer state of this peer, or None.
            files: Files of the checkpoint; empty if another peer writes it.
            ledger, about: Content of the ledger file, and further entries of the manifest.
        """
        assert self.is_idle, "the memory is still being written from"
        of_own = None if own is None else self._copied("own", own)
        told = {**self._about, **about}
        if checkpoints.BASE_FILE in files:
            told["base"] = files[checkpoints.BASE_FILE].digest().hex()
        if base := self._find_same_base(told):
            self._memory.pop(checkpoints.BASE_FILE, None)  # the base may never be copied again
        self.newest = step if files else self.newest
        outgoing: checkpoints.OutgoingCheckpoint | None = None
        conclude: Callable[[], Path] | None = None
        if files and self._streams:
            outgoing = self._streamed(step, files, ledger, base)
            conclude = None if outgoing is None else partial(outgoing.finish, told, self._keep)
        elif files:
            data = {
                name: base if base and name == checkpoints.BASE_FILE else self._copied(name, file)
                for name, file in files.items()
            }
            conclude = partial(self._write_copies, step, {LEDGER_FILE: ledger, **data}, told)
        self._beside.submit(lambda: self._write(step, of_own, conclude, outgoing))

    def _find_same_base(self, about: Mapping[str, Any]) -> checkpoints.Checkpoint | None:
        """Return the last checkpoint of this process if it has the same base as ``about``, or None.
        The number of links to a base file is bounded, so a damaged file affects few checkpoints."""
        last = None if self._written is None else checkpoints.open_or_none(self._written)
        same = last is not None and "base" in about and last.manifest.get("base") == about["base"]
        self._links = self._links + 1 if same and self._links < LINKS_MAX else 0
        return last if self._links else None

    def _streamed(
        self,
        step: int,
        files: Mapping[str, StateFile],
        ledger: bytes,
        base: checkpoints.Checkpoint | None,
    ) -> checkpoints.OutgoingCheckpoint | None:
        """Write the files of a checkpoint, but do not make them durable. Return None on failure."""
        outgoing = checkpoints.OutgoingCheckpoint(self.folder, step)
        try:
            outgoing.add(LEDGER_FILE, iter((memoryview(ledger),)))
            for name, file in files.items():
                same = base if name == checkpoints.BASE_FILE else None
                outgoing.add(name, same or file.blocks())
        except (OSError, ConfigError) as error:
            outgoing.drop()
            self._fails(f"step {step}: {error}")
            return None
        except BaseException:
            outgoing.drop()
            raise
        return outgoing

    def _copied(self, name: str, file: StateFile) -> memoryview:
        """Copy a file into reused memory, with spare bytes for a longer header. Memory that is too
        small is freed before new memory is allocated, because both are as large as the state."""
        if len(self._memory.get(name, b"")) < file.nbytes:
            self._memory.pop(name, None)
            self._memory[name] = bytearray(file.nbytes + ROOM_BYTES)
        file.write(memoryview(self._memory[name])[: file.nbytes])
        return memoryview(self._memory[name])[: file.length]

    def wait(
        self,
        expired: Callable[[], bool] = lambda: False,
        serve: Callable[[Callable[[], bool]], None] = lambda waits: None,
    ) -> bool:
        """Wait until the last ``save`` is durable, or has failed.

        Args:
            expired: Function that is polled twice a second. The wait ends when it returns True.
            serve: Function that serves the node as long as its argument returns True.
        Returns: Whether all writes have ended.
        """
        began, tells_at = time.monotonic(), TOLD_S

        def waits() -> bool:
            nonlocal tells_at
            if self.is_idle or expired():
                return False
            if time.monotonic() - began >= tells_at:
                tells_at = math.inf
                self._notify("waits for the disk: a checkpoint is still being written")
            return True

        serve(waits)
        while waits():
            self._beside.wait_idle(LOOK_AT_DISK_S)
        if not self.is_idle:
            self._fails("the disk did not finish a checkpoint in time")
        return self.is_idle

    @property
    def is_idle(self) -> bool:
        """Whether no write is in progress."""
        return self._beside.wait_idle(0.0)

    def close(self) -> None:
        """Release the lock for another peer. An unfinished save continues in its thread."""
        self._beside.close()
        self.release()

    def release(self) -> None:
        """Release the lock, so that another peer can write."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _write(
        self,
        step: int,
        own: memoryview | None,
        conclude: Callable[[], Path] | None,
        outgoing: checkpoints.OutgoingCheckpoint | None,
    ) -> None:
        """Write the per-peer state, if any. Then call ``conclude``, if this peer writes the
        checkpoint."""
        try:
            if own is not None:
                write_own(self.folder, self._peer, step, own, self._keep)
            if conclude is not None:
                self._written = conclude()
        except (OSError, ConfigError) as error:
            self._fails(f"step {step}: {error}")
        else:
            if conclude is None:
                return
            if self.failed:
                self._notify(f"checkpoints are written again, from step {step} on")
            self.failed = ""
        finally:
            if outgoing is not None:
                outgoing.drop()

    def _write_copies(self, step: int, data: Mapping[str, Any], about: Mapping[str, Any]) -> Path:
        if self._averaged:
            data, about = self._with_mean(step, data, about)
        return checkpoints.write(self.folder, step, data, about, self._keep)

    def _with_mean(
        self, step: int, data: Mapping[str, Any], about: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the files and the manifest of a checkpoint. Its model is the mean of the models
        that peers have saved in time. Later checkpoints do not wait for peers that were late."""
        until = time.monotonic() + OTHERS_S
        while time.monotonic() < until:
            lacking = {p for p in self._averaged if not has_own(self.folder, p, step)}
            if not lacking:
                break
            time.sleep(LOOK_EVERY_S)
        mean, of = mean_of(self.folder, step, self._averaged)
        self._averaged = {self._peer, *of}
        if not of:
            return dict(data), dict(about)
        file = StateFile(mean)
        memory = bytearray(file.nbytes)
        file.write(memoryview(memory))
        whole = {**data, checkpoints.MODEL_FILE: memoryview(memory)[: file.length]}
        return whole, {**about, "mean_of": of}

    def _fails(self, why: str) -> None:
        if not self.failed:
            self._notify(
                f"cannot save checkpoints to {self.folder}: {why}; earlier ones are unchanged"
            )
        self.failed = why
        self._written = None


def _run_of(path: Path) -> str | None:
    """Return the name of the run that wrote a checkpoint; None if the checkpoint is unreadable.
    Raises: ConfigError: Another version of gossip has written the checkpoint."""
    try:
        said = checkpoints.open_at(path).manifest.get("run")
    except (OSError, checkpoints.DamagedCheckpoint):
        return None
    except ConfigError as error:
        if not path.is_dir():
            return None  # another process has just removed it
        raise ConfigError(str(error), f"save to another folder, or {error.hint}") from error
    return said if isinstance(said, str) else None
