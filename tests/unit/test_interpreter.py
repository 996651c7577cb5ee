"""Python processes of gossip import nothing from the working directory, and no file starts one in
another way."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from parsed import tree_of

from gossip.aggregators import registry
from gossip.errors import ConfigError
from gossip.interpreter import importing_users_modules, python_command, spawn_context
from gossip.topologies import load

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("gossip", "launch", "aggregators", "topologies", "extras")
KNOWN = {
    ("gossip/interpreter.py", "sys.executable"): "the one place",
    ("gossip/interpreter.py", "get_context"): "the one place",
    ("launch/local/program.py", "sys.executable"): "the trainer runs as plain Python runs it",
    ("launch/local/warm.py", "sys.executable"): "names the interpreter in an error, as Python does",
    ("launch/ssh/ssh.py", "sys.executable"): "which interpreter a host has",
    ("launch/ssh/hostfacts.py", "sys.executable"): "which interpreter a host has",
    (
        "extras/clusters/gossip_clusters/condor/command.py",
        "sys.executable",
    ): "which interpreter jobs have",
    ("launch/options.py", "-m"): "an option of gossip run",
    ("extras/lab/gossip_lab/bench/exchange.py", "-m"): "an option of gossip run",
}


def starts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of what may start an interpreter without ``python_command``."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name("sys"), attr="executable"):
                yield node.lineno, "sys.executable"
            case ast.Call(func=ast.Name("python_command")):
                continue
            case ast.List(elts=words) | ast.Tuple(elts=words) | ast.Call(args=words):
                for word in words:
                    if isinstance(word, ast.Constant) and word.value in ("-m", "-c"):
                        yield word.lineno, str(word.value)
            case ast.ImportFrom(module="sys", names=[ast.alias("executable"), *_]):
                yield node.lineno, "sys.executable"
            case ast.ImportFrom(names=names):
                yield from ((node.lineno, name.name) for name in names if name.name in CONTEXTS)
            case ast.Attribute(attr=name) if name in CONTEXTS:
                yield node.lineno, name


CONTEXTS = ("get_context", "set_start_method", "set_executable", "get_executable")


def test_no_file_starts_python_but_by_the_one_function() -> None:
    found = {
        (str(path.relative_to(ROOT)), what): line
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, what in starts(tree_of(path))
    }
    new = [
        f"{path}:{line}: {what}"
        for (path, what), line in found.items()
        if (path, what) not in KNOWN
    ]
    assert not new, "use gossip.interpreter: " + ", ".join(new)
    assert set(KNOWN) <= set(found), "what is listed here is there"


PROBE = "import json, sys, random; print(json.dumps([random.__file__, sys.path[0]]))"


def test_a_file_of_the_working_directory_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit('planted')\n")
    plain = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    done = subprocess.run(
        python_command("-c", PROBE), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert plain.stderr == "planted\n", "the file shadows Python's own in a plain process"
    assert str(tmp_path) not in json.loads(done.stdout)


def _path_of_random() -> str:
    import random

    return str(random.__file__)


def test_workers_of_multiprocessing_import_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pickle.py").write_text("raise SystemExit('planted')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with spawn_context() as context:
        ours = context.Process(target=_path_of_random)
        ours.start()
    assert "PYTHONSAFEPATH" not in os.environ
    theirs = context.Process(target=_path_of_random)
    theirs.start()
    for process in (ours, theirs):
        process.join(100)
    assert (ours.exitcode, theirs.exitcode) == (0, 1)


RULE = """
from gossip.aggregators import rule
from neighbour import SCALE

@rule
def scaled(updates, *, f=0):
    return updates.mean(dim=0) * SCALE
"""
TOPOLOGY = """
from gossip.topologies import topology

@topology
def nobody(view, round_id, seed):
    return {peer: () for peer in view}
"""


def test_rules_and_topologies_of_the_working_directory_are_found_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "neighbour.py").write_text("SCALE = 2\n")
    (tmp_path / "users_rules_here.py").write_text(RULE)
    (tmp_path / "users_plans_here.py").write_text(TOPOLOGY)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = list(sys.path)
    with pytest.raises(ConfigError):
        registry.check("users_rules_here:scaled")
    monkeypatch.chdir(tmp_path)
    registry.check("users_rules_here:scaled")
    assert registry.load("users_rules_here:scaled").name == "scaled"
    assert load("users_plans_here:nobody")
    assert sys.path == before
    for name in ("users_rules_here", "users_plans_here", "neighbour"):
        del sys.modules[name]


def test_the_working_directory_comes_last_and_only_during_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), "elsewhere"])
    with importing_users_modules():
        assert sys.path == [str(tmp_path), "elsewhere", str(tmp_path)]
        sys.path.insert(0, "added")
    assert sys.path == ["added", str(tmp_path), "elsewhere"]
