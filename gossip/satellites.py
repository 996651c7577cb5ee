"""Functions of our other packages. The runtime finds them by their names and never imports them."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from gossip.errors import ConfigError

GROUP = "gossip.satellites"
PACKAGES = dict.fromkeys(("make_stage", "plan_options", "search_start"), "gossip-pipelines")
"""Names of the functions -> the packages that register them as entry points of ``GROUP``."""


def find_function(name: str, feature: str) -> Callable[..., Any]:
    """Return the function that one of our packages registers under ``name``.

    Args:
        feature: What the user has asked for, as the error names it.
    Raises: ConfigError: The package is not installed.
    """
    for entry in entry_points(group=GROUP, name=name):
        found: Callable[..., Any] = entry.load()
        return found
    raise missing(feature, PACKAGES[name])


def missing(feature: str, package: str) -> ConfigError:
    return ConfigError(f"{feature} comes with {package}", f"pip install {package}")
