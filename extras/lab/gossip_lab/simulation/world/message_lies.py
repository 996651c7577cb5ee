"""Attacks that are available only in the simulator: on updates, on membership, and on shards that
decide together. Each attack is a function. A fault plan uses its name."""

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
    PeerId,
    Ping,
    Push,
    PushPull,
    Rumor,
    Status,
    Update,
)
from gossip.inject import ByzantinePeer, Instead, Letter, lie

OFTEN = 0.1  # share of the suitable messages that are falsified
HUGE = np.float32(1e30)
STATUSES: tuple[Status, ...] = ("alive", "suspect", "dead", "left")
STRANGERS = 10_000  # lowest id of a peer that does not exist


# --- updates --------------------------------------------------------------------------------------


def _tampered(
    attacker: ByzantinePeer,
    letter: Letter,
    tamper_with: Callable[[Any], Any],
) -> Instead:
    if letter.payload is None or not isinstance(letter.message, Update | Push):
        return None
    with np.errstate(over="ignore"):
        forged = attacker.forge(tamper_with(letter.payload.data))
    return [Letter(letter.to, letter.envelope, forged)]


@lie
def sign_flip(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send the update with the opposite sign."""
    return _tampered(attacker, letter, lambda update: -update)


@lie
def nan(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send NaN in place of the update."""
    return _tampered(attacker, letter, lambda update: np.full_like(update, np.nan))


@lie
def huge(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send the update multiplied by 1e30. Its square overflows."""
    return _tampered(attacker, letter, lambda update: update * HUGE)


@lie
def two_updates(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Equivocate: send a different update to each receiver."""
    return _tampered(attacker, letter, lambda update: update * np.float32(1 + letter.to))


@lie
def wrong_size(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send payloads that are one element too long."""
    if letter.payload is None or not isinstance(letter.message, Update | Push | Commit):
        return None
    longer = np.append(letter.payload.data, np.float32(1.0))
    message = letter.message
    result_of = message if isinstance(message, Commit) else None
    return [Letter(letter.to, letter.envelope, attacker.forge(longer, result_of))]


@lie
def usurper(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Act as the server: send a commit of its own to a server that should receive its update."""
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
    """Return the message if it has statistics of a shard, else None, and the statistics as an
    array."""
    message = letter.message
    if not isinstance(message, PartialStatistics) or not message.statistics:
        return None, np.empty(0)
    return message, np.frombuffer(message.statistics, "<f8")


@lie
def wrong_measures(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send false statistics of its shard: random values of the same size as the true values,
    different each time."""
    message, numbers = _measures(letter)
    if message is None:
        return None
    factors = np.array([attacker.rng.gauss(0.0, 1.0) for _ in numbers])
    return [letter.saying(statistics=(numbers * factors).astype("<f8").tobytes())]


@lie
def broken_measures(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send invalid statistics of its shard: with values that are not finite, too short, or about
    too few peers, no peers, or peers that do not exist."""
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
    """Decide, if the attacker is the server of the first shard, that all shards use only the first
    update."""
    message = letter.message
    if not isinstance(message, Commit) or message.server != attacker.peer or not message.decision:
        return None
    return [letter.saying(decision=(1.0,) + (0.0,) * (len(message.decision) - 1))]


# --- membership -----------------------------------------------------------------------------------


def _victim(attacker: ByzantinePeer) -> PeerId:
    return attacker.rng.choice([peer for peer in attacker.peers if peer != attacker.peer])


def _standing_of(attacker: ByzantinePeer, subject: PeerId) -> int:
    """Return the standing of a peer in the membership of the attacker's core, or 0 if it is not a
    member there."""
    membership = getattr(attacker.core(), "membership", None)
    member = membership.members.get(subject) if membership is not None else None
    return member.standing if member is not None else 0


def _with_rumor(letter: Letter, rumor: Rumor) -> Instead:
    match letter.message:
        case Ping(rumors=rumors) | Ack(rumors=rumors) | Gossip(rumors=rumors):
            return [letter.saying(rumors=(rumor, *rumors))]
        case PushPull(members=members):
            others = tuple(member for member in members if member.peer != rumor.peer)
            return [letter.saying(members=(*others, rumor))]
        case _:
            return None


def _claim(
    attacker: ByzantinePeer, letter: Letter, victim: PeerId, status: Status, origin: PeerId
) -> Instead:
    """Return the letter with an added false claim about the victim that names ``origin`` as its
    source."""
    rumor = Rumor(victim, status, _standing_of(attacker, victim), "", "", origin)
    return _with_rumor(letter, rumor)


@lie
def false_deaths(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Announce, in its own name, that a random peer is dead."""
    victim, often = _victim(attacker), attacker.rng.random() < OFTEN
    return _claim(attacker, letter, victim, "dead", attacker.peer) if often else None


@lie
def false_suspicions(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """In every message, accuse a random peer."""
    return _claim(attacker, letter, _victim(attacker), "suspect", attacker.peer)


@lie
def forged_departures(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Announce in the name of a random peer that this peer has left."""
    victim, often = _victim(attacker), attacker.rng.random() < OFTEN
    return _claim(attacker, letter, victim, "left", victim) if often else None


@lie
def forged_incarnations(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Announce in the name of a random peer that this peer is alive with a higher incarnation: a
    few higher, or the highest possible number."""
    victim, often = _victim(attacker), attacker.rng.random() < OFTEN
    standing = ROUND_MAX
    if attacker.rng.random() >= 0.5:
        standing = _standing_of(attacker, victim) + attacker.rng.randint(1, 9) * REFUTATIONS
    rumor = Rumor(victim, "alive", standing, "tcp://10.9.9.9:1", "tcp://10.9.9.9:2", victim)
    return _with_rumor(letter, rumor) if often else None


@lie
def deaf(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send no acks to one peer, and all acks to the other peers, so that indirect probes are
    needed."""
    unheard = min(peer for peer in attacker.peers if peer != attacker.peer)
    return [] if isinstance(letter.message, Ack) and letter.to == unheard else None


@lie
def strangers(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Announce peers that do not exist, as alive, suspect, dead or left, or as accusers of existing
    peers."""
    rng = attacker.rng
    stranger = STRANGERS + rng.randrange(STRANGERS)
    often = rng.random() < OFTEN
    victim = _victim(attacker)
    accuses = rng.random() < 0.3
    status = rng.choice(STATUSES)
    if not often:
        return None
    if accuses:
        return _claim(attacker, letter, victim, "suspect", stranger)
    where = (f"tcp://10.9.9.9:{stranger}", f"tcp://10.9.9.9:{stranger + 1}")
    return _with_rumor(letter, Rumor(stranger, status, 0, *where, stranger))


# --- anything -------------------------------------------------------------------------------------


@lie
def replays(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """In addition, send an earlier message again."""
    kind = type(letter.message).__name__
    often, fresh = attacker.rng.random() < OFTEN, attacker.rng.random() < OFTEN
    old = attacker.heard.get(kind)
    if old is None or fresh:
        attacker.heard[kind] = letter
    return [letter, (letter.to, old[1], old[2])] if old is not None and often else None


@lie
def garbage(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """In addition, send random bytes."""
    often = attacker.rng.random() < OFTEN
    noise = attacker.rng.randbytes(attacker.rng.randint(1, 200))
    return [letter, (letter.to, noise, None)] if often else None


@lie
def flood(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send every message five times."""
    return [letter] * 5
