"""Lies of a Byzantine node about updates, results and membership: each is a function, known by its
name in a fault plan.

A Byzantine node cannot send in another peer's name: on the wire a sender is identified by its key.
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
    Gossip,
    PartialStatistics,
    Payload,
    Ping,
    Push as PushMessage,
    PushPull,
    Rumor,
    Status,
    Update,
)

from . import state_attacks as state_lies  # noqa: F401 - its lies have names, too
from .byzantine import LIES, ByzantinePeer, Instead, Letter, lie

__all__ = ["LIES"]

OFTEN = 0.1  # of the messages that could carry a lie about others, so many do
HUGE = np.float32(1e30)
STATUSES: tuple[Status, ...] = ("alive", "suspect", "dead", "left")
STRANGERS = 10_000  # from which id on nobody is of the run


# --- updates --------------------------------------------------------------------------------------


def _tampered(
    attacker: ByzantinePeer,
    letter: Letter,
    tamper_with: Callable[[Any], Any],
) -> Instead:
    if letter.payload is None or not isinstance(letter.message, Update | PushMessage):
        return None
    with np.errstate(over="ignore"):
        return [letter._replace(payload=attacker.forge(tamper_with(letter.payload.data)))]


@lie
def sign_flip(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send its update with the opposite sign."""
    return _tampered(attacker, letter, lambda update: -update)


@lie
def nan(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send NaN for its update."""
    return _tampered(attacker, letter, lambda update: np.full_like(update, np.nan))


@lie
def huge(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send its update times 1e30, which overflows when it is squared."""
    return _tampered(attacker, letter, lambda update: update * HUGE)


@lie
def two_updates(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Equivocate: send another update to each receiver."""
    return _tampered(attacker, letter, lambda update: update * np.float32(1 + letter.to))


@lie
def wrong_size(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send payloads that are one element too long."""
    if letter.payload is None or not isinstance(letter.message, Update | PushMessage | Commit):
        return None
    longer, message = np.append(letter.payload.data, np.float32(1.0)), letter.message
    return [
        letter._replace(
            payload=attacker.forge(longer, message if isinstance(message, Commit) else None)
        )
    ]


# --- results --------------------------------------------------------------------------------------


def _own_result(attacker: ByzantinePeer, letter: Letter) -> Payload | None:
    """Return the result in the letter, if the attacker has aggregated that itself; None: it has
    not."""
    return (
        letter.payload
        if isinstance(letter.message, Commit) and letter.message.server == attacker.peer
        else None
    )


def _forged_result(
    attacker: ByzantinePeer,
    name: str,
    letter: Letter,
    truth: Payload,
    tamper_with: Callable[[Any], Any],
) -> Payload:
    assert isinstance(letter.message, Commit)
    return attacker.once(
        (name, letter.message.digest),
        lambda: attacker.forge(tamper_with(truth.data), letter.message),
    )


def _instead(
    attacker: ByzantinePeer,
    name: str,
    letter: Letter,
    tamper_with: Callable[[Any], Any],
) -> Instead:
    """Return the letter with another result than the rule's, and the digest to match. The attacker
    never sends anything else under that digest."""
    truth = _own_result(attacker, letter)
    if truth is None or (
        isinstance(letter.message, Commit) and letter.message.digest in attacker.forged
    ):
        return None
    content = _forged_result(attacker, name, letter, truth, tamper_with)
    attacker.forged.add(content.digest)
    return [letter.holding(content)]


@lie
def wrong_results(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Commit, as a server, another aggregate than the rule's: the same to all peers, with the
    digest to match."""
    return _instead(attacker, "wrong", letter, lambda result: -result)


@lie
def scaled_results(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Commit, as a server, a thousand times the aggregate of the rule."""
    return _instead(attacker, "scaled", letter, lambda result: result * np.float32(1000))


@lie
def slightly_wrong_results(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Commit, as a server, an aggregate that is a little longer than the rule's: no peer can
    distinguish it from a true one."""
    return _instead(attacker, "slightly", letter, lambda result: result * np.float32(1.01))


@lie
def broken_results(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send, as a server, an aggregate that does not match its own digest."""
    truth = _own_result(attacker, letter)
    if truth is None:
        return None
    return [
        letter._replace(
            payload=_forged_result(
                attacker, "broken", letter, truth, lambda result: result + np.float32(1.0)
            )
        )
    ]


@lie
def kept_results(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Withhold, as a server, the aggregate that it has made of the updates."""
    return None if _own_result(attacker, letter) is None else []


@lie
def nan_results(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Commit, as a server, NaN with the digest to match."""
    truth = _own_result(attacker, letter)
    if truth is None:
        return None
    content = _forged_result(
        attacker, "nan", letter, truth, lambda result: np.full_like(result, np.nan)
    )
    return [letter.holding(content)]


@lie
def two_results(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Equivocate: commit, as a server, one aggregate to peers of even number and another to the
    rest."""
    if not letter.to % 2:
        return None
    return wrong_results(attacker, letter)


@lie
def last_results(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send one peer another result than all others, as the server of the last round of the run. No
    peer can distinguish it from a true one, and there is no next round in which it would be
    found."""
    message = letter.message
    last = (
        isinstance(message, Commit)
        and attacker.rounds is not None
        and message.round_id == attacker.rounds - 1
    )
    victim = min([peer for peer in attacker.peers if peer != attacker.peer], default=attacker.peer)
    if not last or letter.to != victim:
        return None
    return slightly_wrong_results(attacker, letter)


@lie
def strange_roster(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Commit, as a server, a roster with a peer that is not of the run."""
    if _own_result(attacker, letter) is None or not isinstance(letter.message, Commit):
        return None
    return [letter.saying(roster=(*letter.message.roster, STRANGERS))]


def _claims(attacker: ByzantinePeer, letter: Letter) -> Commit | None:
    """Return its own commit of the first shard, which has the rates and the roster for all
    shards."""
    message = letter.message
    mine = isinstance(message, Commit) and message.server == attacker.peer and message.shard == 0
    return message if mine and isinstance(message, Commit) else None


@lie
def high_rates(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Commit, as a server, a thousand times the learning rates that all peers should step with."""
    commit = _claims(attacker, letter)
    if commit is None or not commit.rates:
        return None
    return [letter.saying(rates=tuple([1000.0 * rate for rate in commit.rates]))]


@lie
def lone_roster(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Commit, as a server, a roster for the next round that has only itself."""
    commit = _claims(attacker, letter)
    return None if commit is None else [letter.saying(roster=(attacker.peer,))]


@lie
def ghost_roster(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Commit, as a server, a roster for the next round with all peers that may ever be in the run,
    also those that are dead or never came."""
    commit = _claims(attacker, letter)
    core = attacker.core()
    if commit is None or core is None or set(commit.roster) == set(core.settings.everybody):
        return None
    return [letter.saying(roster=core.settings.everybody)]


@lie
def usurper(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Commit in place of the server: send a commit of its own to a peer that should receive its
    update."""
    message = letter.message
    if not isinstance(message, Update) or letter.payload is None or attacker.rng.random() >= OFTEN:
        return None
    content = attacker.forge(letter.payload.data.copy(), message)
    where = (
        message.lineage,
        message.round_id,
        message.shard,
        message.attempt,
        message.attempt,
        attacker.peer,
        message.parent,
    )
    commit = Commit(*where, content.digest, (), (), attacker.peers, None, "")
    return [(letter.to, replace(letter.envelope, message=commit), content)]


# --- shards that decide together ------------------------------------------------------------------


def _measures(letter: Letter) -> tuple[PartialStatistics | None, np.ndarray]:
    """Return the statistics of a shard in the letter, and their numbers; None: it has none."""
    message = letter.message
    if not isinstance(message, PartialStatistics) or not message.statistics:
        return None, np.empty(0)
    return message, np.frombuffer(message.statistics, "<f8")


@lie
def wrong_measures(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send false statistics of its shard: numbers as large as the true ones, others each time."""
    message, numbers = _measures(letter)
    if message is None:
        return None
    factors = np.array([attacker.rng.gauss(0.0, 1.0) for _ in numbers])
    return [letter.saying(statistics=(numbers * factors).astype("<f8").tobytes())]


@lie
def broken_measures(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send invalid statistics of its shard: not finite, too short, of too few peers,
    or of peers that do not exist."""
    message, numbers = _measures(letter)
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
    return [letter.saying(**broken)]


@lie
def kept_measures(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Withhold the statistics of its shard."""
    return [] if isinstance(letter.message, PartialStatistics) else None


@lie
def wrong_decisions(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Decide, as the server of the first shard, for all shards that the first update alone
    counts."""
    message = letter.message
    if not isinstance(message, Commit) or message.server != attacker.peer or not message.decision:
        return None
    return [letter.saying(decision=(1.0,) + (0.0,) * (len(message.decision) - 1))]


# --- membership -----------------------------------------------------------------------------------


def _with_rumor(letter: Letter, rumor: Rumor) -> Instead:
    match letter.message:
        case Ping(rumors=rumors) | Ack(rumors=rumors) | Gossip(rumors=rumors):
            return [letter.saying(rumors=(rumor, *rumors))]
        case PushPull(members=members):
            others = tuple(member for member in members if member.peer != rumor.peer)
            return [letter.saying(members=(*others, rumor))]
        case _:
            return None


@lie
def false_deaths(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Announce, in its own name, that a peer is dead. The peer is drawn at random each time."""
    victim, often = attacker.victim(), attacker.rng.random() < OFTEN
    return (
        _with_rumor(
            letter,
            Rumor(victim, "dead", attacker.standing_of(victim), "", "", attacker.peer),
        )
        if often
        else None
    )


@lie
def false_suspicions(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Suspect all other peers all the time."""
    victim = attacker.victim()
    return _with_rumor(
        letter,
        Rumor(victim, "suspect", attacker.standing_of(victim), "", "", attacker.peer),
    )


@lie
def forged_departures(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Announce that a peer has left, as if that peer had announced it."""
    victim, often = attacker.victim(), attacker.rng.random() < OFTEN
    return (
        _with_rumor(
            letter,
            Rumor(victim, "left", attacker.standing_of(victim), "", "", victim),
        )
        if often
        else None
    )


@lie
def forged_incarnations(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Announce that a peer is alive again, with an incarnation a few higher, or with the highest
    that fits into the number."""
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
    return _with_rumor(letter, rumor) if often else None


@lie
def deaf(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Answer the probes of one peer never, and of all others always: a case for indirect probes."""
    return (
        []
        if isinstance(letter.message, Ack)
        and letter.to == min(p for p in attacker.peers if p != attacker.peer)
        else None
    )


@lie
def strangers(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Announce peers that do not exist: as alive, suspect or dead, or as accusers of peers that do
    exist."""
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
            letter,
            Rumor(victim, "suspect", attacker.standing_of(victim), "", "", stranger),
        )
    where = (f"tcp://10.9.9.9:{stranger}", f"tcp://10.9.9.9:{stranger + 1}")
    return _with_rumor(letter, Rumor(stranger, status, 0, *where, stranger))


# --- anything -------------------------------------------------------------------------------------


@lie
def replays(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send again, besides, a message that it sent to a peer a while ago."""
    kind = type(letter.message).__name__
    often, fresh = attacker.rng.random() < OFTEN, attacker.rng.random() < OFTEN
    old = attacker.heard.get(kind)
    if old is None or fresh:
        attacker.heard[kind] = letter
    return [letter, (letter.to, old[1], old[2])] if old is not None and often else None


@lie
def garbage(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send random bytes besides."""
    often, noise = (
        attacker.rng.random() < OFTEN,
        attacker.rng.randbytes(attacker.rng.randint(1, 200)),
    )
    return [letter, (letter.to, noise, None)] if often else None


@lie
def flood(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send every message five times."""
    return [letter] * 5
