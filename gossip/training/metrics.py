"""Converts metrics that a script logs to a line of JSON with numbers and short texts."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gossip.errors import ConfigError
from gossip.ipc import METRICS_MAX

TEXT_MAX = 200


def line_of(round_id: int, metrics: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return the line, and the value of ``loss`` if it is a number. Raises ConfigError: A value is
    not a number or a short text, or the line is too long."""
    line = {"round": round_id, **{name: _plain(name, value) for name, value in metrics.items()}}
    if not isinstance(line["round"], int) or line["round"] < 0:
        raise ConfigError(
            f"cannot log round: it is {line['round']!r}",
            "round is the name of the run's round number: use another name",
        )
    # JSON has no NaN, so a string is used.
    text = json.dumps(
        {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
    )
    if len(text) > METRICS_MAX:
        raise ConfigError(
            f"{len(metrics)} metrics make a line of {len(text)} characters, at most {METRICS_MAX} "
            "are allowed"
        )
    loss = line.get("loss")
    return text, float(loss) if isinstance(loss, int | float) else None


def _plain(name: str, value: Any) -> int | float | str:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool | numbers.Real):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    if isinstance(value, str) and len(value) <= TEXT_MAX:
        return value
    what = (
        f"a string of {len(value)} characters" if isinstance(value, str) else type(value).__name__
    )
    raise ConfigError(
        f"cannot log {name}: it is {what}",
        f"numbers and strings of at most {TEXT_MAX} characters can be logged",
    )
