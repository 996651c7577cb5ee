"""Messages between peers. Plain data; the codec turns it into bytes and checks every field on the
way back.

``ROUND_MAX`` bounds every counter that comes from a peer, so that no arithmetic of ours can
overflow by a peer's word.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from .frozen import record

PeerId: TypeAlias = int
Status: TypeAlias = Literal["alive", "suspect", "dead", "left"]
Stage: TypeAlias = Literal["ready", "leaving", "completed"]

ROUND_MAX = 2**48
DIGEST_BYTES = 16
STATISTICS_BYTES_MAX = 48 * 1024
ACCUSATIONS_MAX = 8
AUDIT_VOTES_MAX = 8
TRACE_BYTES = 32
"""Length of each of ``Counted.traces``, in bytes."""
CORE_BYTES_MAX = 54 * 1024  # of ``StateOffer.core``; leaves the rest of the header 10 KiB
CROSS_SHARD_PEERS_MAX = 100
"""Most peers of a run whose shards decide together:
what is measured of their updates fits a message."""
COLLECTED_BYTES_MAX = 24 * 1024  # of ``Commit.collected``, all together; likewise
PIECES_MAX = 512
"""Pieces that a state is cut into: their digests fit a message."""


def is_further(kind: int) -> bool:
    """Whether a step of this kind comes behind another one that was made on the same samples, by
    other optimizers of the script. Its round is no step of the run, and uses up no samples.

    Kinds of steps that the same optimizers make, all first or all further, are equal. 0: the
    first, and all optimizers make it.
    """
    return bool(kind & 1)


# --- membership -----------------------------------------------------------------------------------


@record
class Rumor:
    """A claim about one member. ``origin`` is the peer that made it first: the accuser of a
    suspect, else the subject."""

    peer: PeerId
    status: Status
    incarnation: int
    control: str  # address of the control lane, "" when the speaker does not know it
    bulk: str  # address of the bulk lane
    origin: PeerId


@record
class Progress:
    """How far a peer's trainer is: travels in every ack, so that a hung trainer is skipped though
    its node answers."""

    step: int  # rounds that the trainer has applied
    age_ms: int  # since it last did


@record
class Ping:
    nonce: int
    target: PeerId
    rumors: tuple[Rumor, ...]


@record
class PingRequest:
    """Probe ``target`` for me; answer with its ``Ack`` under my nonce,
    or with ``Nack`` before my deadline."""

    nonce: int
    target: PeerId
    rumors: tuple[Rumor, ...]


@record
class Ack:
    nonce: int
    target: PeerId  # who is alive: the sender itself, or the one it probed for us
    progress: Progress
    rumors: tuple[Rumor, ...]


@record
class Nack:
    nonce: int
    target: PeerId


@record
class PushPull:
    """The whole member table. ``reply`` is true in the answer, which is not answered again."""

    members: tuple[Rumor, ...]
    reply: bool


@record
class Gossip:
    """Rumours alone, when there is no probe for them to ride on."""

    rumors: tuple[Rumor, ...]


# --- rolling rounds -------------------------------------------------------------------------------


@record
class Update:
    """A peer's update for one shard, sent to the server of ``attempt``.
    With ``samples == 0`` there is no payload."""

    lineage: bytes
    round_id: int
    shard: int
    attempt: int
    parent: bytes  # H of the round before: a mismatch is a fork
    samples: int
    loss: float | None
    rates: tuple[float, ...] = ()  # what its trainer would step with; of the first shard only
    # from the begin of the round at its sender until it was there; what all local steps would take,
    # where the sender has timed them
    took_us: int = 0
    collective: bytes = b""  # given to a collective operation; of the first shard only
    # the script has skipped its samples: it went on without a step, or the gradients overflowed; of
    # the first shard only
    skipped: bool = False
    micro_batches: tuple[int, ...] = ()  # of a pipeline: ascending, that the update is the mean of
    pass_us: int = 0  # likewise: what one of them took it forward and backward; 0: it has had none
    replica: bytes = (
        b""  # digests of its replica before the round, or none; of the first shard only
    )
    kind: int = 0  # of the step that it is for (``is_further``)


@record
class UpdateRequest:
    """The server of a later attempt, or one that has come back in this round, asks: send me your
    update, or the commit if you hold one."""

    lineage: bytes
    round_id: int
    shard: int
    attempt: int
    parent: bytes  # H of the round before: nobody follows a server on another branch


@record
class Contribution:
    """One update that a commit used. ``weight`` is its share of the aggregate,
    ``outlyingness`` 1.0 when typical."""

    peer: PeerId
    samples: int
    weight: float
    outlyingness: float
    took_us: int = 0  # as it says
    micro_batches: tuple[int, ...] = ()  # of a pipeline, likewise
    pass_us: int = 0  # likewise: what one of them took it forward and backward


@record
class Rejection:
    """A peer whose samples a commit did not use, and why: its update was ``non_finite`` or
    ``wrong_size``; it is ``quarantined`` (its update was measured: ``outlyingness`` as of a
    contribution); or it has ``skipped`` them (in the first shard's commit only)."""

    peer: PeerId
    reason: str
    outlyingness: float = 0.0


@record
class Collected:
    """A contribution of a peer to a collective operation, as it came in ``Update.collective``."""

    peer: PeerId
    data: bytes


@record
class Accusation:
    """The server of a commit says in its own name: what ``peer`` has sent it as the result of round
    ``round_id`` was refused, or (``silent``) did not come in time though ``peer`` was there; or,
    where there is a ``turn``, was of this ``content``."""

    peer: PeerId
    round_id: int
    silent: bool = False
    turn: bytes = b""
    content: bytes = b""


@record
class AuditVote:
    """The server of a commit of a stage says in its own name: it has computed a micro-batch of
    round ``round_id`` again, from what the neighbours of ``peer`` have told it, and what ``peer``
    gave them is something else. ``before`` and ``behind``: the members of the stage before and of
    the next one whose word ``peer`` contradicts; both None: it says itself that this is what it
    took and gave."""

    peer: PeerId
    round_id: int
    micro_batch: int
    before: PeerId | None = None
    behind: PeerId | None = None


@record
class Commit:
    """The result of one shard of a round, which everybody applies; its payload is the aggregate.

    ``attempt`` is the one it is sent under: a server of a later attempt re-issues a commit that it
    did not make, and then ``attempt > made_at``.
    Everything but ``attempt`` goes into the hash chain.
    """

    lineage: bytes
    round_id: int
    shard: int
    attempt: int
    made_at: int  # attempt under which it was aggregated
    server: PeerId  # who aggregated it
    parent: bytes  # H of the round before
    digest: bytes  # blake2b of the payload; empty when nothing could be aggregated
    contributors: tuple[Contribution, ...]
    rejected: tuple[Rejection, ...]
    roster: tuple[PeerId, ...]  # of the next round (shard 0 speaks for all)
    loss: float | None  # sample-weighted mean of what the contributors report
    reason: str  # "" or why nothing was aggregated
    # Of the first shard, when the shards decide together: weights of the contributors and then of
    # the rule's points, by which the others combine; and digests of what was measured of each
    # shard, in order: of no other updates is this the decision.
    decision: tuple[float, ...] = ()
    measured: tuple[bytes, ...] = ()
    rates: tuple[float, ...] = ()  # what all step with; of the first shard only
    accusations: tuple[Accusation, ...] = ()  # of the server's own experience
    # ascending, of the first shard only. With more than f of them the round is a collective
    # operation: it aggregates nothing, and is no step of the training.
    collected: tuple[Collected, ...] = ()
    audits: tuple[AuditVote, ...] = ()  # in a pipeline: of the server's own experience
    # of the first shard only: the digests that most peers have sent of their replicas, and the
    # peers that have sent others, ascending
    replica: bytes = b""
    diverged: tuple[PeerId, ...] = ()
    kind: int = 0  # of the updates that are in the aggregate
    length: float = 0.0  # of an update, as the rule has found it; 0.0: it does not say


@record
class NotServing:
    """I do not serve that attempt, or my round is another. ``round_id`` is where I am.

    ``chain``: my H of the round before that, or before ``asked_round`` where that is the earlier;
    empty when I have forgotten it.
    """

    lineage: bytes
    asked_round: int
    shard: int
    attempt: int
    round_id: int
    chain: bytes


@record
class PartialStatistics:
    """When the shards of a round decide together: what a shard's server has measured, for the
    server of the first shard.

    ``statistics`` are float64, little-endian: what the rule measures of the updates of
    ``contributors``, which ascend. Both are empty where there was nothing to measure.
    """

    lineage: bytes
    round_id: int
    shard: int
    attempt: int
    parent: bytes  # H of the round before
    contributors: tuple[PeerId, ...]
    statistics: bytes


@record
class PartialOverdue:
    """The server of the first shard has not been given the ``PartialStatistics`` of ``shard``,
    attempt ``attempt`` or a later one.

    Whoever serves that gives it again, or asks again for the updates that it lacks. With
    ``time_is_up`` the others hand it on.
    """

    lineage: bytes
    round_id: int
    shard: int
    attempt: int
    parent: bytes  # H of the round before
    decides: int  # the attempt of the first shard that the sender serves
    time_is_up: bool


@record
class ReceivingPayload:
    """Payloads of rounds are on their way to me: that is why I have nothing to say yet. Said to
    all, again while more come."""

    lineage: bytes
    received: int  # bytes of such payloads in this life
    pause_s: float  # for so long nothing more of them need come, over links as slow as these


@record
class Compiling:
    """My trainer compiles its model: that is why I have nothing to say yet. Said to all, again
    while it does."""

    lineage: bytes


@record
class CommitRequest:
    """Send me the commits from ``first`` on, as far as you still have them. Of that round I take
    nothing of an attempt before ``attempt``, as I have promised in some shard, and lack the shards
    ``lacking``; empty: all."""

    lineage: bytes
    first: int
    attempt: int
    lacking: tuple[int, ...] = ()


# --- gossip rounds --------------------------------------------------------------------------------


@record
class Push:
    """A peer's gradient (``what == "gradient"``) or parameters (``"parameters"``) for those its
    plan names this round."""

    lineage: bytes
    round_id: int
    what: Literal["gradient", "parameters"]
    samples: int
    loss: float | None
    sketch: bytes  # float32 projection of the parameters, for the consensus distance; may be empty


@record
class GatherValue:
    """A contribution of a peer to a collective operation, sent to all others: in gossip rounds,
    where no commit collects it. ``number`` counts its contributions in this life."""

    lineage: bytes
    number: int
    data: bytes


# --- pipelines ------------------------------------------------------------------------------------


@record
class Activation:
    """The output of the stage before for one micro-batch; the payload is the tensor. Of one
    micro-batch a receiver takes nothing of an attempt before the highest that it knows of."""

    lineage: bytes  # of the run, not of a stage
    round_id: int
    stage: int  # that is to compute on
    micro_batch: int
    attempt: int
    digest: bytes  # of the payload


@record
class ActivationGradient:
    """The answer to ``Activation``: the gradient of its payload, which is this one's."""

    lineage: bytes
    round_id: int
    stage: int  # that has sent the activation
    micro_batch: int
    attempt: int  # of the activation
    digest: bytes


@record
class Withdraw:
    """The attempt before ``attempt`` of this micro-batch goes to another member: do not count it,
    unless you have."""

    lineage: bytes
    round_id: int
    stage: int  # of the receiver
    micro_batch: int
    attempt: int


@record
class ActivationRefused:
    """I do not compute on an activation. ``known``: the higher attempt that I know of; no higher
    one means that I can serve none in this round now."""

    lineage: bytes
    round_id: int
    stage: int  # of the receiver, which has sent the activation
    micro_batch: int
    attempt: int
    known: int


@record
class Counted:
    """To the own stage: all the micro-batches of this round that are in my sum. Of two of a round
    the one with the higher ``number`` counts."""

    lineage: bytes
    round_id: int
    stage: int
    number: int
    micro_batches: tuple[int, ...]  # ascending
    again: bool  # nothing has changed; who holds the commit of the round is to give it
    # with audits, of each micro-batch: a digest of what the stage before has given and got, and one
    # of what the next stage has
    traces: tuple[bytes, ...] = ()


@record
class MicroBatchesMissing:
    """To the stage before: nobody of my stage has these any more, and I am the one to compute
    them. Send me your outputs again."""

    lineage: bytes
    round_id: int
    stage: int  # of the receiver
    micro_batches: tuple[int, ...]  # ascending


@record
class StageDone:
    """How far the sender's stage is, as it sees it: it holds the commits of all rounds before
    ``committed``, and has begun round ``round_id``. ``roster``: of its stage in round
    ``committed``."""

    lineage: bytes
    stage: int
    round_id: int
    committed: int
    roster: tuple[PeerId, ...]
    asks: bool  # for the same of the receiver
    locked: tuple[PeerId, ...] = ()  # of its stage, ascending: in quarantine, so they get no work
    pass_us: tuple[
        int, ...
    ] = ()  # of each of ``roster``: what counts as its time for a micro-batch


@record
class AuditRequest:
    """To a neighbour of ``peer``, from another member of its stage: what have you given ``peer``
    for that micro-batch, and what did it give you?"""

    lineage: bytes
    round_id: int
    stage: int  # of the receiver
    micro_batch: int
    peer: PeerId


@record
class AuditReply:
    """The answer to ``AuditRequest``; its payload is what ``peer`` was given."""

    lineage: bytes
    round_id: int
    stage: int  # of the receiver
    micro_batch: int
    peer: PeerId
    digest: bytes  # of the payload; empty: there is none, since I am no neighbour of it in that
    came: bytes  # digest of what ``peer`` gave


@record
class AuditFinding:
    """To the own stage: what ``peer`` gave its neighbours for that micro-batch is not what I have
    computed. Compute it, too. ``checked``: I have, or cannot, as an answer."""

    lineage: bytes
    round_id: int
    stage: int
    micro_batch: int
    peer: PeerId
    checked: bool


# --- joining and returning ------------------------------------------------------------------------


@record
class Hello:
    """First words on a connection, repeated until answered by the other's ``Hello``. Different
    layouts cannot train together."""

    lineage: bytes
    # digest of names, shapes and dtypes; empty until the trainer has prepared its model
    layout: bytes
    state: bytes  # digest of the trainer's state at ``round_id``; empty when unknown
    round_id: int
    # ready: wants to be in the roster; completed: its script has had all its rounds, the last
    # before ``round_id``
    stage: Stage
    address: str
    bulk: str
    chain: bytes = b""  # H of the round before; empty in gossip rounds
    # contributors of the last commits there; empty where no two branches can live side by side
    side: tuple[PeerId, ...] = ()
    # its trainer has had all its rounds, and waits to hear whether others hold the same
    asks: bool = False
    begun: bool = False  # its rounds have begun: whoever comes begins with what it has


@record
class StateRequest:
    """Vouch for the state that you hold before ``round_id``, as soon as you have come there,
    or give it to me.

    With ``round_id == 0`` before whatever round you are in. With a ``piece`` just that one, counted
    from 1, of what you offer.
    """

    lineage: bytes
    nonce: int
    round_id: int
    what: Literal["attestation", "state"]
    piece: int = 0


@record
class StateAttestation:
    """The digest of what I hold before ``round_id``. Empty: I cannot say, for that ``reason``, and
    ``round_id`` is where I am."""

    lineage: bytes
    nonce: int
    round_id: int
    chain: bytes  # H_{round_id - 1}
    digest: bytes  # of all that peers hold alike: ``donor.attested_digest``
    # of the second part of the state: learning rates and what else the user's script sets
    settings: bytes
    reason: str


@record
class StateOffer:
    """The trainer's state after ``round_id - 1`` was applied; its payload is the packed state.
    Empty ``digest``: I cannot.

    A packed state has parts: what peers hold alike, what their scripts set, and what is everybody's
    own. When the first is large ``outline`` stands for it (``chunks.PieceManifest``), the payload
    is the others, and the pieces are given one by one: the payload of each is nothing else.
    """

    lineage: bytes
    nonce: int
    round_id: int  # the next round to run on this state
    chain: bytes  # H_{round_id - 1}
    digest: bytes  # of the payload
    nbytes: int
    core: bytes  # roster, trust and data cursor, packed
    reason: str
    parts: tuple[int, ...] = ()  # of the payload: lengths; empty: there is one
    outline: bytes = b""
    piece: int = 0  # that this is, counted from 1


Message: TypeAlias = (
    Ping
    | PingRequest
    | Ack
    | Nack
    | PushPull
    | Gossip
    | Update
    | UpdateRequest
    | Commit
    | NotServing
    | CommitRequest
    | Push
    | Hello
    | StateRequest
    | StateOffer
    | PartialStatistics
    | PartialOverdue
    | StateAttestation
    | Compiling
    | ReceivingPayload
    | Activation
    | ActivationGradient
    | Withdraw
    | ActivationRefused
    | Counted
    | MicroBatchesMissing
    | GatherValue
    | StageDone
    | AuditRequest
    | AuditReply
    | AuditFinding
)

PipelineMessage: TypeAlias = (
    Activation
    | ActivationGradient
    | Withdraw
    | ActivationRefused
    | Counted
    | StageDone
    | AuditRequest
    | AuditReply
    | AuditFinding
    | MicroBatchesMissing
)
"""Messages between the peers of a pipeline, in addition to those of every swarm."""

# Messages that travel on the bulk lane, because a payload follows them (or may).
BULK_MESSAGES: tuple[type, ...] = (
    Update,
    Commit,
    Push,
    StateOffer,
    Activation,
    ActivationGradient,
    AuditReply,
)


@record
class Envelope:
    """A message with its sender. A message of an older incarnation than one already heard is
    dropped, except a commit: that belongs to its round, whoever hands it over."""

    run: bytes
    sender: PeerId
    incarnation: int
    message: Message
