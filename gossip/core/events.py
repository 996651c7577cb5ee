"""Events, which the driver delivers to the core, and effects, which the core returns to the driver.
Both are frozen data. Each ``match`` over one of the unions ends in ``assert_never``."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, TypeAlias

from .frozen import record
from .messages import Collected, Message, PeerId


@dataclass(frozen=True, slots=True)
class EpochReport:
    """Numbers of samples that the rounds of a completed epoch used and left unused."""

    epoch: int
    once: int
    twice: int
    left: int  # unused samples of this and earlier epochs, which the next epoch reads first
    rounds: int
    skipped: int = 0  # Samples for which a script made no step.
    # Samples that two rounds left unused, or that remained at the end of the data.
    given_up: int = 0
    # the first of the given up samples, as ``start``/``stop`` pairs
    given_up_ranges: tuple[tuple[int, int], ...] = field(default=(), kw_only=True)


Token: TypeAlias = int
"""Name of one timer, unique within a core (docs/design_notes.md N7)."""


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """A vector. The core never reads its ``data``. The driver sets all other fields.

    In the node ``data`` is a one-dimensional float32 array (packed state: uint8), or a tuple of
    consecutive arrays for a state to restore. A simulation may use any object.
    """

    data: Any
    nbytes: int
    finite: bool = True
    digest: bytes = b""  # Digest of the bytes; only for commits and states.
    # Digests of the parts of a packed state; if set, ``digest`` is the digest of ``parts``.
    parts: tuple[bytes, ...] = ()
    # bytes to send in place of ``data``; if set, ``nbytes`` and ``digest`` describe them
    encoded: Any = None


# --- events ---------------------------------------------------------------------------------------


@record
class Started:
    """The sockets are bound and the clock runs."""


@record
class ResultSimilarity:
    """Comparison of a server's result with the local update of the round: the lengths of both
    (Euclidean) and their inner product.

    If there is no local update, ``own`` is 0.0. ``even`` is the length that the local update would
    have in this shard if its values had the same typical size in all shards. It is 0.0 with one
    shard, and if the inner product is not negative.
    """

    length: float
    own: float = 0.0
    product: float = 0.0
    even: float = 0.0

    @property
    def cosine(self) -> float:
        """Cosine of the angle between both; 0.0 if it is undefined or not finite."""
        size = self.length * self.own
        cosine = self.product / size if 0.0 < size < inf else 0.0
        return cosine if cosine == cosine else 0.0  # NaN differs from itself


@record
class Received:
    """A complete, well-formed message of ``sender`` with its payload.

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

    The driver reports it periodically, and delivers ``Received`` once the payload is complete.
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
    ``result_bytes``: encoded length of each shard of a result or of parameters, if it differs."""

    layout: bytes
    state: bytes
    shard_bytes: tuple[int, ...]
    state_bytes: int = 0  # Length of the packed state, which limits what a donor may send.
    # The next round. It is above 0 if the node was restarted while its trainer ran, or if the
    # trainer has loaded a checkpoint.
    round_id: int = 0
    # ledger of the loaded checkpoint, from ``LedgerReply``
    ledger: bytes = b""
    collectives: int = 0  # number of rounds before ``round_id`` that made no step
    result_bytes: tuple[int, ...] = ()
    # in a pipeline: bytes of the input and of the output of this stage for one micro-batch; 0 if
    # none
    activation_bytes: tuple[int, int] = (0, 0)
    # secret random bytes, which select the micro-batches that this peer audits
    lots: bytes = b""


@record
class DataConfigured:
    """The trainer reads a sharded data set of ``samples_total`` samples an epoch, with ``batch``
    samples for each peer and round.

    The trainer prefetches for ``ahead`` rounds. If ``extended`` is above 0, the samples left over
    after this number of epochs are read in further rounds of the last epoch.
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
    # honest update of a peer that injects a fault, all shards; None for an honest peer
    own: Payload | None = None
    own_parameters: Payload | None = None  # Honest parameters of a peer that injects a fault.
    rates: tuple[float, ...] = ()  # Learning rates of the trainer's next step.
    # The trainer has compiled in this round, so the duration of the round is no measure of its
    # pace.
    compiled: bool = False
    # value for a collective operation, at most ``COLLECTED_BYTES_MAX``; there are no samples then
    collective: bytes = b""
    skipped: bool = False  # The script received the samples and made no step.
    steps: tuple[int, int] = (1, 1)  # Number of local steps made, and number planned for a round.
    # Duration of these steps in microseconds if this peer began the round late; otherwise 0.
    lasted_us: int = 0
    micro_batches: tuple[int, ...] = ()  # In a pipeline: those of the ``CollectUpdate``.
    pass_us: int = 0  # Forward and backward time of a micro-batch; set by the pipeline.
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
    # After step ``decide``: weights of the rows that count, followed by those of the rule's points.
    decision: tuple[float, ...] = ()
    # outlyingness of the rows in ``outside``, as if they were among the rule's rows; empty if
    # unknown
    outside: tuple[float, ...] = ()
    length: float = 0.0  # typical length of an update in this round; 0.0 if unknown


@record
class SendsDone:
    """The reply to ``AfterSends``. Its ``now`` is that of the preceding event, and the driver
    delivers no other event in between."""


@record
class SnapshotTaken:
    """The reply to ``TakeSnapshot``: the state before round ``round_id``. ``parts``: lengths of the
    parts (``StateOffer``)."""

    round_id: int
    payload: Payload
    parts: tuple[int, ...] = ()


@record
class Restored:
    """The trainer has loaded the state of ``Restore``. If it failed, ``error`` has the reason."""

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
    """The trainer has applied all its rounds, the last of which is before ``round_id``. It requests
    a comparison of its state with those of the other peers."""

    round_id: int


@record
class LedgerRequest:
    """The trainer saves a checkpoint and needs the ledger for it."""


@record
class ForwardDone:
    """The reply to ``RunForward``. ``payload``: output of the stage with its digest. It is None in
    the last stage, and if the trainer could not compute the micro-batch."""

    round_id: int
    micro_batch: int
    attempt: int
    payload: Payload | None
    audit: bool = False  # ``audit`` of the ``RunForward``
    took_us: int = 0


@record
class BackwardDone:
    """The reply to ``RunBackward``: the parameter gradients are in the sum. ``payload``: gradient
    of the stage's input with its digest. It is None in the first stage. It is also None if the
    trainer could not compute the micro-batch; the sum is empty then."""

    round_id: int
    micro_batch: int
    attempt: int
    payload: Payload | None
    samples: int
    loss: float | None = None  # Set by the last stage.
    audit: bool = False  # ``audit`` of the ``RunBackward``; the sum is unchanged then.
    took_us: int = 0


StateSource: TypeAlias = Literal["", "checkpoint", "neighbours", "fresh", "own"]
"""Origin of a stage's state. "" if no state was made, "own" if the trainer still had the state."""


@record
class StateRebuilt:
    """The reply to ``RebuildState``: the trainer holds a state before round ``round_id``.

    ``source``: origin of the state. If states of other stages are required first, ``needs`` lists
    each of these stages with the largest length of its state in bytes. ``step``: step of the
    checkpoint or of the own state. ``state``: digest of the state. ``fresh``: number of layers with
    initial weights.
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

    ``completed``: the script has finished. This is the end of the training, and this peer stores
    the final state for other peers.
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

    ``nbytes``: required length of the payload, or for a state its largest length; -1 if no payload
    is admitted. ``compare_with``: shards of the local update that a result is compared with
    (``Received.similarity``), beginning with the shard of the result. None means no comparison.
    """

    nbytes: int
    compare_with: tuple[Payload, ...] | None = None


NOT_ADMITTED = Admission(-1)


# --- effects --------------------------------------------------------------------------------------


@record
class Send:
    """Send a message to a peer. The message may be lost. Its type determines the connection."""

    peer: PeerId
    message: Message
    payload: Payload | None = None


@record
class AfterSends:
    """Deliver ``SendsDone`` as the next event, after all effects of this event.

    So messages that other peers wait for are sent before the core continues its own work.
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
    pull: float = 1.0  # from ``pull_of``: the rule receives own + pull * (payload - own)


@record
class ShardStatistics:
    """Measurements of one shard of the updates of ``peers``, which ascend."""

    peers: tuple[PeerId, ...]
    statistics: bytes


@record
class Aggregate:
    """Run the rule on ``rows``, which are sorted by peer. The reply is ``Aggregated`` with
    ``ticket``.

    Without rows, the reply has no payload and the reason ``NO_ROWS``.

    ``own`` is the index of the local row, which is the centre of self-centred rules; it may be
    None. With ``mix`` the rows are parameters, and the rule aggregates their differences from the
    local row. ``previous`` is the last aggregate of the same shard, for rules with a memory. It is
    None for parameters, and before the first applied aggregate.

    With cross-shard decisions the rule runs in steps. ``measure``: measure the rows. ``decide``:
    compute the weights of ``peers`` from the ``parts`` of all shards, which are in order, and
    combine the rows. ``combine``: combine the rows by a ``decision``, which has the weights of all
    rows followed by those of the rule's points.

    ``outside`` are rows of peers in quarantine, which do not enter the aggregate. The steps
    ``whole`` and ``decide`` return their outlyingness. If the rule runs in steps, ``rows`` contains
    them as well.

    ``own_share`` (0 to 1) is the weight of the local row in the result; the rest is the weight of
    the rule's aggregate. Only with ``whole``.
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
    """Samples of a round, as ``start``/``stop`` pairs in order. They index the samples of all
    epochs (``DataCursor``)."""

    epoch: int  # epoch of the round, which may also read samples left over from earlier epochs
    ranges: tuple[tuple[int, int], ...]
    # predicted epoch and ranges of later rounds, for prefetching
    coming: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()
    # report of the last completed epoch; only if commits record the used samples
    last: EpochReport | None = None


@record
class Apply:
    """Pass the aggregate of a round to the trainer, one payload for each shard. Without payloads
    the round changes nothing.

    ``mix`` is a parameter difference to add before the step (gossip rounds), and ``mix_scale`` its
    factor. ``rates`` are the learning rates of all peers. They are empty in gossip rounds, where
    each peer uses its own. ``collected`` has the values of collective operations. ``is_step`` is
    False if the round made no step of the run, which includes a further round by its ``kind``
    (``is_further``). ``collectives``: number of earlier rounds that made no step.
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
    # digests of most peers' replicas before the round, if the local one differed
    replica: bytes = b""
    kind: int = 0  # kind of the step


@record
class StartRound:
    """Start the computation of round ``round_id`` in the trainer. ``main``: peer for work that
    exactly one peer must do, equal on all peers. ``roster``: members of the round, ascending.
    ``left``: peers that have announced their end to the rounds, which the membership may not have
    recorded yet."""

    round_id: int
    samples: DataSlice | None
    want_parameters: bool = False  # the round mixes parameters (gossip rounds)
    main: PeerId = 0
    collectives: int = 0  # Number of earlier rounds that made no step.
    # Time after which the trainer starts no further local step, in microseconds; 0 means no limit.
    deadline_us: int = 0
    # start of the round at this peer, which is before now if the trainer was busy
    began_at: float = 0.0
    compares: bool = False  # the update needs digests of the replica
    roster: tuple[PeerId, ...] = ()
    left: tuple[PeerId, ...] = ()


@record
class RunForward:
    """Compute the forward pass of one micro-batch, and store the inputs of its backward pass. The
    random states follow from ``round_id`` and ``micro_batch``, so they are equal on all peers. The
    reply is ``ForwardDone``. ``payload``: input of the stage; None in the first stage, which reads
    the micro-batch itself.

    ``audit``: recompute a micro-batch of another member. Its stored data is separate, and is kept
    until the next audit.
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

    ``audit``: use the data that the forward pass with ``audit`` has stored. Compute only the
    gradient of the input; the sum is unchanged.
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
    """Reset the sum of this round to zero and drop the data of all forward passes, because other
    peers compute some of its micro-batches."""

    round_id: int


@record
class CollectUpdate:
    """Request the mean over the samples of these micro-batches, which are all in the sum. The sum
    is kept. The reply is ``Contributed``, which replaces an earlier one of the same round."""

    round_id: int
    micro_batches: tuple[int, ...]  # ascending


PipelineTask: TypeAlias = RunForward | RunBackward | DropForward | ResetSum | CollectUpdate
"""Commands for the trainer of a pipeline, in addition to those for every trainer."""


@record
class TakeSnapshot:
    """Request the packed state of the trainer after all rounds that it has received."""


@record
class Restore:
    """Pass a packed state before round ``round_id`` to the trainer.

    Without ``settings``, the trainer keeps its own learning rates and other values set by its
    script. This is the case if too few peers attest the settings of the donor.
    """

    round_id: int
    payload: Payload
    settings: bool = True


@record
class RebuildState:
    """Rebuild the lost state of this pipeline stage for round ``round_id``, which the other stages
    are in. The reply is ``StateRebuilt``.

    ``beside``: requested states of other stages that have arrived, by number of the stage.
    ``is_last``: no further state can be requested.
    """

    round_id: int
    beside: tuple[tuple[int, Payload], ...] = ()
    is_last: bool = False


@record
class StateConfirmed:
    """The reply to ``ConfirmState``. It follows a ``Restore`` if the trainer held another state.

    ``agreed``: enough other peers hold the same state before ``round_id``. If False, no better
    state is available.
    """

    round_id: int
    agreed: bool


@record
class LedgerReply:
    """The reply to ``LedgerRequest``: the part of the state before ``round_id`` that does not
    belong to the trainer and is equal on all peers. ``ledger`` is empty if this peer has none at
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
    """Write an applied commit to ``commits.jsonl``. ``made``: this peer built the commit."""

    commit: Any  # messages.Commit
    chain: bytes
    made: bool
    trust: dict[PeerId, float] = field(default_factory=dict)  # After this commit.
    # Planned samples of each peer, as in ``DataSlice``; None if the data is not sharded.
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
