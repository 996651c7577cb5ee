"""``gossip.spawn``: a function in several peers, from a notebook or a script. It is ``gossip run``
of a script that is written for it."""

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
    """Calls ``function(*arguments)`` in ``peers`` processes of this machine, which train together:
    it calls ``gossip.init()`` as a script would. Returns when all have ended.

    What they print is printed here. An interrupt (Ctrl-C, or that of a notebook) lets every peer
    finish its round and leave; a second one ends them at once. When this process dies, they end
    within ten seconds.

    The function may be one of a notebook's cell. What it uses of other cells goes with it: imports,
    functions, classes, and plain values such as numbers and text. It is not pickled: a script is
    written from the sources, which stays in the run's folder.

    Args:
        function: What each peer runs.
        arguments: Of the function: numbers, text, None, and lists, tuples, sets and dicts of them.
        peers: How many.
        options: Of the run, as in ``gossip run --help``: ``aggregator="krum", f=1``.
    Returns: The run's folder, with its checkpoints, ``summary.json`` and ``spawned.py``.
    Raises: ConfigError: An option is wrong, the run's folder is there, this is a peer, or the
            function uses what cannot be handed over.
        SpawnFailed: The run did not finish; its output says why.
        KeyboardInterrupt: It was interrupted; all peers have ended.
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
    """Starts the launcher, prints what it prints, and returns its exit code.

    When this process dies, nobody reads any more what the launcher prints. It says how far it is
    every ten seconds, and ends when it cannot.
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
        # An interrupt reaches all processes of a notebook's group: the launcher would hear of it
        # twice, and take it for the second.
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
                # what it prints cannot be shown here: nobody would know that it goes on
                launcher.terminate()
                raise
    if interrupted:
        raise KeyboardInterrupt
    return code


def _print(lines: IO[str]) -> None:
    for line in lines:
        print(line, end="", flush=True)


def _dump_settings(resolved: Resolved) -> str:
    """The options that are not defaults, as a file for ``gossip run --config``."""
    lines = resolved.to_toml().splitlines()
    wanted = {key for key, source in resolved.sources.items() if source != "default"}
    return "\n".join(line for line in lines if line.split(" = ")[0] in wanted) + "\n"


def _move(beside: Path, folder: Path) -> None:
    """Move the files that were written for the run into its folder.

    The launcher makes that folder unless it refuses the run. Then the files are deleted.
    """
    for file in beside.iterdir():
        if folder.is_dir():
            file.replace(folder / file.name)
        else:
            file.unlink()
    beside.rmdir()
