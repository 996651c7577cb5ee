"""Layout of ``--help``, and the errors of a command line that cannot be parsed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from typer.core import TyperCommand, TyperGroup

from gossip.errors import ConfigError

SECTIONS = {
    "Train": "run hosts join slurm ray kubernetes condor demo checkpoints plan",
    "Observe": "ls top logs explain report track stop rm",
    "Test": "drill simulate play sweep bench",
    "Set up": "doctor keygen",
}
OPTIONS = {
    "Arguments": "script arguments",
    "Run": "peers room min_peers patience start_timeout restarts resume seed rounds name run_dir",
    "Training": "local_steps outer fragments overlap batch_policy slices deterministic",
    "Exchange": "topology aggregator sender encoding server_weights round_timeout",
    "Failures": "byzantine reference trust quorum on_minority on_divergence fault faults drills",
    "Pipeline": "plan audit lost_stage",
    "Network and keys": "advertise port keys key allowed insecure",
    "Screen and records": "output track as_json quiet",
}
"""Options of the commands that train, by purpose."""
SIMILAR = 0.75


@contextmanager
def config_errors() -> Iterator[None]:
    """Raise errors of the parser as ConfigError, so that all errors of the command have one
    form."""
    try:
        yield
    except Exception as error:
        # Since version 0.20, typer contains its own copy of click. Earlier versions import click.
        if not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
            raise
        message = error.format_message().rstrip(".")
        path = getattr(getattr(error, "ctx", None), "command_path", "gossip")
        hint = f"{path} --help"
        if message.lower().startswith("missing argument 'run"):
            hint = f"gossip ls lists runs; then {path} NAME"
        elif message.startswith("No such command 'kill'"):
            hint = (
                "kill -9 PID kills a peer; gossip top shows the pids. Planned: gossip run --fault "
                "crash:3@100 ..., or gossip drill RUN kill 3 if the run has --drills. gossip stop "
                "RUN ends a whole run"
            )
        raise ConfigError(message[:1].lower() + message[1:], hint) from None


class CommandList(TyperGroup):
    """Group of commands, listed by purpose. Commands of other packages are listed under "More"."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        scripts = [each for each in args if each.endswith(".py")]
        if scripts and (args[0] == scripts[0] or args[0].startswith("-")):
            command = shlex.join([*ctx.command_path.split(), "run", *args])
            raise ConfigError(f"{args[0]} is not a command", f"to train with a script: {command}")
        with config_errors():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with config_errors():
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        shown = {name: each for name, each in self.commands.items() if not each.hidden}
        width = formatter.width - 6 - max(map(len, shown))
        rows = {name: (name, each.get_short_help_str(width)) for name, each in shown.items()}
        _write_sections(formatter, SECTIONS, rows)


def _write_sections(formatter: Any, sections: dict[str, str], rows: dict[str, Any]) -> None:
    """Write the rows by section, and rows that belong to no section under "More"."""
    others = [name for name in rows if name not in " ".join(sections.values()).split()]
    for title, names in {**sections, "More": " ".join(others)}.items():
        if found := [row for name in names.split() if (row := rows.get(name))]:
            with formatter.section(title):
                formatter.write_dl(found)


class ScriptCommand(TyperCommand):
    """Command that takes no options after the user's script."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows = {each.name: each.get_help_record(ctx) for each in self.get_params(ctx)}
        _write_sections(formatter, OPTIONS, rows)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        try:
            rest = super().parse_args(ctx, args)
            first = given[given.index("--") + 1] if "--" in given[:-1] else ""
            if not first.startswith("--") or ctx.params.get("script") != first:
                return rest
            given.remove("--")
            command = shlex.join([*ctx.command_path.split(), *given])
            raise ConfigError(f"{first} follows --, where the script is expected", command)
        except Exception as error:
            if type(error).__name__ != "NoSuchOption":
                raise
            option = str(getattr(error, "option_name", ""))
        known = [name for each in self.params for name in each.opts]
        near = get_close_matches(option, known, 1, SIMILAR)
        near = ["-n"] if "nproc" in option and "-n" in known else near
        hint = f"did you mean {near[0]}?" if near else f"{ctx.command_path} --help lists them"
        if not near and (right := _place_after_script(option, given)):
            command = shlex.join([*ctx.command_path.split(), *right])
            hint = f"options of the script go after the script: {command}"
        raise ConfigError(f"{ctx.command_path} has no option {option}", hint)


def _place_after_script(option: str, given: list[str]) -> list[str]:
    """Return the arguments with ``option`` and its value moved after the script; [] if the script,
    or the value of the option, is ambiguous."""
    at = next((i for i, each in enumerate(given) if each.split("=")[0] == option), len(given))
    script = next((i for i, each in enumerate(given) if i > at and each.endswith(".py")), 0)
    end = at + 1
    while end < script and (given[end][:1] != "-" or given[end][1:2].isdigit()):
        end += 1
    moved = [*given[:at], *given[end : script + 1], *given[at:end], *given[script + 1 :]]
    scripts = [each for each in given if each.endswith(".py")]
    return moved if len(scripts) == 1 and at < script else []
