"""Log of a run, line by line: messages with sender, receiver and arrival or loss, deaths of peers,
and commits."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from gossip.core import Effect, Event, Message, PeerId, events, messages
from gossip_lab.simulation.world import NS, AnySwarm, Observer

What = (
    Literal["sent", "arrived", "lied", "lost", "altered"]
    | Literal["started", "died", "halted", "committed", "aggregates", "reported", "link", "fault"]
)
Group = Literal["membership", "rounds", "joining"]
_GROUPS: dict[type, Group] = {
    **dict.fromkeys(
        (
            messages.Ping,
            messages.PingRequest,
            messages.Ack,
            messages.Nack,
            messages.PushPull,
            messages.Gossip,
        ),
        "membership",
    ),
    **dict.fromkeys(
        (messages.Hello, messages.StateRequest, messages.StateAttestation, messages.StateOffer),
        "joining",
    ),
}
RUMORS_SHOWN = 2

LOST = (
    *("no_link", "lost", "cut", "reset", "queue_full", "lost_by_reset", "gone"),
    *("malformed", "foreign_run", "own_name", "unwanted_payload", "withheld"),
)
"""Why a message never arrives, as the swarm counts it."""
ALTERED = ("corrupted", "spoiled", "duplicated", "reordered", "spiked", "queued")
"""Other effects on a message. A delay needs no line of its own: it is visible."""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One thing that happened at one peer, or (-1, a fault) in the network.

    ``sent`` and ``arrived`` carry the message and the other peer, and so do ``lied`` (what is said
    instead of what was sent), ``lost`` and ``altered``, whose ``text`` begins with what befell it;
    of the rest ``text`` says what it was.
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
        if self.message is not None:
            return _GROUPS.get(type(self.message), "rounds")
        return "membership" if self.what == "link" else "rounds"

    def __str__(self) -> str:
        there = f"-> {self.other}"
        arrow = {
            "sent": there,
            "arrived": f"<- {self.other}",
            "lied": there,
            "lost": f"-x {self.other}",
            "altered": there,
        }
        word = "" if self.what in ("sent", "arrived", "lost", "altered") else f"{self.what} "
        where = f"peer {self.peer}" if self.peer >= 0 else "network"
        return f"{self.t:11.6f}  {where} {arrow.get(self.what, ''):5} {word}{self.text}"


class Chart(Observer):
    """Keeps the last lines of a run, ``lines_max`` of them (None: all)."""

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
            f"goes on after {swarm.now - swarm.hosts[peer].paused_at_ns / NS:.3f} s",
        )

    def on_fault(self, swarm: AnySwarm, peer: PeerId, text: str) -> None:
        self._add(swarm, peer, "fault", text)

    def on_mishap(
        self, swarm: AnySwarm, peer: PeerId, to: PeerId, what: str, message: Message | None
    ) -> None:
        words = describe_message(message) if message is not None else "bytes that mean nothing"
        if what == "lied":
            self.lines.append(ChartLine(swarm.now, peer, "lied", words, message, to))
        elif what in LOST:
            self.lines.append(ChartLine(swarm.now, peer, "lost", f"{what}: {words}", message, to))
        elif what in ALTERED:
            self.lines.append(
                ChartLine(swarm.now, peer, "altered", f"{what}: {words}", message, to)
            )

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        match event:
            case events.Received(sender, _, message):
                self.lines.append(
                    ChartLine(
                        swarm.now, peer, "arrived", describe_message(message), message, sender
                    )
                )
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
                self.lines.append(
                    ChartLine(swarm.now, peer, "sent", describe_message(message), message, to)
                )
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

    def _add(self, swarm: AnySwarm, peer: PeerId, what: Any, text: str) -> None:
        self.lines.append(ChartLine(swarm.now, peer, what, text))


_Membership = (
    messages.Compiling
    | messages.GatherValue
    | messages.Ping
    | messages.PingRequest
    | messages.Ack
    | messages.Nack
    | messages.PushPull
    | messages.Gossip
)
_Rounds = (
    messages.Update
    | messages.Commit
    | messages.UpdateRequest
    | messages.PartialStatistics
    | messages.PartialOverdue
    | messages.ReceivingPayload
    | messages.NotServing
    | messages.CommitRequest
    | messages.Push
)
_Joining = messages.Hello | messages.StateRequest | messages.StateAttestation | messages.StateOffer


def describe_message(message: Message) -> str:
    """A message in a few words."""
    if isinstance(message, _Membership):
        return _describe_membership_message(message)
    if isinstance(message, _Joining):
        return _describe_joining_message(message)
    if isinstance(message, messages.PipelineMessage):
        return _describe_pipeline_message(message)
    return _describe_round_message(message)


def _describe_pipeline_message(message: messages.PipelineMessage) -> str:
    name, where = type(message).__name__, f"r{message.round_id} stage {message.stage}"
    match message:
        case messages.Counted() | messages.MicroBatchesMissing():
            return f"{name} {where}: {','.join(map(str, message.micro_batches)) or 'none'}"
        case messages.StageDone(committed=committed):
            return f"{name} {where}, {committed} committed"
        case messages.ActivationRefused(known=known):
            return f"{name} {where} b{message.micro_batch}, knows attempt {known}"
        case messages.AuditRequest() | messages.AuditReply() | messages.AuditFinding():
            return f"{name} {where} b{message.micro_batch} of {message.peer}"
        case messages.Activation() | messages.ActivationGradient() | messages.Withdraw():
            return f"{name} {where} b{message.micro_batch}{_attempt(message.attempt)}"


def _describe_round_message(message: _Rounds) -> str:
    match message:
        case messages.Update(_, round_id, shard, attempt, _, samples):
            return f"Update r{round_id}{_shard(shard)}{_attempt(attempt)} {samples} samples"
        case messages.Commit():
            made = f" made at {message.made_at}" if message.made_at != message.attempt else ""
            digest = f" #{message.digest.hex()[:4]}" if message.digest else " empty"
            return (
                "Commit "
                f"r{message.round_id}{_shard(message.shard)}{_attempt(message.attempt)}{made} by "
                f"{message.server}{digest}"
            )
        case messages.UpdateRequest(_, round_id, shard, attempt):
            return f"Query r{round_id}{_shard(shard)}{_attempt(attempt)}"
        case messages.PartialStatistics(_, round_id, shard, attempt, _, contributors):
            return (
                f"Partial r{round_id}{_shard(shard)}{_attempt(attempt)} of "
                f"{','.join(map(str, contributors))}"
            )
        case messages.PartialOverdue():
            where = f"r{message.round_id}{_shard(message.shard)}{_attempt(message.attempt)}"
            return f"Overdue {where}{', time is up' if message.time_is_up else ''}"
        case messages.ReceivingPayload():
            return f"Receiving, {message.received} bytes so far"
        case messages.NotServing(_, asked, shard, attempt, round_id):
            return f"NotMe r{asked}{_shard(shard)}{_attempt(attempt)}, I am at r{round_id}"
        case messages.CommitRequest(_, first, attempt):
            return f"CommitRequest from r{first}{_attempt(attempt)}"
        case messages.Push(_, round_id, what):
            return f"Push {what} r{round_id}"


def _describe_joining_message(message: _Joining) -> str:
    match message:
        case messages.Hello():
            return f"Hello r{message.round_id} {message.stage}"
        case messages.StateRequest(_, _, round_id, what):
            return f"StateRequest {what}" + (f" r{round_id}" if round_id else "")
        case messages.StateAttestation():
            return (
                f"StateAttestation r{message.round_id} {message.digest.hex()[:6] or message.reason}"
            )
        case messages.StateOffer():
            return (
                f"StateOffer r{message.round_id}"
                if message.digest
                else f"StateOffer none: {message.reason}"
            )


def _describe_membership_message(message: _Membership) -> str:
    name = type(message).__name__
    match message:
        case messages.Compiling():
            return "Compiling"
        case messages.GatherValue(_, number):
            return f"GatherValue {number}"
        case messages.Ping(_, target, rumors) | messages.PingRequest(_, target, rumors):
            return f"{name} {target}{_rumors(rumors)}"
        case messages.Ack(_, target, _, rumors):
            return f"Ack of {target}{_rumors(rumors)}"
        case messages.Nack(_, target):
            return f"Nack of {target}"
        case messages.PushPull(members, reply):
            missing = tuple(member for member in members if member.status != "alive")
            return f"PushPull{' reply' if reply else ''}{_rumors(missing)}"
        case messages.Gossip(rumors):
            return f"Gossip{_rumors(rumors)}"


def _rumors(rumors: tuple[messages.Rumor, ...]) -> str:
    if not rumors:
        return ""
    shown = " ".join(f"{r.peer}={r.status}.{r.incarnation}" for r in rumors[:RUMORS_SHOWN])
    more = len(rumors) - RUMORS_SHOWN
    return f" [{shown}{f' +{more}' if more > 0 else ''}]"


def _shard(shard: int) -> str:
    return f".{shard}" if shard else ""


def _attempt(attempt: int) -> str:
    return f" try {attempt}" if attempt else ""
