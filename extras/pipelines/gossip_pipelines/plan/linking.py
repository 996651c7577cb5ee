"""Measurement of a link between two peers over gossip's own transport."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

from gossip.errors import ConfigError
from gossip.run import shown
from gossip.transport import is_loopback
from gossip_pipelines.planning import (
    CostLine,
    check_name,
    fit_line,
    r_squared,
    read_profile,
    write_profile,
    write_text,
)

from .link_turns import LinkTurns
from .profiling import LINKS_R2, doubt

SIZES_KIB = (4, 64, 256, 1024, 2048, 4096)
CHECKED_KIB = (512, 3072)
"""Sizes that only check the line."""
AT_A_TIME = 3


def link_from(path: Path, to: str, ends: tuple[str, str, str], repeats: int) -> str:
    """Measure a link and write it into the profile. Return the result as text.

    Args:
        ends: Address of this end and of the other, and the command that starts a command there.
    Raises: ConfigError: The profile cannot be read, or no process replies at the other end.
    """
    profile = read_profile(path)
    if check_name(to, "PEER") == profile.peer:
        raise ConfigError(f"{shown(path)} is the profile of {to} itself", "name the other peer")
    host, other_host, via = ends
    if not via and not is_loopback(other_host):
        raise ConfigError(
            f"no process runs at {other_host} to measure with",
            "--via sets the command that starts one there, such as --via 'ssh lab2'",
        )
    line, r2 = measure_link(host, other_host, via, repeats)
    measured = replace(profile, links={**profile.links, to: line})
    write_text(path, write_profile(measured))
    return (
        f"{shown(path)}: {profile.peer} to {to}: {1e3 * line.fixed_s:.3g} ms and "
        f"{8e-6 / max(line.each_s, 1e-15):,.0f} Mbit/s, R² {r2:.4f}{doubt(r2, LINKS_R2)}"
    )


def measure_link(host: str, other_host: str, via: str, repeats: int) -> tuple[CostLine, float]:
    """Return the line through the median times of payloads of each size, and the R² of these and of
    two more sizes. Each payload is sent when the one before was answered."""
    sizes = sorted((*SIZES_KIB, *CHECKED_KIB))
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    with LinkTurns(host, other_host, via) as turns:
        for turn in range(repeats + 1):
            for size in sizes:
                taken = turns.one_by_one(size * 256, AT_A_TIME)  # of 4 bytes each
                if turn:
                    seconds[size] += taken
    median = {size: statistics.median(taken) for size, taken in seconds.items()}
    line = fit_line([1024 * size for size in SIZES_KIB], [median[size] for size in SIZES_KIB])
    r2 = r_squared([line.at(1024 * size) for size in sizes], [median[size] for size in sizes])
    return line, r2
