"""Errors of gossip on a terminal."""

from __future__ import annotations

import sys

from gossip.errors import GossipError
from gossip.run import shown_lines

from .words import broken, line_width


def print_error(error: GossipError) -> None:
    """Print the error and its hint on stderr, without a traceback."""
    text = f"error: {shown_lines(error)}"
    if error.hint:
        text += f"\n  hint: {shown_lines(error.hint)}"
    width = line_width(sys.stderr)
    for line in text.split("\n"):
        print("\n".join(broken(line, width)), file=sys.stderr)
