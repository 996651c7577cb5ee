"""Hosts for tests with an sshd each: real ssh between network namespaces,
with keys and a config of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hosts import Hosts, hosts, why_no_hosts

from gossip.launch.guardian import stat

ROOT = Path(__file__).resolve().parent.parent
PORT = 2222
SSHD = "/usr/sbin/sshd"
READY_S = 20.0
SHARED = Path("/dev/shm")
LISTENS = "0A"  # as /proc/net/tcp writes it

Thing = tuple[str, int]
"""``socket`` or ``memory``, and its inode."""


def why_no_sshd() -> str:
    """Why this machine lets us have none; "": it does."""
    if not Path(SSHD).exists() or shutil.which("ssh") is None:
        return "no sshd here (the package openssh-server): make test-hosts installs it"
    return why_no_hosts()


class SshHosts:
    """Hosts that ssh reaches. ``self.ssh``: the words that reach them; ``self.folders``:
    where each works."""

    def __init__(self, made: Hosts, folder: Path) -> None:
        self.made, self.names, self.addresses = made, made.names, made.addresses
        self._folder = folder / "ssh"
        self.folders = [folder / name for name in ("a", "b", "c", "d", "e")[: len(made.names)]]
        self._servers: list[subprocess.Popen[bytes]] = []
        self.config = self._folder / "config"
        self.ssh = f"ssh -F {self.config}"

    def set_up(self) -> None:
        self._folder.mkdir(mode=0o700)
        for path in self.folders:
            path.mkdir()
        for name in ("host", "user"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self._folder / name],
                check=True,
            )
        (self._folder / "allowed").write_text((self._folder / "user.pub").read_text())
        key = " ".join((self._folder / "host.pub").read_text().split()[:2])
        (self._folder / "known").write_text(
            "".join(f"[{address}]:{PORT} {key}\n" for address in self.addresses)
        )
        blocks = []
        for name, address in zip(self.names, self.addresses, strict=True):
            (self._folder / name).write_text(
                f"Port {PORT}\nListenAddress {address}\nHostKey {self._folder}/host\n"
                f"AuthorizedKeysFile {self._folder}/allowed\n"
                "PidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\n"
                "PermitRootLogin yes\nMaxStartups 100\n"
                "KbdInteractiveAuthentication no\nSubsystem sftp internal-sftp\nSetEnv "
                f"PYTHONPATH={ROOT} OMP_NUM_THREADS=1\n"
            )
            blocks.append(
                f"Host {name}\n  HostName {address}\n  Port {PORT}\n  User root\n  IdentityFile "
                f"{self._folder}/user\n"
                f"  IdentitiesOnly yes\n  UserKnownHostsFile {self._folder}/known\n"
            )
        self.config.write_text("".join(blocks))
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        for name in self.names:
            with (self._folder / f"{name}.log").open("wb") as log:
                command = [SSHD, "-D", "-e", "-f", str(self._folder / name)]
                self._servers.append(
                    subprocess.Popen(inside(name, *command), stdout=log, stderr=log)
                )
        for name in self.names:
            self._wait_for(name)

    def _wait_for(self, name: str) -> None:
        probe = [
            sys.executable,
            "-c",
            (
                "import socket; "
                f"socket.create_connection(('{self.addresses[self.names.index(name)]}', {PORT}), "
                "1)"
            ),
        ]
        until = time.monotonic() + READY_S
        while subprocess.run(inside(name, *probe), check=False, capture_output=True).returncode:
            if time.monotonic() > until:
                raise OSError(f"no sshd on {name}: {(self._folder / f'{name}.log').read_text()}")

    def take_down(self) -> None:
        for name in self.names:
            for pid in self.processes(name):
                os.kill(pid, 9)  # sessions and all: a test that leaves any has said so by now
        for server in self._servers:
            server.wait()

    def host_file(self, path: Path, slots: int = 1) -> Path:
        rows = [
            f"{name} slots={slots} workdir={folder}\n"
            for name, folder in zip(self.names, self.folders, strict=True)
        ]
        path.write_text("".join(rows))
        return path

    def processes(self, name: str) -> list[int]:
        """Whoever runs on a host, its sshd included."""
        place = os.stat(f"/run/netns/{name}").st_ino
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if (
                    os.stat(f"/proc/{pid}/ns/net").st_ino == place
                    and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
                ):
                    found.append(int(pid))
            except OSError:
                continue  # gone meanwhile
        return found

    def of_gossip(self, name: str) -> dict[int, str]:
        """Processes of a host that are none of sshd's: agents, launchers, ssh, trainers,
        nodes, guardians."""
        return {
            pid: what
            for pid in self.processes(name)
            if (what := command_of(pid)) and not what.startswith(("sshd", SSHD))
        }

    def belongings(self, name: str, pids: Iterable[int]) -> dict[Thing, str]:
        """What could outlive those processes of a host: sockets that listen or have a name, and
        segments of shared memory."""
        sockets = self._sockets(name)
        return {
            thing: sockets.get(thing, path)
            for pid in pids
            for thing, path in held_by(pid).items()
            if thing in sockets or path.startswith(("/memfd:gossip", f"{SHARED}/"))
        }

    def left_of(
        self, name: str, things: Mapping[Thing, str], but: Iterable[int] = ()
    ) -> dict[Thing, str]:
        """Which of those there still are; ``but``: whatever these processes hold, they use on."""
        held = {thing for pid in self.processes(name) for thing in held_by(pid)}
        named = {("memory", path.stat().st_ino) for path in SHARED.iterdir()}
        used = {thing for pid in but for thing in held_by(pid)}
        return {
            thing: what
            for thing, what in things.items()
            if thing in (self._sockets(name).keys() | held | named) - used
        }

    def _sockets(self, name: str) -> dict[Thing, str]:
        """Of TCP those that listen, of unix those with a name."""
        found: dict[Thing, str] = {}
        for kind, inode, state, known in (("tcp", 9, 3, 1), ("tcp6", 9, 3, 1), ("unix", 6, 7, 7)):
            table = subprocess.run(
                inside(name, "cat", f"/proc/net/{kind}"), check=True, capture_output=True, text=True
            ).stdout
            for row in map(str.split, table.splitlines()[1:]):
                if row[state:] and (kind == "unix" or row[state] == LISTENS):
                    found["socket", int(row[inode])] = f"{kind} {row[known]}"
        return found

    @staticmethod
    def of_session(pid: int) -> list[int]:
        """Who is left of a process and those that it has started, each peer being a session."""
        found = [(int(name), stat(int(name))) for name in os.listdir("/proc") if name.isdigit()]
        return [
            one
            for one, of in found
            if of is not None and of.state not in "ZX" and pid in (one, of.session)
        ]


def held_by(pid: int) -> dict[Thing, str]:
    """Sockets and files that a process has open, with where they lead."""
    found: dict[Thing, str] = {}
    for entry in entries(Path(f"/proc/{pid}/fd")):
        with contextlib.suppress(OSError):  # closed meanwhile
            path, inode = os.readlink(entry), entry.stat().st_ino
            found["socket" if path.startswith("socket:") else "memory", inode] = path
    return found


def entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []  # of a process that is gone


def command_of(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode("utf-8", "replace")
            .strip()
        )
    except OSError:
        return ""


def inside(name: str, *command: str) -> list[str]:
    """A command on a host. Not `ip netns exec`: that would give it a /sys of its own."""
    return ["nsenter", f"--net=/run/netns/{name}", *command]


@contextmanager
def ssh_hosts(count: int, folder: Path) -> Iterator[SshHosts]:
    with hosts(count) as made:
        reachable = SshHosts(made, folder)
        try:
            reachable.set_up()
            yield reachable
        finally:
            reachable.take_down()
