"""Messages between a trainer and its node over their one local socket. They are plain data, packed
by ``transport.codec``. Events and effects of the core that have no payload travel as they are.

The socket is a Unix SOCK_SEQPACKET pair, which keeps message boundaries. Memory is sent as a file
descriptor beside a message (SCM_RIGHTS). Either side detects the other's death at once, as end of
file. Several messages may share one packet.

One incarnation, as seen by the trainer:

    Prepare  ->           the model is known; the arena's memory comes along
             <- Restore?  the swarm's state, when it is ahead or began with other weights
    Restored ->
             <- Go(r)     compute round r into update slot ``slot``
    DataConfigured ->     (once) data is read through the node: Go(r) comes again, with this
                          peer's samples
    Contribute(r) ->
             <- Judge*    (rules that need the loss) rate these updates
    Judged   ->
             <- Apply(r)  the aggregate is in result slot ``slot``; also rounds that were committed
                          without this peer
    Applied(r) ->
             <- Go(r + 1)
    ConfirmState(r + 1) -> (with f > 0, in rolling rounds) the script has had all its rounds
             <- Restore?  this peer holds another result of the last one than most
    Restored ->
             <- StateConfirmed
    LedgerRequest ->      (at any time) a checkpoint is to be saved
             <- LedgerReply(r)  its part beside the trainer's state
    Close    ->           polite end; the node drains and replies with Halt

If a pipeline has lost the state of a stage, before the first round:

             <- Beside*, Rebuild(r)  make a state to go on with from round r
    StateRebuilt ->       it is made; or what is needed for that, and then they come again

In a pipeline, a round has instead of one Contribute:

             <- Pass(r)*  compute a forward or a backward pass of a micro-batch
    PassReply(r) ->       its output
             <- DropForward(r)*, ResetSum(r)*  drop one pass, or all
             <- Collect(r)  the update of the micro-batches so far into update slot ``slot``
    Contribute(r) ->      Collect may come again

``Go`` is ``StartRoundCommand``, ``Judged`` is ``JudgeReply``. The other names omit ``Command`` and
``Reply``.
"""

from __future__ import annotations

from typing import TypeAlias

from gossip.core import events, record
from gossip.errors import ConfigError, Refused, ReplicasDiverged, StateLost, SwarmError

UPDATE_SLOTS = 4
RESULT_SLOTS = 4
"""Number of slots that results are copied to. Results may also be in further slots after these."""
EXIT_SIGTERM = 143  # of a peer that has left after a stop signal


# --- trainer to node ------------------------------------------------------------------------------


@record
class Prepare:
    """Description of the trainer's model. The descriptor of the arena is sent with it."""

    elements: int  # float32 elements of the flat vector
    layout: bytes
    state: bytes  # digest of the packed state
    state_bytes: int  # size of the packed state
    # the next round on this state: not 0 after a restart of the node or from a checkpoint
    round_id: int = 0
    ledger: bytes = b""  # of the checkpoint
    collectives: int = 0  # number of rounds before ``round_id`` that were no steps
    marks: int = 0  # number of elements after the parameters' numbers
    shapes: bytes = b""  # ``pack_shapes`` of the parameters', where the encoding writes tensors
    # bytes of a micro-batch that a stage receives and sends
    activation_bytes: tuple[int, int] = (0, 0)


@record
class Contribute:
    """The update is in update slot ``slot``; with ``parameters`` the arena's parameter slot of the
    same number is filled too."""

    round_id: int
    slot: int
    samples: int  # 0: no update, only taking part
    loss: float | None = None
    parameters: bool = False
    # whether the whole update is finite; False if it is not, or that is not checked
    finite: bool = False
    rates: tuple[float, ...] = ()  # of the optimizer's next step
    collective: bytes = b""  # data of a collective operation; then there are no samples
    skipped: bool = False  # whether the script had the samples and skipped them
    steps: tuple[int, int] = (1, 1)  # local steps taken, and of a round
    micro_batches: tuple[int, ...] = ()  # in a pipeline: those in the update
    lasted_us: int = 0  # duration of the local steps; 0: since the round began
    replica: bytes = b""  # digests of the replica before the round; b"": it is not compared
    kind: int = 0  # of its step (``gossip.core.is_further``)


@record
class PassReply:
    """Reply to ``PassCommand``, with the memory for the next stage: the output of a forward pass,
    or the gradient of the input. There is no output from the last stage forward, from the first
    stage backward, and for a finished round."""

    round_id: int
    micro_batch: int
    attempt: int
    backward: bool
    nbytes: int
    samples: int = 0
    loss: float | None = None  # of the micro-batch, from the last stage's backward pass
    audit: bool = False
    took_us: int = 0  # duration of the computation


@record
class AppliedReply:
    round_id: int
    slot: int  # free again; -1 if the round changed nothing


@record
class JudgeReply:
    """Reply to ``JudgeCommand``. The aggregate is in the judging memory's last row; ``reason``:
    reason why there is none. ``outlyingness`` is of all rows; rows outside come after the
    others."""

    ticket: int
    weights: tuple[float, ...]
    outlyingness: tuple[float, ...]
    reason: str


@record
class Snapshot:
    """The packed state before ``round_id``; its memory is sent with it. ``error``: reason why there
    is none."""

    round_id: int
    nbytes: int
    error: str
    parts: tuple[int, ...] = ()  # lengths
    base: int = 0  # bytes at the front of the first part that rarely change


@record
class Log:
    """A line for metrics.jsonl: a JSON object of numbers and short strings."""

    metrics: str


@record
class ScriptPlan:
    """Plan of the script, as announced so far, for monitoring."""

    steps: int | None  # of the whole run; None: unknown
    folder: str = ""  # of its checkpoints; "" if it saves none
    every: int | None = None  # steps between two of them; None means only at the end


@record
class DivergenceReport:
    """Difference of this peer's replica from that of most peers before ``round_id``.

    Attributes:
        peers_differ: Whether replicas differ. False if they would differ after a missed round.
        replaced: Whether the replica of most peers has replaced this one.
        tensors: Some tensors that differ, of ``count``.
        largest: Largest difference of two numbers; -1.0 if unknown.
    """

    round_id: int
    peers_differ: bool
    replaced: bool
    tensors: tuple[str, ...]
    count: int
    largest: float
    cause: str
    remedy: str


@record
class Close:
    """The trainer leaves. ``digest`` is that of the parameters after all rounds before
    ``round_id``; b"" if there was no time to compute it."""

    reason: str  # "finished", "stopped", "raised"
    round_id: int = 0
    digest: bytes = b""
    not_saved: str = ""  # why the last checkpoint is missing; "" if it is not


# --- node to trainer ------------------------------------------------------------------------------


@record
class StartRoundCommand:
    round_id: int
    slot: int  # update slot to write to
    sharded: bool  # whether ``epoch`` and ``ranges`` are set
    epoch: int
    ranges: tuple[tuple[int, int], ...]
    want_parameters: bool
    peers: int  # number of shares of a stream
    alive: int
    rank: int = 0  # this peer's share
    # predicted epoch and ranges of the next rounds
    coming: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()
    # the numbers of the ``EpochReport`` of the last completed epoch, if there is one
    last: tuple[int, ...] = ()
    main: int = 0  # the peer for work that is done once
    collectives: int = 0  # number of earlier rounds that were no steps
    deadline_us: int = 0  # time limit of its local steps; 0: none
    # begin of the round at the node, by the host's monotonic clock; 0.0: unknown
    began_at: float = 0.0
    compares: bool = False  # whether the update needs digests of the replica
    given_up_ranges: tuple[tuple[int, int], ...] = ()  # of the same report
    roster: tuple[int, ...] = ()
    left: tuple[int, ...] = ()  # peers that have announced their leave


@record
class PassCommand:
    """Compute a pass of a micro-batch through this stage. The memory from another stage is sent
    with
    it: the input, or backward the gradient of the output."""

    round_id: int
    micro_batch: int
    attempt: int
    backward: bool
    nbytes: int
    audit: bool = False  # of another member's micro-batch, which is not in the update


@record
class CollectCommand:
    """Put the update of these micro-batches, which have had their backward pass, into ``slot``, and
    reply with ``Contribute``. The gradients stay until the round is applied."""

    round_id: int
    slot: int
    micro_batches: tuple[int, ...]


@record
class ApplyCommand:
    """Apply the result of a round. ``slot`` is -1 if the round changes nothing. With ``mix_scale !=
    0`` mix slot ``slot`` holds a parameter difference."""

    round_id: int
    slot: int
    mix_scale: float
    rates: tuple[float, ...] = ()  # that all peers step with; none: each peer with its own
    # peers, and their data of a collective operation
    collected: tuple[tuple[int, bytes], ...] = ()
    is_step: bool = True  # False: a collective operation, or a further step
    taken: tuple[bool, ...] = ()  # for each shard, whether this peer's update is in the result
    collectives: int = 0  # number of earlier rounds that were no steps
    # digests of most replicas before the round, if this one differed; a state follows
    replica: bytes = b""
    kind: int = 0  # of the step that the round makes


@record
class JudgeCommand:
    """Run the rule over the first ``rows`` rows of the judging memory,
    write the aggregate into row ``rows``.

    If ``capacity`` is not zero, the descriptor of that memory, float32 ``(capacity, elements)``,
    is sent with it and replaces the previous one. ``own`` is the row of this peer; -1 if there is
    none.
    With ``mix`` the rows are parameters: the trainer runs the rule over their differences to row
    ``own``, and the aggregate is a difference too. Without rows there is no rule to run: row 0 gets
    the gradient of the judge's loss. The last ``outside`` of the rows are not in the aggregate;
    only their outlyingness is needed.
    """

    ticket: int
    round_id: int
    rows: int
    capacity: int
    f: int
    own: int
    mix: bool
    outside: int = 0


@record
class RestoreCommand:
    """A packed state to restore; its memory is sent with it. Without ``settings`` the trainer keeps
    the settings of its script."""

    round_id: int
    nbytes: int
    settings: bool = True


@record
class BesideCommand:
    """The packed state of another stage of a pipeline, for the ``RebuildCommand`` that follows; its
    memory is sent with it."""

    stage: int
    nbytes: int


@record
class RebuildCommand:
    """Make a state of this peer's stage to continue with from round ``round_id``, because no peer
    has one. ``is_last``: no more states of other stages can be requested."""

    round_id: int
    is_last: bool


StageCommand: TypeAlias = PassCommand | events.DropForward | events.ResetSum | CollectCommand
"""Commands for a member of a stage, which it carries out in the order of arrival."""
StageMessage: TypeAlias = StageCommand | BesideCommand | RebuildCommand
"""Messages for a member of a stage."""


def error_of(halted: events.Halt) -> BaseException:
    """Return the exception that a halt of the node raises in the user's script."""
    match halted.exit_code:
        case code if code in (0, 130, EXIT_SIGTERM):
            return SystemExit(code)
        case 2:
            return ConfigError(halted.reason)
        case 6:
            return Refused(halted.reason)
        case 7:
            return StateLost(halted.reason)
        case 9:
            return ReplicasDiverged(halted.reason)
        case code:
            error = SwarmError(halted.reason)
            error.exit_code = code
            return error


FromTrainer: TypeAlias = (
    Prepare
    | events.DataConfigured
    | Contribute
    | PassReply
    | AppliedReply
    | JudgeReply
    | Snapshot
    | events.Restored
    | events.StateRebuilt
    | Log
    | ScriptPlan
    | DivergenceReport
    | events.ConfirmState
    | events.LedgerRequest
    | Close
)
FromNode: TypeAlias = (
    StartRoundCommand
    | StageMessage
    | ApplyCommand
    | JudgeCommand
    | events.TakeSnapshot
    | RestoreCommand
    | events.StateConfirmed
    | events.LedgerReply
    | events.Halt
)
