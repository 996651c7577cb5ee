"""Checks a release, as a stranger would meet it: `make release-check`.

From a fresh clone of what is committed it builds all packages, installs them into fresh virtual
environments of each Python there is, runs the demo and the quick tests there, and checks links,
metadata and licences. One line a step; the first that fails ends it with exit code 1.

Only torch and what it needs are kept, one folder a Python, because they are large."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from functools import partial
from pathlib import Path
from zipfile import ZipFile

import packages
from licences import OF_TORCH, problems, table_of
from packages import NOWHERE, PACKAGES, ROOT

VERSIONS = ("3.11", "3.12", "3.13")
COMMANDS = ("bench", "simulate", "plan", "condor", "kubernetes")
"""Commands of the packages in extras/. ``gossip --help`` lists those that are installed."""
OF_DEVELOPERS = {"dev", "docs", "test"}
"""Extras that no user needs."""
REQUIRED = ("Author", "Keywords", "Project-URL", "License-Expression", "License-File", "Classifier")
LINK = re.compile(r"\]\((?!https?://)([^)\s]*)\)")
LINES = 30
"""Number of lines of a failed command that are shown."""


class Failure(Exception):
    """A step that failed, with the cause."""


@dataclass
class Release:
    """What is checked, and the folder to do it in.

    Attributes:
        cache: Folder of torch, which outlives the check.
        source: Address of the repository.
        index: Index to install torch from; empty: the default one.
        licences: Distribution -> its licence, of all that was installed.
    """

    work: Path
    cache: Path
    source: str
    index: str
    licences: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.work / "clone"

    @property
    def dist(self) -> Path:
        return self.work / "dist"

    def built(self, package: str, kind: str) -> Path:
        """Return the wheel (``.whl``) or the sdist (``.tar.gz``) of a package."""
        (path,) = self.dist.glob(f"{package.replace('-', '_')}-*{kind}")
        return path


def call(*command: str | Path, cwd: Path, timeout: float = 900.0) -> str:
    """Run a command in a clean environment. Returns its output. Raises: Failure: It failed."""
    left_out = ("GOSSIP_", "PYTHON", "VIRTUAL_ENV", "MAKE", "MFLAGS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**kept, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode:
        end = "\n".join(done.stdout.splitlines()[-LINES:])
        words = " ".join(map(str, command))
        raise Failure(f"exit code {done.returncode} of {words:.200}\n{end}")
    return done.stdout


def pip_install(release: Release, binaries: Path, *words: str | Path) -> None:
    """Run ``pip install`` with the versions of constraints.txt."""
    pip: list[str | Path] = [binaries / "python", "-m", "pip", "install", "--quiet"]
    call(
        *pip,
        "--constraint",
        release.root / "constraints.txt",
        *words,
        cwd=release.work,
        timeout=3600,
    )


# --- the packages ---------------------------------------------------------------------------------


def clone(release: Release) -> str:
    commit = packages.clone(release.root)
    dirty = call("git", "status", "--porcelain", cwd=ROOT)
    return f"commit {commit[:8]}" + ("; what is not committed is not checked" if dirty else "")


def links(release: Release) -> str:
    tests = release.root / "tests" / "test_links.py"
    return call(sys.executable, "-m", "pytest", "-q", tests, cwd=release.root).splitlines()[-1]


def build(release: Release) -> str:
    packages.add_address(release.root, release.source)
    tools = release.work / "tools"
    call(sys.executable, "-m", "venv", tools, cwd=release.work)
    pip_install(release, tools / "bin", "build", "twine", "readme-renderer[md]")
    try:
        found = packages.build(release.root, release.dist, str(tools / "bin" / "python"))
    except subprocess.CalledProcessError as error:
        raise Failure(f"{error}\n{error.stdout}{error.stderr}") from error
    return f"{len(found)} files, {sum(path.stat().st_size for path in found) / 1e6:.1f} MB"


def contents(release: Release) -> str:
    """Compare each wheel with the files of its package, and look for links in the sdists."""
    count = 0
    for name, place in PACKAGES.items():
        folder = release.root / place
        module = "gossip" if place == "." else name.replace("-", "_")
        committed = {
            str(Path(where, file).relative_to(folder))
            for where, _, files in os.walk(folder / module, followlinks=True)
            for file in files
        }
        with ZipFile(release.built(name, ".whl")) as wheel:
            files = {file for file in wheel.namelist() if ".dist-info/" not in file}
        if files != committed:
            lacking, more = sorted(committed - files), sorted(files - committed)
            raise Failure(f"the wheel of {name} lacks {lacking}, and has {more} that is not ours")
        with tarfile.open(release.built(name, ".tar.gz")) as sdist:
            if linked := [file.name for file in sdist if file.issym() or file.islnk()]:
                raise Failure(f"the sdist of {name} has links: {linked}")
        count += len(files)
    return f"{count} files in {len(PACKAGES)} wheels"


def metadata_of(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        (name,) = [file for file in archive.namelist() if file.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def metadata(release: Release) -> str:
    """Check the metadata of each wheel, and its README as a package index shows it."""
    for name in PACKAGES:
        found = metadata_of(release.built(name, ".whl"))
        if lacking := [key for key in REQUIRED if not found.get(key)]:
            raise Failure(f"the metadata of {name} lack {', '.join(lacking)}")
        if relative := LINK.findall(str(found.get_payload())):
            raise Failure(f"links of the README of {name} lead nowhere on an index: {relative}")
        for version in VERSIONS:
            if f"Programming Language :: Python :: {version}" not in found.get_all(
                "Classifier", []
            ):
                raise Failure(f"the metadata of {name} do not name Python {version}")
    twine = release.work / "tools" / "bin" / "twine"
    call(twine, "check", "--strict", *sorted(release.dist.iterdir()), cwd=release.work)
    standin = "; a stand-in for the address of the repository" if release.source == NOWHERE else ""
    return f"{len(PACKAGES)} packages{standin}"


# --- one Python -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interpreter:
    """A Python to install into.

    Attributes:
        version: As in "3.11".
    """

    version: str
    path: Path


def interpreters(wanted: list[str]) -> Iterator[Interpreter | str]:
    """Yield the Pythons that run on this machine, and the versions for which there is none."""
    for version in wanted:
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
        own = [Path(sys.executable)] if version == "{}.{}".format(*sys.version_info) else []
        found = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
        for path in [*own, *(Path(each) for each in found if each)]:
            # A shim of pyenv for a version that is not chosen is there, and does not run.
            if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
                yield Interpreter(version, path)
                break
        else:
            yield version


def torch_beside(release: Release, python: Interpreter) -> Path:
    """Install torch and what it needs into a folder, once. Returns its site-packages."""
    (pinned,) = re.findall(
        r"^torch==.*$", (release.root / "constraints.txt").read_text("utf-8"), re.MULTILINE
    )
    folder = release.cache / f"{pinned}-python{python.version}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        call(python.path, "-m", "venv", folder, cwd=release.work)
        index = ["--index-url", release.index] if release.index else []
        pip_install(release, folder / "bin", *index, pinned)
        (folder / "complete").touch()
    return next(folder.glob("lib/python*/site-packages"))


def environment(release: Release, python: Interpreter, name: str) -> Path:
    """Make a virtual environment with nothing but torch. Returns its folder ``bin``."""
    torch = torch_beside(release, python)
    folder = release.work / f"{name}-{python.version}"
    call(python.path, "-m", "venv", folder, cwd=release.work)
    (next(folder.glob("lib/python*/site-packages")) / "torch.pth").write_text(f"{torch}\n")
    return folder / "bin"


def install(release: Release, binaries: Path, *what: str | Path) -> None:
    """Install packages and what they need, and check that all fits together."""
    pip_install(release, binaries, "--find-links", release.dist, *what)
    call(binaries / "python", "-m", "pip", "check", cwd=release.work)


def wheel(release: Release, python: Interpreter) -> str:
    """Install the bare wheel, and play the demo in an empty folder."""
    binaries = environment(release, python, "wheel")
    install(release, binaries, release.built("gossip-train", ".whl"))
    empty = release.work / f"empty-{python.version}"
    empty.mkdir()
    call(binaries / "python", "-m", "gossip", "--version", cwd=empty)
    demo = call(binaries / "gossip", "demo", cwd=empty)
    return " ".join(demo.splitlines()[-1].split())


def satellites(release: Release, python: Interpreter) -> str:
    """Install the wheels of extras/ beside it, and look for their commands."""
    binaries = release.work / f"wheel-{python.version}" / "bin"
    install(release, binaries, *(release.built(each, ".whl") for each in [*PACKAGES][1:]))
    listed = call(binaries / "gossip", "--help", cwd=release.work)
    if lacking := [
        each for each in COMMANDS if not re.search(rf"^  {each} ", listed, re.MULTILINE)
    ]:
        raise Failure(f"gossip --help does not list {', '.join(lacking)}")
    call(binaries / "gossip", "simulate", "--seeds", "2", cwd=release.work)
    return f"{len(PACKAGES)} packages, {len(COMMANDS)} commands"


def files_of(binaries: Path) -> set[str]:
    code = (
        "from importlib.metadata import files\n"
        "print(*(path for name in {names} for path in files(name)), sep='\\n')"
    )
    names = tuple(PACKAGES)
    printed = call(binaries / "python", "-c", code.format(names=names), cwd=binaries)
    return {
        path
        for path in printed.splitlines()
        if "__pycache__" not in path and ".dist-info/" not in path
    }


def sdists(release: Release, python: Interpreter) -> str:
    """Install the sdists, which is to give the same files."""
    binaries = environment(release, python, "sdist")
    for name in PACKAGES:
        install(release, binaries, release.built(name, ".tar.gz"))
    first, second = files_of(release.work / f"wheel-{python.version}" / "bin"), files_of(binaries)
    if first != second:
        raise Failure(f"wheels and sdists install other files: {sorted(first ^ second)}")
    return f"{len(second)} files, as from the wheels"


def licences(release: Release, python: Interpreter) -> str:
    """Install all that users can ask for, and check the licences of it."""
    binaries = release.work / f"sdist-{python.version}" / "bin"
    for name in PACKAGES:
        path = release.built(name, ".whl")
        extras = {*metadata_of(path).get_all("Provides-Extra", [])} - OF_DEVELOPERS
        install(release, binaries, f"{path}[{','.join(sorted(extras))}]" if extras else path)
    printed = call(binaries / "python", Path(__file__).with_name("licences.py"), cwd=release.work)
    found = dict(line.split("\t") for line in printed.splitlines())
    release.licences |= found
    if wrong := problems(found):
        raise Failure("\n".join(wrong))
    gpu = sum(OF_TORCH.match(name) is not None for name in found)
    return f"{len(found)} distributions, {gpu} of them from torch's build for GPUs"


def quick_tests(root: Path) -> list[str]:
    """Return the files that `make quick` runs."""
    text = (root / "Makefile").read_text("utf-8")
    (beyond,) = re.findall(r"^BEYOND_QUICK := (.*)$", text, re.MULTILINE)
    pattern = re.compile(beyond.replace("$$", "$"), re.MULTILINE)
    paths = sorted((root / "tests" / "unit").glob("test_*.py"))
    return [str(path) for path in paths if not pattern.search(path.read_text("utf-8"))]


def tests(release: Release, python: Interpreter) -> str:
    """Run the quick tests of the sdist against what the wheels installed."""
    binaries = release.work / f"wheel-{python.version}" / "bin"
    folder = release.work / f"tests-{python.version}"
    with tarfile.open(release.built("gossip-train", ".tar.gz")) as sdist:
        sdist.extractall(folder, filter="data")
    (root,) = folder.iterdir()
    install(release, binaries, f"{release.built('gossip-train', '.whl')}[test]")
    pip_install(release, binaries, "--no-deps", "byzfl")  # as `make venv` does
    pip_install(release, binaries, "scipy")
    where = call(binaries / "python", "-c", "import gossip; print(gossip.__file__)", cwd=folder)
    if not Path(where.strip()).is_relative_to(binaries.parent):
        raise Failure(f"the tests would run with {where.strip()}, which no wheel has installed")
    # As a command: python -m pytest would import the gossip of the folder that it runs in.
    words = ["-q", "-p", "no:cacheprovider", "--numprocesses", "2", *quick_tests(root)]
    return call(binaries / "pytest", *words, cwd=root).splitlines()[-1]


Step = Callable[[Release], str]
OF_THE_PACKAGES: tuple[Step, ...] = (clone, links, build, contents, metadata)
OF_A_PYTHON = (wheel, satellites, tests, sdists, licences)


def steps(wanted: list[str]) -> Iterator[tuple[str, Step | None]]:
    """Yield the name of each step and what it does; None: there is no such Python."""
    for step in OF_THE_PACKAGES:
        yield step.__name__, step
    for python in interpreters(wanted):
        if isinstance(python, str):
            yield python, None
            continue
        for of_python in OF_A_PYTHON:
            name = f"{python.version} {of_python.__name__}"
            yield name, partial(of_python, python=python)


def play(release: Release, wanted: list[str]) -> tuple[list[str], bool]:
    """Run the steps until one fails. Returns their lines, and whether all succeeded."""
    rows: list[str] = []

    def note(word: str, name: str, seconds: float, told: str) -> None:
        rows.append(f"{word:4}  {name:16} {seconds:6.1f} s  {told}")
        print(rows[-1], flush=True)

    for name, step in steps(wanted):
        begun = time.monotonic()
        if step is None:
            note("skip", name, 0.0, f"there is no python{name} on this machine")
            continue
        try:
            told = step(release)
        except Failure as failure:
            note("FAIL", name, time.monotonic() - begun, str(failure))
            return rows, False
        note("ok", name, time.monotonic() - begun, told)
    if wanted and len([row for row in rows if row.startswith("skip")]) == len(wanted):
        note("FAIL", "pythons", 0.0, "no package was installed: there is none of these Pythons")
        return rows, False
    return rows, True


def main() -> None:
    """Check a release from a fresh clone."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--pythons", nargs="*", default=[*VERSIONS], metavar="VERSION")
    parser.add_argument("--source", default=NOWHERE, help="address of the repository")
    parser.add_argument("--cache", type=Path, default=ROOT / ".release", help="folder of torch")
    options = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        index = os.environ.get("TORCH_INDEX", "")
        release = Release(Path(folder), options.cache.resolve(), options.source or NOWHERE, index)
        rows, succeeded = play(release, options.pythons)
    print("\nlicences of all that was installed\n" + table_of(release.licences))
    print("\n" + "\n".join(row.split("\n")[0] for row in rows))
    print(f"{'passed' if succeeded else 'FAILED'} after {time.monotonic() - begun:.0f} s")
    sys.exit(0 if succeeded else 1)


if __name__ == "__main__":
    main()
