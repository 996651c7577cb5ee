"""Events, which the driver delivers to the core, and effects, which the core returns to the driver.
Events and effects are immutable. Each ``match`` over ``Event`` or ``Effect`` ends in
``assert_never``."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, TypeAlias

from .frozen import record
from .messages import Collected, Message, PeerId


@dataclass(frozen=True, slots=True)
class EpochReport:
    """Numbers of samples that the rounds of a completed epoch have used, and have left unused."""

    epoch: int
    once: int
    twice: int
    left: int  # unused samples of this and earlier epochs, which the next epoch reads first
    rounds: int
    skipped: int = 0  # Samples that a script received, but with which it made no step.
    # Samples that are never used: two rounds left them unused, or they remained at the end of the
    # data.
    given_up: int = 0
    # the first of these samples, as ``start``/``stop`` pairs
    given_up_ranges: tuple[tuple[int, int], ...] = field(default=(), kw_only=True)


Token: TypeAlias = int
"""Identifier of one timer, unique within a core (docs/design_notes.md N7)."""


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """A vector. The core never reads ``data``. The driver sets all other fields.

    In the node, ``data`` is a one-dimensional float32 array. For a packed state it is a uint8
    array, or a tuple of consecutive arrays if the state is to be restored. A simulation may use any
    object.
    """

    data: Any
    nbytes: int
    finite: bool = True
    digest: bytes = b""  # Digest of the bytes, only for commits and states.
    # Digests of the parts of a packed state; if set, ``digest`` is the digest of ``parts``.
    parts: tuple[bytes, ...] = ()
    # bytes to send in place of ``data``; if set, ``nbytes`` and ``digest`` describe these bytes
    encoded: Any = None


# --- events ---------------------------------------------------------------------------------------


@record
class Started:
    """The sockets are bound and the clock runs."""


@record
class ResultSimilarity:
    """Comparison of a server's result with the local update of the round: their Euclidean lengths
    and their inner product.

    If there is no local update, ``own`` is 0.0. ``even`` is the length that the local update would
    have in this shard if its values had the same typical size in all shards. ``even`` is 0.0 if
    there is only one shard, or if the inner product is not negative.
    """

    length: float
    own: float = 0.0
    product: float = 0.0
    even: float = 0.0

    @property
    def cosine(self) -> float:
        """Cosine of the angle between the result and the local update; 0.0 if it is undefined or
        not finite."""
        size = self.length * self.own
        cosine = self.product / size if 0.0 < size < inf else 0.0
        return cosine if cosine == cosine else 0.0  # NaN differs from itself


@record
class Received:
    """A complete, well-formed message from ``sender``, and the payload of the message.

    ``similarity`` is set for a result if its ``Admission`` requested a comparison.
    """

    sender: PeerId
    incarnation: int
    message: Message
    payload: Payload | None = None
    similarity: ResultSimilarity | None = None


@record
class Arriving:
    """Progress of a payload in transfer: ``received`` of ``nbytes`` bytes have arrived.

    The driver delivers this event periodically, and ``Received`` once the payload is complete.
    """

    sender: PeerId
    incarnation: int
    message: Message
    received: int
    nbytes: int


@record
class LinkUp:
    """A connection to the peer is established. This is no evidence that the peer is healthy."""

    peer: PeerId


@record
class LinkDown:
    """A connection to the peer closed or timed out. This is no evidence that the peer is dead."""

    peer: PeerId
    reason: str


@record
class TimerFired:
    token: Token


@record
class ClockJumped:
    """The event loop of the driver was blocked for ``late_s`` seconds. Silence in this time is no
    reason to suspect a peer."""

    late_s: float


@record
class Prepared:
    """The trainer has its model. ``shard_bytes``: encoded length of each shard of an update.
    ``result_bytes``: encoded length of each shard of a result or of the parameters; empty if equal
    to ``shard_bytes``."""

    layout: bytes
    state: bytes
    shard_bytes: tuple[int, ...]
    state_bytes: int = 0  # Length of the packed state; limits the payloads that a donor may send.
    # Next round of the trainer. It is above 0 if the node was restarted while its trainer was
    # running, or if the trainer has loaded a checkpoint.
    round_id: int = 0
    # ledger of the loaded checkpoint, from ``LedgerReply``
    ledger: bytes = b""
    collectives: int = 0  # number of rounds before ``round_id`` that made no step of the run
    result_bytes: tuple[int, ...] = ()
    # in a pipeline: bytes of the input and of the output of this stage for one micro-batch; 0 if
    # the stage has no input or output
    activation_bytes: tuple[int, int] = (0, 0)
    # secret random bytes, which select the micro-batches that this peer audits
    lots: bytes = b""


@record
class DataConfigured:
    """The trainer reads a sharded data set with ``samples_total`` samples per epoch, and reads
    ``batch`` samples per peer and round.

    The trainer prefetches the samples of ``ahead`` rounds. If ``extended`` is above 0, it is the
    number of epochs of the run, and the samples left over at their end are read in further rounds
    of the last epoch.
    """

    samples_total: int
    batch: int
    ahead: int = 0
    extended: int = 0


@record
class Contributed:
    """The trainer's update for ``round_id``: one payload for each shard, or none without samples.

    ``parameters`` and ``sketch`` are set in gossip rounds that mix parameters.
    """

    round_id: int
    samples: int
    payloads: tuple[Payload, ...]
    loss: float | None = None
    parameters: Payload | None = None
    sketch: bytes = b""
    # honest update (all shards) of a peer that injects a fault; None on an honest peer
    own: Payload | None = None
    own_parameters: Payload | None = None  # Honest parameters of a peer that injects a fault.
    rates: tuple[float, ...] = ()  # Learning rates of the trainer's next step.
    # True if the trainer has ever compiled. The duration of a round may then not show the pace of
    # the peer.
    compiled: bool = False
    # value for a collective operation, at most ``COLLECTED_BYTES_MAX`` bytes; if set, ``samples``
    # is 0
    collective: bytes = b""
    skipped: bool = False  # True if the script received samples but made no step.
    # Number of local steps that were made, and number of steps that were planned.
    steps: tuple[int, int] = (1, 1)
    # Duration of ``steps`` in microseconds, if this peer began the round late; otherwise 0.
    lasted_us: int = 0
    # In a pipeline: ``micro_batches`` of the ``CollectUpdate``.
    micro_batches: tuple[int, ...] = ()
    pass_us: int = 0  # In a pipeline: time of both passes of a micro-batch.
    replica: bytes = b""  # Digests of the replica before the round, if replicas are compared.
    kind: int = 0  # Kind of the step (``messages.is_further``).


@record
class Applied:
    """The trainer has applied round ``round_id``."""

    round_id: int


@record
class Aggregated:
    """The reply to ``Aggregate``. If the rule has no result, ``payload`` is None and ``reason`` is
    set."""

    ticket: int
    payload: Payload | None
    weights: tuple[float, ...] = ()
    outlyingness: tuple[float, ...] = ()
    reason: str = ""
    statistics: bytes = b""  # Measurements, after step ``measure``.
    # After step ``decide``: weights of the aggregated rows, followed by the weights of the rule's
    # additional points.
    decision: tuple[float, ...] = ()
    # outlyingness of the rows in ``Aggregate.outside``, computed as for the other rows; empty if
    # unknown
    outside: tuple[float, ...] = ()
    length: float = 0.0  # typical length of an update in this round; 0.0 if unknown


@record
class SendsDone:
    """The reply to ``AfterSends``. It has the same ``now`` as the preceding event, and the driver
    delivers no event between the two."""


@record
class SnapshotTaken:
    """The reply to ``TakeSnapshot``: the state before round ``round_id``. ``parts``: lengths of the
    parts (``StateOffer``)."""

    round_id: int
    payload: Payload
    parts: tuple[int, ...] = ()


@record
class Restored:
    """The trainer has loaded the state of ``Restore``. If this has failed, ``error`` is the
    reason."""

    round_id: int
    error: str = ""


@record
class TrainerLost:
    """The process of the trainer has ended. This peer announces its own end and halts."""

    reason: str


@record
class TrainerProgress:
    """Progress of the trainer, read from shared memory."""

    step: int
    age_s: float
    compiling: bool = False


@record
class PeerEnded:
    """The launcher reports that ``peer`` has ended and will not be restarted."""

    peer: PeerId


@record
class PeerExpected:
    """The launcher reports that it is starting ``peer``. The address is not known yet."""

    peer: PeerId


@record
class AddressLearned:
    """Addresses of one incarnation of a peer, from a source outside the protocol, such as a shared
    folder."""

    peer: PeerId
    control: str
    bulk: str
    incarnation: int


@record
class ConfirmState:
    """The trainer has applied all its rounds; the last is ``round_id`` - 1. It requests a
    comparison of its state with the states of the other peers."""

    round_id: int


@record
class LedgerRequest:
    """The trainer saves a checkpoint and needs the ledger for it."""


@record
class ForwardDone:
    """The reply to ``RunForward``. ``payload``: output of the stage, with a digest. It is None in
    the last stage, or if the trainer could not compute the micro-batch."""

    round_id: int
    micro_batch: int
    attempt: int
    payload: Payload | None
    audit: bool = False  # ``audit`` of the ``RunForward``
    took_us: int = 0


@record
class BackwardDone:
    """The reply to ``RunBackward``: the parameter gradients have been added to the sum.
    ``payload``: gradient of the stage's input, with a digest. It is None in the first stage. It is
    also None if the trainer could not compute the micro-batch; in this case the sum has been
    reset."""

    round_id: int
    micro_batch: int
    attempt: int
    payload: Payload | None
    samples: int
    loss: float | None = None  # Set by the last stage.
    audit: bool = False  # ``audit`` of the ``RunBackward``. If True, the sum is unchanged.
    took_us: int = 0


StateSource: TypeAlias = Literal["", "checkpoint", "neighbours", "fresh", "own"]
"""Origin of a rebuilt state of a stage: "" if no state was rebuilt, "own" if the trainer still had
the state."""


@record
class StateRebuilt:
    """The reply to ``RebuildState``: the trainer has a state before round ``round_id``.

    ``source``: origin of the state. If the trainer first requires states of other stages, ``needs``
    lists each such stage with the largest length of its state in bytes. ``step``: step of the
    checkpoint, or of the state that the trainer still had. ``state``: digest of the state.
    ``fresh``: number of layers with initial weights.
    """

    round_id: int
    source: StateSource
    step: int = 0
    state: bytes = b""
    fresh: int = 0
    needs: tuple[tuple[int, int], ...] = ()


@record
class Stop:
    """Request to leave: announce the end, serve peers that are behind, halt.

    ``completed``: the script has finished, so this is the end of the training. This peer then
    stores the final state for other peers.
    """

    reason: str
    completed: bool = False


Event: TypeAlias = (
    Started
    | Received
    | Arriving
    | LinkUp
    | LinkDown
    | TimerFired
    | ClockJumped
    | Prepared
    | DataConfigured
    | Contributed
    | Applied
    | Aggregated
    | SendsDone
    | SnapshotTaken
    | Restored
    | TrainerLost
    | TrainerProgress
    | PeerEnded
    | PeerExpected
    | AddressLearned
    | ConfirmState
    | LedgerRequest
    | ForwardDone
    | BackwardDone
    | StateRebuilt
    | Stop
)


@record
class Admission:
    """Decision on the payload of a message before it is received, and the work that the node must
    do before it delivers the message.

    ``nbytes``: required length of the payload, or its largest length for a state; -1 if no payload
    is admitted. ``compare_with``: shards of the local update with which a result is compared
    (``Received.similarity``), beginning with the shard of the result. None means no comparison.
    """

    nbytes: int
    compare_with: tuple[Payload, ...] | None = None


NOT_ADMITTED = Admission(-1)


# --- effects --------------------------------------------------------------------------------------


@record
class Send:
    """Send a message to a peer. The message may be lost. The type of the message determines over
    which connection it is sent."""

    peer: PeerId
    message: Message
    payload: Payload | None = None


@record
class AfterSends:
    """Deliver ``SendsDone`` as the next event, after all effects of this event.

    With this effect the core first sends the messages that other peers wait for, and then
    continues.
    """


@record
class SetTimer:
    token: Token
    at: float  # seconds, on the clock of ``now``


@record
class CancelTimer:
    token: Token


@record
class Connect:
    """Open both connections to a peer, or open them again at another address."""

    peer: PeerId
    control: str
    bulk: str


@record
class Disconnect:
    peer: PeerId


NO_ROWS = "no peer sent an update that can be used"


@record
class Row:
    """One update as input of a rule."""

    peer: PeerId
    payload: Payload
    samples: int
    # factor from ``pull_of``: the input of the rule is own + pull * (payload - own)
    pull: float = 1.0


@record
class ShardStatistics:
    """Measurements of one shard of the updates of ``peers``, which are in ascending order."""

    peers: tuple[PeerId, ...]
    statistics: bytes


@record
class Aggregate:
    """Run the rule on ``rows``, which are sorted by peer. The reply is ``Aggregated`` with the same
    ``ticket``.

    Without rows, the reply has no payload and the reason ``NO_ROWS``.

    ``own`` is the index of the local row, which is the centre of self-centred rules; None without a
    local row. With ``mix`` the rows are parameters, and the rule aggregates their differences from
    the local row. ``previous`` is the last aggregate of the same shard, for rules with a memory. It
    is None with ``mix``, and before the first applied aggregate.

    With cross-shard decisions the rule runs in steps. ``measure``: measure the rows. ``decide``:
    compute the weights of ``peers`` from ``parts``, the statistics of all shards in order, and
    combine the rows. ``combine``: combine the rows by ``decision``, which contains the weights of
    all rows, followed by the weights of the rule's additional points.

    ``outside`` are rows of peers in quarantine, which do not enter the aggregate. The steps
    ``whole`` and ``decide`` return the outlyingness of these rows. If the rule runs in steps,
    ``rows`` also contains these rows.

    ``own_share`` (0 to 1) is the weight of the local row in the result; the rest is the weight of
    the rule's aggregate. ``own_share`` is used only in the step ``whole``.
    """

    ticket: int
    round_id: int
    shard: int
    rows: tuple[Row, ...]
    f: int
    own: int | None = None
    mix: bool = False
    previous: Payload | None = None
    step: Literal["whole", "measure", "decide", "combine"] = "whole"
    parts: tuple[ShardStatistics, ...] = ()
    peers: tuple[PeerId, ...] = ()
    decision: tuple[float, ...] = ()
    outside: tuple[Row, ...] = ()
    own_share: float = 0.0
    usual: float = 0.0  # largest ``Aggregated.length`` of recent rounds; 0.0 if unknown


@record
class DataSlice:
    """Samples of a round, as ordered ``start``/``stop`` pairs of positions in the sequence of all
    epochs (``DataCursor``)."""

    epoch: int  # epoch of the round; the round may also read samples left over from earlier epochs
    ranges: tuple[tuple[int, int], ...]
    # predicted epoch and ranges of each of the next rounds, for prefetching
    coming: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()
    # report on the last completed epoch; None if commits do not record the used samples
    last: EpochReport | None = None


@record
class Apply:
    """Pass the aggregate of a round to the trainer, one payload for each shard. Without payloads
    the round changes nothing.

    ``mix`` (gossip rounds) is a parameter difference that is added before the step, after
    multiplication by ``mix_scale``. ``rates`` are the common learning rates of all peers. In gossip
    rounds they are empty, and each peer uses its own learning rates. ``collected`` contains the
    values of a collective operation. ``is_step`` is False if the round made no step of the run. A
    further step (``is_further``) is no step of the run. ``collectives``: number of earlier rounds
    that made no step of the run.
    """

    round_id: int
    payloads: tuple[Payload, ...]
    mix: Payload | None = None
    mix_scale: float = 0.0
    rates: tuple[float, ...] = ()
    collected: tuple[Collected, ...] = ()
    is_step: bool = True
    contributors: tuple[tuple[PeerId, ...], ...] = ()  # contributors to each payload
    collectives: int = 0
    # if the local replica differed before the round: the replica digests of most peers
    replica: bytes = b""
    kind: int = 0  # kind of the step


@record
class StartRound:
    """Start the computation of round ``round_id`` in the trainer. ``main``: the peer for work that
    exactly one peer must do; it is the same on all peers. ``roster``: members of the round,
    ascending. ``left``: peers that have announced their end to the rounds. The membership may not
    have recorded their end yet."""

    round_id: int
    samples: DataSlice | None
    want_parameters: bool = False  # whether the round mixes parameters (gossip rounds)
    main: PeerId = 0
    collectives: int = 0  # Number of earlier rounds that made no step.
    # Time after which the trainer starts no further local step, in microseconds; 0 means no limit.
    deadline_us: int = 0
    # start of the round at this peer; it is in the past if the trainer was busy then
    began_at: float = 0.0
    compares: bool = False  # whether the update must contain digests of the replica
    roster: tuple[PeerId, ...] = ()
    left: tuple[PeerId, ...] = ()


@record
class RunForward:
    """Compute the forward pass of one micro-batch, and store the inputs of its backward pass. The
    random states follow from ``round_id`` and ``micro_batch``, so they are equal on all peers. The
    reply is ``ForwardDone``. ``payload``: input of the stage; None in the first stage, which reads
    the micro-batch itself.

    ``audit``: recompute a micro-batch of another member. The data of this pass is stored
    separately, until the next audit.
    """

    round_id: int
    micro_batch: int
    attempt: int
    payload: Payload | None
    audit: bool = False


@record
class RunBackward:
    """Compute the backward pass of one micro-batch, add the parameter gradients to the sum, and
    drop the data that the forward pass has stored. The reply is ``BackwardDone``. ``payload``:
    gradient of the stage's output; None in the last stage, which begins with the loss.

    ``audit``: use the data that the forward pass with ``audit`` has stored, and compute only the
    gradient of the input. The sum is unchanged.
    """

    round_id: int
    micro_batch: int
    attempt: int
    payload: Payload | None
    audit: bool = False


@record
class DropForward:
    """Drop the data that the forward pass of a micro-batch has stored."""

    round_id: int
    micro_batch: int


@record
class ResetSum:
    """Reset the gradient sum of this round to zero and drop the data of all forward passes, because
    some of the micro-batches in the sum have been assigned to other peers."""

    round_id: int


@record
class CollectUpdate:
    """Request the mean gradient over the samples of these micro-batches. The sum contains all of
    them, and is not reset. The reply is ``Contributed``, which replaces an earlier ``Contributed``
    of the same round."""

    round_id: int
    micro_batches: tuple[int, ...]  # ascending


PipelineTask: TypeAlias = RunForward | RunBackward | DropForward | ResetSum | CollectUpdate
"""Commands that only the trainer of a pipeline receives."""


@record
class TakeSnapshot:
    """Request the packed state of the trainer, after it has applied all rounds that it has
    received."""


@record
class Restore:
    """Pass a packed state before round ``round_id`` to the trainer.

    If ``settings`` is False, the trainer keeps its learning rates and other values that its script
    has set, because too few peers attest the settings of the donor.
    """

    round_id: int
    payload: Payload
    settings: bool = True
    collectives: int = 0  # Number of earlier rounds that made no step.


@record
class RebuildState:
    """Rebuild the lost state of this pipeline stage. The other stages are in round ``round_id``, so
    the state before this round is needed. The reply is ``StateRebuilt``.

    ``beside``: received states of other stages, as (stage, state). ``is_last``: no further state
    can be requested.
    """

    round_id: int
    beside: tuple[tuple[int, Payload], ...] = ()
    is_last: bool = False


@record
class StateConfirmed:
    """The reply to ``ConfirmState``. If the trainer had a different state, a ``Restore`` precedes
    this reply.

    ``agreed``: enough other peers have the same state before ``round_id``. If False, the local
    state may be wrong, but no better state is available.
    """

    round_id: int
    agreed: bool


@record
class LedgerReply:
    """The reply to ``LedgerRequest``. ``ledger`` is the replicated state before ``round_id``
    without the state of the trainer. It is empty if this peer has no ledger for a checkpoint at
    present."""

    round_id: int
    ledger: bytes


@record
class Report:
    """Write an event to ``events.jsonl`` for users and reports."""

    event: str
    fields: dict[str, Any] = field(default_factory=dict)


@record
class Committed:
    """Write an applied commit to ``commits.jsonl``. ``made``: this peer has made the commit."""

    commit: Any  # messages.Commit
    chain: bytes
    made: bool
    trust: dict[PeerId, float] = field(default_factory=dict)  # Trust after this commit.
    # Planned samples of each peer, as in ``DataSlice.ranges``; None if the data is not sharded.
    slices: dict[PeerId, list[tuple[int, int]]] | None = None
    epoch: int = 0  # Epoch of the round.
    samples_total: int = 0  # Samples of an epoch; 0 if the data is not sharded.
    steps_per_epoch: int = 0  # Planned steps of an epoch; 0 if the data is not sharded.


@record
class Halt:
    """End this peer with ``exit_code`` (docs/exit_codes.md)."""

    reason: str
    exit_code: int = 0


Effect: TypeAlias = (
    Send
    | AfterSends
    | SetTimer
    | CancelTimer
    | Connect
    | Disconnect
    | Aggregate
    | Apply
    | StartRound
    | TakeSnapshot
    | Restore
    | RebuildState
    | StateConfirmed
    | LedgerReply
    | Report
    | Committed
    | Halt
    | PipelineTask
)
