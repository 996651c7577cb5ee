"""The catalogue of protocol mutants fits the source,
and the hunter tells a mutant from a sound protocol."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import subprocess
import sys
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


@cache
def syntax(text: str) -> str:
    """Return what a module does, without its comments and its lines."""
    return ast.dump(ast.parse(text))


def test_every_mutant_still_applies_to_the_source() -> None:
    for mutant in ALL:
        for file, text in mutant.texts().items():
            assert syntax(catalogue.source(file).read_text()) != syntax(text), mutant.name


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
