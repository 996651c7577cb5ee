"""Format of times, numbers and peers in a report."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gossip.launch.report.words import named

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
STEPS_S = (
    *(1, 2, 5, 10, 15, 30),
    *(MINUTE_S * n for n in (1, 2, 5, 10, 15, 30)),
    *(HOUR_S * n for n in (1, 2, 3, 6, 12)),
    *(DAY_S * n for n in (1, 2, 5, 10, 20, 50, 100)),
)
"""Possible distances between two ticks of a time axis, in seconds."""
NONE = "-"
"""Text of a cell without a value."""
PEERS_NAMED = 6


def number(value: float | None, digits: int = 3) -> str:
    """Format a value with ``digits`` significant digits: ``0.0861``, ``1,234``, ``2.1e+09``."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    size = abs(value)
    if size >= 1e7 or size < 1:
        return f"{value:.{digits}g}"
    before = math.floor(math.log10(size)) + 1
    text = f"{value:,.{max(0, digits - before)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def share(part: float, whole: float) -> str:
    """Format ``part / whole`` as ``62 %``. Values near 0 or 1 become ``under 1 %`` or ``over 99
    %``."""
    if not whole:
        return NONE
    percent = 100 * part / whole
    if 0 < percent < 1:
        return "under 1 %"
    return "over 99 %" if 99 < percent < 100 else f"{percent:.0f} %"


def peers(found: Iterable[int]) -> str:
    """Return ``peer 3`` or ``peers 0-4,7``. If there are many peers, return the first ones and the
    number of the others."""
    return named(found, PEERS_NAMED) or "no peer"


def time_ticks(duration_s: float, most: int = 6) -> list[float]:
    """Return at most ``most`` tick positions from 0 on, at multiples of a step in ``STEPS_S``."""
    longest = STEPS_S[-1] * math.ceil(duration_s / most / STEPS_S[-1])
    step = next((step for step in STEPS_S if duration_s / step < most), longest)
    return [float(at) for at in range(0, math.floor(duration_s) + 1, step)]


def value_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return tick positions from ``low`` to ``high``, at multiples of 1, 2 or 5 times a power of
    ten."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{at * step:.6g}") for at in range(first, last + 1)]
