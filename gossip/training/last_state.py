"""State that a peer writes to disk when it gives up while it holds the state of the run:
this may be the last copy."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gossip.errors import ConfigError
from gossip.run import checkpoints

from .state import PackingPlan

FOLDER = "last_state"
MANIFEST = "manifest.json"
FORMAT = "provisional"


class LastState:
    """Folder for the last state of a peer. ``about``: entries of the manifest beside round,
    reason and files."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder, self._about = folder, about

    def leave(self, round_id: int, reason: str, make_plan: Callable[[], PackingPlan]) -> str:
        """Writes ``last_state/`` with the files of the state, and ``manifest.json`` with their
        digests.

        The folder is there as a whole or not at all; one from before stays until then. Who is
        killed between the two leaves that one as ``.last_state.old``.

        Returns: a line that says where it is, or why it could not be written: this happens on the
            way out, and never raises.
        """
        new, place = self.folder / f".{FOLDER}.new", self.folder / FOLDER
        try:
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(parents=True)
            written = {
                part: checkpoints.store_new(new / f"{part}.safetensors", file.blocks())
                for part, file in make_plan().files.items()
            }
            manifest = {
                "format": FORMAT,
                **self._about,
                "round": round_id,
                "reason": reason,
                "files": written,
            }
            text = json.dumps(manifest, indent=2).encode() + b"\n"
            checkpoints.store_new(new / MANIFEST, iter((text,)))
            _put(new, place)
        except (OSError, ConfigError) as error:
            shutil.rmtree(new, ignore_errors=True)
            return f"its state of round {round_id} could not be written to {place}: {error}"
        return (
            f"its state of round {round_id} is in {place}: what the model learnt is in "
            "state.safetensors, under model.*"
        )


def _put(new: Path, place: Path) -> None:
    """Renames a folder to ``place``. What is there already is moved aside,
    and removed when the new one is in."""
    old = place.with_name(f".{place.name}.old")
    _sync(new)
    if place.exists():
        shutil.rmtree(old, ignore_errors=True)
        place.rename(old)
    try:
        new.rename(place)
    except OSError:
        if old.exists():
            old.rename(place)
        raise
    _sync(place.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Flush a folder to disk, so that the names in it survive a loss of power."""
    with contextlib.suppress(OSError):
        checkpoints.sync_folder(folder)
