"""``gossip drill``: injects faults into a live run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gossip.launch.optional import optional
from gossip.run import shown

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

PeerList = Annotated[
    str, typer.Argument(metavar="PEERS", help="For example 3, or 0-4, or 1,5.", show_default=False)
]
For = Annotated[str, typer.Option("--for", help="Duration: 5s, 500ms, 1m.")]


@app.callback()
def drill(
    context: typer.Context,
    run: Annotated[
        Path, typer.Argument(help="Folder of the run, or its name under runs/.", show_default=False)
    ],
) -> None:
    """Kill, stop, cut off, slow down or poison peers of a live run that allows it (gossip run
    --drills), or have them leave: gossip drill RUN kill 3"""
    context.obj = run


@app.command()
def kill(
    context: typer.Context,
    peers: PeerList,
    restart: Annotated[str, typer.Option(help="Delay of the restart.")] = "2s",
    for_good: Annotated[bool, typer.Option("--for-good", help="Do not restart the peer.")] = False,
) -> None:
    """Send SIGKILL to all processes of a peer."""
    order = {
        "drill": "kill",
        "peers": _peers(peers),
        "for_good": for_good,
        "restart_s": _seconds(restart),
    }
    _order(context, order)


@app.command()
def stop(
    context: typer.Context,
    peers: PeerList,
    for_s: For = "5s",
) -> None:
    """Send SIGSTOP to all processes of a peer, and SIGCONT after the time of --for."""
    _order(
        context,
        {"drill": "stop", "peers": _peers(peers), "for_s": _seconds(for_s)},
    )


@app.command()
def leave(context: typer.Context, peers: PeerList) -> None:
    """Send SIGTERM to a peer, as a scheduler does at a preemption: it leaves after its round and
    is not restarted."""
    _order(context, {"drill": "leave", "peers": _peers(peers)})


@app.command()
def partition(
    context: typer.Context,
    sides: Annotated[
        list[str],
        typer.Argument(
            metavar="SIDE SIDE...", help="Peers of each side: 0-4 5-7.", show_default=False
        ),
    ],
    for_s: For = "10s",
    one_way: Annotated[
        bool,
        typer.Option(
            "--one-way", help="Only messages from an earlier side to a later one are lost."
        ),
    ] = False,
) -> None:
    """Block all messages between the sides. A peer on no side reaches all peers."""
    order = {
        "drill": "partition",
        "sides": [_peers(side) for side in sides],
        "for_s": _seconds(for_s),
        "one_way": one_way,
    }
    _order(context, order)


@app.command()
def slow(
    context: typer.Context,
    peer: PeerList,
    factor: Annotated[float, typer.Option(help="Factor by which each step becomes longer.")] = 4.0,
    for_s: For = "10s",
) -> None:
    """Make a peer's steps take longer."""
    _order(
        context,
        {"drill": "slow", "peers": _peers(peer), "factor": factor, "for_s": _seconds(for_s)},
    )


@app.command()
def poison(
    context: typer.Context,
    peers: PeerList,
    attack: Annotated[
        str, typer.Option(help="Attack that replaces the update (docs/faults.md).")
    ] = "sign_flip",
    strength: Annotated[
        float | None, optional("Strength of the attack; each attack has its default.")
    ] = None,
    for_s: For = "10s",
) -> None:
    """Make peers send false updates."""
    order = {"drill": "poison", "peers": _peers(peers), "attack": attack, "for_s": _seconds(for_s)}
    _order(context, order if strength is None else {**order, "strength": strength})


@app.command()
def heal(context: typer.Context) -> None:
    """End every lasting drill: restore links, wake stopped peers, end slowness and false updates.
    Print the faults that have ended."""
    from gossip.launch.local import ask

    print(shown(healed(ask(_folder(context.obj), {"drill": "heal"}))))


def healed(answer: Mapping[str, Any]) -> str:
    """Return a run's reply to ``heal`` as a line for the user."""
    from gossip.faults import peers_word

    woken = [f"woke {peers_word(tuple(sorted(answer['woken'])))}"] if answer["woken"] else []
    ended = [f"ended {word}" for word in answer["ended"]]
    return "healed: " + ("; ".join([*ended, *woken]) or "there was nothing to heal")


def _in_words(order: Mapping[str, Any]) -> str:
    from gossip.faults import peers_word

    sides = order.get("sides") or [order.get("peers") or ()]
    who = " | ".join(peers_word(tuple(side)) for side in sides)
    lasting = order.get("for_s", order.get("restart_s"))
    how = (
        f" by {order['factor']:g}"
        if "factor" in order
        else f" with {order['attack']}"
        if "attack" in order
        else ""
    )
    ends = (
        ""
        if lasting is None or order.get("for_good")
        else f", back after {lasting:g} s"
        if order["drill"] == "kill"
        else f" for {lasting:g} s"
    )
    return f"{order['drill']} {who}{how}{ends}"


def _order(context: typer.Context, order: Mapping[str, Any]) -> None:
    """Send a drill to the run, and print the number and the fault that the run has started."""
    from gossip.launch.local import ask

    answer = ask(_folder(context.obj), order)
    print(f"drill {answer['number']}: {_in_words(order)}")


def _folder(run: Path) -> Path:
    """Return the folder of a run. Raises: ConfigError: There is no such run."""
    from gossip.launch.report import find

    return find(str(run))


def _peers(text: str) -> list[int]:
    from gossip.faults import peers_of

    return list(peers_of(text))


def _seconds(text: str) -> float:
    from gossip.faults import seconds_of

    return seconds_of(text)
