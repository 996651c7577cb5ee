"""Functions and classes of our other packages. The runtime has no import statement for these
packages: it finds their functions as entry points."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from gossip.errors import ConfigError

GROUP = "gossip.satellites"
PACKAGES = {
    "StagePeer": "gossip-pipelines",
    "make_stage": "gossip-pipelines",
    "plan_options": "gossip-pipelines",
    "search_start": "gossip-pipelines",
}
"""Package that registers each function or class as an entry point of ``GROUP``; the key is the name
of the function or class."""


WHOLE = "install it again, in the version of gossip-train"


def find_function(name: str, feature: str) -> Any:
    """Return the function or class that one of our packages registers under ``name``.

    Args:
        feature: Feature that the user has requested, for the error message.
    Raises: ConfigError: The package is not installed, or its import fails.
    """
    package = PACKAGES[name]
    for entry in entry_points(group=GROUP, name=name):
        if entry.dist is not None and entry.dist.name == package:
            try:
                return entry.load()
            except (ImportError, AttributeError) as error:
                raise ConfigError(f"{package} cannot be loaded: {error}", WHOLE) from error
    raise missing(feature, package)


def missing(feature: str, package: str) -> ConfigError:
    return ConfigError(
        f"{feature} comes with {package}",
        f"pip install {package}, or in a checkout: pip install extras/*",
    )
