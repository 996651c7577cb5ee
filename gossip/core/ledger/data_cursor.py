"""Which samples were used: every position of an epoch once,
although slices go lost with the peers that held them.

An epoch is a permutation of the samples (the trainer knows which); here are only positions in it. A
round gives each peer of its roster a slice; the commit names who contributed; the slices of the
others go back and are given out again before the epoch ends. All of it is a function of the
sequence of commits, so every peer knows every slice and none is ever sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from gossip.core.events import EpochReport
from gossip.core.messages import ROUND_MAX, PeerId
from gossip.errors import ConfigError

from .pace import LEVELS, Pace

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""(start, stop) pairs, stop not included, in ascending order."""

_Pending: TypeAlias = tuple[int, tuple[PeerId, ...], tuple[PeerId, ...]]
"""A round's ``at_least``, roster and contributors."""

PENDING_ROUNDS = 256
"""Rounds that may be committed before the size of the data is known."""


class DataCursor:
    """Where the run is in its data.

    Args:
        samples_total: Samples in an epoch, 0 while unknown.
        batch: Samples that each peer gets in a round; see ``batches``.
        at_least: Peers that must get samples in a round for its rule to work; may be set anew
            before each round. With 1 every epoch is exact. With more, an epoch ends when fewer than
            that many positions are left over (by failures in its last rounds): a robust rule could
            never aggregate so few updates, and they would come back for ever.
            They are reported as never used.
        batches: A round's samples: so many batches, however many peers share them (the same for all
            cursors of a run). 0: one for each peer.
        paced: Who is slow gets smaller slices (the same for all cursors of a run).
    """

    def __init__(
        self,
        samples_total: int = 0,
        batch: int = 0,
        at_least: int = 1,
        batches: int = 0,
        paced: bool = False,
    ) -> None:
        self.at_least, self.batches, self.paced = at_least, batches, paced
        self.pace = Pace()
        self.samples_total = self.batch = 0
        self.epoch = 0
        self._position = 0  # first position that was never given out in this epoch
        self._returned: Ranges = ()  # given out and come back: disjoint, ascending, never adjacent
        # who is first: a peer that never contributes must not get the same slice again and again
        self._turn = 0
        self._rounds = 0
        self._used = 0
        self._recent: tuple[PeerId, ...] = ()  # who contributed to the last round
        self._once, self._never = 0, 0  # of all completed epochs
        self._last: EpochReport | None = None
        self._pending: list[_Pending] | None = []  # None: too many, too late
        if samples_total:
            self.configure(samples_total, batch)

    @property
    def configured(self) -> bool:
        return self.samples_total > 0

    @property
    def remaining(self) -> int:
        """Positions of this epoch that no contributor has had."""
        fresh = self.samples_total - self._position
        return fresh + _length(self._returned) if self._returned else fresh

    def configure(self, samples_total: int, batch: int) -> None:
        """Says how much data there is; the rounds committed before count as if it had been known.

        Raises: ConfigError: not positive, another size than before, or too late.
        """
        if samples_total < 1 or batch < 1 or samples_total > ROUND_MAX or batch > ROUND_MAX:
            raise ConfigError(
                f"data: {samples_total} samples in batches of {batch} cannot be shared out"
            )
        if self.configured:
            if (samples_total, batch) != (self.samples_total, self.batch):
                had = f"{self.samples_total} samples in batches of {self.batch}"
                raise ConfigError(
                    f"data: {samples_total} samples in batches of {batch}, but the run has {had}"
                )
            return
        if self._pending is None:
            raise ConfigError(
                f"data: the loader was sharded after more than {PENDING_ROUNDS} rounds",
                "call peer.shard before training begins",
            )
        self.samples_total, self.batch = samples_total, batch
        pending, self._pending, at_least = self._pending, [], self.at_least
        for self.at_least, roster, contributors in pending:
            self.commit(roster, contributors)
        self.at_least = at_least

    def require(self, peers: int) -> None:
        """So many must get samples in the next round for its rule to work."""
        self.at_least = peers

    def round_samples(self, n: int) -> int:
        """How many samples a round of n peers gives out while there are enough,
        and nobody is slow."""
        return self.batch * (self.batches or n)

    def assign(self, roster: Sequence[PeerId]) -> dict[PeerId, Ranges]:
        """Everybody's slice in the next round: returned positions first, then fresh ones.

        All get alike, but for those who are slow. The last two rounds of an epoch share what is
        left alike, so that neither is a step on a handful of samples, and only those share them who
        contributed to the last round that taught anything: one that has crashed stays in the roster
        for a while, and what it is given comes back when there is nothing left to go with it. So a
        round has less than half of what those who contributed to the one before can take only if
        that one gave out all that was left, and somebody failed in it. The order is the roster's,
        beginning one later every round. Nobody gets anything while the size of the data is unknown.
        """
        if not self.configured or not roster:
            return dict.fromkeys(roster, ())
        sharers = self._sharers(roster)
        shares = self._shares(sharers)
        slices: dict[PeerId, Ranges] = dict.fromkeys(roster, ())
        left, fresh = list(reversed(self._returned)), self._position
        for share, peer in zip(shares, sharers, strict=True):
            if not left:  # all the rest is fresh
                slices[peer] = ((fresh, fresh + share),) if share else ()
                fresh += share
                continue
            ranges: list[tuple[int, int]] = []
            while share:
                start, stop = left.pop() if left else (fresh, self.samples_total)
                taken = min(share, stop - start)
                assert taken, "more was shared out than is left"
                ranges.append((start, start + taken))
                if start == fresh:
                    fresh += taken
                elif start + taken < stop:
                    left.append((start + taken, stop))
                share -= taken
            slices[peer] = _merged(ranges)
        return slices

    def commit(
        self,
        roster: Sequence[PeerId],
        contributors: Collection[PeerId],
        took_us: Mapping[PeerId, int] = MappingProxyType({}),
    ) -> EpochReport | None:
        """A round was committed: the slices of those who did not contribute go back.

        Args:
            roster: The same that ``assign`` was asked with.
            contributors: Whose updates went into the aggregate.
            took_us: How long they took, as they say.
        Returns: the report of the epoch when this round completed it.
        """
        if not self.configured:
            if self._pending is not None:
                self._pending.append((self.at_least, tuple(roster), tuple(contributors)))
                if len(self._pending) > PENDING_ROUNDS:
                    self._pending = None
            return None
        sharers = self._sharers(roster) if roster else []
        given = sum(self._shares(sharers)) if roster else 0
        # As good as whole: who gets a handful of samples takes hardly less time for them than
        # one that is slow.
        whole = bool(roster) and len(sharers) == len(roster) and 2 * given >= self._whole(roster)
        back: list[tuple[int, int]] = []
        # else it does not matter who had what
        if any(peer not in contributors for peer in sharers):
            slices = self.assign(roster)
            back = [
                pair
                for peer, ranges in slices.items()
                if peer not in contributors
                for pair in ranges
            ]
        kept, self._position = self._after(given)
        self._returned = _merged([*kept, *back]) if kept or back else ()
        self._used += given - _length(tuple(back))
        self._turn += 1
        self._rounds += 1
        # Of a round that taught nothing it is not known who is here.
        self._recent = tuple([peer for peer in roster if peer in contributors]) or self._recent
        if self.paced and whole:
            self.pace.observe(roster, contributors, took_us)
        enough = max(1, min(self.at_least, len(roster)))
        return self._end_epoch() if self.remaining < enough else None

    def epoch_report(self) -> EpochReport | None:
        """Of the last completed epoch, None before there is one."""
        return self._last

    def samples(self) -> tuple[int, int, int]:
        """Positions used once, twice and never in all completed epochs together."""
        return self._once, 0, self._never

    def _sharers(self, roster: Sequence[PeerId]) -> list[PeerId]:
        """Who gets samples in the next round, if there are enough, in their order."""
        first = self._turn % len(roster)
        sharers = [*roster[first:], *roster[:first]]
        if self.remaining >= 2 * (whole := self._whole(roster)):
            return sharers
        present = [peer for peer in sharers if peer in self._recent]
        last = self.remaining <= whole or self.remaining < 2 * self._whole(present)
        return present if last and len(present) >= min(self.at_least, len(roster)) else sharers

    def _whole(self, sharers: Sequence[PeerId]) -> int:
        """How many samples their round gives out while there are enough."""
        if self.batches or self.pace.even:
            return max(self.round_samples(len(sharers)), min(self.at_least, len(sharers)))
        return sum([max(1, self.batch >> self.pace.level(peer)) for peer in sharers])

    def _shares(self, sharers: Sequence[PeerId]) -> list[int]:
        """How many positions each of them gets; of equals the earlier ones not fewer."""
        remaining, n, whole = self.remaining, len(sharers), self._whole(sharers)
        give = min(remaining, whole)
        if whole < remaining < 2 * whole and remaining // 2 >= min(self.at_least, n):
            # the other half for the round after this one, which so has enough for its rule, too
            give = -(-remaining // 2)
        if not self.pace.even:
            if self.batches:
                return _apportioned(
                    give, [1 << (LEVELS - self.pace.level(peer)) for peer in sharers]
                )
            most = [max(1, self.batch >> self.pace.level(peer)) for peer in sharers]
            return most if give == whole else _apportioned(give, most)
        each, extra = divmod(give, n)
        return [each + 1] * extra + [each] * (n - extra)

    def _after(self, given: int) -> tuple[list[tuple[int, int]], int]:
        """The returned ranges and the first fresh position once ``given``
        positions are handed out."""
        kept = []
        for start, stop in self._returned:
            taken = min(given, stop - start)
            given -= taken
            if start + taken < stop:
                kept.append((start + taken, stop))
        return kept, self._position + given

    def _end_epoch(self) -> EpochReport:
        never = self.samples_total - self._used
        self._last = EpochReport(
            self.epoch, once=self._used, twice=0, never=never, rounds=self._rounds
        )
        self._once += self._used
        self._never += never
        self.epoch += 1
        self._position = self._rounds = self._used = 0
        self._returned, self._recent = (), ()  # a new epoch, a new chance for everybody
        return self._last

    def outlook(self) -> tuple[Any, ...]:
        """All that the next rounds' slices follow from."""
        where = self.at_least, self.epoch, self._position, self._turn, self._rounds, self._used
        return (*where, self._returned, self._recent, self.pace.levels())

    # --- as data ----------------------------------------------------------------------------------

    def pack(self) -> tuple[Any, ...]:
        """The whole cursor as plain tuples, for a peer that takes over our state."""
        last = (
            ()
            if self._last is None
            else (self._last.epoch, self._last.once, self._last.never, self._last.rounds)
        )
        numbers = (
            self.samples_total,
            self.batch,
            self.at_least,
            self.epoch,
            self._position,
            self._turn,
            self._rounds,
        )
        pending = None if self._pending is None else tuple(self._pending)
        counts = self._used, self._once, self._never
        return (numbers, counts, self._returned, last, pending, self._recent, self.pace.pack())

    def unpack(self, packed: Any) -> None:
        """Takes over what ``pack`` gave elsewhere. Raises ``ValueError``, and changes nothing,
        when it is not that."""
        numbers, counts, returned, last, pending, recent, pace = _fields(packed)
        if numbers[0] == 0 and self.configured:
            # The donor has not been told yet; what it saw counts as soon as it is known how much
            # there is, which we do know.
            fresh = DataCursor(at_least=numbers[2], batches=self.batches, paced=self.paced)
            fresh._pending = pending
            try:
                fresh.configure(self.samples_total, self.batch)
            except ConfigError as error:
                raise ValueError(f"data: {error}") from error
            self._take(fresh)
            return
        if self.configured and (numbers[0], numbers[1]) != (self.samples_total, self.batch):
            raise ValueError(f"data: the donor has {numbers[0]} samples in batches of {numbers[1]}")
        (
            self.samples_total,
            self.batch,
            self.at_least,
            self.epoch,
            self._position,
            self._turn,
            self._rounds,
        ) = numbers
        self._used, self._once, self._never = counts
        self._returned = returned
        self._last = EpochReport(last[0], last[1], 0, last[2], last[3]) if last else None
        self._pending = pending
        self._recent, self.pace = recent, pace

    def _take(self, other: DataCursor) -> None:
        for name, value in vars(other).items():
            setattr(self, name, value)


def _length(ranges: Ranges) -> int:
    return sum([stop - start for start, stop in ranges])


def _merged(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """Ascending, adjacent ones joined."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)


def _apportioned(total: int, weights: list[int]) -> list[int]:
    """By weight, in whole numbers, one for everybody at least.
    What is left over goes to the heaviest.

    Where there are fewer, the first get one each: a rule needs updates of enough peers, however few
    the samples are.
    """
    n, whole = len(weights), sum(weights)
    if total < n:
        return [1] * total + [0] * (n - total)
    shares = [max(total * weight // whole, 1) for weight in weights]
    heaviest_first = sorted(range(n), key=lambda at: -weights[at])
    for at in heaviest_first[: max(0, total - sum(shares))]:
        shares[at] += 1
    while sum(shares) > total:
        shares[shares.index(max(shares))] -= 1
    return shares


def _wholes(values: Any, count: int | None = None) -> tuple[int, ...]:
    if not isinstance(values, tuple | list) or (count is not None and len(values) != count):
        raise ValueError(f"data cursor: {count} numbers were expected")
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= ROUND_MAX:
            raise ValueError(f"data cursor: {value!r} is no count")
    return tuple(values)


def _fields(
    packed: Any,
) -> tuple[tuple[int, ...], tuple[int, ...], Ranges, tuple[int, ...], Any, tuple[int, ...], Pace]:
    if not isinstance(packed, tuple | list) or len(packed) != 7:
        raise ValueError("data cursor: seven fields were expected")
    numbers, counts, last = _wholes(packed[0], 7), _wholes(packed[1], 3), _wholes(packed[3])
    if len(last) not in (0, 4):
        raise ValueError("data cursor: a report has four numbers")
    samples_total, batch, at_least, _, position, _, _ = numbers
    if (samples_total == 0) != (batch == 0) or position > samples_total or at_least < 1:
        raise ValueError("data cursor: it lies outside its data")
    returned = _ranges(packed[2], position)
    if counts[0] + samples_total - position + _length(returned) != samples_total:
        raise ValueError("data cursor: it has lost count")
    pending = None if packed[4] is None else _pending(packed[4])
    recent, pace = _wholes(packed[5]), Pace.unpack(packed[6])
    return numbers, counts, returned, last, pending, recent, pace


def _ranges(packed: Any, end: int) -> Ranges:
    """Of samples before ``end``, in order."""
    if not isinstance(packed, tuple | list):
        raise ValueError("data cursor: ranges were expected")
    pairs = [_wholes(pair, 2) for pair in packed]
    before = -1
    for start, stop in pairs:
        if not before < start < stop <= end:
            raise ValueError("data cursor: returned ranges are disorderly")
        before = stop
    return tuple((pair[0], pair[1]) for pair in pairs)


def _pending(packed: Any) -> list[tuple[Any, ...]]:
    """Of each pending round: what its rule needs, a roster and contributors."""
    if not isinstance(packed, tuple | list) or len(packed) > PENDING_ROUNDS:
        raise ValueError("data cursor: too many rounds are pending")
    pending = []
    for row in packed:
        if not isinstance(row, tuple | list) or len(row) != 3:
            raise ValueError(
                "data cursor: a pending round has what its rule needs, a roster and contributors"
            )
        pending.append((*_wholes(row[:1]), _wholes(row[1]), _wholes(row[2])))
    return pending
