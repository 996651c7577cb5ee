"""S12: whose word a peer takes for the state of the swarm, what it asks of whom,
and what it is told."""

from __future__ import annotations

from gossip.core import (
    Effect,
    Event,
    Inspection,
    PeerId,
    Received,
    Report,
    Restore,
    Send,
    StateAttestation,
    StateOffer,
    StateRequest,
    TimerFired,
    attested_digest,
    parts_of,
)
from gossip_lab.simulation.checkers.base import Checker, has_unattested_state
from gossip_lab.simulation.world import AnySwarm

KNOWN_S = 1.0  # who has had a state for so long has had the time to say so


class TakesNoFewersWord(Checker):
    """S12: in rolling rounds a peer takes over a state only when f + 1 peers have vouched for one
    and the same, and just that one, whatever its donor says; at the word of fewer only when fewer
    can have a state, or no more than 2f of those that have one are within reach for the
    time of a round."""

    invariant = "S12"
    events = (StateAttestation, TimerFired, Received)
    effects = (Report, Restore)

    def make_records(self) -> None:
        self._vouched = self.per_life(dict[PeerId, StateAttestation])
        self._began: dict[PeerId, float] = {}
        self._able: dict[PeerId, float] = self.per_life()  # since when it has a state

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        core = swarm.inspections.get(peer)
        if core is None or core.phase not in ("running", "draining"):
            self._able.pop(peer, None)
        elif peer not in self._able:
            self._able[peer] = swarm.now
        if (
            isinstance(event, Received)
            and isinstance(event.message, StateAttestation)
            and core is not None
        ):
            attestation = event.message
            self._vouched[peer] |= (
                {event.sender: attestation}
                if attestation.digest and attestation.nonce == core.recovery.nonce
                else {}
            )

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        core = swarm.inspections.get(peer)
        if core is None or core.rolling is None or core.recovery.need == 1:
            return
        match effect:
            case Report("recovering"):
                self._began[peer] = swarm.now
            case Report("unattested_state"):
                self._judge_few(swarm, peer, core)
            case Restore():
                agreed = core.recovery.attestation
                alike = [
                    attestation
                    for attestation in self._vouched[peer].values()
                    if agreed is not None and _same(attestation, agreed)
                ]
                enough = len(alike) >= core.recovery.need or has_unattested_state(swarm, peer)
                text = (
                    f"restores a state of round {effect.round_id} for which {len(alike)} have "
                    f"vouched, and f is {core.settings.f}"
                )
                self.demand(enough, swarm, peer, text)
                if agreed is not None:
                    self._judge_content(swarm, peer, core, agreed, effect)
            case _:
                return

    def _judge_content(
        self,
        swarm: AnySwarm,
        peer: PeerId,
        core: Inspection,
        agreed: StateAttestation,
        restore: Restore,
    ) -> None:
        """Check that the restored state and settings are those that were attested.
        ``TakesOverTheDonorsState`` checks that the bytes match their digests."""
        offer = core.recovery.offer
        state, settings = parts_of(restore.payload)
        where = f"a state of round {restore.round_id} from peer {core.recovery.donor}"
        self.judged += 1
        if offer is None or offer.round_id != restore.round_id:
            raise self.violated(
                swarm, peer, f"restores {where}, which has offered none of that round"
            )
        found = attested_digest(
            core.settings.lineage, offer.round_id, offer.chain, offer.core, state
        )
        if (offer.round_id, offer.chain, found) != (agreed.round_id, agreed.chain, agreed.digest):
            vouched = (
                f"for which {found.hex()} would stand; of round {agreed.round_id} "
                f"{agreed.digest.hex()} was vouched for"
            )
            raise self.violated(swarm, peer, f"restores {where}, {vouched}")
        if restore.settings and settings != agreed.settings:
            raise self.violated(
                swarm, peer, f"restores {where} with settings that nobody has vouched for"
            )

    def _judge_few(self, swarm: AnySwarm, peer: PeerId, core: Inspection) -> None:
        f, waited_s = core.settings.f, swarm.now - self._began[peer]
        able = [other for other in swarm.hosts if self._has_a_state(swarm, core, other)]
        what = f"takes the word of fewer than {f + 1} for the state, and peers {able} have one"
        hurried = len(able) > f and waited_s < 0.9 * core.settings.rounds.round_timeout_s
        self.demand(
            len(able) <= 2 * f and not hurried,
            swarm,
            peer,
            f"{what}; it has asked for {waited_s:.2f} s",
        )

    def _has_a_state(self, swarm: AnySwarm, core: Inspection, other: PeerId) -> bool:
        """Whether it can be asked for one, and could when ``core`` asked last."""
        host = swarm.hosts[other]
        able = (
            host.state == "up"
            and not host.trainer_stopped
            and self._able.get(other, swarm.now) < swarm.now - KNOWN_S
        )
        return able and other != core.local and not core.membership.skip_reason(other)


def _same(attestation: StateAttestation, agreed: StateAttestation) -> bool:
    return (attestation.round_id, attestation.chain, attestation.digest) == (
        agreed.round_id,
        agreed.chain,
        agreed.digest,
    )


class AnswersForTheRoundAsked(Checker):
    """S12: who is asked for the state before a round that is named vouches for that one, or gives
    that one, and for no other: two that are in different rounds could never say the same."""

    invariant = "S12"
    events = (StateRequest,)
    effects = (StateAttestation, StateOffer)

    def make_records(self) -> None:
        # who, under which nonce: of which rounds (0: any)
        self._asked = self.per_life(dict[tuple[PeerId, int], set[int]])

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if isinstance(event, Received) and isinstance(event.message, StateRequest):
            asked = event.message
            self._asked[peer].setdefault((event.sender, asked.nonce), set()).add(asked.round_id)

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if (
            not isinstance(effect, Send)
            or not isinstance(effect.message, StateAttestation | StateOffer)
            or not effect.message.digest
        ):
            return
        answer = effect.message
        # to nothing: see AnswersOnce
        rounds = self._asked[peer].get((effect.peer, answer.nonce), {0})
        self.judged += 0 not in rounds
        if 0 not in rounds and answer.round_id not in rounds:
            what = (
                "vouches for its state"
                if isinstance(answer, StateAttestation)
                else "gives its state"
            )
            text = (
                f"before round {answer.round_id} to peer {effect.peer}, which has asked for that "
                f"before {sorted(rounds)}"
            )
            raise self.violated(swarm, peer, f"{what} {text}")


class NamesARoundToCome(Checker):
    """S12: who has asked others to vouch for what they hold, wherever they are, and has found that
    they are in different rounds, does not ask them just the same again, but for what they will hold
    before a round that it names."""

    invariant = "S12"
    effects = (StateRequest,)

    def make_records(self) -> None:
        # under which nonce, and before which round (0: any)
        self._asked: dict[PeerId, tuple[int, int]] = self.per_life()

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        if (
            not isinstance(effect, Send)
            or not isinstance(effect.message, StateRequest)
            or effect.message.what != "attestation"
        ):
            return
        ask = effect.message
        before, self._asked[peer] = self._asked.get(peer), (ask.nonce, ask.round_id)
        # A pause takes a nonce, too: after one it begins anew, as when nobody has vouched, or has
        # given what was vouched for.
        if before is None or before[0] + 1 != ask.nonce or before[1] != 0:
            return
        # When it began to ask nobody may have been within reach,
        # who could have said how far the others are.
        found_somebody = any(
            isinstance(each, Report) and "subject" in each.fields for each in swarm.asked
        )
        text = (
            f"asks peer {effect.peer} for its state wherever it is, at once after it has asked so "
            "in vain"
        )
        self.demand(ask.round_id > 0 or found_somebody, swarm, peer, text)


__all__ = ["AnswersForTheRoundAsked", "NamesARoundToCome", "TakesNoFewersWord"]
