"""Lies about states: what a Byzantine donor says to those who take one over."""

from __future__ import annotations

from typing import Any

from gossip.core import (
    Envelope,
    Payload,
    PeerId,
    StateAttestation,
    StateOffer,
    attested_digest,
    outline_of,
    parts_of,
    squeeze,
)
from gossip.vectors import described

from .byzantine import ByzantinePeer, OutMessage, lie, say

FAR_ROUNDS = 1_000_000
HOLLOW = squeeze(b"[]")


def _forged_state(payload: Payload, parts: tuple[int, ...]) -> Payload:
    """One bit of it is another: the same one whoever forges it."""
    content = payload.data.copy()
    # amid what all hold alike: parameters, say
    content[len(content) // 2 if not parts else parts[0] // 2] ^= 1
    content.setflags(write=False)
    outline = outline_of(payload)
    about = (outline.piece_bytes, outline.base) if outline else ()
    return Payload(content, content.nbytes, True, *described(content, parts, *about))


def _kept(attacker: ByzantinePeer, round_id: int) -> Any:
    """The copy that it answers with."""
    return attacker.core().recovery.giving.copies[round_id]


def _swapped(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload
) -> list[OutMessage] | None:
    """An offer of the other state, or a piece of that; only the first has that bit."""
    message = envelope.message
    assert isinstance(message, StateOffer)
    if message.piece > 1:
        return None
    if message.outline:
        taken = _kept(attacker, message.round_id).taken
        return [
            (to, say(envelope, outline=_forged_state(taken.payload, taken.parts).parts[0]), payload)
        ]
    content = _forged_state(payload, message.parts)
    return [(to, say(envelope, digest=content.digest), content)]


@lie
def wrong_states(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Hands another state than its own to who asks for one, with a digest that fits it, and vouches
    for that one: the same that all vouch for who tell this lie."""
    message = envelope.message
    if isinstance(message, StateAttestation) and message.digest:
        copy = _kept(attacker, message.round_id)
        state, _ = parts_of(_forged_state(copy.taken.payload, copy.taken.parts))
        digest = attested_digest(message.lineage, message.round_id, copy.chain, copy.core, state)
        return [(to, say(envelope, digest=digest), payload)]
    if payload is None or not isinstance(message, StateOffer):
        return None
    return _swapped(attacker, to, envelope, payload)


@lie
def broken_states(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Vouches for the truth, and then hands out a state that its digest does not fit."""
    if payload is None or not isinstance(envelope.message, StateOffer):
        return None
    return [(to, envelope, _forged_state(payload, envelope.message.parts))]


@lie
def swapped_states(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Vouches for the truth, and then hands out another state, with a digest that fits that one."""
    if payload is None or not isinstance(envelope.message, StateOffer):
        return None
    return _swapped(attacker, to, envelope, payload)


@lie
def far_states(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Says that it is in a round that nobody has come to, and offers a state of that."""
    message = envelope.message
    if not isinstance(message, StateOffer | StateAttestation):
        return None
    return [(to, say(envelope, round_id=message.round_id + FAR_ROUNDS), payload)]


@lie
def hollow_states(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Hands out its weights with a roster, a trust table and data that are none, and vouches for
    that: the same that all vouch for who tell this lie."""
    message = envelope.message
    if isinstance(message, StateOffer) and message.core:
        return [(to, say(envelope, core=HOLLOW), payload)]
    if not isinstance(message, StateAttestation) or not message.digest:
        return None
    copy = _kept(attacker, message.round_id)
    state, _ = parts_of(copy.taken.payload)
    return [
        (
            to,
            say(
                envelope,
                digest=attested_digest(
                    message.lineage, message.round_id, copy.chain, HOLLOW, state
                ),
            ),
            payload,
        )
    ]


@lie
def kept_states(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Answers nobody who asks for its state."""
    return [] if isinstance(envelope.message, StateOffer | StateAttestation) else None


@lie
def wrong_pieces(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Offers its state as it is, and hands out pieces of which one bit is another."""
    if (
        payload is None
        or not isinstance(envelope.message, StateOffer)
        or not envelope.message.piece
    ):
        return None
    return [(to, envelope, _forged_state(payload, ()))]


@lie
def few_pieces(
    attacker: ByzantinePeer, to: PeerId, envelope: Envelope, payload: Payload | None
) -> list[OutMessage] | None:
    """Hands out the first piece of its state, and no other."""
    return [] if isinstance(envelope.message, StateOffer) and envelope.message.piece > 1 else None
