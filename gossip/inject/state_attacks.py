"""Attacks on state transfer: false replies of a Byzantine donor."""

from __future__ import annotations

from typing import Any

from gossip.core import (
    Payload,
    StateAttestation,
    StateOffer,
    attested_digest,
    outline_of,
    parts_of,
    squeeze,
)
from gossip.vectors import described

from .byzantine import ByzantinePeer, Instead, Letter, lie

FAR_ROUNDS = 1_000_000
HOLLOW = squeeze(b"[]")


def _forged_state(payload: Payload, parts: tuple[int, ...]) -> Payload:
    """Return the state with one flipped bit. Every attacker flips the same bit."""
    content = payload.data.copy()
    # If there are parts, the bit is in the first part, which all replicas have in common.
    content[len(content) // 2 if not parts else parts[0] // 2] ^= 1
    content.setflags(write=False)
    outline = outline_of(payload)
    about = (outline.piece_bytes, outline.base) if outline else ()
    return Payload(content, content.nbytes, True, *described(content, parts, *about))


def _kept(attacker: ByzantinePeer, round_id: int) -> Any:
    """Return the copy of its state that the attacker offers for ``round_id``."""
    return attacker.core().recovery.giving.copies[round_id]


def _swapped(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Return an offer of the forged state or of one of its pieces. Only the first piece has the
    flipped bit."""
    message = letter.message
    assert isinstance(message, StateOffer)
    assert letter.payload is not None
    if message.piece > 1:
        return None
    if message.outline:
        taken = _kept(attacker, message.round_id).taken
        return [letter.saying(outline=_forged_state(taken.payload, taken.parts).parts[0])]
    content = _forged_state(letter.payload, message.parts)
    return [letter.holding(content)]


@lie
def wrong_states(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send a false state with its digest to peers that request a state, and attest the false state.
    All peers with this fault send the same state."""
    message = letter.message
    if isinstance(message, StateAttestation) and message.digest:
        copy = _kept(attacker, message.round_id)
        state, _ = parts_of(_forged_state(copy.taken.payload, copy.taken.parts))
        digest = attested_digest(message.lineage, message.round_id, copy.chain, copy.core, state)
        return [letter.saying(digest=digest)]
    if letter.payload is None or not isinstance(message, StateOffer):
        return None
    return _swapped(attacker, letter)


@lie
def broken_states(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Attest the true state, and send a state that does not match its digest."""
    if letter.payload is None or not isinstance(letter.message, StateOffer):
        return None
    return [letter._replace(payload=_forged_state(letter.payload, letter.message.parts))]


@lie
def swapped_states(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Attest the true state, and send a false state with the digest of the false state."""
    if letter.payload is None or not isinstance(letter.message, StateOffer):
        return None
    return _swapped(attacker, letter)


@lie
def far_states(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Claim a round that no peer has reached, and offer a state of that round."""
    message = letter.message
    if not isinstance(message, StateOffer | StateAttestation):
        return None
    return [letter.saying(round_id=message.round_id + FAR_ROUNDS)]


@lie
def hollow_states(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send the true weights with an invalid roster, trust table and data position, and attest this
    state. All peers with this fault send the same state."""
    message = letter.message
    if isinstance(message, StateOffer) and message.core:
        return [letter.saying(core=HOLLOW)]
    if not isinstance(message, StateAttestation) or not message.digest:
        return None
    copy = _kept(attacker, message.round_id)
    state, _ = parts_of(copy.taken.payload)
    return [
        letter.saying(
            digest=attested_digest(message.lineage, message.round_id, copy.chain, HOLLOW, state)
        )
    ]


@lie
def kept_states(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Reply to no request for a state."""
    return [] if isinstance(letter.message, StateOffer | StateAttestation) else None


@lie
def wrong_pieces(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Offer the true state, and send pieces with one flipped bit."""
    if (
        letter.payload is None
        or not isinstance(letter.message, StateOffer)
        or not letter.message.piece
    ):
        return None
    return [letter._replace(payload=_forged_state(letter.payload, ()))]


@lie
def few_pieces(attacker: ByzantinePeer, letter: Letter) -> Instead:
    """Send only the first piece of the state."""
    return [] if isinstance(letter.message, StateOffer) and letter.message.piece > 1 else None
