"""The catalogue of protocol mutants fits the source,
and the hunter tells a mutant from a sound protocol."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import zygote

MUTANTS = Path(__file__).resolve().parents[1] / "mutants"


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, MUTANTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


catalogue = _module("catalogue")
hunt = _module("hunt")
ALL = catalogue.load()


def test_there_are_enough_mutants_and_each_has_a_name_and_a_reason() -> None:
    assert len(ALL) >= 40
    assert len({mutant.name for mutant in ALL}) == len(ALL)
    assert all(mutant.why.endswith(".") for mutant in ALL)


@cache
def syntax(text: str) -> str:
    """Return what a module does, without its comments and its lines."""
    return ast.dump(ast.parse(text))


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_every_mutant_still_applies_to_the_source(mutant) -> None:
    for file, text in mutant.texts().items():
        assert syntax(catalogue.source(file).read_text()) != syntax(text), "it changes nothing"


def test_the_error_of_a_mutant_that_does_not_fit_names_its_file_and_text() -> None:
    with pytest.raises(ValueError, match=r"core/timers\.py: found 0 times, not once:\nself\._gone"):
        catalogue.Mutant("x", "y.", (catalogue.Edit("core/timers.py", "self._gone", ""),)).texts()


EDIT = catalogue.Edit("x.py", "if call(a, b):\n    return", "if not call(a):\n    return b", "f")


@pytest.mark.parametrize(
    "place",
    [
        "if call(a, b):\n        return",
        "if call(a, b):  # (b, a)\n        # the reason\n\n        return",
        "if call(\n        a,\n        b,  # the second\n    ):\n        return",
    ],
)
def test_comments_and_layout_of_the_source_do_not_matter_to_a_mutant(place: str) -> None:
    planted = EDIT.apply(f"def f(a, b):\n    {place} a  # first\n    return b\n")
    assert planted == (
        "def f(a, b):\n    if not call(a):\n        return b a  # first\n    return b\n"
    )


def test_a_mutant_finds_its_place_in_the_function_that_it_names() -> None:
    text = "def {}(a):\n    if call(a, b): return\n"
    assert EDIT.apply(text.format("g") + text.format("f")).startswith(text.format("g"))
    with pytest.raises(ValueError, match="found 0 times"):
        EDIT.apply(text.format("g"))
    with pytest.raises(ValueError, match="found 2 times"):
        dataclasses.replace(EDIT, where="").apply(2 * text.format("g"))


@pytest.mark.parametrize("other", ["if call(a, c)", "if call(a + b)", "if call(a, 'b')", "# {}"])
def test_other_tokens_and_comments_are_no_place_of_a_mutant(other: str) -> None:
    text = f"def f(a, b):\n    {other.format('if call(a, b): return')}: return\n"
    with pytest.raises(ValueError, match="found 0 times"):
        dataclasses.replace(EDIT, where="").apply(text)


def forked(command: Sequence[str], env: Mapping[str, str], **options: Any) -> subprocess.Popen[str]:
    """A process that plays schedules with a copy of the package, without importing torch."""
    others = {name: word for name, word in env.items() if name not in zygote.AT_START}
    copy = {zygote.PACKAGE: env["PYTHONPATH"], **zygote.at_start(zygote.STARTED_WITH)}
    return zygote.Popen(command, env={**others, **copy}, **options)


def test_the_hunter_plays_a_known_seed_first_kills_a_mutant_and_lets_a_harmless_change_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forks = SimpleNamespace(**{**vars(subprocess), "Popen": forked})
    monkeypatch.setattr(hunt, "subprocess", forks)
    harmless = catalogue.Mutant(
        "harmless",
        "It does the same.",
        (catalogue.Edit("core/timers.py", "self._next += 1", "self._next += 2"),),
        seed=13,
    )
    deadly = next(mutant for mutant in ALL if mutant.name == "reuses-timer-tokens")
    # It would be found with the first seed of the search otherwise.
    deadly = dataclasses.replace(deadly, seed=13)
    (died, lived), broken = hunt.hunt([harmless, deadly], 3, 4, jobs=1, quiet=True)
    assert (died.name, died.seed) == (deadly.name, 13)
    assert died.invariant.startswith("S")
    assert (lived.name, lived.invariant, lived.seed) == ("harmless", "", 4)
    assert not broken


def test_a_schedule_that_computes_for_ever_kills_and_one_that_only_takes_long_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def computes(schedule: object) -> SimpleNamespace:
        while True:
            pass

    def waits(schedule: object) -> SimpleNamespace:
        time.sleep(0.1)  # as one whose process is stopped
        return SimpleNamespace(violation=None)

    monkeypatch.setattr(hunt, "SEED_S", 0.05)
    monkeypatch.setattr(
        "gossip_lab.simulation.world.driver.DELIVERIES_MAX", 0
    )  # put back afterwards
    monkeypatch.setattr("gossip_lab.simulation.campaign.play.run", computes)
    assert hunt.work([3, 4]) == {
        "seed": 3,
        "invariant": "endless",
        "text": "the run was not over after 0 s of the processor",
    }
    monkeypatch.setattr("gossip_lab.simulation.campaign.play.run", waits)
    assert hunt.work([3, 4]) == {"seed": -1, "invariant": "", "text": ""}
