"""The catalogue of protocol mutants fits the source."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

PATH = Path(__file__).resolve().parents[1] / "mutants" / "catalogue.py"
spec = importlib.util.spec_from_file_location("catalogue", PATH)
assert spec.loader is not None
catalogue = sys.modules["catalogue"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(catalogue)


def test_every_mutant_still_applies_to_the_source() -> None:
    for mutant in catalogue.load():
        for edit in mutant.edits:
            old, new = ([t[0] for t in catalogue.tokens(text)] for text in (edit.old, edit.new))
            assert old != new, mutant.name
        for text in mutant.texts().values():
            ast.parse(text)


def test_every_mutant_has_a_seed_or_a_test_that_exists() -> None:
    for mutant in catalogue.load():
        assert (mutant.seed is None) is bool(mutant.test), mutant.name
        path, _, name = mutant.test.partition("::")
        assert not name or f"\ndef {name}(" in (catalogue.ROOT / path).read_text(), mutant.name
