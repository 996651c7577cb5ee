"""Who may import whom, and what is used nowhere. Read from the source by ``ast``, so no import has to happen first.

    launch -> gossip -> {aggregators, topologies}        gossip: node, training, sim -> transport -> core

A failure names the file, the line, the import and the rule that it breaks.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Which areas of the package each area may import from, itself always included. ``gossip`` are the modules right below the
# package: node, config, faults, telemetry, testing and its __init__.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "topologies": {"errors"},
    "aggregators": {"errors"},
    "core": {"errors", "topologies"},
    "transport": {"errors", "core"},
    "training": {"errors", "core", "transport", "aggregators", "topologies", "gossip"},
    "sim": {"errors", "core", "transport", "aggregators", "topologies", "gossip"},
    "gossip": {"errors", "core", "transport", "aggregators", "topologies", "training", "sim"},
    "launch": {"errors", "core", "transport", "aggregators", "topologies", "training", "sim", "gossip"},
}

# The standard library without the world: no file, socket, clock, thread, process or global randomness.
PURE = {
    *("__future__", "abc", "array", "base64", "binascii", "bisect", "collections", "copy", "dataclasses", "difflib", "enum"),
    *("fractions", "functools", "hashlib", "heapq", "inspect", "itertools", "json", "math", "numbers", "operator"),
    *("re", "statistics", "string", "struct", "textwrap", "types", "typing", "zlib"),
}
PURE_AREAS = {"core", "topologies", "errors"}
# Looks a plug-in up when a run starts: the one module of a pure area that reads files and entry points.
FINDERS = {"gossip.topologies.finding"}
# ``random`` is pure as the class Random with a seed, and only so.
SEEDED = "Random"
# Builtins that reach out of a pure module, or that differ from one process to the next.
IMPURE_BUILTINS = {"open", "print", "input", "hash", "id"}

# Packages from outside. Everywhere: what pyproject.toml declares, and no more.
REQUIRED = {"torch", "zmq", "msgpack", "numpy", "psutil", "pydantic", "pydantic_settings", "typer", "rich", "safetensors"}
OPTIONAL = {"sklearn": "demo", "matplotlib": "plots", "numba": "fast", "llvmlite": "fast", "ray": "ray"}
"""Only inside functions, so that the package works without the extra."""
COMPILED = re.compile(r"gossip\.aggregators\.kernels\.(lanes|compiled_\w+)")
"""The modules that numba compiles: they are made of it, and only others of them may import them outside of a function."""
FOREIGN = {"aggregators": {"torch", "numpy"}, "topologies": set[str](), "core": set[str](), "errors": set[str]()}

# Nothing is ever unpickled, and no text is ever run as code.
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle"}
UNSAFE_BUILTINS = {"eval", "exec", "compile", "__import__"}
UNSAFE_ATTRIBUTES = {"recv_pyobj", "send_pyobj", "recv_serialized", "UntypedStorage"}
UNSAFE_CALLS = {("torch", "load"), ("torch", "save"), ("np", "load"), ("numpy", "load")}

OURS = {"aggregators", "topologies", "launch"}  # at the top of the repository; a user may have modules of these names


@dataclass(frozen=True, slots=True)
class Imported:
    """One name that an import statement asks for."""

    line: int
    module: str  # absolute; where a relative import leads
    name: str  # "" for ``import module``
    level: int  # dots of a relative import
    at_module_level: bool

    @property
    def statement(self) -> str:
        return f"from {self.module} import {self.name}" if self.name else f"import {self.module}"


def sources(folder: Path) -> Iterator[Path]:
    """Every module below ``folder``, through the linked folders, each file once."""
    seen: set[Path] = set()
    for where, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if name not in {"__pycache__", ".venv"})
        for name in sorted(files):
            path = Path(where, name)
            if path.suffix == ".py" and path.resolve() not in seen:
                seen.add(path.resolve())
                yield path


def imports(tree: ast.Module, package: str) -> Iterator[Imported]:
    """Every import of a module, also those in functions and under TYPE_CHECKING. ``package`` is where its dots count from."""
    inner = {id(node) for function in ast.walk(tree) if isinstance(function, FUNCTIONS) for node in ast.walk(function)}
    for node in ast.walk(tree):
        at_module_level = id(node) not in inner
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Imported(node.lineno, alias.name, "", 0, at_module_level)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Imported(node.lineno, module, alias.name, node.level, at_module_level)


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def area_of(module: str) -> str:
    """``gossip.core.peer`` is in "core", ``gossip.node`` in "gossip", ``gossip.errors`` in "errors"."""
    parts = module.split(".")
    if len(parts) == 1:
        return "gossip"
    if parts[1] == "__main__":
        return "launch"  # the command line's door
    return parts[1] if parts[1] in MAY_IMPORT else "gossip"


def target_area(imported: Imported) -> str:
    """The area an import of ours leads to; ``from gossip import errors`` leads to errors, not to the package."""
    return area_of(f"{imported.module}.{imported.name}" if imported.module == "gossip" and imported.name else imported.module)


def violations(root: Path) -> list[str]:
    """Every breach of the house rules below ``root``, as ``file:line: statement: the rule``."""
    found: list[str] = []
    for path in sources(root / "gossip"):
        relative = path.relative_to(root)
        module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        package = ".".join(relative.parts[:-1])
        text = path.read_text()
        tree = ast.parse(text)
        area = area_of(module)
        pure = area in PURE_AREAS and module not in FINDERS
        for imported in imports(tree, package):
            found += [
                f"{relative}:{imported.line}: {imported.statement}: {why}"
                for why in wrong_import(imported, area, package, pure, module)
            ]
        found += [f"{relative}:{line}: {what}" for line, what in unsafe_uses(tree)]
        if pure:
            found += [f"{relative}:{line}: {what}" for line, what in impure_uses(tree, area)]
    return found


def wrong_import(imported: Imported, area: str, package: str, pure: bool, module: str) -> Iterator[str]:
    top = imported.module.split(".")[0]
    yield from unsafe_import(imported)
    leads_to = {imported.module, f"{imported.module}.{imported.name}"}
    if imported.at_module_level and not COMPILED.fullmatch(module) and any(COMPILED.fullmatch(name) for name in leads_to):
        yield "that module comes with the extra [fast]: import it inside the function that needs it"
    if top == "gossip":
        target = target_area(imported)
        if target != area and target not in MAY_IMPORT[area]:
            allowed = ", ".join(sorted(MAY_IMPORT[area])) or "nothing of ours"
            yield f"{area} may not import from {target} (it may: {allowed})"
        sibling = imported.module == package or imported.module.rpartition(".")[0] == package
        if not imported.level and sibling and area not in {"gossip", "errors"} and package != "gossip":
            yield "a sibling is imported relatively: from ." + imported.module.removeprefix(package).lstrip(".") + " import ..."
        if imported.level > 1:
            yield "what is outside the folder is imported by its full name"
    elif top in OURS:
        pass  # said by unsafe_import
    elif top == "random" and pure:
        if imported.name not in {"", SEEDED}:
            yield f"{area} may take only the class Random, seeded; the module's functions share one hidden state"
    elif top in sys.stdlib_module_names:
        if pure and top not in PURE:
            yield f"{area} does no input or output: {top} is not on its list"
    elif top in OPTIONAL and OPTIONAL[top] == "fast" and COMPILED.fullmatch(module):
        pass
    elif top in OPTIONAL:
        if imported.at_module_level:
            yield f"{top} comes with the extra [{OPTIONAL[top]}]: import it inside the function that needs it"
        if area in FOREIGN:
            yield f"{area} may not use {top}"
    elif top not in FOREIGN.get(area, REQUIRED):
        allowed = ", ".join(sorted(FOREIGN.get(area, REQUIRED))) or "none"
        yield f"{area} may not use the package {top} (allowed: {allowed})"


def unsafe_import(imported: Imported) -> Iterator[str]:
    top = imported.module.split(".")[0]
    if top in UNSAFE_MODULES:
        yield "nothing is ever pickled or unpickled here"
    if (imported.module, imported.name) in UNSAFE_CALLS or imported.name in UNSAFE_ATTRIBUTES:
        yield "it unpickles what it reads"
    if top in OURS:
        yield f"a user's own {top}.py would shadow it: import gossip.{top}"


def impure_uses(tree: ast.Module, area: str) -> Iterator[tuple[int, str]]:
    """Where a pure module asks for more than it is given."""
    whole_module = any(imported.module == "random" and not imported.name for imported in imports(tree, ""))
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="random"), attr=name) if whole_module and name != SEEDED:
                yield node.lineno, f"random.{name}: {area} may take only random.Random, seeded"
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_BUILTINS:
                yield node.lineno, f"{name}(): {area} is a pure function of what it is given"


def unsafe_uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in UNSAFE_BUILTINS:
                yield node.lineno, f"{name}(): no text is ever run as code"
            case ast.Attribute(attr=name) if name in UNSAFE_ATTRIBUTES:
                yield node.lineno, f".{name}: it unpickles what it reads"
            case ast.Attribute(value=ast.Name(id=module), attr=name) if (module, name) in UNSAFE_CALLS:
                yield node.lineno, f"{module}.{name}: it unpickles what it reads"
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
                yield node.value.lineno, "allow_pickle=True: nothing is ever unpickled here"


def unsafe_anywhere(folder: Path) -> list[str]:
    """The rules that also hold for tests, examples and benchmarks."""
    found = []
    for path in sources(folder):
        tree = ast.parse(path.read_text())
        where = path.relative_to(folder.parent)
        for imported in imports(tree, ""):
            found += [f"{where}:{imported.line}: {imported.statement}: {why}" for why in unsafe_import(imported)]
        found += [f"{where}:{line}: {what}" for line, what in unsafe_uses(tree)]
    return found


# --- the repository -------------------------------------------------------------------------------------------------------


def test_imports_go_one_way_and_nothing_unsafe_is_used() -> None:
    found = violations(ROOT)
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("folder", ["tests", "examples", "benchmarks"])
def test_nothing_unsafe_is_used_outside_the_package_either(folder: str) -> None:
    found = unsafe_anywhere(ROOT / folder)
    assert not found, "\n" + "\n".join(found)


def test_no_test_is_skipped_where_a_package_is_missing() -> None:
    """`make venv` installs all that tests need: what is missing there is a failure. Of the skips three are about the machine's
    addresses, the others about who may make network namespaces, and run an sshd or Slurm in them, or mount a small disk."""
    skips = re.compile(r"\b(importorskip|skipif|skip)\(")
    found = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path != Path(__file__).resolve()
        for line in path.read_text().splitlines()
        if skips.search(line)
    ]
    hosts = ["disk", "hosts", "hosts_join", "narrow_link", "ray_job", "slurm_job", "ssh_hosts", "ssh_third"]
    near = ["hosts_command", "launch_run", "zeromq_peers"]
    assert found == [
        *(f"tests/fault/test_{name}.py" for name in hosts),
        *(f"tests/integration/test_{name}.py" for name in near),
    ]


def test_the_three_linked_folders_are_relative_links() -> None:
    for name in sorted(OURS):
        link = ROOT / "gossip" / name
        assert link.is_symlink(), f"{link} is not a symbolic link"
        assert os.readlink(link) == f"../{name}", f"{link} leads to {os.readlink(link)}, not to ../{name}"


def test_every_area_is_read() -> None:
    read = {area_of(".".join(path.relative_to(ROOT).with_suffix("").parts)) for path in sources(ROOT / "gossip")}
    assert read == set(MAY_IMPORT)


# --- the checker ----------------------------------------------------------------------------------------------------------

PLANTED = [
    ("gossip/core/rolling.py", "import zmq", "core may not use the package zmq"),
    ("gossip/core/rolling.py", "import asyncio", "asyncio is not on its list"),
    ("gossip/core/rolling.py", "import time", "time is not on its list"),
    ("gossip/core/rolling.py", "from datetime import datetime", "datetime is not on its list"),
    ("gossip/core/rolling.py", "def f():\n    import threading", "threading is not on its list"),
    ("gossip/core/rolling.py", "from os import path", "os is not on its list"),
    ("gossip/core/rolling.py", "import socket as s", "socket is not on its list"),
    ("gossip/core/rolling.py", "import torch", "core may not use the package torch"),
    ("gossip/core/rolling.py", "import numpy as np", "core may not use the package numpy"),
    ("gossip/core/rolling.py", "from random import shuffle", "only the class Random"),
    ("gossip/core/rolling.py", "import random\nrandom.random()", "random.random"),
    ("gossip/core/rolling.py", "x = open('f')", "open()"),
    ("gossip/core/rolling.py", "x = hash('f')", "hash()"),
    ("gossip/core/rolling.py", "from gossip.transport.base import Transport", "core may not import from transport"),
    ("gossip/core/rolling.py", "from ..transport.base import Transport", "core may not import from transport"),
    ("gossip/core/rolling.py", "from gossip import node", "core may not import from gossip"),
    ("gossip/core/rolling.py", "from gossip.aggregators import mean", "core may not import from aggregators"),
    ("gossip/core/rolling.py", "from gossip.core.events import Send", "a sibling is imported relatively: from .events"),
    (
        "gossip/core/rolling.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
        "may not use the package torch",
    ),
    ("gossip/transport/zeromq.py", "from gossip.node import Node", "transport may not import from gossip"),
    ("gossip/transport/zeromq.py", "from gossip.training.session import Session", "transport may not import from training"),
    ("gossip/transport/zeromq.py", "from ..errors import Malformed", "by its full name"),
    ("gossip/transport/zeromq.py", "import requests", "may not use the package requests"),
    ("gossip/training/session.py", "from gossip.launch.cli import main", "training may not import from launch"),
    ("gossip/training/session.py", "import pickle", "nothing is ever pickled"),
    ("gossip/training/session.py", "import torch\ntorch.load('f')", "torch.load"),
    ("gossip/training/session.py", "from torch import load", "it unpickles"),
    ("gossip/training/session.py", "import numpy as np\nnp.load('f', allow_pickle=True)", "allow_pickle"),
    ("gossip/training/session.py", "import sklearn", "inside the function"),
    ("gossip/node.py", "import gossip.launch.cli", "gossip may not import from launch"),
    ("gossip/node.py", "def f(s):\n    return s.recv_pyobj()", "recv_pyobj"),
    ("gossip/node.py", "x = eval('1')", "eval()"),
    ("gossip/node.py", "exec('1')", "exec()"),
    ("gossip/node.py", "import aggregators", "a user's own aggregators.py would shadow it"),
    ("gossip/errors.py", "from gossip.core.messages import PeerId", "errors may not import from core"),
    ("aggregators/means.py", "from gossip.node import Node", "aggregators may not import from gossip"),
    ("aggregators/means.py", "from gossip.core.messages import PeerId", "aggregators may not import from core"),
    ("aggregators/means.py", "from gossip.aggregators.base import rule", "a sibling is imported relatively: from .base"),
    ("aggregators/means.py", "import zmq", "aggregators may not use the package zmq"),
    ("aggregators/means.py", "def f():\n    import numba", "aggregators may not use numba"),
    ("aggregators/kernels/fast.py", "import numba", "inside the function"),
    ("aggregators/kernels/fast.py", "from .compiled_sums import gram", "comes with the extra [fast]"),
    ("aggregators/kernels/fast.py", "from . import lanes", "comes with the extra [fast]"),
    ("topologies/rings.py", "import torch", "topologies may not use the package torch"),
    ("topologies/rings.py", "import random\nrandom.choice([1])", "random.choice"),
    ("topologies/rings.py", "from gossip.aggregators import mean", "topologies may not import from aggregators"),
    ("launch/cli.py", "from launch.cli import main", "a user's own launch.py would shadow it"),
]

SOUND = {
    "gossip/errors.py": "import difflib\n",
    "gossip/core/rolling.py": "import random\nfrom gossip.errors import GossipError\n"
    "from gossip.topologies import rolling\nfrom .events import Send\nrandom.Random(1)\n",
    "gossip/core/events.py": "from dataclasses import dataclass\n",
    "gossip/transport/zeromq.py": "import zmq, time\nfrom gossip.core.events import Send\nfrom .base import Transport\n",
    "gossip/training/session.py": "import os, torch\nfrom gossip.transport.codec import pack\nfrom gossip.node import main\n"
    "def f(model):\n    import sklearn\n    model.eval()\n",
    "gossip/node.py": "import torch\nfrom gossip.core.peer import Peer\nfrom gossip.aggregators import mean\n",
    "aggregators/means.py": "import torch\nfrom gossip.errors import ConfigError\nfrom .base import rule\n",
    "aggregators/kernels/lanes.py": "import numba, llvmlite\n",
    "aggregators/kernels/compiled_sums.py": "import numba\nfrom .lanes import add\n",
    "aggregators/kernels/fast.py": "def f():\n    from .compiled_sums import gram\n",
    "topologies/rings.py": "from gossip.errors import BadTopology\nfrom .base import topology\n",
    "topologies/random_k.py": "from random import Random\nrandom = Random(1)\nrandom.choice([1])\n",
    "topologies/finding.py": "import importlib.util, sys\nfrom pathlib import Path\n",
    "launch/cli.py": "import typer\nfrom gossip.node import main\nfrom .local import run\n",
}


@pytest.fixture
def sound_tree(tmp_path: Path) -> Path:
    """A small tree in which every rule is kept."""
    for name, text in SOUND.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in OURS:
        (tmp_path / "gossip" / name).symlink_to(f"../{name}")
    return tmp_path


def test_the_checker_accepts_a_tree_that_keeps_the_rules(sound_tree: Path) -> None:
    assert violations(sound_tree) == []


@pytest.mark.parametrize(("file", "planted", "why"), PLANTED)
def test_the_checker_names_file_line_and_rule_of_a_breach(sound_tree: Path, file: str, planted: str, why: str) -> None:
    path = sound_tree / file
    before = path.read_text()
    path.write_text(before + planted + "\n")

    found = violations(sound_tree)

    seen_as = file if file.startswith("gossip/") else f"gossip/{file}"
    assert found, f"{planted!r} in {file} went unnoticed"
    assert all(line.startswith(f"{seen_as}:") for line in found), found
    assert any(why in line for line in found), found
    first, last = before.count("\n") + 1, before.count("\n") + planted.count("\n") + 1
    assert all(first <= int(line.split(":")[1]) <= last for line in found), found


def test_the_checker_reads_examples_and_tests_too(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "train.py").write_text("import aggregators\nimport pickle\n")

    found = unsafe_anywhere(tmp_path / "examples")

    assert [line.split(":")[:2] for line in found] == [["examples/train.py", "1"], ["examples/train.py", "2"]]
