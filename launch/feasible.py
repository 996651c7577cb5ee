"""What is checked before anything starts: names, the rule against the number of peers, memory, the script, the run's folder.

Rules live in modules that import torch; so a process of its own looks at them, and the launcher stays small.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from gossip import topologies
from gossip.aggregators import registry
from gossip.config import Resolved
from gossip.errors import ConfigError, GossipError, OutOfMemory, RunExists, TooFewUpdates

PEER_BYTES = 450 * 2**20
"""What a peer's two processes add to the memory in use: 280 MiB for a trainer that has imported torch and scikit-learn, 160 MiB
for its node (proportional set size, eight peers, torch 2.13 on Linux). Model and data come on top."""


def check_names(topology: str, aggregator: str) -> None:
    """Raises UnknownName or ConfigError for a topology or a rule that nobody knows. Imports no torch."""
    topologies.load(topology)
    registry.check(aggregator)


def check_rule(resolved: Resolved) -> Resolved:
    """The config with its ``f`` set.

    Raises:
        TooFewUpdates: The rule cannot tolerate f among so many peers.
        ConfigError: The rule cannot be had, or a fault of the plan does not go with rule or topology.
    """
    config = resolved.config
    # With room for more, an f may be asked for that takes more peers than begin: until they are here they are waited for, or
    # less is tolerated (quorum available).
    most = config.peers if config.f is None else config.peers_max
    if config.f is not None and config.f >= most:
        raise ConfigError(f"f={config.f} of {most} peers may lie: nobody honest is left", "lower f, or start more peers")
    answer = _look(config.aggregator, config.topology, most, config.f)
    if "too_few" in answer:
        raise TooFewUpdates(*answer["too_few"])
    if "error" in answer:
        raise ConfigError(answer["error"], answer["hint"])
    config.plan.fits(config.topology, answer["rolling"], answer["name"], answer["asks_loss"])
    if config.f is not None:
        return resolved
    return resolved.with_values(f"what {answer['name']} and {config.peers} peers allow, at most a quarter", f=answer["f"])


def _look(aggregator: str, topology: str, peers: int, f: int | None) -> dict[str, Any]:
    """``_describe`` or what is wrong, by a process of its own, unless torch is here already: to import it takes seconds."""
    if "torch" in sys.modules:
        try:
            return _describe_or_refuse(aggregator, topology, peers, f)
        except Exception as error:
            raise ConfigError(f"aggregator {aggregator!r} cannot be loaded: {type(error).__name__}: {error}") from error
    command = [sys.executable, "-m", "gossip.launch.feasible", aggregator, topology, str(peers), *([] if f is None else [str(f)])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ConfigError(f"aggregator {aggregator!r} cannot be loaded: {last}") from None
    return answer


def check_memory(peers: int) -> None:
    """Raises OutOfMemory when so many peers would not fit into what is available now."""
    import psutil  # here: 50 ms that `gossip --help` need not pay

    have = psutil.virtual_memory().available
    if peers * PEER_BYTES > have:
        raise OutOfMemory(peers, peers * PEER_BYTES, have)


def check_script(script: Path) -> None:
    """Raises ConfigError unless there is a script to run."""
    if script.is_dir():
        raise ConfigError(f"{script} is a folder, not a script", "gossip run -n 4 train.py")
    if not script.is_file():
        near = sorted(path.name for path in script.parent.glob("*.py"))[:8] if script.parent.is_dir() else []
        raise ConfigError(f"there is no script {script}", f"in that folder: {', '.join(near)}" if near else None)


def make_run_folder(path: Path) -> None:
    """Raises RunExists when there is something in it already, ConfigError when it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)  # it names the run, and who knows that can pose as a peer
        if any(path.iterdir()):
            raise RunExists(str(path))
    except (FileExistsError, NotADirectoryError):
        raise RunExists(str(path)) from None
    except OSError as error:
        raise ConfigError(f"cannot make the run folder {path}: {error.strerror}") from error


def _describe_or_refuse(aggregator: str, topology: str, peers: int, f: int | None) -> dict[str, Any]:
    try:
        return _describe(aggregator, topology, peers, f)
    except TooFewUpdates as error:
        return {"too_few": error.args}
    except GossipError as error:
        return {"error": str(error), "hint": error.hint}


def _describe(aggregator: str, topology: str, peers: int, f: int | None = None) -> dict[str, Any]:
    """What the rule is called, and the f that it will be told: the one given, or the most that it can tolerate.

    Raises: TooFewUpdates or ConfigError: It cannot tolerate f among so many, or for all f that it could be told.
    """
    rule, who = registry.load(aggregator), topologies.load(topology)
    if rule.needs_center and who.rolling:
        raise ConfigError(f"rule {rule.name} starts from the own update, and {topology} has none", registry.CENTER_HINT)
    plan = who(topologies.Roster(tuple(range(peers))), 0, 0)
    rows = peers if plan.pushes is None else min(1 + len(plan.sources(peer)) for peer in range(peers))
    chosen = _most(rule, peers // 4, rows, centered=not who.rolling) if f is None else f
    rule.check(chosen, rows, centered=not who.rolling)
    return {"name": rule.name, "f": chosen, "rolling": who.rolling, "asks_loss": rule.needs_trainer}


def _most(rule: registry.BoundRule, highest: int, rows: int, *, centered: bool) -> int:
    """The most liars that it can tolerate among so many rows, if any."""
    for f in range(highest, 0, -1):
        with contextlib.suppress(ConfigError):
            rule.check(f, rows, centered=centered)
            return f
    return 0


if __name__ == "__main__":
    print(json.dumps(_describe_or_refuse(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) if sys.argv[4:] else None)))
