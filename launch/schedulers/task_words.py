"""Checks of the options of ``gossip run`` in a command for a scheduler. They are checked at
submission, before any task waits in a queue.

Tasks run on other machines, without the environment of this process. Each variable of gossip is
either sent to the tasks, or a message reports that it is not.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gossip.errors import ConfigError, GossipError
from gossip.interpreter import python_command

if TYPE_CHECKING:
    from gossip.config import Resolved
    from gossip.launch.local import Program

NO_USE = (2, 6)
"""Exit codes of a peer that would fail again after a restart: its settings are wrong, or the other
peers have rejected it."""
PEERS = "GOSSIP_PEERS"
START_S = 600.0
"""Start timeout for tasks, in seconds. It is long, because tasks start one after the other, as
machines become free."""


def check(context: typer.Context, words: list[str], peers: int) -> dict[str, Any]:
    """Check the options, in order to raise now what every task would raise later. Return the value
    and the source of every option.

    Args:
        context: Context of the ``gossip`` command.
        peers: Number of tasks.

    Raises: ConfigError: ``gossip run`` would fail with these options.
    """
    shown = check_options(words, peers)
    program_of(context, words).check()
    return shown


def check_options(words: list[str], peers: int) -> dict[str, Any]:
    """Check only the options, not the script, which may be on other machines only."""
    # The user has set the variable, so it stays visible as the source of the number of peers.
    said_so = PEERS in os.environ
    done = subprocess.run(
        python_command("-m", "gossip.launch.cli", "run", "--show-config", "--json", *words),
        capture_output=True,
        text=True,
        check=False,
        env={PEERS: str(peers), **os.environ},
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        error = next(
            (line.removeprefix("error: ") for line in said if line.startswith("error: ")),
            said[-1] if said else "it failed",
        )
        hint = next(
            (
                line.strip().removeprefix("hint: ")
                for line in said
                if line.strip().startswith("hint: ")
            ),
            None,
        )
        raise (
            GossipError(f"gossip run {shlex.join(words)}: {error}")
            if hint is None
            else ConfigError(error, hint)
        )
    shown: dict[str, Any] = json.loads(done.stdout)
    if shown["peers"]["source"] == PEERS and not said_so:
        shown["peers"]["source"] = "default"
    return shown


def parsed(context: typer.Context, words: list[str]) -> dict[str, Any]:
    """Return the parameters that ``gossip run`` parses from valid options. ``context`` is needed to
    find the command ``run``."""
    # The root command is a group, which its type in typer does not show.
    run = getattr(context.find_root().command, "commands")["run"]  # noqa: B009
    params: dict[str, Any] = run.make_context("run", list(words), help_option_names=[]).params
    return params


def program_of(context: typer.Context, words: list[str]) -> Program:
    """Return the program that follows the options."""
    from gossip.launch.local import MODULE, Program

    found = parsed(context, words)
    first = [MODULE] if found["module"] else []
    return Program.of([*first, found["script"], *(found["arguments"] or ())])


def refuse(shown: Mapping[str, Any], elsewhere: Mapping[str, str], hint: str) -> None:
    """Check that the user has set none of the options in ``elsewhere``, which maps an option to the
    reason. Raises: ConfigError: One of them is set."""
    for option, why in elsewhere.items():
        if (source := shown[option]["source"]) not in ("default", "drawn"):
            raise ConfigError(f"{option} is set ({source}): {why}", hint)


def patient(words: list[str], shown: dict[str, Any], scheduler: str) -> list[str]:
    """Return the options. If the user has set no start timeout, add one that is long enough for a
    queue."""
    if shown["start_timeout_s"]["source"] != "default":
        return words
    shown["start_timeout_s"] = {"value": START_S, "source": scheduler}
    return ["--start-timeout", f"{START_S:g}", *words]


def resolved_for(shown: Mapping[str, Any], peers: int, name: str, scheduler: str) -> Resolved:
    """Return all settings of the run, checked as far as the submitting machine can. Raises:
    ConfigError and its subclasses."""
    from gossip.run import settled

    resolved = _settings_of(shown, peers, name)
    if not resolved.config.insecure:
        if resolved.config.keys is False:
            raise ConfigError(
                "the peers are on several machines: without keys any process that reaches them "
                "could join",
                "leave out --no-keys, or add --insecure",
            )
        resolved = resolved.with_values(f"{scheduler}, on several machines", keys=True)
    if resolved.config.allowed:
        raise ConfigError(
            "--allowed names a file on this machine, but the peers are on others", "leave it out"
        )
    return settled(resolved, Path(name))


def check_fit(shown: Mapping[str, Any], peers: int) -> None:
    """Check that this number of peers can train with these settings, before any task waits in a
    queue. Used if the tasks themselves make the run.

    Raises: ConfigError and its subclasses: For example, the rule cannot tolerate f Byzantine peers
    among ``peers``, or ``--min-peers`` are too few to train.
    """
    from gossip.run import settled, tolerance

    resolved = settled(_settings_of(shown, peers, "run"), Path("run"))
    if tolerance.warns(resolved.config, resolved.rule_named):
        to_stderr(tolerance.describe(resolved.config))


def check_resume(shown: Mapping[str, Any]) -> None:
    """Check the checkpoint from which the tasks will resume, for tasks that share folders with this
    machine. Raises: ConfigError: It does not exist, or is damaged."""
    from gossip.run import settled_resume

    settled_resume(_settings_of(shown, int(shown["peers"]["value"]), "run"), to_stderr)


def check_resume_elsewhere(shown: Mapping[str, Any]) -> None:
    """Check ``resume`` for tasks on other machines. Raises: ConfigError: It is a relative path."""
    resume = shown["resume"]["value"]
    if resume not in ("", "auto") and not Path(resume).is_absolute():
        raise ConfigError(
            f"resume = {resume!r} is a relative path: the peers would read another path",
            "use the absolute path that the peers see",
        )


def to_stderr(line: str) -> None:
    """Print a warning to stderr, because stdout has the output of the command."""
    print(f"! {line}", file=sys.stderr)


def _settings_of(shown: Mapping[str, Any], peers: int, name: str) -> Resolved:
    from gossip.config import Resolved, RunConfig

    sources = {key: row["source"] for key, row in shown.items()}
    values = {**{key: row["value"] for key, row in shown.items()}, "peers": peers, "name": name}
    return Resolved(RunConfig.model_validate(values), {**sources, "peers": "flag", "name": "flag"})


def environment_of(shown: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables from which settings come. The tasks do not have these
    variables."""
    sources = [str(row["source"]) for row in shown.values()]
    return {name: os.environ[name] for name in sources if name.startswith("GOSSIP_")}


def left_behind() -> list[str]:
    """Return the names of gossip's environment variables that are not sent to the tasks, because
    they describe this machine."""
    from gossip.config import NOT_OPTIONS

    return sorted(
        name
        for name in os.environ
        if name.startswith("GOSSIP_") and name[len("GOSSIP_") :].lower() in NOT_OPTIONS
    )
