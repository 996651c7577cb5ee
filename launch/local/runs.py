"""Steps of one run, from the resolved settings to the summary. ``gossip run`` and ``gossip demo``
share them."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gossip.config import Resolved, RunConfig
from gossip.core import DIVERGED
from gossip.errors import ConfigError, GossipError
from gossip.launch.registry import JoinEndpoint
from gossip.launch.report import (
    RUNS,
    Screen,
    alone,
    counted,
    launchers,
    low_influence,
    missed,
    near,
    status_of,
    summary,
    word_for,
)
from gossip.run import (
    SWARM_KEY,
    fitting,
    newest_saved,
    print_write_failure,
    settled_resume,
    tolerance,
    write_json,
    write_pair,
    write_settings,
)
from gossip.transport import KeyPair, new_pair

from . import feasible
from .outcome import RunOutcome
from .program import Program
from .supervisor import Supervisor

COMMAND = "command.json"


def settle(resolved: Resolved, kind: str, here: int | None = None) -> Resolved:
    """Check the settings as far as possible before the start, and add the run id, the name, the
    folder and f.

    Args:
        here: Number of peers on this machine; None means all.
    Raises: ConfigError and its subclasses: A name, a value, a fault or the machine does not allow
    this run.
    """
    config = resolved.config
    fitting.check(config)
    _ = config.plan  # raises an error for faults that are impossible in this run
    feasible.check_memory(config.peers if here is None else here)
    resolved = settled_resume(resolved, lambda line: print(f"! {line}", file=sys.stderr))
    resolved = fitting.check_rule(resolved)
    run = secrets.token_hex(8)
    resolved = resolved.with_values("drawn", run=run)
    if not config.name:
        resolved = resolved.with_values("drawn", name=f"{kind}-{run[:4]}")
    if not config.run_dir:
        resolved = resolved.with_values("the name", run_dir=str(Path(RUNS) / resolved.config.name))
    return resolved


def begin(
    resolved: Resolved, argv: Sequence[str], code: Path | None, key: KeyPair | None = None
) -> Path:
    """Make the run's folder and write the settings of the run into it. Return its path.

    Args:
        argv: Command line of the launcher.
        key: Swarm key of a run with keys; None means a new key.
        code: Folder of the code. Its git commit is written to ``environment.json``.
    """
    folder = Path(resolved.config.run_dir).resolve()
    feasible.make_run_folder(folder)
    write_settings(folder, resolved, argv, code)
    if resolved.config.keyed:
        write_pair(folder / SWARM_KEY, key or new_pair())
    return folder


def print_tolerance(resolved: Resolved, say: Callable[[str], None]) -> None:
    """Print how many Byzantine peers the run tolerates, and why. Also print the rule if it follows
    from other options."""
    if resolved.config.peers_max == 1:
        return
    line = tolerance.describe(resolved.config, resolved.sources["f"])
    if judge := tolerance.judges(resolved.config, resolved.sources):
        say(judge)
    say(f"! {line}" if tolerance.warns(resolved.config, resolved.rule_named) else line)


def train(
    config: RunConfig,
    program: Program,
    screen: Screen,
    newcomers: Mapping[int, int] | None = None,
    endpoint: JoinEndpoint | None = None,
) -> RunOutcome:
    """Run the peers until all have ended, in a folder made by ``begin``. ``newcomers``,
    ``endpoint``: see ``Supervisor``.

    """
    folder = Path(config.run_dir)
    if newcomers is None:
        record_command(folder, program)
    return supervise(Supervisor(config, program, screen, newcomers=newcomers, endpoint=endpoint))


def supervise(
    supervisor: Supervisor, meanwhile: Coroutine[Any, Any, None] | None = None
) -> RunOutcome:
    """Run the peers of a supervisor until they end. Run ``meanwhile`` in parallel."""

    async def run() -> RunOutcome:
        beside = [] if meanwhile is None else [asyncio.create_task(meanwhile)]
        try:
            return await supervisor.run()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    with launchers.present(supervisor.ongoing.folder, supervisor.ongoing.peers):
        return asyncio.run(run())


def record_command(folder: Path, program: Program) -> None:
    """Record the command of the peers, because newcomers run the same command by default."""
    write_json(folder / COMMAND, {"command": program.command, "folder": os.getcwd()})


def conclude(folder: Path, outcome: RunOutcome) -> dict[str, Any]:
    """Write ``commits.jsonl`` and ``summary.json``. Return the summary. If the folder no longer
    exists, the summary is built from the events that this launcher received."""
    own = (outcome.exit_code, outcome.wall_s, outcome.joins)
    seen = (outcome.config, outcome.view) if outcome.lacking else None
    try:
        return summary.write(folder, *own, outcome.lacking, seen)
    except (OSError, ConfigError) as error:
        path = str(folder / "summary.json")
        print_write_failure(path, getattr(error, "strerror", None) or str(error))
        return summary.build(
            folder, *own, {**outcome.lacking, path: 0}, (outcome.config, outcome.view)
        )


def _what_next(folder: Path, found: Mapping[str, Any]) -> Iterator[str]:
    """Yield hints about a run: how to resume it if it did not finish, and which command describes
    its incidents."""
    if found["exit_code"] == 0:
        if any(map(found.get, ("deaths", "hangs", "partitions", "suspected"))):
            yield f"  what happened: gossip report {word_for(folder.resolve())}"
        return
    saved = newest_saved(folder)
    # the same command would be refused again
    if saved is not None and found["status"] != "refused":
        at = f"step {saved[0]} in {near(str(saved[1]))}"
        yield f"  to continue: the command that began the run, with --resume auto ({at})"
    if found["status"] != "stopped":
        yield f"  why: gossip explain {word_for(folder.resolve())}"


def _doubts(found: Mapping[str, Any], *, local_steps: bool) -> Iterator[str]:
    """Yield warnings about the result of a run."""
    if found["replicas_identical"] is False and found["exit_code"] == DIVERGED:
        yield (
            "! the peers end with replicas that differ in parameters, states of the optimizer or "
            "values given to peer.keep; for the cause see above, or divergences in summary.json. "
            "Remedy: "
            + (
                "only prepared optimizers may change parameters, or --on-divergence warn"
                if local_steps
                else "put what the loop changes into peer.each_step"
            )
        )
    if found["not_saved"]:
        yield f"! the last checkpoint is missing: {found['not_saved']}"


def finish(folder: Path, outcome: RunOutcome, screen: Screen, as_json: bool) -> int:
    """Write the summary of the run, and print its outcome. Return the exit code. Raises:
    GossipError: All rounds were lost."""
    found = conclude(folder, outcome)
    if as_json:
        print(json.dumps(found))
    else:
        lost = f" ({found['rounds_lost']} more were lost)" if found["rounds_lost"] else ""
        of = f"{found['status']} after {counted(found['rounds'], 'round')}{lost}"
        own = (
            ""
            if found["exit_code"] in (outcome.exit_code, 1)
            else f"{status_of(outcome.exit_code)}; the run: "
        )
        told = folder / "summary.json"
        where = f": {told}" if str(told) not in found["record_incomplete"] else ""
        screen.print_line(f"{own}{of}, {outcome.wall_s:.1f} s{where}")
        for line in _what_next(folder, found):
            screen.print_line(line)
    if lacking := found["record_incomplete"]:
        lost = sum(lacking.values())
        more = f" and {counted(len(lacking) - 1, 'more file')}" if len(lacking) > 1 else ""
        gone = f" ({counted(lost, 'line')} lost)" if lost else ""
        screen.print_line(
            f"! the record is incomplete: {next(iter(lacking))}{more} could not be written{gone}"
        )
    for line in [
        *_doubts(found, local_steps=outcome.config.has_local_steps),
        *alone.format_lines(found["trained_alone"]),
        *missed.format_lines(found["faults_missed"]),
        *low_influence(found["low_influence"]),
    ]:
        screen.print_line(line)
    if found["finished"] and not found["rounds"]:
        if outcome.config.resume:
            screen.print_line("  nothing was left to train: the run had already finished")
        else:
            screen.print_line(
                "! no round was trained: each peer ran the script by itself, and nothing was "
                "exchanged"
            )
            screen.print_line(
                "  in the script: peer = gossip.init(), model, optimizer = peer.prepare(model, "
                "optimizer), and optimizer.step() for each batch"
            )
    if outcome.exit_code == 0 and found["exit_code"] == DIVERGED:
        return DIVERGED
    if found["exit_code"] != outcome.exit_code == 0:
        lost = found["rounds_lost"]
        which = "the only round" if lost == 1 else f"every one of {lost} rounds"
        raise GossipError(
            f"{which} was lost: nothing was trained; see {folder}/events.jsonl for the reasons"
        )
    return outcome.exit_code


def show_config(resolved: Resolved, as_json: bool) -> None:
    """Print every option, its value and the source of the value."""
    values = resolved.config.model_dump(mode="json")
    if as_json:
        print(
            json.dumps(
                {
                    key: {"value": value, "source": resolved.sources.get(key, "default")}
                    for key, value in values.items()
                }
            )
        )
        return
    width = max(map(len, values))
    for key, value in values.items():
        if key != "run":
            shown = (
                "-"
                if value is None or value == ""
                else " ".join(value) or "-"
                if isinstance(value, list)
                else str(value)
            )
            print(f"{key:{width}}  {shown:24}  {resolved.sources.get(key, 'default')}")
    sys.stdout.flush()
