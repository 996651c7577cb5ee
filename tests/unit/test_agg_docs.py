"""docs/rules.md has a row for every rule, made from what the rules themselves say:
``python tests/unit/test_agg_docs.py`` writes it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossip.aggregators import GramRule, PreAggregation, Rule, load, names, pre_aggregations
from gossip.aggregators.base import CoordinateRule
from gossip.testing import check_aggregator

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"
OWN = PAGE.with_name("research.md")
# where steps are not free
SUBSETS = {"mda": "about 1.4^f steps", "smea": "the eigenvalues of n over f subsets"}
BEGIN, END = "<!-- {} -->", "<!-- end of {} -->"


def told(part: Rule | PreAggregation) -> str:
    """The first sentence of a docstring."""
    text = inspect.cleandoc(str(part.__doc__)).split("\n\n")[0].replace("\n", " ")
    return (
        re.split(r"(?<=[a-z0-9)])\. ", text)[0].rstrip(".").replace("|", "\\|").replace("``", "`")
    )


def section(part: Rule | PreAggregation, title: str) -> str:
    lines = inspect.cleandoc(str(part.__doc__)).splitlines()
    for at, line in enumerate(lines):
        if line.startswith(f"{title}:"):
            more = [next_line.strip() for next_line in itertakewhile(lines[at + 1 :])]
            return (
                " ".join([line.removeprefix(f"{title}:").strip(), *more])
                .rstrip(".")
                .replace("``", "`")
            )
    return ""


def itertakewhile(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("    "):
            return
        yield line


def bound(rule: Rule, centered: bool) -> str:
    """The least n as a formula in f, checked for f up to 5."""
    least = [rule.least(f, centered=centered) for f in range(6)]
    step = least[2] - least[1]
    start = least[1] - step
    assert least[1:] == [start + step * f for f in range(1, 6)], (
        f"{rule.name} has no linear bound: {least}"
    )
    return {0: str(start)}.get(step, f"{step if step > 1 else ''}f + {start}")


def row_of_rule(name: str) -> str:
    rule = load(name).rule
    if isinstance(rule, CoordinateRule):
        cost = "1 pass"
    elif isinstance(rule, GramRule):
        cost = "inner products, then 1 pass" + (" of ranks" if rule.last_step else "")
        cost = f"1 pass of ranks, {cost}" if "median" in rule.points else cost
        cost = f"{cost}; {SUBSETS[name]}" if name in SUBSETS else cost
    else:
        cost = "n + 1 evaluations" if "evaluate" in rule.needs else "2 passes"
    center = rule.parameters.get("center")
    needs = [
        word
        for word, where in (("the loss", "evaluate"), ("a gradient", "gradient"))
        if where in rule.needs
    ]
    if center is not None:
        needs.append(
            "the own update"
            if center.default is center.empty
            else "the own update, if there is one"
        )
    least = bound(rule, centered=False)
    if center is not None and bound(rule, centered=True) != least:
        least = f"{least}, with the own update {bound(rule, centered=True)}"
    keeps = [word for word, kept in (("shift", rule.translation), ("scale", rule.scale)) if kept]
    source = section(rule, "Source") or "-"
    cells = [
        f"`{name}`",
        told(rule),
        least,
        {True: "yes", "bounded": "bounded", False: "**no**"}[rule.robust],
        ", ".join(needs) or "-",
        cost,
        ", ".join(keeps) or "-",
    ]
    return f"| {' | '.join(cells)} | {source} |"


def row_of_pre_aggregation(name: str) -> str:
    stage = load(f"{name}+mean").rule.before[0].part  # type: ignore[attr-defined]
    keeps = [
        word
        for word, kept in (
            ("shift", stage.translation),
            ("scale", stage.scale),
            ("order", stage.symmetric),
        )
        if kept
    ]
    return f"| `{name}` | {told(stage)} | {', '.join(keeps)} | {section(stage, 'Source') or '-'} |"


def tables() -> dict[str, str]:
    rules = [
        "| rule | what it does | n at least | robust | needs | cost | keeps | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    before = ["| pre-aggregation | what it does | keeps | source |", "|---|---|---|---|"]
    return {
        "rules": "\n".join([*rules, *map(row_of_rule, names())]),
        "pre-aggregations": "\n".join([*before, *map(row_of_pre_aggregation, pre_aggregations())]),
    }


def with_tables(page: str) -> str:
    for what, table in tables().items():
        begin, end = BEGIN.format(what), END.format(what)
        assert begin in page
        page = page[: page.index(begin)] + f"{begin}\n{table}\n" + page[page.index(end) :]
    return page


def test_the_page_of_rules_says_what_the_rules_say() -> None:
    assert PAGE.read_text() == with_tables(PAGE.read_text()), (
        "write it anew: python tests/unit/test_agg_docs.py"
    )


@pytest.mark.parametrize("name", [*names(), *pre_aggregations()])
def test_every_rule_says_what_it_tolerates_and_where_it_comes_from(name: str) -> None:
    part = load(name).rule if name in names() else load(f"{name}+mean").rule.before[0].part  # type: ignore[attr-defined]
    text = inspect.cleandoc(str(part.__doc__))
    assert "olerate" in text, f"{name} does not say what it tolerates"
    assert section(part, "Raises"), f"{name} does not say what it raises"
    if name not in ("mean", "suspicion_literal", "clipping"):
        assert re.search(r"1[89]\d\d|20\d\d|this project", section(part, "Source")), (
            f"{name} has no source"
        )


@pytest.mark.parametrize("name", ["midpoint", "central", "halfway"])
def test_a_rule_of_ones_own_on_the_page_keeps_its_promises(name: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", OWN.read_text(), re.MULTILINE | re.DOTALL)
    code = "\n".join(block for block in blocks if "\n@" in block)
    assert code.count("def ") == 3
    (tmp_path / "my_rules.py").write_text(code)
    check_aggregator(f"{tmp_path}/my_rules.py:{name}", strengths=2)


def test_pages_count_the_rules() -> None:
    for page in ("README.md", "docs/tour.md"):
        (found,) = re.findall(r"\[(\d+) rules\]", (PAGE.parents[1] / page).read_text())
        assert int(found) == len(names()), page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
