"""Files of lines that grow for weeks are cut into segments, and all but the newest are compressed.

``commits.jsonl`` becomes ``commits.jsonl.000001`` when it has ``ROTATE_BYTES``, and a new
``commits.jsonl`` begins. When that becomes ``.000002``, the first is compressed to
``commits.jsonl.000001.gz`` by a thread of low priority. No line is ever dropped.
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
    """Return the segments that were cut from a file, oldest first, each once."""
    found: dict[int, Path] = {}
    try:
        names = sorted(os.listdir(path.parent))
    except OSError:
        return []
    for name in names:
        if name.startswith(path.name) and (end := _NUMBER.fullmatch(name[len(path.name) :])):
            found.setdefault(int(end[1]), path.with_name(name))  # of both forms the plain one
    return [found[number] for number in sorted(found)]


def rotate(path: Path) -> threading.Thread | None:
    """Gives a file the name of its next segment. Returns the thread that compresses the one before;
    None: there is none. Raises: OSError: It cannot be renamed, or is gone."""
    before = segments(path)
    last = int(before[-1].name[len(path.name) + 1 :][:6]) if before else 0
    path.rename(path.with_name(f"{path.name}.{last + 1:06d}"))
    if not before or before[-1].suffix == ".gz":
        return None
    thread = threading.Thread(target=_compress, args=(before[-1],), daemon=True)
    thread.start()
    return thread


def _compress(path: Path) -> None:
    """Whole or not at all: who is killed meanwhile leaves the plain one."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    scratch = path.with_name(f"{path.name}.gz.new")
    try:
        with path.open("rb") as plain, gzip.open(scratch, "wb", LEVEL) as packed:
            shutil.copyfileobj(plain, packed, 2**20)
        scratch.replace(path.with_name(f"{path.name}.gz"))
        path.unlink()
    except OSError:
        # the disk is full: it stays as it is, and no line is lost
        scratch.unlink(missing_ok=True)
