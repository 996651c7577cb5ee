"""Functions and classes of our other packages. The runtime finds them by name and never imports
them."""

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
"""Names of the functions -> the packages that register them as entry points of ``GROUP``."""


WHOLE = "install it again, in the version of gossip-train"


def find_function(name: str, feature: str) -> Any:
    """Return the function or class that one of our packages registers under ``name``.

    Args:
        feature: The name of the request, for the error.
    Raises: ConfigError: The package is not installed, or broken.
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
    return ConfigError(f"{feature} comes with {package}", f"pip install {package}")
