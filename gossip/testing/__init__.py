"""Kits for authors of plug-ins: does your rule, topology or transport keep its promises? An
AssertionError says which not.

from gossip.testing import check_aggregator
check_aggregator(my_rule)

``TimedLayer`` stands for a layer on a device of some speed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .aggregators import check_aggregator
    from .timed import TimedLayer
    from .topologies import check_topology
    from .transports import check_transport

_HOMES = {
    "TimedLayer": "timed",
    "check_aggregator": "aggregators",
    "check_topology": "topologies",
    "check_transport": "transports",
}
_CHECKS_BY_ASSERT = {"check_topology", "check_transport"}
__all__ = ["TimedLayer", "check_aggregator", "check_topology", "check_transport"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not __debug__ and name in _CHECKS_BY_ASSERT:
        raise RuntimeError(
            f"{name} checks by assert statements, which python -O leaves out: run it without -O"
        )
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
