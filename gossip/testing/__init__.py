"""Conformance kits for authors of plug-ins. A kit checks a rule, a topology or a transport against
the requirements of the runtime. An AssertionError names the requirement that is not met.

from gossip.testing import check_aggregator
check_aggregator(my_rule)

``TimedLayer`` emulates a layer on a device of a given speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gossip.lazy import lazy

if TYPE_CHECKING:
    from .aggregators import check_aggregator
    from .timed import TimedLayer
    from .topologies import check_topology
    from .transports import check_transport

_CHECKS_BY_ASSERT = {"check_topology", "check_transport"}
_load, __dir__ = lazy(__name__)


def __getattr__(name: str) -> Any:
    if not __debug__ and name in _CHECKS_BY_ASSERT:
        raise RuntimeError(
            f"{name} uses assert statements, which python -O removes: run it without -O"
        )
    return _load(name)
