"""``docs/glossary.md`` has each public class and each field that is written to disk,
and nothing that is gone."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from parsed import parsed

import gossip
from gossip import errors
from gossip.core import events, messages, settings

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("gossip", "aggregators", "topologies", "launch")
# what is called with an event's name and its fields
WRITERS = ("Report", "event", "record", "_record", "_write_event")


def glossary() -> dict[str, list[str]]:
    """Heading -> the names in the first column of its table, in order."""
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in (ROOT / "docs" / "glossary.md").read_text("utf-8").splitlines():
        if line.startswith("## "):
            names = found.setdefault(line.removeprefix("## "), [])
        elif row := re.match(r"\| `([^`]+)` \|", line):
            names.append(row[1])
            assert re.search(r"[.)`] \|$", line), f"no sentence: {line}"
    return found


def classes(module: ModuleType) -> set[str]:
    """The public classes that a module defines."""
    own = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__
    ]
    return {cls.__name__ for cls in own if not cls.__name__.startswith("_")}


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
def events_written() -> tuple[set[str], set[str]]:
    """The events, and their fields, by what the code calls.
    What is put together elsewhere is not seen."""
    names, fields = literal("What") | literal("Change") | literal("Turn"), set[str]()
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args:
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if called in WRITERS and (event := words(node.args[0])):
                    names |= set(event)
                    fields |= {keyword.arg for keyword in node.keywords if keyword.arg}
                    fields |= keys(node.args[1]) if len(node.args) > 1 else set()
            elif isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if words(key) == ["event"] and (event := words(value)):
                        names |= set(event)
                        fields |= {word for each in node.keys for word in words(each)}
    return names, fields


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


CLASSES = {
    "Messages": messages,
    "Events and effects of the core": events,
    "Settings": settings,
    "Errors": errors,
}


@pytest.mark.parametrize("heading", CLASSES)
def test_each_public_class_has_a_sentence(heading: str) -> None:
    assert set(glossary()[heading]) == classes(CLASSES[heading])


def test_each_public_name_of_the_package_has_a_sentence() -> None:
    assert set(glossary()["The package"]) == set(gossip.__all__)


def test_each_event_has_a_sentence() -> None:
    assert set(glossary()["Events in events.jsonl"]) >= events_written()[0]


def test_each_field_of_an_event_has_a_sentence() -> None:
    assert set(glossary()["Fields of events.jsonl"]) >= events_written()[1]


def test_each_field_of_a_commit_has_a_sentence() -> None:
    assert set(glossary()["Fields of commits.jsonl"]) >= keys(function("_write_commit", "made_at"))


def test_each_field_of_a_summary_has_a_sentence() -> None:
    parts = {
        "build": "record_incomplete",
        "_settings": "peers_for_one",
        "blows_and_returns": "deaths",
        "_restarts": "restarts_used_up",
    }
    written = {key for name, beside in parts.items() for key in keys(function(name, beside))}
    assert {"schema", "status", "deaths"} <= written
    known = {
        part
        for name in glossary()["Fields of summary.json"]
        for part in name.replace("[]", "").split(".")
    }
    assert known >= written


def test_nothing_is_explained_that_is_gone() -> None:
    written = set[str]()
    for tree in trees():
        for node in ast.walk(tree):
            match node:
                case ast.Constant(value=str(word)) | ast.keyword(arg=str(word)):
                    written.add(word)
    tables = glossary()
    for heading in (
        "Events in events.jsonl",
        "Fields of events.jsonl",
        "Fields of commits.jsonl",
        "Fields of summary.json",
    ):
        parts = {part for name in tables[heading] for part in name.replace("[]", "").split(".")}
        assert parts <= written, heading


def test_tables_are_in_order_and_name_nothing_twice() -> None:
    for heading, names in glossary().items():
        assert names == sorted(names, key=str.lower), heading
        assert len(set(names)) == len(names), heading
