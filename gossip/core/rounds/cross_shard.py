"""Cross-shard decisions: rounds in which the servers of all shards decide together. The weights of
updates depend on all columns, and each server has only some of the columns.

1. The server of each shard measures its updates and sends the statistics to the first server, which
   is the server of shard 0.
2. The first server decides the weights of the updates that all servers have measured. It commits
   its shard with the decision.
3. The other servers combine their updates by the decision in that commit, and commit.

A round has one decision because it has one commit of shard 0. If the statistics of a server differ
from those that the decision used, the weights of its updates are unknown. The server then commits
an empty result and the round changes nothing. If a server withholds its statistics, the first
server reports this, and the shard of the silent server moves to its next attempt.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite, isqrt
from typing import Any, TypeAlias

from gossip.core.digests import digest_of
from gossip.core.events import Effect, Send, ShardStatistics
from gossip.core.frozen import record
from gossip.core.messages import STATISTICS_BYTES_MAX, PartialOverdue, PartialStatistics, PeerId
from gossip.core.settings import (
    CHECK_INTERVAL_S,
    MEASURED_POINTS,
    OVERDUE_SHARE,
    STATISTICS_REPLIES,
    CoreSettings,
)
from gossip.core.timers import Timers

from .server import Server
from .shard import CrossShardProgress, ShardRound
from .timeouts import Deadline

AHEAD = 2  # values in the statistics before the triangle of inner products

Advance: TypeAlias = Callable[[ShardRound, str, float], list[Effect]]


def points_of(statistics: bytes, updates: int) -> int | None:
    """Return the number of points that the rule has measured in addition to the ``updates`` rows.
    Return None unless the bytes are finite float64 values for this number of updates and at most
    ``MEASURED_POINTS`` points."""
    count, rest = divmod(len(statistics), 8)
    if rest or len(statistics) > STATISTICS_BYTES_MAX or count < AHEAD or updates < 1:
        return None
    triangle = count - AHEAD
    width = (isqrt(8 * triangle + 1) - 1) // 2
    if width * (width + 1) // 2 != triangle or not 0 <= width - updates <= MEASURED_POINTS:
        return None
    return width - updates if all(map(isfinite, struct.unpack(f"<{count}d", statistics))) else None


@record
class _Measurement:
    """Statistics that the server of a shard has measured in one attempt."""

    attempt: int
    part: ShardStatistics


@dataclass(eq=False)
class CrossShardRound:
    """Cross-shard work of one peer in a round.

    Args:
        advance: Function that moves a shard to its next attempt.
    """

    local: PeerId
    settings: CoreSettings
    server: Server
    timers: Timers[Any]
    advance: Advance

    def __post_init__(self) -> None:
        self.shards: Sequence[ShardRound] = ()
        self.active = False
        self._parts: dict[int, _Measurement] = {}
        # By shard: attempt of the statistics that this peer sent last, and the attempt of shard 0
        # to which they belong.
        self._given: dict[int, tuple[int, int]] = {}
        # number of requests for statistics, by shard and attempt of shard 0
        self._asked: Counter[tuple[int, int]] = Counter()
        # latest attempt of shard 0 for which the timeout was restarted, because other servers
        # withheld statistics
        self._renewed = -1

    @property
    def deadline(self) -> Deadline:
        return self.server.patience.deadline

    def begin(self, shards: Sequence[ShardRound]) -> None:
        """Begin a round or return to it. Some of its shards may already be committed."""
        self.shards, self.active = shards, self.server.cross_shard
        self._parts, self._given, self._renewed = {}, {}, -1
        self._asked.clear()
        self._want()

    def is_timed(self, shard: ShardRound) -> bool:
        """Whether the server of ``shard`` has a timeout. Before the decision, only the first server
        has a timeout."""
        return not self.active or shard.index == 0 or self.shards[0].commit is not None

    def is_combining(self, shard: ShardRound) -> bool:
        """Whether this peer combines the updates of ``shard`` by the committed decision, and will
        soon commit the result. That commit is also the reply to requests of later attempts."""
        progress = shard.served.cross_shard_progress
        return (
            progress is not None
            and progress.step == "combine"
            and shard.served.attempt == shard.attempt
        )

    # --- as the server of a shard -----------------------------------------------------------------

    def on_measured(self, shard: ShardRound, now: float) -> list[Effect]:
        """Handle the statistics of the updates that this peer has collected for ``shard``."""
        served = shard.served
        effects: list[Effect] = []
        if shard.index == 0:
            timer = self.server.timer(
                "measurements_overdue",
                shard,
                now + min(self.deadline.grace_s(), self._timeout_s(0.1)),
            )
            served.measurements_overdue = timer.token
            effects.append(timer)
        return effects + self.send_measurements() + self.go_on(now)

    def send_measurements(self) -> list[Effect]:
        """Send the local statistics to the first server, once for each attempt of shard 0."""
        effects: list[Effect] = []
        for shard in self.shards[1:] if self.active and self.shards[0].commit is None else ():
            progress, first = self._measured(shard), self.shards[0].attempt
            if progress is None or self._given.get(shard.index) == (shard.attempt, first):
                continue
            self._given[shard.index] = (shard.attempt, first)
            decides = self.shards[0].server_of(first)
            if decides == self.local:
                self._parts[shard.index] = _Measurement(shard.attempt, _part(shard, progress))
            else:
                effects.append(Send(decides, self._partial(shard, progress)))
        return effects

    def go_on(self, now: float) -> list[Effect]:
        """Continue each shard that this peer serves, if the input of its next step is complete."""
        effects: list[Effect] = []
        for shard in self.shards if self.active else ():
            progress = self._measured(shard)
            if progress is not None:
                effects += (
                    self._follow(shard, progress, now)
                    if shard.index
                    else self._decide(shard, progress)
                )
        return effects

    def _measured(self, shard: ShardRound) -> CrossShardProgress | None:
        """Return the progress of a shard that this peer serves and has measured; None if the shard
        is in any other step."""
        progress = shard.served.cross_shard_progress
        waits = (
            progress is not None
            and progress.step == "measured"
            and shard.commit is None
            and shard.served.attempt == shard.attempt
        )
        return progress if waits else None

    def _decide(self, shard: ShardRound, progress: CrossShardProgress) -> list[Effect]:
        if any(each.commit is not None for each in self.shards):
            return self._nothing(
                shard, progress, "another shard was committed by a decision that is lost"
            )
        parts = [_part(shard, progress)]
        for each in self.shards[1:]:
            given = self._part_of(each)
            if given is None:
                return []
            parts.append(given)
        everybody = frozenset.intersection(*[frozenset(part.peers) for part in parts])
        outside = {row.peer for row in shard.served.outside}
        common = self.server.without_quarantined(everybody - outside, self.server.f_of(shard))
        if not common:
            return self._nothing(
                shard,
                progress,
                progress.why or "no update has arrived at the servers of all shards",
            )
        progress.step, progress.rows = (
            "decide",
            tuple([row for row in shard.served.rows if row.peer in common]),
        )
        progress.measured = tuple([digest_of(part.statistics) for part in parts])
        peers = tuple([row.peer for row in progress.rows])
        lacking = outside - everybody  # some server has not measured their updates
        progress.outside = tuple([row for row in shard.served.outside if row.peer not in lacking])
        rows = tuple([row for row in shard.served.rows if row.peer not in lacking])
        step: dict[str, Any] = {"step": "decide", "parts": tuple(parts), "peers": peers}
        return self.server.ask_rule(shard, rows, outside=progress.outside, **step)

    def _follow(self, shard: ShardRound, progress: CrossShardProgress, now: float) -> list[Effect]:
        decided = self.shards[0].commit
        if decided is None:
            return []
        if not decided.digest:
            return self._nothing(shard, progress, decided.reason)
        counted, index = (
            {
                c.peer: weight
                for c, weight in zip(decided.contributors, decided.decision, strict=False)
            },
            shard.index,
        )
        meant = index < len(decided.measured) and decided.measured[index] == digest_of(
            progress.statistics
        )
        here = {row.peer for row in shard.served.rows}
        if not meant and shard.attempt == 0:
            # The decision used the statistics of a later server of this shard, which will commit
            # it. A commit by this server would be a second result.
            return self.advance(shard, "the decision uses the statistics of another server", now)
        if not meant or len(counted) < len(decided.contributors) or not counted.keys() <= here:
            return self._nothing(
                shard,
                progress,
                f"the statistics of the decision are lost with a server of shard {index}",
            )
        progress.step, progress.verdict = "combine", decided.contributors
        progress.rows = tuple([row for row in shard.served.rows if row.peer in counted])
        weights = [counted.get(row.peer, 0.0) for row in shard.served.rows] + list(
            decided.decision[len(counted) :]
        )
        step: dict[str, Any] = {"step": "combine", "decision": tuple(weights)}
        return self.server.ask_rule(shard, shard.served.rows, outside=shard.served.outside, **step)

    def _nothing(self, shard: ShardRound, progress: CrossShardProgress, why: str) -> list[Effect]:
        progress.step, progress.why = "nothing", why
        return self.server.ask_rule(shard, ())

    # --- as the server of shard 0 -----------------------------------------------------------------

    def lacks(self, shard: ShardRound, now: float) -> list[Effect]:
        """Handle overdue statistics of other servers. First request the missing statistics. At the
        timeout, move the shards without statistics to their next attempt."""
        served = shard.served
        served.measurements_overdue = None
        lacking = [
            each for each in self.shards[1:] if each.commit is None and self._part_of(each) is None
        ]
        if self._measured(shard) is None or not lacking:
            return []
        over_at = served.first_at + self._timeout_s(OVERDUE_SHARE)
        if now >= over_at and self.server.patience.is_transferring(shard, now):
            timer = self.server.timer("measurements_overdue", shard, now + CHECK_INTERVAL_S)
            served.measurements_overdue = timer.token
            return [timer]
        time_is_up = now >= over_at
        effects = self._more_time(now) if time_is_up else []
        for each in lacking:
            holder, overdue = each.server_of(each.attempt), self._overdue(each, time_is_up)
            effects += [
                Send(peer, overdue) for peer in self.server.quorum.expected() if peer != self.local
            ]
            if time_is_up and holder != self.local:
                effects += self.advance(each, f"{holder} sends no statistics", now)
        if not time_is_up:
            timer = self.server.timer("measurements_overdue", shard, over_at)
            served.measurements_overdue = timer.token
            effects.append(timer)
        return effects

    def _part_of(self, shard: ShardRound) -> ShardStatistics | None:
        """Return the statistics of ``shard`` from its present attempt or a later one. Return None
        if there are none, or if they have another number of points than the statistics of shard
        0."""
        given, first = self._parts.get(shard.index), self.shards[0]
        if (
            given is None
            or given.attempt < shard.attempt
            or first.served.cross_shard_progress is None
        ):
            return None
        own = points_of(first.served.cross_shard_progress.statistics, len(first.served.rows))
        fits = (
            own is None
            or not given.part.peers
            or points_of(given.part.statistics, len(given.part.peers)) == own
        )
        return given.part if fits else None

    # --- messages of other peers ------------------------------------------------------------------

    def on_message(
        self, sender: PeerId, message: PartialStatistics | PartialOverdue, now: float
    ) -> list[Effect]:
        """Handle a message of this round and branch, about an existing shard."""
        if not self.active:
            return []
        return (
            self._on_partial(sender, message, now)
            if isinstance(message, PartialStatistics)
            else self._on_overdue(sender, message, now)
        )

    def _on_partial(self, sender: PeerId, partial: PartialStatistics, now: float) -> list[Effect]:
        """Store received statistics, unless they are invalid. They are stored even if another peer
        decides, because this peer may be the next server of shard 0."""
        shard, peers = self.shards[partial.shard], partial.contributors
        known = self._parts.get(shard.index)
        if (
            shard.index == 0
            or partial.attempt < shard.attempt
            or shard.server_of(partial.attempt) != sender
        ):
            return []
        if known is not None and (
            known.attempt > partial.attempt or self._part_of(shard) is known.part
        ):
            return []  # valid statistics of an attempt are not replaced
        ascending = (
            list(peers) == sorted(set(peers))
            and set(peers) <= set(self.server.present.roster) - self.server.present.proven
        )
        measure = (
            points_of(partial.statistics, len(peers)) is not None
            if peers
            else not partial.statistics
        )
        if not ascending or not measure:
            return []
        self._parts[shard.index] = _Measurement(
            partial.attempt, ShardStatistics(peers, partial.statistics)
        )
        return self.go_on(now)

    def _on_overdue(self, sender: PeerId, overdue: PartialOverdue, now: float) -> list[Effect]:
        """Handle a request for overdue statistics.

        The server of the shard sends the statistics again, or requests the missing updates again.
        If the timeout is over, any other peer moves the shard to its next attempt, once for each
        attempt of shard 0.
        """
        first, shard = self.shards[0], self.shards[overdue.shard]
        decides = overdue.decides
        if shard is first or first.commit is not None or shard.commit is not None:
            return []
        if decides < first.attempt or first.server_of(decides) != sender:
            return []
        if (
            shard.server_of(shard.attempt) == self.local
            and shard.served.attempt == shard.attempt >= overdue.attempt
        ):
            progress, key = self._measured(shard), (shard.index, decides)
            if self._asked[key] >= STATISTICS_REPLIES or shard.served.request_timer is not None:
                return []
            self._asked[key] += 1
            return (
                [Send(sender, self._partial(shard, progress))]
                if progress
                else self.server.request_missing(shard, shard.attempt)
            )
        if not overdue.time_is_up or shard.blamed >= decides:
            return []
        if not shard.attempt <= overdue.attempt < shard.attempt + len(shard.order):
            return []
        shard.blamed, shard.attempt = decides, overdue.attempt
        holder = shard.server_of(overdue.attempt)
        effects = self._more_time(now) if decides == first.attempt else []
        return effects + self.advance(
            shard, f"{sender} reports that {holder} sends no statistics", now
        )

    def _more_time(self, now: float) -> list[Effect]:
        """Restart the timeout of the first server, once for each attempt. The first server is not
        at fault if other servers withhold their statistics."""
        first = self.shards[0]
        if self._renewed >= first.attempt or first.give_up is None:
            return []
        self._renewed = first.attempt
        return self.server.patience.start_timeout(first, now)

    # --- commit of a shard ------------------------------------------------------------------------

    def on_shard_committed(self, shard: ShardRound, offered: bool, now: float) -> list[Effect]:
        """Handle the commit of one shard. The commit of shard 0 contains the decision, and starts
        the timeouts of the other servers.

        Args:
            offered: Whether the local updates were sent to the servers.
        """
        if not self.active:
            return []
        self._want()
        effects: list[Effect] = []
        for each in self.shards[1:] if shard.index == 0 and offered else ():
            if each.commit is None:
                effects += self.server.patience.start_timeout(each, now)
        first = self.shards[0]
        if first.commit is None and first.served.cross_shard_progress is not None:
            # Another server of shard 0 has already decided, or a server is Byzantine. In both cases
            # this peer makes no decision of its own.
            first.served.cross_shard_progress.cancel_decision()
        return effects + self.go_on(now)

    def _want(self) -> None:
        """Set the peers that must send updates before a server may close an attempt early. Once any
        shard is committed, these are the contributors of shard 0. While the commit of shard 0 is
        missing, they are all peers of the roster."""
        if not self.active:
            return
        needed: Iterable[PeerId] = ()
        if any(shard.commit is not None for shard in self.shards):
            first = self.shards[0].commit
            everybody = self.server.present.roster
            needed = everybody if first is None else [c.peer for c in first.contributors]
        self.server.patience.require_updates_of(needed)

    # --- messages ---------------------------------------------------------------------------------

    def _partial(self, shard: ShardRound, progress: CrossShardProgress) -> PartialStatistics:
        part = _part(shard, progress)
        return PartialStatistics(*self.server.present.place(shard), part.peers, part.statistics)

    def _overdue(self, shard: ShardRound, time_is_up: bool) -> PartialOverdue:
        return PartialOverdue(*self.server.present.place(shard), self.shards[0].attempt, time_is_up)

    def _timeout_s(self, share: float) -> float:
        return share * self.deadline.round_timeout_s()


def _part(shard: ShardRound, progress: CrossShardProgress) -> ShardStatistics:
    return ShardStatistics(
        tuple([row.peer for row in shard.served.rows]) if progress.statistics else (),
        progress.statistics,
    )
