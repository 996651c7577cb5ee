"""Grids of worlds: the cells of a grid, and how a cell is played and stored."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from gossip import topologies
from gossip.aggregators import registry
from gossip.errors import ConfigError, GossipError, UnknownName
from gossip_lab import data_sets, rule_sources
from gossip_lab.cells import ERROR, CellStore, Row as StoredRow

from .fields import fields_of, read_toml, write_toml
from .played import PlayedRun, Row
from .run_commands import RunCommand
from .world import World

Report: TypeAlias = Callable[[list[Row]], None]
"""Function that receives the new rows of a cell after each evaluation."""
ROUNDS, EVERY = 100, 10


@dataclass(frozen=True, slots=True)
class WorldCell:
    """A world of a grid with its number of rounds, or a real run. The script of a real run decides
    when it ends, so ``rounds`` is 0.

    Attributes:
        every: Rounds between two evaluations.
    """

    world: World | RunCommand
    rounds: int
    every: int


@dataclass(frozen=True, slots=True)
class CellResult:
    """Result of a cell.

    Attributes:
        run: Rows of the cell, up to its end, early stop or error.
        stopped: Whether early stopping ended the cell.
        error: Error of the cell, or empty.
        warning: The warning of ``World.evaluations``, or empty.
    """

    run: PlayedRun
    stopped: bool = False
    error: str = ""
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """Cells of a grid.

    Attributes:
        cells: Cells of all combinations. The last listed field varies fastest.
        varied: Names of the fields that vary.
    """

    cells: tuple[WorldCell, ...]
    varied: tuple[str, ...]

    @classmethod
    def make(
        cls,
        world: World | RunCommand,
        rounds: int,
        every: int,
        values: Mapping[str, Iterable[Any]],
    ) -> Grid:
        """Return the cells of all combinations of the values.

        Raises: ConfigError: A field does not exist or has no values, or a value does not fit its
        field.
        """
        if min(rounds, every) < 1:
            raise ConfigError(f"rounds {rounds}, every {every}", "each is at least 1")
        if is_run := isinstance(world, RunCommand):
            known = world.names
        else:
            known = [each.name for each in fields_of(World)]
        listed: dict[str, list[Any]] = {}
        for name, each in values.items():
            if name not in known:
                raise UnknownName(
                    "name in the command" if is_run else "field of a world", name, known
                )
            listed[name] = [each] if isinstance(each, str) or not _is_listed(each) else list(each)
            if not listed[name]:
                raise ConfigError(f"{name} has no values in this grid")
        cells = [
            WorldCell(
                world.replace(**dict(zip(listed, each, strict=True))),
                0 if is_run else rounds,
                every,
            )
            for each in itertools.product(*listed.values())
        ]
        _check_names([cell.world for cell in cells if isinstance(cell.world, World)])
        for cell in cells:
            if isinstance(cell.world, RunCommand):
                cell.world.check()
        return cls(tuple(dict.fromkeys(cells)), tuple(listed))

    @classmethod
    def from_toml(cls, path: str | Path) -> Grid:
        """Return the grid of a TOML file: ``rounds`` and ``every``, fields of the world in
        ``[world]`` or a ``command`` in ``[run]``, and lists of values in ``[grid]``.

        Raises: ConfigError: For the same reasons as ``make``, or the file cannot be read.
        """
        values = read_toml(path)
        for name in values:
            if name not in (known := ("rounds", "every", "world", "run", "grid")):
                raise UnknownName("key of a grid", name, known)
        if "run" in values and (beside := {"rounds", "world"} & set(values)):
            raise ConfigError(f"{min(beside)} beside [run]", "the script of a run ends it")
        numbers = {"rounds": ROUNDS, "every": EVERY} | values
        for name in ("rounds", "every"):
            if type(numbers[name]) is not int:
                raise ConfigError(f"{name} = {numbers[name]!r}", f"{name} is a whole number")
        for name in ("world", "run", "grid"):
            if not isinstance(values.get(name, {}), dict):
                raise ConfigError(f"{name} is not a table", f"write [{name}], and its fields below")
        world: World | RunCommand
        if "run" in values:
            world = RunCommand.make(values["run"])
        else:
            world = World().replace(**values.get("world", {}))
        return cls.make(world, numbers["rounds"], numbers["every"], values.get("grid", {}))

    def values_of(self, cell: WorldCell) -> tuple[Any, ...]:
        """Return the cell's values of the fields that vary."""
        return tuple(getattr(cell.world, name) for name in self.varied)


def _check_names(worlds: Sequence[World]) -> None:
    """Raise ConfigError if a rule or a topology has an unknown name. Files are not read, because
    they may be on other machines."""
    for rule in {world.aggregator for world in worlds}:
        registry.check(rule)
    for topology in {world.topology for world in worlds}:
        if ".py:" not in topology:
            topologies.load(topology)


def _is_listed(value: Any) -> bool:
    return isinstance(value, Iterable)


def toml_of_cell(cell: WorldCell) -> str:
    """Return the TOML text of a grid that has only this cell, for ``Grid.from_toml``."""
    is_run = isinstance(cell.world, RunCommand)
    numbers = write_toml({**({} if is_run else {"rounds": cell.rounds}), "every": cell.every})
    return f"{numbers}\n[{'run' if is_run else 'world'}]\n{cell.world.to_toml()}"


def facts_of(world: World | RunCommand) -> dict[str, Any]:
    """Return the facts that affect the result of a world or a real run."""
    return dataclasses.asdict(world) if isinstance(world, World) else world.facts()


def play_cell(cell: WorldCell, report: Report | None = None) -> StoredRow:
    """Play a cell, and return its row for the store. If the cell raises an exception, the row has
    the error, and the other cells continue.

    Args:
        report: Called after each evaluation.
    """
    import torch

    torch.set_num_threads(1)
    rows: list[Row] = []
    error = ""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)
        try:
            for found in cell.world.evaluations(cell.rounds, cell.every):
                rows += found
                if report is not None:
                    report(found)
        except Exception as wrong:  # noqa: BLE001 - a rule of the user may raise anything
            hint = wrong.hint if isinstance(wrong, GossipError) else None
            error = f"{type(wrong).__name__}: {wrong}{f' ({hint})' if hint else ''}"
    warning = " ".join(str(each.message) for each in warned)
    stored = {"rows": [list(row) for row in rows], "warning": warning}
    return {**stored, ERROR: error} if error else stored


def store_of(folder: Path) -> CellStore[WorldCell, CellResult]:
    """Return the store of cells in a folder. A stored result no longer applies after a change of
    the data or of the code that plays worlds. The same holds after a change of a file that the
    world, its rule or the command of a run names. Files are read once."""
    digest = functools.cache(rule_sources.digest)
    contents = functools.cache(
        lambda data: [rule_sources.content(path) for path in data_sets.files(data)]
    )

    def identify(cell: WorldCell) -> dict[str, Any]:
        world = cell.world
        if isinstance(world, World):
            sources = [digest(world.aggregator), *contents(world.data), *_files_in(world)]
        else:
            sources = [*map(rule_sources.content, map(Path, world.words))]
        played = {"rounds": cell.rounds, "every": cell.every}
        return {**facts_of(world), **played, "sources": sources}

    def result_of(cell: WorldCell, row: StoredRow) -> CellResult | None:
        try:
            run = PlayedRun(tuple(Row(*each) for each in row["rows"]))
            return CellResult(run, error=row.get(ERROR, ""), warning=row["warning"])
        except (KeyError, TypeError):
            return None

    return CellStore(folder, identify, result_of)


def _files_in(world: World) -> list[str]:
    """Return the digests of all files that a world names in fields other than ``data``: as
    ``file.py:name``, as ``measured:file.toml`` or as a list of paths."""
    texts: list[str] = list(world.faults)
    for field in fields_of(World):
        if field.kind is str and not field.is_list and field.name != "data":
            texts.append(getattr(world, field.name))
    named = {Path(word.strip()) for text in texts for word in re.split("[:,]", text) if word}
    return [rule_sources.content(path) for path in sorted(named) if path.is_file()]
