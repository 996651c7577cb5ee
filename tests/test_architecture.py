"""Structure of the packages: what is pure, what comes from outside, and who is imported through its
face. ``[tool.importlinter]`` in pyproject.toml has the order of the layers and bans circles; ruff
bans pickle, ``eval`` and optional packages at module level."""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tokenize import COMMENT, tokenize

import grimp
import pytest
from parsed import tree_of

ROOT = Path(__file__).resolve().parent.parent
LINKED = ("aggregators", "launch", "topologies")
SATELLITES = ("gossip_clusters", "gossip_lab", "gossip_pipelines")
PROTOCOL = "gossip_pipelines.protocol"
PURE_AREAS = {PROTOCOL, *(f"gossip.{area}" for area in ("core", "topologies", "errors", "observe"))}
FINDER = "gossip.topologies.finding"
"""Looks a plug-in up when a run starts: the one module of a pure area that reads files."""
# The standard library without the world: no file, socket, clock, thread, process or global
# randomness. ``random`` is pure as the class Random with a seed.
PURE = {
    *("__future__", "abc", "array", "base64", "binascii", "bisect", "collections", "copy"),
    *("dataclasses", "difflib", "enum", "fractions", "functools", "hashlib", "heapq", "inspect"),
    *("itertools", "json", "math", "numbers", "operator", "random", "re", "statistics", "string"),
    *("struct", "textwrap", "types", "typing", "zlib"),
}
IMPURE_BUILTINS = {"open", "print", "input", "hash", "id"}
REQUIRED = {
    *("torch", "zmq", "msgpack", "numpy", "psutil", "pydantic", "typer"),
    *("rich", "safetensors", "blake3", "cryptography"),
}
OPTIONAL = {
    *("matplotlib", "jinja2", "pyarrow", "numba", "llvmlite"),
    *("ray", "optuna", "dask", "distributed"),
}
"""Ruff (TID253) lets them be imported only inside functions."""
ADAPTERS = re.compile(
    r"gossip\.(?:integrations\.(?P<loop>lightning|transformers|accelerate)"
    r"|launch\.track\.to_(?P<tracker>tensorboard|mlflow|wandb))"
)
"""Each is for one library."""
FOREIGN = {
    "gossip.aggregators": {"torch", "numpy"},
    "gossip.aggregators.kernels": {"torch", "numpy", "numba", "llvmlite"},
    **{area: set[str]() for area in PURE_AREAS - {"gossip.observe"}},
}
UNSAFE = re.compile(
    r"\b(recv_pyobj|send_pyobj|recv_serialized|UntypedStorage|allow_pickle=True|cloudpickle|joblib)\b"
    r"|^\s*(import|from) (marshal|shelve|dill|jsonpickle|_?c?[pP]ickle)\b"
    r"|^\s*from (torch|numpy) import .*\b(load|save)\b"
    r"|(?<!safetensors\.)\btorch\.(load|save)\(|\b(np|numpy)\.load\(|(?<![.\w\"'])(compile|__import__)\("
)
"""Unpickles what it reads, or runs a text as code; what ruff does not find (S102, S301 to S403)."""


def sources(folder: Path) -> Iterator[Path]:
    """Yield every module below ``folder``, each file once."""
    for path in sorted(folder.rglob("*.py")):
        if not {"__pycache__", ".venv"}.intersection(path.parts):
            yield path


@cache
def graph() -> grimp.ImportGraph:
    """Return the imports of all our modules, those in functions and for types included."""
    return grimp.build_graph("gossip", *SATELLITES, include_external_packages=True, cache_dir=None)


def ours() -> Iterator[str]:
    return (module for module in graph().modules if module.split(".")[0] in ("gossip", *SATELLITES))


def path_of(module: str) -> Path:
    base = ROOT / "extras" / module.partition(".")[0].removeprefix("gossip_")
    path = (ROOT if module.split(".")[0] == "gossip" else base) / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def is_package(module: str) -> bool:
    return path_of(module).name == "__init__.py"


def area_of(module: str) -> str:
    """``gossip.core.peer`` is in ``gossip.core``, ``gossip_lab.bench`` in ``gossip_lab``."""
    if f"{module}.".startswith(f"{PROTOCOL}."):
        return PROTOCOL
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] == "gossip" else 1])


def pure_modules() -> list[str]:
    return [module for module in ours() if area_of(module) in PURE_AREAS and module != FINDER]


def test_pure_packages_import_only_what_is_pure() -> None:
    found = [
        f"{module} imports {name}"
        for module in pure_modules()
        for name in graph().find_modules_directly_imported_by(module)
        if name in sys.stdlib_module_names and name not in PURE
    ]
    assert not found, "\n".join(found)


def test_pure_packages_do_no_input_or_output_and_share_no_randomness() -> None:
    found = []
    for module in pure_modules():
        tree = tree_of(path_of(module))
        whole = any(
            isinstance(node, ast.Import) and "random" in _names(node) for node in ast.walk(tree)
        )
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in IMPURE_BUILTINS:
                    found.append(f"{module}:{node.lineno}: {name}()")
                case ast.Attribute(value=ast.Name(id="random"), attr=name) if whole:
                    found += [f"{module}:{node.lineno}: random.{name}"] * (name != "Random")
                case ast.ImportFrom(module="random") if _names(node) != ["Random"]:
                    found.append(f"{module}:{node.lineno}: from random import {_names(node)}")
    assert not found, "\n".join(found)


def _names(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [alias.name for alias in node.names]


def test_the_protocol_of_pipelines_extends_the_core_alone() -> None:
    allowed = {PROTOCOL, *(f"gossip.{area}" for area in ("core", "errors", "lazy", "topologies"))}
    found = [
        f"{module} imports {name}"
        for module in graph().find_descendants(PROTOCOL)
        for name in graph().find_modules_directly_imported_by(module)
        if name.startswith("gossip") and area_of(name) not in allowed
    ]
    assert not found, "\n".join(found)


def test_every_package_from_outside_is_declared() -> None:
    found = []
    for module in ours():
        parents = (module.rpartition(".")[0], area_of(module))
        allowed = next((FOREIGN[each] for each in parents if each in FOREIGN), REQUIRED | OPTIONAL)
        adapter = ADAPTERS.fullmatch(module)
        for name in graph().find_modules_directly_imported_by(module):
            top = name.split(".")[0]
            foreign = top not in sys.stdlib_module_names and top not in ("gossip", *SATELLITES)
            if foreign and top not in allowed and not (adapter and top in adapter.groups()):
                found.append(f"{module} imports {top}, allowed: {', '.join(sorted(allowed))}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", ["gossip", *LINKED, "extras", "tests", "examples", "benchmarks"])
def test_nothing_is_unpickled_and_no_text_is_run_as_code(folder: str) -> None:
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in sources(ROOT / folder)
        if path not in (Path(__file__), ROOT / "examples/ddp.py")  # a script before it is converted
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if UNSAFE.search(line)
    ]
    assert not found, "\n".join(found)


# --- faces ----------------------------------------------------------------------------------------

# Packages within a package that are named from outside of it: their names (``names``, ``load``) are
# those of the rules, too.
OPEN = {"gossip.aggregators.attacks", "gossip.aggregators.kernels"}
# Folders that hold nothing but packages have no face.
GROUPS = {"gossip", "gossip.launch", *SATELLITES}


def face_of(target: str, package: str) -> str:
    """Return the outermost package that holds ``target`` and does not hold ``package``, which is
    all that others may name of it; or ``target``."""
    parts, around = target.split("."), package.split(".")
    at = next(
        (at for at, (one, other) in enumerate(zip(parts, around, strict=False)) if one != other),
        min(len(parts), len(around)),
    )
    while ".".join(parts[: at + 1]) in GROUPS:
        at += 1
    opened = [name for name in OPEN if target.startswith(f"{name}.") and name not in package]
    return opened[0] if opened else target if target in OPEN else ".".join(parts[: at + 1])


def test_packages_are_imported_through_their_faces() -> None:
    found = []
    for module in ours():
        package = module if is_package(module) else module.rpartition(".")[0]
        for target in graph().find_modules_directly_imported_by(module):
            face = face_of(target, package) if "." in target else target
            if not target.startswith(f"{face}."):
                continue
            for line in graph().get_import_details(importer=module, imported=target):
                if re.match(rf"\s*(from|import) {re.escape(face)}\.", line["line_contents"]):
                    found.append(f"{module}:{line['line_number']}: {line['line_contents']}")
    assert not found, "\n".join(found)


# --- the repository -------------------------------------------------------------------------------


def test_no_test_is_skipped_where_a_package_is_missing() -> None:
    """`make venv` installs all that tests need: what is missing there is a failure. Of the skips
    one is about what test-long plays, one about a GPU, three are about the machine's addresses,
    four about other libraries, the others about who may make network namespaces, and run an sshd
    or Slurm in them, mount a small disk, or limit memory."""
    skips = re.compile(r"\b(pytest|mark)\.(importorskip|skipif|skip)\(")
    found = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path != Path(__file__).resolve()
        for line in path.read_text().splitlines()
        if skips.search(line)
    ]
    hosts = [
        "adapters",
        "disk",
        "hosts",
        "hosts_join",
        "hosts_return",
        "hosts_trials",
        "ray_job",
        "run_trials",
        "slurm_job",
        "ssh_hosts",
        "ssh_third",
        "sweep_engines",
        "wan",
    ]
    near = ["cuda", "hosts_command", "launch_run", "other_trackers", "spawn", "zeromq_peers"]
    assert found == [
        "tests/effort.py",
        *(f"tests/fault/test_{name}.py" for name in hosts),
        *(f"tests/integration/test_{name}.py" for name in near),
    ]


def test_the_three_linked_folders_are_relative_links() -> None:
    for name in LINKED:
        link = ROOT / "gossip" / name
        assert link.is_symlink(), f"{link} is not a symbolic link"
        assert os.readlink(link) == f"../{name}", (
            f"{link} leads to {os.readlink(link)}, not to ../{name}"
        )


LIMITS = {"C901", "PLR0912", "PLR0913", "PLR0915", "SLF001"}
"""ruff's rules for the size of a function and for what is private."""
EXCEPTIONS_MAX = 25


def exceptions(project: Path) -> list[str]:
    """Where the limits of functions do not hold: a pattern or FILE:LINE, and a code."""
    per_file = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    found = []
    for pattern, codes in per_file["per-file-ignores"].items():
        found += [f"{pattern}: {code}" for code in sorted(LIMITS.intersection(codes))]
    for folder in ("gossip", *LINKED, "extras", "benchmarks", "examples", "tests"):
        for path in sources(project / folder):
            if "noqa:" not in path.read_text("utf-8"):
                continue
            with path.open("rb") as file:
                comments = [each for each in tokenize(file.readline) if each.type == COMMENT]
            found += [
                f"{path.relative_to(project)}:{comment.start[0]}: {code}"
                for comment in comments
                if "noqa:" in comment.string
                for code in re.findall(r"[A-Z]+[0-9]+", comment.string.partition("noqa:")[2])
                if code in LIMITS
            ]
    return found


def test_few_functions_are_excepted_from_the_limits() -> None:
    found = exceptions(ROOT)
    assert len(found) <= EXCEPTIONS_MAX, "\n".join(found)


def test_the_picture_of_the_packages_shows_their_imports() -> None:
    """An arrow that follows from others is left out."""
    areas = {area_of(module) for module in ours()} - {"gossip.__main__"}
    arrows: dict[str, set[str]] = {area: set() for area in areas}
    for module in ours():
        for name in graph().find_modules_directly_imported_by(module):
            if name.split(".")[0] in ("gossip", *SATELLITES) and area_of(module) in arrows:
                arrows[area_of(module)] |= {area_of(name)} - {area_of(module)}

    @cache
    def reached(area: str) -> set[str]:
        return arrows[area].union(*[reached(target) for target in arrows[area]])

    lines = [
        f"    {area.removeprefix('gossip.')} --> {target.removeprefix('gossip.')}"
        for area in sorted(areas, key=lambda area: (len(reached(area)), area))
        for target in sorted(arrows[area])
        if not any(target in reached(other) for other in arrows[area])
    ]
    drawn = "\n".join(["flowchart TD", *lines])
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    assert f"```mermaid\n{drawn}\n```" in text, f"docs/architecture.md needs\n{drawn}"


def test_every_name_that_a_package_offers_is_there() -> None:
    """``lazy`` reads the block that type checkers read. Only the import shows that both agree."""
    packages = [
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in sorted((ROOT / "gossip").rglob("__init__.py"))
    ]
    linked = [
        f"gossip.launch.{path.parent.name}"
        for path in sorted((ROOT / "launch").glob("*/__init__.py"))
    ]
    missing = []
    for name in {*packages, *linked}:
        package = importlib.import_module(name)
        missing += [
            f"{name}.{offered}" for offered in dir(package) if not hasattr(package, offered)
        ]
    assert missing == []
