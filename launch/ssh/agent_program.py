"""Program of the peers of a run on many hosts, and data to reach the hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gossip.launch.local import Program
from gossip.run import stage_parts

from .hostlist import Host


@dataclass(frozen=True, slots=True)
class AgentProgram:
    """Program of the peers, and data to reach the hosts.

    Attributes:
        program: The program as typed. This path, like all others, is relative to the ``workdir`` of
            each host.
        environment: Environment variables that are sent to every host. No others are sent.
        ssh: Command line of ssh.
        restarts: Maximum number of consecutive restarts of a host's agent.
        run_dir: Folder of the run. Each host has a folder of its own in it (``host_folder``).
        run: Id of the run.
        saved: Checkpoint from which a pipeline resumes, with ``@STEP`` if given; "" if it does not
            resume.
    """

    hosts: tuple[Host, ...]
    program: Program
    workdir: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    ssh: tuple[str, ...] = ("ssh",)
    restarts: int = 3
    run_dir: str = ""
    run: str = ""
    saved: str = ""

    def host_folder(self, host: Host) -> str:
        return str(Path(self.run_dir) / "hosts" / host.name)

    def check_request(self, host: Host) -> dict[str, Any]:
        """Return the fields of the check request to the agent of a host."""
        return {
            "workdir": host.workdir or self.workdir,
            "run_dir": self.host_folder(host),
            "program": list(self.program.what),
            "run": self.run,
            "address": host.address,
            "saved": stage_parts.where_and_step(self.saved)[0],
            "host": host.name,
        }
