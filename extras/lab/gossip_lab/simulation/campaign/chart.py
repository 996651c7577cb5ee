"""Event log of a simulated run: messages that were sent, arrived or got lost, deaths of peers,
commits and faults."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from gossip.core import Effect, Event, MembershipMessage, Message, PeerId, events, messages
from gossip_lab.simulation.world import NS, AnySwarm, Observer

What = (
    Literal["sent", "arrived", "lied", "lost", "altered"]
    | Literal["started", "died", "halted", "committed", "aggregates", "reported", "link", "fault"]
)
Group = Literal["membership", "rounds", "joining"]
JoiningMessage = (
    messages.Hello | messages.StateRequest | messages.StateAttestation | messages.StateOffer
)
RUMORS_SHOWN = 2
_PLACE = ("round_id", "shard", "stage", "micro_batch", "micro_batches", "attempt", "peer")

LOST = (
    *("no_link", "lost", "cut", "reset", "queue_full", "lost_by_reset", "gone"),
    *("malformed", "foreign_run", "own_name", "unwanted_payload", "withheld"),
)
"""Keys under which the swarm counts messages that never arrive."""
ALTERED = ("corrupted", "spoiled", "duplicated", "reordered", "spiked", "queued")
"""Keys under which the swarm counts other effects on a message. A delay has no line of its own,
because the times show it."""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One event at one peer. A fault of the network has the peer -1.

    Events of the kinds ``sent``, ``arrived``, ``lied``, ``lost`` and ``altered`` have the message
    and the other peer. For ``lied``, it is the false message that was sent. For ``lost`` and
    ``altered``, ``text`` begins with the effect on the message. For all other kinds, ``text``
    describes the event.
    """

    t: float
    peer: PeerId
    what: What
    text: str
    message: Message | None = None
    other: PeerId = -1

    @property
    def group(self) -> Group:
        """Topic of the line."""
        if isinstance(self.message, JoiningMessage):
            return "joining"
        is_membership = isinstance(self.message, MembershipMessage) or self.what == "link"
        return "membership" if is_membership else "rounds"

    def __str__(self) -> str:
        sign = {"arrived": "<-", "lost": "-x"}.get(self.what, "->")
        arrow = f"{sign} {self.other}" if self.other >= 0 else ""
        word = "" if self.what in ("sent", "arrived", "lost", "altered") else f"{self.what} "
        where = f"peer {self.peer}" if self.peer >= 0 else "network"
        return f"{self.t:11.6f}  {where} {arrow:5} {word}{self.text}"


class Chart(Observer):
    """Records the last ``lines_max`` events of a run, or all if it is None."""

    def __init__(self, lines_max: int | None = 20_000) -> None:
        self.lines: deque[ChartLine] = deque(maxlen=lines_max)

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._add(swarm, peer, "started", f"incarnation {swarm.hosts[peer].incarnation}")

    def on_crash(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._add(swarm, peer, "died", "")

    def on_resume(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._add(
            swarm,
            peer,
            "fault",
            f"continues after {swarm.now - swarm.hosts[peer].paused_at_ns / NS:.3f} s",
        )

    def on_fault(self, swarm: AnySwarm, peer: PeerId, text: str) -> None:
        self._add(swarm, peer, "fault", text)

    def on_mishap(
        self, swarm: AnySwarm, peer: PeerId, to: PeerId, what: str, message: Message | None
    ) -> None:
        words = describe_message(message) if message is not None else "meaningless bytes"
        if what == "lied":
            self._add(swarm, peer, "lied", words, message, to)
        elif what in LOST:
            self._add(swarm, peer, "lost", f"{what}: {words}", message, to)
        elif what in ALTERED:
            self._add(swarm, peer, "altered", f"{what}: {words}", message, to)

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        match event:
            case events.Received(sender, _, message):
                self._add(swarm, peer, "arrived", describe_message(message), message, sender)
            case events.LinkDown(other, reason):
                self._add(swarm, peer, "link", f"to {other} is down: {reason}")
            case events.LinkUp(other):
                self._add(swarm, peer, "link", f"to {other} is up")
            case events.ClockJumped(late_s):
                self._add(swarm, peer, "reported", f"woke up {late_s:.3f} s late")
            case _:
                pass

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        match effect:
            case events.Send(to, message):
                self._add(swarm, peer, "sent", describe_message(message), message, to)
            case events.Committed(commit, chain):
                self._add(
                    swarm,
                    peer,
                    "committed",
                    f"round {commit.round_id} #{chain.hex()[:6]} by {commit.server}",
                )
            case events.Aggregate():
                rows = ",".join(str(row.peer) for row in effect.rows)
                step = "" if effect.step == "whole" else f"{_shard(effect.shard)} {effect.step}"
                self._add(swarm, peer, "aggregates", f"round {effect.round_id}{step} of {rows}")
            case events.Halt(reason, exit_code):
                self._add(swarm, peer, "halted", f"{reason} (exit {exit_code})")
            case events.Report(event, fields) if event != "round":
                about = ", ".join(f"{key}={value}" for key, value in islice(fields.items(), 4))
                self._add(swarm, peer, "reported", f"{event} {about}".strip())
            case _:
                pass

    def _add(self, swarm: AnySwarm, peer: PeerId, what: What, text: str, *about: Any) -> None:
        self.lines.append(ChartLine(swarm.now, peer, what, text, *about))


_DETAILS: dict[type, Callable[[Any], str]] = {
    messages.Update: lambda update: f"{update.samples} samples",
    messages.Commit: lambda commit: (
        (f"made at {commit.made_at} " if commit.made_at != commit.attempt else "")
        + f"by {commit.server}{_digest(commit.digest) or ' empty'}"
    ),
    messages.NotServing: lambda answer: f"asked r{answer.asked_round}",
    messages.PartialStatistics: lambda part: f"of {_listed(part.contributors)}",
    messages.PartialOverdue: lambda overdue: "time is up" if overdue.time_is_up else "",
    messages.ReceivingPayload: lambda receiving: f"{receiving.received} bytes so far",
    messages.CommitRequest: lambda request: f"from r{request.first}",
    messages.Push: lambda push: push.what,
    messages.GatherValue: lambda value: str(value.number),
    messages.Ping: lambda ping: f"{ping.target}{_rumors(ping.rumors)}",
    messages.PingRequest: lambda request: f"{request.target}{_rumors(request.rumors)}",
    messages.Ack: lambda ack: f"of {ack.target}{_rumors(ack.rumors)}",
    messages.Nack: lambda nack: f"of {nack.target}",
    messages.PushPull: lambda push: (
        ("reply" if push.reply else "")
        + _rumors(tuple(member for member in push.members if member.status != "alive"))
    ),
    messages.Gossip: lambda gossip: _rumors(gossip.rumors).strip(),
    messages.StateRequest: lambda request: request.what,
    messages.StateAttestation: lambda answer: _digest(answer.digest).strip() or answer.reason,
    messages.StateOffer: lambda offer: "" if offer.digest else f"none: {offer.reason}",
    messages.StageDone: lambda done: f"{done.committed} committed",
    messages.ActivationRefused: lambda refused: f"knows attempt {refused.known}",
}
"""Type of message -> text with its details, apart from name, round, shard, stage, micro-batches and
attempt."""


def describe_message(message: Message) -> str:
    """Describe a message in a few words."""
    words = [type(message).__name__, *_place(message)]
    if (details := _DETAILS.get(type(message))) is not None:
        words += [details(message)] if details(message) else []
    return " ".join(words)


def _place(message: Any) -> Iterator[str]:
    """Yield texts for the round, shard, stage, micro-batches, attempt and peer that a message
    has."""
    found = {name: getattr(message, name) for name in _PLACE if hasattr(message, name)}
    if "round_id" in found:
        yield f"r{found['round_id']}{_shard(found.get('shard', 0))}"
    if "stage" in found:  # index of a pipeline stage, or name of a phase
        yield f"stage {found['stage']}" if isinstance(found["stage"], int) else found["stage"]
    if "micro_batch" in found:
        yield f"b{found['micro_batch']}"
    if found.get("micro_batches"):
        yield f"b{_listed(found['micro_batches'])}"
    if found.get("attempt"):
        yield f"try {found['attempt']}"
    if "peer" in found:
        yield f"of {found['peer']}"


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _digest(digest: bytes) -> str:
    return f" #{digest.hex()[:4]}" if digest else ""


def _rumors(rumors: tuple[messages.Rumor, ...]) -> str:
    if not rumors:
        return ""
    shown = " ".join(f"{r.peer}={r.status}.{r.incarnation}" for r in rumors[:RUMORS_SHOWN])
    more = len(rumors) - RUMORS_SHOWN
    return f" [{shown}{f' +{more}' if more > 0 else ''}]"


def _shard(shard: int) -> str:
    return f".{shard}" if shard else ""
