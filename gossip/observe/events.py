"""Events of a run. Each event is a line of ``events.jsonl``.

Every writer sets the fields without a default. If a row of another version lacks such a field,
readers find None. ``from_`` and ``for_`` are written as ``from`` and ``for``, because these are
keywords of Python.
"""

from __future__ import annotations

from .event import Event, Judgement, PeerEvent, StageEvent, SubjectEvent
from .fields import (
    Alive,
    Count,
    Counts,
    Figures,
    Flag,
    Logged,
    Other,
    Peer,
    Peers,
    Real,
    RoundId,
    Scores,
    Text,
    Texts,
    Traffic,
    scores_of,
)


class AliveAgain(SubjectEvent):
    """A suspected or dead member is alive, with a higher incarnation."""


class Announced(PeerEvent):
    """This peer has written its address to the run's folder, after failed attempts."""

    path: Text
    why: Text


class Attempt(PeerEvent):
    """A shard of a round has moved to its next server, for this `reason`."""

    shard: RoundId
    attempt: RoundId
    server: Peer
    reason: Text = None


class AuditDiffers(SubjectEvent):
    """This peer recomputed another member's micro-batch, and its result differs from the member's
    result."""

    micro_batch: Count
    contradicts: Peers


class AuditGivenUp(SubjectEvent):
    """A micro-batch could not be audited, for this `reason`."""

    micro_batch: Count
    reason: Text


class BadCommit(PeerEvent):
    """A commit was rejected because it is not a valid result of the round."""

    shard: RoundId
    server: Peer
    from_: Peer
    reason: Text


class BadState(PeerEvent):
    """A state from a donor is not the attested state, or cannot be loaded."""

    from_: Peer
    reason: Text = None


class Batch(PeerEvent):
    """The number of samples in a round has changed."""

    policy: Text
    peers: Count
    local: Count
    samples: Count


class Behind(PeerEvent):
    """This peer of a gossip topology has skipped rounds, because other peers are far ahead."""

    ahead: Count


class CannotKeepUp(PeerEvent):
    """This peer falls behind repeatedly. It requests a state again after a pause."""

    reason: Text
    times: Count
    again_s: Real


class CannotWrite(Event):
    """A file of the run cannot be written."""

    path: Text
    why: Text


class Cleared(Judgement):
    """A peer's parole is over, because its trust stayed high. Its updates count fully again."""


class Continued(PeerEvent):
    """The launcher has sent SIGCONT to a stopped peer."""


class CountedTwice(PeerEvent):
    """Two members of a stage counted the same micro-batches. This peer restarts its sum without
    them."""

    micro_batches: Other


class Dead(SubjectEvent):
    """A suspected member did not refute the suspicion in time."""

    reason: Text
    by: Peer


class Divergence(PeerEvent):
    """A peer's replica differs from the majority in these `tensors`. If `peers_differ` is false, it
    will differ only after a missed round."""

    peers_differ: Flag
    replaced: Flag
    tensors: Texts
    count: Count
    largest: Real
    cause: Text
    remedy: Text


class Drill(Event):
    """A command of `gossip drill` was carried out."""

    number: Count
    drill: Text
    peers: Other = None
    sides: Other = None
    for_s: Real = None
    restart_s: Real = None
    for_good: Flag = None
    factor: Real = None
    attack: Text = None
    strength: Real = None
    one_way: Flag = None


class Epoch(PeerEvent):
    """An epoch is complete. Its samples were used by rounds, skipped by scripts, discarded, or left
    for the next epoch."""

    epoch: RoundId
    once: Count
    twice: Count
    left: Count
    rounds: Count
    skipped: Count
    given_up: Count
    given_up_ranges: Other


class Error(PeerEvent):
    """An error occurred on this peer; the message has the details."""

    message: Text
    hint: Text = None
    part: Text = None


class EventsSuppressed(PeerEvent):
    """Further events of one kind about one peer were not written, but counted."""

    of: Text
    about: Peer
    count: Count
    message: Text


class Exited(PeerEvent):
    """A process of a peer has ended."""

    planned: Flag = None
    stopping: Flag = None
    incarnation: Count
    code: Count
    signal: Count
    how: Text


class Fault(PeerEvent):
    """An injected fault has begun."""

    kind: Text
    fault: Text
    seconds: Real = None


class FaultOver(PeerEvent):
    """An injected fault has ended."""

    kind: Text
    fault: Text


class Fork(PeerEvent):
    """This peer has received two different commits for one shard of a round."""

    shard: RoundId
    server: Peer
    from_: Peer
    held: Text
    heard: Text


class FoundByAudit(SubjectEvent):
    """Enough audits by other members of the stage found wrong results of this member."""


class Halted(PeerEvent):
    """The node has ended properly. `traffic`: bytes sent and received."""

    reason: Text
    exit_code: Count
    traffic: Traffic
    state_round: RoundId = None
    state_digest: Text = None
    not_saved: Text = None


class HostLost(Event):
    """The launcher has lost the connection to a host's agent."""

    host: Text
    peers: Peers


class IdenticalUpdates(PeerEvent):
    """The updates of these peers are bit-identical, so they have the effect of one peer."""

    peers: Peers


class JoinServer(Event):
    """A launcher's join server listens at this address."""

    address: Text


class Joined(SubjectEvent):
    """This peer has met a member for the first time."""


class KeptOwnState(PeerEvent):
    """A returning peer's own state equals the swarm's, so no state is transferred."""


class Kernels(PeerEvent):
    """The node has chosen an implementation of the aggregation kernels (`backend`)."""

    seconds: Real = None
    backend: Text = None


class Late(PeerEvent):
    """A server has closed a round without these peers after their grace period."""

    shard: RoundId = None
    missing: Peers
    waited_s: Real = None


class LauncherEnded(Event):
    """A launcher has ended, with this exit code."""

    exit_code: Count
    joins: Flag


class LauncherLost(Event):
    """A host's agent no longer receives messages from its launcher."""

    silent_s: Real


class Left(SubjectEvent):
    """A member has left, after it announced its departure."""

    reason: Text
    by: Peer


class Lingering(PeerEvent):
    """This peer has finished, and stays to send its state to peers that are behind."""

    for_: Peers
    at_most_s: Real


class LostRound(PeerEvent):
    """A round changes nothing, because there was no aggregate."""

    reason: Text


class LowInfluence(SubjectEvent):
    """Over 20 rounds, the updates of `subject` had on average less than half of an equal weight
    (`share`)."""

    share: Real


class Metrics(PeerEvent):
    """Values that the user's script logged."""

    loss: Logged
    accuracy: Logged


class MinorityContinues(PeerEvent):
    """A round was closed with fewer peers than a majority of the roster."""

    alive: Peers
    of: Count


class MixingFailed(PeerEvent):
    """Parameters were not mixed in a gossip round, for this `reason`."""

    reason: Text


class NoState(PeerEvent):
    """A donor has no state to send, for this `reason`."""

    from_: Peer
    reason: Text


class NoStateFound(PeerEvent):
    """No donor has sent its state in time, so this peer skips the donors in `passed`."""

    passed: Peers


class Notice(PeerEvent):
    """A notice for the user, for example about a rejected key."""

    message: Text
    hint: Text
    about: Peer = None


class OtherStage(SubjectEvent):
    """A message about a round or a state was rejected, because its sender is in another stage of
    the pipeline."""

    message: Text
    stage: RoundId


class Over(PeerEvent):
    """This peer's training is over."""

    message: Text


class Parole(Judgement):
    """A peer's quarantine is over. Its updates are used again, on parole."""


class PassedOver(SubjectEvent):
    """A server is excluded for some rounds, because its results repeatedly failed to arrive."""


class Paused(PeerEvent):
    """This peer waits for a quorum."""

    alive: Alive
    need: Count
    why: Text


class Plan(PeerEvent):
    """Plan of a script: number of `steps`, `folder` of its checkpoints, and steps between two
    checkpoints (`every`)."""

    steps: Other
    folder: Text
    every: Other


class Quarantined(Judgement):
    """A peer's updates are not used for some rounds, and it does not serve."""


class Ready(PeerEvent):
    """Enough peers are present, and training begins."""

    present: Peers
    waited_s: Real


class RebuildingStage(StageEvent):
    """No peer has the state of this peer's stage of a pipeline, so its trainer rebuilds it."""


class RecordIncomplete(Event):
    """These files lack lines that could not be written."""

    files: Other


class Recovering(PeerEvent):
    """This peer requests the state from other peers, for this `reason`."""

    reason: Text
    from_: Peer


class ReducedTolerance(PeerEvent):
    """Too few updates to tolerate `wanted` Byzantine peers: the round tolerates only `f`."""

    f: Count
    wanted: Count
    updates: Count


class RefusedResult(PeerEvent):
    """A server's result was rejected because its values are implausible."""

    shard: RoundId
    server: Peer
    from_: Peer
    reason: Text


class ReplicasDiffer(PeerEvent):
    """The replicas of these `peers` differ from the majority of the peers that sent digests in
    this round."""

    peers: Peers
    of: Count


class Rerouted(PeerEvent):
    """A micro-batch goes to another member of the next stage of a pipeline."""

    micro_batch: Count
    from_: Peer


class Restarting(PeerEvent):
    """The launcher restarts a peer after an unplanned death (`--restarts`), `wait_s` later."""

    number: Count
    of: Count
    wait_s: Real
    why: Text


class RestartsUsedUp(PeerEvent):
    """A peer died again, but its launcher has used up the restarts."""

    of: Count
    why: Text


class Restored(PeerEvent):
    """The trainer has loaded a donor's state."""

    from_: Peer
    nbytes: Count


class Resumed(PeerEvent):
    """This peer has a quorum again."""

    alive: Alive


class Round(PeerEvent):
    """A round was applied. `step` is the number of steps so far, and `took_us` has the times of the
    contributors."""

    since: RoundId = None
    step: Count = None
    loss: Real
    server: Peer
    attempt: RoundId
    contributors: Peers
    took_us: Counts = None
    alive: Alive
    trust: Scores
    consensus_distance: Real = None
    consensus_ratio: Real = None

    @property
    def scores(self) -> dict[int, float]:
        """Peer -> trust score, without unknown scores."""
        return scores_of(self.trust)

    @property
    def alive_count(self) -> int | None:
        return len(self.alive) if isinstance(self.alive, list) else self.alive

    @property
    def rounds(self) -> range:
        """Rounds that the row describes. A peer writes one row for consecutive equal rounds."""
        last = self.round or 0
        since = last if self.since is None else self.since
        return range(since if 0 <= since <= last else last, last + 1)


class ServesAgain(SubjectEvent):
    """An excluded server serves again."""


class Share(SubjectEvent):
    """A peer's share of the samples of a round has changed, because of the peer's speed."""

    was: Real
    share: Real


class Skip(SubjectEvent):
    """Peers no longer wait for a member, for this `reason`."""

    reason: Text
    by: Peer


class SnapshotServed(PeerEvent):
    """This peer has sent its state, or a piece of its state, to another peer."""

    to: Peer
    nbytes: Count
    piece: Count = None


class Spawned(PeerEvent):
    """The launcher has started a peer."""

    pid: Count
    incarnation: Count
    joins: Flag = None
    host: Text = None


class StageBack(StageEvent):
    """A peer of a lost stage is back."""

    peers: Peers


class StageLost(StageEvent):
    """None of the `peers` of another `stage` of the pipeline is reachable."""

    peers: Peers


class StageRebuilt(StageEvent):
    """This peer has rebuilt the state of its stage from `source`. The state is `lost` rounds old,
    and the script created `fresh` of its layers anew."""

    source: Text
    lost: Other
    fresh: Count


class Started(PeerEvent):
    """The node of a peer runs, under these process ids."""

    pid: Count
    trainer_pid: Count
    incarnation: Count
    host: Text
    control: Text = None
    bulk: Text = None


class Stopping(Event):
    """The launcher requests all its peers to leave."""

    reason: Text


class Suspect(SubjectEvent):
    """A member does not reply and may be dead."""

    reason: Text
    by: Peer


class Suspected(Judgement):
    """A peer's trust score has fallen below the threshold of suspicion."""


class Trusted(Judgement):
    """A peer's trust score is above the threshold of suspicion again."""


class Unannounced(PeerEvent):
    """This peer cannot write its address to the run's folder, so other peers cannot find it."""

    path: Text
    why: Text


class UnattestedState(PeerEvent):
    """Fewer than f + 1 peers attest a state, and it is accepted anyway."""

    attested_by: Peers
    need: Count


class UnconfirmedResult(PeerEvent):
    """This peer could not confirm that enough other peers have the same final state."""

    same: Count
    other: Count
    silent: Peers


class UnequalUpdates(PeerEvent):
    """The updates of the same peers are farther out in many rounds, by `beyond` standard deviations
    more than by chance."""

    beyond: Real
    f: Count


class UnlikeProfile(SubjectEvent):
    """A peer of a pipeline takes much more or less time for a micro-batch (`measured_us`) than its
    profile predicts (`predicted_us`)."""

    measured_us: Real
    predicted_us: Real


class Unmet(Event):
    """A peer was not reached before the start. `why` has the replies from its addresses."""

    subject: Peer
    why: Text


class Unskip(SubjectEvent):
    """Peers wait for a member again."""


class Usage(PeerEvent):
    """Resources that a peer's trainer and node use, and free ones of the machine, every 5 s."""

    cpu_s: float
    memory: int
    sent_bytes: int
    received_bytes: int
    load: Real = None
    machine_memory_free: Real = None
    disk_free: Real = None
    gpus: Figures = None


class Waiting(PeerEvent):
    """Training waits for missing peers."""

    missing: Peers
    waited_s: Real
