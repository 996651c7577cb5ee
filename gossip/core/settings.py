"""Settings of the core, with units, formulas and trade-offs. ``gossip.config`` sets their
values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, floor, log
from typing import Literal, TypeAlias

from gossip.errors import ConfigError

from .digests import digest_of
from .messages import PeerId

# The constants are times, limits and bounds that users cannot set. The values that users can set
# are fields of ``MembershipSettings``, ``RoundSettings`` and so on, below. A constant with a
# formula follows from other constants. Any other constant was chosen; its docstring explains the
# choice.

# --- intervals, seconds ---------------------------------------------------------------------------

CHECK_INTERVAL_S = 0.25
"""Interval of periodic checks (for peers at the start, missing commits, arriving bytes) and of
repeated requests to silent peers, because any message may be lost. Also the longest wait for the
remaining replies to a poll, once enough peers have replied but do not agree."""
RESEND_S = 2 * CHECK_INTERVAL_S
"""Longest interval between two requests for commits to one peer. Also the interval at which counted
micro-batches are reported. Both messages cost more than a check."""
ANSWER_INTERVAL_S = 0.1
"""Shortest interval between two replies to hellos of the same peer, or to its member tables.
Without this limit, two idle peers would reply to each other forever."""
RETURN_INTERVAL_S = 0.02
"""Interval at which a returning peer requests commits. It must be shorter than a round."""
RETURN_HELLO_EVERY = 5
"""Number of requests for commits after which the returning peer announces again that it is
ready."""
WATCH_INTERVAL_S = 1.0
"""Interval of the check of the quorum. It is short compared with the timeouts of the quorum, which
are minutes."""
WAITING_REPORT_S = 5.0
"""Interval at which missing peers are reported at the start. Also two waits of this length. A
newcomer with a different model waits for more than f peers before it halts. A starting peer waits
for peers that may have begun with other weights."""
BUSY_INTERVAL_S = 0.3
"""Interval at which a peer reports to other peers that it receives payloads. Several of these
reports arrive within ``BUSY_S``."""
SERVER_PULSE_S = 0.05
"""Interval of a timer of each server. With this timer the server detects its own pause before other
peers miss its heartbeats (``link_timeout_s``)."""

# --- timeouts, seconds ----------------------------------------------------------------------------

REPLY_S = 1.0
"""Timeout of a reply from a peer with an unknown round trip, and shortest timeout of a server (RFC
6298, 2.1 and 2.4). After this time a request for a state is repeated, a receiver without further
requests counts as having all pieces, and replies that cannot change a result are no longer
awaited."""
PROBE_TIMEOUT_MAX_S = 4.0
"""Upper limit of the timeout of a probe, which is computed from measured round trips."""
LOADED_VERDICT_S = 1.5
"""Minimum time from the last ping to a verdict while large payloads are in transfer. A lost segment
is sent again after 0.2 s and after another 0.4 s, and queues on the path add to this time."""
LAST_WORDS_S = 2.0
"""Time for which messages of an incarnation may still arrive after a claim that this incarnation
has ended. If messages arrive even later, the peer is alive and the claim was false."""
BUSY_S = 2.0
"""Time after a report of a transfer or a compilation for which the peer counts as busy. Payloads
arrive one after another, with pauses between them. A payload that takes no longer than this time
never counts as trickling."""
SPEED_KNOWN_S = 2 * BUSY_S
"""Age up to which the last report of a peer is used to estimate the speed of its transfers."""
SPEED_WINDOW_S = 0.5
"""Window over which the speed of a transfer is measured. If a payload arrives fast at first and
then trickles, this is detected after one window."""
AT_ONCE_S = 0.1
"""Upper bound of the duration of a transfer that was complete before its progress was reported."""
COMPILING_MAX_S = 300.0
"""Longest wait for a peer that reports a compilation. No other peer can check such a report."""
NOT_SLOW_S, NOT_SLOW_ROUNDS = 0.5, 1.0
"""Minimum wait for a peer that is not known to be slow. The first value is in seconds, because a
machine may be busy. The second is in typical rounds, because lags grow with the duration of a
round. Their sum is used."""
NEWCOMER_ROUNDS, NEWCOMER_S = 2, 0.5
"""Largest lag with which a newcomer reports that it is ready: this number of rounds, or this number
of seconds, whichever is more."""
PAUSE_TOLERANCE_S = 0.25
"""If a peer handles no event for longer than this time, it checks whether its process was paused.
This time is shorter than the silence after which other peers continue without the peer."""
LOADED_PAUSE_TOLERANCE_S = 1.0
"""``PAUSE_TOLERANCE_S`` while large payloads are in transfer, because copies, hashes and sums take
time. It is capped at half of the link timeout."""
AFTER_PAUSE_S = 1.0
"""Time after a pause for which a peer does not serve. In this time it handles the messages that
arrived during the pause."""
FELL_BEHIND_S, FELL_BEHIND_MAX_S = 0.5, 5.0
"""Unit and limit of the delay before a peer that cannot keep up recovers again. The first recovery
has no delay, and the second has a delay of one unit. After that, the delay roughly doubles each
time."""

# --- timeouts as multiples of a measured or configured time ---------------------------------------

USUAL_FACTOR = 3.0
"""Timeout of an event as a multiple of its usual duration. Examples are the timeout of a server (a
multiple of the median round), and the waits for the first byte of a payload, for the next chunk and
for a gradient. The noise of a busy machine stays below this factor."""
TRANSFER_FACTOR = 6.0
"""Longest wait while payloads still arrive, as a multiple of the wait without payloads. If links
are known to be slower, the wait is longer."""
TRANSFER_PAUSE_MAX_S = TRANSFER_FACTOR * BUSY_S
"""Longest pause between two chunks that a peer may report, in seconds."""
DONOR_FACTOR = 2 * TRANSFER_FACTOR
"""Deadline of a donor, in round timeouts. Half of it is for the transfer, and half is for a trainer
that is busy when the request arrives."""
FAIR_FACTOR = 8.0
"""A payload counts as trickling if it takes this multiple of the usual time of its sender."""
COMPUTE_FACTOR = 2.0
"""Longest time that another peer may need to compute its update, as a multiple of the time of the
local peer."""
STALL_TIMEOUTS = 2.0
"""Number of round timeouts without progress after which a trainer counts as stalled."""
CLOSE_SHARE, TURN_SHARE, OVERDUE_SHARE = 0.7, 0.75, 0.85
"""Fractions of the timeout of a server. At ``CLOSE_SHARE`` the server closes the attempt with the
updates that it has. After ``TURN_SHARE``, a claim that the next attempt has begun counts as
explained (``later_turns.py``). At ``OVERDUE_SHARE``, missing statistics are overdue. At 1 the
participants move to the next server."""
NACK_SHARE = 0.8
"""A helper sends its Nack after the round trip plus this fraction of the rest of the probe timeout,
so that the Nack arrives before the verdict."""
UNASKED_SHARE = 0.25
"""Fraction of a typical round for which a peer waits for missing commits before it requests
them."""
DOUBLINGS_MAX = 3
"""Maximum number of times that a timeout doubles: the timeout of a server, or of a gradient without
a known usual time."""
REST_TIMES_MAX = 4
"""Longest exclusion of a donor that did not deliver, as a multiple of the first exclusion."""
CLAIM_DOUBLINGS_MAX = 16
"""Maximum number of doublings of the delay of a claim in one round, so that the delay is finite."""

# --- credit: limits on the delay that a peer can cause by claims that no other peer can check -----

CREDIT_REGAINED = 0.01
"""Share of the elapsed time by which spent credit recovers. A Byzantine peer can delay a run once
by its credit, and afterwards by a hundredth of the time."""
CREDIT_TURNS = 3.0
"""Credit of a peer for unexplained claims about later attempts, in round timeouts, over all
rounds."""
REFUND_TURNS = 1.0
"""Credit, in round timeouts, that a peer regains with each result that it makes, because an honest
peer may have repeated the claim of a Byzantine peer. A Byzantine peer gains about as much delay by
this refund as by withholding its results."""
PARDONS_MAX = 3
"""Maximum number of times that the start of a run waits again for a new incarnation of a peer that
has sent no weights. A Byzantine peer can start any number of incarnations."""
MISSED_ROUNDS, AMENDS_ROUNDS, RETRY_ROUNDS = 2, 8, 32
"""Numbers of rounds. After a peer has missed ``MISSED_ROUNDS`` rounds, servers no longer wait long
for it. After the peer was then in time in more than ``AMENDS_ROUNDS`` rounds, they wait long again.
After ``RETRY_ROUNDS`` missed rounds, they try a single long wait. A peer that is rarely in time
must not delay every round, but only a long wait can show that its link is slow."""
GIVEN_TIMES_MAX = 4
"""Maximum number of times that a donor sends the same piece of a state to the same peer, and that a
donor's deadline is renewed without a new piece. More than one time is needed because the receiver
may restart and messages may be lost."""
REFUSALS_MAX = 3
"""Number of consecutive states that the trainer fails to load before the peer halts, because no
state of the run fits it."""
RETURNS_MAX = 2
"""Number of comparisons in which a peer's replica may differ before the peer stops, if the peer
misses no round between these comparisons."""
SURE_TURNS = 2
"""Number of polls in which every peer must report that it has no state, before the run counts as
without a state. A peer that is recovering during the first poll may have a state in the second
poll."""
POLLS_STRICT, POLLS_MAX = 2, 6
"""Number of polls for a state in which the settings of the scripts must agree as well, and maximum
number of polls of a peer that can return to its own state."""
NAMED_AHEAD = 2
"""Number of rounds between the latest round that more than f peers have reached and the first round
that a poll names. Each further named round is four times as far ahead."""
STALLED_BEHIND = 2
"""Minimum lag, in rounds, with which a trainer counts as stalled. Any peer may be one round
behind."""
STRAY_EVERY = 5
"""One in this many probes and table exchanges goes to a peer that is dead or was never met."""

# --- estimates ------------------------------------------------------------------------------------

ESTIMATE_MIN = 8
"""Number of observations that an estimated timeout needs. With fewer, the cap is used."""
PEER_TIMES, PEER_TIMES_MIN = 8, 4
"""Number of stored times of each peer, and number of times that is sufficient to classify the peer.
While fewer times are known, each missing time extends the limit for a payload by the whole
limit."""
SLOWER_PAYLOADS = 3
"""Number of consecutive trickling payloads after which a peer counts as slower. If most peers are
slower, the network is slower, and the times of these payloads become the typical times."""
TRIP_GAINS = 0.125, 0.25
"""Weights of a new round trip sample in the mean and in the deviation (RFC 6298, 2.3)."""
LOADED_ROUNDS = 3
"""Number of typical rounds for which timeouts stay extended after a slow transfer."""
CALM_SHARE = 0.5
"""Raised mixing ends when the consensus distance is below this fraction of its bound."""
PACE_WINDOW, PACE_LEVELS = 16, 2
"""Number of rounds between two changes of the shares of samples, and number of times that a share
can be halved."""
PACE_SLOW, PACE_QUICK = (7, 4), (3, 4)
"""Fractions of the median time. A peer is too slow if its time is at least 1.75 times the median.
If its time is at most 0.75 times the median, the peer can compute twice as many samples and still
stay below 1.75 times the median."""
MARGIN_US = 25_000
"""Difference from the median, in microseconds, up to which a peer never counts as slow: half of
``grace_floor_s``."""
ROUND_TIMES = 3
"""Number of latest rounds from which the deadline of slow peers is computed, as a multiple of the
median duration. With several rounds, a single round in which all peers were delayed, for example by
an evaluation, has no effect."""
ROUND_LATE = 11, 10
"""Deadline as a fraction of this median. A peer that needs less time than the deadline still
completes all its steps."""
PASS_TIMES = 5
"""Number of latest rounds over which the median time of a stage member is taken."""
PASS_UNLIKE, PASS_UNLIKE_US = (3, 2), 5_000
"""Ratio of measured and predicted time at which a member no longer matches its profile, and minimum
difference in microseconds. The minimum is needed because no profile includes the time of messages
between processes."""
PASS_BITS = 5
"""Number of leading bits of a reported time that are used, so that times change in steps of 3 to 6
%. Smaller changes would move no micro-batch."""
SPEED_RATIO_MAX = 8
"""Upper limit of the ratio of the speeds of two members of a stage, whatever times the members
report."""
TRUST_ROUNDS = 20
"""Number of recent updates of a peer from which its typical outlyingness is computed, together with
the reasons of rejections and the usual length."""
SPREAD_EVERY = 10
"""Number of rounds between two measurements of how much the data of the peers differ."""
UNEQUAL = 6.0
"""A measurement of this difference is unequal if it is this many standard deviations above its mean
for equal data."""
UNEQUAL_OFTEN, UNEQUAL_SHARE = 3, 8
"""The data of the peers count as different if at least ``UNEQUAL_OFTEN`` measurements are unequal,
or if more than one in ``UNEQUAL_SHARE`` of them is unequal. Both cases rarely occur by chance."""
FORK_ROUNDS = 8
"""Number of latest rounds in which contributors are counted for the weight of a side of a fork."""
COMPARED_STEPS = 3
"""Number of steps at the start of a run after which the replicas are compared."""

# --- bounds of stores, so that no peer fills the memory of another --------------------------------

MEMBERS_MAX, TABLE_MAX = 4096, 500
"""Maximum number of members if no list restricts the peers, and maximum number of members in one
message."""
SENDERS_MAX = 16
"""Number of stored senders of a rumor, to which the rumor is not sent back. In a large run the next
receiver is rarely one of the senders."""
RELAYS_MAX = 256
"""Maximum number of probes in progress for other peers. A further request is rejected with a
Nack."""
LATE_PROBES_MAX = 64
"""Number of stored ended probes, for which a late reply still measures a round trip."""
SCANNED_MEMBERS = 64
"""Number of members up to which a sample scans all members first."""
HISTORY_ROUNDS = 1024
"""Number of rounds with a stored hash of the history, and with stored audit votes."""
ACCUSED_ROUNDS = 16
"""Maximum number of rounds for which accusations of one peer are stored."""
ACCUSED_TURNS, ACCUSED_TURNS_BY_PEER = 4, 8
"""Number of disputed attempts that are stored for each accuser: of one server, and of all servers.
With limits for each accuser, no peer can displace the accusations of other peers."""
PROVEN_TURNS = 16
"""Number of stored attempts with two proven results. They are stored so that each proof has an
effect only once."""
TURNS_KEPT = 64
"""Number of stored results of one server, one for each attempt, and number of stored results from
one sender."""
FORKS_KEPT = 16
"""Number of stored rounds after which other peers had another history."""
AUDIT_VOTES_KEPT = 16
"""Number of stored votes of one stage member. The oldest votes are dropped."""
AUDIT_ROWS_MAX = 2**8 * AUDIT_VOTES_KEPT
"""Maximum number of votes, or of convicted peers, in a table from another peer: enough for a stage
of 256 members."""
PEERS_MAX = 2**16
"""Maximum number of rows in a table from another peer."""
TIME_US_MAX = 2**40
"""Largest reported time, in microseconds: 12 days."""
FAR_MAX = 3.5e38
"""Largest valid outlyingness. It is above every float32 value, because rules compute in float32."""
RATES_MAX = 1024
"""Maximum number of optimizer settings in an update."""
UNPACKED_BYTES_MAX = 320 * 1024
"""Largest size of the JSON of a ledger in bytes: twice the size for a thousand peers."""
LISTS_MAX = 2**14
"""Largest number of lists in the JSON of a ledger: four times the number for a thousand peers. With
three values in each list, such a JSON is parsed within 10 ms."""
VALUES_MAX = 3 * LISTS_MAX
PENDING_ROUNDS = 256
"""Number of committed rounds that are stored until the size of the data is known."""
RANGES_MAX = 256
"""Maximum number of ranges of samples in one message: of discarded samples of an epoch, or of
predicted samples. Further discarded samples are only counted, and further predictions are
omitted."""
SPARE_ROUNDS = 8
"""Number of further rounds without progress, in an extended epoch, that are attributed to faults of
peers. After more than these and the size of the roster, the samples that
returned in the last round are discarded."""
PREDICTED_ROUNDS = 32
"""Maximum number of rounds for which samples are predicted, even if a trainer prefetches more
rounds."""
SNAPSHOTS_KEPT = 8
"""Number of rounds with a stored snapshot: a trainer that packs its state may be behind by this
number of rounds."""
ROUNDS_KEPT_ALWAYS = 2
"""Number of rounds that the log of commits always stores, whatever their size is."""
KINDS_KEPT = 4
"""Number of kinds of steps for which the last result is stored."""
LENGTH_KINDS, LENGTH_ROUNDS = 16, 256
"""Number of kinds of steps for which the lengths of results are recorded, and number of recorded
rounds of each kind. These lengths limit the length of the next result. Once a model fits its data,
nearly all results are short, but a rare honest result is a hundred times as long. The number of
recorded rounds is so large that it includes such a long result."""
COMMITS_BYTES_MAX = 64 * 2**20
"""Maximum size of a reply to a peer that is behind, in bytes. A reply contains the commits of at
least one round, whatever their size is."""
STASH_ROUNDS = 8
"""Number of future rounds for which messages are stored. In gossip rounds a peer that is farther
behind skips rounds, because it has not stored their messages."""
LOCKED_ROUNDS = 16
"""Number of rounds that this peer has left and for which it stores its attempts. These attempts
bind the peer if it returns to a round."""
REFUSALS_KEPT = 64
"""Number of stored rejected results."""
ORDERS_KEPT = 8
"""Number of rounds for which the order of servers is stored. A result that was accepted by other
peers arrives soon after it was made."""
FORWARDED_MAX = 64
"""Maximum number of different commits of one shard that are forwarded in a round. Only a few of
these commits can be honest."""
SERVED_KEPT = 64
"""Number of served attempts for which the arrival time of the first update is stored."""
SMALL_BYTES = 2**20
"""Size in bytes up to which a server sends its commit again in reply to a late update. A larger
commit must be requested."""
PLANS_KEPT, CONTRIBUTIONS_KEPT = 64, 32
"""In gossip rounds: number of stored plans, and number of rounds for which the time of the local
contribution is stored."""
SKETCH_NUMBERS_MAX = 4096
"""Maximum number of values in a random projection of the parameters."""
VALUES_KEPT = 32
"""Number of stored values of each peer in the collective operations of gossip rounds. A trainer
stores the results of the same number of operations."""
MEASURED_POINTS = 4
"""Maximum number of points that a rule measures in addition to the updates."""
STATISTICS_REPLIES = 2
"""Number of replies to repeated requests for statistics in one attempt of shard 0."""
COVER_TRIES = 1000
"""Maximum number of combinations of updates that are tried. The updates of honest peers rarely have
a micro-batch in common, so the first combination usually fits. The limit bounds the time that the
update of a Byzantine peer can cost."""
REASON_CHARACTERS = 200
"""Largest length of the reason of a round without a result."""
PIECE_BYTES = 2**23
"""Size of a piece of a state, in bytes. The last piece is smaller. If a state would have more than
``PIECES_MAX`` pieces of this size, its pieces are larger."""
PIECES_ASKED = 2
"""Number of outstanding requests to one donor: one piece is in transfer, and the next piece follows
at once."""
TAKERS_MAX = 4
"""Maximum number of peers to which a donor sends its state at the same time. Further requests are
rejected."""
COPIES_MAX = 2
"""Maximum number of states of different rounds that a donor stores."""
AWAITED_ROUNDS = 4
"""Maximum number of different future rounds for which a donor stores requests."""
REQUESTED_AHEAD = 64
"""Maximum number of rounds by which a requested round may be ahead of the donor."""
STATE_TIMES, STATE_SLACK = 7, PIECE_BYTES + 2**20
"""Largest packed state that a donor may send: ``STATE_TIMES`` times the size of the local state at
the start, plus ``STATE_SLACK`` bytes. At the start the local state lacks the state of the
optimizer, which is created in the first step. Adam with AMSGrad needs three times the size of the
parameters, and twice that for 16-bit parameters. The additional bytes allow a full piece for a
small state."""
FETCHED_TIMES = 1024
"""Largest state that is sent in pieces, as a multiple of the local state at the start. This limit
can be larger, because memory grows only with verified pieces. Some optimizers have a large state:
preconditioners grow with the square of a row, and a history may contain hundreds of gradients."""


def accusation_rounds(f: int) -> int:
    """Return the number of rounds for which accusations stay valid. In this number of rounds, more
    than f different peers have almost certainly served."""
    return 64 + 16 * f


# --- settings of a run ----------------------------------------------------------------------------

ON_LINKS = 2
"""Number of additional micro-batches on the links of a pipeline. Without them a stage waits for
slow links: in 5 % of 67 simulated pipelines, a step took at least 1.2 times as long as the formula
predicts. With them, the largest ratio in 178 simulated pipelines is 1.1."""
# maximum number of micro-batches of a step; the list of their numbers must fit in a message
MICRO_BATCHES_MAX = 1024


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """Settings of SWIM with Lifeguard. The defaults are for a node that has its own process
    (docs/design_notes.md N2)."""

    # A shorter interval detects crashes sooner. Each probe costs one ping and one ack.
    probe_interval_s: float = 0.2
    probe_timeout_s: float = 0.1  # time for both direct pings together
    probe_tries: int = 2
    indirect_probes: int = 3  # number of helpers after a direct probe has failed; at most n - 2
    suspicion_mult: int = 4
    suspicion_max_mult: int = 6
    gossip_interval_s: float = 0.05
    gossip_fanout: int = 3
    retransmit_mult: int = 4  # each peer sends a rumor retransmit_mult * ceil(log2(n + 1)) times
    push_pull_interval_s: float = 5.0
    gossip_to_dead_s: float = 30.0
    awareness_max: int = 8  # largest factor by which local health multiplies local timeouts
    rumors_per_message: int = 12
    # A link without messages for this time is closed. In real runs, the timeout of the transport is
    # computed from this value (gossip/transport/base.py).
    link_timeout_s: float = 0.3
    incarnation_jump_max: int = 2**16

    @property
    def connect_grace_s(self) -> float:
        """Time for the first connections in both directions; their handshakes take four round
        trips. Within this time, a missing connection causes no accusation."""
        return max(2.0, 4 * self.link_timeout_s)


@dataclass(frozen=True, slots=True)
class RoundSettings:
    quorum: Quorum = "majority"  # With fewer than 3 peers, "available" is used.
    # "continue" has the effect of "available" once the other peers are dead.
    on_minority: Literal["pause", "continue"] = "pause"
    # Reaction of a peer to a divergent replica. "stop": adopt the state of another peer, and stop
    # if the replica diverges again. "heal": adopt a state each time. "warn": continue.
    on_divergence: Literal["stop", "heal", "warn"] = "stop"
    # Longest duration of a round, in seconds. The effective timeout follows from measured rounds.
    round_timeout_s: float = 10.0
    start_timeout_s: float = 60.0
    # If this number of peers is present for patience_s, the run begins without the missing peers.
    # With 0, a quorum of peers begins without the others only at the start timeout.
    min_peers: int = 0
    patience_s: float = 10.0
    quorum_timeout_s: float = 60.0
    grace_mads: float = 4.0  # Factor k in the grace period, median + k * MAD of the lags.
    # Lower bound of the grace period, so that no peer is excluded because its machine is busy for a
    # moment.
    grace_floor_s: float = 0.05
    # Delay until a server of a later attempt requests missing updates.
    query_after_s: float = 0.003
    # Delay before the missing commit of a round is requested, after other peers have left the
    # round.
    behind_after_s: float = 0.02
    # Longest time for which a leaving peer still sends commits to peers that are behind.
    drain_timeout_s: float = 5.0
    # After the loss of a peer, peers that have completed the training wait this long for its
    # return.
    linger_s: float = 30.0
    commit_log: int = 64  # number of rounds for which commits are stored for peers that are behind
    commit_log_bytes: int = 64 * 2**20


@dataclass(frozen=True, slots=True)
class GossipSettings:
    mix_every: int = 4  # m: parameters are exchanged in every m-th round.
    # Fraction of the way towards the mixed parameters of k other peers; capped at k/(k+1).
    mixing: float = 0.5
    staleness_max: int = 4  # Largest age of a push, in rounds; older pushes are dropped.
    # Ratio of consensus distance and parameter norm above which mixing is raised.
    consensus_bound: float = 0.1

    @property
    def kept_share(self) -> float:
        """Share of the local model difference in the applied model difference. It is one half, or
        less if parameters are mixed in each round with a fraction above one half."""
        return min(0.5, 1 - self.mixing) if self.mix_every == 1 else 0.5


@dataclass(frozen=True, slots=True)
class TrustSettings:
    """Settings of trust: one score in [0, 1] for each peer, computed from named evidence. Peers
    with the same commits compute the same scores."""

    # trust <- memory * trust + (1 - memory) * (1 if the update was ordinary else 0)
    memory: float = 0.9
    # An update is evidence if its outlyingness is this many times the median, and if the recent
    # updates of the same peer are as outlying.
    outlying: float = 3.0
    # To replace a peer in quarantine, another peer must have this many times its outlyingness.
    farther: float = 1.5
    # Factor by which the trust in a server is multiplied after more than f peers have rejected one
    # of its results. Honest results are rejected rarely: near the optimum, 1 of 200 results of a
    # server. False results are nearly always rejected.
    served_memory: float = 0.75
    # Factor by which the trust in a server is multiplied if it has provably sent different results
    # in one attempt.
    twice_memory: float = 0.3
    # Share of the lost trust that is restored by each accepted result.
    served_recovery: float = 0.04
    # Factor by which the delivery score of a server is multiplied after more than f peers have
    # received no result from it in time.
    heard_memory: float = 0.5
    suspect_below: float = 0.5
    quarantine_below: float = 0.2
    quarantine_rounds: int = 100
    # Interval, in rounds, at which a second run of the rule measures the updates of quarantined
    # peers.
    measured_every: int = 2
    # number of rounds after a quarantine in which the updates of the peer are used, but the peer
    # does not serve
    parole_rounds: int = 50

    @property
    def trusted_above(self) -> float:
        """Trust above which a suspected peer is trusted again: ``suspect_below`` plus a quarter of
        the range from there to 1."""
        return self.suspect_below + (1.0 - self.suspect_below) / 4

    @property
    def updates_to_return(self) -> int:
        """Number of consecutive ordinary updates after which a quarantine ends at the latest, if
        there is no other evidence against the peer."""
        return floor(log(1.0 - self.trusted_above) / log(self.memory)) + 1


BatchPolicy: TypeAlias = Literal["fixed_local", "fixed_global"]
"""Quantity that stays constant when the size of the roster changes. ``fixed_local``: the batch of
each peer. ``fixed_global``: the batch of a round, which is one batch for each initial peer of the
run.

With ``fixed_global``, the remaining peers take longer for a step and need more memory, but the
optimization is unchanged.
"""


Quorum: TypeAlias = Literal["majority", "available"]
"""Peers that must send updates in a round: a majority of the roster, or all available peers."""
Slices: TypeAlias = Literal["speed", "equal"]
"""Sizes of the slices of data: smaller for peers that are much slower than most peers (``pace``),
or equal for all peers."""


@dataclass(frozen=True, slots=True)
class ResultSettings:
    """Thresholds for the rejection of a server's result. docs/threat_model.md has the measurements
    from which they were chosen."""

    # A result is rejected if its cosine to the local update is below this value. Near the end of a
    # training, 1 to 2 % of the honest results are below it.
    opposed: float = -0.5
    # Fraction of the root mean square of the whole local update. A shard with smaller values has
    # nearly no gradient. The sign of its update depends on the batch, so many honest results oppose
    # it.
    faint: float = 0.3
    # A result is rejected if it is longer than this multiple of the longest recent results and of
    # the local update.
    longer: float = 3.0
    # A result is rejected if a learning rate is above or below these multiples of the local rate
    # and of the rate of the previous round. A scheduler that is one step ahead or behind differs by
    # less: most warm-ups at most double a rate, and most drops divide it by ten.
    higher: float = 3.0
    lower: float = 0.01


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """Plan of a pipeline. The plan is equal on all peers and determines the stage of each peer, so
    no message needs to contain it.

    Attributes:
        stages: Members of each stage. Each peer is in one stage.
        micro_batches: Number of micro-batches of a step.
        in_flight: Maximum number of micro-batches of a peer that have passed forward but not yet
            backward. 0 means the number that keeps all peers and links from this stage on busy.
        pass_us: Predicted time of each peer for both passes of a micro-batch; empty without a
            prediction. Until the first measurements, micro-batches are assigned according to these
            times.
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
        """Return the maximum number of micro-batches that have passed forward but not yet backward,
        on one member of a stage with ``members`` members. The planner computes the memory from this
        number (``gossip_pipelines.planning``)."""
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
                f"run has the peers {list(peers)}: each peer must be in one stage, no stage empty"
            )
        if not 1 <= self.micro_batches <= MICRO_BATCHES_MAX:
            raise ConfigError(
                f"a step has {self.micro_batches} micro-batches, not 1 to {MICRO_BATCHES_MAX}"
            )
        if not all(took_us > 0 for _, took_us in self.pass_us):
            raise ConfigError(f"times of peers {dict(self.pass_us)}: each time must be above 0")
        if not 0.0 <= self.audit <= 1.0:
            raise ConfigError(f"audit = {self.audit}: must be a probability from 0 to 1")


@dataclass(frozen=True, slots=True)
class CoreSettings:
    run: bytes
    lineage: bytes
    seed: int
    peers: tuple[PeerId, ...]  # The roster of round 0.
    f: int = 0  # Byzantine peers to tolerate.
    # Numbers of updates that the rule needs to tolerate 0, 1, ... f.
    updates_for: tuple[int, ...] = (1,)
    judged: bool = False  # Whether the rule judges updates by a gradient, not by distance.
    batch_policy: BatchPolicy = "fixed_local"
    slices: Slices = "speed"
    # Whether peers make local steps. A slow peer makes fewer local steps, so its slices are not
    # made smaller.
    local_steps: bool = False
    room: int = 0  # Peers with an id below this may join later; 0: only ``peers``.
    # Latest round of the run that is known from an earlier incarnation; 0 means none.
    had_round: int = 0
    # Whether the servers of all shards decide together, from the statistics of all shards.
    cross_shard: bool = False
    membership: MembershipSettings = field(default_factory=MembershipSettings)
    rounds: RoundSettings = field(default_factory=RoundSettings)
    gossip: GossipSettings = field(default_factory=GossipSettings)
    trust: TrustSettings = field(default_factory=TrustSettings)
    results: ResultSettings = field(default_factory=ResultSettings)
    # plan of a pipeline, in which each stage has some of the layers; None if each peer has the
    # whole model
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
            raise ConfigError("cross-shard decisions are impossible in a pipeline: use one shard")
        stage = self.pipeline.stage_of(local)
        if stage is None:
            raise ConfigError(f"peer {local} is in no stage of the plan")
        lineage = digest_of(self.lineage + stage.to_bytes(4, "little"))
        return replace(self, peers=self.pipeline.stages[stage], room=0, lineage=lineage)

    @property
    def audit_votes(self) -> int:
        """Number of equal votes of stage members that convict another member. With this number, at
        least one voter is honest. With f = 0, one Byzantine voter is still assumed."""
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
        updates while further updates may arrive."""
        return self.updates_needed(self.f)

    def updates_needed(self, f: int) -> int:
        """Return the number of updates that the rule needs to tolerate ``f`` Byzantine peers. ``f``
        is capped at the f of the settings."""
        return self.updates_for[max(0, min(f, len(self.updates_for) - 1))]

    def callers_too_few(self, roster: int) -> int:
        """Return the largest number of callers with which a round is not yet a collective
        operation. So few callers may all be Byzantine, unless they are the whole roster."""
        return min(self.f, max(0, roster - 1))

    def tolerable(self, f: int, updates: int) -> int:
        """Return the largest number of Byzantine peers, up to ``f``, that the rule tolerates with
        this number of updates."""
        return next(
            (fewer for fewer in range(f, 0, -1) if self.updates_needed(fewer) <= updates), 0
        )
