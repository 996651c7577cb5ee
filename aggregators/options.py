"""Parsing of ``key=value,key=value`` into the types of a rule's signature."""

from __future__ import annotations

import inspect
import types
import typing
from typing import TYPE_CHECKING, Any

from gossip.errors import ConfigError, UnknownName

if TYPE_CHECKING:
    from .base import Rule
    from .composing import PreAggregation

_NEVER_OPTIONS = frozenset(
    {"center", "previous", "evaluate", "gradient"}
)  # tensors and functions, which only the runtime has
_WORDS = {"true": True, "yes": True, "false": False, "no": False}


def parse_options(rule: Rule | PreAggregation, text: str) -> dict[str, Any]:
    """Return the options in ``text``, typed by the annotation of each parameter, or by its default
    if there is none.

    Raises:
        UnknownName: The rule has no such option; the nearest is suggested.
        ConfigError: A value cannot be read; an option is given twice, or is missing although the
            rule requires it.
    """
    settable = _settable(rule)
    options: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = item.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not value.strip():
            raise ConfigError(f"{rule.name}: option {item!r} has no value", f"write {key}=...")
        if key not in settable:
            raise UnknownName(f"option of {rule.name}", key, settable)
        if key in options:
            raise ConfigError(f"{rule.name}: option {key!r} is given twice")
        options[key] = _read(rule.name, key, value.strip(), settable[key])
    for key, parameter in rule.parameters.items():
        if (
            key in settable
            and key not in options
            and key not in rule.needs
            and parameter.default is inspect.Parameter.empty
        ):
            raise ConfigError(
                f"rule {rule.name} needs a value for {key!r}", f"write {rule.name}:{key}=..."
            )
    return options


def _settable(rule: Rule | PreAggregation) -> dict[str, Any]:
    """Return option name -> its type, or None if it is not declared."""
    try:
        hints = typing.get_type_hints(rule.function)
    except (NameError, TypeError, AttributeError):
        # an annotation that exists only for type checkers
        hints = {}
    settable: dict[str, Any] = {}
    for index, (key, parameter) in enumerate(rule.parameters.items()):
        if (
            index == 0
            or key in _NEVER_OPTIONS
            or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        ):
            continue
        default = parameter.default
        guess = (
            type(default)
            if default is not inspect.Parameter.empty and default is not None
            else None
        )
        settable[key] = hints.get(key, guess)
    return settable


def _read(rule: str, key: str, text: str, kind: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        allowed = {str(value): value for value in typing.get_args(kind)}
        if text not in allowed:
            raise UnknownName(f"value of {rule}'s {key}", text, allowed)
        return allowed[text]
    if origin in (typing.Union, types.UnionType):
        members = typing.get_args(kind)
        if type(None) in members and text.lower() == "none":
            return None
        kinds = [member for member in members if member is not type(None)]
        return _read(rule, key, text, kinds[0] if len(kinds) == 1 else None)
    if kind in (bool, int, float):
        try:
            return _WORDS[text.lower()] if kind is bool else kind(text)
        except (KeyError, ValueError):
            words = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
            raise ConfigError(f"{rule}: {key}={text!r} is not {words}") from None
    if kind is str:
        return text
    if kind is None:
        return _guess(text)
    raise ConfigError(
        f"{rule}: {key} is a {kind} and cannot be set in text",
        "bind it in Python with functools.partial",
    )


def _guess(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
