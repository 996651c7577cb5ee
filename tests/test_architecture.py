"""Who may import whom, and what is used nowhere. Read from the source by ``ast``, so no import has
to happen first.

    lazy, errors, interpreter < topologies, aggregators < core < vectors < transport < testing < ipc
        < faults, observe < config < run < pipelines, starts < inject < node < training < launch
        < satellites

A failure names the file, the line, the import and the rule that it breaks.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
import tomllib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tokenize import COMMENT, tokenize

import pytest
from parsed import parsed, tree_of

ROOT = Path(__file__).resolve().parent.parent

# Each layer imports from those before it, imports inside functions and under
# TYPE_CHECKING included.
LAYERS = (
    ("lazy", "errors", "interpreter"),
    ("topologies", "aggregators", "satellites"),
    ("core",),
    ("vectors",),
    ("transport",),
    ("testing",),
    ("ipc",),
    ("faults", "observe"),
    ("config",),
    ("run",),
    ("inject",),
    ("node",),
    ("training",),
    ("integrations",),
    ("launch",),
)
SATELLITES = {
    "gossip_clusters": "clusters",
    "gossip_lab": "lab",
    "gossip_pipelines": "pipelines",
}
"""Distributions of their own: they import from the runtime, which never imports from them."""
# A rule is nothing to the protocol, nor to what carries its bytes.
NEVER = {"core": {"aggregators"}, "transport": {"aggregators", "topologies"}}
MAY_IMPORT: dict[str, set[str]] = {
    area: {lower for layer in LAYERS[:at] for lower in layer} - NEVER.get(area, set())
    for at, layer in enumerate(LAYERS)
    for area in layer
}
MAY_IMPORT["gossip"] = {"lazy", "errors", "topologies", "aggregators", "testing", "training"}
MAY_IMPORT["launch"].add("gossip")
MAY_IMPORT["__main__"] = {"launch"}
MAY_IMPORT["protocol"] = {"lazy", "errors", "topologies", "core"}
"""``gossip_pipelines.protocol``, which is as pure as the core that it extends."""
for satellite in SATELLITES:
    MAY_IMPORT[satellite] = MAY_IMPORT.keys() - SATELLITES
MAY_IMPORT["integrations"] = {"gossip", "errors", "training"}
"""The package itself: what a user's script imports, the demo's among them."""

# The standard library without the world: no file, socket, clock, thread,
# process or global randomness.
PURE = {
    *(
        "__future__",
        "abc",
        "array",
        "base64",
        "binascii",
        "bisect",
        "collections",
        "copy",
        "dataclasses",
        "difflib",
        "enum",
    ),
    *(
        "fractions",
        "functools",
        "hashlib",
        "heapq",
        "inspect",
        "itertools",
        "json",
        "math",
        "numbers",
        "operator",
    ),
    *("re", "statistics", "string", "struct", "textwrap", "types", "typing", "zlib"),
}
PURE_AREAS = {"core", "protocol", "topologies", "errors", "observe"}
# Looks a plug-in up when a run starts: the one module of a pure area that reads files
# and entry points.
FINDERS = {"gossip.topologies.finding"}
# ``random`` is pure as the class Random with a seed, and only so.
SEEDED = "Random"
# Builtins that reach out of a pure module, or that differ from one process to the next.
IMPURE_BUILTINS = {"open", "print", "input", "hash", "id"}

# Packages from outside. Everywhere: what pyproject.toml declares, and no more.
REQUIRED = {
    "torch",
    "zmq",
    "msgpack",
    "numpy",
    "psutil",
    "pydantic",
    "pydantic_settings",
    "typer",
    "rich",
    "safetensors",
    "blake3",
    "cryptography",
}
OPTIONAL = {
    "matplotlib": "plots",
    "jinja2": "report",
    "pyarrow": "records",
    "numba": "fast",
    "llvmlite": "fast",
    "ray": "ray",
}
"""Only inside functions, so that the package works without the extra."""
COMPILED = re.compile(r"gossip\.aggregators\.kernels\.(lanes|compiled_\w+)")
"""The modules that numba compiles: they are made of it, and only others of them may import them
outside of a function."""
ADAPTERS = re.compile(
    r"gossip\.(?:integrations\.(?P<loop>lightning|transformers|accelerate)"
    r"|launch\.track\.to_(?P<tracker>tensorboard|mlflow|wandb|trackio))"
)
"""Each is for one library, which it is made of and takes outside of a function."""
FOREIGN = {
    "aggregators": {"torch", "numpy"},
    "topologies": set[str](),
    "core": set[str](),
    "protocol": set[str](),
    "errors": set[str](),
}

# Nothing is ever unpickled, and no text is ever run as code.
UNSAFE_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "marshal",
    "shelve",
    "joblib",
    "jsonpickle",
}
UNSAFE_BUILTINS = {"eval", "exec", "compile", "__import__"}
UNSAFE_ATTRIBUTES = {"recv_pyobj", "send_pyobj", "recv_serialized", "UntypedStorage"}
UNSAFE_CALLS = {("torch", "load"), ("torch", "save"), ("np", "load"), ("numpy", "load")}

# at the top of the repository; a user may have modules of these names
OURS = {"aggregators", "topologies", "launch"}
SUSPECT = re.compile(
    rf"\b(?:{'|'.join(UNSAFE_MODULES | UNSAFE_BUILTINS | UNSAFE_ATTRIBUTES)}|allow_pickle"
    rf"|{'|'.join(rf'{module}[.]{name}|from {module} import' for module, name in UNSAFE_CALLS)}"
    rf"|(?:from|import) (?:{'|'.join(OURS)}))\b"
)
"""A text without any of that uses nothing unsafe: it need not be parsed to see that."""


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
    """Every import of a module, also those in functions and under TYPE_CHECKING. ``package`` is
    where its dots count from."""
    left: deque[tuple[ast.AST, bool]] = deque([(tree, True)])
    while left:
        node, at_module_level = left.popleft()
        within = at_module_level and not isinstance(node, FUNCTIONS)
        left += [(child, within) for child in ast.iter_child_nodes(node) if holds_statements(child)]
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Imported(node.lineno, alias.name, "", 0, at_module_level)
        elif isinstance(node, ast.ImportFrom):
            base = (
                package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            )
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Imported(node.lineno, module, alias.name, node.level, at_module_level)


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def holds_statements(node: ast.AST) -> bool:
    """Only these can have an import in them."""
    return isinstance(node, ast.stmt | ast.excepthandler | ast.match_case)


@cache
def imports_of(text: str, package: str) -> tuple[Imported, ...]:
    """Those of a module of that text."""
    return tuple(imports(parsed(text), package))


def modules(root: Path) -> dict[str, Path]:
    """Return the modules of the package and of all satellites: their names -> their files."""
    satellites = [(root / "extras" / folder, name) for name, folder in SATELLITES.items()]
    bases = [(root, "gossip"), *satellites]
    return {
        ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__"): path
        for base, package in bases
        for path in sources(base / package)
    }


def package_of(module: str, path: Path) -> str:
    """Return where the dots of the relative imports of a module count from."""
    return module if path.name == "__init__.py" else module.rpartition(".")[0]


def area_of(module: str) -> str:
    """``gossip.core.peer`` is in "core", ``gossip.errors`` in "errors", ``gossip`` in "gossip",
    ``gossip_lab.bench`` in "gossip_lab", ``gossip_pipelines.protocol`` in "protocol"."""
    if f"{module}.".startswith("gossip_pipelines.protocol."):
        return "protocol"
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "gossip" else parts[0]


def target_area(imported: Imported) -> str:
    """The area an import of ours leads to; ``from gossip import errors`` leads to errors,
    not to the package."""
    whole = f"{imported.module}.{imported.name}"
    return area_of(
        whole if imported.module == "gossip" and imported.name in MAY_IMPORT else imported.module
    )


def violations(root: Path) -> list[str]:
    """Every breach of the house rules below ``root``, as ``file:line: statement: the rule``."""
    found: list[str] = []
    for module, path in modules(root).items():
        relative = path.relative_to(root)
        package = package_of(module, path)
        text = path.read_text()
        tree = parsed(text)
        area = area_of(module)
        if area not in MAY_IMPORT:
            found.append(
                f"{relative}:1: {module}: it has no layer: move it into a package, or give it one"
            )
            continue
        pure = area in PURE_AREAS and module not in FINDERS
        for imported in imports_of(text, package):
            found += [
                f"{relative}:{imported.line}: {imported.statement}: {why}"
                for why in wrong_import(imported, area, package, pure, module)
            ]
        if SUSPECT.search(text):
            found += [f"{relative}:{line}: {what}" for line, what in unsafe_uses(tree)]
        if pure:
            found += [f"{relative}:{line}: {what}" for line, what in impure_uses(tree, area)]
    return found


def wrong_import(
    imported: Imported, area: str, package: str, pure: bool, module: str
) -> Iterator[str]:
    top = imported.module.split(".")[0]
    yield from unsafe_import(imported)
    leads_to = {imported.module, f"{imported.module}.{imported.name}"}
    if (
        imported.at_module_level
        and not COMPILED.fullmatch(module)
        and any(COMPILED.fullmatch(name) for name in leads_to)
    ):
        yield "that module comes with the extra [fast]: import it inside the function that needs it"
    if top in {"gossip", *SATELLITES}:
        yield from wrong_import_of_ours(imported, area, package)
    elif top in sys.stdlib_module_names:
        if pure:
            yield from impure_import(imported, area)
    elif top not in OURS:  # said by unsafe_import
        yield from wrong_package(imported, area, module)


def wrong_import_of_ours(imported: Imported, area: str, package: str) -> Iterator[str]:
    target = target_area(imported)
    if target != area and target not in MAY_IMPORT[area]:
        allowed = ", ".join(sorted(MAY_IMPORT[area])) or "nothing of ours"
        yield f"{area} may not import from {target} (it may: {allowed})"
    sibling = imported.module == package or imported.module.rpartition(".")[0] == package
    if not imported.level and sibling and package != "gossip":
        yield (
            "a sibling is imported relatively: from ."
            + imported.module.removeprefix(package).lstrip(".")
            + " import ..."
        )
    if imported.level > 1:
        yield "what is outside the folder is imported by its full name"


def impure_import(imported: Imported, area: str) -> Iterator[str]:
    top = imported.module.split(".")[0]
    if top == "random":
        if imported.name not in {"", SEEDED}:
            yield (
                f"{area} may take only the class Random, seeded; the module's functions share one "
                "hidden state"
            )
    elif top not in PURE:
        yield f"{area} does no input or output: {top} is not on its list"


def wrong_package(imported: Imported, area: str, module: str) -> Iterator[str]:
    top = imported.module.split(".")[0]
    if (adapter := ADAPTERS.fullmatch(module)) and top in adapter.groups():
        return
    if top in OPTIONAL and OPTIONAL[top] == "fast" and COMPILED.fullmatch(module):
        pass
    elif top in OPTIONAL:
        if imported.at_module_level:
            yield (
                f"{top} comes with the extra [{OPTIONAL[top]}]: import it inside the function "
                "that needs it"
            )
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
    whole_module = any(
        imported.module == "random" and not imported.name for imported in imports(tree, "")
    )
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="random"), attr=name) if (
                whole_module and name != SEEDED
            ):
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
            case ast.Attribute(value=ast.Name(id=module), attr=name) if (
                module,
                name,
            ) in UNSAFE_CALLS:
                yield node.lineno, f"{module}.{name}: it unpickles what it reads"
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
                yield node.value.lineno, "allow_pickle=True: nothing is ever unpickled here"


def unsafe_anywhere(folder: Path) -> list[str]:
    """The rules that also hold for tests, examples and benchmarks."""
    found = []
    for path in sources(folder):
        text = path.read_text()
        if not SUSPECT.search(text):
            continue
        tree = ast.parse(text)
        where = path.relative_to(folder.parent)
        for imported in imports(tree, ""):
            found += [
                f"{where}:{imported.line}: {imported.statement}: {why}"
                for why in unsafe_import(imported)
            ]
        found += [f"{where}:{line}: {what}" for line, what in unsafe_uses(tree)]
    return found


# --- circles --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrow:
    """An import from one room into another. A room is a package; beside packages in it, each of its
    modules is a room."""

    of: str
    to: str
    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}: {self.of} -> {self.to}"


def arrows(root: Path) -> list[Arrow]:
    paths = modules(root)
    packages = {module for module, path in paths.items() if path.name == "__init__.py"}
    nested = {package.rpartition(".")[0] for package in packages}

    def room(module: str) -> str:
        parent = module.rpartition(".")[0]
        return module if module in packages or parent in nested else parent

    found = []
    for module, path in paths.items():
        for imported in imports_of(
            path.read_text(), module if module in packages else module.rpartition(".")[0]
        ):
            whole = f"{imported.module}.{imported.name}"
            target = whole if whole in paths else imported.module
            if target not in paths or module.startswith(f"{target}."):
                continue  # foreign; a package's own names, which it takes from its modules
            beside = (
                room(module) == module
                and room(target) == target
                and module.rpartition(".")[0] == target.rpartition(".")[0]
            )
            if room(module) != room(target) and not (beside and not {module, target} & packages):
                where = f"{path.relative_to(root)}:{imported.line}"
                found.append(Arrow(room(module), room(target), where, imported.statement))
    return found


def arrows_of_files(root: Path) -> list[Arrow]:
    """The imports between modules of one folder, lazy ones and those for types among them."""
    paths = {module: path for module, path in modules(root).items() if path.name != "__init__.py"}
    found = []
    for module, path in paths.items():
        package = module.rpartition(".")[0]
        for imported in imports_of(path.read_text(), package):
            whole = f"{imported.module}.{imported.name}"
            target = whole if whole in paths else imported.module
            if target in paths and target.rpartition(".")[0] == package and target != module:
                where = f"{path.relative_to(root)}:{imported.line}"
                found.append(Arrow(module, target, where, imported.statement))
    return found


def circles(found: Sequence[Arrow]) -> list[str]:
    """Every import that is part of a circle."""
    beyond: dict[str, set[str]] = {}
    for arrow in found:
        beyond.setdefault(arrow.of, set()).add(arrow.to)

    def reached(start: str) -> set[str]:
        seen, left = set[str](), [start]
        while left:
            for room in beyond.get(left.pop(), set()) - seen:
                seen.add(room)
                left.append(room)
        return seen

    all_reached = {room: reached(room) for room in beyond}
    return [str(arrow) for arrow in found if arrow.of in all_reached.get(arrow.to, set())]


# --- the picture ----------------------------------------------------------------------------------


def packages_imported(root: Path) -> dict[str, set[str]]:
    """Area -> the areas that it imports from."""
    found: dict[str, set[str]] = {area: set() for area in MAY_IMPORT}
    for module, path in modules(root).items():
        for imported in imports_of(path.read_text(), package_of(module, path)):
            if imported.module.split(".")[0] == "gossip":
                found[area_of(module)].add(target_area(imported))
    return {area: targets - {area} for area, targets in found.items()}


def picture(root: Path) -> str:
    """The packages as a diagram of Mermaid. An arrow that follows from others is left out."""
    arrows_of = packages_imported(root)
    beyond: dict[str, set[str]] = {}

    def reached(area: str) -> set[str]:
        if area not in beyond:
            direct = arrows_of[area]
            beyond[area] = direct.union(*[reached(target) for target in direct])
        return beyond[area]

    lines = [
        f"    {area} --> {target}"
        for layer in (*LAYERS, ("gossip",), SATELLITES)
        for area in layer
        for target in sorted(arrows_of[area])
        if not any(target in reached(other) for other in arrows_of[area])
    ]
    return "\n".join(["flowchart TD", *lines])


# --- faces ----------------------------------------------------------------------------------------

# Packages within a package that are named from outside of it: their names (``names``, ``load``) are
# those of the rules, too.
OPEN = {"gossip.aggregators.attacks", "gossip.aggregators.kernels"}
# Folders that hold nothing but packages have no face.
GROUPS = {"gossip", "gossip.launch", *SATELLITES}


def face_of(target: str, package: str) -> str:
    """The outermost package that holds ``target`` and does not hold ``package``: what others may
    name of it; or ``target``."""
    parts, around = target.split("."), package.split(".")
    at = next(
        (at for at, (one, other) in enumerate(zip(parts, around, strict=False)) if one != other),
        min(len(parts), len(around)),
    )
    while ".".join(parts[: at + 1]) in GROUPS:
        at += 1
    opened = [
        name
        for name in OPEN
        if target.startswith(f"{name}.") and not f"{package}.".startswith(f"{name}.")
    ]
    return opened[0] if opened else target if target in OPEN else ".".join(parts[: at + 1])


def names_of(face: Path) -> set[str]:
    """What a package says that others may take."""
    names: set[str] = set()
    for node in tree_of(face).body:
        typed = (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        )
        for inner in node.body if typed and isinstance(node, ast.If) else [node]:
            match inner:
                case ast.ImportFrom(names=aliases):
                    names |= {alias.asname or alias.name for alias in aliases}
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    names.add(name)
                case (
                    ast.Assign(targets=[ast.Name(id=name)])
                    | ast.AnnAssign(target=ast.Name(id=name))
                ):
                    names.add(name)
    return names


def past_faces(root: Path) -> list[str]:
    """Every import across packages that does not name the package only, as
    ``file:line: statement: the rule``."""
    paths = modules(root)
    found = []
    for module, path in paths.items():
        package = package_of(module, path)
        for imported in imports_of(path.read_text(), package):
            whole = f"{imported.module}.{imported.name}"
            target = whole if whole in paths else imported.module
            if target not in paths or "." not in target or f"{package}.".startswith(f"{target}."):
                continue
            where, face = (
                f"{path.relative_to(root)}:{imported.line}: {imported.statement}",
                face_of(target, package),
            )
            if imported.module.startswith(f"{face}."):
                found.append(
                    f"{where}: another package is imported through its face: from {face} import ..."
                )
            elif (
                imported.name
                and imported.module == face
                and paths[face].name == "__init__.py"
                and imported.name not in names_of(paths[face])
            ):
                found.append(f"{where}: {face} does not say that others may take {imported.name}")
    return found


# --- the repository -------------------------------------------------------------------------------


def test_imports_go_one_way_and_nothing_unsafe_is_used() -> None:
    found = violations(ROOT)
    assert not found, "\n" + "\n".join(found)


BEFORE = "examples/ddp.py:"
"""A script as others write it, before it is converted."""


@pytest.mark.parametrize("folder", ["tests", "examples", "benchmarks"])
def test_nothing_unsafe_is_used_outside_the_package_either(folder: str) -> None:
    found = [line for line in unsafe_anywhere(ROOT / folder) if not line.startswith(BEFORE)]
    assert not found, "\n" + "\n".join(found)


def test_no_test_is_skipped_where_a_package_is_missing() -> None:
    """`make venv` installs all that tests need: what is missing there is a failure. Of the skips
    one is about a GPU, three are about the machine's addresses, three about other libraries, the
    others about who may make network namespaces, and run an sshd or Slurm in them, mount a small
    disk, or limit memory."""
    skips = re.compile(r"\b(importorskip|skipif|skip)\(")
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
        "narrow_link",
        "ray_job",
        "run_trials",
        "slurm_job",
        "ssh_hosts",
        "ssh_third",
        "wan",
    ]
    near = ["cuda", "hosts_command", "launch_run", "other_trackers", "spawn", "zeromq_peers"]
    assert found == [
        *(f"tests/fault/test_{name}.py" for name in hosts),
        *(f"tests/integration/test_{name}.py" for name in near),
    ]


def test_the_three_linked_folders_are_relative_links() -> None:
    for name in sorted(OURS):
        link = ROOT / "gossip" / name
        assert link.is_symlink(), f"{link} is not a symbolic link"
        assert os.readlink(link) == f"../{name}", (
            f"{link} leads to {os.readlink(link)}, not to ../{name}"
        )


def test_every_area_is_read() -> None:
    assert {area_of(module) for module in modules(ROOT)} == set(MAY_IMPORT)


LIMITS = {"C901", "PLR0912", "PLR0913", "PLR0915", "SLF001"}
"""ruff's rules for the size of a function and for what is private."""
EXCEPTIONS_MAX = 25


def exceptions(project: Path) -> list[str]:
    """Where the limits of functions do not hold: a pattern or FILE:LINE, and a code."""
    per_file = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    found = []
    for pattern, codes in per_file["per-file-ignores"].items():
        found += [f"{pattern}: {code}" for code in sorted(LIMITS.intersection(codes))]
    for folder in ("gossip", "extras", "benchmarks", "examples", "tests"):
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


def test_the_count_of_exceptions_sees_entries_and_comments(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.ruff.lint.per-file-ignores]\n"
        '"gossip/a.py" = ["C901", "SLF001", "TID251"]\n'
        '"gossip/core/**" = ["C901", "SLF001"]\n'
    )
    (tmp_path / "gossip").mkdir()
    (tmp_path / "gossip" / "a.py").write_text(
        "def f(): ...  # noqa: C901, PLR0912\ntext = '# noqa: C901'\nx = 1  # noqa: E501\n"
    )
    assert exceptions(tmp_path) == [
        "gossip/a.py: C901",
        "gossip/a.py: SLF001",
        "gossip/core/**: C901",
        "gossip/core/**: SLF001",
        "gossip/a.py:1: C901",
        "gossip/a.py:1: PLR0912",
    ]


def test_packages_are_imported_through_their_faces() -> None:
    found = past_faces(ROOT)
    assert not found, "\n" + "\n".join(found)


def test_neither_packages_nor_files_import_each_other_in_a_circle() -> None:
    found = circles([*arrows(ROOT), *arrows_of_files(ROOT)])
    assert not found, "\n" + "\n".join(found)


def test_the_picture_of_the_packages_shows_their_imports() -> None:
    drawn = picture(ROOT)
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    assert f"```mermaid\n{drawn}\n```" in text, f"docs/architecture.md needs\n{drawn}"


def test_the_picture_leaves_out_what_follows(sound_tree: Path) -> None:
    assert "node --> core" in picture(sound_tree)
    loop = sound_tree / "gossip/node/loop.py"
    loop.write_text(loop.read_text() + "def f():\n    from gossip.transport import pack\n")
    assert "node --> transport" in picture(sound_tree)
    assert "node --> core" not in picture(sound_tree)


# --- the checker ----------------------------------------------------------------------------------

PLANTED = [
    ("gossip/core/rounds/rolling.py", "import zmq", "core may not use the package zmq"),
    ("gossip/core/rounds/rolling.py", "import asyncio", "asyncio is not on its list"),
    ("gossip/core/rounds/rolling.py", "import time", "time is not on its list"),
    (
        "gossip/core/rounds/rolling.py",
        "from datetime import datetime",
        "datetime is not on its list",
    ),
    (
        "gossip/core/rounds/rolling.py",
        "def f():\n    import threading",
        "threading is not on its list",
    ),
    ("gossip/core/rounds/rolling.py", "from os import path", "os is not on its list"),
    ("gossip/core/rounds/rolling.py", "import socket as s", "socket is not on its list"),
    ("gossip/core/rounds/rolling.py", "import torch", "core may not use the package torch"),
    ("gossip/core/rounds/rolling.py", "import numpy as np", "core may not use the package numpy"),
    ("gossip/core/rounds/rolling.py", "from random import shuffle", "only the class Random"),
    ("gossip/core/rounds/rolling.py", "import random\nrandom.random()", "random.random"),
    ("gossip/core/rounds/rolling.py", "x = open('f')", "open()"),
    ("gossip/core/rounds/rolling.py", "x = hash('f')", "hash()"),
    (
        "gossip/core/rounds/rolling.py",
        "from gossip.transport.base import Transport",
        "core may not import from transport",
    ),
    (
        "gossip/core/rounds/rolling.py",
        "from ...transport.base import Transport",
        "core may not import from transport",
    ),
    ("gossip/core/rounds/rolling.py", "from gossip import node", "core may not import from node"),
    ("gossip/core/rounds/rolling.py", "from gossip import init", "core may not import from gossip"),
    ("gossip/core/rounds/rolling.py", "from ..events import Send", "by its full name"),
    (
        "gossip/core/rounds/rolling.py",
        "from gossip.aggregators import mean",
        "core may not import from aggregators",
    ),
    (
        "gossip/core/rounds/rolling.py",
        "from gossip.core.rounds.shard import Shard",
        "a sibling is imported relatively: from .shard",
    ),
    (
        "gossip/core/peer.py",
        "from gossip.core.events import Send",
        "a sibling is imported relatively: from .events",
    ),
    (
        "gossip/core/peer.py",
        "from gossip.transport import Transport",
        "core may not import from transport",
    ),
    ("gossip/somewhere.py", "x = 1", "it has no layer"),
    (
        "gossip/core/rounds/rolling.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
        "may not use the package torch",
    ),
    (
        "gossip/transport/zeromq.py",
        "from gossip.node import Node",
        "transport may not import from node",
    ),
    (
        "gossip/transport/zeromq.py",
        "from gossip.training.session import Session",
        "transport may not import from training",
    ),
    ("gossip/transport/zeromq.py", "from ..errors import Malformed", "by its full name"),
    ("gossip/transport/zeromq.py", "import requests", "may not use the package requests"),
    (
        "gossip/training/session.py",
        "from gossip.launch.cli import main",
        "training may not import from launch",
    ),
    ("gossip/training/session.py", "import pickle", "nothing is ever pickled"),
    ("gossip/training/session.py", "import torch\ntorch.load('f')", "torch.load"),
    ("gossip/training/session.py", "from torch import load", "it unpickles"),
    (
        "gossip/training/session.py",
        "import numpy as np\nnp.load('f', allow_pickle=True)",
        "allow_pickle",
    ),
    ("gossip/training/session.py", "import jinja2", "inside the function"),
    ("gossip/node/loop.py", "import gossip.launch.cli", "node may not import from launch"),
    ("gossip/node/loop.py", "def f(s):\n    return s.recv_pyobj()", "recv_pyobj"),
    ("gossip/node/loop.py", "x = eval('1')", "eval()"),
    ("gossip/node/loop.py", "exec('1')", "exec()"),
    ("gossip/node/loop.py", "import aggregators", "a user's own aggregators.py would shadow it"),
    (
        "gossip/errors.py",
        "from gossip.core.messages import PeerId",
        "errors may not import from core",
    ),
    (
        "gossip/node/loop.py",
        "def f():\n    from gossip.training import Session",
        "node may not import from training",
    ),
    (
        "gossip/node/loop.py",
        "from gossip_lab.simulation import run",
        "node may not import from gossip_lab",
    ),
    (
        "gossip/vectors/finite.py",
        "from gossip.ipc import Channel",
        "vectors may not import from ipc",
    ),
    (
        "aggregators/means.py",
        "from gossip.node import Node",
        "aggregators may not import from node",
    ),
    (
        "aggregators/means.py",
        "from gossip.core.messages import PeerId",
        "aggregators may not import from core",
    ),
    (
        "aggregators/means.py",
        "from gossip.aggregators.base import rule",
        "a sibling is imported relatively: from .base",
    ),
    ("aggregators/means.py", "import zmq", "aggregators may not use the package zmq"),
    ("aggregators/means.py", "def f():\n    import numba", "aggregators may not use numba"),
    ("aggregators/kernels/fast.py", "import numba", "inside the function"),
    (
        "aggregators/kernels/fast.py",
        "from .compiled_sums import gram",
        "comes with the extra [fast]",
    ),
    ("aggregators/kernels/fast.py", "from . import lanes", "comes with the extra [fast]"),
    ("topologies/rings.py", "import torch", "topologies may not use the package torch"),
    ("topologies/rings.py", "import random\nrandom.choice([1])", "random.choice"),
    (
        "topologies/rings.py",
        "from gossip.aggregators import mean",
        "topologies may not import from aggregators",
    ),
    (
        "launch/cli/commands.py",
        "from launch.cli import main",
        "a user's own launch.py would shadow it",
    ),
]

SOUND = {
    "gossip/errors.py": "import difflib\n",
    "gossip/core/rounds/rolling.py": (
        "import random\nfrom gossip.errors import GossipError\n"
        "from gossip.core.events import Send\nfrom gossip.topologies import rolling\nfrom .shard "
        "import Shard\nrandom.Random(1)\n"
    ),
    "gossip/core/peer.py": "from .events import Send\nfrom .rounds import RollingRounds\n",
    "gossip/core/events.py": "from dataclasses import dataclass\n",
    "gossip/transport/zeromq.py": (
        "import zmq, time\nfrom gossip.core import Send\nfrom .base import Transport\n"
    ),
    "gossip/training/session.py": (
        "import os, torch\nfrom gossip.transport import pack\nfrom gossip.node import main\n"
        "def f(model):\n    import jinja2\n    model.eval()\n"
    ),
    "gossip/node/loop.py": (
        "import torch\nfrom gossip.core import Peer\nfrom gossip.aggregators import mean\n"
    ),
    "aggregators/means.py": (
        "import torch\nfrom gossip.errors import ConfigError\nfrom .base import rule\n"
    ),
    "aggregators/kernels/lanes.py": "import numba, llvmlite\n",
    "aggregators/kernels/compiled_sums.py": "import numba\nfrom .lanes import add\n",
    "aggregators/kernels/fast.py": "def f():\n    from .compiled_sums import gram\n",
    "topologies/rings.py": "from gossip.errors import BadTopology\nfrom .base import topology\n",
    "topologies/random_k.py": "from random import Random\nrandom = Random(1)\nrandom.choice([1])\n",
    "topologies/finding.py": "import importlib.util, sys\nfrom pathlib import Path\n",
    "gossip/vectors/finite.py": "import numpy\n",
    "launch/cli/commands.py": (
        "import typer\nfrom gossip.node import main\nfrom .local import run\n"
    ),
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
def test_the_checker_names_file_line_and_rule_of_a_breach(
    sound_tree: Path, file: str, planted: str, why: str
) -> None:
    path = sound_tree / file
    before = path.read_text() if path.exists() else ""
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

    assert [line.split(":")[:2] for line in found] == [
        ["examples/train.py", "1"],
        ["examples/train.py", "2"],
    ]


CIRCLE = {
    "gossip/__init__.py": "",
    "gossip/a/__init__.py": "from .one import x\n",
    "gossip/a/one.py": "from gossip.b import y\n",
    "gossip/b/__init__.py": "from .two import y\n",
    "gossip/b/two.py": "",
    "gossip/c/__init__.py": "",
    "gossip/c/data.py": "",
    "gossip/c/inner/__init__.py": "",
    "gossip/c/inner/three.py": "from gossip.c.data import z\n",
    "gossip/c/whole.py": "from .inner import w\nfrom gossip.a import x\n",
}


def test_a_circle_of_files_is_named_with_file_and_line(tmp_path: Path) -> None:
    folder = tmp_path / "gossip" / "a"
    folder.mkdir(parents=True)
    (folder / "one.py").write_text("from .two import x\n")
    (folder / "two.py").write_text("def f():\n    import gossip.a.three\n")
    (folder / "three.py").write_text("x = 1\n")
    assert circles(arrows_of_files(tmp_path)) == []
    (folder / "three.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .one import f\n"
    )
    found = circles(arrows_of_files(tmp_path))
    assert [line.partition(": ")[0] for line in sorted(found)] == [
        "gossip/a/one.py:1",
        "gossip/a/three.py:3",
        "gossip/a/two.py:2",
    ]


@pytest.mark.parametrize(
    ("file", "planted"),
    [
        ("gossip/b/two.py", "def f():\n    from gossip.a import x"),
        ("gossip/b/two.py", "from gossip.c.whole import v"),
        (
            "gossip/c/data.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .inner.three import w",
        ),
    ],
)
def test_a_circle_of_packages_is_named_with_file_and_line(
    tmp_path: Path, file: str, planted: str
) -> None:
    for name, text in CIRCLE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert circles(arrows(tmp_path)) == []
    (tmp_path / file).write_text(planted + "\n")

    found = circles(arrows(tmp_path))

    assert [line for line in found if line.startswith(f"{file}:{planted.count(chr(10)) + 1}: ")], (
        found
    )


FACES = {
    "gossip/__init__.py": "",
    "gossip/core/__init__.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import events as events\n"
        "    from .rounds import Rolling as Rolling\n"
    ),
    "gossip/core/events.py": "",
    "gossip/core/peer.py": "from .events import Send\nfrom .rounds import Rolling\n",
    "gossip/core/rounds/__init__.py": "from .rolling import Rolling as Rolling\n",
    "gossip/core/rounds/rolling.py": (
        "from gossip.core.events import Send\nfrom .shard import Shard\n"
    ),
    "gossip/core/rounds/shard.py": "",
    "gossip/node/__init__.py": "",
    "gossip/node/loop.py": (
        "from gossip.core import Rolling, events\nfrom gossip.errors import Refused\n"
    ),
    "gossip/errors.py": "",
    "gossip/aggregators/__init__.py": "",
    "gossip/aggregators/attacks/__init__.py": "from .kinds import names as names\n",
    "gossip/aggregators/attacks/kinds.py": "",
}


@pytest.mark.parametrize(
    ("file", "planted", "why"),
    [
        ("gossip/node/loop.py", "from gossip.core.events import Send", "from gossip.core import"),
        (
            "gossip/node/loop.py",
            "def f():\n    from gossip.core.rounds.rolling import Rolling",
            "from gossip.core import",
        ),
        ("gossip/node/loop.py", "import gossip.core.events", "from gossip.core import"),
        (
            "gossip/node/loop.py",
            "from gossip.core import peer",
            "gossip.core does not say that others may take peer",
        ),
        (
            "gossip/node/loop.py",
            "from gossip.core import Send",
            "gossip.core does not say that others may take Send",
        ),
        (
            "gossip/core/peer.py",
            "from .rounds.rolling import Rolling",
            "from gossip.core.rounds import",
        ),
        (
            "gossip/core/rounds/rolling.py",
            "from gossip.node.loop import Node",
            "from gossip.node import",
        ),
        (
            "gossip/node/loop.py",
            "from gossip.aggregators.attacks.kinds import names",
            "from gossip.aggregators.attacks import",
        ),
    ],
)
def test_an_import_past_a_face_is_named_with_file_and_line(
    tmp_path: Path, file: str, planted: str, why: str
) -> None:
    for name, text in FACES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    sound = "from gossip.aggregators.attacks import names\n"
    (tmp_path / "gossip/node/spec.py").write_text(sound)
    assert past_faces(tmp_path) == []
    before = (tmp_path / file).read_text()
    (tmp_path / file).write_text(before + planted + "\n")

    (found,) = past_faces(tmp_path)

    assert found.startswith(f"{file}:{(before + planted).count(chr(10)) + 1}: ")
    assert why in found


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
