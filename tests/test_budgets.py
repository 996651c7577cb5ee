"""Budgets of the code. Each may only fall; ``python tests/test_budgets.py`` prints them.

A figure that falls is set as the new limit in the same commit. A figure that has to rise needs a
reason in the commit, and something else that falls.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from words import FOLDERS, PAGES, share_broken

ROOT = Path(__file__).resolve().parents[1]
RUNTIME = ("gossip", "launch", "aggregators", "topologies")
CORE = ("gossip/core", "extras/pipelines/gossip_pipelines/protocol")
PRODUCT = (*RUNTIME, "extras", "benchmarks", "examples")
COUNTED = frozenset({tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING})
OPENINGS = frozenset(
    {"Of", "Who", "Whose", "Whom", "What", "Which", "That", "So", "While", "From", "Where", "As"}
)
"""Words that no docstring begins with: its subject is a thing with a name."""
VAGUE_VERBS = frozenset(
    {
        *("say", "says", "said", "tell", "tells", "told", "hear", "hears", "heard"),
        *("look", "looks", "looked", "take", "takes", "took", "taken"),
        *("give", "gives", "gave", "given"),
    }
)
ATTRIBUTES_MAX, CLASS_LINES_MAX, READ_EVENTS_MAX = 25, 300, 2
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


class Budget(NamedTuple):
    """A figure of the repository.

    Attributes:
        limit: The figure of today.
        goal: The figure to come down to.
    """

    measure: Callable[[], float]
    limit: float
    goal: float


@cache
def sources(*folders: str) -> dict[str, str]:
    """Return the Python files below the folders, by path; each file once, not through a link."""
    found = {
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if not any(parent.is_symlink() for parent in path.parents if parent != ROOT)
    }
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in sorted(found)}


@cache
def trees(*folders: str) -> dict[str, ast.Module]:
    return {path: ast.parse(text) for path, text in sources(*folders).items()}


@cache
def tokens_of(path: str) -> tuple[str, ...]:
    """Return names, operators, numbers and strings; comments and line ends are free."""
    lines = io.StringIO((ROOT / path).read_text("utf-8")).readline
    return tuple(token.string for token in tokenize.generate_tokens(lines) if token.type in COUNTED)


def tokens(*folders: str) -> int:
    return sum(len(tokens_of(path)) for path in sources(*folders))


def nodes(kind: type[ast.AST] | object, *folders: str) -> Iterator[tuple[str, ast.AST]]:
    for path, tree in trees(*folders).items():
        for node in ast.walk(tree):
            if isinstance(node, kind):  # type: ignore[arg-type]
                yield path, node


def docstrings_without_a_subject() -> float:
    """Percentage of docstrings that open with a word of ``OPENINGS``."""
    documented = ast.Module | ast.ClassDef | FUNCTIONS
    texts = [
        text
        for _, node in nodes(documented, *PRODUCT)
        if (text := ast.get_docstring(node))  # type: ignore[arg-type]
    ]
    opens = sum(re.split(r"\W", text, maxsplit=1)[0] in OPENINGS for text in texts)
    return round(100 * opens / len(texts), 1)


def vague_verbs() -> int:
    """Count uses of names of functions with a word of ``VAGUE_VERBS``."""
    defined = {
        node.name  # type: ignore[attr-defined]
        for _, node in nodes(FUNCTIONS, *PRODUCT)
        if VAGUE_VERBS & set(node.name.split("_"))  # type: ignore[attr-defined]
    }
    return sum(word in defined for path in sources(*PRODUCT) for word in tokens_of(path))


def attributes(owner: ast.ClassDef) -> set[str]:
    """Names that a class declares in its body, or assigns to ``self``."""
    declared = {
        node.target.id
        for node in owner.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assigned = {
        node.attr
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    return declared | assigned


def classes_with_many_attributes() -> int:
    """A TypedDict names keyword arguments; it has no attributes."""
    return sum(
        len(attributes(node)) > ATTRIBUTES_MAX and "TypedDict" not in map(ast.unparse, node.bases)
        for _, node in nodes(ast.ClassDef, *PRODUCT)
        if isinstance(node, ast.ClassDef)
    )


def long_classes() -> int:
    return sum(
        node.end_lineno - node.lineno >= CLASS_LINES_MAX  # type: ignore[attr-defined]
        for _, node in nodes(ast.ClassDef, *PRODUCT)
    )


def branches_on_local_steps() -> int:
    """Conditions of the session that ask for local steps."""
    return sum(
        "_local'" in ast.dump(node.test)
        for node in ast.walk(trees("gossip")["gossip/training/session.py"])
        if isinstance(node, ast.If | ast.IfExp)
    )


PARTS_OF_HANDLE = ("handle",)


def polls_of_the_peer() -> int:
    """Conditions that ``Peer.handle`` looks at before and after each event."""
    parts = [
        node
        for owner in trees("gossip")["gossip/core/peer.py"].body
        if isinstance(owner, ast.ClassDef) and owner.name == "Peer"
        for node in owner.body
        if isinstance(node, FUNCTIONS) and node.name in PARTS_OF_HANDLE
    ]
    assert len(parts) == len(PARTS_OF_HANDLE)
    nodes = [node for part in parts for node in ast.walk(part)]
    return sum(isinstance(node, ast.If | ast.IfExp | ast.While) for node in nodes)


@cache
def event_names() -> frozenset[str]:
    """Names of the classes of the events that a run writes."""
    declared = trees("gossip")["gossip/observe/events.py"].body
    return frozenset(node.name for node in declared if isinstance(node, ast.ClassDef))


def readers_of_raw_events() -> int:
    """Modules of the launcher that name three kinds of events or more, other than to make them."""
    return sum(len(_kinds_read(tree)) > READ_EVENTS_MAX for tree in trees("launch").values())


def _kinds_read(tree: ast.Module) -> set[str]:
    made = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and ast.unparse(node.value) == "events"
        and node.attr in event_names()
        and id(node) not in made
    }


def constants_of_the_core() -> int:
    """Numbers that modules of the core but ``settings`` give a name."""
    return sum(
        isinstance(number, ast.Constant) and type(number.value) in (int, float)
        for path, tree in trees(*CORE).items()
        if not path.endswith("settings.py")
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None
        for number in ast.walk(statement.value)
    )


def text_of(path: str) -> str:
    return (ROOT / path).read_text("utf-8")


def lines_of_tests() -> int:
    return sum(text.count("\n") for text in sources("tests").values())


def words_of_docs() -> int:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    return sum(len(page.read_text("utf-8").split()) for page in pages)


BUDGETS = {
    "tokens of everything but tests": Budget(lambda: tokens(*PRODUCT), 792_024, 700_000),
    "tokens of the runtime": Budget(lambda: tokens(*RUNTIME), 518_576, 450_000),
    "docstrings without a subject, %": Budget(docstrings_without_a_subject, 0.1, 1),
    "uses of functions that say, tell, hear, look, take or give": Budget(vague_verbs, 65, 100),
    "classes with more than 25 attributes": Budget(classes_with_many_attributes, 3, 3),
    "classes of 300 lines or more": Budget(long_classes, 22, 10),
    "`pipeline` in core/peer.py": Budget(
        lambda: text_of("gossip/core/peer.py").count("pipeline"), 0, 0
    ),
    "branches on local steps in session.py": Budget(branches_on_local_steps, 0, 0),
    "conditions in Peer.handle": Budget(polls_of_the_peer, 2, 2),
    "modules of launch/ that read three events or more": Budget(readers_of_raw_events, 7, 1),
    '`.get("` in launch/report': Budget(
        lambda: sum(text.count('.get("') for text in sources("launch/report").values()), 16, 60
    ),
    "numbers with a name in core, settings.py aside": Budget(constants_of_the_core, 35, 40),
    "sentences that break a rule of english, %": Budget(
        lambda: round(share_broken(*FOLDERS, *PAGES), 1), 0.5, 1
    ),
    "lines of tests": Budget(lines_of_tests, 102_204, 80_000),
    "words of docs, results aside": Budget(words_of_docs, 60_000, 60_000),
    "bytes of the changelog": Budget(lambda: len(text_of("CHANGELOG.md").encode()), 8_192, 8_192),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_a_budget_is_kept(name: str) -> None:
    measured, limit, _ = BUDGETS[name].measure(), BUDGETS[name].limit, BUDGETS[name].goal
    assert measured <= limit, f"{name}: {measured:,}, at most {limit:,}"


def main() -> None:
    """Print what is measured, the limit and the goal of each budget."""
    for name, (measure, limit, goal) in BUDGETS.items():
        print(f"{measure():>10,} {limit:>10,} {goal:>10,}  {name}")


if __name__ == "__main__":
    main()
