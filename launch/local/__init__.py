"""The peers of a run on this machine: started, watched, stopped, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import feasible as feasible
    from . import gpus as gpus
    from . import invitation as invitation
    from . import runs as runs
    from . import swarm_keys as swarm_keys
    from .advertise import own_address as own_address
    from .advertise import own_addresses as own_addresses
    from .advertise import told_to_others as told_to_others
    from .awaiting import INSECURE as INSECURE
    from .awaiting import INSECURE_EVERY_S as INSECURE_EVERY_S
    from .awaiting import waiting as waiting
    from .desks import RunUnreachable as RunUnreachable
    from .desks import ask as ask
    from .desks import names as names
    from .desks import who as who
    from .feasible import PEER_BYTES as PEER_BYTES
    from .invitation import names_code as names_code
    from .outcome import RunOutcome as RunOutcome
    from .outcome import Stop as Stop
    from .outcome import telling as telling
    from .peer_process import Guardian as Guardian
    from .peer_process import ProcessLife as ProcessLife
    from .peer_setup import script_command as script_command
    from .program import MODULE as MODULE
    from .program import Program as Program
    from .runs import COMMAND as COMMAND
    from .supervisor import STOP_GRACE_S as STOP_GRACE_S
    from .supervisor import TICK_S as TICK_S
    from .supervisor import WAITING_EVERY_S as WAITING_EVERY_S
    from .supervisor import Supervisor as Supervisor
    from .swarm_keys import own_key as own_key
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "advertise": (
                "own_address",
                "own_addresses",
                "told_to_others",
            ),
            "awaiting": (
                "INSECURE",
                "INSECURE_EVERY_S",
                "waiting",
            ),
            "desks": (
                "RunUnreachable",
                "ask",
                "names",
                "who",
            ),
            "feasible": (
                "PEER_BYTES",
                "feasible",
            ),
            "gpus": ("gpus",),
            "invitation": (
                "invitation",
                "names_code",
            ),
            "outcome": (
                "RunOutcome",
                "Stop",
                "telling",
            ),
            "peer_process": (
                "Guardian",
                "ProcessLife",
            ),
            "peer_setup": ("script_command",),
            "program": (
                "MODULE",
                "Program",
            ),
            "runs": (
                "COMMAND",
                "runs",
            ),
            "supervisor": (
                "STOP_GRACE_S",
                "Supervisor",
                "TICK_S",
                "WAITING_EVERY_S",
            ),
            "swarm_keys": (
                "own_key",
                "swarm_keys",
            ),
        },
    )
