"""Worlds and grids as TOML: what is read is what was written, and errors name what is meant.

``python tests/unit/test_playground_fields.py`` writes the table of docs/playground.md."""

from __future__ import annotations

import inspect
import json
import math
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gossip.core import Peer
from gossip.errors import ConfigError, UnknownName
from gossip.node import Reducer
from gossip_lab import rule_sources
from gossip_lab.pages import markdown_table, replace_between, split_at
from gossip_lab.playground import World
from gossip_lab.playground.engines import ray_tune
from gossip_lab.playground.fast_gossip import GossipWorld
from gossip_lab.playground.fields import fields_of
from gossip_lab.playground.grids import Grid, WorldCell, play_cell, store_of, toml_of_cell
from gossip_lab.playground.played import PlayedRun, Row
from gossip_lab.simulation import Swarm, many_peers

PAGE = Path(__file__).parents[2] / "docs" / "playground.md"
MARK = "fields of a world"


def table() -> list[str]:
    """Lines of the table of all fields."""
    rows = []
    for each in fields_of(World):
        default = " ".join(each.default) if each.is_list else str(each.default)
        rows.append((f"`{each.name}`", f"`{default}`" if default else "none", each.help))
    rows = [tuple(cell.replace("``", "`") for cell in row) for row in rows]
    return markdown_table(("field", "default", "meaning"), rows)


def test_each_field_is_plain_and_explained() -> None:
    for each in fields_of(World):
        assert each.help, each.name
        assert each.kind in (int, float, str, bool), each.name


def test_the_page_has_all_fields() -> None:
    before, after = split_at(PAGE, MARK)
    shown = PAGE.read_text("utf-8").removeprefix(before).removesuffix(after).splitlines()
    assert shown[1:-1] == table(), f"python {Path(__file__).name} writes it"


def test_a_world_is_what_its_toml_says(tmp_path: Path) -> None:
    world = World(peers=7, lr=1e-05, split="dirichlet:0.1", faults=('slow:1*"2"', "crash:2@5"))
    (tmp_path / "world.toml").write_text(world.to_toml())
    assert World.from_toml(tmp_path / "world.toml") == world
    (tmp_path / "world.toml").write_text("lr = 1\n")
    found = World.from_toml(tmp_path / "world.toml")
    assert found == World(lr=1.0)
    assert isinstance(found.lr, float), "rows and stored cells have 1.0 and not 1"


@pytest.mark.parametrize(
    "wrong",
    [
        {"engine": "Exact"},
        {"faults": "crash:1@1"},
        {"f": -1},
        {"mixing": 1.5},
        {"mixing": math.nan},
        {"lr": math.inf},
        {"engine": "exact", "peers": 257},
        {"topology": "push"},
        {"mix_every": 1},
        {"mixing": 0.9},
    ],
)
def test_a_world_of_a_script_is_checked_too(wrong: dict[str, Any]) -> None:
    """An engine with another name was the fast one without a word."""
    with pytest.raises((ConfigError, UnknownName), match=next(iter(wrong))):
        World(**wrong).play(1)


def test_a_loss_is_reached_from_above() -> None:
    places = (("loss", 2.0), ("loss", 0.9), ("loss", 0.4), ("mean", 0.4))
    run = PlayedRun(tuple(Row(0, at, 0.0, 0, *each) for at, each in enumerate(places)))
    assert run.reach(1.0, "loss", "round") == 1
    assert run.reach(0.4, "loss", "round") == 2
    assert run.reach(0.1, "loss", "round") == math.inf
    assert run.reach(0.4, "mean", "round") == 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("faults", ("{file}:lie:3",)),
        ("links", "measured:other.toml,{file}"),
        ("compute", "other.toml,{file}"),
        ("topology", "{file}:mine:k=3"),
    ],
)
def test_a_changed_file_makes_another_cell(tmp_path: Path, field: str, value: Any) -> None:
    file = tmp_path / "a.py"
    is_list = isinstance(value, tuple)
    text = (value[0] if is_list else value).format(file=file)
    cell = WorldCell(World().replace(**{field: (text,) if is_list else text}), 1, 1)
    digests = set()
    for content in ("1", "2"):
        file.write_text(content)
        digests.add(store_of(tmp_path).path(cell))
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"peer": 3}, "Did you mean 'peers'"),
        ({"peers": "3"}, "peers = '3'"),
        ({"peers": 3.5}, "peers = 3.5"),
        ({"lr": True}, "lr = True"),
        ({"faults": "crash:1@5"}, "faults = 'crash:1@5'"),
        ({"engine": "fats"}, "Did you mean 'fast'"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(values: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError) as found:
        World().replace(**values)
    assert what in str(found.value)
    assert found.value.hint
    if "peer" not in values:
        with pytest.raises(ConfigError):
            World(**values)


def test_lists_become_tuples() -> None:
    assert World(faults=["crash:1@5"]).faults == ("crash:1@5",)  # type: ignore[arg-type]


def test_a_lower_f_in_small_neighbourhoods_comes_with_a_warning() -> None:
    world = World(peers=7, topology="ring", aggregator="krum", f=2, model="linear")
    for engine in ("fast", "exact"):
        with pytest.warns(UserWarning, match="in 2 of 2 rounds .* too few vectors for f = 2"):
            world.replace(engine=engine).play(2)
    everybody = world.replace(topology="full", links="delay:1ms")
    with warnings.catch_warnings(action="error"):
        everybody.play(2)
    with pytest.warns(UserWarning, match="too few vectors for f = 2"):
        everybody.replace(faults=("crash:0,1@1",)).play(9)


def test_a_curve_needs_a_known_metric_and_axis() -> None:
    run = World(peers=2, model="linear").play(1)
    with pytest.raises(UnknownName, match="metric 'accuracy'"):
        run.curve("accuracy")
    with pytest.raises(UnknownName, match="axis 'mib'"):
        run.reach(0.5, by="mib")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("peers = ", "is not TOML"),
        ("round = 3", "Did you mean 'rounds'"),
        ("rounds = 1.5", "1.5"),
        ("world = 3", "not a table"),
        ("rounds = 0", "rounds 0"),
        ("[grid]\nlr = []", "no values"),
        ("[grid]\nlr = [1, -1]", "lr = -1"),
        ('[grid]\naggregator = ["mean", "medain"]', "Did you mean 'median'"),
        ('[grid]\ntopology = ["rign"]', "Did you mean 'ring'"),
        ("[grid]\nlearning = [1]", "field of a world"),
        ("[world]\npers = 1", "'peers'"),
        ("[run]\ncommand = 'train.py'\n[world]\npeers = 4", "world beside [run]"),
        ("rounds = 3\n[run]\ncommand = 'train.py'", "rounds beside [run]"),
        ("[run]\npeers = 4", "no command"),
        ("[run]\ncommand = 'train.py {lr}'", "no value for lr"),
        ("[run]\ncommand = 'train.py {names}'\nnames = 1", "the command has {names}"),
        ("[run]\ncommand = 'train.py {lr}'\n[grid]\nlt = [1]", "name in the command 'lt'"),
        ("[run]\ncommand = 'train.py {lr}'\n[grid]\nlr = [[1]]", "lr = [1]"),
    ],
)
def test_a_grid_that_cannot_be_meant_is_refused(text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(text)
    with pytest.raises(ConfigError) as found:
        Grid.from_toml(tmp_path / "grid.toml")
    assert what in str(found.value)


def test_a_grid_has_a_cell_for_each_combination(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(
        "rounds = 20\n[world]\npeers = 4\n[grid]\nlr = [0.1, 1]\nf = 1\n"
        'faults = [[], ["crash:1@5"]]\nseed = [0, 1, 2]\n'
    )
    grid = Grid.from_toml(tmp_path / "grid.toml")
    assert grid.varied == ("lr", "f", "faults", "seed")
    assert len(grid.cells) == 12
    assert len(set(grid.cells)) == 12
    assert (grid.cells[0].rounds, grid.cells[0].every) == (20, 10)
    assert [cell.world.seed for cell in grid.cells[:4]] == [0, 1, 2, 0], "the last one varies first"
    assert grid.cells[-1].world == World(4, lr=1.0, f=1, faults=("crash:1@5",), seed=2)
    same = Grid.make(
        World(peers=4),
        20,
        10,
        {"lr": [0.1, 1], "f": 1, "faults": [[], ["crash:1@5"]], "seed": range(3)},
    )
    assert same == grid
    for cell in grid.cells:
        (tmp_path / "cell.toml").write_text(toml_of_cell(cell))
        assert Grid.from_toml(tmp_path / "cell.toml").cells == (cell,)
    assert Grid.make(World(), 1, 1, {"split": "iid"}).varied == ("split",)


def test_an_unknown_field_of_a_grid_is_named() -> None:
    with pytest.raises(UnknownName, match="topology"):
        Grid.make(World(), 1, 1, {"toplogy": ["ring"]})


def test_all_code_that_plays_a_world_counts_for_its_cell() -> None:
    files = {file.resolve() for file in rule_sources.training_files()}
    parts = (Reducer, many_peers.AcquaintedPeer, Swarm, GossipWorld, Peer)
    assert {Path(inspect.getfile(each)).resolve() for each in parts} <= files


def test_rounds_without_a_step_come_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text("def broken(updates):\n    raise ValueError\n")
    world = World(peers=3, aggregator=f"{tmp_path}/rules.py:broken")
    with pytest.warns(UserWarning, match="in 2 of 2 rounds some or all peers made no step"):
        world.play(2)


@pytest.mark.parametrize("faults", [(), ("slow:1*3",), ("crash:0-2@1",)])
def test_the_last_report_of_a_trial_of_ray_is_the_whole_result_of_its_cell(
    faults: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its warning and its error included."""
    reports: list[dict[str, Any]] = []
    tune = SimpleNamespace(report=reports.append)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(tune=tune))
    cell = WorldCell(World(peers=3, topology="ring", faults=faults), 2, 1)
    ray_tune._play({"cell": 0}, [cell])
    expected = play_cell(cell)
    assert json.loads(reports.pop()["row"]) == expected
    assert bool(expected["warning"]) == (faults == ("slow:1*3",))
    assert bool(expected.get("error")) == (faults == ("crash:0-2@1",))
    assert [report["round"] for report in reports] == sorted({row[1] for row in expected["rows"]})


if __name__ == "__main__":
    replace_between(PAGE, MARK, table())
