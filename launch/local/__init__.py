"""The peers of a run on this machine: started, watched, stopped, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import (
        feasible as feasible,
        gpus as gpus,
        invitation as invitation,
        runs as runs,
        swarm_keys as swarm_keys,
    )
    from .advertise import (
        own_address as own_address,
        own_addresses as own_addresses,
        told_to_others as told_to_others,
    )
    from .awaiting import (
        INSECURE as INSECURE,
        INSECURE_EVERY_S as INSECURE_EVERY_S,
        WaitingReminder as WaitingReminder,
        waiting as waiting,
    )
    from .desks import RunUnreachable as RunUnreachable, ask as ask, names as names, who as who
    from .feasible import PEER_BYTES as PEER_BYTES
    from .invitation import names_code as names_code
    from .outcome import RunOutcome as RunOutcome, Stop as Stop, telling as telling
    from .peer_process import Guardian as Guardian, ProcessLife as ProcessLife
    from .peer_setup import script_command as script_command
    from .program import MODULE as MODULE, Program as Program
    from .runs import COMMAND as COMMAND
    from .supervisor import (
        STOP_GRACE_S as STOP_GRACE_S,
        TICK_S as TICK_S,
        WAITING_EVERY_S as WAITING_EVERY_S,
        Supervisor as Supervisor,
    )
    from .swarm_keys import own_key as own_key
else:
    __getattr__, __dir__ = lazy(__name__)
