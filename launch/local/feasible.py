"""Checks of this machine before a run starts: memory, a port, and the run's folder."""

from __future__ import annotations

import errno
import socket
import stat
from pathlib import Path

from gossip.errors import AddressInUse, ConfigError, OutOfMemory, RunExists

PEER_BYTES = 450 * 2**20
"""Memory that the two processes of a peer need without model and data, in bytes: 280 MiB for a
trainer that has imported torch and scikit-learn, and 160 MiB for its node (proportional set size
with eight peers, torch 2.13 on Linux)."""


def check_memory(peers: int) -> None:
    """Check the available memory. Raises: OutOfMemory: The memory is too small for the peers."""
    import psutil  # Imported here: it takes 50 ms, which `gossip --help` must not need.

    have = psutil.virtual_memory().available
    if peers * PEER_BYTES > have:
        raise OutOfMemory(peers, peers * PEER_BYTES, have)


def check_port(host: str, port: int) -> None:
    """Check that a port is free. This is called before the run's folder is made and the join server
    opens. Raises: AddressInUse: The port is in use."""
    plain = host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in plain else socket.AF_INET) as end:
        # Use the same option as the join server: a connection that was just closed does not block
        # the port.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            end.bind((plain, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return  # The join server reports any other error.
            from gossip.transport import find_listener

            raise AddressInUse(f"{host}:{port}", find_listener(port)) from None


def make_run_folder(path: Path) -> None:
    """Make the folder of a run, readable only by its owner. Raises: RunExists: The folder exists
    and is not empty. ConfigError: It cannot be made, or its mode cannot be changed."""
    try:
        # A process that can read the folder could take part as a peer.
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if any(path.iterdir()):
            raise RunExists(str(path))
        _close_to_others(path)
    except (FileExistsError, NotADirectoryError):
        raise RunExists(str(path)) from None
    except OSError as error:
        raise ConfigError(f"cannot make the run folder {path}: {error.strerror}") from error


def _close_to_others(path: Path) -> None:
    """Restrict the mode of a folder to its owner, in case it existed before."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & 0o077:
        return
    try:
        path.chmod(mode & ~0o077)
    except PermissionError:
        raise ConfigError(
            f"other users can read the run folder {path} (mode {mode:04o}), and you cannot change "
            "its mode",
            "choose another --run-dir: a user that reads the files there can join",
        ) from None
