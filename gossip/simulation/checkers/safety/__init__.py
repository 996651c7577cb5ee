"""What may never happen."""

from .answering import RuleAnswers as RuleAnswers
from .concluding import EndsAlike as EndsAlike
from .contents import (
    CheckedBeforeUse as CheckedBeforeUse,
    Conserved as Conserved,
    TakesOverTheDonorsState as TakesOverTheDonorsState,
)
from .evidence import (
    AnAnswerEndsTheSkip as AnAnswerEndsTheSkip,
    ClosedIsSkipped as ClosedIsSkipped,
    FormerLivesAreNotAnswered as FormerLivesAreNotAnswered,
    NobodyAsksTheDead as NobodyAsksTheDead,
    NoUnfoundedAccusation as NoUnfoundedAccusation,
    NoUnfoundedDeath as NoUnfoundedDeath,
    TheAccusedHear as TheAccusedHear,
)
from .exchange import (
    TakesWhatItWasPushed as TakesWhatItWasPushed,
    gossip_of as gossip_of,
    is_worth_waiting as is_worth_waiting,
    members_of as members_of,
    targets_of as targets_of,
)
from .fragments import TakesTurns as TakesTurns
from .handing_on import (
    GivesWhatIsAskedFor as GivesWhatIsAskedFor,
    HandsOnWhatItHolds as HandsOnWhatItHolds,
    TakesWhatWasCommitted as TakesWhatWasCommitted,
)
from .hygiene import (
    Bounded as Bounded,
    NothingRaises as NothingRaises,
    TimersAndHalt as TimersAndHalt,
)
from .keeping import KeepsWhatWasHeld as KeepsWhatWasHeld
from .membership import (
    NoDeathByAStalledPeer as NoDeathByAStalledPeer,
    NoFalseDeath as NoFalseDeath,
    NoReturnFromTheDead as NoReturnFromTheDead,
    NoSuspicionOfTheDead as NoSuspicionOfTheDead,
    NotDeadWhileRunning as NotDeadWhileRunning,
    OneAddressALife as OneAddressALife,
    StandingNeverFalls as StandingNeverFalls,
    memory_s as memory_s,
)
from .micro_batches import (
    ComputesAlike as ComputesAlike,
    CountsOnce as CountsOnce,
    FindsLiarsAlone as FindsLiarsAlone,
    GoesOnTogether as GoesOnTogether,
    LeavesWhatIsCounted as LeavesWhatIsCounted,
    SendsToWhoHasBegun as SendsToWhoHasBegun,
    SharesAlike as SharesAlike,
    StageGoesOn as StageGoesOn,
    UsesNothingOld as UsesNothingOld,
)
from .overlapping import ComputedInTurn as ComputedInTurn
from .results import (
    AppliesWhatTheRuleSaid as AppliesWhatTheRuleSaid,
    CommitsWhatTheRuleSaid as CommitsWhatTheRuleSaid,
)
from .rewritten import CountsRewrittenAlone as CountsRewrittenAlone
from .rounds import (
    AppliedOnce as AppliedOnce,
    IdenticalReplicas as IdenticalReplicas,
    OneHistory as OneHistory,
    UsedOnce as UsedOnce,
    rolling_of as rolling_of,
    rule_has_enough as rule_has_enough,
)
from .together import DecidesTogether as DecidesTogether
