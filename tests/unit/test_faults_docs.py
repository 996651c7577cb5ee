"""docs/faults.md has a row for every fault that can be typed, made from its declaration:
``python tests/unit/test_faults_docs.py`` writes it."""

from __future__ import annotations

import inspect
from pathlib import Path

from gossip.faults import plan
from gossip.faults.declare import KINDS, Kind
from gossip.faults.kinds import ATTACKS, ByzantineFault
from gossip.faults.world import NodeAttack
from gossip.inject.message_attacks import LIES

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
BEGIN, END = "<!-- faults -->", "<!-- end of faults -->"
HEAD = ("| word | what happens |", "|---|---|")


def told(kind: Kind) -> str:
    """What the kind says of itself: the first paragraph of its docstring, and its strength."""
    if kind.name == "attack":
        return (
            "The peers send what a function of yours makes of their updates: `mine(update, ...)` "
            "or `mine(crowd, ...)` in a file or an importable module ([research a "
            "rule](research.md)). The file has to be on every host, at this path from the working "
            "directory."
        )
    if kind.made is ByzantineFault:
        attack = ATTACKS[kind.name]
        does = attack.does
        if attack.meaning:
            otherwise = f"{attack.strength:g} by default" if attack.strength is not None else ""
            does += " Strength: " + ", ".join(filter(None, (attack.meaning, otherwise))) + "."
        return does + (" Simulator and benchmarks only." if attack.refusal else "")
    told_by = LIES[kind.name] if kind.made is NodeAttack else kind.made
    return inspect.cleandoc(str(told_by.__doc__)).split("\n\n")[0]


def row(kind: Kind) -> str:
    cells = f"`{kind.name}:{kind.example}`", told(kind).replace("``", "`").replace("\n", " ")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table() -> str:
    return "\n".join([*HEAD, *(row(kind) for kind in KINDS.values() if kind.real)])


def between(text: str) -> tuple[str, str, str]:
    before, _, rest = text.partition(BEGIN + "\n")
    here, _, after = rest.partition("\n" + END)
    return before, here, after


def test_the_page_has_what_the_declarations_say() -> None:
    before, here, after = between(PAGE.read_text("utf-8"))
    assert before
    assert after
    assert here == table(), "run: python tests/unit/test_faults_docs.py"


def test_every_example_of_the_page_is_a_fault_of_that_kind() -> None:
    for kind in KINDS.values():
        if kind.real:
            (fault,) = plan.parse(f"{kind.name}:{kind.example}")
            assert type(fault) is kind.made
            assert str(fault) == f"{kind.name}:{kind.example}"


if __name__ == "__main__":
    first, _, last = between(PAGE.read_text("utf-8"))
    PAGE.write_text(f"{first}{BEGIN}\n{table()}\n{END}{last}", "utf-8")
