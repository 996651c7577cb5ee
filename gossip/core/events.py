"""Events, which the driver delivers to the core, and effects, which the core returns to it. Both
are frozen data; each ``match`` over one of the unions ends in ``assert_never``."""

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
    left: int  # of this epoch and those before: they are the first that the next one reads
    rounds: int
    skipped: int = 0  # samples for which a script made no step
    given_up: int = 0  # samples without use in two rounds, or left over at the end of the data
    # the first of these, as ``start``/``stop`` pairs
    given_up_ranges: tuple[tuple[int, int], ...] = field(default=(), kw_only=True)


Token: TypeAlias = int
"""Names one timer. Unique within a core (docs/design_notes.md N7)."""


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """A vector that the core passes on unread. The driver sets its other fields.

    In the node ``data`` is a one-dimensional float32 array (packed state: uint8), or a tuple of
    consecutive arrays for a state to restore. A simulation may use any object.
    """

    data: Any
    nbytes: int
    finite: bool = True
    digest: bytes = b""  # of the bytes; only for commits and states
    # digests of the parts of a packed state; then ``digest`` is of these
    parts: tuple[bytes, ...] = ()
    # bytes that are sent, if not the memory of ``data``; then ``nbytes`` and ``digest`` are theirs
    encoded: Any = None


# --- events ---------------------------------------------------------------------------------------


@record
class Started:
    """The sockets are bound and the clock runs."""


@record
class ResultSimilarity:
    """Comparison of a server's result with the local update of the round: Euclidean lengths and the
    inner product.

    ``own`` is 0.0 without a local update. ``even`` is the length of the result if the numbers in
    all parts of the local update had the same size; 0.0 with one part, and if the product is not
    negative.
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

    ``similarity`` comes with results if their ``Admission`` requests a comparison.
    """

    sender: PeerId
    incarnation: int
    message: Message
    payload: Payload | None = None
    similarity: ResultSimilarity | None = None


@record
class Arriving:
    """Progress of a payload that is being received: ``received`` of ``nbytes`` bytes.

    The driver reports it from time to time, and delivers ``Received`` once the payload is complete.
    """

    sender: PeerId
    incarnation: int
    message: Message
    received: int
    nbytes: int


@record
class LinkUp:
    """A connection to the peer is established. It is not a sign that the peer is healthy."""

    peer: PeerId


@record
class LinkDown:
    """A connection to the peer closed or timed out. It is not proof that the peer is dead."""

    peer: PeerId
    reason: str


@record
class TimerFired:
    token: Token


@record
class ClockJumped:
    """The loop of the driver was blocked for ``late_s`` seconds. No peer may be suspected for its
    silence in that time."""

    late_s: float


@record
class Prepared:
    """The trainer has its model. ``shard_bytes``: length of each shard of an update in a message;
    ``result_bytes``: that of a result, or of parameters, if it differs."""

    layout: bytes
    state: bytes
    shard_bytes: tuple[int, ...]
    state_bytes: int = 0  # length of the packed state; a donor may send no more
    # the next round; not 0 if the node was restarted while its trainer runs, or if the trainer has
    # loaded a checkpoint
    round_id: int = 0
    # ledger of the checkpoint, from ``LedgerReply``
    ledger: bytes = b""
    collectives: int = 0  # rounds before ``round_id`` that were not steps
    result_bytes: tuple[int, ...] = ()
    # in a pipeline: lengths of the input and output of this stage for a micro-batch; 0 for none
    activation_bytes: tuple[int, int] = (0, 0)
    # secret random bytes, which select the micro-batches that this peer audits
    lots: bytes = b""


@record
class DataConfigured:
    """The trainer reads a sharded data set: ``samples_total`` samples an epoch, ``batch`` for each
    peer and round.

    The trainer prefetches for ``ahead`` rounds. With ``extended`` > 0, samples left over after so
    many epochs are read in further rounds of the last one.
    """

    samples_total: int
    batch: int
    ahead: int = 0
    extended: int = 0


@record
class Contributed:
    """The trainer's update for ``round_id``: one payload for each shard, or none without samples.

    ``parameters`` and ``sketch`` come in gossip rounds that mix parameters.
    """

    round_id: int
    samples: int
    payloads: tuple[Payload, ...]
    loss: float | None = None
    parameters: Payload | None = None
    sketch: bytes = b""
    # true update of a peer that injects a fault, all shards; None for an honest peer
    own: Payload | None = None
    own_parameters: Payload | None = None  # of such a peer
    rates: tuple[float, ...] = ()  # learning rates of the trainer's next step
    # the trainer has compiled in this round, so the time of the round does not count as its pace
    compiled: bool = False
    # value of a collective operation, at most ``COLLECTED_BYTES_MAX``; then there are no samples
    collective: bytes = b""
    skipped: bool = False  # The script got the samples and made no step.
    steps: tuple[int, int] = (1, 1)  # local steps made, and local steps of a round
    # duration of these steps, if this peer began the round late; 0 means since the round began
    lasted_us: int = 0
    micro_batches: tuple[int, ...] = ()  # in a pipeline, from ``CollectUpdate``
    pass_us: int = 0  # forward and backward time of a micro-batch; set by the pipeline
    replica: bytes = b""  # digests of the replica before the round, if replicas are compared
    kind: int = 0  # of the step (``messages.is_further``)


@record
class Applied:
    """The trainer has applied round ``round_id``."""

    round_id: int


@record
class Aggregated:
    """The answer to ``Aggregate``. Without a ``payload``, ``reason`` states why the rule has no
    result."""

    ticket: int
    payload: Payload | None
    weights: tuple[float, ...] = ()
    outlyingness: tuple[float, ...] = ()
    reason: str = ""
    statistics: bytes = b""  # the answer to ``measure``
    # beside the answer to ``decide``: weights of the rows that count, then of the rule's points
    decision: tuple[float, ...] = ()
    # outlyingness of the rows outside, as if the rule had also received them; empty if unknown
    outside: tuple[float, ...] = ()
    length: float = 0.0  # typical length of an update in this round; 0.0 if unknown


@record
class SendsDone:
    """The answer to ``AfterSends``. The driver delivers it with the ``now`` of the event before. No
    other event comes between them."""


@record
class SnapshotTaken:
    """The answer to ``TakeSnapshot``: the state before round ``round_id``. ``parts``: their lengths
    (``StateOffer``)."""

    round_id: int
    payload: Payload
    parts: tuple[int, ...] = ()


@record
class Restored:
    """The trainer has loaded the state of ``Restore``, or not: ``error`` has the reason."""

    round_id: int
    error: str = ""


@record
class TrainerLost:
    """The process of the trainer has ended. This peer announces it and halts."""

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
    """The launcher reports that ``peer`` is being started; its address is not known yet."""

    peer: PeerId


@record
class AddressLearned:
    """A source outside the protocol, such as a folder, has the addresses of an incarnation of a
    peer."""

    peer: PeerId
    control: str
    bulk: str
    incarnation: int


@record
class ConfirmState:
    """The trainer has applied all its rounds, which are those before ``round_id``. It requests a
    comparison of its state with those of other peers."""

    round_id: int


@record
class LedgerRequest:
    """The trainer saves a checkpoint, and requests the ledger for it."""


@record
class ForwardDone:
    """The answer to ``RunForward``. ``payload``: output of the stage with its digest; None in the
    last stage, and if the trainer could not compute it."""

    round_id: int
    micro_batch: int
    attempt: int
    payload: Payload | None
    audit: bool = False  # as of ``RunForward``
    took_us: int = 0


@record
class BackwardDone:
    """The answer to ``RunBackward``: the gradients of the parameters are in the sum. ``payload``:
    gradient of the input of the stage with its digest; None in the first stage, and if the trainer
    could not compute it. Then the sum is empty."""

    round_id: int
    micro_batch: int
    attempt: int
    payload: Payload | None
    samples: int
    loss: float | None = None  # of the last stage
    audit: bool = False  # as of ``RunBackward``: then nothing is in the sum
    took_us: int = 0


StateSource: TypeAlias = Literal["", "checkpoint", "neighbours", "fresh", "own"]
"""Origin of the state of a stage. "" if the state is not made; "own": the trainer still had it."""


@record
class StateRebuilt:
    """The answer to ``RebuildState``: the trainer holds a state before round ``round_id``.

    ``source``: origin of the state. If the states of other stages are needed first, ``needs`` has
    their numbers and the largest length of each in bytes. ``step``: step of the checkpoint or of
    the own state. ``state``: a digest. ``fresh``: number of layers with initial weights.
    """

    round_id: int
    source: StateSource
    step: int = 0
    state: bytes = b""
    fresh: int = 0
    needs: tuple[tuple[int, int], ...] = ()


@record
class Stop:
    """Leave: announce it, help peers that are behind, halt.

    ``completed``: the script has finished. The training ends here, and this peer has the
    final state for others.
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
    """Whether the payload of a message may be received, and the work of the node before it
    delivers the message.

    ``nbytes``: length that the payload must have, or for a state its largest length; -1 if no
    payload may come. ``compare_with``: local update that a result is compared with
    (``Received.similarity``), first the shard of the result and then the others; None means no
    comparison.
    """

    nbytes: int
    compare_with: tuple[Payload, ...] | None = None


NOT_ADMITTED = Admission(-1)


# --- effects --------------------------------------------------------------------------------------


@record
class Send:
    """Send a message to a peer; it may be lost. Its type determines the lane."""

    peer: PeerId
    message: Message
    payload: Payload | None = None


@record
class AfterSends:
    """Deliver ``SendsDone`` as the next event, once all effects of this event are carried out.

    Messages that others wait for leave before the core continues its own work.
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
    """Open (or re-open, at another address) the lanes to a peer."""

    peer: PeerId
    control: str
    bulk: str


@record
class Disconnect:
    peer: PeerId


NO_ROWS = "no peer sent an update that can be used"


@record
class Row:
    """One update for a rule."""

    peer: PeerId
    payload: Payload
    samples: int
    pull: float = 1.0  # ``pull_of``: the rule gets own + pull * (payload - own)


@record
class ShardStatistics:
    """Measurements of one shard of the updates of ``peers``, which ascend."""

    peers: tuple[PeerId, ...]
    statistics: bytes


@record
class Aggregate:
    """Run the rule over ``rows``, which are sorted by peer. Answer: ``Aggregated`` with ``ticket``.

    Without rows the answer has no payload, and ``NO_ROWS`` as its reason.

    ``own`` is the index of the local row, the centre of self-centred rules, or None. With ``mix``
    the rows are parameters: aggregate their differences to the local row. ``previous`` is the last
    aggregate of the same shard, for rules with a memory; None for parameters, and until this peer
    has applied one.

    If the shards of a round decide together, the rule runs in steps: ``measure`` the rows;
    ``decide`` the weights of ``peers`` from the ``parts`` of all shards, which are in order, and
    combine the rows; ``combine`` the rows by a ``decision``: the weights of all rows, followed by
    those of the rule's points.

    ``outside`` are rows of peers in quarantine, which do not enter the aggregate. Steps ``whole``
    and ``decide`` return their outlyingness. In steps, ``rows`` also has them.

    ``own_share`` (0 to 1) is the weight of the local row in the answer; the rest is the rule's
    aggregate. Only with ``whole``.
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
    usual: float = 0.0  # the longest ``Aggregated.length`` of recent rounds; 0.0 if not known


@record
class DataSlice:
    """Samples of a round: ``start``/``stop`` pairs in order, among the samples of all epochs
    (``DataCursor``)."""

    epoch: int  # of the round; it may read samples left over from earlier epochs
    ranges: tuple[tuple[int, int], ...]
    # epoch and ranges of later rounds: a guess, for prefetching
    coming: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()
    # report of the last completed epoch, if commits have the used samples
    last: EpochReport | None = None


@record
class Apply:
    """Hand the aggregate of a round to the trainer, one payload for each shard. Without payloads
    the round changes nothing.

    ``mix`` is a parameter difference to add before the step (gossip rounds), ``mix_scale`` its
    factor. ``rates`` are the learning rates of all peers; empty in gossip rounds, where each peer
    uses its own. ``collected`` has the values of collective operations. ``is_step`` is False if the
    round made no step of the run, also if it is a further round by its ``kind`` (``is_further``).
    ``collectives``: number of earlier rounds that were not steps.
    """

    round_id: int
    payloads: tuple[Payload, ...]
    mix: Payload | None = None
    mix_scale: float = 0.0
    rates: tuple[float, ...] = ()
    collected: tuple[Collected, ...] = ()
    is_step: bool = True
    contributors: tuple[tuple[PeerId, ...], ...] = ()  # to each payload
    collectives: int = 0
    replica: bytes = b""  # digests of most replicas before the round, if the local one differed
    kind: int = 0  # of the step


@record
class StartRound:
    """Let the trainer compute round ``round_id``. ``main``: the peer for work that only one peer
    may do, the same on all peers. ``roster``: the members of the round, ascending. ``left``: peers
    that have announced their end to the rounds, maybe before the membership records it."""

    round_id: int
    samples: DataSlice | None
    want_parameters: bool = False  # a gossip round that mixes
    main: PeerId = 0
    collectives: int = 0  # number of earlier rounds that were no steps
    # time after which the trainer starts no further local step, in microseconds; 0 means none
    deadline_us: int = 0
    # start of the round at this peer: earlier than now if the trainer was busy
    began_at: float = 0.0
    compares: bool = False  # the update needs digests of the replica
    roster: tuple[PeerId, ...] = ()
    left: tuple[PeerId, ...] = ()


@record
class RunForward:
    """Compute one micro-batch forward, and store the inputs of its backward pass. ``payload``:
    input of the stage; None in the first stage, which reads the micro-batch. Random states follow
    from ``round_id`` and ``micro_batch``, so that they are equal on all peers. Answer:
    ``ForwardDone``.

    ``audit``: recompute a micro-batch of another member. Its stored part is separate, and stays
    until the next audit.
    """

    round_id: int
    micro_batch: int
    attempt: int
    payload: Payload | None
    audit: bool = False


@record
class RunBackward:
    """Compute one micro-batch backward, add the gradients of the parameters to the sum, and drop
    the data that its forward pass has stored. ``payload``: gradient of the output of the stage;
    None in the last stage, which begins with the loss. Answer: ``BackwardDone``.

    ``audit``: use the data that the forward pass with ``audit`` has stored. Only the gradient of
    the input is computed; the sum stays.
    """

    round_id: int
    micro_batch: int
    attempt: int
    payload: Payload | None
    audit: bool = False


@record
class DropForward:
    """Drop everything that the forward pass of a micro-batch has stored."""

    round_id: int
    micro_batch: int


@record
class ResetSum:
    """Set the sum of this round to zero and drop the data of forward passes: other peers
    compute some of its micro-batches."""

    round_id: int


@record
class CollectUpdate:
    """Return the mean over the samples of these micro-batches, which are all in the sum, and keep
    the sum. Answer: ``Contributed``, which replaces an earlier one of the same round."""

    round_id: int
    micro_batches: tuple[int, ...]  # ascending


PipelineTask: TypeAlias = RunForward | RunBackward | DropForward | ResetSum | CollectUpdate
"""Commands for the trainer of a pipeline, in addition to those for every trainer."""


@record
class TakeSnapshot:
    """Request the packed state of the trainer, after all rounds that it has received so far."""


@record
class Restore:
    """Hand a packed state before round ``round_id`` to the trainer.

    Without ``settings`` the trainer keeps its own learning rates, and other values that its script
    sets, because too few peers attest those of the donor.
    """

    round_id: int
    payload: Payload
    settings: bool = True


@record
class RebuildState:
    """Rebuild the lost state of this stage of a pipeline, for round ``round_id`` of the other
    stages. Answer: ``StateRebuilt``.

    ``beside``: requested states of other stages that have arrived, by number of the stage.
    ``is_last``: no more can be requested.
    """

    round_id: int
    beside: tuple[tuple[int, Payload], ...] = ()
    is_last: bool = False


@record
class StateConfirmed:
    """The answer to ``ConfirmState``; it follows a ``Restore`` if the trainer held another state.

    ``agreed``: enough other peers hold the same state before ``round_id``. Otherwise there is no
        better state.
    """

    round_id: int
    agreed: bool


@record
class LedgerReply:
    """The answer to ``LedgerRequest``: the part of the state before ``round_id`` that is not the
    trainer's, the same on all peers. ``ledger`` is empty if this peer has none now."""

    round_id: int
    ledger: bytes


@record
class Report:
    """Write an event to ``events.jsonl``, for users and reports."""

    event: str
    fields: dict[str, Any] = field(default_factory=dict)


@record
class Committed:
    """Write an applied commit to ``commits.jsonl``. ``made``: this peer has made it."""

    commit: Any  # messages.Commit
    chain: bytes
    made: bool
    trust: dict[PeerId, float] = field(default_factory=dict)  # after this commit
    # planned samples of each peer, as in ``DataSlice``; None if the data is not sharded
    slices: dict[PeerId, list[tuple[int, int]]] | None = None
    epoch: int = 0  # of the round
    samples_total: int = 0  # in an epoch; 0: the data is not sharded
    steps_per_epoch: int = 0  # as planned; 0: the data is not sharded


@record
class Halt:
    """End this peer. ``exit_code``: docs/exit_codes.md."""

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
