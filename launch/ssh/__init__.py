"""One swarm on many hosts, over the user's own ssh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import command as command, gathering as gathering, hostlist as hostlist, ssh as ssh
    from .hostcheck import HostReport as HostReport
    from .hostlist import Host as Host
    from .remote import RemoteAgent as RemoteAgent
    from .swarm import AgentProgram as AgentProgram, HostsLauncher as HostsLauncher
else:
    __getattr__, __dir__ = lazy(__name__)
