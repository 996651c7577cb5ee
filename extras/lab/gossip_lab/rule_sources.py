"""Digest of all source files that affect the result of a trial: its rule, a user's attack, and the
training code."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from modulefinder import ModuleFinder
from pathlib import Path

import gossip

TRAINING = (
    *("aggregators", "core", "faults", "node", "topologies", "vectors"),
    *("training/feedback.py", "launch/demo/digits.py"),
)
"""Packages and modules of gossip that affect the result of a trial."""
LAB = (
    *("playground", "simulation/campaign", "simulation/world"),
    *("clusters.py", "data_sets.py", "splits.py"),
    *("bench/encoded.py", "bench/trials.py", "bench/trial_world.py"),
)
"""Packages and modules of this distribution that affect the result of a trial."""
NOT_PLAYED = ("engines", "command.py", "page.py", "sweeps.py", "tables.py")
"""Parts of the playground that affect no trial."""


def digest(rule: str, attack: str = "") -> str:
    """Return a digest of the training code, the files of a rule, and the files of a user's attack.
    ``rule`` is as for ``registry.load``. The digest changes when one of the files changes.

    If the rule is part of a package, all files of the package are included. Packages that the rule
    only imports are not included.
    """
    files = {file for place in _places(rule, attack) for file in _files_of(place)}
    return _digest_of([_training(), *sorted(map(content, files))])


def content(path: Path) -> str:
    """Return the digest of one file of any type, or an empty text if there is no such file."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: blake2b(digest_size=8)).hexdigest()


def _digest_of(contents: Iterable[str]) -> str:
    return blake2b(" ".join(contents).encode(), digest_size=8).hexdigest()


def _places(rule: str, attack: str) -> Iterator[str]:
    """Yield the modules and files in which a rule and an attack are defined, without gossip's
    own."""
    from gossip.aggregators import attacks, registry

    own = attacks.place_of(attack.partition("*")[0])
    for place in (*registry.places(rule), *([own] if own else [])):
        if not place.startswith("gossip."):
            yield place


@functools.cache
def _training() -> str:
    """Return the digest of the training code, which is the same for all trials. The files are read
    once in a process."""
    return _digest_of(map(content, training_files()))


def training_files() -> list[Path]:
    package, lab = Path(gossip.__file__).parent, Path(__file__).parent
    parts = [*(package / part for part in TRAINING), *(lab / part for part in LAB)]
    left_out = [lab / "playground" / name for name in NOT_PLAYED]
    return [
        file
        for part in parts
        for file in ([part] if part.suffix else sorted(part.rglob("*.py")))
        if not any(file.is_relative_to(each) for each in left_out)
    ]


def _files_of(place: str) -> list[Path]:
    """Return the files of the package in which a rule is defined. For a rule in a single file,
    return this file and the files that it imports from its folder."""
    path = Path(place).expanduser().resolve()
    if not place.endswith(".py") and "/" not in place:
        spec = importlib.util.find_spec(place.partition(".")[0])
        if spec is None:
            return []
        if spec.submodule_search_locations:
            folders = map(Path, spec.submodule_search_locations)
            return [file for folder in folders for file in folder.rglob("*.py")]
        path = Path(spec.origin or "")
        if "site-packages" in path.parts:
            return [path]
    finder = ModuleFinder(path=[str(path.parent)])
    try:
        finder.run_script(str(path))
    except (OSError, SyntaxError, ValueError):
        return [path]  # missing or not Python: loading the rule shows the error
    found = [getattr(module, "__file__", None) for module in finder.modules.values()]
    return [Path(file) for file in found if file]
