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
LAB = "gossip_lab"


def placed(file: str, gossip: Path, lab: Path) -> Path:
    """Return where a file of a mutant is, below folders that have the packages."""
    return lab / file if file.startswith(f"{LAB}/") else gossip / "gossip" / file


def source(file: str) -> Path:
    return placed(file, ROOT, ROOT / "extras" / "lab")


@dataclass(frozen=True, slots=True)
class Edit:
    file: str  # below gossip/, or with gossip_lab/ in front
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
    shutil.copytree(ROOT / "extras" / "lab" / LAB, folder / LAB, ignore=ours)
    if mutant is not None:
        for file, text in mutant.texts().items():
            placed(file, folder, folder).write_text(text, "utf-8")
    return folder
