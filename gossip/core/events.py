"""Events that reach the core, and effects that the core asks for. Frozen data; ``match`` over the
unions ends in ``assert_never``."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, TypeAlias

from .frozen import record
from .messages import Collected, Message, PeerId


@dataclass(frozen=True, slots=True)
class EpochReport:
    """How many samples the rounds of a completed epoch used, and how many are left over."""

    epoch: int
    once: int
    twice: int
    left: int  # of this epoch and those before: they are the first that the next one reads
    rounds: int
    skipped: int = 0  # by scripts, which went on without a step
    given_up: int = 0  # of no use in two rounds, or left over at the end of the data
    # the first of these: ``start``/``stop`` pairs that nothing will read
    given_up_ranges: tuple[tuple[int, int], ...] = field(default=(), kw_only=True)


Token: TypeAlias = int
"""Names one timer. Never used twice in the life of a core (docs/design_notes.md N7)."""


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """A vector that the core hands on and never looks into; the driver gives its facts.

    In the node ``data`` is a one-dimensional float32 array (packed state: uint8), in a simulation
    whatever its reducer likes. Of a state to restore it may be a tuple of such,
    one after the other.
    """

    data: Any
    nbytes: int
    finite: bool = True
    digest: bytes = b""  # of the bytes; computed for commits and states only
    # of a packed state in several parts: what stands for each, and ``digest`` is of these
    parts: tuple[bytes, ...] = ()
    # the bytes that travel, where they are not the memory of ``data``: ``nbytes``, ``digest`` are
    # of these
    encoded: Any = None


# --- events ---------------------------------------------------------------------------------------


@record
class Started:
    """The clock runs and the sockets are bound."""


@record
class ResultSimilarity:
    """How a server's result compares with this peer's own update of the round: Euclidean lengths
    and the inner product.

    ``own`` is 0.0 where there is no such update, or an empty one. ``even``: how long it would be if
    all parts of the own update had numbers of the same size; 0.0 where there is one part only, and
    where the product is not negative.
    """

    length: float
    own: float = 0.0
    product: float = 0.0
    even: float = 0.0

    @property
    def cosine(self) -> float:
        """Between the two; 0.0 where they have none, or one that is not finite."""
        size = self.length * self.own
        cosine = self.product / size if 0.0 < size < inf else 0.0
        return cosine if cosine == cosine else 0.0  # NaN differs from itself


@record
class Received:
    """A whole message of ``sender``, its payload complete. Malformed ones never come this far.

    ``similarity`` is there with results whose ``Admission`` asks for a comparison.
    """

    sender: PeerId
    incarnation: int
    message: Message
    payload: Payload | None = None
    similarity: ResultSimilarity | None = None


@record
class Arriving:
    """The payload of a message is on its way here: ``received`` of ``nbytes`` have come. Told while
    it grows, now and then.

    The message itself is handed over as ``Received``, when all of it is there.
    """

    sender: PeerId
    incarnation: int
    message: Message
    received: int
    nbytes: int


@record
class LinkUp:
    """A connection to the peer is established. Says nothing about the peer's health."""

    peer: PeerId


@record
class LinkDown:
    """A connection to the peer closed or timed out: a hint, never a proof."""

    peer: PeerId
    reason: str


@record
class TimerFired:
    token: Token


@record
class ClockJumped:
    """The driver's own loop stood still for ``late_s`` seconds:
    nobody may be accused for that time."""

    late_s: float


@record
class Prepared:
    """The trainer has its model. ``shard_bytes``: of an update on its way, shard by shard;
    ``result_bytes``: of a result, or of parameters, where that is another number."""

    layout: bytes
    state: bytes
    shard_bytes: tuple[int, ...]
    state_bytes: int = 0  # of the packed state: bounds what a donor may send
    # the next round to run on this state; not 0 when the node was started again beside
    # a living trainer, or when the trainer has loaded a checkpoint
    round_id: int = 0
    # what belonged to the state of the checkpoint beside the trainer's, as ``LedgerReply`` gave it
    ledger: bytes = b""
    collectives: int = 0  # of the rounds before ``round_id``, those that were no steps
    result_bytes: tuple[int, ...] = ()
    # of a pipeline: of the input and the output of this peer's stage for one micro-batch; 0 where
    # the stage has none
    activation_bytes: tuple[int, int] = (0, 0)
    # random bytes that nobody else knows: which micro-batches this peer audits follows from them
    lots: bytes = b""


@record
class DataConfigured:
    """The trainer reads its data through us: ``samples_total`` in an epoch,
    ``batch`` a round and peer.

    It wants to know what it will probably read in the next ``ahead`` rounds. ``extended``: of so
    many epochs what is left is read in further rounds of the last one; 0: it is not.
    """

    samples_total: int
    batch: int
    ahead: int = 0
    extended: int = 0


@record
class Contributed:
    """The trainer's update for ``round_id``: one payload a shard, or none when it had no samples.

    ``parameters`` is there in gossip rounds that mix parameters, ``sketch`` with it.
    """

    round_id: int
    samples: int
    payloads: tuple[Payload, ...]
    loss: float | None = None
    parameters: Payload | None = None
    sketch: bytes = b""
    # a liar's true update, of all shards, which it keeps for itself; None: it tells the truth
    own: Payload | None = None
    own_parameters: Payload | None = None  # likewise
    rates: tuple[float, ...] = ()  # what the trainer would step with
    # its trainer has compiled for batches of this size: it says of no round how long it took,
    # and so keeps its share
    compiled: bool = False
    # given to a collective operation, at most ``COLLECTED_BYTES_MAX``; then there are no samples
    collective: bytes = b""
    skipped: bool = False  # the script was handed the samples, and they were of no use
    steps: tuple[int, int] = (1, 1)  # local steps that were taken, and that a round has
    # how long those lasted, which is less than since the round began where the peer began it late;
    # 0: all of that time
    lasted_us: int = 0
    micro_batches: tuple[int, ...] = ()  # of a pipeline: as ``CollectUpdate`` has named them
    pass_us: int = 0  # what one of them took, forward and backward; the pipeline fills it in
    replica: bytes = b""  # digests of the replica before the round, where it is compared
    kind: int = 0  # of the step that it is for (``messages.is_further``)


@record
class Applied:
    """The trainer has applied round ``round_id``."""

    round_id: int


@record
class Aggregated:
    """The answer to ``Aggregate``. ``payload`` is None when the rule could not:
    ``reason`` says why."""

    ticket: int
    payload: Payload | None
    weights: tuple[float, ...] = ()
    outlyingness: tuple[float, ...] = ()
    reason: str = ""
    statistics: bytes = b""  # the answer to ``measure``
    # beside the answer to ``decide``: weights of the rows that count, then of the rule's points
    decision: tuple[float, ...] = ()
    # outlyingness of the rows outside, as if the rule had got all; empty where it could not tell
    outside: tuple[float, ...] = ()
    length: float = 0.0  # of an update, as the round has shown it; 0.0: the rule does not say


@record
class SendsDone:
    """The answer to ``AfterSends``. The driver delivers it with the ``now`` of the event before. No
    other event comes between."""


@record
class SnapshotTaken:
    """The answer to ``TakeSnapshot``: the state before round ``round_id``. ``parts``: their lengths
    (``StateOffer``)."""

    round_id: int
    payload: Payload
    parts: tuple[int, ...] = ()


@record
class Restored:
    """The trainer has loaded the state that ``Restore`` gave it;
    ``error`` says why it could not."""

    round_id: int
    error: str = ""


@record
class TrainerLost:
    """The trainer's process is gone. Announce it, then halt."""

    reason: str


@record
class TrainerProgress:
    """How far the trainer is, read from shared memory."""

    step: int
    age_s: float
    compiling: bool = False


@record
class PeerEnded:
    """Whoever starts the peers says that this one has ended and will not be started again."""

    peer: PeerId


@record
class PeerExpected:
    """Whoever starts the peers says that this one is on its way: it has its id,
    and no address yet."""

    peer: PeerId


@record
class AddressLearned:
    """A source outside the protocol, such as a folder of addresses, has the addresses of a peer in
    this life of it."""

    peer: PeerId
    control: str
    bulk: str
    incarnation: int


@record
class ConfirmState:
    """The trainer has had all its rounds before ``round_id``,
    and wants to know whether others hold the same."""

    round_id: int


@record
class LedgerRequest:
    """The trainer saves a checkpoint, and asks for what belongs to it beside its own state."""


@record
class ForwardDone:
    """The answer to ``RunForward``. ``payload``: the output of the stage, with its digest; None in
    the last stage, and where the trainer could not compute it any more."""

    round_id: int
    micro_batch: int
    attempt: int
    payload: Payload | None
    audit: bool = False  # as of ``RunForward``
    took_us: int = 0


@record
class BackwardDone:
    """The answer to ``RunBackward``: the gradients of the parameters are in the sum. ``payload``:
    the gradient of the input of the stage, with its digest; None in the first stage, and where the
    trainer could not compute it any more: then nothing is in the sum."""

    round_id: int
    micro_batch: int
    attempt: int
    payload: Payload | None
    samples: int
    loss: float | None = None  # of the last stage
    audit: bool = False  # as of ``RunBackward``: then nothing is in the sum
    took_us: int = 0


StateSource: TypeAlias = Literal["", "checkpoint", "neighbours", "fresh", "own"]
"""Origin of the state of a stage. "": the state is not made; "own": the trainer still had it."""


@record
class StateRebuilt:
    """The answer to ``RebuildState``: the trainer holds a state before round ``round_id``.

    ``source``: what it was made of. Where it is not made, as the states of other stages are needed
    for that, ``needs`` has their numbers, and the most bytes that each may have. ``step``: that the
    checkpoint is of, or the own state. ``state``: a digest. ``fresh``: how
    many layers are as the script has made them.
    """

    round_id: int
    source: StateSource
    step: int = 0
    state: bytes = b""
    fresh: int = 0
    needs: tuple[tuple[int, int], ...] = ()


@record
class Stop:
    """Leave politely: say so, help those who are behind, halt.

    ``completed``: the script has come to its end, so this is where the training ends, too; the
    final state is here to be taken.
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
    """Whether the payload of a message may be received,
    and what the node works out before the core handles it.

    ``nbytes``: what the payload must have, -1 when none may come; of a state, the most that it may
    have. ``compare_with``: what a result is compared with (``Received.similarity``): the own
    update, first the shard of the result and then the others, or nothing; None: no comparison.
    """

    nbytes: int
    compare_with: tuple[Payload, ...] | None = None


NOT_ADMITTED = Admission(-1)


# --- effects --------------------------------------------------------------------------------------


@record
class Send:
    """To one peer. The lane follows from the message's type. May be lost."""

    peer: PeerId
    message: Message
    payload: Payload | None = None


@record
class AfterSends:
    """Deliver ``SendsDone`` as the next event, once all effects of this event are carried out.

    Messages that others wait for leave before the core goes on with its own work.
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


NO_ROWS = "nobody sent an update that can be used"


@record
class Row:
    """One update on its way into a rule."""

    peer: PeerId
    payload: Payload
    samples: int


@record
class ShardStatistics:
    """Measurements of one shard of the updates of ``peers``, which ascend."""

    peers: tuple[PeerId, ...]
    statistics: bytes


@record
class Aggregate:
    """Run the rule over ``rows``, which are sorted by peer;
    answer with ``Aggregated`` under ``ticket``.

    Without rows (nobody had samples, or nothing finite came) the answer is no payload, and
    ``NO_ROWS`` as its reason.

    ``own`` is the local peer's row, the centre of self-centred rules: an index into ``rows``, or
    None. With ``mix`` the rows are parameters: aggregate their differences to the own row.
    ``previous`` is the last aggregate that was applied, of the same shard, for rules with a memory:
    None before there is one, in the turns of a peer that has taken over a state and has applied
    nothing since, and for parameters.

    Where the shards of a round decide together it is asked for in steps: ``measure`` the rows;
    ``decide``, on the ``parts`` of all shards in order, how those of ``peers`` count, and combine
    the rows by that; ``combine`` the rows by a ``decision``: weights of all rows,
    then of the rule's points.

    ``outside`` are rows of peers in quarantine. They have no part in the aggregate; how far out
    they lie is asked for with ``whole`` and with ``decide``. In steps ``rows`` has them, too.

    ``own_share`` (0 to 1) is the part of the answer that is the own row, whatever the rule says;
    the rest is the rule's aggregate. Only asked for with ``whole``.
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
    usual: float = 0.0  # the longest ``Aggregated.length`` of recent rounds; 0.0: not known


@record
class DataSlice:
    """Samples for one round: ``start``/``stop`` pairs, in order, on the line of all epochs' samples
    (``DataCursor``)."""

    epoch: int  # whose round it is; it may read samples that earlier ones have left
    ranges: tuple[tuple[int, int], ...]
    # epoch and ranges of rounds to come: a guess
    coming: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()
    # of the last completed epoch, where commits tell who has used what
    last: EpochReport | None = None


@record
class Apply:
    """Give the trainer the aggregate of a round, a payload a shard. No payloads:
    the round changes nothing.

    ``mix`` is a parameter difference to add before the step (gossip rounds), ``mix_scale`` its
    factor. ``rates`` are those that all step with; none in gossip rounds,
    where each steps with its own. ``collected`` is what peers have given to collective operations;
    ``is_step`` is False where the round was nothing else, and in a further round
    (``is_further``), which ``kind`` says. ``collectives``: of the rounds before, those that were no
    steps.
    """

    round_id: int
    payloads: tuple[Payload, ...]
    mix: Payload | None = None
    mix_scale: float = 0.0
    rates: tuple[float, ...] = ()
    collected: tuple[Collected, ...] = ()
    is_step: bool = True
    contributors: tuple[tuple[PeerId, ...], ...] = ()  # whose updates are in each payload
    collectives: int = 0
    replica: bytes = b""  # digests that most replicas had before the round, where this one differed
    kind: int = 0  # of the step that the round makes


@record
class StartRound:
    """The trainer may compute round ``round_id`` now. ``main``: one peer, the same for all in this
    round, that does what is to be done once."""

    round_id: int
    samples: DataSlice | None
    want_parameters: bool = False  # a gossip round that mixes
    main: PeerId = 0
    collectives: int = 0  # of the rounds before, those that were no steps
    # by when its local steps are to be taken, however few they are then; 0: all are to be taken
    deadline_us: int = 0
    # when the round began here, which is before this where the trainer was busy with the last one
    began_at: float = 0.0
    compares: bool = False  # the update comes with digests of the replica


@record
class RunForward:
    """Compute one micro-batch forward and keep what its backward pass needs, in place of what there
    was of it. ``payload``: the input of the stage; None in the first one, which reads the
    micro-batch itself. Random states follow from ``round_id`` and ``micro_batch``, so that whoever
    computes it gets the same. Answer with ``ForwardDone``.

    ``audit``: it is another member's, and computed once more. What is kept of it is kept beside all
    else, until the next audit.
    """

    round_id: int
    micro_batch: int
    attempt: int
    payload: Payload | None
    audit: bool = False


@record
class RunBackward:
    """Compute one micro-batch backward, add the gradients of the parameters to the sum and keep
    nothing else of it. ``payload``: the gradient of the output of the stage; None in the last one,
    which begins with the loss. Answer with ``BackwardDone``.

    ``audit``: of what a forward pass with ``audit`` has kept. Only the gradient of the input is
    computed: nothing goes into the sum.
    """

    round_id: int
    micro_batch: int
    attempt: int
    payload: Payload | None
    audit: bool = False


@record
class DropForward:
    """Forget what is kept of a micro-batch for its backward pass, if there is anything."""

    round_id: int
    micro_batch: int


@record
class ResetSum:
    """Begin the sum of this round anew, and forget what is kept for backward passes: micro-batches
    of it are another's."""

    round_id: int


@record
class CollectUpdate:
    """Hand over the mean over the samples of these micro-batches, which are all that are in the
    sum, and keep the sum. Answer with ``Contributed``; a later one of the same round takes the
    place of this one."""

    round_id: int
    micro_batches: tuple[int, ...]  # ascending


PipelineTask: TypeAlias = RunForward | RunBackward | DropForward | ResetSum | CollectUpdate
"""Commands for the trainer of a pipeline, in addition to those for every trainer."""


@record
class TakeSnapshot:
    """Ask the trainer for its packed state, as it is behind all rounds that it was given to
    apply before this."""


@record
class Restore:
    """Give the trainer a packed state, from which round ``round_id`` goes on.

    Without ``settings`` it keeps its own learning rates, and what else its script sets: too few
    vouch for the donor's.
    """

    round_id: int
    payload: Payload
    settings: bool = True


@record
class RebuildState:
    """Nobody has the state of this stage of a pipeline any more, and the others are in round
    ``round_id``: make one to go on with from there, of whatever there is. Answer with
    ``StateRebuilt``.

    ``beside``: states of other stages, by their number, as far as they were asked for and could be
    had. ``is_last``: nothing more can be asked for.
    """

    round_id: int
    beside: tuple[tuple[int, Payload], ...] = ()
    is_last: bool = False


@record
class StateConfirmed:
    """The answer to ``ConfirmState``, behind a ``Restore`` where the trainer held something else.

    ``agreed``: enough others hold the same state before ``round_id``. Else it is the best that
    could be found out.
    """

    round_id: int
    agreed: bool


@record
class LedgerReply:
    """The answer to ``LedgerRequest``: what all peers hold alike before ``round_id`` beside the
    trainer's state. ``ledger`` is empty when there is none now."""

    round_id: int
    ledger: bytes


@record
class Report:
    """Something that a person or a report wants to know. Becomes a line in ``events.jsonl``."""

    event: str
    fields: dict[str, Any] = field(default_factory=dict)


@record
class Committed:
    """A commit was applied here (``made``: it was also made here). Becomes a line in
    ``commits.jsonl``."""

    commit: Any  # messages.Commit
    chain: bytes
    made: bool
    trust: dict[PeerId, float] = field(default_factory=dict)  # after this commit
    # what each peer of the roster was to read, as in ``DataSlice``; None: not through us
    slices: dict[PeerId, list[tuple[int, int]]] | None = None
    epoch: int = 0  # whose round it is
    samples_total: int = 0  # in an epoch; 0: not through us
    steps_per_epoch: int = 0  # that it was planned for; 0: not through us


@record
class Halt:
    """Nothing more will come. ``exit_code`` as in docs/exit_codes.md."""

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
