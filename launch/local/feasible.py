"""Checks of this machine before anything starts: memory, a port, the run's folder."""

from __future__ import annotations

import errno
import socket
import stat
from pathlib import Path

from gossip.errors import AddressInUse, ConfigError, OutOfMemory, RunExists

PEER_BYTES = 450 * 2**20
"""Memory that a peer's two processes add, in bytes: 280 MiB for a trainer that has imported torch
and scikit-learn, 160 MiB for its node (proportional set size, eight peers, torch 2.13 on Linux).
Model and data come on top."""


def check_memory(peers: int) -> None:
    """Raises OutOfMemory when so many peers would not fit into what is available now."""
    import psutil  # here: 50 ms that `gossip --help` need not pay

    have = psutil.virtual_memory().available
    if peers * PEER_BYTES > have:
        raise OutOfMemory(peers, peers * PEER_BYTES, have)


def check_port(host: str, port: int) -> None:
    """Raises AddressInUse when somebody has it already; better before a folder is made than
    when the join server opens."""
    plain = host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in plain else socket.AF_INET) as end:
        # as the join server will: who has just left keeps nobody out
        end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            end.bind((plain, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return  # whatever it is, the join server says it
            from gossip.transport import find_listener

            raise AddressInUse(f"{host}:{port}", find_listener(port)) from None


def make_run_folder(path: Path) -> None:
    """Raises RunExists when there is something in it already, ConfigError when it cannot be made,
    or be closed to others."""
    try:
        # it names the run, and who knows that can pose as a peer
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if any(path.iterdir()):
            raise RunExists(str(path))
        _close_to_others(path)
    except (FileExistsError, NotADirectoryError):
        raise RunExists(str(path)) from None
    except OSError as error:
        raise ConfigError(f"cannot make the run folder {path}: {error.strerror}") from error


def _close_to_others(path: Path) -> None:
    """An empty folder that was there already has the mode that somebody gave it."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & 0o077:
        return
    try:
        path.chmod(mode & ~0o077)
    except PermissionError:
        raise ConfigError(
            f"others can look into the run folder {path} (mode {mode:04o}), and it is not yours "
            "to close",
            "choose another --run-dir: with the files there anybody who reads them can take part",
        ) from None
