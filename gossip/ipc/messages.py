"""Messages between a trainer and its node over their one local socket. They are plain data, packed
by ``transport.codec``. Events and effects of the core that have no payload travel as they are.

The socket is a Unix SOCK_SEQPACKET pair: message boundaries are kept, memory travels as a file
descriptor beside a message (SCM_RIGHTS), and either side sees the other's death as end of file at
once. Several messages may share one packet.

A life, seen from the trainer:

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

In a pipeline, a round has in place of one Contribute:

             <- Pass(r)*  compute a forward or a backward pass of a micro-batch
    PassReply(r) ->       its output
             <- DropForward(r)*, ResetSum(r)*  drop one pass, or all
             <- Collect(r)  the update of the micro-batches so far into update slot ``slot``
    Contribute(r) ->      Collect may come again

``Go`` is ``StartRoundCommand``, ``Judged`` is ``JudgeReply``. Other names leave out ``Command`` and
``Reply``.
"""

from __future__ import annotations

from typing import TypeAlias

from gossip.core import events, record
from gossip.errors import ConfigError, Refused, ReplicasDiverged, StateLost, SwarmError

UPDATE_SLOTS = 4
RESULT_SLOTS = 4
"""Number of slots that results are copied to. They may also lie in further slots behind these."""
EXIT_SIGTERM = 143  # of a peer that was asked to stop, and left


# --- trainer to node ------------------------------------------------------------------------------


@record
class Prepare:
    """The descriptor of the arena travels with it."""

    elements: int  # float32 elements of the flat vector
    layout: bytes
    state: bytes  # digest of the packed state
    state_bytes: int  # size of the packed state
    # the next round to run on this state: not 0 when a node is started again beside
    # a living trainer, or when the trainer has loaded a checkpoint
    round_id: int = 0
    ledger: bytes = b""  # of the checkpoint
    collectives: int = 0  # of the rounds before ``round_id``, those that were no steps
    marks: int = 0  # of the elements, those behind the parameters' numbers
    shapes: bytes = b""  # ``pack_shapes`` of the parameters', where the encoding writes tensors
    # of a micro-batch: what a stage takes and what it hands on
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
    # all of the update, looked at while it was in the cache; False: nobody has looked, or it is not
    finite: bool = False
    rates: tuple[float, ...] = ()  # what the optimizer would step with
    collective: bytes = b""  # given to a collective operation; then there are no samples
    skipped: bool = False  # the script was handed the samples, and they were of no use
    steps: tuple[int, int] = (1, 1)  # local steps that were taken, and that a round has
    micro_batches: tuple[int, ...] = ()  # in a pipeline: those that the update is of
    lasted_us: int = 0  # the local steps that were taken; 0: since the round began
    replica: bytes = b""  # digests of the replica before the round, where it is compared
    kind: int = 0  # of the step that it is for (``gossip.core.is_further``)


@record
class PassReply:
    """The answer to ``PassCommand``. What goes on to another stage travels along: the output of a
    forward pass, or the gradient of the input. Nothing does from the last stage forward, from the
    first one backward, and of a round that is over."""

    round_id: int
    micro_batch: int
    attempt: int
    backward: bool
    nbytes: int
    samples: int = 0
    loss: float | None = None  # of the micro-batch, from the last stage's backward pass
    audit: bool = False
    took_us: int = 0  # computing it


@record
class AppliedReply:
    round_id: int
    slot: int  # free again; -1 when the round changed nothing


@record
class JudgeReply:
    """The aggregate is in the judging memory's last row. ``reason`` says why there is none.
    ``outlyingness`` is of all rows, those outside behind the others."""

    ticket: int
    weights: tuple[float, ...]
    outlyingness: tuple[float, ...]
    reason: str


@record
class Snapshot:
    """The packed state before ``round_id``; its memory travels with it.
    ``error`` says why there is none."""

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
    """Plan of the script, as far as it has announced it, for monitoring."""

    steps: int | None  # of the whole run; None: it has not said
    folder: str = ""  # of its checkpoints; "": it saves none
    every: int | None = None  # steps between two of them; None: only at the end


@record
class DivergenceReport:
    """How this peer's replica differs from that of most before ``round_id``.

    Attributes:
        replaced: It was, by that of most. Else it was not, or (without ``peers_differ``) it would
            differ from theirs after a missed round.
        tensors: Some that differ, of ``count``.
        largest: Difference of two numbers; -1.0: not known.
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
    """Goodbye. ``digest`` is that of the parameters after all rounds before ``round_id``; b"" when
    there was no time for it."""

    reason: str  # "finished", "stopped", "raised"
    round_id: int = 0
    digest: bytes = b""
    not_saved: str = ""  # why the last checkpoint is not there; "": it is, or none was wanted


# --- node to trainer ------------------------------------------------------------------------------


@record
class StartRoundCommand:
    round_id: int
    slot: int  # update slot to write to
    sharded: bool  # whether ``epoch`` and ``ranges`` mean anything
    epoch: int
    ranges: tuple[tuple[int, int], ...]
    want_parameters: bool
    peers: int  # roster size
    alive: int
    rank: int = 0  # this peer's place in the roster
    # epoch and ranges of rounds to come: a guess
    coming: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()
    # the numbers of the ``EpochReport`` of the last completed epoch, if there is one
    last: tuple[int, ...] = ()
    main: int = 0  # the peer that does what is to be done once
    collectives: int = 0  # of the rounds before, those that were no steps
    deadline_us: int = 0  # by when its local steps are to be taken; 0: all are to be taken
    # when the round began at the node, by the host's monotonic clock; 0.0: that is not known
    began_at: float = 0.0
    compares: bool = False  # the update comes with digests of the replica
    given_up_ranges: tuple[tuple[int, int], ...] = ()  # of the same report


@record
class PassCommand:
    """Compute a pass of a micro-batch through this stage. What it begins with, if it comes from
    another stage, travels along: the input, or backward the gradient of the output."""

    round_id: int
    micro_batch: int
    attempt: int
    backward: bool
    nbytes: int
    audit: bool = False  # of another member's micro-batch: it has no part in the update


@record
class CollectCommand:
    """Put the update of these micro-batches, which are those that had their backward pass, into
    ``slot``, and answer with ``Contribute``. The gradients stay, until the round is applied."""

    round_id: int
    slot: int
    micro_batches: tuple[int, ...]


@record
class ApplyCommand:
    """``slot`` is -1 when the round changes nothing. With ``mix_scale != 0`` mix slot ``slot``
    holds a parameter difference."""

    round_id: int
    slot: int
    mix_scale: float
    rates: tuple[float, ...] = ()  # what all step with; none: each with its own
    # peers, and what each has given to a collective operation
    collected: tuple[tuple[int, bytes], ...] = ()
    is_step: bool = True  # else the round was nothing but that, or a further one
    taken: tuple[bool, ...] = ()  # of each shard, whether this peer's update is in the result
    collectives: int = 0  # of the rounds before, those that were no steps
    # digests that most replicas had before the round, where this one differed; a state follows
    replica: bytes = b""
    kind: int = 0  # of the step that the round makes


@record
class JudgeCommand:
    """Run the rule over the first ``rows`` rows of the judging memory,
    write the aggregate into row ``rows``.

    The descriptor of that memory, float32 ``(capacity, elements)``, travels along when ``capacity``
    is not zero: it replaces the one before. ``own`` is -1 when there is no own row. With ``mix``
    the rows are parameters: the trainer runs the rule over their differences to row ``own``, and
    the aggregate is a difference too. Without rows there is no rule to run: row 0 gets the gradient
    of the judge's loss. The last ``outside`` of the rows have no part in the aggregate, and how far
    out they lie is asked for.
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
    """A packed state; its memory travels along. Without ``settings`` the trainer keeps what its
    own script sets."""

    round_id: int
    nbytes: int
    settings: bool = True


@record
class BesideCommand:
    """The packed state of another stage of a pipeline, for the ``RebuildCommand`` that follows; its
    memory travels along."""

    stage: int
    nbytes: int


@record
class RebuildCommand:
    """Nobody has the state of this peer's stage: make one to go on with from round ``round_id``.
    ``is_last``: with the states of other stages that have come, and no more can be asked for."""

    round_id: int
    is_last: bool


StageCommand: TypeAlias = PassCommand | events.DropForward | events.ResetSum | CollectCommand
"""Commands for a member of a stage, which it carries out in the order of arrival."""


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
    | PassCommand
    | events.DropForward
    | events.ResetSum
    | CollectCommand
    | ApplyCommand
    | JudgeCommand
    | events.TakeSnapshot
    | RestoreCommand
    | BesideCommand
    | RebuildCommand
    | events.StateConfirmed
    | events.LedgerReply
    | events.Halt
)
