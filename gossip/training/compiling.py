"""Whether the trainer compiles just now, told to its node through shared memory: the others wait
for that, and its batches keep their size afterwards."""

from __future__ import annotations

from typing import Any

from torch._dynamo.callback import callback_handler  # imported with the first optimizer anyway

from gossip.ipc import Arena


class CompileWatch:
    """Notes in ``arena`` when torch.compile begins and ends to compile something in this
    process."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        callback_handler.register_start_callback(self._begins)
        callback_handler.register_end_callback(self._ends)

    def _begins(self, *about: Any) -> None:
        self._arena.note_compiling(True)

    def _ends(self, *about: Any) -> None:
        self._arena.note_compiling(False)

    def close(self) -> None:
        """Looks no more."""
        if self._begins in callback_handler.start_callbacks:  # else somebody has cleared them
            callback_handler.remove_start_callback(self._begins)
            callback_handler.remove_end_callback(self._ends)
