"""Fields of a world in TOML files, on command lines and on pages.

They are derived from the dataclass: the types from its annotations, the help texts from the
``Attributes`` in its docstring.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gossip.errors import ConfigError, UnknownName
from gossip.faults import toml_of

_ATTRIBUTE = re.compile(r"^ {8}(\w+(?:, \w+)*): (.*(?:\n {9,}.*)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Field:
    """Field of a dataclass that describes a world.

    Attributes:
        kind: Type of the value, or of each element if ``is_list``.
        choices: All allowed values; empty if every value of the type is allowed.
        is_list: Whether the value is a list.
        default: Default value.
        help: Text about the field in the docstring.
    """

    name: str
    kind: type
    choices: tuple[str, ...]
    is_list: bool
    default: Any
    help: str

    def read(self, value: Any) -> Any:
        """Convert a value of a TOML file to the type of the field; a list becomes a tuple.

        Raises: ConfigError: The value has a wrong type, or is not among the choices.
        """
        if self.is_list:
            if not isinstance(value, list | tuple):
                raise self._error(value, f"a list, such as [{toml_of(self._example)}]")
            return tuple([self._read_one(each) for each in value])
        return self._read_one(value)

    def _read_one(self, value: Any) -> Any:
        kinds = (int, float) if self.kind is float else (self.kind,)
        # In Python a boolean is an int.
        if not isinstance(value, kinds) or (isinstance(value, bool) and self.kind is not bool):
            raise self._error(value, f"{_NOUNS[self.kind]}, such as {toml_of(self._example)}")
        if self.choices and value not in self.choices:
            raise UnknownName(self.name, str(value), self.choices)
        return self.kind(value)

    @property
    def _example(self) -> Any:
        if self.is_list:
            return "crash:3@50"
        return self.default if self.default is not None else ""

    def _error(self, value: Any, wanted: str) -> ConfigError:
        return ConfigError(f"{self.name} = {value!r}", f"{self.name} is {wanted}")


_NOUNS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


@cache
def fields_of(description: type) -> list[Field]:
    """Return the fields of a dataclass that have numbers, texts, booleans, or tuples of them as
    values."""
    hints = get_type_hints(description)
    helps = {
        name: " ".join(text.split())
        for names, text in _ATTRIBUTE.findall(description.__doc__ or "")
        for name in names.split(", ")
    }
    found = []
    for each in dataclasses.fields(description):
        hint = hints[each.name]
        is_list = get_origin(hint) is tuple
        plain = get_args(hint)[0] if is_list else hint
        choices = get_args(plain) if get_origin(plain) is Literal else ()
        if get_origin(plain) in (Union, UnionType):  # such as ``str | None``: files have a text
            plain = next(kind for kind in get_args(plain) if kind in _NOUNS)
        kind = str if choices else plain
        help_text = helps.get(each.name, "")
        found.append(Field(each.name, kind, choices, is_list, each.default, help_text))
    return found


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the values of a TOML file.

    Raises: ConfigError: The file cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def write_toml(values: Mapping[str, Any]) -> str:
    """Return the values as the text of a TOML file."""
    return "".join(f"{name} = {toml_of(value)}\n" for name, value in values.items())
