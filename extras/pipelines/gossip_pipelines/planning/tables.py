"""TOML files that people edit and hand to each other: their size is bounded, and each value is
checked before it is used."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossip.errors import ConfigError, UnknownName
from gossip.run import open_file, read_at_most, real, shown, whole

FILE_BYTES_MAX = 2 * 2**20
"""Maximum bytes of a profile: one of 512 layers and 64 links has 150 kB."""
SECONDS_MAX = 1e5
"""Maximum seconds of a layer or a link: more than a day is a mistake."""
BYTES_MAX = 10**15
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
NAME_RULE = "a name has 1 to 64 letters, digits, and - _ . behind the first"


def read_toml(path: Path, made_by: str) -> dict[str, Any]:
    """Return the content of the file. ``made_by``: hint on what to do where there is none.

    Raises: ConfigError: There is none, it is larger than 2 MiB, or it is no TOML.
    """
    try:
        with open_file(path) as file:
            data = read_at_most(file, FILE_BYTES_MAX, path)
    except FileNotFoundError:
        raise ConfigError(f"there is no file {shown(path)}", made_by) from None
    try:
        return tomllib.loads(data.decode("utf-8"))
    except RecursionError:
        raise ConfigError(f"{shown(path)}: too many brackets in one another") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{shown(path)} is no TOML: {shown(error)}") from error


def check_name(name: object, where: str) -> str:
    """A peer's name. Raises: ConfigError."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(f"{where}: {shown(repr(name)[:80])} is no name of a peer", NAME_RULE)
    return name


@dataclass(frozen=True, slots=True)
class Fields:
    """One table of a file. ``where``: how an error names it."""

    where: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, where: str, values: object, known: Collection[str]) -> Fields:
        """Raises: ConfigError: It is no table, or has a key that is not known."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where}: a table is expected, not {shown(repr(values)[:80])}")
        for key in values:
            if key not in known:
                unknown = UnknownName("key", shown(key), known)
                raise ConfigError(f"{where}: {unknown}", unknown.hint)
        return cls(where, values)

    def wrong(self, key: str, expected: str) -> ConfigError:
        found = f"{key} = {shown(repr(self.values[key])[:80])}" if key in self.values else key
        is_wrong = "cannot be" if key in self.values else "is missing"
        return ConfigError(f"{self.where}: {found} {is_wrong}", f"{key}: {expected}")

    def number(self, key: str, most: float, unit: str) -> float:
        """Return a number from 0 to ``most``."""
        value = real(self.values.get(key))
        if value is None or not 0 <= value <= most:
            raise self.wrong(key, f"{unit} from 0 to {most:g}")
        return value

    def count(self, key: str, least: int, most: int) -> int:
        """A whole number from ``least`` to ``most``."""
        value = whole(self.values.get(key))
        if value is None or not least <= value <= most:
            raise self.wrong(key, f"a whole number from {least} to {most}")
        return value

    def text(self, key: str, pattern: str, expected: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise self.wrong(key, expected)
        return value

    def numbers(self, key: str, length: int, most: float, unit: str) -> tuple[float, ...]:
        """``length`` numbers from 0 to ``most``."""
        found = self.values.get(key)
        values = [real(each) for each in found] if isinstance(found, list) else []
        good = [value for value in values if value is not None and 0 <= value <= most]
        if len(good) != length or len(values) != length:
            raise self.wrong(key, f"{length} numbers, {unit} from 0 to {most:g}")
        return tuple(good)

    def tables(self, key: str, known: Collection[str], most: int) -> list[Fields]:
        """The tables ``[[key]]``, at most ``most`` of them."""
        found = self.values.get(key, [])
        if not isinstance(found, list) or len(found) > most:
            raise ConfigError(f"{self.where}: [[{key}]] stands for at most {most} tables")
        return [
            Fields.of(f"{self.where}: {key} {number}", each, known)
            for number, each in enumerate(found)
        ]


def check_schema(where: str, said: Mapping[str, Any], schema: str) -> None:
    """Raises: ConfigError: The file is of another kind or version."""
    found = said.get("schema")
    if found != schema:
        raise ConfigError(
            f"{where}: schema is {shown(repr(found)[:80])}, not {schema!r}",
            f"the first line of such a file is schema = {schema!r}",
        )


def write_text(path: Path, text: str) -> None:
    """Raises: ConfigError: It cannot be written."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {shown(path)}: {error.strerror}") from error
