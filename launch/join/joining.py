"""``gossip join``: finds a run in progress, claims unused ids, and determines the program of its
peers."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from gossip.config import RunConfig
from gossip.errors import ConfigError
from gossip.launch.local import Program, runs
from gossip.launch.report import counted, find
from gossip.run import (
    announce_end,
    answers,
    claim,
    code_version,
    peers_in,
    read_file,
    read_json,
    read_seed,
)


@dataclass(frozen=True, slots=True)
class JoinableRun:
    """A run that newcomers may join."""

    folder: Path
    config: RunConfig

    @property
    def seeds(self) -> Path:
        return self.folder / "seeds"


def find_joinable(run: str) -> JoinableRun:
    """Return the run in a folder, or with that name under ``runs/``.

    Raises: ConfigError: There is no such run, it is over, no peer of it replies, or it is full.
    """
    try:
        folder = find(run)
    except ConfigError as error:
        hint = "use its folder, its name in gossip ls, or HOST:PORT of a join server"
        raise ConfigError(str(error), hint) from None
    config = RunConfig.load(path := folder / "config.json", read_file(path))
    place = JoinableRun(folder, config.model_copy(update={"run_dir": str(folder)}))
    if config.room <= config.peers:
        raise ConfigError(
            f"the run in {folder} has room for its {config.peers} first peers only",
            f"gossip run --room {2 * config.peers} ...",
        )
    _check_alive(place)
    return place


def _check_alive(place: JoinableRun) -> None:
    seeds = [
        seed for peer in peers_in(place.seeds) if (seed := read_seed(place.seeds, peer)) is not None
    ]
    if not seeds:
        raise ConfigError(
            f"the run in {place.folder} has not begun", "wait until its peers have started"
        )
    here = [seed for seed in seeds if not seed.ended]
    if not here:
        raise ConfigError(
            f"the run in {place.folder} is over: its {counted(len(seeds), 'peer')} "
            f"{'has' if len(seeds) == 1 else 'have'} ended",
            "start another: gossip run",
        )
    if not any(map(answers, here)):
        named = ", ".join(f"{seed.peer} ({seed.control})" for seed in here)
        raise ConfigError(
            f"no peer of the run in {place.folder} answers: {named}",
            "they were killed, or are on another machine",
        )


def claim_ids(place: JoinableRun, count: int) -> dict[int, int]:
    """Return ids for ``count`` newcomers, with their first incarnations. Raises: ConfigError: Too
    few are free."""
    taken: dict[int, int] = {}
    while len(taken) < count:
        found = claim(place.seeds, place.config.peers, place.config.peers_max)
        if found is None:
            for peer, incarnation in taken.items():
                announce_end(place.seeds, peer, incarnation)
            raise _no_room(place, count, len(taken))
        taken[found[0]] = found[1]
    return taken


def _no_room(place: JoinableRun, wanted: int, free: int) -> ConfigError:
    most = place.config.peers_max
    asked = f"{wanted} {'was' if wanted == 1 else 'were'} to join"
    return ConfigError(
        f"the run in {place.folder} has room for {counted(most, 'peer')} at a time: {asked}, and "
        f"there is room for {free}",
        "a peer that leaves or is killed makes room; a peer whose launcher was killed does not",
    )


def program(place: JoinableRun, own: Program | None) -> tuple[Program, Path]:
    """Return the program of newcomers, and its working directory: ``own`` if given, else those of
    the other peers.

    Raises: ConfigError: There is no such script, the program of the others is not recorded, or
        another user has recorded it.
    """
    if own is not None:
        own.check()
        return own, Path.cwd()
    told = place.folder / runs.COMMAND
    owners = {path.stat().st_uid for path in (place.folder, told) if path.exists()}
    if not owners <= {os.geteuid(), 0}:
        raise ConfigError(
            f"{place.folder} belongs to another user: the script that it names would run as you",
            f"name one that you trust: gossip join {place.folder} train.py",
        )
    found = read_json(place.folder / runs.COMMAND) or {}
    command, folder = found.get("command"), Path(str(found.get("folder")))
    if not isinstance(command, list) or len(command) < 3:
        raise ConfigError(
            f"the run in {place.folder} does not record the script of its peers",
            f"gossip join {place.folder} train.py",
        )
    others = Program.of([str(word) for word in command[2:]])
    if not others.module:
        others = replace(others, script=str(folder / others.script))
        others.check()
    return others, folder


def difference(place: JoinableRun, code: Path) -> str:
    """Return a warning if the code here is at another git commit than the code of the run;
    otherwise ""."""
    then, now = (
        (read_json(place.folder / "environment.json") or {}).get("code"),
        code_version(code),
    )
    if not isinstance(then, dict) or now is None or then.get("commit") == now["commit"]:
        return ""
    return (
        f"! the code here is at commit {str(now['commit'])[:12]}, that of the run was at "
        f"{str(then.get('commit'))[:12]}"
    )
