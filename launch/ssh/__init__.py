"""One swarm on many hosts, over the user's own ssh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import command as command
    from . import hostlist as hostlist
    from . import ssh as ssh
    from .hostcheck import Report as Report
    from .hostlist import Host as Host
    from .remote import Remote as Remote
    from .swarm import Launch as Launch
    from .swarm import Program as Program
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "command": ("command",),
            "hostcheck": ("Report",),
            "hostlist": (
                "Host",
                "hostlist",
            ),
            "remote": ("Remote",),
            "ssh": ("ssh",),
            "swarm": (
                "Launch",
                "Program",
            ),
        },
    )
