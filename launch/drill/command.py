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
    _order(context, "kill", peers, for_good=for_good, restart_s=restart)


@app.command()
def stop(
    context: typer.Context,
    peers: PeerList,
    for_s: For = "5s",
) -> None:
    """Send SIGSTOP to all processes of a peer, and SIGCONT after the time of --for."""
    _order(context, "stop", peers, for_s=for_s)


@app.command()
def leave(context: typer.Context, peers: PeerList) -> None:
    """Send SIGTERM to a peer, as a scheduler does at a preemption: it leaves after its round and
    is not restarted."""
    _order(context, "leave", peers)


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
    _order(context, "partition", sides, for_s=for_s, one_way=one_way)


@app.command()
def slow(
    context: typer.Context,
    peer: PeerList,
    factor: Annotated[float, typer.Option(help="Factor by which each step becomes longer.")] = 4.0,
    for_s: For = "10s",
) -> None:
    """Make a peer's steps take longer."""
    _order(context, "slow", peer, factor=factor, for_s=for_s)


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
    stated = {} if strength is None else {"strength": strength}
    _order(context, "poison", peers, attack=attack, for_s=for_s, **stated)


@app.command()
def heal(context: typer.Context) -> None:
    """End every lasting drill: restore links, wake stopped peers, end slowness and false updates.
    Print the faults that have ended."""
    print(shown(healed(_send(context, {"drill": "heal"}))))


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


def _order(context: typer.Context, drill: str, who: str | list[str], **fields: Any) -> None:
    """Send a drill to the run, and print the number and the fault that the run has started.

    Args:
        who: Peers, or the sides of a partition.
        fields: Further fields of the order. The durations are texts.
    """
    from gossip.faults import peers_of, seconds_of

    order: dict[str, Any] = {"drill": drill, **fields}
    if isinstance(who, str):
        order["peers"] = list(peers_of(who))
    else:
        order["sides"] = [list(peers_of(side)) for side in who]
    order |= {key: seconds_of(fields[key]) for key in ("for_s", "restart_s") if key in fields}
    answer = _send(context, order)
    print(f"drill {answer['number']}: {_in_words(order)}")


def _send(context: typer.Context, order: Mapping[str, Any]) -> dict[str, Any]:
    """Send an order to the run. Return the reply. Raises: ConfigError: There is no such run, or it
    cannot perform the order."""
    from gossip.launch.local import ask
    from gossip.launch.report import find

    return ask(find(str(context.obj)), order)
