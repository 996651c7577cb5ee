"""One name for one thing, and the terms of the field for all of them."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from parsed import tree_of

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ("gossip", "launch", "aggregators", "topologies")
PAGES = ("README.md", "CONTRIBUTING.md", "docs")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SECTIONS = re.compile(r"^(?=(?:Args|Attributes|Raises|Returns|Source):)", re.MULTILINE)
"""Of a docstring."""

DOUBLED = {
    # What the core asks for and is told, and the message that carries it to the trainer and back.
    "LedgerReply",
    "LedgerRequest",
    # A member of the swarm, and a peer in the word for a fault.
    "Peer",
}
"""Class names that stand for two things."""

REPLACED = {
    "agreed": "ReplicatedState",
    "astray": "LagDetector",
    "cases": "RumorHandler",
    "claims": "ResultValidator",
    "door": "JoinServer",
    "doorkeeper": "Registry",
    "doubts": "ResultValidator",
    "elsewhere": "FutureBuffer",
    "emptiness": "NoStateEvidence",
    "foresight": "PlanCache",
    "hearsay": "RumorHandler",
    "joint": "CrossShardRound",
    "knock": "JoinRequest",
    "letters": "Outbox",
    "oversleep": "StallDetector",
    "partings": "Departures",
    "promises": "AttemptLocks",
    "receipts": "EquivocationDetector",
    "rests": "Backoff",
    "saboteur": "FaultInjector",
    "silences": "OmissionTracker",
    "together": "CrossShardRound",
    "tongue": "UpdateAttack",
    "turnedaway": "Rejected",
    "voucher": "StateAttestation",
}
"""Names that classes of this project once had -> what the field calls the thing."""

INVENTED = re.compile(
    r"\b(bury|doorkeeper|foresight|hearsay|oversle\w+|saboteur|undeceive\w*|vouchers?)\b",
    re.IGNORECASE,
)
"""Words of that kind that no sentence about the field needs."""


def trees(project: Path) -> Iterator[tuple[Path, ast.Module]]:
    for folder in PACKAGE:
        for path in sorted((project / folder).rglob("*.py")):
            yield path.relative_to(project), tree_of(path)


@cache
def definitions(project: Path) -> list[tuple[str, str]]:
    """The name of each class, and where it is defined."""
    return [
        (node.name, f"{path}:{node.lineno}")
        for path, tree in trees(project)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]


def classes(project: Path) -> dict[str, list[str]]:
    """Name -> where a class of that name is defined."""
    found = defaultdict(list)
    for name, where in definitions(project):
        if not where.startswith("gossip/observe/events.py"):  # always written as events.Round
            found[name].append(where)
    return found


def replaced(project: Path) -> list[str]:
    """Classes for which the field has another name."""
    return [
        f"{where}: {name} -> {REPLACED[plain]}"
        for name, where in definitions(project)
        if (plain := name.strip("_").lower()) in REPLACED
    ]


def invented(project: Path) -> list[str]:
    """Lines of code and pages with a word that only this project knew."""
    paths = [path for folder in PACKAGE for path in (project / folder).rglob("*.py")]
    for page in PAGES:
        paths += (project / page).rglob("*.md") if page == "docs" else [project / page]
    return [
        f"{path.relative_to(project)}:{number}: {line.strip()}"
        for path in sorted(paths)
        if path.is_file()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if INVENTED.search(line)
    ]


def documented(docstring: str) -> list[str]:
    """The names that stand below ``Args:`` and ``Attributes:``."""
    found: list[str] = []
    for section in SECTIONS.split(docstring):
        head, *lines = section.splitlines() or [""]
        if head in ("Args:", "Attributes:") and any(lines):
            # those of a class whose docstring begins with "Args:" are not indented
            indent = re.match(r" *", next(line for line in lines if line))
            assert indent is not None
            rows = [re.match(rf"{indent[0]}(\w[\w, ]*):( |$)", line) for line in lines]
            found += [name for row in rows if row for name in row[1].split(", ")]
    return found


def own_names(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """What a docstring may document: parameters, and the points of a rule; of a class its
    attributes and methods, too."""
    found: set[str] = set()
    for each in ast.walk(node):
        match each:
            case ast.arg(arg=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                found.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]):
                found.add(name)
    for decorator in node.decorator_list:  # @gram_rule(points=("origin", "center?"))
        found |= {
            each.value.removesuffix("?")
            for each in ast.walk(decorator)
            if isinstance(each, ast.Constant) and isinstance(each.value, str)
        }
    return found


def documented_and_gone(project: Path) -> list[str]:
    """Parameters and attributes that a docstring documents, and that do not exist."""
    found: list[str] = []
    for path, tree in trees(project):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names = documented(ast.get_docstring(node) or "")
                # what is passed on by ** has its names elsewhere
                if not names or (isinstance(node, FUNCTIONS) and node.args.kwarg):
                    continue
                gone = [name for name in names if name not in own_names(node)]
                found += [f"{path}:{node.lineno}: {node.name} has no {name}" for name in gone]
    return found


def test_a_class_name_stands_for_one_thing() -> None:
    doubled = {name: where for name, where in classes(ROOT).items() if len(where) > 1}
    assert doubled.keys() == DOUBLED, doubled


def test_names_are_those_of_the_field() -> None:
    assert replaced(ROOT) == []


def test_sentences_use_the_words_of_the_field() -> None:
    assert invented(ROOT) == []


def test_what_a_docstring_documents_is_there() -> None:
    assert documented_and_gone(ROOT) == []


def test_a_parameter_that_was_renamed_is_found(tmp_path: Path) -> None:
    core = tmp_path / "gossip"
    core.mkdir()
    text = '''
class Part:
    """Of a whole.

    Attributes:
        size, place: Numbers.
            colour: Goes on in the line before.
        gone: It has another name now.
    """

    size: int

    def __init__(self) -> None:
        self.place = 0


def moved(part):
    """Moves it.

    Args:
        piece: Of a whole.
    Raises: ValueError: It cannot be moved.
    """
'''
    (core / "a.py").write_text(text)
    assert documented_and_gone(tmp_path) == [
        "gossip/a.py:2: Part has no gone",
        "gossip/a.py:17: moved has no piece",
    ]


def test_a_doubled_name_and_an_invented_word_are_found(tmp_path: Path) -> None:
    core = tmp_path / "gossip"
    core.mkdir()
    (core / "a.py").write_text("class Part: ...\n\n\nclass Door:\n    class Part: ...\n")
    (core / "b.py").write_text("class _Voucher: ...\n\n\ndef bury(peer): ...\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("# Page\n\nThat is hearsay.\n")
    assert classes(tmp_path)["Part"] == ["gossip/a.py:1", "gossip/a.py:5"]
    assert replaced(tmp_path) == [
        "gossip/a.py:4: Door -> JoinServer",
        "gossip/b.py:1: _Voucher -> StateAttestation",
    ]
    assert invented(tmp_path) == [
        "docs/page.md:3: That is hearsay.",
        "gossip/b.py:4: def bury(peer): ...",
    ]
