"""Measurement of a link between two peers with gossip's transport."""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired

from gossip.errors import ConfigError, LocalError
from gossip.interpreter import python_command
from gossip.run import shown
from gossip.transport import is_loopback, new_pair
from gossip_pipelines.planning import (
    CostLine,
    check_name,
    fit_line,
    r_squared,
    read_profile,
    write_profile,
    write_text,
)

from .link_end import LinkEnd, TwoKeys
from .profiling import LINKS_R2, doubt

SIZES_KIB = (4, 64, 256, 1024, 2048, 4096)
CHECKED_KIB = (512, 3072)
"""Sizes that are used only to check the fitted line."""
AT_A_TIME = 3


def link_from(path: Path, to: str, ends: tuple[str, str, str], repeats: int) -> str:
    """Measure a link, and write the result into a profile. Return the result as text.

    Args:
        ends: Address of this end; address of the other end; prefix that runs a command there.
    Raises: ConfigError: The profile cannot be read, or the other end is on another host and no
        command starts it.
    """
    profile = read_profile(path)
    if check_name(to, "PEER") == profile.peer:
        raise ConfigError(f"{shown(path)} is the profile of {to} itself", "name the other peer")
    host, other_host, via = ends
    if not via and not is_loopback(other_host):
        raise ConfigError(
            f"the link needs a process at {other_host}, and no command starts one",
            "set the command with --via, such as --via 'ssh lab2'",
        )
    line, r2 = measure_link(host, other_host, via, repeats)
    measured = replace(profile, links={**profile.links, to: line})
    write_text(path, write_profile(measured))
    return (
        f"{shown(path)}: {profile.peer} to {to}: {1e3 * line.fixed_s:.3g} ms and "
        f"{8e-6 / max(line.each_s, 1e-15):,.0f} Mbit/s, R² {r2:.4f}{doubt(r2, LINKS_R2)}"
    )


def measure_link(host: str, other_host: str, via: str, repeats: int) -> tuple[CostLine, float]:
    """Fit a line to the median times of each size. Return it with R² over all sizes, including the
    two sizes that the fit did not use. Each payload is sent after the reply to the previous one."""
    sizes = sorted((*SIZES_KIB, *CHECKED_KIB))
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    with linked(host, other_host, via) as end:
        for turn in range(repeats + 1):
            for size in sizes:
                taken = [end.send_payload(size * 256) for _ in range(AT_A_TIME)]  # 4 bytes each
                if turn:
                    seconds[size] += taken
    median = {size: statistics.median(taken) for size, taken in seconds.items()}
    line = fit_line([1024 * size for size in SIZES_KIB], [median[size] for size in SIZES_KIB])
    r2 = r_squared([line.at(1024 * size) for size in sizes], [median[size] for size in sizes])
    return line, r2


@contextmanager
def linked(host: str, other_host: str, via: str) -> Iterator[LinkEnd]:
    """Start the process of the other end, yield this end when both are connected, and stop the
    process afterwards.

    Args:
        via: Prefix that runs a command on the other host, such as ``ssh lab2``; "" if both ends are
            on this host.
    """
    mine, theirs = new_pair(), new_pair()
    command = [*shlex.split(via), *python_command("-m", "gossip_pipelines.plan.link_end")]
    # If open sockets are left to the garbage collector, this process may never end.
    with (
        closing(LinkEnd(host, TwoKeys(mine, theirs.public, 0))) as end,
        Popen(command, stdin=PIPE, stdout=PIPE, bufsize=0) as other,
    ):
        assert other.stdin is not None
        assert other.stdout is not None
        pair = [theirs.public, theirs.secret]
        order = {"host": other_host, "pair": pair, "other": mine.public, "addresses": end.addresses}
        try:
            with suppress(BrokenPipeError):
                other.stdin.write(json.dumps(order).encode() + b"\n")
            addresses = other.stdout.readline()
            if not addresses:
                raise LocalError("the other end has ended")
            end.connect(*json.loads(addresses))
            yield end
        finally:
            other.terminate()
            try:
                other.wait(10)
            except TimeoutExpired:
                other.kill()
