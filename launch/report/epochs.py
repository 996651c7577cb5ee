"""Samples of a run: completed epochs and batch sizes, and the lines about them."""

from __future__ import annotations

from gossip.observe import events

from .words import counted

EVERY_S, EVERY_S_MAX = 5.0, 60.0
"""Initial and maximum interval between two lines about epochs, in seconds. Epochs within an
interval share a line."""

FEWER = (
    '; so epochs leave samples unread, unless the script has peer.epochs(n, remainder="extend") or '
    "the run --batch-policy fixed_global"
)


class Epochs:
    """Completed epochs.

    Attributes:
        ended: Event of each completed epoch, by its number. The event is that of the first peer
            that reported the epoch.
    """

    def __init__(self) -> None:
        self.ended: dict[int, events.Epoch] = {}
        self._printed, self._printed_at, self._every_s = 0, float("-inf"), EVERY_S
        # round and number of peers of the last line about batches
        self._batch_told: tuple[int, int] | None = None
        self._planned = 0  # samples of the first round; 0 after a line has reported fewer
        self._printed_left = False  # whether a line has reported an epoch with unread samples

    def _on_batch(self, event: events.Batch) -> list[str]:
        """Return the line about the batch policy, at the start and whenever the number of peers in
        a round changes. Only the first report of a change counts."""
        at, n, local, samples = event.round, event.peers, event.local or 0, event.samples or 0
        known = self._batch_told
        if at is None or n is None or (known is not None and (at <= known[0] or n == known[1])):
            return []
        self._batch_told = at, n
        peers, each = counted(n, "peer"), counted(local, "sample")
        shares = f"{peers} x {each}" if samples == n * local else f"{peers}, at most {each} each"
        since = f" from round {at} on" if known is not None else ""
        fewer = FEWER * (samples < self._planned)
        self._planned = samples if known is None else self._planned * (not fewer)
        return [
            f"= batch{since}: {shares}, {samples} a round ({event.policy}); the learning rate is "
            f"unchanged{fewer}"
        ]

    def _on_epoch(self, event: events.Epoch) -> list[str]:
        """Return a line about an epoch, or about several short epochs together. The line is
        returned at once for an epoch that used samples twice, and for the first epoch with unread
        samples."""
        if event.epoch is None or event.epoch in self.ended:
            return []
        self.ended[event.epoch] = event
        at_once = event.twice or (event.left and not self._printed_left)
        self._printed_left = self._printed_left or bool(event.left)
        if event.t < self._printed_at + self._every_s and not at_once:
            return []
        if self._printed:
            self._every_s = min(2 * self._every_s, EVERY_S_MAX)
        self._printed_at = event.t
        return self.rest()

    @property
    def left(self) -> int:
        """Number of samples of all epochs that no step has used so far."""
        return (next(reversed(self.ended.values())).left or 0) if self.ended else 0

    def at_end(self, planned: bool) -> list[str]:
        """Return the lines at the end of a run. ``planned``: whether all planned steps are done, so
        that no later epoch reads the samples that the last epoch left."""
        lines = self.rest()
        if planned and (left := self.left):
            lines.append(
                f"= {counted(left, 'sample')} of all epochs left unused at the end; "
                'peer.epochs(n, remainder="extend") adds steps until none is left'
            )
        return lines

    def rest(self) -> list[str]:
        """Return the line about the epochs that have no line yet."""
        new = list(self.ended.items())[self._printed :]
        self._printed = len(self.ended)
        if not new:
            return []
        once, twice, skipped, given_up, rounds = (
            sum(getattr(epoch, name) or 0 for _, epoch in new)
            for name in ("once", "twice", "skipped", "given_up", "rounds")
        )
        left = new[-1][1].left or 0
        more = f"{skipped} skipped by scripts, " * bool(skipped)
        more += f"{given_up} given up, " * bool(given_up)
        which = f"epoch {new[0][0]}" if len(new) == 1 else f"epochs {new[0][0]} to {new[-1][0]}"
        mark = "!" if twice or given_up else "="
        return [
            f"{mark} {which}: {once} samples used once, {twice} twice, {more}in "
            f"{counted(rounds, 'round')}; left over in all epochs so far: {left}"
        ]
