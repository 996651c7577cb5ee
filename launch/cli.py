"""The ``gossip`` command. Only what ``--help`` needs is imported here; the rest comes with the command that needs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from gossip.errors import ConfigError, GossipError

from . import bench, drill, keygen, tend
from .doctor import doctor
from .join import join
from .options import Json, Quiet
from .simulate import simulate

if TYPE_CHECKING:
    from .outcome import Outcome
    from .screens import Screen

app = typer.Typer(
    name="gossip",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Fault-tolerant training for PyTorch: no process is special, anything may crash, hang or lie.",
)

Peers = Annotated[int | None, typer.Option("-n", "--peers", help="How many peers to start.", show_default=False)]
Room = Annotated[
    int | None, typer.Option(help="Most peers at a time, with those that gossip join adds later.", show_default=False)
]
Topology = Annotated[
    str | None, typer.Option(help="Who exchanges with whom: rolling, random-k:k=3, ring, full.", show_default=False)
]
Aggregator = Annotated[
    str | None, typer.Option(help="How updates become one: a rule's name, or file.py:rule.", show_default=False)
]
Sender = Annotated[
    str | None,
    typer.Option(help="What peers make of their updates first: momentum:beta=0.9, clip:10, joined by +.", show_default=False),
]
Byzantine = Annotated[int | None, typer.Option("-f", "--byzantine", help="Lying peers to tolerate.", show_default=False)]
Fault = Annotated[
    list[str] | None, typer.Option(help="Inject a fault: crash:3@50, sign_flip:5,6*10. Repeatable.", show_default=False)
]
Faults = Annotated[Path | None, typer.Option(help="Inject the faults of a plan file (TOML).", show_default=False)]
Rounds = Annotated[int | None, typer.Option(help="Rounds to train.", show_default=False)]
Seed = Annotated[int | None, typer.Option(help="Of servers, data order and attacks.", show_default=False)]
RunDir = Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME by default.", show_default=False)]
Name = Annotated[str | None, typer.Option(help="Name of the run.", show_default=False)]
Quorum = Annotated[str | None, typer.Option(help="majority, or available: any number of peers.", show_default=False)]
OnMinority = Annotated[
    str | None,
    typer.Option(help="pause, or continue: a part without a quorum goes on when the rest is dead for it.", show_default=False),
]
BatchPolicy = Annotated[
    str | None,
    typer.Option(
        help="When peers come and go stays: fixed_local, each peer's batch; fixed_global, all of a round.", show_default=False
    ),
]
Slices = Annotated[
    str | None,
    typer.Option(help="speed: smaller batches for peers that are much slower than most; or equal.", show_default=False),
]
StartTimeout = Annotated[float | None, typer.Option(help="Seconds that peers wait for each other.", show_default=False)]
RoundTimeout = Annotated[float | None, typer.Option(help="Seconds that a round may wait at most.", show_default=False)]
Record = Annotated[
    bool, typer.Option("--record", help="Write down every event of the protocol, for gossip simulate --recording.")
]
Drills = Annotated[bool, typer.Option("--drills", help="Let gossip drill kill, stop and cut off peers of this run.")]
Keys = Annotated[
    bool | None,
    typer.Option(
        "--keys/--no-keys",
        help="Know peers by keys, and encrypt: on wherever others can reach them, off on a loopback address.",
        show_default=False,
    ),
]
SwarmKey = Annotated[
    Path | None,
    typer.Option(help="Whoever has this key may join: a file of gossip keygen; by default a new one.", show_default=False),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Listen beyond loopback without keys: whoever reaches it takes part, reads and lies.")
]
Config = Annotated[Path | None, typer.Option(help="Options from a TOML file; flags and GOSSIP_* win.", show_default=False)]
ShowConfig = Annotated[bool, typer.Option("--show-config", help="Print every option with its source, and start nothing.")]


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
    on_minority: OnMinority = None,
    batch_policy: BatchPolicy = None,
    slices: Slices = None,
    start_timeout: StartTimeout = None,
    round_timeout: RoundTimeout = None,
    record: Record = False,
    drills: Drills = False,
    keys: Keys = None,
    key: SwarmKey = None,
    insecure: Insecure = False,
    config: Config = None,
    as_json: Json = False,
    quiet: Quiet = False,
    show: ShowConfig = False,
) -> None:
    """Train SCRIPT with several peers on this machine: gossip run -n 4 train.py --lr 0.1"""
    from gossip import fitting
    from gossip.config import resolve

    from . import feasible, runs
    from .peer_setup import script_command
    from .screens import PlainScreen

    flags = _flags(peers, topology, aggregator, byzantine, fault, faults, rounds, seed, run_dir, name, quorum)
    flags.update(room=room, sender=sender, on_minority=on_minority, batch_policy=batch_policy, slices=slices)
    flags.update(start_timeout_s=start_timeout, round_timeout_s=round_timeout, record=record or None, drills=drills or None)
    flags.update(keys=keys if key is None else keys is not False, insecure=insecure or None)
    resolved = resolve(flags, config)
    if show:
        fitting.check_names(resolved.config.topology, resolved.config.aggregator)
        runs.show_config(resolved, as_json)
        return
    feasible.check_script(script)
    pair = keygen.own_key(key, resolved.config)
    resolved = runs.settle(resolved, script.stem)
    folder = runs.begin(resolved, sys.argv, script.resolve().parent, pair)
    screen = PlainScreen(sys.stderr if as_json else None, every_s=10.0, quiet=quiet)
    settled = resolved.config
    screen.say(f"{settled.name}: {settled.peers} peers, {settled.topology}, {settled.aggregator} (f={settled.f}), in {folder}")
    if settled.room > settled.peers:
        screen.say(f"room for {settled.room - settled.peers} more: gossip join {folder}")
    outcome = runs.train(settled, script_command(script, arguments or []), screen)
    conclude(folder, outcome, screen, as_json)


def conclude(folder: Path, outcome: Outcome, screen: Screen, as_json: bool) -> NoReturn:
    """Says how it went, and ends with the exit code that tells it."""
    from . import runs

    summary = runs.conclude(folder, outcome)
    if as_json:
        print(json.dumps(summary))
    else:
        screen.say(f"{summary['status']} after {summary['rounds']} rounds, {outcome.wall_s:.1f} s: {folder / 'summary.json'}")
    if summary["finished"] and not summary["rounds"]:
        screen.say("! no round was trained: each peer ran the script by itself, and nothing was exchanged")
        screen.say("  in the script: peer = gossip.init(), then model, optimizer = peer.prepare(model, optimizer)")
    if summary["exit_code"] != outcome.exit_code:
        raise GossipError(
            f"every one of {summary['rounds_lost']} rounds was lost: nothing was learnt; {folder}/events.jsonl says why"
        )
    raise typer.Exit(outcome.exit_code)


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

    flags = _flags(peers, topology, aggregator, byzantine, fault, faults, rounds, seed, run_dir, name, quorum)
    flags.update(sender=sender, batch_policy=batch_policy, slices=slices, keys=keys)
    prepared = Demo.prepare(flags, config, plot=plot, compare=not only, as_json=as_json)
    if show:
        prepared.show_config()
        return
    raise typer.Exit(prepared.run())


app.command()(simulate)
app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})(join)
for command in (doctor, *tend.COMMANDS):
    app.command()(command)
app.command()(keygen.keygen)
app.add_typer(bench.app, name="bench")
app.add_typer(drill.app, name="drill")


def _flags(
    peers: int | None,
    topology: str | None,
    aggregator: str | None,
    byzantine: int | None,
    fault: list[str] | None,
    faults: Path | None,
    rounds: int | None,
    seed: int | None,
    run_dir: Path | None,
    name: str | None,
    quorum: str | None,
) -> dict[str, Any]:
    """Options as ``gossip.config.resolve`` takes them; None where nothing was typed."""
    specs: list[str] | None = None
    if fault or faults is not None:
        from gossip import faults as plans

        specs = [*(plans.load(faults).specs if faults is not None else ()), *plans.parse(fault or ()).specs]
    return {
        "peers": peers,
        "topology": topology,
        "aggregator": aggregator,
        "f": byzantine,
        "faults": specs,
        "rounds": rounds,
        "seed": seed,
        "run_dir": str(run_dir) if run_dir is not None else None,
        "name": name,
        "quorum": quorum,
    }


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
