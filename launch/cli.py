"""The ``gossip`` command. Only what ``--help`` needs is imported here; the rest comes with the command that needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gossip.errors import ConfigError, GossipError

from . import bench, drill, hosts_cli, keygen, tend
from .condor import condor
from .doctor import doctor
from .join import join
from .kubernetes import kubernetes
from .on_ray import ray
from .options import (
    Advertise,
    Aggregator,
    Allowed,
    BatchPolicy,
    Byzantine,
    Config,
    Drills,
    Fault,
    Faults,
    Insecure,
    Json,
    Keys,
    MinPeers,
    Name,
    OnMinority,
    Patience,
    Peers,
    Port,
    Quiet,
    Quorum,
    Record,
    Room,
    Rounds,
    RoundTimeout,
    RunDir,
    Seed,
    Sender,
    ServerWeights,
    ShowConfig,
    Slices,
    StartTimeout,
    SwarmKey,
    TaskOption,
    Topology,
)
from .options import flags as given
from .simulate import simulate
from .slurm import slurm

app = typer.Typer(
    name="gossip",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Fault-tolerant training for PyTorch: no process is special, anything may crash, hang or lie.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"gossip {version('gossip-train')}")
        raise typer.Exit


@app.callback()
def gossip(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


# Options end where the script begins: everything after it is the script's, --help and -n included.
@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})
def run(
    script: Annotated[Path, typer.Argument(help="Your training script.", show_default=False)],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Its own arguments.")] = None,
    peers: Peers = None,
    room: Room = None,
    topology: Topology = None,
    aggregator: Aggregator = None,
    sender: Sender = None,
    byzantine: Byzantine = None,
    fault: Fault = None,
    faults: Faults = None,
    rounds: Rounds = None,
    seed: Seed = None,
    run_dir: RunDir = None,
    name: Name = None,
    quorum: Quorum = None,
    min_peers: MinPeers = None,
    patience: Patience = None,
    on_minority: OnMinority = None,
    batch_policy: BatchPolicy = None,
    slices: Slices = None,
    server_weights: ServerWeights = None,
    start_timeout: StartTimeout = None,
    round_timeout: RoundTimeout = None,
    record: Record = False,
    drills: Drills = False,
    keys: Keys = None,
    key: SwarmKey = None,
    allowed: Allowed = None,
    insecure: Insecure = False,
    advertise: Advertise = "",
    port: Port = 0,
    config: Config = None,
    as_json: Json = False,
    quiet: Quiet = False,
    show: ShowConfig = False,
    task: TaskOption = None,
) -> None:
    """Train SCRIPT with several peers on this machine: gossip run -n 4 train.py --lr 0.1"""
    from gossip import fitting
    from gossip.config import resolve

    from . import feasible, runs, task_runs
    from .advertise import told_to_others
    from .entrance import Entrance
    from .peer_setup import script_command
    from .screens import PlainScreen

    flags = given(peers, topology, aggregator, byzantine, fault, faults, rounds, seed, run_dir, name, quorum)
    flags.update(room=room, sender=sender, on_minority=on_minority, batch_policy=batch_policy, slices=slices)
    flags.update(min_peers=min_peers, patience_s=patience, server_weights=server_weights)
    flags.update(start_timeout_s=start_timeout, round_timeout_s=round_timeout, record=record or None, drills=drills or None)
    flags.update(keygen.flags(keys, key, allowed), insecure=insecure or None)
    flags.update(host=told_to_others(advertise) if advertise else None)
    resolved = resolve(flags, config)
    if show:
        fitting.check(resolved.config)
        runs.show_config(resolved, as_json)
        return
    feasible.check_script(script)
    if (mine := task_runs.look(task, resolved)) is not None:
        screen = PlainScreen(sys.stderr if as_json else None, every_s=10.0, quiet=quiet)
        command = script_command(script, arguments or [])
        folder, outcome = task_runs.train(mine, resolved, command, screen, script.resolve().parent)
        raise typer.Exit(runs.finish(folder, outcome, screen, as_json))
    pair = keygen.own_key(key, resolved.config)
    resolved = runs.settle(resolved, script.stem)
    if port:
        feasible.check_port(resolved.config.host, port)
    folder = runs.begin(resolved, sys.argv, script.resolve().parent, pair)
    screen = PlainScreen(sys.stderr if as_json else None, every_s=10.0, quiet=quiet)
    settled = resolved.config
    exchange = f"{settled.weighted_topology}, {settled.aggregator} (f={settled.f})"
    screen.say(f"{settled.name}: {settled.peers} peers, {exchange}, in {folder}")
    if settled.room > settled.peers:
        screen.say(f"room for {settled.room - settled.peers} more: gossip join {folder}")
    entrance = Entrance(port=port) if port else None
    outcome = runs.train(settled, script_command(script, arguments or []), screen, entrance=entrance)
    raise typer.Exit(runs.finish(folder, outcome, screen, as_json))


@app.command()
def demo(
    peers: Peers = None,
    topology: Topology = None,
    aggregator: Aggregator = None,
    sender: Sender = None,
    byzantine: Byzantine = None,
    fault: Fault = None,
    faults: Faults = None,
    rounds: Rounds = None,
    seed: Seed = None,
    run_dir: RunDir = None,
    name: Name = None,
    quorum: Quorum = None,
    batch_policy: BatchPolicy = None,
    slices: Slices = None,
    keys: Keys = None,
    config: Config = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the curves into this PNG.", show_default=False)] = None,
    only: Annotated[
        bool, typer.Option("--only", help="Leave out the comparison with plain averaging and without faults.")
    ] = False,
    as_json: Json = False,
    show: ShowConfig = False,
) -> None:
    """Eight peers learn the digits while two lie and the serving one is killed; then the same with plain averaging."""
    from .demo import Demo

    flags = given(peers, topology, aggregator, byzantine, fault, faults, rounds, seed, run_dir, name, quorum)
    flags.update(sender=sender, batch_policy=batch_policy, slices=slices, keys=keys)
    prepared = Demo.prepare(flags, config, plot=plot, compare=not only, as_json=as_json)
    if show:
        prepared.show_config()
        return
    raise typer.Exit(prepared.run())


app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})(hosts_cli.hosts)
app.command()(simulate)
app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})(join)
app.command(context_settings={"allow_interspersed_args": False})(slurm)
app.command(context_settings={"allow_interspersed_args": False})(ray)
app.command(context_settings={"allow_interspersed_args": False})(kubernetes)
app.command(context_settings={"allow_interspersed_args": False})(condor)
for command in (doctor, keygen.keygen, *tend.COMMANDS):
    app.command()(command)
app.add_typer(bench.app, name="bench")
app.add_typer(drill.app, name="drill")


def print_error(error: GossipError) -> None:
    """Two or three lines on stderr, no traceback: it is told what is wrong, and what to do."""
    print(f"error: {error}", file=sys.stderr)
    if error.hint:
        print(f"  hint: {error.hint}", file=sys.stderr)


def main() -> None:
    """Entry point of ``gossip``."""
    try:
        app()
    except GossipError as error:
        print_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our lines has left (`gossip run ... | head`): nobody to tell.
        sys.stderr.close()
        sys.exit(ConfigError.exit_code)


if __name__ == "__main__":
    main()
