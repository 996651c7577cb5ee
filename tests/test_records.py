"""``docs/records.md`` has each event, and each field of a commit and of a summary, and nothing that
is gone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from parsed import parsed

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "records.md"
SOURCES = ("gossip", "aggregators", "topologies", "launch")
# functions that take an event's name
WRITERS = ("Report", "event", "record", "_record", "_write_event")


def page() -> dict[str, list[str]]:
    """Return the names in the first column of each section's table, in order."""
    found: dict[str, list[str]] = {}
    for section in PAGE.read_text("utf-8").split("\n## ")[1:]:
        cells = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
        found[section.splitlines()[0]] = [
            name for cell in cells for name in re.findall(r"`([^`]+)`", cell)
        ]
    return found


@cache
def texts() -> tuple[str, ...]:
    """Of all sources."""
    paths = [path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py"))]
    return tuple(path.read_text("utf-8") for path in paths)


def trees(*words: str) -> Iterator[ast.Module]:
    """Of the sources that have all these words in them."""
    return (parsed(text) for text in texts() if all(word in text for word in words))


def words(node: ast.AST | None) -> list[str]:
    """The strings that an expression can be."""
    match node:
        case ast.Constant(value=str(word)):
            return [word]
        case ast.IfExp():
            return words(node.body) + words(node.orelse)
    return []


def keys(node: ast.AST) -> set[str]:
    """The keys of a dictionary, of those it is made of and of those in a list of it."""
    found: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Dict):
            found |= {word for key in each.keys for word in words(key)}
    return found


def literal(name: str) -> set[str]:
    """What the ``Literal`` of that name allows."""
    found: set[str] = set()
    for tree in trees(name):
        for node in tree.body:
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and node.target.id == name
                and node.value
            ):
                found |= {word for each in ast.walk(node.value) for word in words(each)}
    assert found, f"there is no {name}"
    return found


@cache
def events_written() -> set[str]:
    """Return the names of events by what the code calls.

    An event whose name is put together elsewhere is not seen."""
    names = literal("What") | literal("Change") | literal("Turn")
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args:
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if called in WRITERS:
                    names |= set(words(node.args[0]))
            elif isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if words(key) == ["event"]:
                        names |= set(words(value))
    return names


def function(name: str, beside: str) -> ast.FunctionDef:
    """The function of that name, in the module that has ``beside`` in it."""
    for tree in trees(f"def {name}(", beside):
        found = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name == name
        ]
        if found and any(beside in words(node) for node in ast.walk(tree)):
            return found[0]
    raise AssertionError(f"there is no {name}")


def test_each_event_has_a_sentence() -> None:
    assert set(page()["events.jsonl"]) >= events_written()


def test_each_field_of_a_commit_has_a_sentence() -> None:
    assert set(page()["commits.jsonl"]) >= keys(function("_write_commit", "made_at"))


def test_each_field_of_a_summary_has_a_sentence() -> None:
    parts = {
        "build": "record_incomplete",
        "_settings": "peers_for_one",
        "blows_and_returns": "deaths",
        "_restarts": "restarts_used_up",
    }
    written = {key for name, beside in parts.items() for key in keys(function(name, beside))}
    assert {"schema", "status", "deaths"} <= written
    [section] = re.findall(r"^## summary.json\n(.*?)^## ", PAGE.read_text("utf-8"), re.M | re.S)
    known = {part for name in re.findall(r"`([^`]+)`", section) for part in re.split(r"\W+", name)}
    assert known >= written


def test_nothing_is_explained_that_is_gone() -> None:
    written = set[str]()
    for tree in trees():
        for node in ast.walk(tree):
            match node:
                case ast.Constant(value=str(word)) | ast.keyword(arg=str(word)):
                    written.add(word)
    for heading, names in page().items():
        parts = {part for name in names for part in name.replace("[]", "").split(".")}
        assert parts <= written, heading


def test_nothing_is_explained_twice() -> None:
    for heading, names in page().items():
        assert len(set(names)) == len(names), heading
