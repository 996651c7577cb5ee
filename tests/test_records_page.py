"""``docs/records.md`` has each event, and each field of a commit and of a summary, and nothing that
is gone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from parsed import parsed

from gossip.observe import EVENTS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "records.md"
SOURCES = ("gossip", "aggregators", "topologies", "launch", "extras/pipelines")
EVENTS_HEAD = "| event | meaning |\n|---|---|\n"
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
def events_written() -> dict[str, set[str]]:
    """Return the events that are written by name, and the fields that stand beside the name.

    An event that is put together elsewhere than where it is written is not seen."""
    names = literal("What") | literal("Change") | literal("Turn")
    found: dict[str, set[str]] = {name: set() for name in names}
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args:
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if called in WRITERS and (event := words(node.args[0])):
                    beside = {keyword.arg for keyword in node.keywords if keyword.arg}
                    beside |= keys(node.args[1]) if len(node.args) > 1 else set()
                    for name in event:
                        found.setdefault(name, set()).update(beside)
            elif isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if words(key) == ["event"] and (event := words(value)):
                        beside = {word for each in node.keys for word in words(each)}
                        for name in event:
                            found.setdefault(name, set()).update(beside)
    return found


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


def events_table() -> str:
    """Return the table of the page that is made from the declarations."""
    sentences = {name: " ".join(kind.__doc__.split()) for name, kind in sorted(EVENTS.items())}
    rows = [f"| `{name}` | {sentence} |\n" for name, sentence in sentences.items()]
    return f"{EVENTS_HEAD}{''.join(rows)}"


def test_the_events_of_the_page_are_those_that_are_declared() -> None:
    assert f"{events_table()}\n" in PAGE.read_text("utf-8"), "run python tests/test_records_page.py"


def test_each_event_that_is_written_is_declared() -> None:
    for name, written in events_written().items():
        assert written <= EVENTS[name].types.keys() | {"message"}, name


def test_each_field_of_a_commit_has_a_sentence() -> None:
    assert set(page()["commits.jsonl"]) >= keys(function("_write_commit", "made_at"))


def test_each_field_of_a_summary_has_a_sentence() -> None:
    parts = {
        "build": "record_incomplete",
        "_settings": "peers_for_one",
        "_deaths_and_returns": "deaths",
    }
    written = {key for name, beside in parts.items() for key in keys(function(name, beside))}
    rows = ast.walk(function("_deaths_and_returns", "deaths"))
    written |= {word for node in rows for word in words(node)} - {"hang"}
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
        if heading == "events.jsonl":
            continue  # It is made from the declarations.
        parts = {part for name in names for part in name.replace("[]", "").split(".")}
        assert parts <= written, heading


def test_nothing_is_explained_twice() -> None:
    for heading, names in page().items():
        assert len(set(names)) == len(names), heading


def main() -> None:
    """Write the table of the events."""
    before, _, rest = PAGE.read_text("utf-8").partition(EVENTS_HEAD)
    PAGE.write_text(f"{before}{events_table()}\n{rest.partition(chr(10) * 2)[2]}", "utf-8")


if __name__ == "__main__":
    main()
