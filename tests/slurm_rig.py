"""A real Slurm for tests: a controller and nodes, on hosts of their own in network namespaces
of this machine."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hosts import Hosts, hosts, why_no_hosts

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
READY_S = 60.0
CONFIG = """
ClusterName=gossip
SlurmctldHost={host}({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdTimeout=5
KillWait=15
SlurmctldParameters=enable_configless
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def why_no_slurm() -> str:
    """Why this machine has none for us; "": it has."""
    missing = [name for name in PROGRAMS if _program(name) is None]
    if missing:
        return (
            f"no {', '.join(missing)} (the packages slurm-wlm and munge: make test-hosts installs "
            "them)"
        )
    return why_no_hosts()


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


class Slurm:
    """``nodes`` nodes named n1, n2 and so on, at ``addresses[1:]``; commands are given on the
    controller. Use ``slurm``."""

    def __init__(self, folder: Path, net: Hosts) -> None:
        self.folder, self.net = folder, net
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def set_up(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        self.folder.chmod(0o755)
        (self.folder / "state").mkdir()
        files = [
            f"--{what}={self.folder}/munge.{end}"
            for what, end in (("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"))
        ]
        self._start(
            "munged",
            None,
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            *files,
            f"--seed-file={self.folder}/munge.seed",
        )
        here = socket.gethostname()
        nodes = [
            (
                f"NodeName=n{number} NodeHostname={here} NodeAddr={address} Port={17000 + number} "
                "CPUs=2 RealMemory=2000"
            )
            for number, address in enumerate(self.net.addresses[1:], 1)
        ]
        text = CONFIG.format(
            host=here, controller=self.net.addresses[0], folder=self.folder, nodes="\n".join(nodes)
        )
        (self.folder / "slurm.conf").write_text(text)
        self._wait(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._start("slurmctld", 0, "slurmctld", "-D", "-c", "-f", str(self.folder / "slurm.conf"))
        for number in range(1, len(nodes) + 1):
            self._start(
                f"n{number}",
                number,
                "slurmd",
                "-D",
                "-N",
                f"n{number}",
                "-f",
                str(self.folder / "slurm.conf"),
            )
        self._wait(
            lambda: (
                self.command("sinfo", "-h", "-o", "%D %t").stdout.split()
                == [str(len(nodes)), "idle"]
            ),
            "idle nodes",
        )

    def _start(self, name: str, host: int | None, *words: str) -> None:
        inside = [] if host is None else self.net.inside(host)
        path = _program(words[0])
        assert path is not None
        with (self.folder / f"{name}.out").open("wb") as out:
            self.daemons[name] = subprocess.Popen(
                [*inside, path, *words[1:]], stdout=out, stderr=out, start_new_session=True
            )

    def _wait(self, what: Any, about: str) -> None:
        until = time.monotonic() + READY_S
        while not what():
            if time.monotonic() > until:
                logs = [path.read_text()[-1500:] for path in sorted(self.folder.glob("*.log"))]
                raise TimeoutError(f"Slurm: no {about} in {READY_S:.0f} s\n" + "\n".join(logs))
            time.sleep(0.1)  # between two looks, not instead of one

    def command(
        self, *words: str, cwd: Path | None = None, text: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.net.inside(0), *words],
            cwd=cwd,
            input=text,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )

    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def job(self, number: str) -> dict[str, str]:
        """What the controller says of a job."""
        return dict(
            re.findall(r"(\w+)=(\S*)", self.command("scontrol", "show", "job", number).stdout)
        )

    def kill_node(self, number: int) -> None:
        """As when its power fails: its cable is dead, and everything that runs there is gone."""
        self.net.cut(number)
        self.net.kill_all(number)

    def take_down(self) -> None:
        for number in range(1, len(self.net.names)):
            self.net.kill_all(number)
        for daemon in self.daemons.values():
            daemon.kill()
            daemon.wait()
        self.net.kill_all(0)


@contextmanager
def slurm(folder: Path, nodes: int) -> Iterator[Slurm]:
    folder.mkdir()
    with hosts(nodes + 1) as net:
        made = Slurm(folder, net)
        try:
            made.set_up()
            yield made
        finally:
            made.take_down()
