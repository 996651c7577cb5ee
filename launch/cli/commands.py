"""The ``gossip`` command. This module imports only what ``--help`` needs; each command imports
its own."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated

import typer

from gossip.errors import ConfigError, GossipError
from gossip.launch import options
from gossip.launch.checkpoints import command as checkpoints
from gossip.launch.doctor import doctor
from gossip.launch.drill import command as drill
from gossip.launch.join import join
from gossip.launch.local import swarm_keys as keygen
from gossip.launch.options import (
    UNSET,
    Arguments,
    Config,
    Json,
    Keys,
    Module,
    Output,
    Peers,
    Port,
    Quiet,
    Settings,
    ShowConfig,
    SwarmKey,
    TaskOption,
    Track,
)
from gossip.launch.report import command as tend, counted, print_error
from gossip.launch.schedulers import ray, slurm
from gossip.launch.ssh import command as hosts_cli
from gossip.launch.track import command as tracking
from gossip.satellites import missing

from .layout import CommandList, ScriptCommand

app = typer.Typer(
    name="gossip",
    cls=CommandList,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Fault-tolerant training for PyTorch: any process may crash, hang or be Byzantine.",
)

SATELLITES = {
    "bench": "gossip-lab",
    "simulate": "gossip-lab",
    "play": "gossip-lab",
    "sweep": "gossip-lab",
    "condor": "gossip-clusters",
    "kubernetes": "gossip-clusters",
    "plan": "gossip-pipelines",
}
"""Package that each of these commands needs. It may not be installed."""
ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True}
ENDS_AT_SCRIPT = {"allow_interspersed_args": False}
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"gossip {version('gossip-train')}")
        raise typer.Exit


def _in_short(told: str | None) -> str:
    """Return the help of a command up to the first example, semicolon or period. Otherwise the list
    of commands would cut the help in the middle of a sentence."""
    return re.split(r": gossip |; |\.(?: |$)", " ".join((told or "").split()))[0]


def _add_satellites(to: typer.Typer) -> None:
    """Add the commands of other installed packages. A command of a missing gossip package raises an
    error that names the package."""
    for entry in entry_points(group="gossip.commands"):
        try:
            entry.load()(to)
        except Exception as error:  # noqa: BLE001 - any installed package may raise anything
            print(f"! no commands of {entry.value}: {error!r}", file=sys.stderr)
    commands = {
        each.name or each.callback.__name__ for each in to.registered_commands if each.callback
    }
    for name in SATELLITES.keys() - commands - {each.name for each in to.registered_groups}:
        to.command(name, hidden=True, context_settings=ANYTHING)(_refusal_of(name))


def _refusal_of(name: str) -> Callable[[], None]:
    def refuse() -> None:
        raise missing(f"gossip {name}", SATELLITES[name])

    return refuse


@app.callback()
def gossip(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


# Options end at the script: everything after it belongs to the script, even --help and -n.
@app.command(cls=ScriptCommand, context_settings=ENDS_AT_SCRIPT)
@options.with_settings(options.RUN_SETTINGS)
def run(
    script: Annotated[str, typer.Argument(help="Your training script.", show_default=False)],
    arguments: Arguments = None,
    module: Module = False,
    settings: Settings = UNSET,
    key: SwarmKey = None,
    port: Port = 0,
    config: Config = None,
    output: Output = None,
    track: Track = None,
    as_json: Json = False,
    quiet: Quiet = False,
    show: ShowConfig = False,
    task: TaskOption = None,
) -> None:
    """Train SCRIPT with several peers on this machine: gossip run -n 4 train.py --lr 0.1"""
    from gossip.launch.local import Program, feasible, runs
    from gossip.launch.registry import JoinEndpoint
    from gossip.launch.report import About, PlainScreen, screen_for
    from gossip.launch.schedulers import task_runs
    from gossip.launch.track import tracked
    from gossip.run import fitting

    resolved = options.resolve_settings(settings, key, config)
    if show:
        fitting.check(resolved.config)
        runs.show_config(resolved, as_json)
        return
    program = Program.typed(module, script, arguments)
    program.check()
    if (mine := task_runs.find_task(task, resolved)) is not None:
        out = sys.stderr if as_json else None
        screen = PlainScreen(out, every_s=10.0, quiet=quiet, output=output or "all")
        folder, outcome = task_runs.train(mine, resolved, program, screen, tuple(track or ()))
        raise typer.Exit(runs.finish(folder, outcome, screen, as_json))
    pair = keygen.own_key(key, resolved.config)
    keygen.check_listed(resolved.config, os.environ.get("GOSSIP_KEY", ""))
    resolved = runs.settle(resolved, program.name)
    if port:
        feasible.check_port(resolved.config.host, port)
    folder = runs.begin(resolved, sys.argv, program.folder, pair)
    settled = resolved.config
    exchange = f"{settled.weighted_topology}, {settled.aggregator} (f={settled.f})"
    local = f", {settled.local_steps} local steps" if settled.local_steps > 1 else ""
    if settled.fragments > 1:
        local += f" in {settled.fragments} fragments"
    if settled.pipeline is not None:
        local = f", {len(settled.pipeline.stages)} stages"
    beside = ", overlap" if settled.overlap else ""
    beside += f" (mixing {settled.own_share:g})" if settled.overlap and settled.own_share else ""
    what = f"{counted(settled.peers, 'peer')}, {exchange}{local}{beside}"
    about = About(settled.name, what, str(folder), settled.rounds)
    shown = screen_for(about, as_json, quiet, output)
    runs.print_tolerance(resolved, shown.print_line)
    if settled.room > settled.peers:
        shown.print_line(f"room for {settled.room - settled.peers} more: gossip join {folder}")
    endpoint = JoinEndpoint(port=port) if port else None
    with tracked(track or (), folder, shown.print_line):
        outcome = runs.train(settled, program, shown, endpoint=endpoint)
    raise typer.Exit(runs.finish(folder, outcome, shown, as_json))


@app.command()
@options.with_settings(options.DEMO_SETTINGS)
def demo(
    peers: Peers = None,
    settings: Settings = UNSET,
    keys: Keys = None,
    config: Config = None,
    only: Annotated[
        bool,
        typer.Option(
            "--only", help="Omit the comparison: plain averaging, and a run without faults."
        ),
    ] = False,
    track: Track = None,
    as_json: Json = False,
    show: ShowConfig = False,
) -> None:
    """Train eight peers on digits while two are Byzantine and the server is killed; then repeat it
    with plain averaging."""
    from gossip.launch.demo import swarms
    from gossip.launch.local import runs

    resolved = swarms.settle({**settings, "peers": peers, "keys": keys}, config)
    if show:
        runs.show_config(resolved, as_json)
        return
    raise typer.Exit(swarms.Demo(resolved, not only, as_json, track or ()).run())


for command in (hosts_cli.hosts, join, slurm, ray):
    app.command(cls=ScriptCommand, context_settings=ENDS_AT_SCRIPT)(command)
for command in (
    doctor,
    keygen.keygen,
    *tend.COMMANDS,
    tracking.track,
):
    app.command()(command)
app.add_typer(checkpoints.app, name="checkpoints")
app.add_typer(drill.app, name="drill")
_add_satellites(app)
for registered in app.registered_commands:
    registered.short_help = _in_short(registered.callback.__doc__ if registered.callback else "")
for group in app.registered_groups:
    callback = group.typer_instance and group.typer_instance.registered_callback
    told = group.typer_instance and group.typer_instance.info.help
    group.short_help = _in_short(told or (callback and callback.callback.__doc__) or "")


def _open_closed_streams() -> None:
    """Open standard streams that were closed (``>&-``): otherwise files and sockets would get their
    descriptor numbers."""
    for at, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == at, "the lowest free descriptor"
            os.set_inheritable(opened, True)
            setattr(sys, name, open(opened, "r" if at == 0 else "w"))  # noqa: SIM115


def main() -> None:
    """Entry point of ``gossip``."""
    _open_closed_streams()
    # A job runner may have set SIGCHLD to be ignored, which would lose the exit codes of children.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except GossipError as error:
        print_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of the output has ended (`gossip run ... | head`).
        sys.stderr.close()
        sys.exit(ConfigError.exit_code)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        # Discard the remaining output of the command, so that the flush at exit does not fail, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        where = error.filename or "the output"
        print_error(ConfigError(f"cannot write {where}: {error.strerror}", "free some space"))
        sys.exit(ConfigError.exit_code)


if __name__ == "__main__":
    main()
