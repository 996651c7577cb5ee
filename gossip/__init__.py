"""Fault-tolerant gossip training for PyTorch.

No process is special: any peer may crash, hang or send wrong gradients.

    import gossip
    peer = gossip.init()
    model, optimizer = peer.prepare(model, optimizer)
    loader = peer.shard(loader)

Aggregation rules are in ``gossip.aggregators``, topologies in ``gossip.topologies``, errors in
``gossip.errors``, and checks for your own plug-ins in ``gossip.testing``. ``docs/api.md`` is the
reference. Importing ``gossip`` does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import errors
from .lazy import lazy

if TYPE_CHECKING:
    from . import aggregators, testing, topologies
    from .training import MembershipChange, Session, init, spawn
else:
    __getattr__, _ = lazy(__name__)

__version__ = "0.1.0"
__all__ = [
    "MembershipChange",
    "Session",
    "__version__",
    "aggregators",
    "errors",
    "init",
    "spawn",
    "testing",
    "topologies",
]


def __dir__() -> list[str]:
    """The public API. The names listed here are stable."""
    return __all__
