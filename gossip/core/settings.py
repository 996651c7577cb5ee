"""Settings of the core, with units, formulas and trade-offs. ``gossip.config`` sets their
values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, floor, log
from typing import Literal, TypeAlias

from gossip.errors import ConfigError

from .digests import digest_of
from .messages import PeerId

# Times, limits and bounds that users cannot set. Those that users can set are fields of
# ``MembershipSettings`` and ``RoundSettings`` below. A number with a formula follows from other
# numbers. A number without one was chosen; its comment has the reasons for its size.

# --- intervals, seconds ---------------------------------------------------------------------------

CHECK_INTERVAL_S = 0.25
"""Interval of periodic checks (for peers at the start, missing commits, arriving bytes) and of
repeated requests to silent peers, because any message may be lost. It also limits the wait for the
remaining replies to a poll, once enough peers have replied without agreement."""
RESEND_S = 2 * CHECK_INTERVAL_S
"""Longest interval between two requests for commits to one peer. Also the interval of reports of
micro-batches. Both cost more than a check."""
ANSWER_INTERVAL_S = 0.1
"""Shortest interval between two replies to the hellos, or to the tables, of one peer. Without it,
two idle peers would reply to each other forever."""
RETURN_INTERVAL_S = 0.02
"""Interval of requests for commits by a returning peer. It must be shorter than a round."""
RETURN_HELLO_EVERY = 5
"""Number of these requests after which the returning peer announces again that it is ready."""
WATCH_INTERVAL_S = 1.0
"""Interval of the check of the quorum. It is short compared with the timeouts of the quorum, which
are minutes."""
WAITING_REPORT_S = 5.0
"""Interval of the report of missing peers at the start. A newcomer with a different model waits
this time for more than f peers before it halts. At the start, a peer waits this time for peers that
may have begun with other weights."""
BUSY_INTERVAL_S = 0.3
"""Interval at which a peer reports to others that it receives payloads: several within
``BUSY_S``."""
SERVER_PULSE_S = 0.05
"""Interval of a timer by which a server detects its own pause before other peers miss its
heartbeats (``link_timeout_s``)."""

# --- timeouts, seconds ----------------------------------------------------------------------------

REPLY_S = 1.0
"""Timeout of a reply from a peer with an unknown round trip, and shortest timeout of a server (RFC
6298, 2.1 and 2.4). After this time a request for a state is repeated, a receiver that sends no
further request has all pieces, and a reply that cannot change the result is not awaited longer."""
PROBE_TIMEOUT_MAX_S = 4.0
"""Largest timeout of a probe that measured round trips can lead to."""
LOADED_VERDICT_S = 1.5
"""Minimum time from the last ping to a verdict while large payloads are in transfer. A lost segment
is sent again after 0.2 s and after another 0.4 s, and queues on the path add to this time."""
LAST_WORDS_S = 2.0
"""Time for which messages of an incarnation may still arrive after the claim that it has ended. If
messages arrive later, the peer is alive and the claim was false."""
BUSY_S = 2.0
"""Time after a report for which payloads count as in transfer, and a peer as busy. Payloads arrive
one after the other, with pauses in between. A payload that takes no longer than this never counts
as trickling."""
SPEED_KNOWN_S = 2 * BUSY_S
"""Age up to which the last report of a peer is used for its speed."""
SPEED_WINDOW_S = 0.5
"""Window over which the speed of a payload is measured. A payload that begins fast and then
trickles is detected after one window."""
AT_ONCE_S = 0.1
"""Longest possible duration of a payload that was complete before any report of its progress."""
COMPILING_MAX_S = 300.0
"""Longest wait for a peer that reports a compilation. No other peer can check such a report."""
NOT_SLOW_S, NOT_SLOW_ROUNDS = 0.5, 1.0
"""Minimum wait for a peer that is not known to be slow: seconds, because its machine may be busy,
plus typical rounds, because lags grow with the duration of a round."""
NEWCOMER_ROUNDS, NEWCOMER_S = 2, 0.5
"""Largest lag at which a newcomer reports that it is ready: this number of rounds, or the number of
rounds in these seconds if it is larger."""
PAUSE_TOLERANCE_S = 0.25
"""A peer that handles no event for longer checks whether its process was paused. This time is
shorter than the silence after which other peers continue without it."""
LOADED_PAUSE_TOLERANCE_S = 1.0
"""The same tolerance while large payloads are in transfer, because copies, hashes and sums take
time. At most half of the link timeout."""
AFTER_PAUSE_S = 1.0
"""Time after a pause in which a peer does not serve. By its end, the messages that arrived during
the pause have been handled."""
FELL_BEHIND_S, FELL_BEHIND_MAX_S = 0.5, 5.0
"""Delay before a peer that cannot keep up recovers again: unit and limit. The first recovery has no
delay and the second a delay of one unit. Later delays roughly double."""

# --- timeouts as multiples of a measured or configured time ---------------------------------------

USUAL_FACTOR = 3.0
"""An event that usually takes t is awaited for 3 t. Examples are a server (t: the median round),
the first byte of a payload, the next chunk, the last result and a state on slow links, and a
gradient. Noise of a busy machine stays below this factor."""
TRANSFER_FACTOR = 6.0
"""Longest wait while payloads still arrive, as a multiple of the wait without payloads. It is
longer for links that are known to be slower."""
TRANSFER_PAUSE_MAX_S = TRANSFER_FACTOR * BUSY_S
"""Longest pause between two chunks that a peer may report, in seconds."""
DONOR_FACTOR = 2 * TRANSFER_FACTOR
"""Deadline of a donor, in round timeouts: half of it for a transfer, and half for a trainer that is
busy when the request arrives."""
FAIR_FACTOR = 8.0
"""A payload counts as trickling if it takes this multiple of the usual time of its sender."""
COMPUTE_FACTOR = 2.0
"""Longest time that another peer may need for its update, as a multiple of the local time."""
STALL_TIMEOUTS = 2.0
"""Number of round timeouts without progress after which a trainer counts as stalled."""
CLOSE_SHARE, TURN_SHARE, OVERDUE_SHARE = 0.7, 0.75, 0.85
"""Fractions of the timeout of a server, in order. At the first one the server closes with the
updates that it has. From the second on, a peer may name the next server. At the third, statistics
for the server are overdue. At 1 its participants move on to the next server."""
NACK_SHARE = 0.8
"""Fraction of the probe timeout beyond the round trip after which a helper sends its Nack. The Nack
must arrive before the verdict."""
UNASKED_SHARE = 0.25
"""Fraction of a typical round for which a peer waits for missing commits before it requests
them."""
DOUBLINGS_MAX = 3
"""Number of times that a timeout doubles, for a server and for a gradient without a measured
time."""
REST_TIMES_MAX = 4
"""Longest exclusion of a donor that did not deliver, as a multiple of the first exclusion."""
CLAIM_DOUBLINGS_MAX = 16
"""Maximum number of doublings of the delay of a claim in one round, so that the delay is finite."""

# --- credit: limits on the delay that a peer can cause by claims that no other peer can check -----

CREDIT_REGAINED = 0.01
"""Share of the elapsed time by which spent credit recovers. A Byzantine peer can delay a run once
by its credit, and afterwards by a hundredth of the time."""
CREDIT_TURNS = 3.0
"""Number of attempts that the unexplained claims of one peer may delay, over all rounds."""
REFUND_TURNS = 1.0
"""Attempts by which a peer's credit recovers with each result that it makes, because an honest peer
may have followed a Byzantine one. A Byzantine peer gains about as much delay by this as by
withholding its results."""
PARDONS_MAX = 3
"""Maximum number of new incarnations of a peer that sent no weights for which the run waits again.
A Byzantine peer can start any number of incarnations."""
MISSED_ROUNDS, AMENDS_ROUNDS, RETRY_ROUNDS = 2, 8, 32
"""Numbers of rounds. After the first number of missed rounds, servers stop the long wait for a
peer. After the second number of rounds in time, in addition to the missed ones, they wait again.
After the third number of missed rounds, they try one long wait. A peer that is rarely in time must
not delay every round, but only a wait can show that its link is slow."""
GIVEN_TIMES_MAX = 4
"""Maximum number of times that one peer receives the same piece of a state from a donor, and that
the donor's deadline is renewed without a new piece. The receiver may restart, and messages may be
lost."""
REFUSALS_MAX = 3
"""Number of consecutive states that a trainer may fail to load. After that, no state of the run
fits this peer."""
RETURNS_MAX = 2
"""Number of comparisons in which a peer's replica may differ, with no missed round in between,
before the peer stops."""
SURE_TURNS = 2
"""Number of polls in which every peer must report that it has no state. A peer that is recovering
during the first poll has a state in the second."""
POLLS_STRICT, POLLS_MAX = 2, 6
"""Number of polls for a state that also require equal settings of the scripts, and maximum number
of polls of a peer that can return to its own state."""
NAMED_AHEAD = 2
"""Distance in rounds of the first round that a poll names. Each further one is four times as
far."""
STALLED_BEHIND = 2
"""Minimum lag of a stalled trainer in rounds. Any peer may be one round behind."""
STRAY_EVERY = 5
"""One in this many probes and table exchanges goes to a peer that is dead or was never met."""

# --- estimates ------------------------------------------------------------------------------------

ESTIMATE_MIN = 8
"""Number of observations that an estimated timeout needs. With fewer, the cap is used."""
PEER_TIMES, PEER_TIMES_MIN = 8, 4
"""Number of stored times of each peer, and number that is sufficient to classify the peer. While
fewer are known, each missing one adds the whole limit again to the time of a payload."""
SLOWER_PAYLOADS = 3
"""Number of consecutive trickling payloads, from most peers, that indicate a slower network. The
times of these payloads become the typical ones."""
TRIP_GAINS = 0.125, 0.25
"""Weights of a new round trip sample in the mean and in the deviation (RFC 6298, 2.3)."""
LOADED_ROUNDS = 3
"""Number of typical rounds for which timeouts stay long after a slow transfer."""
CALM_SHARE = 0.5
"""Fraction of its bound below which the consensus distance ends raised mixing."""
PACE_WINDOW, PACE_LEVELS = 16, 2
"""Number of rounds between two changes of the shares of samples, and number of times that a share
can be halved."""
PACE_SLOW, PACE_QUICK = (7, 4), (3, 4)
"""Fractions of the median time. A peer is too slow from 1.75 times the median on. A peer up to 0.75
times the median can compute twice as much and still be below 1.75."""
MARGIN_US = 25_000
"""Difference in microseconds that never makes a peer slow: half of ``grace_floor_s``."""
ROUND_TIMES = 3
"""Number of rounds after which a slow peer gets a deadline. A single round in which all peers were
delayed, as by an evaluation, does not count."""
ROUND_LATE = 11, 10
"""Deadline as a fraction of the median of these rounds. A peer that is slower than the median by
less than that still completes all its steps."""
PASS_TIMES = 5
"""Number of latest rounds of a stage member over which the median is taken."""
PASS_UNLIKE, PASS_UNLIKE_US = (3, 2), 5_000
"""Ratio of measured and predicted time from which a member does not match its profile, and smallest
difference in microseconds, because no profile includes the time of messages between processes."""
PASS_BITS = 5
"""Number of leading bits of a reported time that are used, which are steps of 3 to 6 %. Smaller
steps would move no micro-batch."""
SPEED_RATIO_MAX = 8
"""Largest ratio of the speeds of two members of a stage that is used, whatever they report."""
TRUST_ROUNDS = 20
"""Number of recent updates of a peer that determine its typical outlyingness, its reasons and its
usual length."""
SPREAD_EVERY = 10
"""Number of rounds between two measurements of how much the data of the peers differ."""
UNEQUAL = 6.0
"""Threshold of this statistic, in standard deviations above the mean that it has by chance."""
UNEQUAL_OFTEN, UNEQUAL_SHARE = 3, 8
"""The data of the peers count as different if at least this number of measurements is unequal, or
more than one in this many. By chance alone, either is rare."""
FORK_ROUNDS = 8
"""Number of latest rounds with contributors that count for a side of a fork."""
COMPARED_STEPS = 3
"""Number of first steps of a run after each of which the replicas are compared."""

# --- bounds of stores, so that no peer fills the memory of another --------------------------------

MEMBERS_MAX, TABLE_MAX = 4096, 500
"""Number of members if no list restricts the peers, and number of members in one message."""
SENDERS_MAX = 16
"""Number of stored senders of a rumor. In a large run the next receiver is rarely one of them."""
RELAYS_MAX = 256
"""Number of probes in progress for other peers. A further request is rejected with a Nack."""
LATE_PROBES_MAX = 64
"""Number of ended probes for which a late reply still gives a round trip."""
SCANNED_MEMBERS = 64
"""Number of members up to which a sample scans all members first."""
HISTORY_ROUNDS = 1024
"""Number of rounds with a stored hash of the history, and with stored audit votes."""
ACCUSED_ROUNDS = 16
"""Number of rounds of one peer with stored accusations that too few peers have made so far."""
ACCUSED_TURNS, ACCUSED_TURNS_BY_PEER = 4, 8
"""Number of disputed attempts of one server, and of all servers, that are stored for one accuser.
So no peer can displace the accusations of others."""
PROVEN_TURNS = 16
"""Number of stored attempts with two proven results. The store makes each proof count only once."""
TURNS_KEPT = 64
"""Number of attempts of one server with a stored result, and of results from one sender."""
FORKS_KEPT = 16
"""Number of stored rounds after which other peers had another history."""
AUDIT_VOTES_KEPT = 16
"""Number of stored votes of one stage member. The oldest are dropped."""
AUDIT_ROWS_MAX = 2**8 * AUDIT_VOTES_KEPT
"""Maximum number of votes, or of convicted peers, in a table from another peer: enough for a stage
of 256 members."""
PEERS_MAX = 2**16
"""Maximum number of rows in a table from another peer."""
TIME_US_MAX = 2**40
"""Largest reported time, in microseconds: 12 days."""
FAR_MAX = 3.5e38
"""Largest outlyingness. It is above every float32, because rules return float32 at most."""
RATES_MAX = 1024
"""Maximum number of optimizer settings in an update."""
UNPACKED_BYTES_MAX = 320 * 1024
"""Largest JSON of a ledger, in bytes: twice the size for a thousand peers."""
LISTS_MAX = 2**14
"""Largest number of lists in this JSON: four times the number for a thousand peers. With three
values in each list, the JSON is parsed within 10 ms."""
VALUES_MAX = 3 * LISTS_MAX
PENDING_ROUNDS = 256
"""Number of rounds that are stored until the size of the data is known."""
RANGES_MAX = 256
"""Number of ranges of samples in one message, for given up samples of an epoch or for predictions.
Further given up samples are only counted, and further predictions are omitted."""
SPARE_ROUNDS = 8
"""Number of further rounds of an extended epoch without progress that are attributed to faults of
peers. After more of them, the remaining samples are given up."""
PREDICTED_ROUNDS = 32
"""Number of rounds for which samples are predicted, even if a trainer fetches more at a time."""
SNAPSHOTS_KEPT = 8
"""Number of rounds by which a trainer that packs its state may be behind."""
ROUNDS_KEPT_ALWAYS = 2
"""Number of rounds that the log of commits always keeps, independent of their size."""
KINDS_KEPT = 4
"""Number of kinds of steps with a stored last result."""
LENGTH_KINDS, LENGTH_ROUNDS = 16, 256
"""Number of kinds of steps, and of rounds of each kind, with recorded lengths of results. The
lengths limit that of the next result. Once a model fits its data, nearly all results are short, and
a rare honest one is a hundred times as long. A result of that length is then among the recorded
ones."""
COMMITS_BYTES_MAX = 64 * 2**20
"""Largest reply to a peer that is behind, in bytes. It has the commits of at least one round."""
STASH_ROUNDS = 8
"""Number of future rounds for which messages are stored. In gossip rounds a peer that is farther
behind skips rounds, because it has none of their messages."""
LOCKED_ROUNDS = 16
"""Number of rounds with stored attempts of this peer, which bind it if it returns."""
REFUSALS_KEPT = 64
"""Number of stored rejected results."""
ORDERS_KEPT = 8
"""Number of rounds with a stored order of their servers. A result arrives soon after it was made,
or was never accepted."""
FORWARDED_MAX = 64
"""Number of different commits of one round that are forwarded. Only a few of them can be honest."""
SERVED_KEPT = 64
"""Number of attempts with a stored arrival time of their first update."""
SMALL_BYTES = 2**20
"""Size up to which a result is sent again to a peer that may lack it, in bytes."""
PLANS_KEPT, CONTRIBUTIONS_KEPT = 64, 32
"""Number of stored plans of a topology, and of rounds with a stored time of the local contribution,
in gossip rounds."""
SKETCH_NUMBERS_MAX = 4096
"""Maximum number of values in a random projection of the parameters."""
VALUES_KEPT = 32
"""Number of stored values of each peer in direct collective operations. A trainer stores the
results of the same number of operations."""
MEASURED_POINTS = 4
"""Maximum number of points that a rule measures in addition to the updates."""
STATISTICS_REPLIES = 2
"""Number of replies to repeated requests for statistics in one attempt of shard 0."""
COVER_TRIES = 1000
"""Number of combinations of sums that are tried. Honest sets rarely overlap, so the first
combination usually fits. Sets of a Byzantine peer must not need more time."""
REASON_CHARACTERS = 200
"""Largest length of the reason of a round without a result."""
PIECE_BYTES = 2**23
"""Size of a piece of a state, in bytes. The last piece is smaller. The pieces of a state are larger
if it would have more than ``PIECES_MAX`` of them."""
PIECES_ASKED = 2
"""Number of outstanding requests to one donor: one piece is in transfer, and one follows at
once."""
TAKERS_MAX = 4
"""Number of peers that one donor sends its state to at a time. Further requests are rejected."""
COPIES_MAX = 2
"""Number of states of different rounds that a donor stores."""
AWAITED_ROUNDS = 4
"""Number of different future rounds for which a donor stores requests."""
REQUESTED_AHEAD = 64
"""Number of rounds by which the requested round may be ahead of the donor."""
STATE_TIMES, STATE_SLACK = 7, PIECE_BYTES + 2**20
"""Largest packed state that a donor may send: a multiple of the local state at the start, plus
bytes, because a small state may still be a full piece. The state of an optimizer is created in its
first step. Adam with AMSGrad needs three times the parameters, and twice that for 16-bit
parameters."""
FETCHED_TIMES = 1024
"""The same limit for a state in pieces. Its memory grows only with correct pieces. A preconditioner
has the square of a row for each row, and a history has hundreds of gradients."""


def accusation_rounds(f: int) -> int:
    """Return the number of rounds for which accusations count. In this many rounds, more than f
    different peers have almost certainly served."""
    return 64 + 16 * f


# --- settings of a run ----------------------------------------------------------------------------

ON_LINKS = 2
"""Number of additional micro-batches on the links of a pipeline. Without them a stage waits for
slow links: in 5 % of 67 instances, a step took at least 1.2 times as long as by the formula. With
them, the maximum of 178 instances is 1.1 times."""
MICRO_BATCHES_MAX = 1024  # micro-batches of a step; their numbers must fit in a message


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """Settings of SWIM with Lifeguard. The defaults are for a node that has its own process
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
    awareness_max: int = 8  # largest factor by which local health multiplies local timeouts
    rumors_per_message: int = 12
    # A link without messages for this time is closed. In real runs the node derives the timeout of
    # the transport from it (gossip/transport/base.py).
    link_timeout_s: float = 0.3
    incarnation_jump_max: int = 2**16

    @property
    def connect_grace_s(self) -> float:
        """Time for the first connections in both directions, with handshakes of four round trips.
        Within this time, a missing connection causes no accusation."""
        return max(2.0, 4 * self.link_timeout_s)


@dataclass(frozen=True, slots=True)
class RoundSettings:
    quorum: Quorum = "majority"  # With fewer than 3 peers, "available" applies.
    # "continue" has the effect of "available" once the other peers are dead.
    on_minority: Literal["pause", "continue"] = "pause"
    # Reaction of a peer to a divergent replica. "stop": adopt the state of another peer, and stop
    # if the replica diverges again. "heal": adopt a state each time. "warn": continue.
    on_divergence: Literal["stop", "heal", "warn"] = "stop"
    # Longest duration of a round, in seconds. The effective timeout follows from measured rounds.
    round_timeout_s: float = 10.0
    start_timeout_s: float = 60.0
    # Number of peers that begin the run after they were together for patience_s. With 0, a quorum
    # of peers begins only at the start timeout.
    min_peers: int = 0
    patience_s: float = 10.0
    quorum_timeout_s: float = 60.0
    grace_mads: float = 4.0  # k in median + k * MAD of past arrivals.
    # Lower bound of the grace period, so that delays of a busy machine exclude no peer.
    grace_floor_s: float = 0.05
    # Delay until a server of a later attempt requests missing updates.
    query_after_s: float = 0.003
    behind_after_s: float = 0.02  # Delay of a request for the commit of a round that others left.
    # Longest time for which a leaving peer serves peers that are behind.
    drain_timeout_s: float = 5.0
    # Time after the loss of a peer for which peers with a completed training wait for its return.
    linger_s: float = 30.0
    commit_log: int = 64  # number of rounds for which commits are stored for peers that are behind
    commit_log_bytes: int = 64 * 2**20


@dataclass(frozen=True, slots=True)
class GossipSettings:
    mix_every: int = 4  # m: parameters are exchanged in every m-th round.
    mixing: float = 0.5  # Factor of the move towards the parameters of the others, at most k/(k+1).
    staleness_max: int = 4  # Rounds. Older pushes are dropped.
    # Ratio of consensus distance and parameter norm above which mixing is raised.
    consensus_bound: float = 0.1

    @property
    def kept_share(self) -> float:
        """Share of the local model difference in the applied one: half, or less if each round mixes
        more than half of the parameters."""
        return min(0.5, 1 - self.mixing) if self.mix_every == 1 else 0.5


@dataclass(frozen=True, slots=True)
class TrustSettings:
    """Settings of trust: one score in [0, 1] for each peer, computed from named evidence. Peers
    with the same commits compute the same scores."""

    # trust <- memory * trust + (1 - memory) * (1 if the update was ordinary else 0)
    memory: float = 0.9
    # An update is evidence if it is this many times farther out than the median update, and if the
    # recent updates of its peer are as well.
    outlying: float = 3.0
    # Factor by which a peer must be farther out than one in quarantine to replace it.
    farther: float = 1.5
    # Factor of the trust in a server after more than f peers have rejected one of its results.
    # Honest results are rejected rarely: near the optimum, 1 of 200 results of a server. False
    # results are nearly always rejected.
    served_memory: float = 0.75
    # Factor of the trust in a server that has provably sent different results in one attempt.
    twice_memory: float = 0.3
    # Share of the lost trust that is restored by each accepted result.
    served_recovery: float = 0.04
    # Factor of the delivery score of a server after more than f peers got no result from it in
    # time.
    heard_memory: float = 0.5
    suspect_below: float = 0.5
    quarantine_below: float = 0.2
    quarantine_rounds: int = 100
    # In one of this many rounds, a second run of the rule measures the updates of quarantined
    # peers.
    measured_every: int = 2
    # rounds in which updates are aggregated again, but the peer does not serve
    parole_rounds: int = 50

    @property
    def trusted_above(self) -> float:
        """Trust above which a suspected peer is trusted again: ``suspect_below`` plus a quarter of
        the range above it."""
        return self.suspect_below + (1.0 - self.suspect_below) / 4

    @property
    def updates_to_return(self) -> int:
        """Largest number of consecutive ordinary updates after which a quarantine ends, if there is
        no other evidence against the peer."""
        return floor(log(1.0 - self.trusted_above) / log(self.memory)) + 1


BatchPolicy: TypeAlias = Literal["fixed_local", "fixed_global"]
"""Quantity that stays constant when the size of the roster changes: the batch of each peer, or the
batch of a round. The batch of a round is one batch for each peer that the run began with.

With fixed_global, the remaining peers take longer for a step and need more memory. The optimization
is unchanged.
"""


Quorum: TypeAlias = Literal["majority", "available"]
"""Number of peers that must send updates in a round: a majority of the roster, or the available
ones."""
Slices: TypeAlias = Literal["speed", "equal"]
"""Sizes of the slices of data: smaller for peers that are much slower than most (``pace``), or
equal for all."""


@dataclass(frozen=True, slots=True)
class ResultSettings:
    """Thresholds for the rejection of a server's result. docs/threat_model.md has the measurements
    behind them."""

    # Cosine to the local update. Near the end of a training, a peer finds 1 to 2 % of the honest
    # results below this value.
    opposed: float = -0.5
    # Multiple of the root mean square of the local update. A shard with smaller values has nearly
    # no gradient. The batch determines the sign of its update, so many honest results oppose it.
    faint: float = 0.3
    # Multiple of the longest recent results and of the local update. A longer result is rejected.
    longer: float = 3.0
    # Multiples of the local learning rate and of that of the previous round. A scheduler that is
    # one step ahead or behind differs by less: most warm-ups double a rate, most drops divide it by
    # ten.
    higher: float = 3.0
    lower: float = 0.01


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """Plan of a pipeline. It is equal on all peers and determines the stage of each peer, so no
    message needs to state it.

    Attributes:
        stages: Members of each stage. Each peer is in one stage.
        micro_batches: Number of micro-batches of a step.
        in_flight: Maximum number of micro-batches of a peer with a forward but no backward pass. 0
            means the number that keeps all peers of its own and later stages busy, and the links to
            them.
        pass_us: Predicted time of each peer for both passes of a micro-batch; empty without a
            prediction. Micro-batches are assigned by it until the first measurements.
        audit: Probability that another member of the stage recomputes a micro-batch.
        rebuilds: Whether returning peers rebuild the state of a stage that has lost all its
            members. If False, they halt.
    """

    stages: tuple[tuple[PeerId, ...], ...]
    micro_batches: int
    in_flight: int = 0
    pass_us: tuple[tuple[PeerId, int], ...] = ()
    audit: float = 0.0
    rebuilds: bool = True

    def stage_of(self, peer: PeerId) -> int | None:
        """Return the stage of a peer, or None if the peer is not in the plan."""
        return next((at for at, members in enumerate(self.stages) if peer in members), None)

    def forwards_max(self, stage: int, members: int) -> int:
        """Return the maximum number of micro-batches without a backward pass on one member of a
        stage that has this number of members. The planner computes memory from it
        (``gossip_pipelines.planning``)."""
        if self.in_flight:
            return self.in_flight
        behind = sum(len(peers) for peers in self.stages[stage:])
        on_links = ON_LINKS if stage + 1 < len(self.stages) else 0
        return min(ceil(behind / members) + on_links, self.micro_batches)

    def check(self, peers: tuple[PeerId, ...]) -> None:
        """Check that the plan is valid for these peers. Raises ConfigError if it is not."""
        planned = [peer for members in self.stages for peer in members]
        if sorted(planned) != sorted(peers) or not all(self.stages):
            raise ConfigError(
                f"the plan has stages of the peers {[list(each) for each in self.stages]}, and the "
                f"run has the peers {list(peers)}: each has to be in one stage, and no stage empty"
            )
        if not 1 <= self.micro_batches <= MICRO_BATCHES_MAX:
            raise ConfigError(
                f"{self.micro_batches} micro-batches: 1 to {MICRO_BATCHES_MAX} must make a step"
            )
        if not all(took_us > 0 for _, took_us in self.pass_us):
            raise ConfigError(f"times of peers {dict(self.pass_us)}: each must be above 0")
        if not 0.0 <= self.audit <= 1.0:
            raise ConfigError(f"audit = {self.audit}: a probability, 0 to 1")


@dataclass(frozen=True, slots=True)
class CoreSettings:
    run: bytes
    lineage: bytes
    seed: int
    peers: tuple[PeerId, ...]  # The roster of round 0.
    f: int = 0  # Byzantine peers to tolerate.
    updates_for: tuple[int, ...] = (1,)  # Updates that the rule needs to tolerate 0, 1, ... f.
    judged: bool = False  # The rule judges updates by a gradient, not by distance.
    batch_policy: BatchPolicy = "fixed_local"
    slices: Slices = "speed"
    # Peers make local steps. A slow peer makes fewer of them, so its slices are not cut.
    local_steps: bool = False
    room: int = 0  # Peers with an id below this may join later; with 0, only ``peers``.
    # Latest round of the run that is known from before this incarnation; 0 means none.
    had_round: int = 0
    # The servers of all shards decide together, from the statistics of all shards.
    cross_shard: bool = False
    membership: MembershipSettings = field(default_factory=MembershipSettings)
    rounds: RoundSettings = field(default_factory=RoundSettings)
    gossip: GossipSettings = field(default_factory=GossipSettings)
    trust: TrustSettings = field(default_factory=TrustSettings)
    results: ResultSettings = field(default_factory=ResultSettings)
    # plan of a pipeline, in which stages share the layers; None if each peer holds the whole model
    pipeline: PipelineSettings | None = None

    def of_stage(self, local: PeerId) -> CoreSettings:
        """Return the settings for the rounds of a peer. In a pipeline, its stage has its own rounds
        and its own lineage. Without a pipeline, return these settings.

        Raises: ConfigError: The plan is not valid for the peers of the run.
        """
        if self.pipeline is None:
            return self
        self.pipeline.check(self.everybody)
        if self.cross_shard:
            raise ConfigError("the shards of a stage do not decide together: use one shard")
        stage = self.pipeline.stage_of(local)
        if stage is None:
            raise ConfigError(f"peer {local} is in no stage of the plan")
        lineage = digest_of(self.lineage + stage.to_bytes(4, "little"))
        return replace(self, peers=self.pipeline.stages[stage], room=0, lineage=lineage)

    @property
    def audit_votes(self) -> int:
        """Number of equal votes of stage members that convict another member. At least one of the
        voters is honest. With f = 0, one Byzantine voter is still assumed."""
        return max(self.f, 1) + 1

    @property
    def everybody(self) -> tuple[PeerId, ...]:
        """All peers that may ever take part in the run, ascending. Some of them may never join."""
        return tuple(sorted({*self.peers, *range(self.room)}))

    def may_be(self, peer: PeerId) -> bool:
        """Whether a peer with this id may be in the run."""
        return 0 <= peer < self.room or peer in self.peers

    @property
    def updates_min(self) -> int:
        """Number of updates that the rule needs to tolerate f. A round does not close with fewer
        while more may arrive."""
        return self.updates_needed(self.f)

    def updates_needed(self, f: int) -> int:
        """Return the number of updates that the rule needs to tolerate ``f``, which is capped at
        the f of the settings."""
        return self.updates_for[max(0, min(f, len(self.updates_for) - 1))]

    def callers_too_few(self, roster: int) -> int:
        """Return the largest number of callers that does not make a round a collective operation.
        All these callers may be Byzantine, unless they are the whole roster."""
        return min(self.f, max(0, roster - 1))

    def tolerable(self, f: int, updates: int) -> int:
        """Return how many of ``f`` Byzantine peers the rule tolerates with this number of updates;
        0 if none."""
        return next(
            (fewer for fewer in range(f, 0, -1) if self.updates_needed(fewer) <= updates), 0
        )
