"""Integration with the user's model: the session, the flat layout, the data, and the memory shared
with the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import node_start
    from .collectives import ANSWERS
    from .feedback import UpdateEncoder
    from .loader import ShardedLoader
    from .local_model import TrainedModel
    from .membership import MembershipChange
    from .orders import separate, stratify
    from .peer_run import PeerRun
    from .replicas import digest_tensors
    from .saving import LEDGER_FILE
    from .schedulers import counts_steps, steps_of
    from .searching import SearchingPeer
    from .seeding import drawing_from, seed_generators, seeded_generators
    from .session import Session
    from .spawning import spawn
    from .stage import NORMS, GradientNorms, OwnStage, is_norm
    from .start import init
    from .state import (
        TRAINING_FILE,
        CheckExtra,
        StateMismatch,
        load_document,
        load_optimizer,
        read_checkpoint,
        read_some,
        read_state_file,
        split_state,
    )
    from .steps import Steps
else:
    __getattr__, __dir__ = lazy(__name__)
