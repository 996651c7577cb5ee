"""Runs the Python that pages show. A page shows the lines that matter; what they stand among, a
model and its data, is given to them here."""

from __future__ import annotations

import argparse
import ast
import runpy
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import gossip

ITERATIONS = 3
"""Of each loop that a page shows: a page says 10,000 steps, and means it."""


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.ones(4), torch.tensor(1))] * 64)


def surroundings() -> dict[str, Any]:
    """What a page takes for granted: a model, an optimizer, data, and what names them."""
    torch.manual_seed(0)
    samples = [(torch.randn(4), torch.tensor(label % 2)) for label in range(64)]
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = {
        "gossip": gossip,
        "torch": torch,
        "nn": nn,
        "argparse": argparse,
        "DataLoader": DataLoader,
        "TensorDataset": TensorDataset,
        "OneCycleLR": torch.optim.lr_scheduler.OneCycleLR,
        "CosineAnnealingLR": torch.optim.lr_scheduler.CosineAnnealingLR,
        "Net": lambda: model,
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.ConstantLR(optimizer),
        "loss_fn": nn.CrossEntropyLoss(),
        "options": argparse.Namespace(lr=0.1, epochs=2),
        "dataset": samples,
        "samples": samples,
        "stream": Stream(),
        "loader": DataLoader(samples, batch_size=8),
        "updates": torch.randn(9, 5),
        "evaluate": lambda model: None,
        "loss": 0.41,
        "accuracy": 0.93,
        "seen": 640,
        "chosen": 1,
        "patience_is_over": False,
    }
    return names | {"_few": few}


def few(things: Iterable[Any]) -> Iterator[Any]:
    """The first of them."""
    for at, thing in enumerate(things):
        if at == ITERATIONS:
            return
        yield thing


class _Shortened(ast.NodeTransformer):
    """Each loop ends after a few turns; ``...`` in a loop is the step that it stands for."""

    step = ast.parse(
        "optimizer.zero_grad(); model(torch.randn(8, 4)).square().mean().backward()\n"
        "optimizer.step()"
    ).body

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.iter = ast.Call(ast.Name("_few", ast.Load()), [node.iter], [])
        body = []
        for each in node.body:
            left_out = isinstance(each, ast.Expr) and ast.unparse(each) == "..."
            body += self.step if left_out else [each]
        node.body = body
        return node


def execute(code: str, place: str, names: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Runs it as a file of that folder with these names, and returns all that there is then."""
    tree = ast.fix_missing_locations(_Shortened().visit(ast.parse(code, place)))
    script = folder / "shown.py"
    script.write_text(f"# {place}\n{ast.unparse(tree)}\n")
    return runpy.run_path(str(script), names)


def execute_beside_a_peer(code: str, place: str, folder: Path) -> None:
    """Runs it among what it takes for granted, with a prepared session named ``peer`` unless it
    makes one itself. The session is closed after it, and the modules of the folder are forgotten:
    another test has other modules of these names."""
    names = surroundings()
    if "peer" in code and "gossip.init" not in code:
        names["peer"] = gossip.init()
        model, optimizer = names["peer"].prepare(names["model"], names["optimizer"])
        names |= {"model": model, "optimizer": optimizer}
    try:
        names = execute(code, place, names, folder)
    finally:
        if "peer" in names:
            names["peer"].close()
        for name, module in [*sys.modules.items()]:
            if str(getattr(module, "__file__", None)).startswith(f"{folder}/"):
                del sys.modules[name]


def with_its_additions(diff: str) -> str:
    """What a diff makes of what it begins with."""
    kept = [line[1:] for line in diff.splitlines() if line[:1] in "+ "]
    return "\n".join("" if line.strip() == "..." else line for line in kept)


def is_signature(code: str) -> bool:
    """Whether it is a signature of docs/api.md, written as a definition without its ``def``."""
    try:
        ast.parse(f"def _{code[code.index('(') :]}: ...")
    except (SyntaxError, ValueError):
        return False
    return True
