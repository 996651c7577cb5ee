"""Facts about a host, which its agent collects before the start: versions, the script, memory,
clock and addresses."""

from __future__ import annotations

import functools
import getpass
import importlib.metadata
import os
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from hashlib import blake2b
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import psutil

import gossip
from gossip.errors import ConfigError
from gossip.launch.local import Program, addresses_named, own_addresses
from gossip.run import checkpoints, read_json, stage_parts
from gossip.transport import is_loopback

PACKAGES = ("gossip-train", "torch", "pyzmq", "msgpack", "numpy")
RUNS = checkpoints.RUNS
LOOPBACK = "127.0.0.1"
_OURS = Path(gossip.__file__).parent


def collect_facts(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about this host for the checks of the launcher. Also change to the working
    directory of the peers.

    Args:
        asked: ``workdir``, ``program``, ``run_dir``, ``run`` and ``address`` as given to the
            launcher. For a resumed pipeline also ``saved`` and ``host``, the arguments of the
            function ``saved``.
    """
    found: dict[str, Any] = {
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "packages": {name: _version(name) for name in PACKAGES},
        "code": code_digest(),
        "host": socket.gethostname(),
        "user": getpass.getuser(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().available,
        "workdir": asked["workdir"],
        "workdir_error": "",
        "script": None,
        "run_dir_error": "",
        "address_error": "",
    }
    try:
        os.chdir(asked["workdir"])
    except OSError as error:
        found["workdir_error"] = error.strerror or str(error)
        return found
    file, run_dir = Program.of(asked["program"]).file, Path(asked["run_dir"])
    if file is not None:
        found["script"] = {"path": str(file.resolve()), "digest": digest(file)}
    found["run_dir"] = str(run_dir.resolve())
    if run_dir.is_dir() and any(run_dir.iterdir()) and not is_of_run(run_dir, asked["run"]):
        found["run_dir_error"] = "it already exists"
    existing = next(
        path for path in (run_dir.resolve(), *run_dir.resolve().parents) if path.exists()
    )
    if not os.access(existing, os.W_OK):
        found["run_dir_error"] = f"{existing} is not writable"
    found["disk_bytes"] = shutil.disk_usage(existing).free
    if asked.get("saved"):
        found["saved"] = saved(asked["saved"], asked["host"])
    try:
        found["addresses"] = addresses(asked["address"])
    except ConfigError as error:
        found["addresses"], found["address_error"] = [], str(error)
    return found


def saved(said: str, host: str) -> dict[str, Any]:
    """Return the saved stages of a pipeline that exist on this host.

    Args:
        said: Folder of a run of ``gossip hosts``, its name under runs/, or a folder with
            checkpoints of a script.
        host: Name of this host in the launcher's list.
    Returns: ``folder`` (absolute path), ``parts`` (each the result of ``SavedStage.to_json``) and
    ``error``.
    """
    place = Path(said)
    runs = [folder / "hosts" / host for folder in (place, Path(RUNS) / said)]
    there = next((each for each in (*runs, place) if each.is_dir()), None)
    if there is None:
        return {"folder": str(place.absolute()), "parts": [], "error": ""}
    try:
        folder, _ = checkpoints.resolve(str(there))
        parts = [part.to_json() for part in stage_parts.parts_in(folder)]
    except ConfigError as error:
        return {"folder": str(there.absolute()), "parts": [], "error": str(error)}
    return {"folder": str(folder), "parts": parts, "error": ""}


def is_of_run(folder: Path, run: str) -> bool:
    """Whether an agent of this run made the folder. If so, a restarted agent continues in it."""
    try:
        return (read_json(folder / "config.json") or {}).get("run") == run
    except ValueError:
        return False


def digest(path: Path) -> str:
    return blake2b(path.read_bytes(), digest_size=8).hexdigest()


@functools.cache
def code_digest() -> str:
    """Return the digest of gossip's own code, because two hosts may have different code with the
    same version."""
    mixed = blake2b(digest_size=8)
    for where, folders, files in os.walk(_OURS, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            if name.endswith(".py"):
                path = Path(where, name)
                mixed.update(f"{path.relative_to(_OURS)}\0".encode() + path.read_bytes() + b"\0")
    return mixed.hexdigest()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def addresses(wanted: str = "") -> list[str]:
    """Return the addresses at which other hosts may reach this host, the most likely first.
    Loopback is the last one, for peers on the same machine.

    The hostname is not resolved, because the result is often 127.0.1.1. The address that ssh
    reports comes first, because it is known to work.

    Args:
        wanted: Address, interface, or network such as 10.0.0.0/8, to which the result is
            restricted; "" means no restriction.
    Raises: ConfigError: This host has no such address.
    """
    by_interface = {
        interface: [number for number in numbers if not ip_address(number).is_link_local]
        for interface, numbers in sorted(own_addresses().items())
    }
    if wanted:
        return _wanted(wanted, by_interface)
    every = [address for entries in by_interface.values() for address in entries]
    _, _, reached, *_ = [*os.environ.get("SSH_CONNECTION", "").split(), "", "", ""]
    likely = [
        address for address in [reached, *every] if address in every and not is_loopback(address)
    ]
    likely.sort(key=lambda address: (address != reached, ":" in address))
    return [*dict.fromkeys(likely), LOOPBACK]


def _wanted(wanted: str, by_interface: Mapping[str, list[str]]) -> list[str]:
    there = "; ".join(f"{name} {' '.join(found)}" for name, found in by_interface.items() if found)
    found = addresses_named(wanted, by_interface)
    if found is None:
        raise ConfigError(f"{wanted!r} is not an address, network or interface here: {there}")
    if not found:
        raise ConfigError(f"no address here is in {wanted}: {there}")
    return found


def clock() -> dict[str, float]:
    return {"wall": time.time(), "mono": time.monotonic()}
