"""Program of peers: a script, or a module as for ``python -m``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.machinery import PathFinder
from pathlib import Path

from gossip.errors import ConfigError

MODULE = "-m"
NAMED_MAX = 8
"""Maximum number of scripts that an error message suggests."""


@dataclass(frozen=True, slots=True)
class Program:
    """Script or module, with its arguments.

    Attributes:
        script: Path of the script, or full name of the module.
        module: Whether the program is a module.
    """

    script: str
    arguments: tuple[str, ...] = ()
    module: bool = False

    @classmethod
    def of(cls, words: Sequence[str]) -> Program:
        """Parse the words that follow ``python`` in a command: ``train.py --lr 0.1``, ``-m
        package.train``."""
        if words[0] != MODULE:
            return cls(words[0], tuple(words[1:]))
        if len(words) < 2:
            raise ConfigError("-m has no module", "name the module: -m package.train")
        return cls(words[1], tuple(words[2:]), module=True)

    @classmethod
    def typed(cls, module: bool, script: str, arguments: Sequence[str] | None) -> Program:
        """Return the program that the options and arguments of a command name."""
        return cls.of([*([MODULE] if module else []), script, *(arguments or ())])

    @property
    def what(self) -> tuple[str, ...]:
        """The command without the arguments of the program: ``train.py``, or ``-m
        package.train``."""
        return (MODULE, self.script) if self.module else (self.script,)

    @property
    def words(self) -> list[str]:
        """Words that follow ``python`` in the command."""
        return [*self.what, *self.arguments]

    @property
    def command(self) -> list[str]:
        """Command with which a peer runs the program. Its output is unbuffered, so that it arrives
        as it is written."""
        return [sys.executable, "-u", *self.words]

    @property
    def name(self) -> str:
        """Default name of a run of this program."""
        if not self.module:
            return Path(self.script).stem
        parts = [part for part in self.script.split(".") if part != "__main__"]
        return parts[-1] if parts else self.script

    @property
    def file(self) -> Path | None:
        """File that is run; None if it does not exist. A module is searched as by ``python -m``,
        first in the working directory, but without importing its packages."""
        if self.module:
            return _file_of_module(self.script)
        return Path(self.script) if os.path.isfile(self.script) else None

    @property
    def first_folder(self) -> str | None:
        """First folder from which Python imports: the folder of the script, or for a module the
        working directory. None if ``PYTHONSAFEPATH`` disables this."""
        if os.environ.get("PYTHONSAFEPATH"):
            return None
        return os.getcwd() if self.module else os.path.dirname(os.path.realpath(self.script))

    def shadowing(self, names: Iterable[str]) -> dict[str, str]:
        """Return the files of ``first_folder`` that Python imports instead of the modules
        ``names``, by module."""
        if self.first_folder is None:
            return {}
        found = {}
        for name in {*names} - {"__main__", *sys.builtin_module_names}:
            spec = None if "." in name else PathFinder.find_spec(name, [self.first_folder])
            own = getattr(sys.modules.get(name), "__file__", None)
            # A folder without __init__.py has no origin, and is imported only if there is no such
            # module.
            if spec is not None and spec.origin is not None and spec.origin != own:
                found[name] = spec.origin
        return found

    @property
    def folder(self) -> Path:
        """Folder of the code. Its git commit is recorded."""
        file = self.file
        return file.resolve().parent if file is not None else Path.cwd()

    def check(self) -> None:
        """Check that the program exists and can import gossip. Raises: ConfigError: It does not, or
        a file next to it hides gossip."""
        if self.file is not None:
            for name, file in self.shadowing(["gossip"]).items():
                raise ConfigError(
                    f"{file}: the script's import {name} would import this file",
                    "rename it: no module next to the script may have this name",
                )
            return
        if self.module:
            raise ConfigError(*_no_module(self.script))
        script = Path(self.script)
        if os.path.isdir(script):
            raise ConfigError(f"{script} is a folder, not a script", "gossip run -n 4 train.py")
        if script.name.startswith("python"):
            raise ConfigError(
                f"there is no script {script}", f"leave {script} out: gossip starts Python itself"
            )
        raise ConfigError(f"there is no script {script}", _scripts_in(script))


def _scripts_in(missing: Path) -> str:
    """Return a hint about a missing script: the Python file with the most similar name, or all
    Python files in the folder."""
    folder = missing.parent
    there = sorted(path.name for path in folder.glob("*.py")) if os.path.isdir(folder) else []
    if not there:
        return f"there is no Python file in {os.path.abspath(folder)}: go to your script's folder"
    if near := get_close_matches(missing.name, there, 1):
        return f"did you mean {folder / near[0]}?"
    more = f" and {len(there) - NAMED_MAX} more" if len(there) > NAMED_MAX else ""
    return f"in that folder: {', '.join(there[:NAMED_MAX])}{more}"


def _no_module(name: str) -> tuple[str, str]:
    if name.endswith(".py"):
        return f"-m takes the name of a module, and {name} is a file", f"gossip run {name}"
    return (
        f"there is no module {name} to run, neither in {Path.cwd()} nor installed",
        "name it as for python -m; a package needs a __main__.py",
    )


def _file_of_module(name: str) -> Path | None:
    path = [str(Path.cwd()), *(entry for entry in sys.path if entry)]
    found, parts = None, name.split(".")
    for part in parts:
        # Search by the last part of the name, because find_spec with the full name would import the
        # packages.
        found = PathFinder.find_spec(part, path) if part else None
        if found is None:
            return None
        path = list(found.submodule_search_locations or ())
    if found is not None and found.submodule_search_locations is not None:
        return _file_of_module(f"{name}.__main__") if parts[-1] != "__main__" else None
    return Path(found.origin) if found is not None and found.origin else None
