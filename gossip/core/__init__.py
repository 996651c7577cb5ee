"""The sans-IO protocol: state machines that take an event and ``now`` and return effects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import events as events
    from . import messages as messages
    from . import settings as settings
    from .digests import digest_of as digest_of
    from .events import AddressLearned as AddressLearned
    from .events import Admission as Admission
    from .events import Aggregate as Aggregate
    from .events import Aggregated as Aggregated
    from .events import Applied as Applied
    from .events import Apply as Apply
    from .events import Arriving as Arriving
    from .events import BackwardDone as BackwardDone
    from .events import CancelTimer as CancelTimer
    from .events import ClockJumped as ClockJumped
    from .events import CollectUpdate as CollectUpdate
    from .events import Committed as Committed
    from .events import ConfirmState as ConfirmState
    from .events import Contributed as Contributed
    from .events import DropForward as DropForward
    from .events import Effect as Effect
    from .events import EpochReport as EpochReport
    from .events import Event as Event
    from .events import ForwardDone as ForwardDone
    from .events import Halt as Halt
    from .events import LedgerReply as LedgerReply
    from .events import LedgerRequest as LedgerRequest
    from .events import LinkDown as LinkDown
    from .events import LinkUp as LinkUp
    from .events import Payload as Payload
    from .events import PeerEnded as PeerEnded
    from .events import PeerExpected as PeerExpected
    from .events import PipelineTask as PipelineTask
    from .events import RebuildState as RebuildState
    from .events import Received as Received
    from .events import Report as Report
    from .events import ResetSum as ResetSum
    from .events import Restore as Restore
    from .events import Restored as Restored
    from .events import ResultSimilarity as ResultSimilarity
    from .events import Row as Row
    from .events import RunBackward as RunBackward
    from .events import RunForward as RunForward
    from .events import Send as Send
    from .events import SetTimer as SetTimer
    from .events import ShardStatistics as ShardStatistics
    from .events import SnapshotTaken as SnapshotTaken
    from .events import Started as Started
    from .events import StartRound as StartRound
    from .events import StateConfirmed as StateConfirmed
    from .events import StateRebuilt as StateRebuilt
    from .events import Stop as Stop
    from .events import TimerFired as TimerFired
    from .events import Token as Token
    from .events import TrainerLost as TrainerLost
    from .events import TrainerProgress as TrainerProgress
    from .frozen import record as record
    from .inspection import GossipInspection as GossipInspection
    from .inspection import Inspection as Inspection
    from .inspection import MembershipInspection as MembershipInspection
    from .inspection import RollingInspection as RollingInspection
    from .ledger import AHEAD_MAX as AHEAD_MAX
    from .ledger import HISTORY_ROUNDS as HISTORY_ROUNDS
    from .ledger import RATES_MAX as RATES_MAX
    from .ledger import RECENT as RECENT
    from .ledger import ROUNDS_KEPT_ALWAYS as ROUNDS_KEPT_ALWAYS
    from .ledger import SPEED_RATIO_MAX as SPEED_RATIO_MAX
    from .ledger import Pace as Pace
    from .ledger import Ranges as Ranges
    from .ledger import TrustTable as TrustTable
    from .ledger import chain_hash as chain_hash
    from .ledger import header_bytes as header_bytes
    from .ledger import pack_ledger as pack_ledger
    from .ledger import planned_peers as planned_peers
    from .ledger import settled_pace as settled_pace
    from .ledger import squeeze as squeeze
    from .ledger import stretch as stretch
    from .lifecycle import DIVERGED as DIVERGED
    from .lifecycle import QUORUM_LOST as QUORUM_LOST
    from .lifecycle import RETURN_HELLO_EVERY as RETURN_HELLO_EVERY
    from .lifecycle import RETURN_INTERVAL_S as RETURN_INTERVAL_S
    from .lifecycle import STATE_LOST as STATE_LOST
    from .membership import CONNECT_GRACE_S as CONNECT_GRACE_S
    from .membership import LAST_WORDS_S as LAST_WORDS_S
    from .membership import REFUTATIONS as REFUTATIONS
    from .membership import RELAYS_MAX as RELAYS_MAX
    from .membership import STRAY_EVERY as STRAY_EVERY
    from .membership import TIMERS as TIMERS
    from .membership import Change as Change
    from .membership import Member as Member
    from .membership import Membership as Membership
    from .membership import MemberTable as MemberTable
    from .membership import Probe as Probe
    from .membership import incarnation_of as incarnation_of
    from .membership import longest_s as longest_s
    from .membership import retransmit_limit as retransmit_limit
    from .membership import shortest_s as shortest_s
    from .membership import table_interval_s as table_interval_s
    from .messages import ACCUSATIONS_MAX as ACCUSATIONS_MAX
    from .messages import AUDIT_VOTES_MAX as AUDIT_VOTES_MAX
    from .messages import BULK_MESSAGES as BULK_MESSAGES
    from .messages import COLLECTED_BYTES_MAX as COLLECTED_BYTES_MAX
    from .messages import CORE_BYTES_MAX as CORE_BYTES_MAX
    from .messages import CROSS_SHARD_PEERS_MAX as CROSS_SHARD_PEERS_MAX
    from .messages import DIGEST_BYTES as DIGEST_BYTES
    from .messages import PIECES_MAX as PIECES_MAX
    from .messages import ROUND_MAX as ROUND_MAX
    from .messages import STATISTICS_BYTES_MAX as STATISTICS_BYTES_MAX
    from .messages import TRACE_BYTES as TRACE_BYTES
    from .messages import Accusation as Accusation
    from .messages import Ack as Ack
    from .messages import Activation as Activation
    from .messages import ActivationGradient as ActivationGradient
    from .messages import ActivationRefused as ActivationRefused
    from .messages import AuditFinding as AuditFinding
    from .messages import AuditReply as AuditReply
    from .messages import AuditRequest as AuditRequest
    from .messages import AuditVote as AuditVote
    from .messages import Collected as Collected
    from .messages import Commit as Commit
    from .messages import CommitRequest as CommitRequest
    from .messages import Contribution as Contribution
    from .messages import Counted as Counted
    from .messages import Envelope as Envelope
    from .messages import GatherValue as GatherValue
    from .messages import Gossip as Gossip
    from .messages import Hello as Hello
    from .messages import Message as Message
    from .messages import MicroBatchesMissing as MicroBatchesMissing
    from .messages import Nack as Nack
    from .messages import NotServing as NotServing
    from .messages import PartialOverdue as PartialOverdue
    from .messages import PartialStatistics as PartialStatistics
    from .messages import PeerId as PeerId
    from .messages import Ping as Ping
    from .messages import PingRequest as PingRequest
    from .messages import PipelineMessage as PipelineMessage
    from .messages import Progress as Progress
    from .messages import Push as Push
    from .messages import PushPull as PushPull
    from .messages import Rejection as Rejection
    from .messages import Rumor as Rumor
    from .messages import StageDone as StageDone
    from .messages import StateAttestation as StateAttestation
    from .messages import StateOffer as StateOffer
    from .messages import StateRequest as StateRequest
    from .messages import Status as Status
    from .messages import Update as Update
    from .messages import UpdateRequest as UpdateRequest
    from .messages import Withdraw as Withdraw
    from .peer import Peer as Peer
    from .pipeline import Auditor as Auditor
    from .pipeline import MicroBatchFlow as MicroBatchFlow
    from .pipeline import Router as Router
    from .pipeline import StageBarrier as StageBarrier
    from .rounds import BEHIND_MAX as BEHIND_MAX
    from .rounds import BEHIND_ROUNDS as BEHIND_ROUNDS
    from .rounds import BEHIND_S as BEHIND_S
    from .rounds import BUSY_S as BUSY_S
    from .rounds import PLANS_KEPT as PLANS_KEPT
    from .rounds import TIMES_KEPT as TIMES_KEPT
    from .rounds import GossipRounds as GossipRounds
    from .rounds import RollingRounds as RollingRounds
    from .rounds import ShardRound as ShardRound
    from .rounds import quorum_of as quorum_of
    from .settings import MICRO_BATCHES_MAX as MICRO_BATCHES_MAX
    from .settings import ON_LINKS as ON_LINKS
    from .settings import BatchPolicy as BatchPolicy
    from .settings import CoreSettings as CoreSettings
    from .settings import GossipSettings as GossipSettings
    from .settings import MembershipSettings as MembershipSettings
    from .settings import PipelineSettings as PipelineSettings
    from .settings import Quorum as Quorum
    from .settings import RoundSettings as RoundSettings
    from .settings import Slices as Slices
    from .settings import TrustSettings as TrustSettings
    from .timers import Timers as Timers
    from .transfer import COPIES_MAX as COPIES_MAX
    from .transfer import PIECE_BYTES as PIECE_BYTES
    from .transfer import REMIND_S as REMIND_S
    from .transfer import TAKERS_MAX as TAKERS_MAX
    from .transfer import PieceManifest as PieceManifest
    from .transfer import attested_digest as attested_digest
    from .transfer import outline_of as outline_of
    from .transfer import parts_of as parts_of
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "digests": ("digest_of",),
            "events": (
                "BackwardDone",
                "CollectUpdate",
                "DropForward",
                "ForwardDone",
                "PipelineTask",
                "RebuildState",
                "StateRebuilt",
                "ResetSum",
                "RunBackward",
                "RunForward",
                "AddressLearned",
                "Admission",
                "Aggregate",
                "Aggregated",
                "Applied",
                "Apply",
                "Arriving",
                "CancelTimer",
                "ClockJumped",
                "PeerExpected",
                "Committed",
                "ConfirmState",
                "LedgerReply",
                "LedgerRequest",
                "StateConfirmed",
                "Contributed",
                "Effect",
                "PeerEnded",
                "EpochReport",
                "Event",
                "StartRound",
                "Halt",
                "ResultSimilarity",
                "LinkDown",
                "LinkUp",
                "ShardStatistics",
                "Payload",
                "Received",
                "Report",
                "Restore",
                "Restored",
                "Row",
                "Send",
                "SetTimer",
                "SnapshotTaken",
                "Started",
                "Stop",
                "TimerFired",
                "Token",
                "TrainerLost",
                "TrainerProgress",
                "events",
            ),
            "frozen": ("record",),
            "inspection": (
                "GossipInspection",
                "Inspection",
                "MembershipInspection",
                "RollingInspection",
            ),
            "ledger": (
                "AHEAD_MAX",
                "HISTORY_ROUNDS",
                "RATES_MAX",
                "RECENT",
                "ROUNDS_KEPT_ALWAYS",
                "SPEED_RATIO_MAX",
                "Pace",
                "Ranges",
                "TrustTable",
                "chain_hash",
                "header_bytes",
                "pack_ledger",
                "planned_peers",
                "settled_pace",
                "squeeze",
                "stretch",
            ),
            "lifecycle": (
                "DIVERGED",
                "QUORUM_LOST",
                "RETURN_HELLO_EVERY",
                "RETURN_INTERVAL_S",
                "STATE_LOST",
            ),
            "membership": (
                "CONNECT_GRACE_S",
                "Change",
                "LAST_WORDS_S",
                "Member",
                "MemberTable",
                "Membership",
                "Probe",
                "REFUTATIONS",
                "RELAYS_MAX",
                "STRAY_EVERY",
                "TIMERS",
                "incarnation_of",
                "longest_s",
                "retransmit_limit",
                "shortest_s",
                "table_interval_s",
            ),
            "messages": (
                "Activation",
                "ActivationGradient",
                "ActivationRefused",
                "AUDIT_VOTES_MAX",
                "AuditFinding",
                "AuditReply",
                "AuditRequest",
                "AuditVote",
                "TRACE_BYTES",
                "Counted",
                "MicroBatchesMissing",
                "PipelineMessage",
                "StageDone",
                "Withdraw",
                "Ack",
                "BULK_MESSAGES",
                "ACCUSATIONS_MAX",
                "COLLECTED_BYTES_MAX",
                "CORE_BYTES_MAX",
                "Accusation",
                "Commit",
                "CommitRequest",
                "Collected",
                "Contribution",
                "DIGEST_BYTES",
                "Envelope",
                "GatherValue",
                "Gossip",
                "Hello",
                "CROSS_SHARD_PEERS_MAX",
                "Message",
                "Nack",
                "NotServing",
                "PartialOverdue",
                "PIECES_MAX",
                "PartialStatistics",
                "PeerId",
                "Ping",
                "PingRequest",
                "Progress",
                "Push",
                "PushPull",
                "UpdateRequest",
                "ROUND_MAX",
                "Rejection",
                "Rumor",
                "STATISTICS_BYTES_MAX",
                "StateOffer",
                "StateRequest",
                "Status",
                "Update",
                "StateAttestation",
                "messages",
            ),
            "peer": ("Peer",),
            "pipeline": ("Auditor", "MicroBatchFlow", "Router", "StageBarrier"),
            "rounds": (
                "BEHIND_MAX",
                "BEHIND_ROUNDS",
                "BEHIND_S",
                "BUSY_S",
                "GossipRounds",
                "PLANS_KEPT",
                "RollingRounds",
                "ShardRound",
                "TIMES_KEPT",
                "quorum_of",
            ),
            "settings": (
                "MICRO_BATCHES_MAX",
                "ON_LINKS",
                "PipelineSettings",
                "BatchPolicy",
                "CoreSettings",
                "GossipSettings",
                "MembershipSettings",
                "PipelineSettings",
                "RoundSettings",
                "Quorum",
                "Slices",
                "TrustSettings",
                "settings",
            ),
            "timers": ("Timers",),
            "transfer": (
                "COPIES_MAX",
                "PIECE_BYTES",
                "PieceManifest",
                "REMIND_S",
                "TAKERS_MAX",
                "outline_of",
                "parts_of",
                "attested_digest",
            ),
        },
    )
