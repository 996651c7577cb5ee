"""Texts in files, and Markdown tables for pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from gossip.errors import ConfigError


def markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return [markdown_row(columns), "|---" * len(columns) + "|", *map(markdown_row, rows)]


def write_text(path: Path, text: str) -> None:
    """Write a file. Raises: ConfigError: It cannot be written."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def split_at(page: Path, mark: str) -> tuple[str, str]:
    """Return the text before ``<!-- MARK -->``, and after ``<!-- end of MARK -->``.

    Raises: ConfigError: The page lacks one of them.
    """
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    text = page.read_text("utf-8") if page.exists() else ""
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ConfigError(f"{page} has no line {begin}, or no {end} after it")
    return before, after


def replace_between(page: Path, mark: str, lines: Sequence[str]) -> None:
    """Replace the text between ``<!-- MARK -->`` and ``<!-- end of MARK -->`` with these lines.

    Raises: ConfigError: The page lacks one of them.
    """
    before, after = split_at(page, mark)
    content = "\n".join([f"<!-- {mark} -->", *lines, f"<!-- end of {mark} -->"])
    page.write_text(f"{before}{content}{after}", "utf-8")
