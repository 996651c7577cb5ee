"""What is installed is what is written: the linked folders are real packages, and a command line
starts without torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINKED = ("aggregators", "topologies", "launch")
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"


def python(*arguments: str, cwd: Path, path: Path | None = None) -> str:
    """Runs this interpreter in ``cwd``; with ``path`` it sees that folder before anything
    installed. Returns what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(path)} if path else {**os.environ}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


# --- start-up -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module", ["gossip", "gossip.errors", "gossip.config", "gossip.launch.cli", "gossip.topologies"]
)
def test_importing_it_does_not_import_torch(module: str, tmp_path: Path) -> None:
    assert (
        python("-c", f"import sys, {module}; print('torch' in sys.modules)", cwd=tmp_path)
        == "False"
    )


def test_python_m_gossip_is_the_command(tmp_path: Path) -> None:
    assert python("-m", "gossip", "--version", cwd=tmp_path).startswith("gossip ")


# --- the distribution -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree to build in, links kept as links,
    so that a build leaves nothing in the repository."""
    copy = tmp_path_factory.mktemp("checkout") / "gossip-train"
    copy.mkdir()
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("gossip", *LINKED):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    name = python("-c", BUILD.format(kind="wheel"), str(out), cwd=checkout).splitlines()[-1]
    return out / name


def modules_of(checkout: Path) -> set[str]:
    """Every module of the checkout, and the data of demo and report, as paths in the package, the
    links followed."""
    return {
        str(Path(where, name).relative_to(checkout))
        for where, _, files in os.walk(checkout / "gossip", followlinks=True)
        for name in files
        if name.endswith((".py", ".gz", ".j2", ".css", ".js")) or name == "py.typed"
    }


def test_the_wheel_holds_the_linked_folders_as_packages(wheel: Path, checkout: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in names if ".dist-info/" not in name} == modules_of(checkout)
    assert {f"gossip/{name}/__init__.py" for name in LINKED} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.parametrize("folder", ["clusters", "lab", "pipelines"])
def test_the_wheel_of_a_satellite_holds_package_and_commands(folder: str, tmp_path: Path) -> None:
    copy, package = tmp_path / folder, f"gossip_{folder}"
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    shutil.copytree(ROOT / "extras" / folder, copy, ignore=ignore)
    ours = {path.relative_to(copy).as_posix() for path in (copy / package).rglob("*.*")}
    name = python("-c", BUILD.format(kind="wheel"), str(tmp_path), cwd=copy).splitlines()[-1]
    with zipfile.ZipFile(tmp_path / name) as archive:
        names = set(archive.namelist())
        [entries] = [name for name in names if name.endswith("/entry_points.txt")]
        declared = archive.read(entries).decode()
    assert {name for name in names if ".dist-info/" not in name} == ours
    assert f"[gossip.commands]\n{folder} = {package}.commands:add_to" in declared


def test_a_wheel_of_the_sdist_is_the_same(wheel: Path, checkout: Path, tmp_path: Path) -> None:
    name = python("-c", BUILD.format(kind="sdist"), str(tmp_path), cwd=checkout).splitlines()[-1]
    with tarfile.open(tmp_path / name) as archive:
        assert not [member.name for member in archive if member.issym() or member.islnk()]
        archive.extractall(tmp_path, filter="data")

    unpacked = tmp_path / name.removesuffix(".tar.gz")
    again = python("-c", BUILD.format(kind="wheel"), str(tmp_path), cwd=unpacked).splitlines()[-1]

    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(tmp_path / again) as second:
        assert set(first.namelist()) == set(second.namelist())


def test_the_code_digest_is_of_the_installed(wheel: Path, checkout: Path, tmp_path: Path) -> None:
    """Hosts compare their code by it, each as it was installed there."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    program = "from gossip.launch.ssh import hostfacts; print(hostfacts.code_digest())"
    installed = python("-c", program, cwd=tmp_path, path=tmp_path)
    assert installed == python("-c", program, cwd=tmp_path, path=checkout)

    with (tmp_path / "gossip/launch/ssh/hostfacts.py").open("a") as file:
        file.write("# another version\n")
    assert python("-c", program, cwd=tmp_path, path=tmp_path) != installed


def test_an_unrelated_aggregators_py_of_a_user_shadows_nothing(wheel: Path, tmp_path: Path) -> None:
    site, project = tmp_path / "site", tmp_path / "project"
    project.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for name in LINKED:
        (project / f"{name}.py").write_text(f"MINE = {name!r}\n")

    printed = python(
        "-c",
        "import aggregators, topologies, launch, gossip.aggregators, gossip.topologies, "
        "gossip.launch.cli.commands\n"
        "print(aggregators.MINE, topologies.MINE, launch.MINE)\n"
        "print(gossip.aggregators.__file__)",
        cwd=project,
        path=site,
    )

    assert printed.splitlines() == [
        "aggregators topologies launch",
        str(site / "gossip" / "aggregators" / "__init__.py"),
    ]
