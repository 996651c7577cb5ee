"""Settings of the core, with their units, formulas and trade-offs. ``gossip.config`` fills them
in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, floor, log
from typing import Literal, TypeAlias

from gossip.errors import ConfigError

from .digests import digest_of
from .messages import PeerId

# Times, limits and bounds that no user sets. A time that a user sets is a field of
# ``MembershipSettings`` or ``RoundSettings`` below. A number with a formula follows from others;
# a number without one was chosen, and its comment says why it is not much smaller or larger.

# --- intervals, seconds ---------------------------------------------------------------------------

CHECK_INTERVAL_S = 0.25
"""Interval of checks (for peers at the start, missing commits, bytes that still arrive) and of
requests to peers that were silent so far: any message may be lost. Also the time that the rest has
to reply once enough peers have replied to a poll without agreement."""
RESEND_S = 2 * CHECK_INTERVAL_S
"""Longest interval between two requests for commits of one peer, and the interval of reports of
micro-batches. Both cost more than a check."""
ANSWER_INTERVAL_S = 0.1
"""Shortest interval between two replies to the hellos, or to the tables, of one peer. Otherwise two
idle peers would reply to each other forever."""
RETURN_INTERVAL_S = 0.02
"""Interval of the requests for commits of a peer that returns: it must be faster than the
rounds."""
RETURN_HELLO_EVERY = 5
"""Number of these requests after which the peer announces again that it is ready."""
WATCH_INTERVAL_S = 1.0
"""Interval of the check of the quorum. Timeouts of the quorum are minutes."""
WAITING_REPORT_S = 5.0
"""Interval of the report of missing peers at the start. A newcomer with another model waits this
time for more than f peers before it halts. The run waits this time for peers that may have begun
with other weights."""
BUSY_INTERVAL_S = 0.3
"""Interval of the reports to others that payloads are being received: several in ``BUSY_S``."""
SERVER_PULSE_S = 0.05
"""Interval of a timer by which a server notices its own pause, before the others do by their
heartbeats (``link_timeout_s``)."""

# --- timeouts, seconds ----------------------------------------------------------------------------

REPLY_S = 1.0
"""Time for a reply of a peer whose round trip is unknown, and least timeout of a server (RFC 6298,
2.1 and 2.4). After it a request for a state is repeated, a receiver without further requests has
all pieces, and the wait for a reply that could no longer change the result ends."""
PROBE_TIMEOUT_MAX_S = 4.0
"""Largest timeout of a probe that measured round trips can cause."""
LOADED_VERDICT_S = 1.5
"""Minimum time from the last ping to a verdict while large payloads move. A lost segment is sent
again after 0.2 s and after another 0.4 s; queues on the path add to it."""
LAST_WORDS_S = 2.0
"""Time for which messages of a peer may still arrive after the news that its incarnation has ended.
A peer that sends later is alive, and the news was false."""
BUSY_S = 2.0
"""Time for which payloads count as moving, and a peer as busy, after a report. Payloads arrive one
after the other, with pauses in between. A payload that takes no longer never counts as
trickling."""
SPEED_KNOWN_S = 2 * BUSY_S
"""Age up to which the last report of a peer shows its speed."""
SPEED_WINDOW_S = 0.5
"""Window of the measured speed of a payload. A payload that began fast and trickles now is noticed
after one window."""
AT_ONCE_S = 0.1
"""Longest time that a payload without a progress report can have taken."""
COMPILING_MAX_S = 300.0
"""Longest wait for a peer that reports that it compiles, which no other peer can check."""
NOT_SLOW_S, NOT_SLOW_ROUNDS = 0.5, 1.0
"""Minimum wait for a peer that is not known to be slow: seconds, because its machine may be busy,
plus typical rounds, because long rounds have long lags."""
NEWCOMER_ROUNDS, NEWCOMER_S = 2, 0.5
"""Largest lag at which a newcomer reports that it is ready: the larger of these rounds and seconds
of rounds."""
PAUSE_TOLERANCE_S = 0.25
"""A peer that handles no event for longer checks whether its process was paused. Shorter than the
silence after which other peers go on without this peer."""
LOADED_PAUSE_TOLERANCE_S = 1.0
"""The same while large payloads move: copies, hashes and sums take time. At most half of the link
timeout."""
AFTER_PAUSE_S = 1.0
"""Time after a pause in which a peer does not serve. Messages that arrived during the pause have
been handled by then."""
FELL_BEHIND_S, FELL_BEHIND_MAX_S = 0.5, 5.0
"""Delay before a peer that cannot keep up recovers again: unit and limit. The first recovery has no
delay, the second has the unit, and later delays roughly double."""

# --- timeouts as multiples of a measured or configured time ---------------------------------------

USUAL_FACTOR = 3.0
"""The wait for an event that usually takes t ends after 3 t: a server (t: the median round), the
first byte of a payload or all payloads of a link, the next chunk, the last result and a state on
slow links, a gradient. Noise of a busy machine stays below it."""
TRANSFER_FACTOR = 6.0
"""Longest wait while payloads still arrive, as a multiple of the wait without. It is longer for
links that are known to need more."""
TRANSFER_PAUSE_MAX_S = TRANSFER_FACTOR * BUSY_S
"""Longest pause between two chunks that a peer may report, in seconds."""
DONOR_FACTOR = 2 * TRANSFER_FACTOR
"""Deadline of a donor, in round timeouts: half for a transfer, half for a trainer that is busy when
the request arrives."""
FAIR_FACTOR = 8.0
"""A payload counts as trickling if it takes this many times the usual time of its sender."""
COMPUTE_FACTOR = 2.0
"""Longest time that another peer may need for its update, as a multiple of the local time."""
STALL_TIMEOUTS = 2.0
"""Number of round timeouts without progress after which a trainer counts as stalled."""
CLOSE_SHARE, TURN_SHARE, OVERDUE_SHARE = 0.7, 0.75, 0.85
"""Fractions of a server's timeout, in order: the server closes with the updates that it has; its
turn is over. Then a peer may name the next server. Then statistics for it are overdue. At 1 its
participants abandon it."""
NACK_SHARE = 0.8
"""Fraction of the probe timeout beyond the round trip after which a helper sends its Nack, so that
the Nack arrives before the verdict."""
UNASKED_SHARE = 0.25
"""Fraction of a typical round in which missing commits may come without a request."""
DOUBLINGS_MAX = 3
"""Number of times that a timeout doubles, for a server and for a gradient that was never timed."""
REST_TIMES_MAX = 4
"""Maximum rest of a donor that did not deliver, as a multiple of the first rest."""
CLAIM_DOUBLINGS_MAX = 16
"""Most doublings of the delay of a claim in one round, which keeps the delay finite."""

# --- credit: limits on what a peer can cause by claims that no other peer can check ---------------

CREDIT_REGAINED = 0.01
"""Share of the elapsed time by which a spent credit recovers. A Byzantine peer can delay by its
credit once, and then by a hundredth of the time."""
CREDIT_TURNS = 3.0
"""Number of attempts that a peer's unexplained claims may delay, over all rounds."""
REFUND_TURNS = 1.0
"""Turns that a peer regains with each result that it makes: an honest peer may have followed a
Byzantine one. A Byzantine peer gains about as much as by withholding its results."""
PARDONS_MAX = 3
"""Most new incarnations in which the run waits again for a peer that sent no weights. A Byzantine
peer can start any number of incarnations."""
MISSED_ROUNDS, AMENDS_ROUNDS, RETRY_ROUNDS = 2, 8, 32
"""Numbers of rounds: missed by a peer until servers stop waiting long for it; in time, beyond the
missed ones, until they wait again; missed until they try once. A peer that is rarely in time must
not delay every round. Only a wait shows that its link is slow."""
GIVEN_TIMES_MAX = 4
"""Maximum number of times that one peer receives the same piece of a state, and renews its deadline
as a donor without a new piece. The peer may restart, or messages may be lost."""
REFUSALS_MAX = 3
"""Number of consecutive states that a trainer may refuse to load after which no state counts as
fitting this peer."""
RETURNS_MAX = 2
"""Comparisons in which a replica differs, with no missed round between them, before it stops."""
SURE_TURNS = 2
"""Number of turns in which every peer has to report that it has no state. A peer that recovers
during the first turn has a state in the second."""
POLLS_STRICT, POLLS_MAX = 2, 6
"""Polls for a state in which the settings of scripts must also be equal; polls of a peer that can
return to its own state."""
NAMED_AHEAD = 2
"""Distance of the first round that a poll names; each further one is four times as far."""
STALLED_BEHIND = 2
"""Number of rounds by which a stalled trainer is behind; any peer may be one round behind."""
STRAY_EVERY = 5
"""One of this many probes and tables goes to a peer that is dead or was never met."""

# --- estimates ------------------------------------------------------------------------------------

ESTIMATE_MIN = 8
"""Number of observed times that a timeout needs. With fewer, the cap is used."""
PEER_TIMES, PEER_TIMES_MIN = 8, 4
"""Number of times kept of each peer, and the number that is enough to judge it. For each missing
payload, one may take twice as long."""
SLOWER_PAYLOADS = 3
"""Number of trickling payloads in a row, from most peers, that show a slower network. Their times
are the typical ones then."""
TRIP_GAINS = 0.125, 0.25
"""Weights of a new sample of a round trip: in the mean and in the deviation (RFC 6298, 2.3)."""
LOADED_ROUNDS = 3
"""Number of typical rounds after a slow transfer in which timeouts stay long."""
CALM_SHARE = 0.5
"""Fraction of its bound to which the consensus distance must fall before raised mixing ends."""
PACE_WINDOW, PACE_LEVELS = 16, 2
"""Rounds between two changes of the shares of the samples, and number of times that one is
halved."""
PACE_SLOW, PACE_QUICK = (7, 4), (3, 4)
"""Fractions of the median time. From 1.75 times on, a peer is too slow. Up to 0.75 times, a peer
can compute twice as much and stay below 1.75."""
MARGIN_US = 25_000
"""Difference in microseconds that never excludes a peer: half of ``grace_floor_s``."""
ROUND_TIMES = 3
"""Number of rounds that give a slow peer its deadline. A single round in which all peers were
delayed, as by an evaluation, does not count."""
ROUND_LATE = 11, 10
"""Deadline as a fraction of the median of these rounds. A peer that is slower than the median by
less completes all its steps."""
PASS_TIMES = 5
"""Number of latest rounds of a member of a stage, of which the median counts."""
PASS_UNLIKE, PASS_UNLIKE_US = (3, 2), 5_000
"""Ratio of measured and predicted time from which a member does not match its profile, and least
difference in microseconds: no profile has the time of messages between processes."""
PASS_BITS = 5
"""Number of leading bits of a time that count: steps of 3 to 6 %. Finer steps move no
micro-batch."""
SPEED_RATIO_MAX = 8
"""No member of a stage counts as faster than another by more than this factor, for any reports."""
TRUST_ROUNDS = 20
"""Number of recent updates of a peer from which its typical outlyingness, its reasons and its usual
length follow."""
SPREAD_EVERY = 10
"""Number of rounds between two measurements of whether the data of peers differ."""
UNEQUAL = 6.0
"""Threshold of that statistic, in standard deviations above its mean by chance."""
UNEQUAL_OFTEN, UNEQUAL_SHARE = 3, 8
"""Data of peers count as different if at least this number of measurements is unequal, or more than
one in this many. Chance alone reaches it less often."""
FORK_ROUNDS = 8
"""Number of latest rounds of which the contributors count for a side of a fork."""
COMPARED_STEPS = 3
"""Number of first steps of a run after each of which replicas are compared."""

# --- bounds of stores, so that no peer fills the memory of another --------------------------------

MEMBERS_MAX, TABLE_MAX = 4096, 500
"""Members without a list of the allowed peers, and members in one message."""
SENDERS_MAX = 16
"""Stored senders of a rumor. In a large swarm the next receiver is rarely one of them."""
RELAYS_MAX = 256
"""Probes in progress for others; more are rejected with a Nack."""
LATE_PROBES_MAX = 64
"""Ended probes that may still get a reply, from which a round trip follows."""
SCANNED_MEMBERS = 64
"""Number of members up to which a sample scans all of them first."""
HISTORY_ROUNDS = 1024
"""Rounds with a stored hash of the history, and with stored votes of audits."""
ACCUSED_ROUNDS = 16
"""Rounds of one peer with accusations that too few peers have made so far."""
ACCUSED_TURNS, ACCUSED_TURNS_BY_PEER = 4, 8
"""Disputed turns of one server, and of all servers together, stored of one accuser. No peer can
displace the accusations of others."""
PROVEN_TURNS = 16
"""Proven turns with two results, whose proofs count only once."""
TURNS_KEPT = 64
"""Turns of one server with a stored result, and results from one sender."""
FORKS_KEPT = 16
"""Rounds after which other peers were seen to have another history."""
AUDIT_VOTES_KEPT = 16
"""Votes by one member of a stage; the oldest are dropped."""
AUDIT_ROWS_MAX = 2**8 * AUDIT_VOTES_KEPT
"""Maximum rows of votes, or of convicted peers, from another peer: enough for a stage of 256
members."""
PEERS_MAX = 2**16
"""Rows of a table from another peer."""
TIME_US_MAX = 2**40
"""Largest reported time, in microseconds: 12 days."""
FAR_MAX = 3.5e38
"""Largest outlyingness: above every float32, because rules return at most these."""
RATES_MAX = 1024
"""Optimizer settings in an update."""
UNPACKED_BYTES_MAX = 320 * 1024
"""Largest JSON of a ledger, in bytes: twice its size for a thousand peers."""
LISTS_MAX = 2**14
"""Largest number of lists in this JSON: four times their number for a thousand peers. With three
values in each list, the JSON is read within 10 ms."""
VALUES_MAX = 3 * LISTS_MAX
PENDING_ROUNDS = 256
"""Rounds before the size of the data is known."""
RANGES_MAX = 256
"""Ranges of samples in one message: given up samples of an epoch, or predictions. Given up samples
beyond it are only counted, and predictions are left out."""
SPARE_ROUNDS = 8
"""Further rounds of an extended epoch without progress that count as faults of peers. After more of
them, the samples are given up."""
PREDICTED_ROUNDS = 32
"""Rounds for which samples are predicted, even if a trainer fetches more batches at a time."""
SNAPSHOTS_KEPT = 8
"""Rounds by which a trainer that packs its state may be behind."""
ROUNDS_KEPT_ALWAYS = 2
"""Rounds in the log of commits, independent of their size."""
KINDS_KEPT = 4
"""Kinds of steps with a stored last result."""
LENGTH_KINDS, LENGTH_ROUNDS = 16, 256
"""Kinds of steps, and rounds of each, with recorded lengths of results, which limit the length of
the next one. Once a model fits its data, nearly all results are short, and a rare one is a hundred
times as long. It is honest, and a result of that length was received recently."""
COMMITS_BYTES_MAX = 64 * 2**20
"""Reply to a peer that is behind, in bytes. It has the commits of at least one round."""
STASH_ROUNDS = 8
"""Rounds ahead of which messages are stored. In gossip rounds a peer that is farther behind skips
rounds: it has none of their messages."""
LOCKED_ROUNDS = 16
"""Rounds with stored attempts of this peer, to which it is bound if it returns."""
REFUSALS_KEPT = 64
"""Rejected results that are remembered."""
ORDERS_KEPT = 8
"""Rounds with the stored order of their servers: a result arrives soon after it was made, or was
never accepted."""
FORWARDED_MAX = 64
"""Different commits of one round; only a few can be honest."""
SERVED_KEPT = 64
"""Attempts with the time of their first update."""
SMALL_BYTES = 2**20
"""Size of a result that is sent again to peers that may lack it, in bytes."""
PLANS_KEPT, CONTRIBUTIONS_KEPT = 64, 32
"""Plans of a topology, and rounds with the time of the local contribution, in gossip rounds."""
SKETCH_NUMBERS_MAX = 4096
"""Numbers in a random projection of the parameters."""
VALUES_KEPT = 32
"""Latest values of each peer in direct collective operations. A trainer keeps the answers of as
many operations."""
MEASURED_POINTS = 4
"""Points that a rule measures besides the updates."""
STATISTICS_REPLIES = 2
"""Answers to repeated requests for statistics, in one attempt of shard 0."""
COVER_TRIES = 1000
"""Combinations of sums that are tried. Honest sets rarely overlap, so the first one is usually
right. The sets of a Byzantine peer must not need more time."""
REASON_CHARACTERS = 200
"""Reason of a round without a result."""
PIECE_BYTES = 2**23
"""Piece of a state, except for the last piece, and for states of more than ``PIECES_MAX`` of
them."""
PIECES_ASKED = 2
"""Outstanding requests to one donor: one piece in transfer, and one that follows immediately."""
TAKERS_MAX = 4
"""Peers that receive the state from one donor at a time. Others are refused."""
COPIES_MAX = 2
"""States of different rounds that a donor stores."""
AWAITED_ROUNDS = 4
"""Different rounds with waiting requests at a donor."""
REQUESTED_AHEAD = 64
"""Rounds by which a request may be ahead of the donor."""
STATE_TIMES, STATE_SLACK = 7, PIECE_BYTES + 2**20
"""Packed state of a donor, as a multiple of the local state at the start, plus bytes: a small state
may be a full piece. The state of an optimizer arises in its first step. Adam with AMSGrad has
three times the parameters, and twice that for parameters of 16 bits."""
FETCHED_TIMES = 1024
"""The same for a state that comes in pieces. Its memory grows only with correct pieces. A
preconditioner has the square of a row for each row, a history hundreds of gradients."""


def accusation_rounds(f: int) -> int:
    """Return the number of rounds for which accusations count: more than f different peers have
    served in them almost certainly."""
    return 64 + 16 * f


# --- settings of a run ----------------------------------------------------------------------------

ON_LINKS = 2
"""Number of micro-batches on the links of a pipeline. Without them a stage waits for slow links. In
5 % of 67 instances a step took at least 1.2 times as long as by the formula; with them the maximum
is 1.1 times in 178 instances."""
MICRO_BATCHES_MAX = 1024  # of a step: their numbers fit in a message


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """SWIM with Lifeguard. The defaults are for a node in its own process
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
    # A link without messages for this time is closed. In real runs the node sets the timeout of the
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
    # So many peers begin after patience_s together; 0 means that a quorum begins only at the start
    # timeout.
    min_peers: int = 0
    patience_s: float = 10.0
    quorum_timeout_s: float = 60.0
    grace_mads: float = 4.0  # k in median + k * MAD of past arrivals
    # the minimum, so that delays of a busy machine exclude no peer
    grace_floor_s: float = 0.05
    query_after_s: float = 0.003  # Until the server of a later attempt requests missing updates.
    behind_after_s: float = 0.02  # Delay of the request for the commit of a round that others left.
    drain_timeout_s: float = 5.0  # Maximum time that a leaving peer helps peers that are behind.
    # Time after the loss of a peer in which peers with a completed training wait for its return.
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
    # An update is evidence if it, and the recent ones of its peer, are this many times farther out
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
    # Factor of the delivery score of a server after more than f peers have waited without a result.
    heard_memory: float = 0.5
    suspect_below: float = 0.5
    quarantine_below: float = 0.2
    quarantine_rounds: int = 100
    # In one of this many rounds the updates of peers in quarantine are measured, by a second run of
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
    """Thresholds for the rejection of a server's result. docs/threat_model.md has their
    measurements."""

    # Cosine to the local update. Near the end of a training, 1 to 2 % of honest results are below
    # it on a peer.
    opposed: float = -0.5
    # Times the root mean square of the local update. A shard with smaller numbers has nearly no
    # gradient. The batch determines the sign of its update, and honest results oppose many.
    faint: float = 0.3
    # Times the longest recent results, and the local update. A longer result is rejected.
    longer: float = 3.0
    # Times the local learning rate, and that of the previous round. A scheduler one step ahead or
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
        in_flight: Maximum number of micro-batches of a peer with a forward but no backward pass. 0
            means as many as fill all peers from its stage on, and the links after it.
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
        """Return the maximum number of micro-batches without a backward pass on one member of a
        stage, for this number of members. Plans count memory by it
        (``gossip_pipelines.planning``)."""
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
    peers: tuple[PeerId, ...]  # the roster of round 0
    f: int = 0  # Byzantine peers to tolerate
    updates_for: tuple[int, ...] = (1,)  # Updates that the rule needs to tolerate 0, 1, ... f.
    judged: bool = False  # The rule judges updates by a gradient, not by distance.
    batch_policy: BatchPolicy = "fixed_local"
    slices: Slices = "speed"
    # An update may have fewer local steps than planned, so slices of slow peers are not cut.
    local_steps: bool = False
    room: int = 0  # Ids below it may join later; 0 means only ``peers``.
    # latest round of the run that is known from before this life; 0 means none
    had_round: int = 0
    # The shards of a round decide together, by the statistics of their servers.
    cross_shard: bool = False
    membership: MembershipSettings = field(default_factory=MembershipSettings)
    rounds: RoundSettings = field(default_factory=RoundSettings)
    gossip: GossipSettings = field(default_factory=GossipSettings)
    trust: TrustSettings = field(default_factory=TrustSettings)
    results: ResultSettings = field(default_factory=ResultSettings)
    # the layers are spread over stages of the peers; None if each peer holds the whole model
    pipeline: PipelineSettings | None = None

    def of_stage(self, local: PeerId) -> CoreSettings:
        """Return the settings of the rounds of a peer: its stage is its own swarm, with its own
        lineage. Without a pipeline these are the settings themselves.

        Raises: ConfigError: The plan is not for the peers of the run.
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
        """Return the maximum number of callers for which a round is not yet a collective operation:
        all of them may be Byzantine, unless they are the whole roster."""
        return min(self.f, max(0, roster - 1))

    def tolerable(self, f: int, updates: int) -> int:
        """Return how many of ``f`` Byzantine peers the rule tolerates with this number of updates;
        0 if none."""
        return next(
            (fewer for fewer in range(f, 0, -1) if self.updates_needed(fewer) <= updates), 0
        )
