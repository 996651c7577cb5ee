"""The demo: handwritten digits under faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import swarms
    from .digits import load_digits
else:
    __getattr__, __dir__ = lazy(__name__)
