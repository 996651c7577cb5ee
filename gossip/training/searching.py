"""Access to the session for ``peer.search_start``, which gossip-pipelines implements."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .collectives import Collectives, RunOver, pack_object, plain_of
from .peer_run import PeerRun
from .rounds import ScriptRounds


@dataclass
class SearchingPeer:
    """Parts of the session that a search needs, before the first step of the run."""

    run: PeerRun
    _rounds: ScriptRounds
    _collectives: Collectives

    def gather(self, make: Callable[[], object]) -> dict[int, Any] | None:
        """Return the value of each live peer, the same result on all peers. Return None if the run
        has already made steps.

        Args:
            make: Function that returns this peer's value; not called if the result is already
                known.
        """
        if self.run.step:
            return None
        if self.run.config.is_rolling:
            found = self._collectives.objects("search_start", lambda: pack_object(make()))
        else:
            found = self._gather_directly(pack_object(make()))
        return None if self.run.step else found

    def _gather_directly(self, data: bytes) -> dict[int, Any]:
        """Return the values that peers have sent directly, without a commit. If a peer has sent no
        value in this operation, use its previous value."""
        found: dict[int, Any] = {self.run.peer: plain_of(data)}

        def add(collected: Sequence[tuple[int, bytes]]) -> None:
            found.update((peer, plain_of(each)) for peer, each in collected)

        applied = self.run.applied
        before, applied.on_collected = applied.on_collected, add
        try:
            with suppress(RunOver):
                self._rounds.run_collective(data)
        finally:
            applied.on_collected = before
        return found

    def pause(self, pause_s: float) -> None:
        """Serve the node for ``pause_s`` seconds, so that other peers can make progress."""
        until = time.monotonic() + pause_s
        self.run.node.serve_while(lambda: time.monotonic() < until)
        self.between_steps()

    def between_steps(self) -> None:
        """Record the end of a trial's step as progress, and stop if requested."""
        self.run.applied.note_progress()
        self.run.node.interrupt()
