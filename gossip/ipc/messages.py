"""Messages between a trainer and its node over their local socket. They are plain data, packed by
``transport.codec``. Events and effects of the core without a payload are sent as they are.

The socket is a Unix SOCK_SEQPACKET pair, which preserves message boundaries. Memory is sent as a
file descriptor together with a message (SCM_RIGHTS). If one side dies, the other detects it at once
as end of file. Several messages may share one packet.

The messages of one incarnation, seen from the trainer:

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
             <- LedgerReply(r)  the part of the checkpoint beside the state of the trainer
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
"""Number of slots that results are copied to. Results may also be in the further slots after
these."""
EXIT_SIGTERM = 143  # exit code of a peer that has left after a stop signal


# --- trainer to node ------------------------------------------------------------------------------


@record
class Prepare:
    """Description of the trainer's model. The descriptor of the arena is sent with it."""

    elements: int  # Float32 elements of the flat vector.
    layout: bytes
    state: bytes  # Digest of the packed state.
    state_bytes: int  # Size of the packed state.
    # Next round to run from this state; above 0 after a restart of the node or from a checkpoint.
    round_id: int = 0
    ledger: bytes = b""  # Ledger of the checkpoint.
    collectives: int = 0  # Number of rounds before ``round_id`` that made no step.
    marks: int = 0  # Number of elements after the numbers of the parameters.
    shapes: bytes = b""  # ``pack_shapes`` of the parameters, if the encoding needs shapes.
    # Numbers of bytes that a stage receives and sends for a micro-batch.
    activation_bytes: tuple[int, int] = (0, 0)


@record
class Contribute:
    """The update is in update slot ``slot``. With ``parameters``, the parameter slot with the same
    number is also filled."""

    round_id: int
    slot: int
    samples: int  # 0 means participation without an update.
    loss: float | None = None
    parameters: bool = False
    # Whether the whole update is known to be finite; False also if it was not checked.
    finite: bool = False
    rates: tuple[float, ...] = ()  # Learning rates of the optimizer's next step.
    collective: bytes = b""  # Data of a collective operation; there are no samples then.
    skipped: bool = False  # Whether the script received the samples and skipped them.
    steps: tuple[int, int] = (1, 1)  # Number of local steps made, and number planned for a round.
    micro_batches: tuple[int, ...] = ()  # In a pipeline: micro-batches in the update.
    lasted_us: int = 0  # Duration of the local steps; 0 means since the round began.
    replica: bytes = b""  # Digests of the replica before the round; b"" if it is not compared.
    kind: int = 0  # Kind of the step (``gossip.core.is_further``).


@record
class PassReply:
    """Reply to ``PassCommand``. The packet carries a descriptor of the tensor for the other stage:
    the output of a forward pass, or the gradient of the input. There is no output for a finished
    round, from a forward pass of the last stage, and from a backward pass of the first stage."""

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
    slot: int  # Slot that is free again; -1 if the round changed nothing.


@record
class JudgeReply:
    """Reply to ``JudgeCommand``. The aggregate is in the last row of the judging memory.
    ``reason``: reason for a missing aggregate. ``outlyingness`` is that of all rows; rows in
    ``outside`` come last."""

    ticket: int
    weights: tuple[float, ...]
    outlyingness: tuple[float, ...]
    reason: str


@record
class Snapshot:
    """The packed state before ``round_id``. The packet carries a descriptor of its memory.
    ``error``: reason for a missing state."""

    round_id: int
    nbytes: int
    error: str
    parts: tuple[int, ...] = ()  # Lengths of the parts.
    base: int = 0  # Bytes at the front of the first part that rarely change.


@record
class Log:
    """A line of metrics.jsonl: a JSON object of numbers and short strings."""

    metrics: str


@record
class ScriptPlan:
    """Announced plan of the script. It is used for monitoring."""

    steps: int | None  # Steps of the whole run; None if unknown.
    folder: str = ""  # Folder of the checkpoints; "" if the script saves none.
    every: int | None = None  # Steps between two checkpoints; None means only at the end.


@record
class DivergenceReport:
    """Difference of the local replica from those of most peers before ``round_id``.

    Attributes:
        peers_differ: Whether replicas differ already. If False, they would differ after a missed
            round.
        replaced: Whether the replica of most peers has replaced the local one.
        tensors: Names of some differing tensors, of ``count`` in total.
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
    """The trainer ends. ``digest`` is the digest of the parameters after all rounds before
    ``round_id``; b"" if there was no time to compute it."""

    reason: str  # "finished", "stopped", "raised".
    round_id: int = 0
    digest: bytes = b""
    not_saved: str = ""  # Reason for a missing last checkpoint; "" if it was saved.


# --- node to trainer ------------------------------------------------------------------------------


@record
class StartRoundCommand:
    round_id: int
    slot: int  # Update slot for the update.
    sharded: bool  # Whether ``epoch`` and ``ranges`` are set.
    epoch: int
    ranges: tuple[tuple[int, int], ...]
    want_parameters: bool
    peers: int  # Number of shares of a stream.
    alive: int
    rank: int = 0  # Share of this peer.
    # Predicted epoch and ranges of the next rounds.
    coming: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()
    # Numbers of the ``EpochReport`` of the last completed epoch; empty without one.
    last: tuple[int, ...] = ()
    main: int = 0  # Peer for work that exactly one peer must do.
    collectives: int = 0  # Number of earlier rounds that made no step.
    deadline_us: int = 0  # Time limit of the local steps; 0 means no limit.
    # Start of the round at the node, by the host's monotonic clock; 0.0 if unknown.
    began_at: float = 0.0
    compares: bool = False  # Whether the update needs digests of the replica.
    given_up_ranges: tuple[tuple[int, int], ...] = ()  # From the same ``EpochReport``.
    roster: tuple[int, ...] = ()
    left: tuple[int, ...] = ()  # Peers that have announced their departure.


@record
class PassCommand:
    """Compute a pass of a micro-batch through this stage. The memory from another stage is sent
    with it: the input for a forward pass, or the gradient of the output for a backward pass."""

    round_id: int
    micro_batch: int
    attempt: int
    backward: bool
    nbytes: int
    audit: bool = False  # Whether to recompute a micro-batch of another member, without the update.


@record
class CollectCommand:
    """Write the update of these micro-batches to ``slot`` and reply with ``Contribute``. Their
    backward passes are complete. The gradients are kept until the round is applied."""

    round_id: int
    slot: int
    micro_batches: tuple[int, ...]


@record
class ApplyCommand:
    """Apply the result of a round. ``slot`` is -1 if the round changes nothing. If ``mix_scale`` is
    not 0, mix slot ``slot`` has a parameter difference."""

    round_id: int
    slot: int
    mix_scale: float
    rates: tuple[float, ...] = ()  # Learning rates of all peers; if empty, each peer uses its own.
    # Values of a collective operation, by peer.
    collected: tuple[tuple[int, bytes], ...] = ()
    is_step: bool = True  # False for a collective operation and for a further step.
    taken: tuple[bool, ...] = ()  # For each shard, whether this peer's update is in the result.
    collectives: int = 0  # Number of earlier rounds that made no step.
    # Digests of most replicas before the round, if the local one differed; a state will follow.
    replica: bytes = b""
    kind: int = 0  # Kind of the step that the round makes.


@record
class JudgeCommand:
    """Run the rule on the first ``rows`` rows of the judging memory, and write the aggregate to row
    ``rows``.

    If ``capacity`` is not zero, the descriptor of that memory, float32 ``(capacity, elements)``, is
    sent with the command and replaces the previous one. ``own`` is the row of the local peer; -1 if
    there is none. With ``mix`` the rows are parameters: the trainer runs the rule on their
    differences from row ``own``, and the aggregate is also a difference. Without rows no rule is
    run, and row 0 gets the gradient of the judge's loss. The last ``outside`` rows do not enter the
    aggregate; only their outlyingness is needed.
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
    """Restore a packed state. Its memory is sent with the command. Without ``settings``, the
    trainer keeps the settings of its script."""

    round_id: int
    nbytes: int
    settings: bool = True


@record
class BesideCommand:
    """The packed state of another stage of a pipeline, for the following ``RebuildCommand``. Its
    memory is sent with it."""

    stage: int
    nbytes: int


@record
class RebuildCommand:
    """Create a state of the local stage to continue with from round ``round_id``, because no peer
    has one. ``is_last``: no further states of other stages can be requested."""

    round_id: int
    is_last: bool


StageCommand: TypeAlias = PassCommand | events.DropForward | events.ResetSum | CollectCommand
"""Commands for a member of a stage. It carries them out in the order of arrival."""
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
