"""The virtual world: clocks, machines, links and trainers, and the faults that befall them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .driver import (
        AnySwarm as AnySwarm,
        SimulationStuck as SimulationStuck,
        Swarm as Swarm,
        address as address,
    )
    from .machine import NS as NS
    from .membership_only import (
        MemberCore as MemberCore,
        all_fine as all_fine,
        member_swarm as member_swarm,
    )
    from .nemesis import Nemesis as Nemesis, name_of as name_of
    from .network import Link as Link, LinkModel as LinkModel, Network as Network
    from .observer import MANY as MANY, Observer as Observer, Watcher as Watcher
    from .stage_trainer import StageTrainer as StageTrainer
    from .toy_trainer import (
        OWN_BYTES as OWN_BYTES,
        PREPARE_S as PREPARE_S,
        MadeOf as MadeOf,
        Reducer as Reducer,
        RuleRefusal as RuleRefusal,
        RuleResult as RuleResult,
        Step as Step,
        ToyTrainer as ToyTrainer,
        Values as Values,
        bytes_of_state as bytes_of_state,
        digest_of as digest_of,
        payload_of as payload_of,
        payload_of_values as payload_of_values,
        weighted_mean as weighted_mean,
    )
    from .wire import Outgoing as Outgoing
else:
    __getattr__, __dir__ = lazy(__name__)
