"""Safety checkers: events that must never happen."""

from gossip_lab.simulation.checkers.base import Checker

from .answering import RuleAnswers
from .concluding import EndsAlike
from .contents import (
    CheckedBeforeUse,
    Conserved,
    TakesOverTheDonorsState,
)
from .evidence import (
    AnAnswerEndsTheSkip,
    ClosedIsSkipped,
    FormerLivesAreNotAnswered,
    NobodyAsksTheDead,
    NoUnfoundedAccusation,
    NoUnfoundedDeath,
    TheAccusedHear,
)
from .exchange import (
    TakesWhatItWasPushed,
    gossip_of,
    is_worth_waiting,
    members_of,
    targets_of,
)
from .fragments import TakesTurns
from .handing_on import (
    GivesWhatIsAskedFor,
    HandsOnWhatItHolds,
    TakesWhatWasCommitted,
)
from .hygiene import (
    Bounded,
    NothingRaises,
    TimersAndHalt,
)
from .keeping import KeepsWhatWasHeld
from .membership import (
    NoDeathByAStalledPeer,
    NoFalseDeath,
    NoReturnFromTheDead,
    NoSuspicionOfTheDead,
    NotDeadWhileRunning,
    OneAddressALife,
    StandingNeverFalls,
    memory_s,
)
from .micro_batches import (
    ComputesAlike,
    CountsOnce,
    FindsLiarsAlone,
    GoesOnTogether,
    LeavesWhatIsCounted,
    SendsToWhoHasBegun,
    SharesAlike,
    StageGoesOn,
    UsesNothingOld,
)
from .overlapping import ComputedInTurn
from .results import (
    AppliesWhatTheRuleSaid,
    CommitsWhatTheRuleSaid,
)
from .rewritten import CountsRewrittenAlone
from .rounds import (
    AppliedOnce,
    IdenticalReplicas,
    OneHistory,
    UsedOnce,
    rolling_of,
    rule_has_enough,
)
from .together import DecidesTogether

CHECKERS: tuple[type[Checker], ...] = (
    NothingRaises,
    TimersAndHalt,
    StandingNeverFalls,
    NoReturnFromTheDead,
    NotDeadWhileRunning,
    NoSuspicionOfTheDead,
    OneAddressALife,
    TheAccusedHear,
    FormerLivesAreNotAnswered,
    NobodyAsksTheDead,
    ClosedIsSkipped,
    CheckedBeforeUse,
    AppliedOnce,
    UsedOnce,
    IdenticalReplicas,
    EndsAlike,
    HandsOnWhatItHolds,
    TakesWhatWasCommitted,
    GivesWhatIsAskedFor,
    Conserved,
    RuleAnswers,
    CommitsWhatTheRuleSaid,
    DecidesTogether,
    TakesWhatItWasPushed,
    AppliesWhatTheRuleSaid,
    ComputedInTurn,
    TakesTurns,
    TakesOverTheDonorsState,
    Bounded,
    KeepsWhatWasHeld,
    CountsRewrittenAlone,
)
