"""Topologies by name: ``random-k``, ``random_k:k=4``, ``my.py:star``, ``my.module:star:hub=2``."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from hashlib import blake2b
from importlib.metadata import EntryPoint, entry_points
from inspect import Parameter
from pathlib import Path
from types import ModuleType
from typing import Any

from gossip.errors import ConfigError, UnknownName
from gossip.interpreter import importing_users_modules

from .base import Topology, unknown_option

GROUP = "gossip.topologies"
"""Entry point group of topologies in other packages."""

_OPTIONS, _NEXT_OPTION = re.compile(r":(?=[^:=]*=)"), re.compile(r",(?=[^,:=]*=)")
"""Start of the options of a spec, and of each next option. A value may itself have commas and
colons, as in ``weights=0:4,2:2``."""

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
    """Return every name for ``load``, sorted, including those of installed packages."""
    return tuple(sorted({*BUILT_IN, *_installed()}))


def load(spec: str) -> Topology:
    """Find a topology and bind its options.

    Args:
        spec: ``name``, ``file.py:function`` or ``module:function``, then perhaps
            ``:option=value,option=value``. In names and options hyphens are underscores.
    Returns: The topology, called with ``(roster, round_id, seed)`` alone.
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
    path, _, function = where.rpartition(":")
    module = _module_of_file(Path(path)) if path.endswith(".py") else _module_by_name(path)
    if not hasattr(module, function):
        raise UnknownName(
            "topology",
            function,
            [name for name, value in vars(module).items() if isinstance(value, Topology)],
        )
    return _topology(getattr(module, function), where)


def _topology(found: object, where: str) -> Topology:
    if not isinstance(found, Topology):
        raise ConfigError(
            f"{where} is a {type(found).__name__}, not a topology",
            "decorate it with @gossip.topologies.topology",
        )
    return found


def _module_by_name(name: str) -> ModuleType:
    try:
        with importing_users_modules():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, but one of its imports is missing
        raise ConfigError(
            f"there is no module {name!r} to take a topology from",
            f"known names: {', '.join(names())}",
        ) from error


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"there is no file {path} to take a topology from")
    # The name has the whole path, so that it hides no module with the same stem, and a second call
    # finds the module.
    whole_path = blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()
    name = f"gossip_file_{path.stem}_{whole_path}"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _options(found: Topology, text: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in _NEXT_OPTION.split(text):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not name or not value:
            raise ConfigError(f"topology {found.name}: {part!r} is not option=value")
        name = name.replace("-", "_")
        if name not in found.options:
            raise unknown_option(f"topology {found.name}", name, found.options)
        if name in options:
            raise ConfigError(f"topology {found.name}: {name} is given twice")
        options[name] = _value(found, name, value)
    return options


def _value(found: Topology, name: str, text: str) -> Any:
    """Return a value in the type of the option's annotation, or without an annotation in the type
    that its text suggests."""
    annotation = found.parameters[name].annotation
    hint = (
        ""
        if annotation is Parameter.empty
        else annotation
        if isinstance(annotation, str)
        else str(annotation)
    )
    if isinstance(annotation, type):
        hint = annotation.__name__
    wanted = {word.strip() for word in hint.split("|")} & {"int", "float", "bool", "str", "None"}
    for kind in ("None", "bool", "int", "float", "str"):
        if wanted and kind not in wanted:
            continue
        read, value = _read(kind, text)
        if read:
            return value
    raise ConfigError(
        f"topology {found.name}: {name} must be {' or '.join(sorted(wanted))}, not {text!r}"
    )


def _read(kind: str, text: str) -> tuple[bool, Any]:
    lower = text.lower()
    if kind == "None":
        return lower in ("none", "null"), None
    if kind == "bool":
        return lower in ("true", "false"), lower == "true"
    if kind == "str":
        return True, text
    try:
        return True, (int if kind == "int" else float)(text)
    except ValueError:
        return False, None
