"""TOML files that users edit and exchange. Their size is limited, and each value is checked."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from gossip.errors import ConfigError, UnknownName
from gossip.run import open_file, read_at_most, shown

FILE_BYTES_MAX = 2 * 2**20
"""Maximum size of a profile, in bytes. A profile with 512 layers and 64 links has 150 kB."""
CHECKED = ConfigDict(extra="forbid", allow_inf_nan=False)
UNKNOWN_KEY = "unexpected_keyword_argument"
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
PeerName = Annotated[str, Field(pattern=NAME)]
Seconds = Annotated[float, Field(strict=True, ge=0, le=1e5)]
"""Time of a layer or a link. A time of more than a day is an error."""
ByteCount = Annotated[int, Field(strict=True, ge=0, le=10**15)]
Bytes = Annotated[float, Field(strict=True, ge=0, le=1e15)]

T = TypeVar("T")


def check_name(name: str, where: str) -> str:
    """Return ``name`` if it is a valid name of a peer. Raises: ConfigError: It is not valid."""
    return checked(PeerName, name, where)


def checked(kind: type[T] | Any, values: object, where: str) -> T:
    """Check ``values``, and return them as ``kind``. Raises: ConfigError: A value is invalid; the
    message names the value."""
    adapter = TypeAdapter(kind)
    try:
        found: T = adapter.validate_python(values)
    except ValidationError as error:
        problems = error.errors()
        unknown = [each for each in problems if each["type"] == UNKNOWN_KEY]
        first = [*unknown, *problems][0]  # A misspelt key also causes an error about a missing key.
        raise _explained(first, adapter.json_schema(), where) from error
    return found


def _explained(problem: Any, schema: Mapping[str, Any], where: str) -> ConfigError:
    if problem["type"] == UNKNOWN_KEY:
        tables = schema, *schema.get("$defs", {}).values()
        known = [key for table in tables for key in table.get("properties", ())]
        unknown = UnknownName("key", shown(str(problem["loc"][-1])), known)
        return ConfigError(f"{where}: {unknown}", unknown.hint)
    at = " ".join(shown(str(part)) for part in problem["loc"]) or "the value"
    if problem["type"] == "missing":
        return ConfigError(f"{where}: {at} is missing")
    found = shown(repr(problem["input"])[:80])
    return ConfigError(f"{where}: {at} cannot be {found}", problem["msg"])


def read_file(path: Path, kind: type[T], schema: str, made_by: str) -> T:
    """Read a record from a file.

    Args:
        made_by: Command that creates files of this type. It is the hint if there is no file.
    Raises: ConfigError: There is no file, it is too large, it has another schema, or a value is
        invalid.
    """
    where = shown(path)
    try:
        with open_file(path) as file:
            values = tomllib.loads(read_at_most(file, FILE_BYTES_MAX, path).decode("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {where}", made_by) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{where} is not TOML: {shown(error)}") from error
    found = values.pop("schema", None)
    if found != schema:
        raise ConfigError(
            f"{where}: schema is {shown(repr(found)[:80])}, not {schema!r}",
            f"the first line of the file must be schema = {schema!r}",
        )
    return checked(kind, values, where)


def as_toml(record: Any, schema: str, comments: Mapping[str, str]) -> str:
    """Return the text of a file for ``read_file``. ``comments``: comments on lines, by their
    keys."""
    return _table({"schema": schema, **asdict(record)}, comments)


def _table(values: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    """Return the lines of a table, followed by its subtables. Numbers, strings and lists are
    written as JSON, which is valid TOML for these types."""
    lines, tables = [], []
    for key, value in values.items():
        if isinstance(value, Mapping):
            tables.append(f"\n[{key}]\n" + _table(value, comments))
        elif value and isinstance(value, tuple) and isinstance(value[0], Mapping):
            tables += [f"\n[[{key}]]\n" + _table(each, comments) for each in value]
        elif value != ():
            comment = f"  # {comments[key]}" if key in comments else ""
            name = json.dumps(key) if "." in key else key
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}{comment}\n")
    return "".join([*lines, *tables])


def write_text(path: Path, text: str) -> None:
    """Write a text file. Raises: ConfigError: The file cannot be written."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {shown(path)}: {error.strerror}") from error
