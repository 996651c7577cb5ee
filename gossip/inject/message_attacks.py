"""What a Byzantine node says of updates, of results, of who is alive: each lie a function, known by its name in a fault plan.

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
    Partial,
    Payload,
    PeerId,
    Ping,
    PushPull,
    Rumour,
    Status,
    Update,
)
from gossip.core import Push as PushMessage

from . import state_attacks as state_lies  # noqa: F401 - its lies have names, too
from .byzantine import LIES, Letter, Liar, lie, say

__all__ = ["LIES"]

OFTEN = 0.1  # of the messages that could carry a lie about others, so many do
HUGE = np.float32(1e30)
STATUSES: tuple[Status, ...] = ("alive", "suspect", "dead", "left")
STRANGERS = 10_000  # from which id on nobody is of the run


# --- updates ----------------------------------------------------------------------------------------------------------------


def _twisted(
    liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None, twist: Callable[[Any], Any]
) -> list[Letter] | None:
    if payload is None or not isinstance(envelope.message, Update | PushMessage):
        return None
    with np.errstate(over="ignore"):
        return [(to, envelope, liar.forge(twist(payload.data)))]


@lie
def sign_flip(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """Sends its update with the opposite sign."""
    return _twisted(liar, to, envelope, payload, lambda update: -update)


@lie
def nan(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """Sends NaN for its update."""
    return _twisted(liar, to, envelope, payload, lambda update: np.full_like(update, np.nan))


@lie
def huge(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """Sends its update times 1e30, which overflows when it is squared."""
    return _twisted(liar, to, envelope, payload, lambda update: update * HUGE)


@lie
def two_updates(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """Equivocates: another update for each receiver."""
    return _twisted(liar, to, envelope, payload, lambda update: update * np.float32(1 + to))


@lie
def wrong_size(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """Sends payloads that are one element too long."""
    if payload is None or not isinstance(envelope.message, Update | PushMessage | Commit):
        return None
    longer = np.append(payload.data, np.float32(1.0))
    return [(to, envelope, liar.forge(longer, digest=isinstance(envelope.message, Commit)))]


# --- results ----------------------------------------------------------------------------------------------------------------


def _own_result(liar: Liar, envelope: Envelope, payload: Payload | None) -> Payload | None:
    """What the liar has aggregated itself, when it is about to tell it."""
    return payload if isinstance(envelope.message, Commit) and envelope.message.server == liar.peer else None


def _forged_result(liar: Liar, name: str, envelope: Envelope, truth: Payload, twist: Callable[[Any], Any]) -> Payload:
    assert isinstance(envelope.message, Commit)
    return liar.once((name, envelope.message.digest), lambda: liar.forge(twist(truth.data), digest=True))


def _instead(
    liar: Liar, name: str, to: PeerId, envelope: Envelope, payload: Payload | None, twist: Callable[[Any], Any]
) -> list[Letter] | None:
    """Another result than the rule's, with the digest to match, under which the liar never says anything else."""
    truth = _own_result(liar, envelope, payload)
    if truth is None or (isinstance(envelope.message, Commit) and envelope.message.digest in liar.forged):
        return None
    content = _forged_result(liar, name, envelope, truth, twist)
    liar.forged.add(content.digest)
    return [(to, say(envelope, digest=content.digest), content)]


@lie
def wrong_results(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """As a server it commits another aggregate than the rule gave, the same to everybody, with the digest to match."""
    return _instead(liar, "wrong", to, envelope, payload, lambda result: -result)


@lie
def scaled_results(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """As a server it commits a thousand times the aggregate that the rule gave."""
    return _instead(liar, "scaled", to, envelope, payload, lambda result: result * np.float32(1000))


@lie
def slightly_wrong_results(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """As a server it commits an aggregate that is a little longer than the rule's: nobody can tell it from a true one."""
    return _instead(liar, "slightly", to, envelope, payload, lambda result: result * np.float32(1.01))


@lie
def broken_results(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """As a server it sends an aggregate that its own digest does not fit."""
    truth = _own_result(liar, envelope, payload)
    if truth is None:
        return None
    return [(to, envelope, _forged_result(liar, "broken", envelope, truth, lambda result: result + np.float32(1.0)))]


@lie
def kept_results(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """As a server it tells nobody what it has made of their updates."""
    return None if _own_result(liar, envelope, payload) is None else []


@lie
def nan_results(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """As a server it commits NaN, with the digest to match."""
    truth = _own_result(liar, envelope, payload)
    if truth is None:
        return None
    content = _forged_result(liar, "nan", envelope, truth, lambda result: np.full_like(result, np.nan))
    return [(to, say(envelope, digest=content.digest), content)]


@lie
def two_results(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """Equivocates: as a server it commits one aggregate to peers of even number and another to the rest."""
    return wrong_results(liar, to, envelope, payload) if to % 2 else None  # type: ignore[return-value]


@lie
def last_results(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """If it serves the last round of the run it gives one peer another result than all others: nobody can tell it from a true
    one, and there is no next round in which it would be found out."""
    message = envelope.message
    last = isinstance(message, Commit) and liar.rounds is not None and message.round_id == liar.rounds - 1
    victim = min([peer for peer in liar.peers if peer != liar.peer], default=liar.peer)
    return slightly_wrong_results(liar, to, envelope, payload) if last and to == victim else None  # type: ignore[return-value]


@lie
def strange_roster(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """As a server it names a roster with somebody in it who is not of the run."""
    if _own_result(liar, envelope, payload) is None or not isinstance(envelope.message, Commit):
        return None
    return [(to, say(envelope, roster=(*envelope.message.roster, STRANGERS)), payload)]


def _claims(liar: Liar, envelope: Envelope, payload: Payload | None) -> Commit | None:
    """Its own commit of the first shard, which speaks for all of rates and roster."""
    message = envelope.message
    mine = isinstance(message, Commit) and message.server == liar.peer and message.shard == 0
    return message if mine and isinstance(message, Commit) else None


@lie
def high_rates(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """As a server it commits a thousand times the learning rates that all should step with."""
    commit = _claims(liar, envelope, payload)
    if commit is None or not commit.rates:
        return None
    return [(to, say(envelope, rates=tuple([1000.0 * rate for rate in commit.rates])), payload)]


@lie
def lone_roster(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """As a server it names nobody but itself for the next round."""
    commit = _claims(liar, envelope, payload)
    return None if commit is None else [(to, say(envelope, roster=(liar.peer,)), payload)]


@lie
def ghost_roster(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """As a server it names for the next round whoever may ever be in the run: those who are dead, and those who never came."""
    commit = _claims(liar, envelope, payload)
    core = liar.core()
    if commit is None or core is None or set(commit.roster) == set(core.settings.everybody):
        return None
    return [(to, say(envelope, roster=core.settings.everybody), payload)]


@lie
def usurper(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """Commits what others have to: to a peer that it should send its update to, it sends a commit of its own instead."""
    message = envelope.message
    if not isinstance(message, Update) or payload is None or liar.rng.random() >= OFTEN:
        return None
    content = liar.forge(payload.data.copy(), digest=True)
    where = (message.lineage, message.round_id, message.shard, message.attempt, message.attempt, liar.peer, message.parent)
    roster = liar.peers
    return [(to, replace(envelope, message=Commit(*where, content.digest, (), (), roster, None, "")), content)]


# --- shards that decide together ------------------------------------------------------------------------------------------------


def _measures(envelope: Envelope) -> tuple[Partial | None, np.ndarray]:
    """What is said of a shard, and its numbers; None: nothing is."""
    message = envelope.message
    if not isinstance(message, Partial) or not message.statistics:
        return None, np.empty(0)
    return message, np.frombuffer(message.statistics, "<f8")


@lie
def wrong_measures(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """Says that it has measured something else of its shard: numbers as large as the true ones, others each time."""
    message, numbers = _measures(envelope)
    if message is None:
        return None
    factors = np.array([liar.rng.gauss(0.0, 1.0) for _ in numbers])
    return [(to, say(envelope, statistics=(numbers * factors).astype("<f8").tobytes()), payload)]


@lie
def broken_measures(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """Says of its shard what is no measure: not finite, too short, of too few peers, or of strangers."""
    message, numbers = _measures(envelope)
    if message is None:
        return None
    broken: dict[str, Any] = liar.rng.choice(
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
def kept_measures(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """Tells nobody what it has measured of its shard."""
    return [] if isinstance(envelope.message, Partial) else None


@lie
def wrong_decisions(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """As the server of the first shard it decides for all of them that the first update alone counts."""
    message = envelope.message
    if not isinstance(message, Commit) or message.server != liar.peer or not message.decision:
        return None
    return [(to, say(envelope, decision=(1.0,) + (0.0,) * (len(message.decision) - 1)), payload)]


# --- membership -------------------------------------------------------------------------------------------------------------


def _with_rumour(to: PeerId, envelope: Envelope, payload: Payload | None, rumour: Rumour) -> list[Letter] | None:
    match envelope.message:
        case Ping(rumours=rumours) | Ack(rumours=rumours) | Gossip(rumours=rumours):
            return [(to, say(envelope, rumours=(rumour, *rumours)), payload)]
        case PushPull(members=members):
            others = tuple(member for member in members if member.peer != rumour.peer)
            return [(to, say(envelope, members=(*others, rumour)), payload)]
        case _:
            return None


@lie
def false_deaths(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """Says that somebody is dead, in its own name, of whoever comes to mind."""
    victim, often = liar.victim(), liar.rng.random() < OFTEN
    return (
        _with_rumour(to, envelope, payload, Rumour(victim, "dead", liar.standing_of(victim), "", "", liar.peer))
        if often
        else None
    )


@lie
def false_suspicions(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """Suspects everybody all the time."""
    victim = liar.victim()
    return _with_rumour(to, envelope, payload, Rumour(victim, "suspect", liar.standing_of(victim), "", "", liar.peer))


@lie
def forged_departures(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """Says that somebody has left, as if it had heard it from that peer."""
    victim, often = liar.victim(), liar.rng.random() < OFTEN
    return (
        _with_rumour(to, envelope, payload, Rumour(victim, "left", liar.standing_of(victim), "", "", victim)) if often else None
    )


@lie
def forged_incarnations(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """Says that somebody has come back to life, a few times or as often as fits into the number."""
    victim, often, far = liar.victim(), liar.rng.random() < OFTEN, liar.rng.random() < 0.5
    standing = ROUND_MAX if far else liar.standing_of(victim) + liar.rng.randint(1, 9) * REFUTATIONS
    rumour = Rumour(victim, "alive", standing, "tcp://10.9.9.9:1", "tcp://10.9.9.9:2", victim)
    return _with_rumour(to, envelope, payload, rumour) if often else None


@lie
def deaf(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """Answers the probes of one peer never, and of all others always: a case for indirect probes."""
    return [] if isinstance(envelope.message, Ack) and to == min(p for p in liar.peers if p != liar.peer) else None


@lie
def strangers(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """Speaks of peers that do not exist: they have come, they are missed or dead, and they accuse those who do."""
    stranger, often = STRANGERS + liar.rng.randrange(STRANGERS), liar.rng.random() < OFTEN
    victim, accuses, status = liar.victim(), liar.rng.random() < 0.3, liar.rng.choice(STATUSES)
    if not often:
        return None
    if accuses:
        return _with_rumour(to, envelope, payload, Rumour(victim, "suspect", liar.standing_of(victim), "", "", stranger))
    where = (f"tcp://10.9.9.9:{stranger}", f"tcp://10.9.9.9:{stranger + 1}")
    return _with_rumour(to, envelope, payload, Rumour(stranger, status, 0, *where, stranger))


# --- anything ---------------------------------------------------------------------------------------------------------------


@lie
def replays(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """Says again, besides, what it said to somebody a while ago."""
    kind = type(envelope.message).__name__
    often, fresh = liar.rng.random() < OFTEN, liar.rng.random() < OFTEN
    old = liar.heard.get(kind)
    if old is None or fresh:
        liar.heard[kind] = (to, envelope, payload)
    return [(to, envelope, payload), (to, old[1], old[2])] if old is not None and often else None


@lie
def garbage(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """Sends random bytes besides."""
    often, noise = liar.rng.random() < OFTEN, liar.rng.randbytes(liar.rng.randint(1, 200))
    return [(to, envelope, payload), (to, noise, None)] if often else None


@lie
def flood(liar: Liar, to: PeerId, envelope: Envelope, payload: Payload | None) -> list[Letter] | None:
    """Says everything five times."""
    return [(to, envelope, payload)] * 5
