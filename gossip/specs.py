"""Texts that name things and set their options: ``name:key=value,key=value``,
``file.py:function``, ``package.module:function``."""

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

FILE_PREFIX = "_gossip_file_"
"""Start of the names of modules that ``load_file`` makes."""
_SWITCH = {"true": True, "yes": True, "false": False, "no": False}
_READERS: dict[Any, tuple[str, Callable[[str], Any]]] = {
    types.NoneType: ("none", {"none": None, "null": None}.__getitem__),
    bool: ("true or false", _SWITCH.__getitem__),
    int: ("a whole number", int),
    float: ("a number", float),
    str: ("a text", str),
}
"""Type of an option -> its description, and the function that reads it from a text in lower case
(``str``: any text). They are tried in this order."""


def split_options(
    owner: str, items: Iterable[str], known: Collection[str], first: str = ""
) -> dict[str, str]:
    """Return the text of each option, by its name. A hyphen in a name is an underscore.

    Args:
        owner: Thing that has the options, for error messages.
        items: Texts ``key=value``; empty ones are ignored.
        known: Names of the options.
        first: Option that the first text may set without a name.
    Raises: UnknownName: There is no such option. ConfigError: An option has no value, or two.
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
    """Return the type of each parameter: its annotation, or else the type of its default; None if
    it has neither."""
    space, found = getattr(function, "__globals__", {}), dict[str, Any]()
    for name, each in parameters.items():
        given = types.SimpleNamespace(__annotations__={name: each.annotation})
        found[name] = None if each.default in (None, each.empty) else type(each.default)
        if each.annotation is not each.empty:
            # Other parameters may have annotations that exist only for type checkers.
            with suppress(NameError, TypeError, AttributeError):
                found[name] = typing.get_type_hints(given, space)[name]
    return found


def read_value(owner: str, key: str, text: str, kind: Any) -> Any:
    """Return the value of an option in its type (``option_types``), or if that is None, in the type
    that the text suggests.

    Raises: UnknownName: It is none of the values of a ``Literal``. ConfigError: It has another
        type, or a type that no text can express.
    """
    unites = typing.get_origin(kind) in (typing.Union, types.UnionType)
    members = typing.get_args(kind) if unites else _READERS if kind is None else (kind,)
    for member in members:
        if typing.get_origin(member) is typing.Literal:
            allowed = {str(value): value for value in typing.get_args(member)}
            allowed |= {"none": None} if types.NoneType in members else {}
            if text not in allowed:
                raise UnknownName(f"value of {owner}'s {key}", text, allowed)
            return allowed[text]
    readers = [reader for each, reader in _READERS.items() if each in members]
    if not readers:
        raise ConfigError(
            f"{owner}: {key} is a {kind} and cannot be set in text",
            "bind it in Python with functools.partial",
        )
    for _, read in readers:
        with suppress(KeyError, ValueError):
            return read(text if read is str else text.lower())
    wanted = " or ".join(words for words, _ in readers)
    raise ConfigError(f"{owner}: {key}={text!r} is not {wanted}")


def load_named(
    place: str, function: str, kind: str, fits: Callable[[Any], bool], *, anew: bool = False
) -> Any:
    """Return the object of ``place:function``. A hyphen in its name may be an underscore.

    Args:
        place: A file, or the name of a module.
        kind: Kind of the object, for error messages: ``rule``.
        fits: Whether an object may be of this kind, to suggest names.
        anew: Whether to run a file again, so that nothing is left of an earlier use.
    Raises: UnknownName: The module has no such object. ConfigError: There is no such file or
        module, or it raises.
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
    """Return the module of ``place:function``. Raises: ConfigError: There is no such file or
    module, or it raises."""
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
    # The file may be called aggregators.py, or like an installed package. A changed file is another
    # module.
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {describe_error(error)}") from error
    digest = blake2b(bytes(path) + content, digest_size=8).hexdigest()
    name = f"{FILE_PREFIX}{path.stem}_{digest}"
    if name in sys.modules and not anew:
        return sys.modules[name]
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise ConfigError(f"{path} is not a Python file", "name a file that ends in .py")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses and type hints of the file look it up there
    try:
        module_spec.loader.exec_module(module)
    except BaseException as error:  # half a module must not stay after Ctrl-C
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
