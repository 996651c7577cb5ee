"""A copy of the package with probes knows which mutants compute anything else, and plays as the package does."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

from gossip.sim.generate import generate
from gossip.sim.play import run

MUTANTS = Path(__file__).resolve().parents[1] / "mutants"
PLAYS = """
import json
from gossip import mutant_probes
from gossip.sim.generate import generate
from gossip.sim.play import run
print(json.dumps([run(generate(seed)).trace_hash for seed in (5, 11)]))
"""


@pytest.fixture(scope="module")
def reach() -> ModuleType:
    sys.path.insert(0, str(MUTANTS))
    try:
        import reach
    finally:
        sys.path.remove(str(MUTANTS))
    return reach


def _differs(reach: ModuleType, ours: str, theirs: str, call: str) -> tuple[bool, object]:
    """Whether the mutant of ``f`` that ``theirs`` is made a difference in ``call``, and what that returned."""
    always: set[int] = set()
    text = reach._probed(ast.parse(dedent(ours)), [(1, dedent(theirs))], always)
    probes, module = ModuleType("mutant_probes"), ModuleType("probed")
    exec(reach.PROBES, probes.__dict__)
    module.__dict__["_probes"] = probes
    exec(text.replace("from gossip import mutant_probes as _probes", ""), module.__dict__)
    returned = eval(call, module.__dict__)
    return 1 in probes.__dict__["differing"] | always, returned


GUARD = "def f(x):\n    if x > 9:\n        return 'far'\n    return 'near'\n"


@pytest.mark.parametrize(
    ("ours", "theirs", "call", "differs"),
    [
        pytest.param("def f(x):\n    return x < 3", "def f(x):\n    return x <= 3", "f(2)", False, id="same_value"),
        pytest.param("def f(x):\n    return x < 3", "def f(x):\n    return x <= 3", "f(3)", True, id="other_value"),
        pytest.param("def f(x):\n    return x", "def f(x):\n    return bool(x)", "f(1)", True, id="other_type"),
        pytest.param(
            "def f(x):\n    return 1 if x and x < 9 else 2", "def f(x):\n    return 1 if x else 2", "f(5)", False, id="truth"
        ),
        pytest.param(
            "def f(x):\n    return 1 if x and x < 9 else 2",
            "def f(x):\n    return 1 if x else 2",
            "f(10)",
            True,
            id="truth_differs",
        ),
        pytest.param(GUARD, "def f(x):\n    return 'near'\n", "f(9)", False, id="guard_that_does_not_hold"),
        pytest.param(GUARD, "def f(x):\n    return 'near'\n", "f(10)", True, id="guard_that_holds"),
        pytest.param(GUARD, GUARD.replace("x > 9", "x.y > 9"), "f(1)", True, id="fails_where_ours_does_not"),
        pytest.param("def f(x, y=1):\n    return y", "def f(x, y=2):\n    return y", "f(1, 1)", True, id="default"),
        pytest.param(
            "def f(x):\n    del x[:1]\n    return x", "def f(x):\n    del x[:2]\n    return x", "f([1, 2])", True, id="statement"
        ),
        pytest.param(
            "def f(x):\n    x.pop()\n    return x",
            "def f(x):\n    x[-1]\n    return x",
            "f([1, 2])",
            True,
            id="call_that_changes",
        ),
        pytest.param(
            "def f(x):\n    if not x or not x.pop():\n        return 0\n    return 1",
            "def f(x):\n    if not x:\n        return 0\n    return 1",
            "f([1, 2])",
            True,
            id="test_that_changes",
        ),
        pytest.param(
            "def f(x):\n    y, z = [], []\n    y.append(x)\n    return y, z",
            "def f(x):\n    y, z = [], []\n    z.append(x)\n    return y, z",
            "f(1)",
            True,
            id="equal_but_not_the_same",
        ),
        pytest.param(
            "def f(x):\n    if (y := x[0]) > 0:\n        return y",
            "def f(x):\n    if (y := x[1]) > 0:\n        return y",
            "f([1, 2])",
            True,
            id="named_in_a_test",
        ),
    ],
)
def test_a_mutant_counts_where_it_computes_anything_else(
    reach: ModuleType, ours: str, theirs: str, call: str, differs: bool
) -> None:
    plain: dict[str, object] = {}
    exec(ours, plain)
    assert _differs(reach, ours, theirs, call) == (differs, eval(call, plain))


def test_what_can_be_gone_through_once_is_left_for_ours(reach: ModuleType) -> None:
    ours, theirs = "def f(x):\n    return tuple(sorted(x))", "def f(x):\n    return tuple(x)"
    assert _differs(reach, ours, theirs, "f(n for n in (2, 1))") == (True, (1, 2))


def test_the_copy_with_all_probes_plays_what_the_package_plays(reach: ModuleType, tmp_path: Path) -> None:
    catalogue = sys.modules["catalogue"]
    where = reach.plant_probes(catalogue.load(), tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(where)}
    plays = [sys.executable, "-c", PLAYS]
    done = subprocess.run(plays, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [run(generate(seed)).trace_hash for seed in (5, 11)]
