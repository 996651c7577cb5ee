"""Faults as data: what kinds there are, how they are typed, how they stand in a plan file."""

from . import kinds as kinds, plan as plan
from .activations import (
    ActivationFault as ActivationFault,
    FalseAudits as FalseAudits,
    NegatedActivations as NegatedActivations,
    NegatedGradients as NegatedGradients,
    PassResult as PassResult,
    ScaledGradients as ScaledGradients,
    said_of as said_of,
)
from .declare import KINDS as KINDS, Fault as Fault
from .drills import Drill as Drill, DrillFile as DrillFile, write as write
from .kinds import (
    ATTACKS as ATTACKS,
    Blow as Blow,
    ByzantineFault as ByzantineFault,
    Crash as Crash,
    Hang as Hang,
    Restart as Restart,
    Slow as Slow,
    attacker as attacker,
)
from .links import near as near, severed as severed
from .plan import FaultPlan as FaultPlan, check_effect as check_effect, load as load, parse as parse
from .reader import peers_of as peers_of, peers_word as peers_word, seconds_of as seconds_of
from .start import (
    LateStart as LateStart,
    LateTrainer as LateTrainer,
    NeverStarts as NeverStarts,
    StartFault as StartFault,
)
from .world import (
    CLAIM_ATTACKS as CLAIM_ATTACKS,
    LINK_KINDS as LINK_KINDS,
    NODE_ATTACKS as NODE_ATTACKS,
    PIECE_ATTACKS as PIECE_ATTACKS,
    RESULT_ATTACKS as RESULT_ATTACKS,
    SHARD_ATTACKS as SHARD_ATTACKS,
    STATE_ATTACKS as STATE_ATTACKS,
    Break as Break,
    Corrupt as Corrupt,
    CrashBroadcast as CrashBroadcast,
    CrashMidway as CrashMidway,
    Delay as Delay,
    Drift as Drift,
    Duplicate as Duplicate,
    Flap as Flap,
    HangServer as HangServer,
    HangTrainer as HangTrainer,
    KillTrainer as KillTrainer,
    LateTimers as LateTimers,
    Leave as Leave,
    LinkFault as LinkFault,
    Loss as Loss,
    Narrow as Narrow,
    NetworkFault as NetworkFault,
    NodeAttack as NodeAttack,
    Partition as Partition,
    ProcessFault as ProcessFault,
    Reorder as Reorder,
    Reset as Reset,
    Rewritten as Rewritten,
    Ring as Ring,
    ServerFault as ServerFault,
    SlowNode as SlowNode,
    Spike as Spike,
    Starve as Starve,
    Trickle as Trickle,
    Unreadable as Unreadable,
    Weather as Weather,
)
