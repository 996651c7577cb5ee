"""Formats of values, lines and errors for users."""

from __future__ import annotations

import math
import shutil
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from gossip.errors import GossipError
from gossip.run import shown_lines

NARROWEST = 20


def counted(count: int, what: str) -> str:
    """Return a number with its noun: ``1 peer``, ``2 peers``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def at_round(number: int) -> str:
    """Return ``at round 5``, or ``before its first round`` for -1."""
    return f"at round {number}" if number >= 0 else "before its first round"


def ranges_of(found: Iterable[int]) -> list[list[int]]:
    """Return the integers, ascending, as lists of consecutive integers."""
    parts: list[list[int]] = []
    for number in sorted(set(found)):
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return parts


def numbers(peers: Iterable[int], most: int | None = None) -> str:
    """Return integers as ``0-3,5``. If there are more than ``most`` parts, return the first
    ``most`` and the number of the others."""
    parts = ranges_of(peers)
    shown = ",".join(
        f"{part[0]}-{part[-1]}" if len(part) > 2 else ",".join(map(str, part))
        for part in parts[:most]
    )
    return shown if most is None or len(parts) <= most else f"{shown} and {len(parts) - most} more"


def named(peers: Iterable[int], most: int | None = None) -> str:
    """Return ``peer 3`` or ``peers 0-2,5``; "" without peers."""
    found = set(peers)
    return f"peer{'s' if len(found) > 1 else ''} {numbers(found, most)}" if found else ""


def clock(seconds: float | None, exact: bool = False) -> str:
    """Format the time since the start: ``0:07``, ``12:30``, ``3:00:00``, ``2 d 01:00``; with tenths
    of a second if ``exact``."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    tenths = round(max(0.0, seconds) * 10) if exact else round(max(0.0, seconds)) * 10
    whole, tenth = divmod(tenths, 10)
    end = f".{tenth}" if exact else ""
    minutes, s = divmod(whole, 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days} d {h:02d}:{m:02d}"
    return f"{h}:{m:02d}:{s:02d}{end}" if hours else f"{m}:{s:02d}{end}"


def lasted(seconds: float | None) -> str:
    """Format a duration: ``0.8 ms``, ``82 ms``, ``1.3 s``, ``4 min 05 s``, ``2 h 10 min``."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds <= 0:
        return "0 s"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    if not hours:
        return f"{m} min {s:02d} s"
    return f"{hours} h {m:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def bytes_word(count: float) -> str:
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return (
                f"{count / size:.1f} {unit}" if count < 100 * size else f"{count / size:.0f} {unit}"
            )
    return f"{count / 1024:.0f} KiB"


def short_bytes(count: float) -> str:
    """Format a number of bytes in four characters: ``512``, ``1.2k``, ``31M``. The units are powers
    of 1024."""
    for unit in ("", "k", "M", "G", "T"):
        if count < 999.5 or unit == "T":
            break
        count /= 1024
    return f"{count:.1f}{unit}" if unit and count < 9.95 else f"{count:.0f}{unit}"


def figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if abs(value) < 1000 else f"{value:.2e}"


def near(path: str) -> str:
    """Return the path relative to the working folder, if it is inside that folder."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path


def print_lines(lines: Iterable[str], out: TextIO | None = None) -> None:
    """Print the lines. On a terminal, long lines are wrapped at words, with an indent. ``out``:
    output stream; None means stdout."""
    width = line_width(out)
    for line in lines:
        print("\n".join(broken(line, width)), file=out, flush=True)


def line_width(out: TextIO | None = None) -> int | None:
    """Return the width of the terminal; None if the output is not a terminal. ``out``: output
    stream; None means stdout."""
    is_terminal = (sys.stdout if out is None else out).isatty()
    return shutil.get_terminal_size().columns if is_terminal else None


def broken(line: str, width: int | None) -> list[str]:
    """Return a line as parts of at most ``width`` characters; None means no limit."""
    if width is None or len(line) <= width:
        return [line]
    indent = len(line) - len(line.lstrip()) + 2
    return textwrap.wrap(
        line,
        max(width, 2 * indent, NARROWEST),
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
    )


def print_error(error: GossipError) -> None:
    """Print the error and its hint on stderr, without a traceback."""
    text = f"error: {shown_lines(error)}"
    if error.hint:
        text += f"\n  hint: {shown_lines(error.hint)}"
    print_lines(text.split("\n"), sys.stderr)
