"""The mutants of the protocol, and copies of the package with one of them planted.

A mutant names the tokens that it replaces, so that comments and the layout of the source may
change. Parentheses are tokens.
"""

from __future__ import annotations

import ast
import re
import shutil
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# folders at the top of the repository that gossip links to
LINKED = ("aggregators", "topologies", "launch")
SATELLITES = {"gossip_lab": "lab", "gossip_pipelines": "pipelines"}
"""Other packages that mutants change -> their folders in extras/."""


def placed(file: str, folder: Path) -> Path:
    """Return the path of a file of a mutant in ``folder``, which has the packages side by side."""
    return folder / file if file.partition("/")[0] in SATELLITES else folder / "gossip" / file


def source(file: str) -> Path:
    satellite = SATELLITES.get(file.partition("/")[0])
    return placed(file, ROOT / "extras" / satellite if satellite else ROOT)


TOKEN = re.compile(
    r"""(?P<gap>\s+|\#.*|,(?=(?:\s|\#.*)*[)\]}]))
    |\w*(?:"{3}[\s\S]*?"{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|\w+|\S""",
    re.VERBOSE,
)


@cache
def tokens(text: str) -> list[re.Match[str]]:
    """Return the tokens of Python source, without comments, layout and trailing commas. Each
    character of an operator is a token."""
    return [match for match in TOKEN.finditer(text) if match["gap"] is None]


def lines_of(text: str, where: str) -> range:
    """Return the line numbers of a class or function, such as ``Class.method``; none if the file
    does not define it."""
    node: ast.AST | None = ast.parse(text)
    for name in where.split("."):
        inside = ast.walk(node) if node is not None else ()
        node = next((each for each in inside if getattr(each, "name", None) == name), None)
    if not isinstance(node, ast.ClassDef | ast.FunctionDef):
        return range(0)
    return range(node.lineno, (node.end_lineno or 0) + 1)


def shifted(text: str, to: int) -> str:
    """Return ``text`` for a place with the indentation ``to``: the first line begins with its first
    token, and the others keep their indentation relative to the first."""
    first, *others = text.strip("\n").split("\n")
    shift = to - indentation(first)
    lines = (" " * (indentation(line) + shift) + line.lstrip(" ") for line in others)
    return "\n".join([first.lstrip(" "), *lines])


def indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


@dataclass(frozen=True, slots=True)
class Edit:
    """Replacement of the tokens of ``old`` by ``new``, which is indented like the place."""

    file: str  # below gossip/, or with the name of a satellite in front
    old: str
    new: str
    where: str = ""  # the class or function, if ``old`` is not unique in the file

    def apply(self, text: str) -> str:
        """Raises: ValueError: ``old`` does not occur exactly once."""
        old = [token[0] for token in tokens(self.old)]
        code = tokens(text)
        words = [token[0] for token in code]
        places = [
            (code[first].start(), code[first + len(old) - 1].end())
            for first in range(len(words) - len(old) + 1)
            if words[first : first + len(old)] == old
        ]
        if self.where:
            lines = lines_of(text, self.where)
            places = [each for each in places if text.count("\n", 0, each[0]) + 1 in lines]
        if len(places) != 1:
            raise ValueError(f"{self.file}: found {len(places)} times, not once:\n{self.old}")
        ((start, end),) = places
        line = text[text.rfind("\n", 0, start) + 1 : start]
        return text[:start] + shifted(self.new, indentation(line)) + text[end:]


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    why: str
    edits: tuple[Edit, ...]
    seed: int | None = None  # of a schedule that has killed it
    test: str = ""  # that kills it, if no schedule is known to

    def texts(self) -> dict[str, str]:
        """Return the mutated text of each file that the mutant changes.

        Raises: ValueError: the mutant does not fit the source.
        """
        texts: dict[str, str] = {}
        for edit in self.edits:
            before = texts.get(edit.file) or source(edit.file).read_text("utf-8")
            texts[edit.file] = edit.apply(before)
        return texts


def load() -> tuple[Mutant, ...]:
    """Return all mutants, in the order of the file."""
    rows = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text("utf-8"))["mutant"]
    mutants = []
    for row in rows:
        edits = [
            Edit(row["file"], row["old"], row["new"], row.get("where", "")),
            *(Edit(*more) for more in row.get("also", ())),
        ]
        known = row.get("seed"), row.get("test", "")
        mutants.append(Mutant(row["name"], row["why"], tuple(edits), *known))
    return tuple(mutants)


def plant(mutant: Mutant | None, folder: Path) -> Path:
    """Copy the packages into ``folder`` and plant the mutant in the copy. Return the folder for
    ``PYTHONPATH``."""
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
