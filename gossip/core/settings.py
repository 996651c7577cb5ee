"""Settings of the core, with their units, formulas and trade-offs. ``gossip.config`` fills them
in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, floor, log
from typing import Literal, TypeAlias

from gossip.errors import ConfigError

from .digests import digest_of
from .messages import PeerId

ON_LINKS = 2
"""Number of micro-batches on the links of a pipeline. Without them a stage waits for slow links. In
5 % of 67 instances a step took at least 1.2 times as long as by the formula; with them the maximum
is 1.1 times in 178 instances."""
MICRO_BATCHES_MAX = 1024  # of a step: their numbers fit in a message


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """SWIM with Lifeguard. The defaults are for a node in a process of its own
    (docs/design_notes.md N2)."""

    # A shorter interval detects crashes sooner. Each probe costs one ping and one ack.
    probe_interval_s: float = 0.2
    probe_timeout_s: float = 0.1  # for both direct pings together
    probe_tries: int = 2
    indirect_probes: int = 3  # helpers if a direct probe fails; at most n - 2
    suspicion_mult: int = 4
    suspicion_max_mult: int = 6
    gossip_interval_s: float = 0.05
    gossip_fanout: int = 3
    retransmit_mult: int = 4  # a rumor is sent retransmit_mult * ceil(log2(n + 1)) times
    push_pull_interval_s: float = 5.0
    gossip_to_dead_s: float = 30.0
    awareness_max: int = 8  # local health multiplies local timeouts by up to this
    rumors_per_message: int = 12
    # A link without messages for so long is closed. In real runs the node sets the timeout of the
    # transport (gossip/transport/base.py).
    link_timeout_s: float = 0.3
    incarnation_jump_max: int = 2**16

    @property
    def connect_grace_s(self) -> float:
        """Time for the first connections in both directions, with four round trips of handshakes.
        Within it, missing connections cause no accusation."""
        return max(2.0, 4 * self.link_timeout_s)


@dataclass(frozen=True, slots=True)
class RoundSettings:
    quorum: Quorum = "majority"  # with fewer than 3 peers: available
    # continue: as if available, once the other peers are dead
    on_minority: Literal["pause", "continue"] = "pause"
    # If its replica differs, a peer adopts the state of another, and stops if that does not help;
    # adopts a state each time; or continues.
    on_divergence: Literal["stop", "heal", "warn"] = "stop"
    # Maximum time that a round waits. It adapts downwards from measured rounds.
    round_timeout_s: float = 10.0
    start_timeout_s: float = 60.0
    # So many peers begin after patience_s together; 0: a quorum begins, only at the start timeout.
    min_peers: int = 0
    patience_s: float = 10.0
    quorum_timeout_s: float = 60.0
    grace_mads: float = 4.0  # k in median + k * MAD of past arrivals
    # the minimum, so that delays of a busy machine exclude no peer
    grace_floor_s: float = 0.05
    query_after_s: float = 0.003  # Until the server of a later attempt requests missing updates.
    behind_after_s: float = 0.02  # Until the commit of a round that others have left is requested.
    drain_timeout_s: float = 5.0  # Maximum time that a leaving peer helps peers that are behind.
    # Time from its loss for which peers with a completed training wait for the return of a peer.
    linger_s: float = 30.0
    commit_log: int = 64  # commits kept for peers that are behind
    commit_log_bytes: int = 64 * 2**20


@dataclass(frozen=True, slots=True)
class GossipSettings:
    mix_every: int = 4  # m: parameters are exchanged in every m-th round
    mixing: float = 0.5  # Factor of the move towards the others, at most k/(k+1).
    staleness_max: int = 4  # Rounds. Older pushes are dropped.
    # Consensus distance over parameter norm above which mixing is raised.
    consensus_bound: float = 0.1


@dataclass(frozen=True, slots=True)
class TrustSettings:
    """One score in [0, 1] for each peer, from named evidence. Peers with the same commits have the
    same scores."""

    # trust <- memory * trust + (1 - memory) * (1 if the update was ordinary else 0)
    memory: float = 0.9
    # An update is evidence if it, and the recent ones of its peer, are so many times farther out
    # than the median.
    outlying: float = 3.0
    # Factor by which a peer must be farther out than one in quarantine to replace it.
    farther: float = 1.5
    # Factor of the trust in a server after more than f peers have rejected a result of it. Honest
    # results are rejected rarely, in a swarm near its optimum 1 of 200 of a server. False results
    # are rejected nearly each time.
    served_memory: float = 0.75
    # Factor after it is proven that a server has sent different results in one turn.
    twice_memory: float = 0.3
    # Part of the lost trust that returns with each accepted result.
    served_recovery: float = 0.04
    # Factor of the delivery score of a server after more than f peers have waited in vain.
    heard_memory: float = 0.5
    suspect_below: float = 0.5
    quarantine_below: float = 0.2
    quarantine_rounds: int = 100
    # In one of so many rounds the updates of peers in quarantine are measured, by a second run of
    # the rule.
    measured_every: int = 2
    parole_rounds: int = 50  # aggregated again, but not serving

    @property
    def trusted_above(self) -> float:
        """Trust above which a suspected peer is trusted again: ``suspect_below`` plus a quarter of
        the range above it."""
        return self.suspect_below + (1.0 - self.suspect_below) / 4

    @property
    def updates_to_return(self) -> int:
        """Maximum number of consecutive ordinary updates that end a quarantine, if there is no
        other evidence against the peer."""
        return floor(log(1.0 - self.trusted_above) / log(self.memory)) + 1


BatchPolicy: TypeAlias = Literal["fixed_local", "fixed_global"]
"""Quantity that stays fixed when the size of the roster changes: the batch of each peer, or that of
a round, which is one batch for each initial peer of the run.

With fixed_global, the steps of the remaining peers take longer and need more memory. The
optimization stays the same.
"""


Quorum: TypeAlias = Literal["majority", "available"]
"""Peers that must send updates in a round: a majority of the roster, or those that are
available."""
Slices: TypeAlias = Literal["speed", "equal"]
"""Size of slices: smaller for peers that are much slower than most (``pace``), or equal."""


@dataclass(frozen=True, slots=True)
class ResultSettings:
    """Thresholds for the rejection of a server's result. Their measurements:
    docs/threat_model.md."""

    # Cosine to the local update. Near the end of a training, 1 to 2 % of honest results are below
    # it on a peer.
    opposed: float = -0.5
    # Times the root mean square of the local update. A shard with smaller numbers has nearly no
    # gradient. The batch determines the sign of its update, and honest results oppose many.
    faint: float = 0.3
    # Times the longest recent results, and the local update. A longer result is rejected.
    longer: float = 3.0
    # Times the local learning rate, and that of the round before. A scheduler one step ahead or
    # behind differs by less: warm-ups about double a rate, most steps down divide it by ten.
    higher: float = 3.0
    lower: float = 0.01


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """Plan of a pipeline. It is the same on all peers and determines the stage of each peer, so no
    message has to claim a stage.

    Attributes:
        stages: Members of each stage. Each peer is in one stage.
        micro_batches: Number of micro-batches of a step.
        in_flight: Maximum number of micro-batches of a peer with a forward but no backward pass. 0:
            as many as fill all peers from its stage on, and the links after it.
        pass_us: Predicted time of each peer for both passes of a micro-batch; empty if there is no
            prediction. Until the first measurements, micro-batches are shared by it.
        audit: Probability that another member of the stage computes a micro-batch again.
        rebuilds: Whether returning peers rebuild the state of a stage after the loss of all its
            members. Otherwise they end.
    """

    stages: tuple[tuple[PeerId, ...], ...]
    micro_batches: int
    in_flight: int = 0
    pass_us: tuple[tuple[PeerId, int], ...] = ()
    audit: float = 0.0
    rebuilds: bool = True

    def stage_of(self, peer: PeerId) -> int | None:
        """Return the stage of a peer; None if the plan does not have the peer."""
        return next((at for at, members in enumerate(self.stages) if peer in members), None)

    def forwards_max(self, stage: int, members: int) -> int:
        """Return the maximum number of micro-batches without a backward pass on one of so many
        members of a stage. Plans count memory by it (``gossip_pipelines.planning``)."""
        if self.in_flight:
            return self.in_flight
        behind = sum(len(peers) for peers in self.stages[stage:])
        on_links = ON_LINKS if stage + 1 < len(self.stages) else 0
        return min(ceil(behind / members) + on_links, self.micro_batches)

    def check(self, peers: tuple[PeerId, ...]) -> None:
        """Check that the plan is valid for these peers. Raises ConfigError if not."""
        planned = [peer for members in self.stages for peer in members]
        if sorted(planned) != sorted(peers) or not all(self.stages):
            raise ConfigError(
                f"the plan has stages of the peers {[list(each) for each in self.stages]}, and the "
                f"run has the peers {list(peers)}: each has to be in one stage, and no stage empty"
            )
        if not 1 <= self.micro_batches <= MICRO_BATCHES_MAX:
            raise ConfigError(
                f"{self.micro_batches} micro-batches: 1 to {MICRO_BATCHES_MAX} make a step"
            )
        if not all(took_us > 0 for _, took_us in self.pass_us):
            raise ConfigError(f"times of peers {dict(self.pass_us)}: each is above 0")
        if not 0.0 <= self.audit <= 1.0:
            raise ConfigError(f"audit = {self.audit}: a probability, 0 to 1")


@dataclass(frozen=True, slots=True)
class CoreSettings:
    run: bytes
    lineage: bytes
    seed: int
    peers: tuple[PeerId, ...]  # the roster of round 0
    f: int = 0  # Byzantine peers to tolerate
    updates_for: tuple[int, ...] = (1,)  # Updates that the rule needs to tolerate 0, 1, ... f.
    judged: bool = False  # The rule judges updates by a gradient, not by distance.
    batch_policy: BatchPolicy = "fixed_local"
    slices: Slices = "speed"
    # An update may have fewer local steps than planned, so slices of slow peers are not cut.
    local_steps: bool = False
    room: int = 0  # Ids below it may join later; 0: only ``peers``.
    # latest round of the run that is known from before this life; 0: none
    had_round: int = 0
    # Begin again with initial weights, although the run had rounds and their state is lost.
    begin_anew: bool = False
    # The shards of a round decide together, by the statistics of their servers.
    cross_shard: bool = False
    membership: MembershipSettings = field(default_factory=MembershipSettings)
    rounds: RoundSettings = field(default_factory=RoundSettings)
    gossip: GossipSettings = field(default_factory=GossipSettings)
    trust: TrustSettings = field(default_factory=TrustSettings)
    results: ResultSettings = field(default_factory=ResultSettings)
    # the layers are spread over stages of the peers; None: each peer holds the whole model
    pipeline: PipelineSettings | None = None

    def of_stage(self, local: PeerId) -> CoreSettings:
        """Return the settings of the rounds of a peer: its stage is a swarm of its own, with a
        lineage of its own. Without a pipeline these are the settings themselves.

        Raises: ConfigError: The plan is not for the peers of the run.
        """
        if self.pipeline is None:
            return self
        self.pipeline.check(self.everybody)
        if self.cross_shard:
            raise ConfigError("the shards of a stage do not decide together: give it one shard")
        stage = self.pipeline.stage_of(local)
        if stage is None:
            raise ConfigError(f"peer {local} is in no stage of the plan")
        lineage = digest_of(self.lineage + stage.to_bytes(4, "little"))
        return replace(self, peers=self.pipeline.stages[stage], room=0, lineage=lineage)

    @property
    def audit_votes(self) -> int:
        """Number of equal votes of members of a stage that convict another: at least one of them is
        honest. If f is 0, one of them may still be Byzantine."""
        return max(self.f, 1) + 1

    @property
    def everybody(self) -> tuple[PeerId, ...]:
        """All peers that may ever be in the run, ascending. Most of them may never join."""
        return tuple(sorted({*self.peers, *range(self.room)}))

    def may_be(self, peer: PeerId) -> bool:
        """Whether a peer with this id may be in the run."""
        return 0 <= peer < self.room or peer in self.peers

    @property
    def updates_min(self) -> int:
        """Number of updates that the rule needs for f. A round does not close with fewer while more
        may arrive."""
        return self.updates_needed(self.f)

    def updates_needed(self, f: int) -> int:
        """Return the number of updates that the rule needs to tolerate ``f``, at most for its own
        f."""
        return self.updates_for[max(0, min(f, len(self.updates_for) - 1))]

    def callers_too_few(self, roster: int) -> int:
        """Return the maximum number of callers that do not make a round a collective operation: all
        of them may be Byzantine, unless they are all peers of the roster."""
        return min(self.f, max(0, roster - 1))

    def tolerable(self, f: int, updates: int) -> int:
        """Return how many of ``f`` Byzantine peers the rule tolerates with so many updates; 0 if
        none."""
        return next(
            (fewer for fewer in range(f, 0, -1) if self.updates_needed(fewer) <= updates), 0
        )
