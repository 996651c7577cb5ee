"""Checks sentences against the rules of our English, as far as a program can: ``make words``.

    python tests/words.py  # the share of sentences that break a rule, by folder
    python tests/words.py gossip/core --show 50  # and 50 of them, with their rules

The sentences are those of docstrings, comments and messages of the product, and of README and docs.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("gossip", "launch", "aggregators", "topologies", "extras", "benchmarks", "examples")
PAGES = ("README.md", "CONTRIBUTING.md", "docs")
WORDS_MAX = 32
"""The rule is about 20; a longer sentence has more than one fact."""

Kind = Literal["function", "docstring", "comment", "message", "page"]


class Sentence(NamedTuple):
    """A sentence, and where it stands. ``opens``: it is the first of its docstring."""

    path: str
    line: int
    kind: Kind
    text: str
    opens: bool = False


OPENINGS = re.compile(
    r"(Of|Who|Whose|Whom|Whoever|What|Which|That|So|While|Where|From where|As|Say|Says|Told)\b"
)
THIRD_PERSON = re.compile(
    r"(Returns|Gives|Takes|Makes|Sets|Sends|Starts|Stops|Ends|Tells|Says|Asks|Looks|Reads|Writes|"
    r"Runs|Waits|Holds|Hands|Keeps|Finds|Adds|Removes|Checks|Puts|Lets|Gets|Shows|Opens|Closes|"
    r"Prints|Counts|Yields|Raises|Calls|Forgets|Learns|Knows|Hears|Answers|Brings|Goes|Comes)\b"
)
PERSONS = re.compile(r"\b(who|whom|whose|whoever|somebody|someone|nobody|everybody)\b", re.I)
VERBS = re.compile(
    r"\b(says?|said|tells?|told|hears?|heard|speaks?|spoke|promised?|promises|believes?|believed|"
    r"knows? of|takes? over|took over|taken over|pass(?:es|ed)? over|lets? go|comes? back|"
    r"stands? for|of use|looked at|forgets?|forgotten|wants?|wanted|in vain)\b",
    re.I,
)
NOUNS = re.compile(r"\b(liars?|lies|lied|lying|its word|their word|words of)\b", re.I)
HINGES = re.compile(
    r"\b(all the same|meanwhile|the former|the latter|likewise|such of|of such|for good|for ever|"
    r"again and again|now and then)\b",
    re.I,
)
VALUES = re.compile(r"(?:^|[;,.] )(None|NaN|-1|\"\"|True|False): [a-z]")
"""``None: it has none.`` in place of ``None if it has none.``"""
QUOTED = re.compile(r"``[^`]*``|`[^`]*`|\"[^\"]*\"|\([^)]*\)|https?://\S+")


def has_too_many_words(text: str) -> bool:
    return len(re.findall(r"[A-Za-z][A-Za-z'-]*", text)) > WORDS_MAX


RULES: dict[str, Callable[[Sentence], bool]] = {
    "opens without a subject": lambda s: s.opens and bool(OPENINGS.match(s.text)),
    "a function opens with an imperative": lambda s: (
        s.opens and s.kind == "function" and bool(THIRD_PERSON.match(s.text))
    ),
    "a peer is no person": lambda s: (
        s.kind != "page" and bool(PERSONS.search(QUOTED.sub("", s.text)))
    ),
    "verbs are the field's": lambda s: bool(VERBS.search(QUOTED.sub("", s.text))),
    "nouns are the field's": lambda s: bool(NOUNS.search(QUOTED.sub("", s.text))),
    "no sentence opens with Of": lambda s: s.kind != "comment" and s.text.startswith("Of "),
    "a value has its condition after if": lambda s: (
        s.kind in ("function", "docstring") and bool(VALUES.search(s.text))
    ),
    "no hinges": lambda s: bool(HINGES.search(QUOTED.sub("", s.text))),
    "one fact a sentence": lambda s: has_too_many_words(QUOTED.sub("", s.text)),
}


def broken_rules(sentence: Sentence) -> list[str]:
    """Return the rules that a sentence breaks."""
    return [name for name, breaks in RULES.items() if breaks(sentence)]


def split(text: str) -> list[str]:
    """Return the sentences of a text; a blank line and a list item end one, too."""
    parts = re.split(r"\n\s*\n|\n\s*(?=[-*|] |\d+\. |[A-Z]\w+:)|(?<=[.:;!?])\s+(?=[A-Z`])", text)
    flat = [" ".join(part.split()) for part in parts]
    return [part for part in flat if len(part.split()) > 1]


def docstrings(path: str, tree: ast.Module) -> Iterator[Sentence]:
    for node in ast.walk(tree):
        bodies = getattr(node, "body", [])
        for at, each in enumerate(bodies if isinstance(bodies, list) else []):
            if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)):
                continue
            text = each.value.value
            if not isinstance(text, str):
                continue
            is_function = at == 0 and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            kind: Kind = "function" if is_function else "docstring"
            for number, sentence in enumerate(split(text)):
                yield Sentence(path, each.lineno, kind, sentence, opens=number == 0)


def comments(path: str, source: str) -> Iterator[Sentence]:
    """Yield the sentences of comments; lines that follow each other are one comment."""
    block: list[str] = []
    began = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        text = token.string.lstrip("#! ")
        if text.startswith(("noqa", "type:", "---", "pragma")):
            continue
        if block and token.start[0] != last + 1:
            yield from (Sentence(path, began, "comment", s) for s in split("\n".join(block)))
            block = []
        began = began if block else token.start[0]
        block, last = [*block, text], token.start[0]
    yield from (Sentence(path, began, "comment", s) for s in split("\n".join(block)))


def messages(path: str, tree: ast.Module) -> Iterator[Sentence]:
    """Yield the sentences of texts that an error or a report gets."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Raise | ast.Call):
            continue
        call = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(call, ast.Call):
            continue
        name = getattr(call.func, "id", getattr(call.func, "attr", ""))
        if not (isinstance(node, ast.Raise) or name in {"print", "echo", "notice", "warn"}):
            continue
        for argument in call.args:
            parts = argument.values if isinstance(argument, ast.JoinedStr) else [argument]
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "X" for part in parts
            )
            if isinstance(argument, ast.JoinedStr | ast.Constant) and " " in text:
                yield from (Sentence(path, node.lineno, "message", s) for s in split(text))


def page_sentences(path: str, text: str) -> Iterator[Sentence]:
    fenced = re.sub(r"(?ms)^```.*?^```|^<!--.*?-->", "", text)
    for sentence in split(fenced):
        if not sentence.startswith(("|", "#", "!", "[")):
            yield Sentence(path, 0, "page", sentence)


@cache
def sentences(*places: str) -> tuple[Sentence, ...]:
    """Return all sentences below the places, without those of generated pages of results."""
    found: list[Sentence] = []
    for place in places:
        top = ROOT / place
        files = [top] if top.is_file() else sorted([*top.rglob("*.py"), *top.rglob("*.md")])
        for file in files:
            path = str(file.relative_to(ROOT))
            linked = any(parent.is_symlink() for parent in file.parents if parent != ROOT)
            if linked or path.startswith("docs/results"):
                continue
            text = file.read_text("utf-8")
            if file.suffix == ".md":
                found += page_sentences(path, text)
            elif file.suffix == ".py":
                tree = ast.parse(text)
                found += [*docstrings(path, tree), *comments(path, text), *messages(path, tree)]
    return tuple(found)


def share_broken(*places: str) -> float:
    """Return the share of sentences that break a rule, in per cent."""
    every = sentences(*places)
    return 100.0 * sum(bool(broken_rules(each)) for each in every) / len(every)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("places", nargs="*", default=[*FOLDERS, *PAGES])
    parser.add_argument("--show", type=int, default=0, help="so many sentences, with their rules")
    parser.add_argument("--most", type=float, default=1.0, help="exit 1 beyond this share, in %%")
    options = parser.parse_args()
    every = sentences(*options.places)
    rules: Counter[str] = Counter()
    folders: dict[str, list[int]] = {}
    for sentence in every:
        broken = broken_rules(sentence)
        rules.update(broken)
        count = folders.setdefault("/".join(sentence.path.split("/")[:2]), [0, 0])
        count[0] += bool(broken)
        count[1] += 1
        if broken and options.show:
            options.show -= 1
            print(f"{sentence.path}:{sentence.line}: {sentence.text} [{', '.join(broken)}]")
    for folder, (bad, of) in sorted(folders.items(), key=lambda each: -each[1][0]):
        print(f"{bad:6} of {of:6}  {folder}")
    for rule, times in rules.most_common():
        print(f"{times:6}  {rule}")
    share = share_broken(*options.places)
    print(f"{share:.1f} % of {len(every):,} sentences; at most {options.most} %")
    return int(share > options.most)


if __name__ == "__main__":
    sys.exit(main())
