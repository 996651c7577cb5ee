"""``gossip bench links``: how fast payloads pass from one peer to another, over each lane there is
and in each encoding; beside a bare connection."""

from __future__ import annotations

from typing import Annotated

import typer

from gossip.errors import ConfigError

from .exchange import Json, Numbers, Repetitions, ended_by_signals
from .turns import REPETITIONS, as_json

NUMBERS, ENCODINGS = [262_144, 2_097_152], ["float32", "bf16", "int8"]


def links(
    numbers: Numbers = NUMBERS,
    encoding: Annotated[
        list[str], typer.Option(help="How updates travel. Repeatable.")
    ] = ENCODINGS,
    repetitions: Repetitions = REPETITIONS,
    host: Annotated[str, typer.Option(help="Address of this end.")] = "127.0.0.1",
    other_host: Annotated[
        str, typer.Option(help="Address of the other end; this host's by default.")
    ] = "",
    via: Annotated[
        str,
        typer.Option(help="What starts a command at the other end: 'ssh lab2', 'ip netns exec b'."),
    ] = "",
    as_json_only: Json = False,
) -> None:
    """Measure links between two peers: MiB of numbers a second, processor time, and round trips.

    A payload counts as its numbers in float32, whatever travels: so encodings are compared by what
    they are for. Each is encoded, sent, checked and decoded; four are under way at a time. All ways
    take turns in one run. Processor time is that of both ends.
    """
    from gossip.transport import is_loopback

    from .link_turns import LinkTurns

    if other_host and not via and not is_loopback(other_host):
        raise ConfigError(
            f"no process listens at {other_host}", "--via gives the command that starts one there"
        )
    with ended_by_signals(), LinkTurns(host, other_host or host, via) as bench:
        tables = [bench.table(count, encoding, repetitions, as_json_only) for count in numbers]
    if as_json_only:
        print(as_json("links", {"tables": tables}))
