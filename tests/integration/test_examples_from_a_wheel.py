"""The examples, each as a user has it: the package from a wheel, nothing of the repository beside
it. Each takes less than two minutes on two processors. `make test-examples` runs them, and those of
other libraries where these are installed; make test runs train.py and from_ddp.py."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

import pytest
import shown_commands
from effort import effort

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TIMEOUT_S = 280.0
MNIST = os.environ.get("GOSSIP_TEST_DATA", "")
LINKED = ("aggregators", "topologies", "launch")
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
NEEDS = {
    "lightning_trainer.py": "lightning",
    "transformers_trainer.py": "transformers",
    "accelerate_loop.py": "accelerate",
}
"""Example -> the library that it is about."""
COMMANDS = {
    "train.py": "run -n 2 train.py --epochs 10",
    "from_ddp.py": "run -n 2 from_ddp.py --epochs 6",
    "my_rules.py": "run -n 4 --aggregator my_rules.py:midpoint train.py --epochs 10",
    "my_topology.py": "run -n 4 --topology my_topology.py:hypercube train.py --epochs 10",
    "my_attack.py": "bench robustness --rounds 5 --seeds 1 --rules mean "
    "--attacks my_attack.py:creep",
    "char_transformer.py": "run -n 2 char_transformer.py --steps 100",
    "pipeline.py": "run -n 1 pipeline.py --steps 41",
    "adapters.py": "run -n 2 adapters.py",
    "mnist_cnn.py": f"run -n 2 mnist_cnn.py --epochs 2 --data {shlex.quote(MNIST or '.')}",
    "lightning_trainer.py": "run -n 2 lightning_trainer.py",
    "transformers_trainer.py": "run -n 2 transformers_trainer.py",
    "accelerate_loop.py": "run -n 2 accelerate_loop.py",
}
"""Example -> how it is started."""
SAYS = {
    "train.py": r"accuracy 0\.9",
    "from_ddp.py": r"epoch 5: accuracy 0\.[89]",
    "my_rules.py": r"accuracy 0\.9",
    "my_topology.py": r"accuracy 0\.9",
    "my_attack.py": r"my_attack.py:creep",
    "char_transformer.py": r"step 50: loss [01]\.",
    "pipeline.py": r"step 40: loss [01]\..*the last of 1 stages",
    "adapters.py": (
        r"4392 of 89394 parameters exchanged; accuracy before 0\.[01]\d+\n.*accuracy 0\.[789]"
    ),
    "mnist_cnn.py": r"epoch 1: accuracy 0\.[89]" if MNIST else r"there is no mnist\.npz in \.",
    "lightning_trainer.py": r"planned 128 made 128",
    "transformers_trainer.py": r"planned 128 made 128",
    "accelerate_loop.py": r"planned 64 made 64",
}
"""Example -> what it says when it has gone well."""
HERE = [
    name
    for name in COMMANDS
    if name not in NEEDS or importlib.util.find_spec(NEEDS[name]) is not None
]


def test_each_example_has_a_command_and_a_place_on_the_page() -> None:
    there = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    assert there == {*COMMANDS, "ddp.py", "two_hosts.sh"}
    assert COMMANDS.keys() == SAYS.keys()
    page = (ROOT / "docs" / "tour.md").read_text()
    assert {*re.findall(r"\(\.\./examples/([\w.]+)\)", page)} == there


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_head_of_an_example_says_how_to_start_it(name: str) -> None:
    head = (EXAMPLES / name).read_text().split('"""')[1].replace("\\\\\n", " ")
    lines = re.findall(r"^(?:gossip|python) .*$", head, re.MULTILINE)
    assert lines, "how is it started?"
    for line in lines:
        assert shown_commands.complaint(line) == "", line


def test_the_example_for_two_hosts_is_a_script_of_commands_that_exist() -> None:
    script = (EXAMPLES / "two_hosts.sh").read_text()
    assert (
        subprocess.run(["bash", "-n", str(EXAMPLES / "two_hosts.sh")], check=False).returncode == 0
    )
    lines = re.findall(r"^gossip .*$", script, re.MULTILINE)
    for line in lines:
        given = line.replace("$first,$second", "a,b").replace('"$@"', "train.py")
        assert shown_commands.complaint(given) == "", given
    assert len(lines) == 2


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but what is in the wheel."""
    place = tmp_path_factory.mktemp("wheel")
    copy = place / "checkout"
    copy.mkdir()
    for name in ("gossip", *LINKED):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    done = ended([sys.executable, "-c", BUILD, str(place)], copy)
    with ZipFile(place / done.splitlines()[-1]) as wheel:
        wheel.extractall(place / "installed")
    return place / "installed"


def ended(command: Sequence[str], folder: Path, path: Path | None = None) -> str:
    """What a command has printed that has ended well; with ``path`` modules are found there
    first."""
    environment = {**os.environ, "PYTHONPATH": str(path)} if path else {**os.environ}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0 or "no mnist.npz" in done.stdout, done.stdout
    return done.stdout


@pytest.mark.parametrize("name", effort([], sorted(HERE)))
def test_an_example_runs_from_a_wheel(name: str, installed: Path, tmp_path: Path) -> None:
    for path in EXAMPLES.glob("*.py"):
        shutil.copy(path, tmp_path)
    where = ended(
        [sys.executable, "-c", "import gossip; print(gossip.__file__)"], tmp_path, installed
    )
    assert Path(where.strip()).is_relative_to(installed)
    words = [sys.executable, "-m", "gossip.launch.cli", *shlex.split(COMMANDS[name])]
    said = ended(words, tmp_path, installed)
    assert re.search(SAYS[name], said, re.DOTALL), said
