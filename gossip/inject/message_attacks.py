"""What a Byzantine node says of updates, of results, of who is alive: each lie a function, known by
its name in a fault plan.

Liars cannot speak in another's name: on the wire a sender is known by its key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from gossip.core import (
    REFUTATIONS,
    ROUND_MAX,
    Ack,
    Commit,
    Envelope,
    Gossip,
    PartialStatistics,
    Payload,
    PeerId,
    Ping,
    Push as PushMessage,
    PushPull,
    Rumor,
    Status,
    Update,
)

from . import state_attacks as state_lies  # noqa: F401 - its lies have names, too
from .byzantine import LIES, ByzantinePeer, OutMessage, lie, say

__all__ = ["LIES"]

OFTEN = 0.1  # of the messages that could carry a lie about others, so many do
HUGE = np.float32(1e30)
STATUSES: tuple[Status, ...] = ("alive", "suspect", "dead", "left")
STRANGERS = 10_000  # from which id on nobody is of the run


# --- updates --------------------------------------------------------------------------------------


def _tampered(
    attacker: ByzantinePeer,
    to: PeerId,
    envelope: Envelope,
    payload: Payload | None,
    tamper_with: Callable[[Any], Any],
) -> list[OutMessage] | None:
    if payload is None or not isinstance(envelope.message, Update | PushMessage):
        return None
    with np.errstate(over="ignore"):
        return [(to, envelope, attacker.forge(tamper_with(payload.data)))]


@lie
def sign_flip(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Sends its update with the opposite sign."""
    return _tampered(attacker, to, envelope, payload, lambda update: -update)


@lie
def nan(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Sends NaN for its update."""
    return _tampered(attacker, to, envelope, payload, lambda update: np.full_like(update, np.nan))


@lie
def huge(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Sends its update times 1e30, which overflows when it is squared."""
    return _tampered(attacker, to, envelope, payload, lambda update: update * HUGE)


@lie
def two_updates(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Equivocates: another update for each receiver."""
    return _tampered(attacker, to, envelope, payload, lambda update: update * np.float32(1 + to))


@lie
def wrong_size(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Sends payloads that are one element too long."""
    if payload is None or not isinstance(envelope.message, Update | PushMessage | Commit):
        return None
    longer, message = np.append(payload.data, np.float32(1.0)), envelope.message
    return [
        (to, envelope, attacker.forge(longer, message if isinstance(message, Commit) else None))
    ]


# --- results --------------------------------------------------------------------------------------


def _own_result(
    attacker: ByzantinePeer, envelope: Envelope, payload: Payload | None
) -> Payload | None:
    """What the liar has aggregated itself, when it is about to tell it."""
    return (
        payload
        if isinstance(envelope.message, Commit) and envelope.message.server == attacker.peer
        else None
    )


def _forged_result(
    attacker: ByzantinePeer,
    name: str,
    envelope: Envelope,
    truth: Payload,
    tamper_with: Callable[[Any], Any],
) -> Payload:
    assert isinstance(envelope.message, Commit)
    return attacker.once(
        (name, envelope.message.digest),
        lambda: attacker.forge(tamper_with(truth.data), envelope.message),
    )


def _instead(
    attacker: ByzantinePeer,
    name: str,
    said: tuple[PeerId, Envelope, Payload | None],
    tamper_with: Callable[[Any], Any],
) -> list[OutMessage] | None:
    """Another result than the rule's, with the digest to match,
    under which the liar never says anything else."""
    to, envelope, payload = said
    truth = _own_result(attacker, envelope, payload)
    if truth is None or (
        isinstance(envelope.message, Commit) and envelope.message.digest in attacker.forged
    ):
        return None
    content = _forged_result(attacker, name, envelope, truth, tamper_with)
    attacker.forged.add(content.digest)
    return [(to, say(envelope, digest=content.digest), content)]


@lie
def wrong_results(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """As a server it commits another aggregate than the rule gave, the same to everybody, with the
    digest to match."""
    return _instead(attacker, "wrong", (to, envelope, payload), lambda result: -result)


@lie
def scaled_results(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """As a server it commits a thousand times the aggregate that the rule gave."""
    return _instead(
        attacker, "scaled", (to, envelope, payload), lambda result: result * np.float32(1000)
    )


@lie
def slightly_wrong_results(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """As a server it commits an aggregate that is a little longer than the rule's: nobody can tell
    it from a true one."""
    return _instead(
        attacker, "slightly", (to, envelope, payload), lambda result: result * np.float32(1.01)
    )


@lie
def broken_results(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """As a server it sends an aggregate that its own digest does not fit."""
    truth = _own_result(attacker, envelope, payload)
    if truth is None:
        return None
    return [
        (
            to,
            envelope,
            _forged_result(
                attacker, "broken", envelope, truth, lambda result: result + np.float32(1.0)
            ),
        )
    ]


@lie
def kept_results(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """As a server it tells nobody what it has made of their updates."""
    return None if _own_result(attacker, envelope, payload) is None else []


@lie
def nan_results(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """As a server it commits NaN, with the digest to match."""
    truth = _own_result(attacker, envelope, payload)
    if truth is None:
        return None
    content = _forged_result(
        attacker, "nan", envelope, truth, lambda result: np.full_like(result, np.nan)
    )
    return [(to, say(envelope, digest=content.digest), content)]


@lie
def two_results(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Equivocates: as a server it commits one aggregate to peers of even number and
    another to the rest."""
    if not to % 2:
        return None
    return wrong_results(attacker, to, envelope, payload)  # type: ignore[return-value]


@lie
def last_results(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """If it serves the last round of the run it gives one peer another result than all others:
    nobody can tell it from a true one, and there is no next round in which it
    would be found out."""
    message = envelope.message
    last = (
        isinstance(message, Commit)
        and attacker.rounds is not None
        and message.round_id == attacker.rounds - 1
    )
    victim = min([peer for peer in attacker.peers if peer != attacker.peer], default=attacker.peer)
    if not last or to != victim:
        return None
    return slightly_wrong_results(attacker, to, envelope, payload)  # type: ignore[return-value]


@lie
def strange_roster(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """As a server it names a roster with somebody in it who is not of the run."""
    if _own_result(attacker, envelope, payload) is None or not isinstance(envelope.message, Commit):
        return None
    return [(to, say(envelope, roster=(*envelope.message.roster, STRANGERS)), payload)]


def _claims(attacker: ByzantinePeer, envelope: Envelope, payload: Payload | None) -> Commit | None:
    """Its own commit of the first shard, which speaks for all of rates and roster."""
    message = envelope.message
    mine = isinstance(message, Commit) and message.server == attacker.peer and message.shard == 0
    return message if mine and isinstance(message, Commit) else None


@lie
def high_rates(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """As a server it commits a thousand times the learning rates that all should step with."""
    commit = _claims(attacker, envelope, payload)
    if commit is None or not commit.rates:
        return None
    return [(to, say(envelope, rates=tuple([1000.0 * rate for rate in commit.rates])), payload)]


@lie
def lone_roster(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """As a server it names nobody but itself for the next round."""
    commit = _claims(attacker, envelope, payload)
    return None if commit is None else [(to, say(envelope, roster=(attacker.peer,)), payload)]


@lie
def ghost_roster(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """As a server it names for the next round whoever may ever be in the run: those who are dead,
    and those who never came."""
    commit = _claims(attacker, envelope, payload)
    core = attacker.core()
    if commit is None or core is None or set(commit.roster) == set(core.settings.everybody):
        return None
    return [(to, say(envelope, roster=core.settings.everybody), payload)]


@lie
def usurper(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Commits what others have to: to a peer that it should send its update to, it sends a commit
    of its own instead."""
    message = envelope.message
    if not isinstance(message, Update) or payload is None or attacker.rng.random() >= OFTEN:
        return None
    content = attacker.forge(payload.data.copy(), message)
    where = (
        message.lineage,
        message.round_id,
        message.shard,
        message.attempt,
        message.attempt,
        attacker.peer,
        message.parent,
    )
    roster = attacker.peers
    return [
        (
            to,
            replace(envelope, message=Commit(*where, content.digest, (), (), roster, None, "")),
            content,
        )
    ]


# --- shards that decide together ------------------------------------------------------------------


def _measures(envelope: Envelope) -> tuple[PartialStatistics | None, np.ndarray]:
    """What is said of a shard, and its numbers; None: nothing is."""
    message = envelope.message
    if not isinstance(message, PartialStatistics) or not message.statistics:
        return None, np.empty(0)
    return message, np.frombuffer(message.statistics, "<f8")


@lie
def wrong_measures(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Says that it has measured something else of its shard: numbers as large as the true ones,
    others each time."""
    message, numbers = _measures(envelope)
    if message is None:
        return None
    factors = np.array([attacker.rng.gauss(0.0, 1.0) for _ in numbers])
    return [(to, say(envelope, statistics=(numbers * factors).astype("<f8").tobytes()), payload)]


@lie
def broken_measures(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Says of its shard what is no measure: not finite, too short, of too few peers,
    or of strangers."""
    message, numbers = _measures(envelope)
    if message is None:
        return None
    broken: dict[str, Any] = attacker.rng.choice(
        (
            {"statistics": np.full_like(numbers, np.nan).tobytes()},
            {"statistics": numbers[:-1].tobytes()},
            {"statistics": message.statistics[:-3]},
            {"contributors": message.contributors[:-1]},
            {"contributors": (*message.contributors[:-1], STRANGERS)},
            {"contributors": ()},
        )
    )
    return [(to, say(envelope, **broken), payload)]


@lie
def kept_measures(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Tells nobody what it has measured of its shard."""
    return [] if isinstance(envelope.message, PartialStatistics) else None


@lie
def wrong_decisions(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """As the server of the first shard it decides for all of them that the first
    update alone counts."""
    message = envelope.message
    if not isinstance(message, Commit) or message.server != attacker.peer or not message.decision:
        return None
    return [(to, say(envelope, decision=(1.0,) + (0.0,) * (len(message.decision) - 1)), payload)]


# --- membership -----------------------------------------------------------------------------------


def _with_rumor(
    to: PeerId, envelope: Envelope, payload: Payload | None, rumor: Rumor
) -> list[OutMessage] | None:
    match envelope.message:
        case Ping(rumors=rumors) | Ack(rumors=rumors) | Gossip(rumors=rumors):
            return [(to, say(envelope, rumors=(rumor, *rumors)), payload)]
        case PushPull(members=members):
            others = tuple(member for member in members if member.peer != rumor.peer)
            return [(to, say(envelope, members=(*others, rumor)), payload)]
        case _:
            return None


@lie
def false_deaths(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Says that somebody is dead, in its own name, of whoever comes to mind."""
    victim, often = attacker.victim(), attacker.rng.random() < OFTEN
    return (
        _with_rumor(
            to,
            envelope,
            payload,
            Rumor(victim, "dead", attacker.standing_of(victim), "", "", attacker.peer),
        )
        if often
        else None
    )


@lie
def false_suspicions(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Suspects everybody all the time."""
    victim = attacker.victim()
    return _with_rumor(
        to,
        envelope,
        payload,
        Rumor(victim, "suspect", attacker.standing_of(victim), "", "", attacker.peer),
    )


@lie
def forged_departures(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Says that somebody has left, as if it had heard it from that peer."""
    victim, often = attacker.victim(), attacker.rng.random() < OFTEN
    return (
        _with_rumor(
            to,
            envelope,
            payload,
            Rumor(victim, "left", attacker.standing_of(victim), "", "", victim),
        )
        if often
        else None
    )


@lie
def forged_incarnations(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Says that somebody has come back to life, a few times or as often as fits into the number."""
    victim, often, far = (
        attacker.victim(),
        attacker.rng.random() < OFTEN,
        attacker.rng.random() < 0.5,
    )
    standing = (
        ROUND_MAX
        if far
        else attacker.standing_of(victim) + attacker.rng.randint(1, 9) * REFUTATIONS
    )
    rumor = Rumor(victim, "alive", standing, "tcp://10.9.9.9:1", "tcp://10.9.9.9:2", victim)
    return _with_rumor(to, envelope, payload, rumor) if often else None


@lie
def deaf(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Answers the probes of one peer never, and of all others always:
    a case for indirect probes."""
    return (
        []
        if isinstance(envelope.message, Ack)
        and to == min(p for p in attacker.peers if p != attacker.peer)
        else None
    )


@lie
def strangers(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Speaks of peers that do not exist: they have come, they are missed or dead,
    and they accuse those who do."""
    stranger, often = STRANGERS + attacker.rng.randrange(STRANGERS), attacker.rng.random() < OFTEN
    victim, accuses, status = (
        attacker.victim(),
        attacker.rng.random() < 0.3,
        attacker.rng.choice(STATUSES),
    )
    if not often:
        return None
    if accuses:
        return _with_rumor(
            to,
            envelope,
            payload,
            Rumor(victim, "suspect", attacker.standing_of(victim), "", "", stranger),
        )
    where = (f"tcp://10.9.9.9:{stranger}", f"tcp://10.9.9.9:{stranger + 1}")
    return _with_rumor(to, envelope, payload, Rumor(stranger, status, 0, *where, stranger))


# --- anything -------------------------------------------------------------------------------------


@lie
def replays(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Says again, besides, what it said to somebody a while ago."""
    kind = type(envelope.message).__name__
    often, fresh = attacker.rng.random() < OFTEN, attacker.rng.random() < OFTEN
    old = attacker.heard.get(kind)
    if old is None or fresh:
        attacker.heard[kind] = (to, envelope, payload)
    return [(to, envelope, payload), (to, old[1], old[2])] if old is not None and often else None


@lie
def garbage(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Sends random bytes besides."""
    often, noise = (
        attacker.rng.random() < OFTEN,
        attacker.rng.randbytes(attacker.rng.randint(1, 200)),
    )
    return [(to, envelope, payload), (to, noise, None)] if often else None


@lie
def flood(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Says everything five times."""
    return [(to, envelope, payload)] * 5
