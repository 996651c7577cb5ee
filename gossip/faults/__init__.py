"""Faults as data: their kinds, their syntax on the command line, and their tables in a plan
file."""

from . import kinds, plan
from .activations import (
    ActivationFault,
    FalseAudits,
    NegatedActivations,
    NegatedGradients,
    PassResult,
    ScaledGradients,
    corrupt_pass_result,
)
from .declare import KINDS, Fault
from .drills import Drill, DrillFile, write
from .kinds import (
    ATTACKS,
    Blow,
    ByzantineFault,
    Crash,
    Hang,
    RealFault,
    Restart,
    Slow,
    attacker,
)
from .links import near, severed
from .plan import FaultPlan, check_attack, check_effect, load, parse
from .reader import peers_of, peers_word, seconds_of
from .start import (
    LateStart,
    LateTrainer,
    NeverStarts,
    StartFault,
)
from .tables import toml_of
from .world import (
    CLAIM_ATTACKS,
    LINK_KINDS,
    NODE_ATTACKS,
    PIECE_ATTACKS,
    RESULT_ATTACKS,
    SHARD_ATTACKS,
    STATE_ATTACKS,
    Break,
    Corrupt,
    CrashBroadcast,
    CrashMidway,
    Delay,
    Drift,
    Duplicate,
    Flap,
    HangServer,
    HangTrainer,
    KillTrainer,
    LateTimers,
    Leave,
    LinkFault,
    Loss,
    Narrow,
    NetworkFault,
    NodeAttack,
    Partition,
    ProcessFault,
    Reorder,
    Reset,
    Rewritten,
    Ring,
    ServerFault,
    SlowNode,
    Spike,
    Starve,
    Trickle,
    Unreadable,
    Weather,
    WorldFault,
)
