"""A copy of the package with probes knows which mutants compute anything else,
and plays as the package does."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import zygote
from effort import effort

import gossip
from gossip_lab.simulation.campaign.play import run
from gossip_lab.simulation.schedules.generator import generate

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = ROOT / "tests/mutants"
CHANGING = {
    "add",
    "append",
    "appendleft",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "popitem",
    "popleft",
    "remove",
}
CHANGING |= {"setdefault", "update"}
PLAYS = """
import json
from gossip import mutant_probes
from gossip_lab.simulation.schedules.generator import generate
from gossip_lab.simulation.campaign.play import run
print(json.dumps([run(generate(seed)).trace_hash for seed in {seeds}]))
"""


def _module(name: str) -> ModuleType:
    sys.path.insert(0, str(MUTANTS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(MUTANTS))


@pytest.fixture(scope="module")
def reach() -> ModuleType:
    return _module("reach")


def _loaded(text: str, call: str, folder: Path, name: str) -> ModuleType:
    """A module of this text, with a function ``called``."""
    path = folder / f"{name}.py"
    path.write_text(f"{text}\n\ndef called():\n    return {call}\n", "utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _differs(
    reach: ModuleType,
    ours: str,
    theirs: str,
    call: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[bool, object]:
    """Whether the mutant of ``f`` that ``theirs`` is makes a difference in ``call``, and what the
    copy with probes returns."""
    always: set[int] = set()
    text = reach._probed(ast.parse(ours), [(1, theirs)], always)
    probes = _loaded(reach.PROBES, "None", folder, "mutant_probes")
    monkeypatch.setattr(gossip, "mutant_probes", probes, raising=False)
    returned = _loaded(text, call, folder, "probed").called()
    return 1 in probes.differing | always, returned


GUARD = "def f(x):\n    if x > 9:\n        return 'far'\n    return 'near'\n"
RAISES = (
    "def f(d, k):\n    try:\n        return d[k]\n    except KeyError:\n        return 'none'\n"
)
GUARD_FAILS = (
    "def g(d, k):\n    if d[k] > 3:\n        return 1\n    return 2\n"
    "def f(d, k):\n    try:\n        return g(d, k)\n    except KeyError:\n        return 3\n"
)
SETS = (
    "class X:\n    n = 0\n    def set(self):\n        self.n += 1\ndef f(x):\n    x.set()\n    "
    "return x.n\n"
)
NEXT = (
    "class T:\n    def __init__(self):\n        self.ids = iter([0, 1])\n"
    "def f(t):\n    big = next(t.ids) > 100\n    return big, next(t.ids)\n"
)
LISTS = (
    "class D:\n    def __init__(self, l):\n        self.l = l\n    def __eq__(self, "
    "other):\n        return self.l == other.l\n"
    "    def __hash__(self):\n        return hash((self.l,))\n"
    "def f(x, y):\n    z = x\n    z.l.append(1)\n    return x.l, y.l\n"
)
TWO = "def is_g(x):\n    return x > 0\ndef f(x):\n    return x == x\n"


@pytest.mark.parametrize(
    ("ours", "theirs", "call", "differs"),
    [
        pytest.param(
            "def f(x):\n    return x < 3",
            "def f(x):\n    return x <= 3",
            "f(2)",
            False,
            id="same_value",
        ),
        pytest.param(
            "def f(x):\n    return x < 3",
            "def f(x):\n    return x <= 3",
            "f(3)",
            True,
            id="other_value",
        ),
        pytest.param(
            "def f(x):\n    return x",
            "def f(x):\n    return bool(x)",
            "f(1)",
            True,
            id="other_type",
        ),
        pytest.param(
            "def f(x):\n    return 1 if x and x < 9 else 2",
            "def f(x):\n    return 1 if x else 2",
            "f(5)",
            False,
            id="truth",
        ),
        pytest.param(
            "def f(x):\n    return 1 if x and x < 9 else 2",
            "def f(x):\n    return 1 if x else 2",
            "f(10)",
            True,
            id="truth_differs",
        ),
        pytest.param(
            GUARD, "def f(x):\n    return 'near'\n", "f(9)", False, id="guard_that_does_not_hold"
        ),
        pytest.param(GUARD, "def f(x):\n    return 'near'\n", "f(10)", True, id="guard_that_holds"),
        pytest.param(
            GUARD, GUARD.replace("x > 9", "x.y > 9"), "f(1)", True, id="fails_where_ours_does_not"
        ),
        pytest.param(
            "def f(x, y=1):\n    return y",
            "def f(x, y=2):\n    return y",
            "f(1, 1)",
            True,
            id="default",
        ),
        pytest.param(
            "def f(x):\n    del x[:1]\n    return x",
            "def f(x):\n    del x[:2]\n    return x",
            "f([1, 2])",
            True,
            id="statement",
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
            "def f(x):\n    y, z = [], []\n    for w in [y]:\n        w.append(x)\n    return y, z",
            "def f(x):\n    y, z = [], []\n    for w in [z]:\n        w.append(x)\n    return y, z",
            "f(1)",
            True,
            id="equal_within_and_not_the_same",
        ),
        pytest.param(RAISES, RAISES.replace("d[k]", "d.get(k)"), "f({}, 1)", True, id="ours_fails"),
        pytest.param(
            GUARD_FAILS,
            GUARD_FAILS.replace("    if d[k] > 3:\n        return 1\n", ""),
            "f({}, 1)",
            True,
            id="guard_fails",
        ),
        pytest.param(
            "def f():\n    return 1", "def f():\n    return True", "f()", True, id="other_constant"
        ),
        pytest.param(
            SETS,
            SETS.replace("x.set()", "None"),
            "f(X())",
            True,
            id="method_with_the_name_of_a_builtin",
        ),
        pytest.param(
            TWO,
            TWO.replace("x > 0", "x > 5").replace("x == x", "is_g(x)"),
            "f(3)",
            True,
            id="by_another_edit",
        ),
        pytest.param(
            NEXT, NEXT.replace("next(t.ids) > 100", "False"), "f(T())", True, id="goes_on"
        ),
        pytest.param(
            LISTS,
            LISTS.replace("z = x", "z = y"),
            "f(D([]), D([]))",
            True,
            id="lists_of_equal_things",
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
    reach: ModuleType,
    ours: str,
    theirs: str,
    call: str,
    differs: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = _loaded(ours, call, tmp_path, "plain").called()
    assert _differs(reach, ours, theirs, call, tmp_path, monkeypatch) == (differs, plain)


@pytest.mark.parametrize("given", ["x", "x or ()", "x if x else ()"])
def test_what_can_be_gone_through_once_is_left_for_ours(
    reach: ModuleType, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = (
        f"def f(x):\n    return tuple(sorted({given}))",
        f"def f(x):\n    return tuple({given})",
    )
    assert _differs(reach, ours, theirs, "f(n for n in (2, 1))", tmp_path, monkeypatch) == (
        True,
        (1, 2),
    )


def test_what_a_function_keeps_is_computed_in_each_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gossip.topologies import weights

    hunt, computed, within_bounds = _module("hunt"), [], weights.within_bounds
    monkeypatch.setattr(
        weights, "within_bounds", lambda given: computed.append(given) or within_bounds(given)
    )
    for _ in range(2):
        hunt._forget()
        assert weights.lots("0:2,1:2,4:10", (0, 1, 4)) == weights.lots("0:2,1:2,4:10", (0, 1, 4))
    assert computed == [[2, 2, 10]] * 2


def test_what_is_taken_to_change_nothing_changes_nothing(reach: ModuleType) -> None:
    changing = set()
    for path in [*(ROOT / "gossip/core").rglob("*.py"), *(ROOT / "topologies").glob("*.py")]:
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef) and _changes_itself(function):
                changing.add(function.name)
    assert {
        name for name in changing if name in reach.LOOKS or name.startswith(reach.LOOKS_BEGIN)
    } == reach.CHANGE


def _changes_itself(function: ast.FunctionDef) -> bool:
    """Whether it stores something in what ``self`` is or has."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            changed = ast.unparse(node)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in CHANGING
        ):
            changed = ast.unparse(node.func)
        else:
            continue
        if changed.startswith("self."):
            return True
    return False


def test_the_copy_with_all_probes_plays_what_the_package_plays(
    reach: ModuleType, tmp_path: Path
) -> None:
    where = reach.plant_probes(_module("catalogue").load(), tmp_path)
    environment = {**os.environ, zygote.PACKAGE: str(where)}
    seeds = effort((5,), (1, 5))
    plays = [sys.executable, "-c", PLAYS.format(seeds=seeds)]
    done = zygote.run(plays, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [run(generate(seed)).trace_hash for seed in seeds]
