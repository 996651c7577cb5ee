"""Agreement among the peers of a run about its faults: which peer carries one out, and when the run
began."""

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
    """Agreement among the peers of a run without a leader: files in a folder, of which the first to
    be made counts.

    A full disk or a deleted folder is no error here: it is reported, and each peer goes on by
    itself.

    Args:
        folder: Folder of the files; None: this peer is alone, and its claims are its own.
        troubles: Receives the files that cannot be written.
    """

    def __init__(self, folder: Path | None, peer: int, troubles: WriteFailures) -> None:
        self.folder, self._peer, self._troubles = folder, peer, troubles

    def try_claim(self, name: str, otherwise: bool, **fields: Any) -> bool:
        """Whether this peer is the first to claim it. ``otherwise``: where no claim can be made, so
        that nobody can tell."""
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
        # the claim is made: what it says is for people
        self._troubles.try_to(path, lambda: _write(fd, text))
        return True

    def beginning(self) -> float:
        """When the first round of the run began, on the monotonic clock, which the peers of a host
        share: whoever begins it writes that down for the others, and for later lives. Where that
        cannot be written, each counts from its own."""
        now = time.monotonic()
        if self.folder is None:
            return now
        if self.began() is None:
            path = self.folder / BEGAN
            self._troubles.try_to(path, lambda: self._begin(path, now))
        known = self.began()
        return now if known is None else known

    def began(self) -> float | None:
        """The same; None as long as nobody has begun."""
        return None if self.folder is None else began_in(self.folder)

    def _make_folder(self) -> None:
        assert self.folder is not None
        # none above it: whoever has deleted the run's folder wants it gone
        self.folder.mkdir(exist_ok=True)

    def _begin(self, path: Path, now: float) -> None:
        self._make_folder()
        scratch = path.with_name(f"began.{self._peer}.{os.getpid()}")
        try:
            scratch.write_text(repr(now), "utf-8")
            with contextlib.suppress(FileExistsError):
                os.link(scratch, path)  # whole, and only if there is none yet
        finally:
            # it tells of what went wrong before, if anything did
            with contextlib.suppress(OSError):
                scratch.unlink()


def _write(fd: int, text: str) -> None:
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)


def began_in(folder: Path) -> float | None:
    """When the first round of the run began, as the peers have written into its folder of faults;
    None as long as nobody has."""
    try:
        return float((folder / BEGAN).read_text("utf-8"))
    except (OSError, ValueError):
        return None
