"""Read-only views of a running peer, for checkers and the simulator.

Only this module reads private attributes of the core. If such an attribute changes, mypy reports
an error in this module, and the checkers need no change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set

from gossip.core import (
    Contributed,
    GossipRounds,
    Hello,
    Member,
    Membership,
    Peer,
    PeerId,
    Phase,
    PieceFetcher,
    Poll,
    RollingRounds,
    ShardRound,
    Stage,
    StateAttestation,
    StateOffer,
    StateRequest,
)
from gossip.topologies import Roster


class MembershipInspection:
    """Membership of one peer."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self.settings, self.local = membership.settings, membership.local
        self.incarnation, self.me = membership.incarnation, membership.me
        view = membership.view
        self.skip_reason, self.is_gone, self.has_ended = (
            view.skip_reason,
            view.is_gone,
            view.has_ended,
        )
        self.alive, self.others = view.alive, view.others
        self.members: Mapping[PeerId, Member] = membership.members
        self.probes = membership.prober.probes

    @property
    def standing(self) -> int:
        return self._membership.standing

    @property
    def n(self) -> int:
        """Number of present members, which is n in the formulas of SWIM."""
        return len(self._membership.view)

    @property
    def news(self) -> int:
        """Number of rumors that were ever queued."""
        return self._membership.rumors._order

    @property
    def accusers_max(self) -> int:
        """Maximum number of queued accusations of one member, each by another accuser."""
        return self._membership.rumors.accusers_max

    def stores(self) -> dict[str, int]:
        """Return the number of entries in each bounded store."""
        membership, prober = self._membership, self._membership.prober
        return {
            "members in the table": len(membership.members),
            "rumours waiting": len(membership.rumors),
            "probes under way": len(prober.probes),
            "probes for others under way": len(prober.relays),
            "peers on the probing circle": len(prober._circle),
            "voices without an address": len(membership._voices),
            "changes that nobody was told of": len(membership.view.changes),
        }


class RoundsInspection:
    """Rounds of one peer: rolling or gossip rounds."""

    def __init__(self, rounds: RollingRounds | GossipRounds) -> None:
        self._either = rounds
        self.settings, self.local = rounds.settings, rounds.local
        self.deadline, self.quorum = rounds.deadline, rounds.quorum
        self.seen: Mapping[PeerId, int] = rounds.future_buffer.seen

    @property
    def round_id(self) -> int:
        return self._either.round_id

    @property
    def roster(self) -> Roster:
        return self._either.roster

    @property
    def mode(self) -> str:
        return self._either.mode

    @property
    def shard_bytes(self) -> tuple[int, ...]:
        """Lengths of an encoded update in bytes, by shard."""
        return self._either.shard_bytes


class RollingInspection(RoundsInspection):
    def __init__(self, rounds: RollingRounds) -> None:
        super().__init__(rounds)
        self._rounds, self._lag = rounds, rounds.lag_detector
        self.log, self.server, self.departures = rounds.log, rounds.server, rounds.departures
        self.replicated, self.cross_shard = rounds.replicated, rounds.participant.cross_shard
        self.joining: Set[PeerId] = rounds.joining
        self.skip_reason, self.serves = rounds.skip_reason, rounds.participant.may_serve
        self.snapshot, self.is_passed = rounds.snapshot, self._lag.is_passed
        self.must_stay = rounds.participant.must_stay

    @property
    def chain(self) -> bytes:
        return self._rounds.chain

    @property
    def shards(self) -> Sequence[ShardRound]:
        """Shards of the present round."""
        return self._rounds.shards

    @property
    def own(self) -> Contributed | None:
        """The local update of the present round."""
        return self._rounds.present.own

    @property
    def holds_back(self) -> bool:
        """Whether this peer has made and sent a commit that it has not recorded itself yet."""
        return self._rounds.commits.own_commit is not None

    @property
    def ahead(self) -> Mapping[PeerId, int]:
        """Latest reported round of each peer that is ahead of this peer."""
        return self._lag._ahead

    @property
    def branches(self) -> Mapping[PeerId, bytes]:
        """Hash of the last round, as reported by each other peer in the present round."""
        return self._lag._branches

    @property
    def absent_at_start(self) -> Set[PeerId]:
        """Peers that were absent at the start of the run, and have reported no round since then."""
        return self._rounds.future_buffer.absent_at_start

    @property
    def asked(self) -> tuple[PeerId, int] | None:
        """The receiver of the last request for commits, and the first requested round."""
        return self._lag._open

    @property
    def may_differ(self) -> bool:
        """Whether both sides of a partition may continue."""
        return self._lag.fork_choice.may_differ

    def stores(self) -> dict[str, int]:
        """Return the number of entries in each bounded store."""
        rounds, buffer = self._rounds, self._rounds.future_buffer
        stored = [key for kept in buffer.stored.values() for key in kept]
        is_former = [former for *_, former in stored]
        return {
            "commits kept, in rounds": len(rounds.log._rounds),
            "commits kept, in bytes": rounds.log._bytes,
            "messages kept for later rounds": is_former.count(False),
            "rounds with messages kept": len(buffer.stored),
            "commits of former lives kept": is_former.count(True),
            "answers of a shard": max(
                (len(shard.served.answers) for shard in self.shards), default=0
            ),
            "rules asked": sum(shard.served.ticket is not None for shard in self.shards),
            "measures of shards": len(self.cross_shard._parts),
            "measures that were asked for": len(self.cross_shard._asked),
            "peers that want to join": len(rounds.joining),
            "peers that have finished": len(rounds.departures),
            "branches heard of": len(self._lag._branches),
            "hashes of the lineage": len(rounds.replicated.lineage._history),
            "snapshots": len(rounds.replicated._snapshots),
        }


class GossipInspection(RoundsInspection):
    def __init__(self, rounds: GossipRounds) -> None:
        super().__init__(rounds)
        self._rounds, self.trust = rounds, rounds.trust
        self.finished: Collection[PeerId] = rounds.finished

    @property
    def phase(self) -> str:
        return self._rounds.phase

    @property
    def sources(self) -> tuple[PeerId, ...]:
        """Peers from which this round awaits pushes, at most until its grace period ends."""
        return self._rounds._round.sources

    def stores(self) -> dict[str, int]:
        """Return the number of entries in each bounded store."""
        rounds = self._rounds
        return {
            "pushes kept": len(rounds.pushes),
            "peers heard pushing": len(rounds.pushes._latest),
            "sketches": len(rounds.mixing._sketches),
            "plans": len(rounds.plans),
            "times of contributions": len(rounds._contributed_at),
            "rules asked": len(rounds._round.tickets),
            "peers that have finished": len(rounds.finished),
            "peers with a standing": len(rounds.trust.pack()[0]),
        }


class TransferInspection:
    """State transfers of one peer: the state that it receives, and the states that it sends."""

    def __init__(self, peer: Peer) -> None:
        self._recovery = recovery = peer.recovery
        self.need = recovery.need
        self.asks: Mapping[PeerId, StateRequest] = recovery.giving.asks
        self.copies = recovery.giving.copies
        self.kept: Collection[bytes] = recovery._kept

    @property
    def poll(self) -> Poll:
        return self._recovery.poll

    @property
    def stage(self) -> str:
        return self._recovery.stage

    @property
    def donor(self) -> PeerId | None:
        return self._recovery.donor

    @property
    def nonce(self) -> int:
        """Nonce of the last request for a state."""
        return self._recovery._nonce

    @property
    def offer(self) -> StateOffer | None:
        return self._recovery._offer

    @property
    def pieces(self) -> PieceFetcher | None:
        return self._recovery.pieces

    @property
    def attestation(self) -> StateAttestation | None:
        """Attestation of the required state."""
        return self._recovery.attestation

    @property
    def waits_for(self) -> set[PeerId]:
        return self._recovery.waits_for


class Inspection:
    """View of one peer in one incarnation."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.local, self.settings, self.topology = peer.local, peer.settings, peer.topology
        self.membership = MembershipInspection(peer.membership)
        self.rounds: RollingInspection | GossipInspection = (
            RollingInspection(peer.rounds)
            if isinstance(peer.rounds, RollingRounds)
            else GossipInspection(peer.rounds)
        )
        self.rolling = self.rounds if isinstance(self.rounds, RollingInspection) else None
        self.gossip = self.rounds if isinstance(self.rounds, GossipInspection) else None
        self.recovery = TransferInspection(peer)
        self.donors, self.overdue_s = peer.peer_progress.donors, peer.timers.overdue_s
        self.hellos: Mapping[PeerId, Hello] = peer.bootstrap.hellos
        self.completed: Mapping[PeerId, int] = peer.shutdown.completed
        self.tolerance_s = peer.pauses.tolerance_s

    @property
    def phase(self) -> Phase:
        return self._peer.phase

    @property
    def stage(self) -> Stage:
        """Stage that the peer announces in its hello."""
        return self._peer.hello_exchange.stage

    @property
    def weights(self) -> Mapping[PeerId, float]:
        """Weight of each member of the stage in the distribution of micro-batches. Empty without
        stages."""
        return self._peer.weights

    @property
    def confirms(self) -> int | None:
        """Round of the final check: this peer compares its state before this round with other
        peers. None if there is no final check at present."""
        return self._peer.final_check.round_id

    @property
    def handled_at(self) -> float:
        return self._peer.pauses.handled_at

    @property
    def recover_at(self) -> float | None:
        """Time of the next recovery, if it is delayed because this peer could not keep up after the
        last recovery; otherwise None."""
        return self._peer._recover_at

    @property
    def stopped_at(self) -> float:
        """Time of the request to leave."""
        return self._peer.shutdown._stopped_at

    @property
    def stop_reason(self) -> str:
        return self._peer._stop_reason

    def stores(self) -> dict[str, int]:
        """Return the number of entries in each bounded store, except the stores of the
        membership."""
        giving = self._peer.recovery.giving
        return {
            "timers pending": len(self._peer.timers),
            "hellos": len(self.hellos),
            "takers of the state": sum([ask.what == "state" for ask in giving.asks.values()]),
            "who waits for an attestation": len(giving.asks),
            "states that are kept": len(giving.copies),
            "takers of pieces": len(giving._takers),
            "pieces of a state": len(self.recovery.kept),
            "peers heard of in other rounds": len(self.rounds.seen),
            **self.rounds.stores(),
            **self._peer.stores(),
        }
