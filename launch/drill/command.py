"""``gossip drill``: injects faults into a live run, and reports their impact."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gossip.errors import ConfigError
from gossip.launch.optional import optional
from gossip.run import shown, shown_lines

RANDOM_KINDS = ("kill", "stop", "partition", "slow", "poison")
# maximum time to wait for restarted and leaving peers
BACK_S = 30.0
LOOK_S = 0.25

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

PeerList = Annotated[
    str, typer.Argument(metavar="PEERS", help="For example 3, or 0-4, or 1,5.", show_default=False)
]
For = Annotated[str, typer.Option("--for", help="How long: 5s, 500ms, 1m.")]
Settle = Annotated[str, typer.Option(help="How long to observe after it is over.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print the impact as JSON, and nothing else, to stdout.")
]


@app.callback()
def drill(
    context: typer.Context,
    run: Annotated[
        Path, typer.Argument(help="Folder of the run, or its name under runs/.", show_default=False)
    ],
) -> None:
    """Kill, stop, cut off, slow down or poison peers of a live run that allows it (gossip run
    --drills), have them leave, and report what it cost: gossip drill RUN kill 3"""
    context.obj = run


@app.command()
def kill(
    context: typer.Context,
    peers: PeerList,
    restart: Annotated[str, typer.Option(help="When to start it again.")] = "2s",
    for_good: Annotated[bool, typer.Option("--for-good", help="Do not start it again.")] = False,
    settle: Settle = "5s",
    as_json: Json = False,
) -> None:
    """Send SIGKILL to all processes of a peer."""
    order = {
        "drill": "kill",
        "peers": _peers(peers),
        "for_good": for_good,
        "restart_s": _seconds(restart),
    }
    _once(context, order, settle, as_json)


@app.command()
def stop(
    context: typer.Context,
    peers: PeerList,
    for_s: For = "5s",
    settle: Settle = "5s",
    as_json: Json = False,
) -> None:
    """Send SIGSTOP to all processes of a peer, and SIGCONT after the time of --for."""
    _once(
        context,
        {"drill": "stop", "peers": _peers(peers), "for_s": _seconds(for_s)},
        settle,
        as_json,
    )


@app.command()
def leave(
    context: typer.Context, peers: PeerList, settle: Settle = "5s", as_json: Json = False
) -> None:
    """Send SIGTERM to a peer, as a scheduler does at a preemption: it leaves after its round and
    is not restarted."""
    _once(context, {"drill": "leave", "peers": _peers(peers)}, settle, as_json)


@app.command()
def partition(
    context: typer.Context,
    sides: Annotated[
        list[str],
        typer.Argument(metavar="SIDE SIDE...", help="Peers of each: 0-4 5-7.", show_default=False),
    ],
    for_s: For = "10s",
    one_way: Annotated[
        bool,
        typer.Option(
            "--one-way", help="Only messages from an earlier side to a later one are lost."
        ),
    ] = False,
    settle: Settle = "5s",
    as_json: Json = False,
) -> None:
    """Block all messages between the sides. A peer on no side reaches all peers."""
    order = {
        "drill": "partition",
        "sides": [_peers(side) for side in sides],
        "for_s": _seconds(for_s),
        "one_way": one_way,
    }
    _once(context, order, settle, as_json)


@app.command()
def slow(
    context: typer.Context,
    peer: PeerList,
    factor: Annotated[float, typer.Option(help="How many times as long each step takes.")] = 4.0,
    for_s: For = "10s",
    settle: Settle = "5s",
    as_json: Json = False,
) -> None:
    """Make a peer's steps take longer."""
    _once(
        context,
        {"drill": "slow", "peers": _peers(peer), "factor": factor, "for_s": _seconds(for_s)},
        settle,
        as_json,
    )


@app.command()
def poison(
    context: typer.Context,
    peers: PeerList,
    attack: Annotated[
        str, typer.Option(help="What it sends in place of its update (docs/faults.md).")
    ] = "sign_flip",
    strength: Annotated[float | None, optional("Of the attack; its own one by default.")] = None,
    for_s: For = "10s",
    settle: Settle = "5s",
    as_json: Json = False,
) -> None:
    """Make peers send false updates."""
    order = {"drill": "poison", "peers": _peers(peers), "attack": attack, "for_s": _seconds(for_s)}
    _once(context, order if strength is None else {**order, "strength": strength}, settle, as_json)


@app.command()
def heal(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was healed as JSON.")] = False,
) -> None:
    """End every lasting drill: restore links, wake stopped peers, end slowness and false updates.
    Print what was ended."""
    from gossip.launch.local import ask

    answer = ask(_folder(context.obj), {"drill": "heal"})
    print(
        json.dumps({key: answer[key] for key in ("ended", "woken")})
        if as_json
        else shown(healed(answer))
    )


def healed(answer: Mapping[str, Any]) -> str:
    """Return a run's reply to ``heal`` as a line for the user."""
    from gossip.faults import peers_word

    woken = [f"woke {peers_word(tuple(sorted(answer['woken'])))}"] if answer["woken"] else []
    ended = [f"ended {word}" for word in answer["ended"]]
    return "healed: " + ("; ".join([*ended, *woken]) or "there was nothing to heal")


@app.command("random")
def at_random(
    context: typer.Context,
    every: Annotated[str, typer.Option(help="Time between two drills.")] = "5s",
    for_s: For = "1m",
    kinds: Annotated[
        str, typer.Option(help=f"Drawn from: {', '.join(RANDOM_KINDS)}.")
    ] = "kill,stop,partition",
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    settle: Settle = "5s",
    as_json: Json = False,
) -> None:
    """Run one drill after the other, drawn from a seed. Ctrl-C heals and reports."""
    from gossip.launch.local import RunUnreachable, ask

    folder, draw, pause_s = _folder(context.obj), random.Random(seed), _seconds(every)
    lasts_s, settle_s = _seconds(for_s), _seconds(settle)
    wanted = _random_kinds(kinds)
    if not wanted or pause_s <= 0:
        raise ConfigError(
            "random drills need a kind, and time between them", "--kinds kill,stop --every 5s"
        )
    say: Callable[[str], None] = (lambda text: None) if as_json else print
    began = time.monotonic()
    ends, until = began + lasts_s, began
    try:
        while time.monotonic() < ends:
            order = drawn(draw, wanted, _known(folder), pause_s)
            try:
                answer = ask(folder, order)
            except RunUnreachable as nobody:
                if time.monotonic() - began < pause_s:
                    raise  # The run never accepted a drill.
                say(f"{time.monotonic() - began:6.1f} s  {shown(nobody)}")
                break
            except ConfigError as error:
                # Its target has not returned from the last drill yet.
                say(f"not done: {_in_words(order)}: {shown(error)}")
            else:
                until = max(until, answer["until"])
                say(f"{time.monotonic() - began:6.1f} s  {_in_words(order)}")
            time.sleep(max(0.0, min(pause_s, ends - time.monotonic())))
    except KeyboardInterrupt:
        _heal_if_there(folder)
        until = time.monotonic()
    _report(folder, began, max(until, began), settle_s, as_json)


def _random_kinds(typed: str) -> list[str]:
    kinds = [kind.strip() for kind in typed.split(",") if kind.strip()]
    for kind in kinds:
        if kind not in RANDOM_KINDS:
            raise ConfigError(
                f"there is no drill {kind!r} to draw", f"there are {', '.join(RANDOM_KINDS)}"
            )
    return kinds


def drawn(
    draw: random.Random, kinds: list[str], peers: Sequence[int], pause_s: float
) -> dict[str, Any]:
    """Return a random drill that ends before the next one begins. A partition cuts off a minority,
    never half of the peers or more."""
    kind = draw.choice(kinds)
    peer, share, few = (
        draw.choice(peers),
        draw.uniform(0.2, 0.8),
        draw.sample(peers, max(1, (len(peers) - 1) // 2)),
    )
    for_s = round(share * pause_s, 3)
    match kind:
        case "kill":
            return {"drill": kind, "peers": [peer], "restart_s": for_s}
        case "stop":
            return {"drill": kind, "peers": [peer], "for_s": for_s}
        case "partition":
            cut_off = sorted(few[: draw.randrange(len(few)) + 1])
            return {
                "drill": kind,
                "sides": [[p for p in peers if p not in cut_off], cut_off],
                "for_s": for_s,
            }
        case "slow":
            return {"drill": kind, "peers": [peer], "factor": 4.0, "for_s": for_s}
        case _:
            return {"drill": kind, "peers": [peer], "attack": "sign_flip", "for_s": for_s}


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


def _once(context: typer.Context, order: Mapping[str, Any], settle: str, as_json: bool) -> None:
    from gossip.launch.local import ask

    folder, settle_s = _folder(context.obj), _seconds(settle)
    answer = ask(folder, order)
    if not as_json:
        print(f"drill {answer['number']}: {_in_words(order)}", flush=True)
    try:
        until = _wait(folder, answer["t"], answer["until"])
    except KeyboardInterrupt:
        _heal_if_there(folder)
        until = min(answer["until"], time.monotonic())
    _report(folder, answer["t"], until, settle_s, as_json)


def _wait(folder: Path, since: float, until: float) -> float:
    """Wait until the drill or the run is over, or all drills were healed. Return the time of the
    end."""
    from gossip.launch.local import RunUnreachable, who

    while (left_s := until - time.monotonic()) > 0:
        time.sleep(min(LOOK_S, left_s))
        try:
            _, healed_at = who(folder)
        except RunUnreachable:
            return min(until, time.monotonic())
        if healed_at >= since:
            return min(until, healed_at)
    return until


def _heal_if_there(folder: Path) -> None:
    from gossip.launch.local import RunUnreachable, ask

    with contextlib.suppress(RunUnreachable):  # A run that is over needs no healing.
        ask(folder, {"drill": "heal"})


def _report(folder: Path, since: float, until: float, settle_s: float, as_json: bool) -> None:
    """Print the impact, after the settling time or as soon as the run is over."""
    from gossip.launch.local import names
    from gossip.launch.report import RunFiles

    from . import impact

    while True:
        goes_on, now = bool(names(folder)), time.monotonic()
        if now >= until + settle_s or not goes_on:
            files, shift = RunFiles(folder), time.time() - time.monotonic()
            window = impact.DrillWindow(since + shift, until + shift, now + shift)
            found = impact.impact(_peer_count(folder), files.events(), files.commits(), window)
            on_its_way = any(
                hit["kind"] == "restart" and hit["back_ms"] is None for hit in found["hit"]
            )
            on_its_way |= any(gone["after_ms"] is None for gone in found["left"])
            if not (goes_on and on_its_way and now < until + settle_s + BACK_S):
                break
        time.sleep(LOOK_S)
    if as_json:
        print(json.dumps(found))
    else:
        print(shown_lines("\n".join(impact.lines(found))))


def _peer_count(folder: Path) -> int:
    from gossip.config import RunConfig

    return RunConfig.load(folder / "config.json").peers


def _known(folder: Path) -> list[int]:
    """Return all peers of the run: the first ones, and newcomers that have not ended."""
    from gossip.run import peers_in, read_seed

    seeds = folder / "seeds"
    later = [
        peer
        for peer in peers_in(seeds)
        if (seed := read_seed(seeds, peer)) is not None and not seed.ended
    ]
    return sorted({*range(_peer_count(folder)), *later})


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
