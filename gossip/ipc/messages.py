"""Messages between a trainer and its node over their local socket. They are plain data, packed by
``transport.codec``. An event or effect of the core that has no payload is a message itself.

The socket is a Unix SOCK_SEQPACKET pair, which preserves packet boundaries. Several messages may
share one packet. Memory is sent as a file descriptor together with a message (SCM_RIGHTS). If one
side dies, the other side receives an end of file at once.

The messages of one incarnation; the trainer is on the left:

    Prepare  ->           the model is ready; the memory of the arena is sent with it
             <- Restore?  the state of the run, if it is ahead or began with other weights
    Restored ->
             <- Go(r)     compute round r and write the update to update slot ``slot``
    DataConfigured ->     (once) data is read through the node; Go(r) is sent again, with the
                          samples of this peer
    Contribute(r) ->
             <- Judge*    (rules that need the loss) judge these updates
    Judged   ->
             <- Apply(r)  the aggregate is in result slot ``slot``; also sent for rounds that
                          were committed without this peer
    Applied(r) ->
             <- Go(r + 1)
    ConfirmState(r + 1) -> (with f > 0, in rolling rounds) the script has completed its rounds
             <- Restore?  if most peers have another result of the last round
    Restored ->
             <- StateConfirmed
    LedgerRequest ->      (at any time) a checkpoint will be saved
             <- LedgerReply(r)  the part of the checkpoint that the node provides
    Close    ->           the trainer ends; the node drains and replies with Halt

If a pipeline has lost the state of a stage, before the first round:

             <- Beside*, Rebuild(r)  create a state to continue with from round r
    StateRebuilt ->       it was created, or names states that are needed first; Beside and Rebuild
                          are then sent again

In a pipeline, a round has the following messages in place of one Contribute:

             <- Pass(r)*  compute the forward or the backward pass of a micro-batch
    PassReply(r) ->       its output
             <- DropForward(r)*, ResetSum(r)*  drop one pass, or all passes
             <- Collect(r)  write the update of the computed micro-batches to update slot ``slot``
    Contribute(r) ->      Collect may be sent again

``Go`` is ``StartRoundCommand``, ``Judged`` is ``JudgeReply``. The other names omit ``Command`` and
``Reply``.
"""

from __future__ import annotations

from typing import TypeAlias

from gossip.core import events, record
from gossip.errors import ConfigError, Refused, ReplicasDiverged, StateLost, SwarmError

UPDATE_SLOTS = 4
RESULT_SLOTS = 4
"""Number of slots into which results are copied. The slots after these are for results that are
received or computed in place."""
EXIT_SIGTERM = 143  # exit code of a peer that left because of a stop signal


# --- trainer to node ------------------------------------------------------------------------------


@record
class Prepare:
    """Description of the trainer's model. The packet carries the descriptor of the arena."""

    elements: int  # Number of float32 elements of the flat vector.
    layout: bytes
    state: bytes  # Digest of the packed state.
    state_bytes: int  # Size of the packed state.
    # Next round to run from this state. Above 0 after a restart of the node or from a checkpoint.
    round_id: int = 0
    ledger: bytes = b""  # Ledger in the checkpoint that the trainer has loaded, if any.
    collectives: int = 0  # Number of rounds before ``round_id`` that made no step.
    marks: int = 0  # Number of marks, which are after the parameters in the flat vector.
    shapes: bytes = b""  # ``pack_shapes`` of the parameters, if the encoding needs shapes.
    # Bytes that a stage of a pipeline receives and sends for each micro-batch.
    activation_bytes: tuple[int, int] = (0, 0)


@record
class Contribute:
    """Announcement that the update is in update slot ``slot``. If ``parameters`` is true, the
    parameters are in parameter slot ``slot``."""

    round_id: int
    slot: int
    samples: int  # 0 means participation without an update.
    loss: float | None = None
    parameters: bool = False
    # Whether the whole update is known to be finite; False also if it was not checked.
    finite: bool = False
    rates: tuple[float, ...] = ()  # Learning rates of the optimizer's next step.
    collective: bytes = b""  # Data of a collective operation; ``samples`` is 0 then.
    skipped: bool = False  # Whether the script received the samples and skipped them.
    steps: tuple[int, int] = (1, 1)  # Number of local steps made, and number planned for a round.
    micro_batches: tuple[int, ...] = ()  # In a pipeline: micro-batches in the update.
    lasted_us: int = 0  # Duration of the local steps; 0 means the time since the round began.
    replica: bytes = b""  # Digests of the replica before the round; b"" if it is not compared.
    kind: int = 0  # Kind of the step (``gossip.core.is_further``).


@record
class PassReply:
    """Reply to ``PassCommand``. The packet carries a descriptor of the tensor for the other stage:
    the output of a forward pass, or the gradient of the input. There is no tensor if the round is
    over, after a forward pass of the last stage, or after a backward pass of the first stage."""

    round_id: int
    micro_batch: int
    attempt: int
    backward: bool
    nbytes: int
    samples: int = 0
    loss: float | None = None  # Loss of the micro-batch, from a backward pass of the last stage.
    audit: bool = False
    took_us: int = 0  # Duration of the computation.


@record
class AppliedReply:
    round_id: int
    slot: int  # Result slot that is free again; -1 if the round changed nothing.


@record
class JudgeReply:
    """Reply to ``JudgeCommand``. The aggregate is in the judging memory, in the row after the
    updates. ``reason``: why there is no aggregate; "" if there is one. ``outlyingness`` has a value
    for each row; the rows in ``outside`` come last."""

    ticket: int
    weights: tuple[float, ...]
    outlyingness: tuple[float, ...]
    reason: str


@record
class Snapshot:
    """The packed state before ``round_id``. The packet carries a descriptor of the state's memory.
    ``error``: why there is no state; "" if there is one."""

    round_id: int
    nbytes: int
    error: str
    parts: tuple[int, ...] = ()  # Length of each part of the state, in bytes.
    base: int = 0  # Number of rarely changing bytes at the start of the first part.


@record
class Log:
    """A line of metrics.jsonl: a JSON object of numbers and short strings."""

    metrics: str


@record
class ScriptPlan:
    """Plan that the script has announced: its steps and checkpoints. Used for monitoring only."""

    steps: int | None  # Number of steps of the whole run; None if unknown.
    folder: str = ""  # Folder of the checkpoints; "" if the script saves none.
    every: int | None = None  # Number of steps between two checkpoints; None: only one at the end.


@record
class DivergenceReport:
    """Report that the local replica differs from the replica of most peers before ``round_id``.

    Attributes:
        peers_differ: Whether the replicas differ already. If False, they would differ as soon as
            this peer misses a round.
        replaced: Whether the replica of most peers has replaced the local replica.
        tensors: Names of some tensors that differ. ``count`` is the number of all tensors that
            differ.
        largest: Largest absolute difference of two elements; -1.0 if unknown.
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
    """Announcement that the trainer ends. ``digest``: digest of the parameters after all rounds
    before ``round_id``; b"" if there was no time to compute it."""

    reason: str  # "finished", "stopped", "raised".
    round_id: int = 0
    digest: bytes = b""
    not_saved: str = ""  # Why the last checkpoint was not saved; "" if it was.


# --- node to trainer ------------------------------------------------------------------------------


@record
class StartRoundCommand:
    round_id: int
    slot: int  # Update slot for the update.
    sharded: bool  # Whether ``epoch`` and ``ranges`` are set.
    epoch: int
    ranges: tuple[tuple[int, int], ...]
    want_parameters: bool
    peers: int  # Number of shares into which a stream of data is divided.
    alive: int
    rank: int = 0  # Index of this peer's share of the stream.
    # Predicted (epoch, ranges) of each of the next rounds.
    coming: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()
    # Integer fields of the ``EpochReport`` of the last completed epoch; empty if there is none.
    last: tuple[int, ...] = ()
    main: int = 0  # Peer for work that exactly one peer must do.
    collectives: int = 0  # Number of earlier rounds that made no step.
    deadline_us: int = 0  # Time limit for the local steps; 0 means no limit.
    # Time when the node started the round, by the host's monotonic clock; 0.0 if unknown.
    began_at: float = 0.0
    compares: bool = False  # Whether ``Contribute.replica`` is needed, to compare the replicas.
    given_up_ranges: tuple[tuple[int, int], ...] = ()  # Field of the same ``EpochReport``.
    roster: tuple[int, ...] = ()
    left: tuple[int, ...] = ()  # Peers that have announced their departure.

    @property
    def samples(self) -> tuple[object, ...]:
        """Samples of this peer in the round."""
        return self.sharded, self.epoch, self.ranges


@record
class PassCommand:
    """Command to compute a pass of a micro-batch through this stage. The packet carries a
    descriptor of the tensor from another stage: the input for a forward pass, or the gradient of
    the output for a backward pass."""

    round_id: int
    micro_batch: int
    attempt: int
    backward: bool
    nbytes: int
    audit: bool = False  # Whether to recompute another member's pass, without an update.


@record
class CollectCommand:
    """Command to write the update of these micro-batches to update slot ``slot``, and to reply with
    ``Contribute``. Their backward passes are complete. The trainer stores the gradients until the
    round is applied, because the command may be repeated."""

    round_id: int
    slot: int
    micro_batches: tuple[int, ...]


@record
class ApplyCommand:
    """Command to apply the result of a round, which is in result slot ``slot``. ``slot`` is -1 if
    the round changes nothing. If ``mix_scale`` is not 0, mix slot ``slot`` has a parameter
    difference to add."""

    round_id: int
    slot: int
    mix_scale: float
    rates: tuple[float, ...] = ()  # Learning rates of all peers; if empty, each peer uses its own.
    # Result of a collective operation: pairs (peer, data of the peer).
    collected: tuple[tuple[int, bytes], ...] = ()
    is_step: bool = True  # False for a collective operation and for a further step (``kind``).
    taken: tuple[bool, ...] = ()  # For each shard: whether this peer's update is in the result.
    collectives: int = 0  # Number of earlier rounds that made no step.
    # Digests of the replica of most peers before the round, if the local replica differed; a state
    # will follow.
    replica: bytes = b""
    kind: int = 0  # Kind of the step that the round makes.


@record
class JudgeCommand:
    """Command to run the rule on the first ``rows`` rows of the judging memory, and to write the
    aggregate to row ``rows``.

    If ``capacity`` is not 0, the packet carries the descriptor of new judging memory, float32
    ``(capacity, elements)``. ``own`` is the row of the local peer; -1 if there is none. With
    ``mix`` the rows are parameters: the trainer runs the rule on their differences from row
    ``own``, and the aggregate is also a difference. If ``rows`` is 0, no rule is run, and the
    trainer writes the gradient of the judge's loss to row 0. The last ``outside`` rows do not enter
    the aggregate; only their outlyingness is needed.
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
    """Command to restore a packed state. The packet carries a descriptor of the state's memory. If
    ``settings`` is false, the trainer does not restore the settings of the optimizer but keeps
    those of its script."""

    round_id: int
    nbytes: int
    settings: bool = True
    collectives: int = 0  # Number of earlier rounds that made no step.


@record
class BesideCommand:
    """The packed state of another stage of a pipeline, for the ``RebuildCommand`` that follows. The
    packet carries a descriptor of the state's memory."""

    stage: int
    nbytes: int


@record
class RebuildCommand:
    """Command to create a state of the local stage with which round ``round_id`` can begin, because
    all peers have lost the stage's state. ``is_last``: whether no further states of other stages
    can be requested."""

    round_id: int
    is_last: bool


StageCommand: TypeAlias = PassCommand | events.DropForward | events.ResetSum | CollectCommand
"""Commands for the trainer of a pipeline peer, which carries them out in the order of arrival."""
StageMessage: TypeAlias = StageCommand | BesideCommand | RebuildCommand
"""Messages for the trainer of a pipeline peer."""


def error_of(halted: events.Halt) -> BaseException:
    """Return the exception to raise in the user's script when the node halts."""
    code, reason = halted.exit_code, halted.reason
    if code in (0, 130, EXIT_SIGTERM):
        return SystemExit(code)
    for kind in (ConfigError, Refused, StateLost, ReplicasDiverged):
        if code == kind.exit_code:
            return kind(reason)
    error = SwarmError(reason)
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
