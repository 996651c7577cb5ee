"""How numbers are said to people."""

from __future__ import annotations


def counted(count: int, what: str) -> str:
    """``1 peer``, ``2 peers``"""
    return f"{count} {what}{'' if count == 1 else 's'}"


def bytes_word(count: float) -> str:
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return (
                f"{count / size:.1f} {unit}" if count < 100 * size else f"{count / size:.0f} {unit}"
            )
    return f"{count / 1024:.0f} KiB"


def short_bytes(count: float) -> str:
    """In four characters: ``512``, ``1.2k``, ``31M``; units of 1024."""
    for unit in ("", "k", "M", "G", "T"):
        if count < 1000 or unit == "T":
            break
        count /= 1024
    return f"{count:.1f}{unit}" if unit and count < 9.95 else f"{count:.0f}{unit}"
