"""Loads topologies by name: ``random-k``, ``random_k:k=4``, ``my.py:star``,
``my.module:star:hub=2``."""

from __future__ import annotations

import importlib
import re
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from gossip.errors import BadTopology, ConfigError, UnknownName
from gossip.specs import load_named, option_types, read_value, split_options

from .base import Topology

GROUP = "gossip.topologies"
"""Entry point group of topologies in other packages."""

_OPTIONS, _NEXT_OPTION = re.compile(r":(?=[^:=]*=)"), re.compile(r",(?=[^,:=]*=)")
"""Patterns for the start of the options in a spec, and for the start of each further option. A
value may contain commas and colons, as in ``weights=0:4,2:2``."""

BUILT_IN = {
    "rolling": "rolling",
    "random_k": "random_k",
    "ring": "rings",
    "full": "graphs",
    "static_regular": "graphs",
    "exponential": "graphs",
}
"""Name -> the module of this package that defines it."""


def names() -> tuple[str, ...]:
    """Return the names that ``load`` accepts, sorted, including those of installed packages."""
    return tuple(sorted({*BUILT_IN, *_installed()}))


def load(spec: str) -> Topology:
    """Find a topology and bind its options.

    Args:
        spec: ``name``, ``file.py:function`` or ``module:function``, optionally followed by
            ``:option=value,option=value``. Hyphens and underscores are equivalent in names.
    Returns: The topology, to be called with ``(roster, round_id, seed)``.
    Raises:
        UnknownName: There is no topology of that name.
        ConfigError: An option is unknown, a value is wrong, or the file or module has no such
            topology.
    """
    where, *rest = _OPTIONS.split(spec.strip(), maxsplit=1)
    options_text = rest[0] if rest else ""
    found = _by_path(where) if ":" in where else _by_name(where)
    return found.bind(**_options(found, options_text)) if options_text else found


def with_option(spec: str, name: str, value: object) -> str:
    """Return a spec with one more option."""
    return f"{spec}{',' if _OPTIONS.search(spec) else ':'}{name}={value}"


def _installed() -> dict[str, EntryPoint]:
    return {point.name.replace("-", "_"): point for point in entry_points(group=GROUP)}


def _by_name(name: str) -> Topology:
    plain = name.replace("-", "_")
    if plain in BUILT_IN:
        found = getattr(importlib.import_module(f".{BUILT_IN[plain]}", __package__), plain)
        assert isinstance(found, Topology)
        return found
    installed = _installed()
    if plain in installed:
        return _topology(installed[plain].load(), f"the entry point {name}")
    raise UnknownName("topology", plain, names())


def _by_path(where: str) -> Topology:
    place, _, function = where.rpartition(":")
    found = load_named(place, function, "topology", lambda value: isinstance(value, Topology))
    return _topology(found, where)


def _topology(found: object, where: str) -> Topology:
    if not isinstance(found, Topology):
        raise ConfigError(
            f"{where} is a {type(found).__name__}, not a topology",
            "decorate it with @gossip.topologies.topology",
        )
    any_option = any(each.kind is each.VAR_KEYWORD for each in found.parameters.values())
    if found.rolling and not any_option and "shards" not in found.parameters:
        raise BadTopology(
            f"rolling topology {found.name} has no option shards, the number of parts of the model",
            "add shards: int = 1 to its parameters, and return the servers of each shard",
        )
    return found


def _options(found: Topology, text: str) -> dict[str, Any]:
    owner = f"topology {found.name}"
    kinds = option_types(found.function, found.parameters)
    given = split_options(owner, _NEXT_OPTION.split(text), found.options)
    return {key: read_value(owner, key, value, kinds[key]) for key, value in given.items()}
