"""Attacks of a Byzantine server on results. Each attack is a function with the name that the attack
has in a fault plan.

A Byzantine node cannot impersonate another peer, because receivers identify a sender by its key.
The simulator has further attacks (``gossip_lab.simulation.world.message_lies``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gossip.core import Commit, Payload

from . import state_attacks as state_lies  # noqa: F401 - registers its attacks
from .byzantine import LIES, ByzantinePeer, Instead, Letter, lie

__all__ = ["LIES"]

STRANGERS = 10_000  # an id that no peer of the run has


def _own_result(attacker: ByzantinePeer, letter: Letter) -> Payload | None:
    """Return the result in the letter if the attacker has computed it as the server, else None."""
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
    """Return the letter with a forged result and the digest of that result. Return None if the
    letter has no result of this server, or a result that the attacker has forged before."""
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
    """Commit, as a server, the negated aggregate of the rule. All peers receive the same false
    aggregate with its digest."""
    return _instead(attacker, "wrong", letter, lambda result: -result)


@lie
def scaled_results(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Commit, as a server, a thousand times the aggregate of the rule."""
    return _instead(attacker, "scaled", letter, lambda result: result * np.float32(1000))


@lie
def slightly_wrong_results(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Commit, as a server, an aggregate that is 1 % longer than that of the rule. No peer can
    detect it."""
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
    """Withhold, as a server, the aggregate of the updates."""
    return None if _own_result(attacker, letter) is None else []


@lie
def nan_results(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Commit, as a server, an aggregate of NaN with its digest."""
    truth = _own_result(attacker, letter)
    if truth is None:
        return None
    content = _forged_result(
        attacker, "nan", letter, truth, lambda result: np.full_like(result, np.nan)
    )
    return [letter.holding(content)]


@lie
def two_results(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Equivocate: commit, as a server, one aggregate to peers with an even id and another to peers
    with an odd id."""
    if not letter.to % 2:
        return None
    return wrong_results(attacker, letter)


@lie
def last_results(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send one peer a slightly wrong result, as the server of the run's last round. No later round
    compares the replicas; only the check after the last round can detect it."""
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
    """Commit, as a server, a roster that includes a peer id outside the run."""
    if _own_result(attacker, letter) is None or not isinstance(letter.message, Commit):
        return None
    return [letter.saying(roster=(*letter.message.roster, STRANGERS))]


def _claims(attacker: ByzantinePeer, letter: Letter) -> Commit | None:
    """Return the letter's commit if it is the attacker's commit of the first shard, else None. The
    first shard's commit has the learning rates and the roster for all shards."""
    message = letter.message
    mine = isinstance(message, Commit) and message.server == attacker.peer and message.shard == 0
    return message if mine and isinstance(message, Commit) else None


@lie
def high_rates(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Commit, as a server, a thousand times the learning rates of all peers."""
    commit = _claims(attacker, letter)
    if commit is None or not commit.rates:
        return None
    return [letter.saying(rates=tuple([1000.0 * rate for rate in commit.rates]))]


@lie
def lone_roster(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Commit, as a server, a roster for the next round that includes only the server itself."""
    commit = _claims(attacker, letter)
    return None if commit is None else [letter.saying(roster=(attacker.peer,))]


@lie
def ghost_roster(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Commit, as a server, a roster for the next round with all ids of the run, including dead
    peers and peers that never joined."""
    commit = _claims(attacker, letter)
    core = attacker.core()
    if commit is None or core is None or set(commit.roster) == set(core.settings.everybody):
        return None
    return [letter.saying(roster=core.settings.everybody)]
