"""``gossip join``: adds peers to a run in progress, by its folder or by the address of one of its
join servers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gossip.errors import ConfigError
from gossip.launch.optional import optional
from gossip.launch.options import Advertise, Arguments, Json, Output, Port, Quiet

if TYPE_CHECKING:
    from gossip.launch.local import Program
    from gossip.launch.report import About, Screen


def join(
    run: Annotated[
        str,
        typer.Argument(
            help="Folder of the run, its name under runs/, or HOST:PORT.", show_default=False
        ),
    ],
    script: Annotated[
        str | None,
        typer.Argument(
            help="Your script; if RUN is a folder, by default its script.", show_default=False
        ),
    ] = None,
    arguments: Arguments = None,
    count: Annotated[int, typer.Option("-n", "--peers", min=1, help="How many peers to add.")] = 1,
    seed: Annotated[
        list[str] | None,
        typer.Option(help="Another HOST:PORT to try; one that replies is enough. Repeatable."),
    ] = None,
    key: Annotated[Path | None, optional("The run's swarm key: runs/NAME/swarm.key.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Join a run that has no keys.")
    ] = False,
    advertise: Advertise = "",
    port: Port = 0,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to try before giving up.")] = 10.0,
    code: Annotated[
        list[str] | None,
        typer.Option(help="Code of the run that may run here: my_rules.py:midpoint. Repeatable."),
    ] = None,
    run_dir: Annotated[Path | None, optional("Folder to make when joining by an address.")] = None,
    output: Output = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Add peers to a running training, if it has room: gossip join -n 2 runs/NAME, gossip join
    10.0.0.5:7421 -- train.py"""
    from gossip.launch.report import About, PlainScreen, screen_for

    own = _after_dashes(script, arguments or [])
    show = partial(screen_for, as_json=as_json, quiet=quiet, output=output)
    if not _is_address(run):
        if seed or key or insecure or advertise or port or run_dir or code:
            raise ConfigError(
                f"{run} is a folder, which needs no address or key",
                "leave them out, or use HOST:PORT of a join server",
            )
        _by_folder(run, own, count, show, as_json)
        return
    from gossip.launch.local import runs

    from . import arriving

    insecure = insecure or os.environ.get("GOSSIP_INSECURE", "").lower() in (
        "1",
        "true",
        "yes",
        "on",
    )
    ticket = arriving.JoinTicket(
        (run, *(seed or ())),
        count,
        key,
        insecure,
        advertise,
        port,
        run_dir,
        timeout,
        tuple(code or ()),
    )
    on_the_way = PlainScreen(sys.stderr if as_json else None, quiet=quiet)
    arrival = arriving.arrive(ticket, own, on_the_way.print_line)
    config = arrival.config
    about = About(config.name, f"joining as {_named(arrival.newcomers)}", config.run_dir)
    screen = show(about)
    outcome = runs.train(
        arrival.config, arrival.program, screen, arrival.newcomers, arrival.endpoint
    )
    raise typer.Exit(runs.finish(Path(arrival.config.run_dir), outcome, screen, as_json))


def _by_folder(
    run: str,
    own: Program | None,
    count: int,
    show: Callable[[About], Screen],
    as_json: bool,
) -> None:
    from gossip.launch.local import feasible, runs
    from gossip.launch.report import About

    from . import joining

    place = joining.find_joinable(run)
    program, folder = joining.program(place, own)
    feasible.check_memory(count)
    newcomers = joining.claim_ids(place, count)
    what = f"joining as {_named(newcomers)}"
    screen = show(About(place.config.name, what, str(place.folder)))
    os.chdir(folder)  # The other peers started there, and may use relative paths.
    if difference := joining.difference(place, program.folder):
        screen.print_line(difference)
    outcome = runs.train(place.config, program, screen, newcomers)
    raise typer.Exit(runs.finish(place.folder, outcome, screen, as_json))


def _named(newcomers: dict[int, int]) -> str:
    return f"{'peers' if len(newcomers) > 1 else 'peer'} {', '.join(map(str, newcomers))}"


def _after_dashes(script: str | None, arguments: Sequence[str]) -> Program | None:
    """Return the program after the options; a ``--`` before it is optional."""
    words = [*([script] if script is not None else []), *arguments]
    if words[:1] == ["--"]:
        words = words[1:]
    elif words and words[0].startswith("-"):
        raise ConfigError(
            f"{words[0]} follows the run: options come before the run",
            f"gossip join {words[0]} ... RUN -- train.py",
        )
    from gossip.launch.local import Program

    return Program.of(words) if words else None


def _is_address(run: str) -> bool:
    """Whether ``run`` is meant as HOST:PORT: there is no folder with this name, and a number
    follows the last colon."""
    if Path(run).exists():
        return False
    _, colon, port = run.rpartition(":")
    return bool(colon) and port.isdecimal()
