"""Tidy rows in files, and tables for a terminal."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gossip.errors import ConfigError

PARQUET = ".parquet"


def check_file(path: Path) -> None:
    """Check, before anything is computed, that rows can be written to the file.

    Raises: ConfigError: The file's folder does not exist, or the package for its format is missing.
    """
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {path.parent}")
    if path.suffix == PARQUET and find_spec("pyarrow") is None:
        raise ConfigError(
            f"{path} needs pyarrow, which is not installed",
            "pip install pyarrow, or a name that ends in .csv",
        )


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows as Parquet if the file's name ends in ``.parquet``, and as CSV otherwise.

    Args:
        rows: The rows. All values of a column have the same type. The parts of a tuple are written
            with blanks between them.

    Raises: ConfigError: The file cannot be written, or pyarrow is missing.
    """
    check_file(path)
    plain = ([" ".join(v) if isinstance(v, tuple) else v for v in row] for row in rows)
    try:
        if path.suffix == PARQUET:
            import pyarrow as pa
            from pyarrow import parquet

            named = zip(columns, zip(*plain, strict=True), strict=True)
            parquet.write_table(pa.table({name: list(each) for name, each in named}), path)
            return
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(plain)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


def align(head: Sequence[str], rows: Iterable[Sequence[str]], names: int = 0) -> list[str]:
    """Return the lines of a table for a terminal.

    Args:
        names: Number of leading columns that are aligned to the left; the others are aligned to the
            right.
    """
    lines = [list(head), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(wide) if at < names else cell.rjust(wide)
            for at, (cell, wide) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
