"""The core's settings. Each says its unit, its formula or what a larger value costs;
``gossip.config`` fills them in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, floor, log
from typing import Literal, TypeAlias

from gossip.errors import ConfigError

from .digests import digest_of
from .messages import PeerId

ON_LINKS = 2
"""Micro-batches of a pipeline on links. Without them a stage waits for slow links: in 5 % of 67
instances a step took 1.2 times as long as the formula says and more; with them the most is 1.1 of
178."""
MICRO_BATCHES_MAX = 1024  # of a step: their numbers fit a message


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """SWIM with Lifeguard. The defaults are for a node in a process of its own
    (docs/design_notes.md N2)."""

    # shorter finds crashes sooner and costs one ping and one ack each
    probe_interval_s: float = 0.2
    probe_timeout_s: float = 0.1  # for both direct tries together
    probe_tries: int = 2
    indirect_probes: int = 3  # helpers asked when a direct probe fails; at most n - 2
    suspicion_mult: int = 4
    suspicion_max_mult: int = 6
    gossip_interval_s: float = 0.05
    gossip_fanout: int = 3
    retransmit_mult: int = 4  # a rumour is sent retransmit_mult * ceil(log2(n + 1)) times
    push_pull_interval_s: float = 5.0
    gossip_to_dead_s: float = 30.0
    awareness_max: int = 8  # local health multiplies one's own timeouts by up to this
    rumors_per_message: int = 12
    # a link over which nothing comes for so long is closed; in real runs the node puts the
    # transport's own in its place (gossip/transport/base.py)
    link_timeout_s: float = 0.3
    incarnation_jump_max: int = 2**16

    @property
    def connect_grace_s(self) -> float:
        """For the first connections in both directions, four round trips of handshakes included;
        nobody is accused for their lack."""
        return max(2.0, 4 * self.link_timeout_s)


@dataclass(frozen=True, slots=True)
class RoundSettings:
    quorum: Quorum = "majority"  # with fewer than 3 peers: available
    # continue: as if available, once the others are dead for it
    on_minority: Literal["pause", "continue"] = "pause"
    # of a peer whose replica differs: it takes over others' state, and stops where that does not
    # help; it takes over a state each time; it goes on as it is
    on_divergence: Literal["stop", "heal", "warn"] = "stop"
    # the one knob: how long a round may wait at most; adapts downwards from measured rounds
    round_timeout_s: float = 10.0
    start_timeout_s: float = 60.0
    # so many begin once they have been here for patience_s; 0: a quorum,
    # and only at the start timeout
    min_peers: int = 0
    patience_s: float = 10.0
    quorum_timeout_s: float = 60.0
    grace_mads: float = 4.0  # k in median + k * MAD of past arrivals
    # never less than this, so that a busy machine's hiccups exclude nobody
    grace_floor_s: float = 0.05
    query_after_s: float = 0.003  # the server of a later attempt asks those it has not heard of
    behind_after_s: float = 0.02  # a round that others have left behind: ask for its commit
    drain_timeout_s: float = 5.0  # one that leaves helps those behind it for this long at most
    # who has completed the training expects one that it lost back for so long,
    # counted from the loss
    linger_s: float = 30.0
    commit_log: int = 64  # commits kept for those who are behind
    commit_log_bytes: int = 64 * 2**20


@dataclass(frozen=True, slots=True)
class GossipSettings:
    mix_every: int = 4  # m: parameters are exchanged in every m-th round
    mixing: float = 0.5  # how far one moves towards the others, at most k/(k+1)
    staleness_max: int = 4  # rounds; older pushes are dropped
    # consensus distance over parameter norm above which mixing is raised
    consensus_bound: float = 0.1


@dataclass(frozen=True, slots=True)
class TrustSettings:
    """One score a peer in [0, 1], from evidence with a name;
    the same on every peer whose commits agree."""

    # trust <- memory * trust + (1 - memory) * (1 if the update was ordinary else 0)
    memory: float = 0.9
    # so many times farther out than the median, as a rule and this time: that is evidence
    outlying: float = 3.0
    # so many times farther out than one in quarantine, whose place it takes
    farther: float = 1.5
    # Honest results are refused now and then, in a swarm near its optimum 1 of 200 a server; lies
    # nearly each time. what is left of the trust in a server when more than f peers have
    # refused a result of it
    served_memory: float = 0.75
    # likewise, once it is proven to have told different peers different results of one turn
    twice_memory: float = 0.3
    # of what is lacking comes back with each result of it that is taken
    served_recovery: float = 0.04
    # what is left of the hope to hear of a server when more than f peers have waited in vain
    heard_memory: float = 0.5
    suspect_below: float = 0.5
    quarantine_below: float = 0.2
    quarantine_rounds: int = 100
    # Rounds, in one of which the updates of those in quarantine are measured: that takes the rule
    # a second run.
    measured_every: int = 2
    parole_rounds: int = 50  # aggregated again, but not serving

    @property
    def trusted_above(self) -> float:
        """Trust above which a peer is trusted again whose trust has fallen below ``suspect_below``:
        a quarter of what is above that lies between the two."""
        return self.suspect_below + (1.0 - self.suspect_below) / 4

    @property
    def updates_to_return(self) -> int:
        """Number of updates in a row, at most, that must not stand out to end a quarantine where
        nothing else is against the peer."""
        return floor(log(1.0 - self.trusted_above) / log(self.memory)) + 1


BatchPolicy: TypeAlias = Literal["fixed_local", "fixed_global"]
"""Quantity that stays fixed when the roster changes size: each peer's batch, or a round's, which is
a batch for each of the run's first peers.

With fixed_global, the steps of the remaining peers take longer and need more memory. The
optimization stays the same.
"""


Quorum: TypeAlias = Literal["majority", "available"]
"""Peers that a round needs updates of: a majority of the roster, or those that are available."""
Slices: TypeAlias = Literal["speed", "equal"]
"""Whether who is much slower than most gets smaller slices (``pace``), or all get alike."""


@dataclass(frozen=True, slots=True)
class ResultSettings:
    """When a receiver doubts what a server has made of the updates. How they were measured:
    docs/threat_model.md."""

    # cosine to the own update; near the end of a training,
    # 1 to 2 % of honest results are below for a peer
    opposed: float = -0.5
    # times the root mean square of the own update's numbers; a shard whose numbers are smaller has
    # next to no gradient: a batch decides the sign of its update, and honest results oppose many
    faint: float = 0.3
    # times the longest results of late, and the own update; a longer one is doubted
    longer: float = 3.0
    # A scheduler that is a step ahead or behind differs by less: warm-ups about double a rate, most
    # steps down divide it by ten.
    higher: float = 3.0  # times the own learning rate and that of the round before
    lower: float = 0.01


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """Layers of each peer in a pipeline. They come from the plan of the run and are the same on
    every peer: a peer's stage follows from them, so nobody's word for it is needed.

    Attributes:
        stages: the members of each stage, each peer in one.
        micro_batches: of a step.
        in_flight: micro-batches that a peer has computed forward and not yet backward, at most; 0:
            as many as fill all peers from its stage on and the links behind it.
        pass_us: what each peer takes for a micro-batch, forward and backward, as the plan predicts
            it; empty where it does not. Micro-batches are shared by it until they are measured.
        audit: with which probability another member of the stage computes a micro-batch again; 0.0:
            nobody does.
        rebuilds: whether a stage whose state is lost with all its members is made anew, by those of
            its peers that come back; else they end.
    """

    stages: tuple[tuple[PeerId, ...], ...]
    micro_batches: int
    in_flight: int = 0
    pass_us: tuple[tuple[PeerId, int], ...] = ()
    audit: float = 0.0
    rebuilds: bool = True

    def stage_of(self, peer: PeerId) -> int | None:
        """None: the plan has no such peer."""
        return next((at for at, members in enumerate(self.stages) if peer in members), None)

    def forwards_max(self, stage: int, members: int) -> int:
        """Micro-batches whose backward pass one of so many members of that stage may owe: as a plan
        reckons with for its memory (``gossip_pipelines.planning``)."""
        if self.in_flight:
            return self.in_flight
        behind = sum(len(peers) for peers in self.stages[stage:])
        on_links = ON_LINKS if stage + 1 < len(self.stages) else 0
        return min(ceil(behind / members) + on_links, self.micro_batches)

    def check(self, peers: tuple[PeerId, ...]) -> None:
        """Raises ConfigError unless it is a plan for just these peers."""
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
    updates_for: tuple[int, ...] = (1,)  # what the rule needs to tolerate 0, 1, ... f
    judged: bool = False  # it tells updates apart by a judge's gradient, not by distance
    batch_policy: BatchPolicy = "fixed_local"
    slices: Slices = "speed"
    # an update may be of fewer local steps than planned: so slices of slow peers are not cut
    local_steps: bool = False
    room: int = 0  # ids below it may join later; 0: nobody but ``peers`` is ever in the run
    # the furthest that the run is known to have been in before this life; 0:
    # nothing is known of one
    had_round: int = 0
    # with fresh weights, though it has had rounds and nobody has their state any more
    begin_anew: bool = False
    # the shards of a round decide together, on what their servers have measured
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
        """Number of members of a stage that must agree before another's answer counts as false: one
        of them is honest. Where f is 0 one of them may lie all the same."""
        return max(self.f, 1) + 1

    @property
    def everybody(self) -> tuple[PeerId, ...]:
        """All peers that may ever be in the run, ascending; most of them may never come."""
        return tuple(sorted({*self.peers, *range(self.room)}))

    def may_be(self, peer: PeerId) -> bool:
        """Whether there may be such a peer."""
        return 0 <= peer < self.room or peer in self.peers

    @property
    def updates_min(self) -> int:
        """Number of updates that the rule needs for f: a round is not closed with fewer while more
        may come."""
        return self.updates_needed(self.f)

    def updates_needed(self, f: int) -> int:
        """Return the number of updates that the rule needs to tolerate ``f``, of which there is no
        more than its own."""
        return self.updates_for[max(0, min(f, len(self.updates_for) - 1))]

    def callers_too_few(self, roster: int) -> int:
        """Return the number of peers that alone make no collective operation of a round: all of
        them may lie, unless they are everybody."""
        return min(self.f, max(0, roster - 1))

    def tolerable(self, f: int, updates: int) -> int:
        """How many of ``f`` the rule can tolerate with so few updates;
        0 when it can do nothing with them."""
        return next(
            (fewer for fewer in range(f, 0, -1) if self.updates_needed(fewer) <= updates), 0
        )
