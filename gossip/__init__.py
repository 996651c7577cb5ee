"""Fault-tolerant gossip training for PyTorch: no process is special,
anything may crash, hang or lie.

    import gossip
    peer = gossip.init()
    model, optimizer = peer.prepare(model, optimizer)
    loader = peer.shard(loader)

Rules are in ``gossip.aggregators``, topologies in ``gossip.topologies``, errors in
``gossip.errors``. Importing this does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import errors

if TYPE_CHECKING:
    from .training import Session, init

__version__ = "0.1.0"
__all__ = ["Session", "__version__", "errors", "init"]


def __getattr__(name: str) -> Any:
    if name not in ("Session", "init"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.training"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
