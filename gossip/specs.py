"""Specs: texts that name a rule, a topology or another plug-in and set its options:
``name:key=value,key=value``, ``file.py:function``, ``package.module:function``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import ConfigError, UnknownName
from .interpreter import importing_users_modules

_SWITCH = {"true": True, "yes": True, "false": False, "no": False}
_READERS: dict[Any, tuple[str, Callable[[str], Any]]] = {
    types.NoneType: ("none", {"none": None, "null": None}.__getitem__),
    bool: ("true or false", _SWITCH.__getitem__),
    int: ("a whole number", int),
    float: ("a number", float),
    str: ("a text", str),
}
"""For each type of an option: its description, and the function that parses a lower-case text. The
function for ``str`` gets the text unchanged. The types are tried in this order."""


def split_options(
    owner: str, items: Iterable[str], known: Collection[str], first: str = ""
) -> dict[str, str]:
    """Return the text of each option; the key is its name. Hyphens in names become underscores.

    Args:
        owner: Rule, topology or other owner of the options, for error messages.
        items: Texts ``key=value``; empty ones are ignored.
        known: Names of the options.
        first: Name of the option of the first item, if this item has no ``key=``.
    Raises: UnknownName: An option is not in ``known``. ConfigError: An option has no value, or is
        set twice.
    """
    found: dict[str, str] = {}
    for item in filter(None, map(str.strip, items)):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals and first and not found:
            key, value = first, key
        key = key.replace("-", "_")
        if not value:
            raise ConfigError(f"{owner}: option {item!r} has no value", f"write {key}=...")
        if key not in known:
            raise UnknownName(f"option of {owner}", key, known)
        if key in found:
            raise ConfigError(f"{owner}: option {key!r} is given twice")
        found[key] = value
    return found


def option_types(
    function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """Return the type of each parameter: its annotation, or else the type of its default, or None
    if the parameter has neither."""
    space, found = getattr(function, "__globals__", {}), dict[str, Any]()
    for name, each in parameters.items():
        given = types.SimpleNamespace(__annotations__={name: each.annotation})
        found[name] = None if each.default in (None, each.empty) else type(each.default)
        if each.annotation is not each.empty:
            # Resolve each annotation alone: other parameters may have annotations that only type
            # checkers can resolve.
            with suppress(NameError, TypeError, AttributeError):
                found[name] = typing.get_type_hints(given, space)[name]
    return found


def read_value(owner: str, key: str, text: str, kind: Any) -> Any:
    """Return the value of an option, converted to ``kind``, a type from ``option_types``. If
    ``kind`` is None, the text decides the type.

    Raises: UnknownName: The text is none of the values of a ``Literal``, and fits no other type.
        ConfigError: The text does not fit the type, or no text can express a value of this type.
    """
    unites = typing.get_origin(kind) in (typing.Union, types.UnionType)
    members = typing.get_args(kind) if unites else _READERS if kind is None else (kind,)
    allowed = {
        str(value): value
        for member in members
        if typing.get_origin(member) is typing.Literal
        for value in typing.get_args(member)
    }
    if text in allowed:
        return allowed[text]
    readers = [reader for each, reader in _READERS.items() if each in members]
    for _, read in readers:
        with suppress(KeyError, ValueError):
            return read(text if read is str else text.lower())
    words = [words for words, _ in readers]
    if allowed:
        raise UnknownName(f"value of {owner}'s {key}", text, (*allowed, *words))
    if not words:
        raise ConfigError(
            f"{owner}: {key} is a {kind} and cannot be set in text",
            "bind it in Python with functools.partial",
        )
    raise ConfigError(f"{owner}: {key}={text!r} is not {' or '.join(words)}")


def load_named(
    place: str, function: str, kind: str, fits: Callable[[Any], bool], *, anew: bool = False
) -> Any:
    """Return the object that ``place:function`` names. Underscores of the object's name may be
    written as hyphens.

    Args:
        place: A file, or the name of a module.
        kind: Kind of the object, for error messages, such as ``rule``.
        fits: Whether an object may be of this kind. The error message suggests the names of these
            objects.
        anew: Whether to run a file again, so that state of its module is not shared with an earlier
            use.
    Raises: UnknownName: The module has no such object. ConfigError: There is no such file or
        module, or its import raises an error.
    """
    module = load_module(place, function, anew)
    for name in (function, function.replace("-", "_")):
        if (found := getattr(module, name, None)) is not None:
            return found
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and fits(value)
        and getattr(value, "__module__", "") == module.__name__
    ]
    raise UnknownName(f"{kind} of {place}", function, own)


def load_module(place: str, function: str, anew: bool = False) -> ModuleType:
    """Return the module that ``place`` names. ``function`` is used in error messages only. Raises:
    ConfigError: There is no such file or module, or its import raises an error."""
    if place.endswith(".py") or "/" in place:
        return _load_file(place, function, anew)
    try:
        with importing_users_modules():
            return importlib.import_module(place)
    except Exception as error:
        raise ConfigError(
            f"module {place} cannot be imported: {describe_error(error)}",
            f"install it, or name the file: path/to/{place.rsplit('.', 1)[-1]}.py:{function}",
        ) from error


def _load_file(place: str, function: str, anew: bool) -> ModuleType:
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        near = sorted(p.name for p in path.parent.glob("*.py"))[:10] if path.parent.is_dir() else []
        raise ConfigError(
            f"there is no file {path} to take {function} from",
            f"in that folder: {', '.join(near)}"
            if near
            else "the path is relative to the working directory",
        )
    # The module's name has a digest, because the file may have the name of an installed package,
    # such as aggregators.py. The digest covers the content, so a changed file is loaded as a new
    # module.
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {describe_error(error)}") from error
    digest = blake2b(bytes(path) + content, digest_size=8).hexdigest()
    name = f"_gossip_file_{path.stem}_{digest}"
    if name in sys.modules and not anew:
        return sys.modules[name]
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise ConfigError(f"{path} is not a Python file", "name a file that ends in .py")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses and type hints look the module up there
    try:
        module_spec.loader.exec_module(module)
    except BaseException as error:  # also after Ctrl-C: a half-loaded module must not stay
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        raise ConfigError(
            f"{path} cannot be loaded: {describe_error(error)}",
            "run it with python to see the error",
        ) from error
    return module


def describe_error(error: BaseException) -> str:
    """Return the type and the message of an error."""
    return f"{type(error).__name__}: {error}"
