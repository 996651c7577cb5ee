"""A function of a notebook as a script: what goes with it, and what cannot."""

from __future__ import annotations

import math
import math as maths
import subprocess
import sys
import types
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest
import torch

from gossip.errors import ConfigError
from gossip.training.cells import script_of

CELLS = """\
import math as maths
from pathlib import Path
WIDTH, RATES, HIGH = 8, {"a": [0.1, (2, None)]}, float("inf")
import torch
tensor = torch.ones(2)

def outer(x):
    return inner(x) + WIDTH if x < 3 else RATES["a"][0]

def inner(x):
    return maths.floor(outer(3) + x)

class Base:
    def name(self): return "base"

@decorate
class Model(Base):
    def __init__(self, width=WIDTH): self.width = width
    def __call__(self): return f"{self.name()} {self.width} {HIGH} {Path('x')}"

def decorate(cls): return cls

def train(times, model=None):
    tensor = outer(1)  # its own, not the notebook's
    def closure(): return tensor
    print(times, closure(), Model()())

def uses_tensor():
    return tensor.sum()

def uses_builtins():
    return print(len([undefined for undefined in range(3)]))
"""


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What a notebook has when its cells have run: a module that is called __main__ and has no
    file. Where the source of each cell is, its functions say."""
    notebook = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    first, rest = CELLS.split("def outer", 1)
    rest, last = rest.split("@decorate\n", 1)
    order = (first, "def decorate(cls): return cls\n", "def outer" + rest, "@decorate\n" + last)
    for number, text in enumerate(order):
        (tmp_path / f"{number}.py").write_text(text)
        loader = SourceFileLoader("__main__", str(tmp_path / f"{number}.py"))
        loader.exec_module(notebook)
    return notebook.__dict__


def said(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"{script}\n{done.stderr}"
    return done.stdout


def test_what_a_function_uses_of_other_cells_goes_with_it(cells: dict[str, Any]) -> None:
    script = script_of(cells["train"], [3])
    assert said(script) == "3 9 base 8 inf x\n"
    assert "import torch" not in script, "what is not used stays"


def test_a_function_of_a_module_is_imported_from_there() -> None:
    script = script_of(math_of, ["x", [1, {"a": (None, 2.5)}]])
    assert "import test_cells" not in script  # pytest has imported it by that name
    assert "from test_cells import math_of" in script
    assert script.endswith("math_of('x', [1, {'a': (None, 2.5)}])\n")


def math_of(*values: Any) -> float:
    return maths.pi + len(values)


def test_builtins_are_left_alone(cells: dict[str, Any]) -> None:
    assert said(script_of(cells["uses_builtins"], [])) == "3\n"


def test_what_no_source_makes_again_is_refused_by_name(cells: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="uses_tensor uses tensor, which is a Tensor") as found:
        script_of(cells["uses_tensor"], [])
    assert "within the function" in str(found.value.hint)


@pytest.mark.parametrize(
    ("function", "arguments", "why"),
    [
        (lambda: 1, [], "lambda"),
        (print, [], "builtin_function_or_method"),
        (math_of, [1, torch.ones(2)], "argument 2 is a Tensor"),
        (math_of, [[Path("x")]], "argument 1 is a list"),
    ],
)
def test_what_cannot_be_called_in_another_process_is_refused(
    function: Callable[..., Any], arguments: list[Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        script_of(function, arguments)


def test_numbers_without_a_literal_are_written_too() -> None:
    script = script_of(math_of, [math.inf, math.nan])
    assert script.endswith("math_of(float('inf'), float('nan'))\n")
    with pytest.raises(ConfigError, match="argument 1 is a list"):
        script_of(math_of, [[math.nan]])
