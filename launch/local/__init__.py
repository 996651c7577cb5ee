"""Launcher of the peers of a run on this machine: start, supervision, shutdown and failure
reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import (
        feasible,
        invitation,
        runs,
        swarm_keys,
    )
    from .advertise import (
        addresses_named,
        own_address,
        own_addresses,
        resolve_advertised,
    )
    from .awaiting import (
        WaitingReminder,
        waiting,
    )
    from .desks import ask
    from .feasible import PEER_BYTES
    from .invitation import code_of
    from .outcome import RunOutcome, Stop, telling
    from .peer_process import Guardian, ProcessLife
    from .program import MODULE, Program
    from .running import RunRecords
    from .runs import record_command
    from .shutdown import STOP_GRACE_S
    from .start_wait import WAITING_EVERY_S
    from .supervisor import TICK_S, Supervisor
    from .swarm_keys import own_key
else:
    __getattr__, __dir__ = lazy(__name__)
