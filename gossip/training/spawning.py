"""``gossip.spawn`` runs a function of a notebook or a script in several peers. It writes a script
and starts it with ``gossip run``."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from gossip.config import Resolved, resolve
from gossip.errors import ConfigError, RunExists, SpawnFailed
from gossip.interpreter import python_command
from gossip.run import fitting

from .cells import script_of

RUNS = "runs"
SCRIPT, SETTINGS = "spawned.py", "spawned.toml"


def spawn(function: Callable[..., Any], *arguments: Any, peers: int = 2, **options: Any) -> Path:
    """Call ``function(*arguments)`` in ``peers`` processes of this machine, which train together.
    The function calls ``gossip.init()`` as a script does. Return when all processes have ended.

    This process prints the output of all peers. After an interrupt (Ctrl-C, or that of a notebook),
    every peer finishes its round and leaves. A second interrupt ends the peers at once. If this
    process dies, the peers end within ten seconds.

    The function may be defined in a notebook's cell. If it uses definitions of other cells, they
    are copied with it: imports, functions, classes, and plain values such as numbers and text. The
    function is not pickled: a script with its source code is written to the run's folder.

    Args:
        function: Function that each peer runs.
        arguments: Arguments of the function: numbers, text, None, and lists, tuples, sets and dicts
            of them.
        peers: Number of peers.
        options: Options of the run, as in ``gossip run --help``: ``aggregator="krum", f=1``.
    Returns: Path of the run's folder, with checkpoints, ``summary.json`` and ``spawned.py``.
    Raises:
        ConfigError: An option is invalid, this process is itself a peer, or the function uses
            objects that cannot be written into a script.
        RunExists: The run's folder exists already.
        SpawnFailed: The run failed. Its output has the reason.
        KeyboardInterrupt: The call was interrupted. All peers have ended.
    """
    if os.environ.get("GOSSIP_CONFIG"):
        raise ConfigError("gossip.spawn was called in a peer", "start that script with python")
    script = script_of(function, arguments)
    name = f"{function.__name__}-{secrets.token_hex(2)}"
    resolved = resolve({"name": name, **options, "peers": peers})
    if not resolved.config.run_dir:
        resolved = resolved.with_values(
            "spawn", run_dir=str(Path(RUNS).absolute() / resolved.config.name)
        )
    fitting.check(resolved.config)
    folder = Path(resolved.config.run_dir).absolute()
    if folder.exists():
        raise RunExists(str(folder))
    beside = folder.with_name(f".{folder.name}.spawn")
    beside.mkdir(parents=True, mode=0o700)
    try:
        (beside / SETTINGS).write_text(_dump_settings(resolved), "utf-8")
        (beside / SCRIPT).write_text(script, "utf-8")
        code = _follow(beside)
    finally:
        _move(beside, folder)
    if code:
        raise SpawnFailed(code, str(folder))
    return folder


def _follow(beside: Path) -> int:
    """Start the launcher, print its output, and return its exit code.

    The launcher prints its progress every ten seconds. If this process has died, the launcher's
    next print fails, and the launcher ends.
    """
    run = ("run", "--output", "merged", "--config", str(beside / SETTINGS), str(beside / SCRIPT))
    launcher = subprocess.Popen(
        python_command("-m", "gossip.launch.cli", *run),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # A notebook's interrupt is sent to its whole process group, so the launcher would receive
        # it twice: from the notebook and from this function.
        start_new_session=True,
    )
    assert launcher.stdout is not None
    interrupted = False
    with launcher:
        while True:
            try:
                _print(launcher.stdout)
                code = launcher.wait()
                break
            except KeyboardInterrupt:
                interrupted = True
                launcher.send_signal(signal.SIGINT)
            except BaseException:
                # the launcher must not continue without visible output
                launcher.terminate()
                raise
    if interrupted:
        raise KeyboardInterrupt
    return code


def _print(lines: IO[str]) -> None:
    for line in lines:
        print(line, end="", flush=True)


def _dump_settings(resolved: Resolved) -> str:
    """Return the options that are not defaults, as text for ``gossip run --config``."""
    lines = resolved.to_toml().splitlines()
    wanted = {key for key, source in resolved.sources.items() if source != "default"}
    return "\n".join(line for line in lines if line.split(" = ")[0] in wanted) + "\n"


def _move(beside: Path, folder: Path) -> None:
    """Move the files that were written for the run into its folder.

    If the launcher has rejected the run, there is no folder, and the files are deleted.
    """
    for file in beside.iterdir():
        if folder.is_dir():
            file.replace(folder / file.name)
        else:
            file.unlink()
    beside.rmdir()
