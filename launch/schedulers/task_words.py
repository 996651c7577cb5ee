"""Checks of the options of ``gossip run`` in a command for a scheduler. They are checked at
submission, before any task waits in a queue.

Tasks run on other machines, without the environment of this process. Each variable of gossip is
either sent to the tasks, or a message reports that it is not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gossip.errors import ConfigError
from gossip.launch.options import RUN_SETTINGS, flags, resolve_settings

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


def check(
    context: typer.Context, words: list[str], peers: int
) -> tuple[Resolved, dict[str, Any], Program]:
    """Check the options and the script, in order to raise now what every task would raise later.
    Return the settings, the parsed parameters and the program.

    Args: As for ``check_options``.
    Raises: ConfigError: ``gossip run`` would fail with these options.
    """
    resolved, given, program = check_options(context, words, peers)
    program.check()
    return resolved, given, program


def check_options(
    context: typer.Context, words: list[str], peers: int
) -> tuple[Resolved, dict[str, Any], Program]:
    """Check only the options, not the script, which may be on other machines only.

    Args:
        context: Context of a command, which leads to the command ``run``.
        words: Options of ``gossip run``, the script and its arguments.
        peers: Number of tasks.
    """
    from gossip.launch.local import Program
    from gossip.run import fitting

    # The root command is a group, which its type in typer does not show.
    root = context.find_root()
    run = getattr(root.command, "commands")["run"]  # noqa: B009
    given = run.make_context("run", list(words), root, help_option_names=[]).params
    settings = flags(**{name: given[name] for name in RUN_SETTINGS})
    counts = settings["peers"] is None and PEERS not in os.environ
    settings["peers"] = peers if counts else settings["peers"]
    resolved = resolve_settings(settings, given["key"], given["config"])
    if counts:
        resolved = replace(resolved, sources={**resolved.sources, "peers": "default"})
    fitting.check(resolved.config)
    return resolved, given, Program.typed(given["module"], given["script"], given["arguments"])


def refuse(resolved: Resolved, elsewhere: Mapping[str, str], hint: str) -> None:
    """Check that the user has set none of the options in ``elsewhere``, which maps an option to the
    reason. Raises: ConfigError: One of them is set."""
    for option, why in elsewhere.items():
        if (source := resolved.sources[option]) not in ("default", "drawn"):
            raise ConfigError(f"{option} is set ({source}): {why}", hint)


def patient(words: list[str], resolved: Resolved, scheduler: str) -> tuple[list[str], Resolved]:
    """Return the options and the settings. If the user has set no start timeout, add one that is
    long enough for a queue."""
    if resolved.sources["start_timeout_s"] != "default":
        return words, resolved
    more = ["--start-timeout", f"{START_S:g}"]
    return [*more, *words], resolved.with_values(scheduler, start_timeout_s=START_S)


def resolved_for(resolved: Resolved, peers: int, name: str, scheduler: str) -> Resolved:
    """Return all settings of the run, checked as far as the submitting machine can. Raises:
    ConfigError and its subclasses."""
    from gossip.run import settled

    resolved = resolved.with_values("flag", peers=peers, name=name)
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


def check_fit(resolved: Resolved, peers: int) -> None:
    """Check that this number of peers can train with these settings, before any task waits in a
    queue. Used if the tasks themselves make the run.

    Raises: ConfigError and its subclasses: For example, the rule cannot tolerate f Byzantine peers
    among ``peers``, or ``--min-peers`` are too few to train.
    """
    from gossip.run import settled, tolerance

    resolved = settled(resolved.with_values("flag", peers=peers), Path("run"))
    if tolerance.warns(resolved.config, resolved.rule_named):
        to_stderr(tolerance.describe(resolved.config))


def check_resume_elsewhere(resolved: Resolved) -> None:
    """Check ``resume`` for tasks on other machines. Raises: ConfigError: It is a relative path."""
    resume = resolved.config.resume
    if resume not in ("", "auto") and not Path(resume).is_absolute():
        raise ConfigError(
            f"resume = {resume!r} is a relative path: the peers would read another path",
            "use the absolute path that the peers see",
        )


def to_stderr(line: str) -> None:
    """Print a warning to stderr, because stdout has the output of the command."""
    print(f"! {line}", file=sys.stderr)


def environment_of(resolved: Resolved) -> dict[str, str]:
    """Return the environment variables from which settings come. The tasks do not have these
    variables."""
    sources = resolved.sources.values()
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
