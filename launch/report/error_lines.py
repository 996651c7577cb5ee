"""An error of ours as a person reads it in a terminal."""

from __future__ import annotations

import sys

from gossip.errors import GossipError
from gossip.run import shown_lines


def print_error(error: GossipError) -> None:
    """Two or three lines on stderr, no traceback: it is told what is wrong, and what to do."""
    print(f"error: {shown_lines(error)}", file=sys.stderr)
    if error.hint:
        print(f"  hint: {shown_lines(error.hint)}", file=sys.stderr)
