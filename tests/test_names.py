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
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SECTIONS = re.compile(r"^(?=(?:Args|Attributes|Raises|Returns|Source):)", re.MULTILINE)
"""Of a docstring."""

DOUBLED = {
    # A member of the swarm, and a peer in the word for a fault.
    "Peer"
}
"""Class names that stand for two things."""


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


def test_what_a_docstring_documents_is_there() -> None:
    assert documented_and_gone(ROOT) == []


def test_no_message_of_an_error_is_cut_off() -> None:
    cut = []
    for path, tree in trees(ROOT):
        for node in ast.walk(tree):
            raised = node.exc if isinstance(node, ast.Raise) else None
            for given in raised.args if isinstance(raised, ast.Call) else ():
                last = given.values[-1] if isinstance(given, ast.JoinedStr) else given
                if isinstance(last, ast.Constant) and str(last.value).endswith((" ", ",", ":")):
                    cut.append(f"{path}:{last.lineno}")
    assert not cut
