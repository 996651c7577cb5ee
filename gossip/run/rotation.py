"""Rotates files of lines, because they may grow for weeks. A file is cut into segments, and all
segments but the newest are compressed.

When ``commits.jsonl`` has ``ROTATE_BYTES``, it is renamed to ``commits.jsonl.000001``, and a new
``commits.jsonl`` begins. When the new file is renamed to ``commits.jsonl.000002``, a thread of low
priority compresses the first segment to ``commits.jsonl.000001.gz``. No line is ever dropped.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import threading
from pathlib import Path

ROTATE_BYTES = 4 * 2**20
LEVEL = 6
_NUMBER = re.compile(r"\.(\d{6})(\.gz)?")


def segments(path: Path) -> list[Path]:
    """Return the segments of a file, oldest first. A segment that exists twice, plain and
    compressed, is returned once."""
    found: dict[int, Path] = {}
    try:
        names = sorted(os.listdir(path.parent))
    except OSError:
        return []
    for name in names:
        if name.startswith(path.name) and (end := _NUMBER.fullmatch(name[len(path.name) :])):
            found.setdefault(int(end[1]), path.with_name(name))  # the plain file, if both exist
    return [found[number] for number in sorted(found)]


def rotate(path: Path) -> threading.Thread | None:
    """Rename a file to its next segment. Return the thread that compresses the previous segment;
    None if there is nothing to compress. Raises: OSError: The file cannot be renamed, or does not
    exist."""
    before = segments(path)
    last = int(before[-1].name[len(path.name) + 1 :][:6]) if before else 0
    path.rename(path.with_name(f"{path.name}.{last + 1:06d}"))
    if not before or before[-1].suffix == ".gz":
        return None
    thread = threading.Thread(target=_compress, args=(before[-1],), daemon=True)
    thread.start()
    return thread


def _compress(path: Path) -> None:
    """Compress a segment atomically. If the process is killed, the plain file remains."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    scratch = path.with_name(f"{path.name}.gz.new")
    try:
        with path.open("rb") as plain, gzip.open(scratch, "wb", LEVEL) as packed:
            shutil.copyfileobj(plain, packed, 2**20)
        scratch.replace(path.with_name(f"{path.name}.gz"))
        path.unlink()
    except OSError:
        # The disk is full: the segment stays uncompressed, and no line is lost.
        scratch.unlink(missing_ok=True)
