"""S12: attestations of a state: how many a peer needs, and how it requests them."""

from __future__ import annotations

from gossip.core import (
    PeerId,
    Received,
    Report,
    Restore,
    Send,
    StateAttestation,
    StateRequest,
    TimerFired,
    attested_digest,
    parts_of,
)
from gossip_lab.simulation.checkers.base import (
    Checker,
    PerIncarnation,
    has_unattested_state,
    last_report_at,
    on_effect,
    on_event,
    on_report,
)

KNOWN_S = 1.0  # time after which a peer with a state must be able to attest it


class QuorumOfAttestations(Checker):
    """S12: in rolling rounds a peer restores only a state that f + 1 peers have attested, whatever
    its donor claims. It accepts fewer attestations only if fewer peers can have a state, or if at
    most 2f peers with a state were reachable during a round timeout."""

    invariant = "S12"
    _attestations = PerIncarnation(dict[PeerId, StateAttestation])

    def make_records(self) -> None:
        # Peer -> time since when it has a state.
        self._holders_since: dict[PeerId, float] = self.per_incarnation({})

    @on_event
    def record_state_holder(self, event: TimerFired | Received) -> None:
        if self.core.phase not in ("running", "draining"):
            self._holders_since.pop(self.peer, None)
        else:
            self._holders_since.setdefault(self.peer, self.now)

    @on_event
    def record_attestation(self, event: Received, attestation: StateAttestation) -> None:
        if attestation.digest and attestation.nonce == self.core.recovery.nonce:
            self._attestations[event.sender] = attestation

    def _needs_attestations(self) -> bool:
        return self.core.rolling is not None and self.core.recovery.need != 1

    @on_report("unattested_state")
    def judge_unattested(self, report: Report) -> None:
        if not self._needs_attestations():
            return
        settings = self.core.settings
        waited_s = self.now - last_report_at(self.host, "recovering")
        f = settings.f
        able = [other for other in self.swarm.hosts if self._is_able_donor(other)]
        hurried = len(able) > f and waited_s < 0.9 * settings.rounds.round_timeout_s
        self.demand(
            len(able) <= 2 * f and not hurried,
            f"accepts fewer than {f + 1} attestations of the state, but peers {able} have one; it "
            f"has asked for {waited_s:.2f} s",
        )

    def _is_able_donor(self, other: PeerId) -> bool:
        """Whether the other peer is reachable, and has had a state for at least ``KNOWN_S``."""
        host = self.swarm.hosts[other]
        able = (
            host.state == "up"
            and not host.trainer_stopped
            and self._holders_since.get(other, self.now) < self.now - KNOWN_S
        )
        return able and other != self.peer and not self.core.membership.skip_reason(other)

    @on_effect
    def judge(self, restore: Restore) -> None:
        if not self._needs_attestations():
            return
        recovery, agreed = self.core.recovery, self.core.recovery.attestation
        alike = [
            attestation
            for attestation in self._attestations.values()
            if agreed is not None and _same(attestation, agreed)
        ]
        self.demand(
            len(alike) >= recovery.need or has_unattested_state(self.host),
            f"restores a state of round {restore.round_id} that {len(alike)} have attested, "
            f"but f is {self.core.settings.f}",
        )
        if agreed is not None:
            self._judge_content(agreed, restore)

    def _judge_content(self, agreed: StateAttestation, restore: Restore) -> None:
        """Check that the digests of the restored state and settings are the attested digests.
        ``RestoredStatesMatchDonors`` checks that the bytes have these digests."""
        offer, lineage = self.core.recovery.offer, self.core.settings.lineage
        state, settings = parts_of(restore.payload)
        restores = (
            f"restores a state of round {restore.round_id} from peer {self.core.recovery.donor}"
        )
        self.judged += 1
        if offer is None or offer.round_id != restore.round_id:
            raise self.violated(f"{restores}, which has offered no state of that round")
        found = attested_digest(lineage, offer.round_id, offer.chain, offer.core, state)
        if (offer.round_id, offer.chain, found) != (agreed.round_id, agreed.chain, agreed.digest):
            raise self.violated(
                f"{restores}, with the digest {found.hex()}; for round {agreed.round_id} "
                f"{agreed.digest.hex()} was attested"
            )
        if restore.settings and settings != agreed.settings:
            raise self.violated(f"{restores} with settings that no peer has attested")


def _same(attestation: StateAttestation, agreed: StateAttestation) -> bool:
    return (attestation.round_id, attestation.chain, attestation.digest) == (
        agreed.round_id,
        agreed.chain,
        agreed.digest,
    )


class AttestationRoundNaming(Checker):
    """S12: if a peer has requested attestations for any round, and other peers have replied for
    different rounds, it does not repeat this request. It then requests attestations of the state
    before a certain round."""

    invariant = "S12"
    # (nonce, requested round) of the last request; round 0 means any round.
    _asked = PerIncarnation[tuple[int, int] | None]()

    @on_effect
    def judge(self, send: Send, ask: StateRequest) -> None:
        if ask.what != "attestation":
            return
        before = self._asked
        self._asked = ask.nonce, ask.round_id
        # If the nonces are not consecutive, the peer has paused and begins again, because no peer
        # has attested a state or no donor has sent the attested state.
        if before != (ask.nonce - 1, 0):
            return
        # A peer that became reachable only now may be the first to report the rounds of the others.
        found_somebody = any(
            isinstance(each, Report) and "subject" in each.fields
            for each in self.swarm.dispatcher.effects
        )
        self.demand(
            ask.round_id > 0 or found_somebody,
            f"asks peer {send.peer} for its state of any round, directly after such a "
            "request has failed",
        )
