"""Command that starts the agent of a host. It uses the user's own ssh, with its config, jump hosts
and ssh agent, and never prompts."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence

from gossip.errors import ConfigError, GossipError
from gossip.interpreter import python_command

from .hostlist import Host

CONNECT_S = 10
# ControlMaster=no: use an existing shared connection, but open none, because other processes could
# come to depend on it.
OPTIONS = (
    "BatchMode=yes",
    f"ConnectTimeout={CONNECT_S}",
    "ControlMaster=no",
    "ClearAllForwardings=yes",
)


class Unreachable(GossipError):
    """No agent could be started on a host."""

    exit_code = 4

    def __init__(self, host: str, why: str, hint: str) -> None:
        super().__init__(f"ssh {host}: {why}", hint)
        self.host, self.why = host, why


def parse(given: str) -> tuple[str, ...]:
    """Split the value of ``--ssh`` into words. Raises: ConfigError."""
    try:
        words = tuple(shlex.split(given))
    except ValueError as error:
        raise ConfigError(f"--ssh {given!r}: {error}") from error
    if not words:
        raise ConfigError("--ssh has no command", "for example --ssh 'ssh -F my_config'")
    return words


def command(host: Host, ssh: Sequence[str], name: str) -> list[str]:
    """Return the command that starts the agent of a host. ``name``: name of the run, which is
    visible in the process list of the host."""
    agent = python_command("-m", "gossip.launch.ssh.agent", name, python=python_of(host))
    if host.is_local:
        return agent
    options = [word for option in OPTIONS for word in ("-o", option)]
    port = ["-p", str(host.port)] if host.port is not None else []
    return [*ssh, "-T", *options, *port, host.target, f"exec {shlex.join(agent)}"]


def python_of(host: Host) -> str:
    return host.python or sys.executable


def explain(host: Host, code: int | None, said: Sequence[str]) -> Unreachable:
    """Return the reason why no agent has started, from the exit code and stderr of ssh.

    Args:
        code: Exit code of ssh; None if ssh is running but no agent has replied.
    """
    target, python = host.target, python_of(host)
    text = "\n".join(said)
    last = next((_plain(line, target) for line in reversed(said) if line.strip()), "")
    words = f"ssh {f'-p {host.port} ' if host.port is not None else ''}{target} true"
    by_hand = f"{words}     must work without typing; then run this again"
    if "Unknown option: -P" in text or ("No module named" in text and "gossip" in text):
        missing = f"{python} has no gossip there"
        return Unreachable(
            target,
            missing,
            f"ssh {target} {python} -m pip install gossip-train; or python=... in a host file",
        )
    if code in (126, 127) or "No such file or directory" in last or "not found" in last:
        return Unreachable(
            target,
            f"there is no {python}",
            f"python=... after {host.name} in a host file: one that has gossip",
        )
    if "Permission denied" in text:
        denied = next(
            _plain(line, target) for line in reversed(said) if "Permission denied" in line
        )
        return Unreachable(target, f"{denied}. gossip never asks for passwords", by_hand)
    if "Host key verification failed" in text:
        return Unreachable(
            target,
            "its key is not known here",
            f"run once by hand, and compare its key: ssh {target} true",
        )
    if code is None:
        return Unreachable(target, "no agent has replied", by_hand)
    if code == 255:
        return Unreachable(target, last or "it ended without output", by_hand)
    return Unreachable(
        target, f"the agent ended with exit code {code}{': ' if last else ''}{last}", by_hand
    )


def _plain(line: str, target: str) -> str:
    """Remove the host names with which messages of ssh begin."""
    host = re.escape(target.rpartition("@")[2])
    return re.sub(rf"^(ssh: |([\w.+-]+@)?{host}: )+", "", line.strip()).rstrip(".\r")
