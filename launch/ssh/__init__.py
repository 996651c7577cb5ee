"""Launcher of one swarm on many hosts, over the user's own ssh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import command, hostlist, ssh
    from .agent_program import AgentProgram
    from .hostcheck import HostReport
    from .hostlist import Host
    from .remote import RemoteAgent
    from .swarm import HostsLauncher
else:
    __getattr__, __dir__ = lazy(__name__)
