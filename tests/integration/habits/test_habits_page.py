"""docs/results/habits.md is made from the table of habits and the heads of its scripts:
``python tests/integration/habits/test_habits_page.py`` writes it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from habit_table import HABITS, OK, SITUATIONS, Habit

SCRIPTS = Path(__file__).parent / "scripts"
PAGE = Path(__file__).parents[3] / "docs/results/habits.md"
LINES_MAX = 39
HEAD = f"""# Habits

What scripts do around a step, and the result. Each row is a script of under 40 lines in
`tests/integration/habits/scripts/`. `make test-long` runs all {len(HABITS)} scripts in
{len(SITUATIONS)} situations. This page is made from the same table by
`python tests/integration/habits/test_habits_page.py`.

| situation | what happens |
|---|---|
"""
ABOVE = ".."  # the page is in a folder of its own below those it links to
MEANING = f"""
- `ok`: every number is that of the same script in plain torch: parameters, buffers and what the
  script keeps, after the planned number of steps. Of several processes, each averages its gradients
  by `all_gather` of `torch.distributed`.
- `ok *`: all peers end after the planned number of steps, with the same parameters, bit for bit,
  and the same state of what the script keeps. Plain torch has no such run to compare with.
- Any other entry is the exception or the exit code that the script ends with.
  [training_loop.md]({ABOVE}/training_loop.md) and [data.md]({ABOVE}/data.md) have the remedies.
"""


def head_of(name: str) -> str:
    """Return the first line of a script's docstring."""
    text = ast.get_docstring(ast.parse((SCRIPTS / f"{name}.py").read_text("utf-8")))
    assert text, name
    return text.splitlines()[0]


def row(name: str, habit: Habit) -> str:
    marked = [
        habit.expected(situation)
        + (" *" if habit.expected(situation) == OK and situation not in habit.by_hand else "")
        for situation in SITUATIONS
    ]
    named = f"`{name}`: {head_of(name)}".replace("``", "`").replace("|", "\\|")
    cells = [named, *marked]
    return "| " + " | ".join(cells) + " |"


def page() -> str:
    """Return the text of the page."""
    lines = [HEAD + "\n".join(f"| `{name}` | {text} |" for name, text in SITUATIONS.items())]
    lines += [MEANING.rstrip("\n")]
    for group in dict.fromkeys(habit.group for habit in HABITS.values()):
        lines += ["", f"## {group.capitalize()}", ""]
        lines += ["| habit | " + " | ".join(SITUATIONS) + " |", "|---" * 7 + "|"]
        lines += [row(name, habit) for name, habit in HABITS.items() if habit.group == group]
    return "\n".join(lines) + "\n"


def test_the_page_is_what_the_table_says() -> None:
    written = "write it anew: python tests/integration/habits/test_habits_page.py"
    assert PAGE.read_text("utf-8") == page(), written


def test_each_script_is_short_and_in_the_table() -> None:
    lines = {path.stem: len(path.read_text("utf-8").splitlines()) for path in SCRIPTS.iterdir()}
    assert lines.keys() == HABITS.keys()
    assert not lines.keys() & sys.stdlib_module_names
    assert {name: count for name, count in lines.items() if count > LINES_MAX} == {}


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
