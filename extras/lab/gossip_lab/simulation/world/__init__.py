"""The virtual world: clocks, machines, links and trainers, and their faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .driver import (
        AnySwarm,
        SimulationStuck,
        Swarm,
        address,
    )
    from .host import SimProcess
    from .links import HANDSHAKE_WAYS
    from .machine import NS
    from .nemesis import Nemesis, name_of
    from .network import Link, LinkModel, Network
    from .observer import MANY, Observer, Watcher
    from .rule_runner import RuleRunner
    from .shared_ledgers import SharedLedgers
    from .stage_trainer import StageTrainer
    from .toy_model import OWN_BYTES
    from .toy_payloads import (
        bytes_of_state,
        payload_of,
    )
    from .toy_rule import Aggregator, ToyRule, mean
    from .toy_trainer import PREPARE_S, MadeOf, OptimizerTurns, Said, ToyPace, ToyTrainer
    from .wire import Outgoing, send_unchanged
else:
    __getattr__, __dir__ = lazy(__name__)
