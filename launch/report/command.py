"""Commands for existing runs: ``gossip ls``, ``top``, ``logs``, ``stop``, ``explain``, ``rm``,
``report``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gossip.launch.optional import optional

from .words import bytes_word, figure, line_width, named, print_lines, short_bytes

if TYPE_CHECKING:
    from .run_logs import Write
    from .run_state import RunState

Run = Annotated[
    str, typer.Argument(help="Folder of the run, or its name under runs/.", show_default=False)
]
Dir = Annotated[Path, typer.Option("--dir", help="Folder with the runs' folders.")]
EXIT_CODE_MAX = 255


def ls(
    runs: Dir = Path("runs"),
    as_json: Annotated[bool, optional("Print the list as JSON.", "--json")] = False,
) -> None:
    """List runs, the latest first, with state, progress and exit code."""
    from gossip.run import shown

    from . import run_state
    from .removing import size_of

    found = [run_state.RunState(folder) for folder in run_state.folders(runs)]
    sizes = [size_of(run.folder) for run in found]
    if as_json:
        rows = zip(found, sizes, strict=True)
        print(json.dumps([{**run.to_json(), "bytes": size} for run, size in rows]))
    elif not found:
        print(f"no runs in {runs}/" + ("" if runs.is_dir() else ": there is no such folder"))
    else:
        print("\n".join(table(found, time.time(), sizes)))
    for line in [line for run in found for line in run.broken]:
        print(f"! {shown(line)}", file=sys.stderr)


def table(runs: list[RunState], now: float, sizes: list[int]) -> list[str]:
    """Return a header and one line for each run. ``sizes``: size of each run's folder, in bytes."""
    rows = [("name", "state", "peers", "round", "began", "size", "acc", "loss", "exit")]
    for run, size in zip(runs, sizes, strict=True):
        alive = f"{run.alive}/{run.peers}" if run.alive is not None else str(run.peers)
        at = (
            "-"
            if run.round is None
            else f"{run.round}/{run.settings.rounds}"
            if run.settings.rounds
            else str(run.round)
        )
        code = run.outcome.exit_code
        state = run.state if run.state != "elsewhere" else run.in_words
        rows.append(
            (
                run.name,
                state,
                alive,
                at,
                _ago(run.environment.started, now),
                short_bytes(size),
                figure(run.accuracy),
                figure(run.loss),
                "-" if code is None else f"{code} {run.status}",
            )
        )
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _ago(then: float | None, now: float) -> str:
    """Return the time since ``then`` in the largest unit in which it is at least 2."""
    if then is None:
        return "-"
    seconds = max(0.0, now - then)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def top(
    run: Annotated[
        str | None,
        typer.Argument(
            help="Folder of the run, or its name under runs/; by default the latest running run.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[bool, optional("Print the state once, with all peers.", "--once")] = False,
    every: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two updates of the screen.")
    ] = 1.0,
    as_json: Annotated[bool, optional("Print the state once, as JSON.", "--json")] = False,
    runs: Dir = Path("runs"),
) -> None:
    """Show the state of a run and its peers, while it trains or afterwards: gossip top RUN"""
    from . import top as looking

    folder = looking.choose(run, runs)
    if as_json:
        looking.show_json(folder)
    else:
        looking.show(folder, once, every)


def logs(
    run: Run,
    peers: Annotated[
        str | None,
        typer.Argument(help="Only these peers: 2, or 0-3,5; or -p.", show_default=False),
    ] = None,
    also: Annotated[str | None, optional("Only these peers.", "-p", "--peer")] = None,
    goes_on: Annotated[
        bool,
        optional("Print new lines until the run is over.", "-f", "--follow"),
    ] = False,
    lines: Annotated[
        int | None, optional("Number of last lines of each peer.", "-n", "--lines", min=0)
    ] = None,
    runs: Dir = Path("runs"),
) -> None:
    """Show the output of a run's peers, each line with its peer in front: gossip logs -f RUN"""
    from gossip.errors import ConfigError

    from . import run_logs, run_state

    folder = run_state.find(run, runs)
    wanted = _wanted(",".join(filter(None, (peers, also))) or None)
    there = run_logs.peers_with_logs(folder)
    chosen = [peer for peer in there if wanted is None or peer in wanted]
    if wanted is not None and (missing := sorted(set(wanted) - set(there))) and not goes_on:
        raise ConfigError(
            f"there is no log of {named(missing)}",
            f"{folder} has logs of {named(there) or 'no peer'}",
        )
    write = _writer(max([*there, *(wanted or ())], default=0))
    try:
        tails = run_logs.show(folder, chosen, lines, write)
        for tail in tails.values():
            if tail.why_not:
                print(f"! {tail.why_not}", file=sys.stderr)
        if goes_on:
            run_logs.follow(
                folder,
                tails,
                wanted=lambda peer: wanted is None or peer in wanted,
                goes_on=lambda: run_state.RunState(folder).state in ("running", "elsewhere"),
                write=write,
            )
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if tails and all(tail.why_not for tail in tails.values()):
        raise typer.Exit(ConfigError.exit_code)


def _wanted(peers: str | None) -> tuple[int, ...] | None:
    from gossip.errors import BadFault, ConfigError
    from gossip.faults import peers_of

    try:
        return None if peers is None else peers_of(peers)
    except BadFault as error:
        raise ConfigError(f"{peers}: no such peers", error.hint) from None


def _writer(most: int) -> Write:
    """Return a function that prints a line with its peer in front, in colour on a terminal."""
    from rich.console import Console
    from rich.text import Text

    from gossip.run import shown_line

    from .peer_table import COLOURS

    console, width = Console(highlight=False, soft_wrap=True), len(str(most))
    if not console.is_terminal:
        return lambda peer, line: print(f"{peer:>{width}}| {shown_line(line)}", flush=True)
    return lambda peer, line: console.print(
        Text.assemble((f"{peer:>{width}}| ", COLOURS[peer % len(COLOURS)]), shown_line(line))
    )


def stop(
    run: Run,
    now: Annotated[
        bool,
        optional(
            "Kill the peers at once; otherwise each peer finishes its round and leaves.", "--now"
        ),
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for the end.")] = 60.0,
    runs: Dir = Path("runs"),
) -> None:
    """End a run properly, and wait until all its processes have ended: gossip stop RUN"""
    from gossip.run import shown

    from . import run_state, stopping

    stopping.stop(
        run_state.RunState(run_state.find(run, runs)),
        now,
        timeout,
        lambda line: print(shown(line), flush=True),
    )


def explain(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[CODE|RUN]", help="Exit code, or the name of a run.", show_default=False
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Argument(
            metavar="[PEER|@ROUND]", help="Only this peer or round of the run.", show_default=False
        ),
    ] = None,
    runs: Dir = Path("runs"),
) -> None:
    """Explain an exit code, a run, a peer or a round: gossip explain 5, gossip explain RUN,
    gossip explain RUN 3, gossip explain RUN @120"""
    from gossip.run import shown

    if what is None or (what.isdecimal() and part is None):
        _explain_codes(what)
        return
    from . import run_state
    from .explain import explain as sentences
    from .top import PLAIN_WIDTH

    width = line_width() or PLAIN_WIDTH
    print_lines(map(shown, sentences(run_state.find(what, runs), part, width)))


def _explain_codes(code: str | None) -> None:
    from gossip.errors import ConfigError

    from . import exit_codes

    if code is not None and int(code) > EXIT_CODE_MAX:
        raise ConfigError(f"{code} is not an exit code", f"exit codes are 0 to {EXIT_CODE_MAX}")
    for each in exit_codes.CODES if code is None else (int(code),):
        print_lines(exit_codes.explain(each))


def rm(
    run: Run,
    with_checkpoints: Annotated[
        bool, optional("Also remove the run's checkpoints.", "--checkpoints")
    ] = False,
    yes: Annotated[bool, optional("Do not ask for confirmation.", "--yes", "-y")] = False,
    runs: Dir = Path("runs"),
) -> None:
    """Remove the files of a run that has ended; checkpoints stay: gossip rm RUN"""
    from gossip.errors import ConfigError
    from gossip.run import shown

    from . import removing, run_state

    state = run_state.RunState(run_state.find(run, runs))
    removal = removing.plan(state, with_checkpoints)
    if removal.checkpoints and (others := removing.shared_with(state)):
        raise ConfigError(
            f"{', '.join(others)} saved checkpoints into the same folder: nothing was removed",
            "leave out --checkpoints, or remove the checkpoints yourself",
        )
    what = f"{shown(state.folder)}, {bytes_word(removal.nbytes)}"
    if removal.checkpoints:
        what += f", with {len(removal.checkpoints)} checkpoints in {removal.checkpoints[0].parent}"
    for line in removal.kept:
        print(f"stays: {shown(line)}")
    if not yes and not sys.stdin.isatty():
        raise ConfigError(f"remove {what}? stdin is not a terminal", "gossip rm RUN --yes")
    if not yes and not typer.confirm(f"remove {what}?"):
        print("nothing was removed")
        return
    removing.carry_out(removal)
    print(f"removed {what}")


def report(
    run: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Folder of the run, or its name under runs/; several are compared.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        optional("File of the page; by default in the folder of the first run.", "--out", "-o"),
    ] = None,
    runs: Dir = Path("runs"),
) -> None:
    """Make one HTML file of a run: incidents, curves, members, trust, rounds: gossip report RUN;
    or one that compares runs: gossip report RUN RUN"""
    from . import run_state
    from .html import page

    page.write(list(dict.fromkeys(run_state.find(each, runs) for each in run)), out)


COMMANDS = (ls, top, logs, stop, explain, rm, report)
