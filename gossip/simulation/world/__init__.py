"""The virtual world: clocks, machines, links and trainers, and the faults that befall them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .driver import SimulationStuck as SimulationStuck
    from .driver import Swarm as Swarm
    from .driver import address as address
    from .machine import NS as NS
    from .membership_only import MemberCore as MemberCore
    from .membership_only import all_fine as all_fine
    from .membership_only import member_swarm as member_swarm
    from .nemesis import Nemesis as Nemesis
    from .nemesis import name_of as name_of
    from .network import Link as Link
    from .network import LinkModel as LinkModel
    from .network import Network as Network
    from .observer import MANY as MANY
    from .observer import Observer as Observer
    from .observer import Watcher as Watcher
    from .stage_trainer import StageTrainer as StageTrainer
    from .toy_trainer import OWN_BYTES as OWN_BYTES
    from .toy_trainer import PREPARE_S as PREPARE_S
    from .toy_trainer import MadeOf as MadeOf
    from .toy_trainer import Reducer as Reducer
    from .toy_trainer import RuleRefusal as RuleRefusal
    from .toy_trainer import RuleResult as RuleResult
    from .toy_trainer import Step as Step
    from .toy_trainer import ToyTrainer as ToyTrainer
    from .toy_trainer import Values as Values
    from .toy_trainer import bytes_of_state as bytes_of_state
    from .toy_trainer import digest_of as digest_of
    from .toy_trainer import payload_of as payload_of
    from .toy_trainer import payload_of_values as payload_of_values
    from .toy_trainer import weighted_mean as weighted_mean
    from .wire import Outgoing as Outgoing
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "driver": (
                "SimulationStuck",
                "Swarm",
                "address",
            ),
            "machine": ("NS",),
            "membership_only": (
                "MemberCore",
                "all_fine",
                "member_swarm",
            ),
            "nemesis": (
                "Nemesis",
                "name_of",
            ),
            "network": (
                "Link",
                "LinkModel",
                "Network",
            ),
            "observer": (
                "MANY",
                "Observer",
                "Watcher",
            ),
            "stage_trainer": ("StageTrainer",),
            "toy_trainer": (
                "MadeOf",
                "RuleResult",
                "OWN_BYTES",
                "PREPARE_S",
                "Reducer",
                "RuleRefusal",
                "Step",
                "ToyTrainer",
                "Values",
                "bytes_of_state",
                "digest_of",
                "payload_of",
                "payload_of_values",
                "weighted_mean",
            ),
            "wire": ("Outgoing",),
        },
    )
