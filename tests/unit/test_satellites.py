"""Commands and functions that come with other packages."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from gossip import satellites
from gossip.errors import ConfigError
from gossip.launch.cli import commands

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Entry:
    """An entry point, as an installed package declares it."""

    name: str
    load: Callable[[], object]
    value: str = "their_package.commands:add_to"


def app_with(monkeypatch: pytest.MonkeyPatch, *entries: Entry) -> typer.Typer:
    monkeypatch.setattr(commands, "entry_points", lambda group: entries)
    made = typer.Typer(rich_markup_mode=None)
    made.command("run")(lambda: None)
    commands._add_satellites(made)
    return made


@pytest.mark.parametrize("words", [["simulate", "--seeds", "20"], ["bench", "step", "-n", "4"]])
def test_a_command_that_is_not_installed_names_its_package(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError) as refused:
        CliRunner().invoke(app_with(monkeypatch), words, catch_exceptions=False)
    assert str(refused.value) == f"gossip {words[0]} comes with gossip-lab"
    assert refused.value.hint == "pip install gossip-lab, or in a checkout: pip install extras/*"
    assert words[0] not in CliRunner().invoke(app_with(monkeypatch), ["--help"]).output


def test_commands_and_groups_of_any_package_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    group = typer.Typer()
    group.command("inner")(lambda: print("inner ran"))
    group.command("other")(lambda: None)

    def add_to(app: typer.Typer) -> None:
        app.command("theirs")(lambda: print("theirs ran"))
        app.add_typer(group, name="bench")

    made = app_with(monkeypatch, Entry("theirs", lambda: add_to))
    assert "theirs ran" in CliRunner().invoke(made, ["theirs"]).output
    assert "inner ran" in CliRunner().invoke(made, ["bench", "inner"]).output


def test_a_package_that_cannot_be_imported_takes_no_other_command_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise ImportError("no module named numba")

    made = app_with(monkeypatch, Entry("theirs", broken))
    assert "no commands of their_package.commands:add_to" in capsys.readouterr().err
    assert CliRunner().invoke(made, ["run"]).exit_code == 0


def test_each_command_of_a_satellite_is_known_and_there() -> None:
    added = {}
    for path in (ROOT / "extras").glob("*/pyproject.toml"):
        project = tomllib.loads(path.read_text("utf-8"))["project"]
        entry = project["entry-points"]["gossip.commands"][path.parent.name]
        module, _, function = entry.partition(":")
        app = typer.Typer()
        getattr(import_module(module), function)(app)
        names = [each.callback.__name__ for each in app.registered_commands if each.callback]
        names += [str(each.name) for each in app.registered_groups]
        added |= dict.fromkeys(names, project["name"])
    assert added == commands.SATELLITES
    ours = typer.main.get_command(commands.app)
    shown = {name for name, each in ours.commands.items() if not each.hidden}  # type: ignore[attr-defined]
    assert added.keys() <= shown


def test_an_absent_function_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(satellites, "entry_points", lambda group, name: ())
    with pytest.raises(ConfigError) as refused:
        satellites.find_function("search_start", "peer.search_start")
    assert str(refused.value) == "peer.search_start comes with gossip-pipelines"
    assert refused.value.hint == (
        "pip install gossip-pipelines, or in a checkout: pip install extras/*"
    )


def test_each_function_of_a_satellite_is_known_and_there() -> None:
    declared = {}
    for path in (ROOT / "extras").glob("*/pyproject.toml"):
        project = tomllib.loads(path.read_text("utf-8"))["project"]
        functions = project["entry-points"].get(satellites.GROUP, {})
        declared |= dict.fromkeys(functions, project["name"])
    assert declared == satellites.PACKAGES
    for name in declared:
        assert callable(satellites.find_function(name, "it"))


@pytest.mark.parametrize(
    ("package", "says"),
    [
        ("gossip-pipelines", "gossip-pipelines cannot be loaded: no module"),
        ("their-package", "stages comes with gossip-pipelines"),
    ],
)
def test_only_the_whole_package_gives_a_function(
    package: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load() -> object:
        raise ImportError("no module")

    entry = Entry("StagePeer", load)
    entry.dist = SimpleNamespace(name=package)  # type: ignore[attr-defined]
    monkeypatch.setattr(satellites, "entry_points", lambda group, name: [entry])
    with pytest.raises(ConfigError, match=says):
        satellites.find_function("StagePeer", "stages")
