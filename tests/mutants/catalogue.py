"""The mutants of the protocol: what each changes, and a copy of the package in which one of
them is at work."""

from __future__ import annotations

import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# folders of the package that lie at the top of the repository
LINKED = ("aggregators", "topologies", "launch")
SATELLITES = {"gossip_lab": "lab", "gossip_pipelines": "pipelines"}
"""Packages of mutants beside gossip -> their folders in extras/."""


def placed(file: str, folder: Path) -> Path:
    """Return where a file of a mutant is, in a folder that has the packages beside each other."""
    return folder / file if file.partition("/")[0] in SATELLITES else folder / "gossip" / file


def source(file: str) -> Path:
    satellite = SATELLITES.get(file.partition("/")[0])
    return placed(file, ROOT / "extras" / satellite if satellite else ROOT)


@dataclass(frozen=True, slots=True)
class Edit:
    file: str  # below gossip/, or with the name of a satellite in front
    old: str
    new: str

    def apply(self, text: str) -> str:
        """Raises: ValueError: ``old`` does not occur exactly once."""
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.file} has {count} times, where once is wanted:\n{self.old}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    why: str
    edits: tuple[Edit, ...]
    seed: int | None = None  # of a schedule that has killed it

    def texts(self) -> dict[str, str]:
        """File -> what is in it with the mutant at work. Raises: ValueError: the mutant does not
        fit the source (any more)."""
        texts: dict[str, str] = {}
        for edit in self.edits:
            before = texts.get(edit.file) or source(edit.file).read_text("utf-8")
            texts[edit.file] = edit.apply(before)
        return texts


def load() -> tuple[Mutant, ...]:
    """All mutants, in the order of the file."""
    rows = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text("utf-8"))["mutant"]
    mutants = []
    for row in rows:
        edits = [
            Edit(row["file"], row["old"], row["new"]),
            *(Edit(*more) for more in row.get("also", ())),
        ]
        mutants.append(Mutant(row["name"], row["why"], tuple(edits), row.get("seed")))
    return tuple(mutants)


def plant(mutant: Mutant | None, folder: Path) -> Path:
    """Copies the package into ``folder`` and puts the mutant into it.
    Returns what belongs on the path of Python."""
    ours = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "gossip", folder / "gossip", symlinks=True, ignore=ours)
    for name in LINKED:
        shutil.copytree(ROOT / name, folder / name, ignore=ours)
    for name, extra in SATELLITES.items():
        shutil.copytree(ROOT / "extras" / extra / name, folder / name, ignore=ours)
    if mutant is not None:
        for file, text in mutant.texts().items():
            placed(file, folder).write_text(text, "utf-8")
    return folder
