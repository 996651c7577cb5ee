"""docs/api.md is made from the docstrings of the public API: ``python tests/unit/test_api_page.py``
writes it."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import gossip
from gossip import aggregators, errors, testing, topologies
from gossip.aggregators import attacks, base
from gossip.training.loader import ShardedLoader
from gossip.training.stage import Pipeline
from gossip.training.streaming import ShardedStream
from gossip_pipelines import starts

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
HEAD = """# API reference

This page is made from the docstrings by `python tests/unit/test_api_page.py`. In shapes, n is the
number of updates, d the number of coordinates and f the number of Byzantine peers to tolerate.
[glossary.md](glossary.md) explains the words. `gossip.__version__` is the version of the package.
"""
RULE = ("__call__", "explain", "least", "needs_trainer")
"""What callers of a rule use. The other members are for its authors and for the node."""
Things: TypeAlias = dict[str, tuple[Any, tuple[str, ...] | None]]
"""Name on the page -> what it names, and the members to show: None for all."""
SECTIONS: dict[str, tuple[str, Things]] = {
    "Training": (
        "`import gossip`. [training_loop.md](training_loop.md) shows what may stand around a step.",
        {
            "gossip.init": (gossip.init, None),
            "gossip.spawn": (gossip.spawn, None),
            "gossip.Session": (gossip.Session, None),
            "gossip.MembershipChange": (gossip.MembershipChange, ()),
            "Pipeline": (Pipeline, None),
            "ShardedLoader": (ShardedLoader, ("__iter__", "__len__", "close")),
            "ShardedStream": (ShardedStream, ("__iter__", "__len__", "close")),
        },
    ),
    "Starts": (
        "`from gossip_pipelines.starts import StartSearch` (package gossip-pipelines). "
        "[starts.md](starts.md) has what they are for.",
        {
            "StartSearch": (starts.StartSearch, ("recipes",)),
            "StartRecipe": (starts.StartRecipe, ()),
            "FoundStart": (starts.FoundStart, ("settled",)),
            "RungOutcome": (starts.RungOutcome, ()),
            "recipes": (starts.recipes, None),
            "build": (starts.build, None),
        },
    ),
    "Aggregation rules": (
        "`from gossip.aggregators import rule`. [rules.md](rules.md) has every built-in rule.",
        {
            "@rule": (aggregators.rule, None),
            "Rule": (aggregators.Rule, RULE),
            "Verdict": (aggregators.Verdict, None),
            "load": (aggregators.load, None),
            "names": (aggregators.names, None),
            "pre_aggregations": (aggregators.pre_aggregations, None),
            "register": (aggregators.register, None),
            "GramRule": (aggregators.GramRule, ()),
            "Stage": (aggregators.Stage, ()),
            "reweighted": (aggregators.reweighted, None),
        },
    ),
    "Topologies": (
        "`from gossip.topologies import topology`.",
        {
            "@topology": (topologies.topology, None),
            "Topology": (topologies.Topology, None),
            "Plan": (topologies.Plan, None),
            "Roster": (topologies.Roster, None),
            "draw": (topologies.draw, None),
            "load": (topologies.load, None),
            "names": (topologies.names, None),
            "check_plan": (topologies.check_plan, None),
            "with_option": (topologies.with_option, None),
        },
    ),
    "Attacks": (
        "`from gossip.aggregators.attacks import attack`. [faults.md](faults.md) has every "
        "built-in attack; `ATTACKS` has the `AttackKind` of each by its name, and `KINDS` those "
        "that change updates.",
        {
            "@attack": (attacks.attack, None),
            "Attack": (attacks.Attack, None),
            "AttackerGroup": (attacks.AttackerGroup, None),
            "make": (attacks.make, None),
            "names": (attacks.names, None),
            "AttackKind": (attacks.AttackKind, ()),
            "flip_labels": (attacks.flip_labels, None),
            "place_of": (attacks.place_of, None),
        },
    ),
    "Checks for your own plug-ins": (
        "`from gossip.testing import check_aggregator`.",
        {name: (getattr(testing, name), None) for name in dir(testing)},
    ),
}


def markdown(text: str) -> Iterator[str]:
    """A docstring as Markdown: ``Args:`` and its like become lists."""
    title, entries = "", [""]
    for line in [*inspect.cleandoc(text).splitlines(), ":end:"]:
        head = re.match(r"(?P<title>Args|Attributes|Returns|Raises):\s*(?P<rest>.*)|:end:$", line)
        if head:
            written = [" ".join(entry.split()) for entry in entries if entry.strip()]
            if title:
                yield f"**{title}**"
                yield ""
                yield from (f"- {re.sub(NAMED, MARKED, entry)}" for entry in written)
                yield ""
            title, entries = head["title"] or "", [head["rest"] or ""]
        elif not title:
            yield line
        elif re.match(r"    [*\w][\w, *]*: ", line):
            entries.append(line)
        else:
            entries[-1] += " " + line


NAMED, MARKED = r"^([\w, ]+): ", r"``\1``: "


def documented(value: Any, *titles: str) -> set[str]:
    """The names in those sections of a docstring."""
    found, inside = set[str](), False
    for line in inspect.cleandoc(str(value.__doc__)).splitlines():
        inside = line.removesuffix(":") in titles or (inside and line.startswith("    "))
        if inside and (named := re.match(r"    ([\w, ]+): ", line)):
            found |= set(named[1].split(", "))
    return found


def signature(value: Any) -> str:
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(value)))
    text = re.sub(r"<function [\w.<>]+ at 0x\w+>", "...", text)
    text = re.sub(r"= \('finite', <built-in function isfinite>\)", "= FINITE", text)
    return re.sub(r"\(self(, )?", "(", text)


def members(cls: type, chosen: tuple[str, ...] | None) -> list[str]:
    if chosen is not None:
        return list(chosen)
    fields = {field.name for field in dataclasses.fields(cls)} if is_data(cls) else set[str]()
    kinds = cls.__mro__[:-1] if cls is gossip.Session else (cls,)  # its methods are in several
    known = dict.fromkeys(name for kind in kinds for name in vars(kind))
    public = [name for name in known if not name.startswith("_") and name not in fields]
    return ["__call__", *public] if "__call__" in vars(cls) else public


def is_data(cls: type) -> bool:
    return dataclasses.is_dataclass(cls)


def entries(things: Things) -> Iterator[tuple[str, Any]]:
    """Each name of a section with what it names, members after their class."""
    for name, (value, chosen) in things.items():
        yield name, value
        if inspect.isclass(value):
            for member in members(value, chosen):
                yield f"{name}.{member}", inspect.getattr_static(value, member)


ENTRIES = [entry for _, things in SECTIONS.values() for entry in entries(things)]


def usage(name: str, value: Any) -> str:
    """How it is written in a script."""
    whole = name.rsplit(".", 1)[0]
    if name.endswith(".__iter__"):
        return f"for batch in {whole}"
    if name.endswith(".__len__"):
        return f"len({whole})"
    if isinstance(value, property) or (inspect.isclass(value) and not is_data(value)):
        return name
    return name.removesuffix(".__call__") + signature(value)


def page() -> str:
    lines = [HEAD]
    for title, (about, things) in SECTIONS.items():
        lines += [f"## {title}", "", about, ""]
        for name, value in entries(things):
            level = "###" if name in things else "####"
            lines += [f"{level} {usage(name, value).split('(')[0] or name}", ""]
            if "(" in usage(name, value):
                lines += ["```python", usage(name, value), "```", ""]
            lines += [line.replace("``", "`") for line in markdown(str(value.__doc__))]
            lines += [""] if lines[-1] else []
    lines += ["## Errors", "", "`gossip.errors` has them all.", "", "```text"]
    tree = inspect.cleandoc(str(errors.__doc__)).split("\n\n", 1)[1]
    return "\n".join([*lines, tree, "```", ""])


def test_the_page_is_what_the_docstrings_say() -> None:
    assert PAGE.read_text() == page(), "write it anew: python tests/unit/test_api_page.py"


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name, value in ENTRIES if not value.__doc__] == []


def test_a_docstring_names_the_parameters_and_the_fields_that_are_there() -> None:
    for name, value in ENTRIES:
        if isinstance(value, property):
            continue
        if inspect.isclass(value):
            fields = {f.name for f in dataclasses.fields(value)} if is_data(value) else None
            assert fields in (None, documented(value, "Attributes")), name
            continue
        known = {*named_parameters(value)} - {"self"}
        told = documented(value, "Args")
        assert told <= known, name
        if "Args:" in str(value.__doc__):
            assert told == known - ({"function"} if name.startswith("@") else set()), name


def named_parameters(value: Any) -> Iterator[str]:
    """Its parameters, and those that it takes by ``**`` as a ``TypedDict``."""
    for name, parameter in inspect.signature(value).parameters.items():
        declared = re.fullmatch(r"Unpack\[(\w*Declarations)\]", str(parameter.annotation))
        yield from [name] if declared is None else vars(base)[declared[1]].__annotations__


PUBLIC = (gossip, aggregators, topologies, attacks, testing)
WHOLE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def test_every_public_name_has_a_page() -> None:
    """On this page or those of rules, as code."""
    pages = (PAGE, PAGE.with_name("rules.md"), PAGE.with_name("research.md"))
    told = " ".join(code for page in pages for code in WHOLE.findall(page.read_text()))
    words = {*re.findall(r"\w+", told)}
    assert [
        name
        for module in PUBLIC
        for name in getattr(module, "__all__", dir(module))
        if name not in words
    ] == []
    raised = (kind for kind in vars(errors).values() if isinstance(kind, type))
    assert {k.__name__ for k in raised if issubclass(k, errors.GossipError)} <= words


def test_every_public_member_of_a_session_is_on_the_page() -> None:
    on_page = {name for name, _ in ENTRIES}
    public = {name for name in dir(gossip.Session) if not name.startswith("_")}
    assert {f"gossip.Session.{name}" for name in public} <= on_page


if __name__ == "__main__":
    PAGE.write_text(page())
