"""Sockets that receive commands for a live run (``drilling``).

Every launcher of a run has one unix socket in the run's folder. ``drill.sock`` belongs to the
launcher that began the run. ``drill-5.sock`` belongs to a ``gossip join`` with 5 as its first peer,
or to task 5 of a scheduler. A fault of a process is applied by the launcher that started the
process. Lasting faults are recorded by the first launcher that replies.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gossip.errors import ConfigError
from gossip.run import parse_json

PROCESS_KINDS = ("kill", "stop", "leave")
ANSWER_BYTES_MAX = 2**20
TIMEOUT_S = 10.0


class RunUnreachable(ConfigError):
    """The run is over or does not reply, so no drill is possible."""


def name_of(first_peer: int | None) -> str:
    """Return the name of a launcher's socket. ``first_peer``: the first peer that the launcher
    started; None if the launcher began the run."""
    return "drill.sock" if first_peer is None else f"drill-{first_peer}.sock"


def names(folder: Path) -> list[str]:
    """Return the names of the sockets in a run's folder. The socket of the launcher that began the
    run comes first."""
    found = [path.name for path in folder.glob("drill*.sock")]
    return sorted(found, key=lambda name: int("0" + "".join(filter(str.isdigit, name))))


def open_socket(
    folder: Path, name: str, act: Callable[[socket.socket, str], None]
) -> socket.socket:
    """Return a unix socket that ``act`` has bound or connected. The path of a socket has at most
    107 bytes, but the path of a run's folder may be longer. So the path goes through an open
    descriptor of the folder."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        act(end, f"/proc/self/fd/{fd}/{name}")
    except BaseException:
        end.close()
        raise
    finally:
        os.close(fd)
    return end


def ask(folder: Path, order: Mapping[str, Any]) -> dict[str, Any]:
    """Send an order to the launchers of the run in ``folder``. Each launcher receives the share of
    the order that concerns its own peers, and none acts before all have accepted the order.

    Returns: Reply with the number of the drill. After ``heal`` it also has the faults that ended,
    and the peers that were woken.
    Raises: RunUnreachable: The run has ended. ConfigError: The run allows no drills, or cannot
        perform this one.
    """
    shares = _shares(folder, order)
    if len(shares) > 1:
        for desk, share in shares:
            _send(folder, desk, {**share, "only_check": True})
    return _together([_send(folder, desk, share) for desk, share in shares])


def _shares(folder: Path, order: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the sockets of the launchers that must act, each with the launcher's share of the
    order."""
    heard = _request_all(folder, {"drill": "who"})
    kind, wanted = order.get("drill"), order.get("peers")
    if kind == "heal":
        return [(desk, order) for desk, _ in heard]
    first = heard[0][0]
    if kind not in PROCESS_KINDS or not isinstance(wanted, list):
        return [(first, order)]
    theirs = {desk: [peer for peer in wanted if peer in answer["peers"]] for desk, answer in heard}
    known = [peer for peers in theirs.values() for peer in peers]
    # Peers that no launcher runs go to the first launcher, which replies with an error message
    # about them.
    theirs[first] += [peer for peer in wanted if peer not in known]
    return [(desk, {**order, "peers": peers}) for desk, peers in theirs.items() if peers] or [
        (first, order)
    ]


def _together(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = dict(answers[0])
    for other in answers[1:]:
        for key in ("ended", "woken"):
            if key in first:
                first[key] = [*first[key], *other[key]]
    return first


def _request_all(folder: Path, order: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Send an order to every launcher, and return the replies. A launcher that does not reply is
    skipped if another one replies, because a killed launcher leaves its socket behind."""
    heard, silent = [], None
    for desk in names(folder):
        try:
            heard.append((desk, _send(folder, desk, order)))
        except RunUnreachable as nobody:
            silent = nobody
    if not heard:
        raise silent or _no_desk(folder)
    return heard


def _send(folder: Path, desk: str, order: Mapping[str, Any]) -> dict[str, Any]:
    try:
        end = open_socket(folder, desk, socket.socket.connect)
    except OSError as error:
        raise RunUnreachable(
            f"the run in {folder} does not answer: {error}", "the launcher may have been killed"
        ) from error
    with end:
        end.settimeout(TIMEOUT_S)
        try:
            end.sendall(json.dumps(order).encode() + b"\n")
            answer = parse_json(end.makefile("rb").readline(ANSWER_BYTES_MAX))
        except (OSError, ValueError) as error:
            raise RunUnreachable(
                f"the run in {folder} does not answer: {error}", "the run may just have ended"
            ) from error
    if not isinstance(answer, dict):
        raise RunUnreachable(
            f"the run in {folder} does not answer: {desk} is not a launcher's socket",
            "the run may just have ended",
        )
    if "error" in answer:
        raise (RunUnreachable if answer.get("over") else ConfigError)(
            str(answer["error"]), str(answer.get("hint") or "") or None
        )
    return dict(answer)


def _no_desk(folder: Path) -> ConfigError:
    from gossip.config import RunConfig

    if not (folder / "config.json").is_file():
        return ConfigError(
            f"there is no run in {folder}", "use its folder, or its name under runs/"
        )
    if not RunConfig.load(folder / "config.json").drills:
        return ConfigError(
            f"the run in {folder} allows no drills", "start it with: gossip run --drills ..."
        )
    return RunUnreachable(
        f"the run in {folder} is over, or has not begun", "gossip drill needs a running training"
    )
