"""``gossip hosts``: trains one swarm on many machines, over the user's own ssh."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gossip.errors import ConfigError
from gossip.launch import options
from gossip.launch.optional import optional
from gossip.launch.options import (
    UNSET,
    Arguments,
    Config,
    Json,
    Module,
    Plan,
    Quiet,
    Settings,
    ShowConfig,
    SwarmKey,
    Track,
)
from gossip.launch.report import counted
from gossip.run import shown
from gossip.satellites import find_function

if TYPE_CHECKING:
    from gossip.config import Resolved, RunConfig
    from gossip.transport import KeyPair

    from .agent_program import AgentProgram
    from .hostlist import Host
    from .survey import HostSurvey
    from .swarm import HostsLauncher

Hosts = Annotated[
    str,
    optional(
        "Hosts with their numbers of peers: a,user@b:2. With a plan: NAME=a,NAME=user@b. Or a "
        "host file.",
        "-H",
        "--hosts",
    ),
]
Ssh = Annotated[
    str, typer.Option(help="Command that connects to a host, such as --ssh 'ssh -F my_config'.")
]
Python = Annotated[str, optional("Interpreter on the hosts; by default the same path as here.")]
Workdir = Annotated[str, optional("Working directory on the hosts; by default the same as here.")]
Env = Annotated[
    list[str] | None,
    optional("Variable to send to the hosts: NAME, or NAME=VALUE. Repeatable; no other is sent."),
]
Restarts = Annotated[int, typer.Option(min=0, help="Maximum consecutive restarts of a lost host.")]
Check = Annotated[
    bool,
    typer.Option("--check", help="Check all hosts and all pairs of hosts, and start nothing."),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Print what would be started and sent, without a connection."),
]
SECRETIVE = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH")


@options.with_settings(options.SETTINGS)
def hosts(
    script: Annotated[
        str,
        typer.Argument(help="Your training script, which every host has.", show_default=False),
    ],
    where: Hosts,
    arguments: Arguments = None,
    module: Module = False,
    plan: Plan = None,
    ssh: Ssh = "ssh",
    python: Python = "",
    workdir: Workdir = "",
    env: Env = None,
    restarts: Restarts = 3,
    check: Check = False,
    dry_run: DryRun = False,
    settings: Settings = UNSET,
    key: SwarmKey = None,
    config: Config = None,
    as_json: Json = False,
    quiet: Quiet = False,
    track: Track = None,
    show: ShowConfig = False,
) -> None:
    """Train SCRIPT on many machines over ssh: gossip hosts -H a,b:2 -- train.py --lr 0.1"""
    from dataclasses import replace

    from gossip.launch.local import Program, runs, swarm_keys as keygen
    from gossip.run import fitting

    from . import hostlist, planned, resuming, ssh as ssh_
    from .agent_program import AgentProgram

    given = hostlist.load(where)
    found, about_peers = _peers_on(given, plan)
    found = tuple(
        replace(host, python=host.python or python, workdir=host.workdir or workdir)
        for host in found
    )
    resolved = options.resolve_settings({**settings, **about_peers}, key, config)
    if show:
        fitting.check(resolved.config)
        runs.show_config(resolved, as_json)
        return
    resolved, saved = resuming.put_off(resolved)
    what = Program.typed(module, script, arguments)
    resolved = runs.settle(
        resolved, what.name, here=sum(host.slots for host in found if host.is_local)
    )
    program = AgentProgram(
        found,
        what,
        os.getcwd(),
        environment(env or (), os.environ),
        ssh_.parse(ssh),
        restarts,
        resolved.config.run_dir,
        resolved.config.run,
        saved,
    )
    check_list(resolved.config, found)
    if idle := planned.unplanned(given, found):
        print(idle, file=sys.stderr)
    if dry_run:
        print("\n".join(in_words(resolved.config, program)))
        return
    pair = keygen.own_key(key, resolved.config)
    told = _Telling(check, as_json, quiet, tuple(track or ()))
    raise typer.Exit(asyncio.run(_hosts(resolved, program, pair, told)))


def _peers_on(
    hosts: tuple[Host, ...], plan: Path | None
) -> tuple[tuple[Host, ...], dict[str, Any]]:
    """Return the hosts that have peers, and the options that follow from the hosts and the plan."""
    from . import planned

    if plan is None:
        planned.check_unnamed(hosts)
        return hosts, {"peers": sum(host.slots for host in hosts)}
    options = find_function("plan_options", "--plan")(plan, None)
    return planned.by_plan(hosts, options["pipeline"]["names"], shown(plan)), options


@dataclass(frozen=True, slots=True)
class _Telling:
    """Options of the output.

    Attributes:
        check: Whether to check the hosts only.
        as_json: Whether to print JSON.
        quiet: Whether to print as little as possible.
        track: Names of trackers.
    """

    check: bool
    as_json: bool
    quiet: bool
    track: tuple[str, ...]


async def _hosts(
    resolved: Resolved,
    program: AgentProgram,
    pair: KeyPair | None,
    told: _Telling,
) -> int:
    from gossip.launch.local import runs
    from gossip.launch.report import PlainScreen, launchers
    from gossip.launch.track import tracked

    from . import resuming, survey, weighing
    from .swarm import HostsLauncher

    launch: HostsLauncher
    screen = PlainScreen(
        sys.stderr if told.as_json else None,
        every_s=10.0,
        quiet=told.quiet,
        name=lambda peer: launch.bracketed(peer),
    )
    launch = HostsLauncher(resolved.config, program, screen)
    try:
        if not told.quiet:
            screen.print_line(
                f"checking {counted(len(program.hosts), 'host')}: {', '.join(launch.places)}"
            )
        found = await launch.survey_hosts()
        resolved = weighing.by_bandwidth(
            resolved, program.hosts, found.addresses, found.measured, found.report
        )
        if program.saved:
            resolved, launch.resumes = resuming.from_hosts(
                resolved, program.saved, program.hosts, found
            )
        _print_report(found, told)
        survey.refuse(found)
        resolved = survey.with_keys(resolved, found)
        if told.check:
            return 0
        argv, config = without_values(sys.argv, program.program.script), resolved.config
        folder = runs.begin(resolved, argv, Path(program.workdir), pair)
        exchange = f"{config.weighted_topology}, {config.aggregator} (f={config.f})"
        if config.pipeline is not None:
            exchange += f", {len(config.pipeline.stages)} stages"
        screen.print_line(
            f"{config.name}: {counted(config.peers, 'peer')}, {exchange}, in {folder}"
        )
        runs.print_tolerance(resolved, screen.print_line)
        for line in placed(config, launch):
            screen.print_line(line)
        with (
            launchers.present(folder, range(config.peers)),
            tracked(told.track, folder, screen.print_line),
        ):
            outcome = await launch.run(folder, config)
    finally:
        await launch.close()
    return runs.finish(folder, outcome, screen, told.as_json)


def placed(config: RunConfig, launch: HostsLauncher) -> list[str]:
    """Return lines that show on which host each peer starts; in a pipeline one line for each
    stage."""
    if config.pipeline is None:
        return ["start   " + " ".join(launch.peer_name(peer) for peer in range(config.peers))]
    lines = []
    for number, stage in enumerate(config.pipeline.stages):
        who = " ".join(launch.peer_name(peer) for peer in stage.peers)
        first, last = stage.layers
        lines.append(f"start   stage {number}, layers {first}-{last}: {who}")
    return lines


def describe_peer(config: RunConfig, peer: int) -> str:
    """Return a text such as ``2``, or in a pipeline ``2 (lab3, stage 1)``."""
    plan = config.pipeline
    return (
        str(peer) if plan is None else f"{peer} ({plan.names[peer]}, stage {plan.stage_of(peer)})"
    )


def _print_report(found: HostSurvey, told: _Telling) -> None:
    if told.check and told.as_json:
        print(json.dumps({"addresses": dict(found.addresses), "lines": found.report.as_json()}))
        return
    out = sys.stderr if told.as_json else sys.stdout
    for line in found.report.as_text():
        if not told.quiet or not line.startswith("ok"):
            print(shown(line), file=out, flush=True)


def environment(asked: Sequence[str], inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that ``--env`` names, with their values.

    Raises: ConfigError: A name is invalid, is not set here, or is reserved for gossip's settings.
    """
    found = {}
    for word in asked:
        name, equals, value = word.partition("=")
        if not name.isidentifier():
            raise ConfigError(
                f"--env {word}: {name!r} is not a name of a variable",
                "--env NAME or --env NAME=VALUE",
            )
        # GOSSIP_KEY may differ between hosts: it is the file with the keys of a host's peers.
        if name.startswith("GOSSIP_") and name != "GOSSIP_KEY":
            raise ConfigError(
                f"--env {name}: settings of a run must be the same on all hosts",
                "set it here without --env, or as an option",
            )
        if not equals and name not in inherited:
            raise ConfigError(f"--env {name}: it is not set here", f"--env {name}=VALUE")
        found[name] = value if equals else inherited[name]
    return found


def check_list(config: RunConfig, hosts: Sequence[Host]) -> None:
    """Check the list of allowed peers. Raises: ConfigError: Its path is relative, so each host
    would read another file, or none."""
    elsewhere = [host.name for host in hosts if not host.is_local]
    if elsewhere and config.allowed and not Path(config.allowed).is_absolute():
        raise ConfigError(
            f"allowed = {config.allowed!r} is a relative path: "
            f"{', '.join(elsewhere)} would read another file",
            "each host has its own list, which is not sent: use an absolute path that exists "
            "on all of them",
        )


def without_values(argv: Sequence[str], script: str) -> list[str]:
    """Return the command line for the record. The values of ``--env``, which may be secrets, are
    left out. Arguments of the script are unchanged."""
    ours = next((at for at, word in enumerate(argv) if at and word in ("--", script)), len(argv))
    said = list(argv)
    for at, word in enumerate(argv[:ours]):
        before, name = (
            ("--env=", word[6:])
            if word.startswith("--env=")
            else ("", word if argv[at - 1] == "--env" else "")
        )
        if "=" in name:
            said[at] = f"{before}{name.partition('=')[0]}=(not shown)"
    return said


def in_words(config: RunConfig, program: AgentProgram) -> list[str]:
    """Describe the processes that would be started and the data that would be sent. Values that
    look like secrets are not shown."""
    from . import ssh
    from .hostlist import place

    lines = [
        (
            f"run     {config.name}: {counted(config.peers, 'peer')}, {config.topology}, "
            f"{config.aggregator} (f={config.f})"
        )
    ]
    lines += [f"serve   {config.server_weights}, others 1"] if config.server_weights else []
    for host in program.hosts:
        peers = place(program.hosts)[host.name]
        command = [ssh.python_of(host), "-u", *program.program.words]
        lines += [
            f"host    {host.name}: peers {' '.join(describe_peer(config, peer) for peer in peers)}",
            f"        {shlex.join(ssh.command(host, program.ssh, config.name))}",
            f"        in {host.workdir or program.workdir}: {shlex.join(command)}",
            f"        run folder {program.host_folder(host)}",
        ]
    for name, value in program.environment.items():
        hidden = any(word in name.upper() for word in SECRETIVE)
        lines.append(f"env     {name}={'(not shown)' if hidden else value}")
    lines += [] if program.environment else ["env     no variables are sent: --env NAME sends one"]
    return lines
