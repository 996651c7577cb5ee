"""Assignment of samples to peers. Every sample of every epoch is used once, even if peers fail and
do not use their slices.

All epochs form one sequence of positions. Position p is element ``p % samples_total`` of the
permutation of epoch ``p // samples_total``. Only the trainer has the permutations. A round assigns
a slice of this sequence to each of its peers, starting at the first unused position. The commit
contains the contributors, and the number of samples that each contributor has used, from the start
of its slice. The unused rest of the slices is returned, and is assigned first in later rounds.
Every peer computes every slice from the sequence of commits, so slices are never sent.

A batch that the script skips is not returned, because otherwise it would be assigned again in every
round. A training loop without gossip does not repeat it either. Samples with a non-finite gradient
are returned once, because the peer may be at fault. If they were returned before, they are
discarded.

An epoch has a fixed number of rounds, which is enough if no peer fails. The epoch ends after these
rounds, even if samples are left. The samples that are left are read first in the next epoch.

An extended epoch has further rounds for the samples that are left. If some samples are still unused
after a bounded number of further rounds, for example because every peer hangs when it reads them,
these samples are discarded, so that the epoch ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeAlias

from gossip.core.events import EpochReport
from gossip.core.messages import ROUND_MAX, PeerId
from gossip.core.settings import PACE_LEVELS, PENDING_ROUNDS, RANGES_MAX, SPARE_ROUNDS
from gossip.errors import ConfigError

from .pace import Pace
from .unpacking import count, optional, row, rows, unpacked

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""(start, stop) pairs in ascending order. ``stop`` is exclusive."""

_Peers: TypeAlias = tuple[PeerId, ...]

_Pending: TypeAlias = tuple[int, _Peers, _Peers, tuple[int, ...], _Peers, _Peers]
"""Data of a round that was committed before the size of the data was known: ``at_least``, the
roster, the contributors, their numbers of samples, the peers that skipped their samples, and the
peers with a non-finite update."""


class DataCursor:
    """Position of the run in its data.

    Args:
        peers: Number of peers at the start of the run, for which epochs are planned.
        samples_total: Samples in an epoch; 0 if unknown.
        batch: Maximum number of samples of a peer in a round.
        fixed_global: Whether the number of samples in a round does not depend on the number of
            peers. If False, the number of samples of each peer is fixed. Equal for all cursors of a
            run.
        paced: Whether slow peers get smaller slices. Equal for all cursors of a run.

    Attributes:
        at_least: Number of peers that must get samples in a round, because the rule needs this
            number of updates.
        epoch: Epoch of the next round.
        extended: Number of epochs of the run, if the last epoch is extended by further rounds for
            the unused samples of all epochs; 0 if no epoch is extended. The extended epoch is the
            last epoch.
    """

    def __init__(
        self,
        peers: int = 1,
        samples_total: int = 0,
        batch: int = 0,
        fixed_global: bool = False,
        paced: bool = False,
    ) -> None:
        self.peers, self.at_least = peers, 1
        self.fixed_global, self.paced = fixed_global, paced
        self.pace = Pace()
        self.samples_total = self.batch = self.extended = 0
        self.epoch = 0
        self._step = 0  # Number of completed rounds of this epoch.
        self._position = 0  # First position that was never assigned.
        self._returned: Ranges = ()  # Returned ranges: disjoint, ascending, never adjacent.
        # Number of committed rounds. The order of the peers is rotated by this number, so that a
        # peer that never contributes does not get the same slice again.
        self._turn = 0
        self._used = 0  # Samples used in this epoch.
        self._skipped = 0  # Samples of this epoch that scripts skipped.
        self._given_up = 0  # Samples discarded in this epoch.
        self._given_up_ranges: Ranges = ()  # The first of the discarded samples.
        # Number of consecutive further rounds, up to the latest, without a used sample.
        self._idle = 0
        self._last: EpochReport | None = None
        self._pending: list[_Pending] | None = []  # None after too many pending rounds
        if samples_total:
            self.configure(samples_total, batch)

    @property
    def configured(self) -> bool:
        return self.samples_total > 0

    @property
    def remaining(self) -> int:
        """Number of unused positions of this and earlier epochs."""
        epochs = self.epoch + 1
        end = self.samples_total * (min(epochs, self.extended) if self.extended else epochs)
        fresh = max(0, end - self._position)
        return fresh + _length(self._returned) if self._returned else fresh

    @property
    def steps_per_epoch(self) -> int:
        """Number of rounds of an epoch if no peer fails; 0 while the size of the data is
        unknown."""
        return -(-self.samples_total // (self.batch * self.peers)) if self.samples_total else 0

    def configure(self, samples_total: int, batch: int, extended: int = 0) -> None:
        """Set the size of the data, and apply the rounds that were committed before the size was
        known.

        Args:
            extended: New value of the attribute ``extended``; 0 leaves it unchanged.

        Raises: ConfigError: The size is not positive, differs from the size that was set before, or
            is set too late.
        """
        if samples_total < 1 or batch < 1 or samples_total > ROUND_MAX or batch > ROUND_MAX:
            raise ConfigError(
                f"data: {samples_total} samples in batches of {batch} cannot be divided among peers"
            )
        if self.configured:
            if (samples_total, batch) != (self.samples_total, self.batch):
                had = f"{self.samples_total} samples in batches of {self.batch}"
                raise ConfigError(
                    f"data: {samples_total} samples in batches of {batch}, but the run has {had}"
                )
            self._extend(extended)
            return
        if self._pending is None:
            raise ConfigError(
                f"data: the loader was sharded after more than {PENDING_ROUNDS} rounds",
                "call peer.shard before training begins",
            )
        self._extend(extended)
        self.samples_total, self.batch = samples_total, batch
        pending, self._pending, at_least = self._pending, [], self.at_least
        for self.at_least, roster, contributors, samples, skipped, failed in pending:
            used = dict(zip(contributors, samples, strict=True))
            unused = dict.fromkeys(skipped, "skipped") | dict.fromkeys(failed, "non_finite")
            self.commit(roster, used, unused=unused)
        self.at_least = at_least

    def _extend(self, epochs: int) -> None:
        if epochs and self.extended and epochs != self.extended:
            raise ConfigError(
                f"data: {epochs} epochs with all samples, but the run has {self.extended} epochs"
            )
        self.extended = epochs or self.extended

    def require(self, peers: int) -> None:
        """Set the number of peers that must get samples in the next round, because the rule needs
        their updates."""
        self.at_least = peers

    def round_samples(self, n: int) -> int:
        """Return the number of samples in a round of n peers, if enough samples are left, no peer
        is slow, and no samples of earlier epochs are left."""
        return self.batch * (self.peers if self.fixed_global else min(n, self.peers))

    def assign(self, roster: Sequence[PeerId]) -> dict[PeerId, Ranges]:
        """Return the slice of each peer in the next round. Returned positions are assigned first,
        then new positions.

        All peers except slow peers get equal slices. Slices are assigned in the order of the
        roster, rotated by one peer in each round. All slices are empty while the size of the data
        is unknown.
        """
        if not self.samples_total or not roster:
            return dict.fromkeys(roster, ())
        sharers = self._in_turn(roster)
        shares = self._shares(sharers)
        slices: dict[PeerId, Ranges] = dict.fromkeys(roster, ())
        left, fresh = list(reversed(self._returned)), self._position
        for share, peer in zip(shares, sharers, strict=True):
            ranges: list[tuple[int, int]] = []
            while share and left:
                start, stop = left.pop()
                taken = min(share, stop - start)
                ranges.append((start, start + taken))
                if start + taken < stop:
                    left.append((start + taken, stop))
                share -= taken
            if share:  # the remaining samples of this slice are new
                ranges.append((fresh, fresh + share))
                fresh += share
            slices[peer] = _merged(ranges) if len(ranges) > 1 else tuple(ranges)
        return slices

    def commit(
        self,
        roster: Sequence[PeerId],
        used: Mapping[PeerId, int],
        took_us: Mapping[PeerId, int] = MappingProxyType({}),
        unused: Mapping[PeerId, str] = MappingProxyType({}),
    ) -> EpochReport | None:
        """Record a committed round. Unused samples of its slices will be assigned again, unless the
        script has skipped them or they are discarded.

        Args:
            roster: Roster with which ``assign`` was called.
            used: Contributors to the aggregate, each with its reported number of used samples. A
                number above the length of the slice counts as the whole slice.
            took_us: Reported times of the contributors, in microseconds.
            unused: Reason of each rejected peer. Only ``skipped`` and ``non_finite`` are relevant.
        Returns: The report of the epoch if this round completes the epoch, otherwise None.
        """
        if not self.samples_total:
            if self._pending is not None:
                counts = tuple(used), tuple(used.values())
                skipped = tuple([p for p, why in unused.items() if why == "skipped"])
                failed = tuple([p for p, why in unused.items() if why == "non_finite"])
                self._pending.append((self.at_least, tuple(roster), *counts, skipped, failed))
                if len(self._pending) > PENDING_ROUNDS:
                    self._pending = None
            return None
        sharers = self._in_turn(roster) if roster else []
        shares = self._shares(sharers) if roster else []
        given = sum(shares)
        back: list[tuple[int, int]] = []
        out_before = self._skipped + self._given_up
        # If all peers used all their samples, the slice of each peer need not be computed.
        if any(used.get(peer, 0) < share for peer, share in zip(sharers, shares, strict=True)):
            back = self._reclaim_unused(roster, used, unused)
        # A round with few samples is not used to measure the pace, because fast and slow peers then
        # take nearly the same time.
        usual = min(self._most(sharers), self.batch * self.peers)
        is_measure = len(roster) <= given and 2 * given >= usual
        kept, self._position = self._after(given)
        self._returned = _merged([*kept, *back]) if kept or back else ()
        left = _length(back)
        self._used += given - left - (self._skipped + self._given_up - out_before)
        if self._step >= self.steps_per_epoch:
            self._idle = self._idle + 1 if left == given else 0
            # By now each of these samples has been assigned to every peer.
            if self._idle > SPARE_ROUNDS + len(roster):
                self._idle -= len(roster)
                self._abandon_ranges(back)
                self._returned = tuple(kept)
        self._turn += 1
        self._step += 1
        if self.paced and roster and is_measure:
            self.pace.observe(roster, used.keys(), took_us)
        if self._step < self.steps_per_epoch:
            return None
        enough = max(1, min(self.at_least, len(roster)))
        extends = self.epoch + 1 == self.extended and self.remaining >= enough
        return None if extends else self._end_epoch()

    def _reclaim_unused(
        self,
        roster: Sequence[PeerId],
        used: Mapping[PeerId, int],
        unused: Mapping[PeerId, str],
    ) -> list[tuple[int, int]]:
        """Return the unused ranges of the slices that will be assigned again."""
        back: list[tuple[int, int]] = []
        for peer, ranges in self.assign(roster).items():
            rest = list(_behind(ranges, used.get(peer, 0)))
            if unused.get(peer) == "skipped":
                self._skipped += _length(rest)
                rest = []
            elif unused.get(peer) == "non_finite":
                fresh = self._position
                self._abandon_ranges(
                    [(start, min(stop, fresh)) for start, stop in rest if start < fresh]
                )
                rest = [(max(start, fresh), stop) for start, stop in rest if stop > fresh]
            back += rest
        return back

    def _abandon_ranges(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Count samples as discarded. No later round assigns them."""
        if ranges:
            self._given_up += _length(ranges)
            listed = _merged([*self._given_up_ranges, *ranges])
            self._given_up_ranges = listed[:RANGES_MAX]

    def epoch_report(self) -> EpochReport | None:
        """Return the report of the last completed epoch; None before the end of the first epoch."""
        return self._last

    def _in_turn(self, roster: Sequence[PeerId]) -> list[PeerId]:
        first = self._turn % len(roster)
        return [*roster[first:], *roster[:first]]

    def _batches(self, sharers: Sequence[PeerId]) -> list[int]:
        """Return the maximum number of samples of each peer, if ``fixed_global`` is not set."""
        return [max(1, self.batch >> self.pace.level(peer)) for peer in sharers]

    def _most(self, sharers: Sequence[PeerId]) -> int:
        """Return the maximum number of samples in a round, as a sum over all peers."""
        if self.fixed_global:
            return max(self.batch * self.peers, min(self.at_least, len(sharers)))
        return self.batch * len(sharers) if self.pace.even else sum(self._batches(sharers))

    def _plan_round_size(self, sharers: Sequence[PeerId]) -> int:
        """Return the number of samples that the next round assigns.

        All batches are full until the last two rounds of the epoch. These share the remaining
        samples equally, so that no step has only a few samples. If more samples are left because
        peers have failed, each of the remaining rounds assigns more samples, up to the maximum of a
        round.
        """
        remaining, most = self.remaining, self._most(sharers)
        rounds = self.steps_per_epoch - self._step
        if rounds < 1:  # a further round
            rounds = -(-remaining // most) or 1
        size = -(-remaining // rounds)
        if rounds > 2:
            size = max(size, self.batch * self.peers)
        size = min(size, most, remaining)
        return size if size >= min(self.at_least, len(sharers)) else min(most, remaining)

    def _shares(self, sharers: Sequence[PeerId]) -> list[int]:
        """Return the number of samples that each peer gets. If the division leaves a remainder, the
        first peers get one sample more."""
        size, n = self._plan_round_size(sharers), len(sharers)
        if self.pace.even:
            each, extra = divmod(size, n)
            return [each + 1] * extra + [each] * (n - extra)
        if self.fixed_global:
            return _apportioned(
                size, [1 << (PACE_LEVELS - self.pace.level(peer)) for peer in sharers]
            )
        batches = self._batches(sharers)
        return batches if size == sum(batches) else _apportioned(size, batches)

    def _after(self, given: int) -> tuple[list[tuple[int, int]], int]:
        """Return the state after ``given`` positions are assigned: the returned ranges that are
        left, and the first position that was never assigned."""
        kept = []
        for start, stop in self._returned:
            taken = min(given, stop - start)
            given -= taken
            if start + taken < stop:
                kept.append((start + taken, stop))
        return kept, self._position + given

    def _end_epoch(self) -> EpochReport:
        if self.epoch + 1 == self.extended:  # no later round can assign the unused samples
            end = self.samples_total * self.extended
            fresh = [(self._position, end)] if self._position < end else []
            self._abandon_ranges([*self._returned, *fresh])
            self._returned, self._position = (), end
        self._last = EpochReport(
            self.epoch,
            self._used,
            0,
            self.remaining,
            self._step,
            self._skipped,
            self._given_up,
            given_up_ranges=self._given_up_ranges,
        )
        self.epoch += 1
        self._step = self._used = self._skipped = self._given_up = self._idle = 0
        self._given_up_ranges = ()
        return self._last

    def outlook(self) -> tuple[Any, ...]:
        """Return the part of the cursor that determines the slices of the next rounds."""
        where = self.at_least, self.epoch, self._step, self._position, self._turn, self.extended
        return (*where, self._idle, self._returned, self.pace.levels())

    # --- as data ----------------------------------------------------------------------------------

    def pack(self) -> tuple[Any, ...]:
        """Return the whole cursor as plain tuples, for a state transfer."""
        last = () if self._last is None else _AS_TUPLE(self._last)
        plan = self.samples_total, self.batch, self.peers, self.extended
        where = self.epoch, self._step, self._position, self._turn, self._used, self.at_least
        counts = self._idle, self._skipped, self._given_up
        unused = counts, self._returned, self._given_up_ranges
        pending = None if self._pending is None else tuple(self._pending)
        return (plan, where, unused, last, pending, self.pace.pack())

    def unpack(self, packed: Any) -> None:
        """Load the result of another peer's ``pack``. Raises ``ValueError``, and changes nothing,
        if the data is invalid."""
        plan, where, unused, last, pending, pace = _fields(packed)
        samples_total, batch, peers, extended = plan
        if self.extended and extended not in (0, self.extended):
            raise ValueError(f"data: the run of the donor has {extended} epochs with all samples")
        if samples_total == 0 and self.configured:
            # The donor did not have the size of the data yet, but the local peer has it. So apply
            # the pending rounds of the donor now.
            fresh = DataCursor(peers, fixed_global=self.fixed_global, paced=self.paced)
            fresh.at_least, fresh._pending = where[5], pending
            try:
                fresh.configure(self.samples_total, self.batch, self.extended)
            except ConfigError as error:
                raise ValueError(f"data: {error}") from error
            self._copy_from(fresh)
            return
        if self.configured and (samples_total, batch) != (self.samples_total, self.batch):
            raise ValueError(f"data: the donor has {samples_total} samples in batches of {batch}")
        self.samples_total, self.batch, self.peers = samples_total, batch, peers
        self.extended = extended or self.extended
        self.epoch, self._step, self._position, self._turn, self._used, self.at_least = where
        counts, self._returned, self._given_up_ranges = unused
        self._idle, self._skipped, self._given_up = counts
        self._last = EpochReport(*last[:-1], given_up_ranges=last[-1]) if last else None
        self._pending, self.pace = pending, pace

    def _copy_from(self, other: DataCursor) -> None:
        for name, value in vars(other).items():
            setattr(self, name, value)


def _length(ranges: Sequence[tuple[int, int]]) -> int:
    return sum([stop - start for start, stop in ranges])


def _behind(ranges: Ranges, used: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges without their first ``used`` positions."""
    for start, stop in ranges:
        begin = min(start + used, stop)
        used -= begin - start
        if begin < stop:
            yield begin, stop


def _merged(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """Return the ranges in ascending order, with adjacent ranges joined."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)


def _apportioned(total: int, weights: list[int]) -> list[int]:
    """Return integer shares of ``total`` in proportion to ``weights``, each at least one. The
    remainder is added to the shares with the largest weights.

    If ``total`` is below the number of peers, each of the first ``total`` peers gets one position,
    because a rule needs the updates of enough peers even if there are few samples.
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


_NAMES = [field.name for field in fields(EpochReport)]
_AS_TUPLE: Callable[[EpochReport], tuple[Any, ...]] = attrgetter(*_NAMES)
"""Replacement of ``dataclasses.astuple`` that does not copy the ranges, because it is called before
each round."""


def _report_fields(packed: Any) -> Any:
    """Schema of a report: all fields of an ``EpochReport``, or none."""
    return row(*([_WHOLE] * (len(_NAMES) - 1) + [_RANGES] if packed else []))(packed)


_WHOLE = count(ROUND_MAX)
_WHOLES = rows(_WHOLE)
_RANGES = rows(row(_WHOLE, _WHOLE), most=ROUND_MAX)


def _fields(packed: Any) -> tuple[Any, ...]:
    """Return the fields of a packed cursor. Raises ValueError if they are invalid."""
    schema = row(
        row(*[_WHOLE] * 4),  # the plan
        row(*[_WHOLE] * 6),  # the position
        # Counts of further rounds without progress, of skipped samples and of discarded samples;
        # the returned ranges; the discarded ranges.
        row(row(*[_WHOLE] * 3), _RANGES, _RANGES),
        _report_fields,
        optional(rows(row(_WHOLE, *[_WHOLES] * 5), most=PENDING_ROUNDS)),
        Pace.unpack,
    )
    plan, where, unused, last, pending, pace = unpacked("data cursor", schema, packed)
    samples_total, batch, peers, _ = plan
    epoch, _, position, _, used, at_least = where
    if (samples_total == 0) != (batch == 0) or min(peers, at_least) < 1:
        raise ValueError("data cursor: the plan is incomplete")
    if position > samples_total * (epoch + 1):
        raise ValueError("data cursor: the position is outside the data")
    counts, returned, given_up = unused
    for ranges in (returned, given_up, *last[-1:]):
        edges = [-1, *[edge for each in ranges for edge in each]]
        if edges != sorted(set(edges)) or edges[-1] > position:
            raise ValueError("data cursor: ranges are not ascending or not in the data")
    if used + sum(counts[1:]) > position - _length(returned) or _length(given_up) > counts[2]:
        raise ValueError("data cursor: the counts of samples contradict each other")
    if any(len(each[2]) != len(each[3]) for each in pending or ()):
        raise ValueError("data cursor: a pending round lacks a number of samples")
    return plan, where, unused, last, None if pending is None else list(pending), pace
