"""Digest of all sources that a trial's outcome depends on: its rule, the imports of the rule, and
the training itself."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

TRAINING = (
    "gossip_lab.bench.learning",
    "gossip.core.ledger.trust",
    "gossip.launch.demo.digits",
)
"""Modules that train. The trust table and the digits are named separately: they are imported
through the faces of their packages, whose own imports would be the whole core and the whole
demo."""
OURS = (
    "gossip.aggregators",
    "gossip.core.ledger",
    "gossip.core.settings",
    "gossip_lab.bench.data_sets",
    "gossip_lab.bench.models",
    "gossip_lab.bench.splits",
)
"""Modules, with their submodules, that make a difference to an outcome. Other modules of gossip do
not."""
Import = tuple[int, str, tuple[str, ...]]
"""Dots before the name, the name, and what is taken from it: as in
``from ..name import this, that``."""
Module = tuple[str, Path]
"""Name and file; the name of a rule's own file is empty."""
_known: dict[tuple[Module, ...], tuple[tuple[tuple[Path, int, int], ...], str]] = {}


def digest(rule: str, attack: str = "") -> str:
    """Return a digest of all files of a rule, as ``registry.load`` takes it, of a user's attack and
    of the training. It changes when one of the files changes.

    An installed package counts if the rule comes from it, and not if the rule only uses it.
    """
    roots = tuple(_roots(rule, attack))
    before = _known.get(roots)
    if before is not None and all(
        _stamp(path) == (path, time_ns, size) for path, time_ns, size in before[0]
    ):
        return before[1]
    files = sorted(_files(roots))
    found = sorted(_read(*_stamp(path))[0] for path in files)
    whole = blake2b(" ".join(found).encode(), digest_size=8).hexdigest()
    _known[roots] = tuple(_stamp(path) for path in files), whole
    return whole


def content(path: Path) -> str:
    """Return the digest of one file of any type; empty if there is no file."""
    return _content(*_stamp(path)) if path.is_file() else ""


@functools.cache
def _content(path: Path, time_ns: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: blake2b(digest_size=8)).hexdigest()


def _roots(rule: str, attack: str = "") -> Iterator[Module]:
    """The training, and the modules and files that the rule's parts and a user's attack are named
    by."""
    from gossip.aggregators import attacks, registry

    own = attacks.place_of(attack.partition("*")[0])
    for place in (*TRAINING, *registry.places(rule), *([own] if own else [])):
        by_path = place.endswith(".py") or "/" in place
        path = Path(place).expanduser().resolve() if by_path else _file_of(place)
        if path is not None and path.is_file():
            yield "" if by_path else place, path


def _files(roots: Iterable[Module]) -> dict[Path, bool]:
    """Those, and all that they import of their own."""
    found: dict[Path, bool] = {}
    for root in roots:
        waiting = [root]
        while waiting:
            name, path = waiting.pop()
            if path not in found:
                found[path] = True
                waiting += [
                    module for module in _imported(name, path, root) if _matters(*module, root[0])
                ]
    return found


def _imported(name: str, path: Path, root: Module) -> Iterator[Module]:
    """Modules that a module imports, anywhere in its text.
    What lies beside a rule's file comes first."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for dots, module, parts in _read(*_stamp(path))[1]:
        if dots:
            around = package.split(".")
            if dots > len(around):
                continue
            module = ".".join([*around[: len(around) - dots + 1], *([module] if module else [])])
        for candidate in (module, *(f"{module}.{part}" for part in parts)):
            found = (None if root[0] else _beside(candidate, root[1])) or _file_of(candidate)
            if found is not None:
                yield candidate, found


def _beside(name: str, path: Path) -> Path | None:
    """A module in the folder of a rule's file, which that may have put on the path itself."""
    place = path.parent.joinpath(*name.split("."))
    return next(
        (file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None
    )


def _matters(name: str, path: Path, root: str) -> bool:
    top = name.partition(".")[0]
    if top == "gossip":
        return any(name == ours or name.startswith(f"{ours}.") for ours in OURS)
    return top == root.partition(".")[0] or not _is_installed(path)


def _is_installed(path: Path) -> bool:
    """Whether it is Python's or a package's that pip or the system has put there."""
    if "site-packages" in path.parts or "dist-packages" in path.parts:
        return True
    return any(
        path.is_relative_to(Path(sysconfig.get_path(name)).resolve())
        for name in ("stdlib", "platstdlib")
    )


def _file_of(module: str) -> Path | None:
    """Its Python file; None when it is not there or has none.
    Of foreign packages no part is imported."""
    top = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
        if spec is None or (top != module and not spec.submodule_search_locations):
            return None
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin).resolve()


def _stamp(path: Path) -> tuple[Path, int, int]:
    """The path, when the file was changed, and its size; (-1, -1) when it is gone."""
    try:
        about = path.stat()
    except OSError:
        return path, -1, -1
    return path, about.st_mtime_ns, about.st_size


@functools.cache
def _read(path: Path, time_ns: int, size: int) -> tuple[str, tuple[Import, ...]]:
    """The digest of a file, and what it imports. What is no Python is nothing but its content."""
    content = path.read_bytes()
    try:
        imports = tuple(_imports(ast.parse(content)))
    except (SyntaxError, ValueError):
        imports = ()
    return blake2b(content, digest_size=8).hexdigest(), imports


def _imports(tree: ast.AST) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import(names):
                yield from ((0, alias.name, ()) for alias in names)
            case ast.ImportFrom(module, names, level):
                yield level or 0, module or "", tuple(alias.name for alias in names)
            case ast.If(ast.Name("TYPE_CHECKING"), _, otherwise):
                for line in otherwise:
                    yield from _imports(ast.Module([line], []))
            case _:
                yield from _imports(node)
