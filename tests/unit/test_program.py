"""What peers run: where it is, what it is called, and what is said of one that is not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import gossip
from gossip.errors import ConfigError
from gossip.launch.local.program import Program


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script; a package with two modules, one of which runs as the package; a plain folder."""
    for path in ("train.py", "lab/__init__.py", "lab/train.py", "lab/big/__main__.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("raise AssertionError('nobody runs this')\n")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "name", "file"),
    [
        (["train.py", "-m", "x"], "train", "train.py"),
        (["-m", "lab.train", "--lr", "1"], "train", "lab/train.py"),
        (["-m", "lab.big"], "big", "lab/big/__main__.py"),
        (["-m", "lab.big.__main__"], "big", "lab/big/__main__.py"),
        (["-m", "train"], "train", "train.py"),
    ],
)
def test_what_is_run_is_found_without_running_any_of_it(
    here: Path, words: list[str], name: str, file: str
) -> None:
    program = Program.of(words)
    program.check()
    assert (program.words, program.name) == (words, name)
    assert program.command == [sys.executable, "-u", *words]
    assert program.file.resolve() == here / file
    assert program.folder == (here / file).parent
    assert "lab" not in sys.modules


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (["tain.py"], "there is no script tain.py", "train.py"),
        (["python", "train.py"], "there is no script python", "leave python out"),
        (["elsewhere/train.py"], "there is no script elsewhere/train.py", "elsewhere: go to your"),
        (["lab"], "lab is a folder, not a script", "train.py"),
        (["-m", "lab.tain"], "there is no module lab.tain to run", "python -m"),
        (["-m", "lab"], "there is no module lab to run", "needs a __main__.py"),
        (["-m", "empty"], "there is no module empty to run", "python -m"),
        (["-m", "lab..train"], "there is no module lab..train to run", "python -m"),
        (["-m", "train.py"], "train.py is a file", "gossip run train.py"),
    ],
)
def test_what_is_not_there_is_said_with_what_to_do(
    here: Path, words: list[str], said: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        Program.of(words).check()
    assert hint in (caught.value.hint or "")


def test_a_module_has_a_name() -> None:
    with pytest.raises(ConfigError, match="has no module"):
        Program.of(["-m"])


def test_files_beside_a_script_that_python_imports_in_place_of_others_are_found(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "random.py").touch()
    (here / "queue").mkdir()
    (here / "json").mkdir()
    (here / "json" / "__init__.py").touch()
    (here / "sys.py").touch()
    (here / "__main__.py").touch()
    names = ["random", "queue", "json", "sys", "__main__", "random.x", "os"]
    found = {"random": str(here / "random.py"), "json": str(here / "json" / "__init__.py")}
    assert Program("train.py").shadowing(names) == found
    monkeypatch.chdir(here / "lab")
    assert Program("../train.py").shadowing(names) == found, "its folder, wherever it is started"
    assert Program("train.py", module=True).shadowing(names) == {}
    monkeypatch.chdir(here)
    assert Program("lab.train", module=True).shadowing(names) == found
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    assert Program("train.py").shadowing(names) == {}


def test_our_own_package_beside_a_script_shadows_nothing() -> None:
    root = Path(gossip.__file__).parent.parent
    assert Program(str(root / "train.py")).shadowing(["gossip"]) == {}


@pytest.mark.parametrize("beside", ["gossip.py", "gossip/__init__.py"])
@pytest.mark.parametrize("words", [["train.py"], ["-m", "train"]])
def test_a_script_that_would_import_another_gossip_is_refused(
    here: Path, beside: str, words: list[str]
) -> None:
    (here / beside).parent.mkdir(exist_ok=True)
    (here / beside).touch()
    with pytest.raises(ConfigError) as refused:
        Program.of(words).check()
    assert str(here / beside) in str(refused.value)
    assert "rename" in str(refused.value.hint)


def test_a_script_named_gossip_is_refused(here: Path) -> None:
    (here / "gossip.py").touch()
    with pytest.raises(ConfigError, match=r"gossip\.py"):
        Program("gossip.py").check()
