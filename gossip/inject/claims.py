"""Agreement among the peers of a run on the time when the run began, and on which peer carries out
each fault."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from gossip.run import WriteFailures

BEGAN = "began"


class ClaimFiles:
    """Leaderless agreement among the peers of a run by files in a folder. Each claim is a file, and
    the first peer to create the file owns the claim.

    If the disk is full or the folder was deleted, the peer reports it. The run continues, and each
    peer decides alone.

    Args:
        folder: Folder of the files. If None, this peer is alone and owns all claims.
        troubles: Reports files that cannot be written.
    """

    def __init__(self, folder: Path | None, peer: int, troubles: WriteFailures) -> None:
        self.folder, self._peer, self._troubles = folder, peer, troubles

    def try_claim(self, name: str, otherwise: bool, **fields: Any) -> bool:
        """Whether this peer is the first to claim ``name``. ``otherwise``: return value if the file
        cannot be created. ``fields``: data that users may read in the file."""
        if self.folder is None:
            return True
        path = self.folder / name
        if not self._troubles.try_to(path, self._make_folder):
            return otherwise
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return False
        except OSError as error:
            self._troubles.failed(path, error)
            return otherwise
        text = json.dumps({**fields, "peer": self._peer, "wall": time.time()})
        # The existence of the file is the claim; its content is only for users.
        self._troubles.try_to(path, lambda: _write(fd, text))
        return True

    def beginning(self) -> float:
        """Return when the run's first round began, by the monotonic clock that the peers of a host
        share. The first peer to start records the time for all peers and later incarnations. If the
        record cannot be written, each peer uses the time of its own first call."""
        now = time.monotonic()
        if self.folder is None:
            return now
        if self.began() is None:
            path = self.folder / BEGAN
            self._troubles.try_to(path, lambda: self._begin(path, now))
        known = self.began()
        return now if known is None else known

    def began(self) -> float | None:
        """Return the recorded time when the run's first round began, or None."""
        return None if self.folder is None else began_in(self.folder)

    def _make_folder(self) -> None:
        assert self.folder is not None
        # Parent folders are not created: if the user has deleted the run's folder, it stays
        # deleted.
        self.folder.mkdir(exist_ok=True)

    def _begin(self, path: Path, now: float) -> None:
        self._make_folder()
        scratch = path.with_name(f"began.{self._peer}.{os.getpid()}")
        try:
            scratch.write_text(repr(now), "utf-8")
            with contextlib.suppress(FileExistsError):
                os.link(scratch, path)  # atomic; fails if ``path`` exists
        finally:
            # The caller reports an error of the write above. An error of ``unlink`` would hide it.
            with contextlib.suppress(OSError):
                scratch.unlink()


def _write(fd: int, text: str) -> None:
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)


def began_in(folder: Path) -> float | None:
    """Return when the run's first round began, as recorded in the run's folder ``faults``, or
    None."""
    try:
        return float((folder / BEGAN).read_text("utf-8"))
    except (OSError, ValueError):
        return None
