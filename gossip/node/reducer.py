"""Aggregates the updates that the core has collected: in the node, or in the trainer if the rule
needs the trainer's loss."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from gossip.aggregators import (
    BoundRule,
    LengthRule,
    ShardedRule,
    Updates,
    kernels,
    mean_of_rows,
)
from gossip.aggregators.kernels import tensor_of
from gossip.core import Aggregate, Aggregated, Payload, Row, events
from gossip.errors import AggregationError, ConfigError
from gossip.ipc import allocate, map_rows, messages as control
from gossip.transport import ResultRoom
from gossip.vectors import (
    ByteArray,
    PayloadDigest,
    WireFormat,
    bytes_for,
    from_bytes,
    is_finite,
    payload_digest,
    to_bytes,
)

from .shard_steps import run_step, scores
from .weighing import by_pull
from .worker import Worker

INLINE_ELEMENTS = 2**20
"""Size of the largest input, in elements (n * d), that the loop aggregates itself. This takes a few
milliseconds."""

PREPARE_S = 30.0
"""Timeout for the compilation of kernels, in seconds. It is half of the default time for peers to
join. After the timeout, the node works without kernels."""

BLOCK_BYTES = 2**19
"""Size of the blocks in which a large result is computed, in bytes. A block of this size stays in
the processor's cache until it is hashed."""

QUICK_ELEMENTS = 2**22
"""Size of the largest input, in elements, that the loop aggregates itself if the rule reads the
updates only once. This takes about three milliseconds."""

LENT_BYTES = 2**17
"""Size of a result, in bytes, above which other peers on the host read the result in shared
memory."""


RowRule: TypeAlias = Callable[[Sequence[np.ndarray], np.ndarray], bool]
"""A rule that treats each coordinate separately. The arguments are the rows, as separate arrays,
and the array for the aggregate. Returns False if the aggregate is not finite or the rule does not
apply."""

BlockMaker: TypeAlias = Callable[[int, int, np.ndarray], bool]
"""Function that writes a range of a result to an array. The arguments are the start and the stop of
the range, and the array. Returns whether all elements are finite."""

Describe: TypeAlias = Callable[[np.ndarray], Payload]
"""Function that returns the payload of a finite result."""


def as_vector(aggregate: torch.Tensor) -> np.ndarray:
    """Return the result of a rule as a contiguous float32 array. It is a copy only if necessary."""
    if aggregate.requires_grad or aggregate.dtype != torch.float32:
        aggregate = aggregate.detach().to(torch.float32)
    return np.ascontiguousarray(aggregate.numpy())


def as_payload(vector: np.ndarray) -> Payload:
    """Return the payload of a finite result without an encoding."""
    content = to_bytes(vector)
    return Payload(from_bytes(content), len(content), True, payload_digest(content))


def as_encoded(wire: WireFormat, work: Aggregate, vector: np.ndarray) -> Payload:
    """Return the payload of a finite result with an encoding. It has the decoded vector, because
    the local peer must apply the same values as the peers that decode the result."""
    content = wire.encode(vector, "result", work.round_id, work.shard)
    decoded = wire.decode(content, "result", work.round_id, work.shard)
    return Payload(decoded, len(content), True, payload_digest(content), encoded=content)


@dataclass(frozen=True, slots=True)
class ResultMaker:
    """Builds the payload of a rule's result.

    Attributes:
        room: Memory to write the result to, which avoids further copies; None means new memory.
        encode: Encodes the result; None if the run has no encoding.
    """

    room: ByteArray | None = None
    encode: Describe | None = None

    def answer(
        self,
        ticket: int,
        vector: np.ndarray,
        weights: tuple[float, ...],
        outlyingness: tuple[float, ...],
        outside: tuple[float, ...] = (),
    ) -> Aggregated:
        """Return the event with this result for the core. If the result is not finite, the event
        has a reason instead of a result."""
        payload = self.payload(vector)
        if payload is None:
            return Aggregated(ticket, None, (), (), "non_finite result")
        judged = scores(weights), scores(outlyingness)
        return Aggregated(ticket, payload, *judged, outside=scores(outside))

    def payload(self, vector: np.ndarray) -> Payload | None:
        """Return the payload of a result; None if the result is not finite."""
        if self.room is not None:
            return _in_blocks(partial(_copy_block, vector), self.room)
        if not is_finite(vector):
            return None
        return as_payload(vector) if self.encode is None else self.encode(vector)

    def from_rows(self, rule: RowRule, rows: Sequence[np.ndarray]) -> Payload | None:
        """Return the result of a rule that treats each coordinate separately; None if the rule
        returns False."""
        if self.room is not None:
            return _in_blocks(
                lambda start, stop, place: rule([row[start:stop] for row in rows], place), self.room
            )
        whole = np.empty(len(rows[0]), np.float32)
        if not rule(rows, whole):
            return None
        return as_payload(whole) if self.encode is None else self.encode(whole)


def _in_blocks(make: BlockMaker, room: ByteArray) -> Payload | None:
    """Compute the result in blocks in ``room``, and hash each block while it is in the processor's
    cache. Return None if ``make`` returns False."""
    result, digest = from_bytes(room), PayloadDigest()
    step = BLOCK_BYTES // result.itemsize
    for start in range(0, len(result), step):
        place = result[start : start + step]
        if not make(start, start + step, place):
            return None
        digest.update(place)
    return Payload(result, len(room), True, digest.digest())


def _squares_of(rows: Sequence[np.ndarray]) -> list[float]:
    with np.errstate(over="ignore", invalid="ignore"):
        return [float(np.dot(row, row)) for row in rows]


def _copy_block(vector: np.ndarray, start: int, stop: int, place: np.ndarray) -> bool:
    np.copyto(place, vector[start:stop])
    return is_finite(place)


@dataclass(frozen=True, slots=True)
class ResultWriter:
    """Encoding of results, and the memory to which they are written.

    Attributes:
        room: Returns shared memory for a large result, in which other peers read it. It is not used
            for encoded results, because other peers receive the encoded bytes.
        wire: Returns the format of results, or None if it is not known yet.
    """

    room: ResultRoom | None = None
    wire: Callable[[], WireFormat | None] = lambda: None

    @property
    def encoding(self) -> WireFormat | None:
        """Format of results if they are encoded, else None."""
        wire = self.wire()
        return None if wire is None or wire.is_plain else wire

    def of(self, work: Aggregate) -> ResultMaker:
        """Return the builder for the payload of the result of ``work``."""
        wire, nbytes = self.encoding, bytes_for(len(work.rows[0].payload.data))
        if wire is not None:
            return ResultMaker(encode=partial(as_encoded, wire, work))
        small = nbytes <= LENT_BYTES
        if small or self.room is None or work.mix or work.step == "measure":
            return ResultMaker()
        return ResultMaker(room=self.room(work.round_id, work.shard, nbytes))


TO_NOBODY = ResultWriter()


class Reducer:
    """Runs a rule in the node. Small inputs are aggregated at once, and large inputs in the worker.

    Args:
        centered: Whether the rule may use the local row as ``center``. This is so in gossip rounds,
            in which each peer aggregates only for itself.
        results: Encoding of results, and the memory to which they are written.
    """

    def __init__(
        self,
        rule: BoundRule,
        worker: Worker,
        done: Callable[[Aggregated], None],
        *,
        centered: bool,
        results: ResultWriter = TO_NOBODY,
    ) -> None:
        self._rule, self._worker, self._done, self._centered = rule, worker, done, centered
        self._results = results
        self._by_length = rule.rule if isinstance(rule.rule, LengthRule) else None
        self._from_rows = rule.from_rows
        self._sharded = ShardedRule(rule) if rule.cross_shard else None
        self._small, self._large = _Rows(), _Rows()  # inputs of the loop and of the worker's thread

    @property
    def only_adds_up(self) -> bool:
        """Whether updates may stay in memory that other peers can change. With a rule that only
        adds up updates this is safe: non-finite values that a peer writes later are detected in the
        result, and affect no other update."""
        return self._from_rows is not None

    def prepare(self, n: int, d: int, then: Callable[[dict[str, Any]], None]) -> None:
        """Prepare the kernels for ``n`` rows of ``d`` elements in the worker, so that no round
        waits for a compiler.

        ``then`` is called with the fields of the event ``kernels``, or with {} if nothing was to be
        prepared. It is called at once or from ``Worker.finish``.
        """
        if self._from_rows is not None or kernels.is_prepared(n, d):
            then({})
        else:
            self._worker.submit(lambda: _prepared(n, d), then)

    def reduce(self, work: Aggregate, gradient: np.ndarray | None = None) -> None:
        """Run the rule on ``work``. ``done`` is called with the reply, at once or from
        ``Worker.finish``.

        Args:
            gradient: Gradient of the judge's loss in the columns of the shard, for cross-shard
                rules that need it.
        """
        in_loop = _is_small(work) or (self._results.encoding is None and self._is_quick(work))
        maker = self._results.of(work)
        if in_loop:
            self._done(self._run(work, self._small, maker, gradient))
        else:
            self._worker.submit(lambda: self._run(work, self._large, maker, gradient), self._done)

    def _is_quick(self, work: Aggregate) -> bool:
        return (
            self._from_rows is not None
            and work.step == "whole"
            and not work.mix
            and len(work.rows) * len(work.rows[0].payload.data) <= QUICK_ELEMENTS
        )

    def _run_step(
        self, work: Aggregate, maker: ResultMaker, gradient: np.ndarray | None
    ) -> Aggregated:
        assert self._sharded is not None, f"{self._rule.name} was asked for a step"
        last = None if work.previous is None else work.previous.data
        points = {
            point: tensor_of(vector)
            for point, vector in (("previous", last), ("gradient", gradient))
            if vector is not None
        }
        updates = [row.payload.data for row in work.rows]
        return run_step(
            self._sharded,
            work,
            updates,
            points,
            lambda aggregate: maker.payload(as_vector(aggregate)),
        )

    def _run(
        self,
        work: Aggregate,
        rows: _Rows,
        maker: ResultMaker,
        gradient: np.ndarray | None = None,
    ) -> Aggregated:
        """Return the reply to ``work``. If the rule fails, the reply has a reason instead of a
        result."""
        if work.step != "whole":
            return self._run_step(work, maker, gradient)
        try:
            return self._run_whole(by_pull(work), rows, maker)
        except ConfigError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001
            # An update of a Byzantine peer may make the rule fail, which must not end the server.
            reason = f"{self._rule.name} failed: {type(error).__name__}: {error}"[:200]
        return Aggregated(work.ticket, None, reason=reason)

    def _run_whole(self, work: Aggregate, rows: _Rows, maker: ResultMaker) -> Aggregated:
        if self._from_rows is not None and not work.mix and not work.own_share:
            added_up = self._add_up(self._from_rows, work, rows, maker)
            if added_up is not None:
                return added_up
        own = work.rows[work.own].payload.data if work.own is not None else None
        options = self._options(work, own)
        given: Updates
        if self._rule.by_pointer and not work.mix and not _is_small(work):
            given = [row.payload.data for row in work.rows]
        else:  # the rule needs a tensor, or the rows are so small that a copy is faster
            given = rows.stack(work, own if work.mix else None)
        # ``torch.no_grad`` is not needed: no input requires a gradient.
        verdict = self._rule.explain(given, **options)
        aggregate = as_vector(verdict.aggregate)
        weights, outlyingness = verdict.weights.tolist(), verdict.outlyingness.tolist()
        n, shape = len(work.rows), work.rows[0].payload.data.shape
        if aggregate.shape != shape or len(weights) != n or len(outlyingness) != n:
            raise AggregationError(
                f"rule {self._rule.name} returned an aggregate {aggregate.shape}, {len(weights)} "
                f"weights and {len(outlyingness)} values of outlyingness for {n} updates {shape}"
            )
        if rows.holds(aggregate) or any(
            np.may_share_memory(aggregate, row.payload.data) for row in work.rows
        ):
            # The result is one of the rows (Krum, for example), and the memory of that row will be
            # reused.
            aggregate = aggregate.copy()
        aggregate = with_own_share(aggregate, work)
        outside = self._measure_outside(work, options)
        answer = maker.answer(work.ticket, aggregate, tuple(weights), tuple(outlyingness), outside)
        return replace(answer, length=verdict.length)

    def _options(self, work: Aggregate, own: np.ndarray | None) -> dict[str, Any]:
        options: dict[str, Any] = {"f": work.f, "round_id": work.round_id}
        if self._centered and own is not None and "center" in self._rule.needs:
            # The center is a copy, because a rule may write to it. In a mix, the rows are
            # differences from the local row, so the center is zero.
            options["center"] = torch.zeros(len(own)) if work.mix else tensor_of(own).clone()
        if work.previous is not None and "previous" in self._rule.needs:
            options["previous"] = tensor_of(work.previous.data)
        if work.usual and "usual" in self._rule.needs:
            options["usual"] = work.usual
        return options

    def _measure_outside(self, work: Aggregate, options: dict[str, Any]) -> tuple[float, ...]:
        """Return the outlyingness of the rows in ``outside``. It is computed as if the rule had
        received these rows, too."""
        if not work.outside:
            return ()
        vectors = [row.payload.data for row in (*work.rows, *work.outside)]
        return self._rule.measure(vectors, len(work.rows), **options)

    def _add_up(
        self, rule: RowRule, work: Aggregate, rows: _Rows, maker: ResultMaker
    ) -> Aggregated | None:
        """Return the reply of a rule that treats each coordinate separately, or of a rule that
        clips updates by length if no update is clipped. Return None if the rule has to run in the
        usual way."""
        n, ones = len(work.rows), (1.0,) * len(work.outside)
        updates = [row.payload.data for row in work.rows]
        if self._by_length is not None:
            answer = self._average(self._by_length, work, updates, maker)
            if answer is not None:
                return answer
        elif (quick := maker.from_rows(rule, updates)) is not None:
            return Aggregated(work.ticket, quick, (1.0 / n,) * n, (1.0,) * n, outside=ones)
        if any(lies_elsewhere(row) for row in (*work.rows, *work.outside)):
            return self._run_on_copies(work, rows, maker)
        return None

    def _average(
        self, rule: LengthRule, work: Aggregate, updates: list[np.ndarray], maker: ResultMaker
    ) -> Aggregated | None:
        """Return the mean of the updates if all have at most the usual length. Return None if an
        update is longer or not finite."""
        n, squares, result = len(updates), [0.0] * len(updates), None
        if maker.encode is None:
            result = maker.from_rows(partial(mean_of_rows, squares=squares), updates)
        else:  # encoding is slow, so compute the result only if no update is clipped
            squares = _squares_of(updates)
        beside = _squares_of([row.payload.data for row in work.outside])
        lengths = [math.sqrt(square) for square in squares + beside]
        length, typical = rule.find_usual(lengths[:n], work.f, work.usual)
        factors, outlyingness = rule.weigh(lengths, typical)
        if min(factors[:n]) < 1.0:
            return None
        if maker.encode is not None:
            result = maker.from_rows(mean_of_rows, updates)
        if result is None:
            return None
        even, outside = (1.0 / n,) * n, tuple(outlyingness[n:])
        return Aggregated(work.ticket, result, even, (1.0,) * n, outside=outside, length=length)

    def _run_on_copies(self, work: Aggregate, rows: _Rows, maker: ResultMaker) -> Aggregated:
        """Run the rule on copies of the updates. If an update is no longer finite, its peer has
        changed it after its arrival. The update is left out and has the weight 0."""
        copies = [own_copy(row) for row in work.rows]
        counted = [copy is not None for copy in copies]
        if not any(counted):
            return Aggregated(work.ticket, None, reason=events.NO_ROWS)
        own = None if work.own is None else sum(counted[: work.own])
        left = tuple([copy for copy in copies if copy is not None])
        answer = self._run(replace(work, rows=left, own=own, outside=()), rows, maker)
        if answer.payload is None:
            return answer
        weights, outlyingness = iter(answer.weights), iter(answer.outlyingness)
        return replace(
            answer,
            weights=tuple([next(weights) if counts else 0.0 for counts in counted]),
            outlyingness=tuple([next(outlyingness) if counts else 1.0 for counts in counted]),
            outside=(1.0,) * len(work.outside),
        )


def lies_elsewhere(row: Row) -> bool:
    """Whether an update is in memory of another peer. This peer has mapped such memory
    read-only."""
    return not row.payload.data.flags.writeable


def own_copy(row: Row) -> Row | None:
    """Return the row with a copy of its update that no other peer can change. Return None if the
    update is no longer finite."""
    if not lies_elsewhere(row):
        return row
    data = row.payload.data.copy()
    return replace(row, payload=replace(row.payload, data=data)) if is_finite(data) else None


def with_own_share(aggregate: np.ndarray, work: Aggregate) -> np.ndarray:
    """Return ``aggregate``, mixed with the local row if ``work.own_share`` is not 0."""
    if not work.own_share:
        return aggregate
    assert work.own is not None, "a share of the own row, and there is none"
    own, share = work.rows[work.own].payload.data, np.float32(work.own_share)
    leaning: np.ndarray = aggregate * (1 - share) + own * share
    return leaning


def _is_small(work: Aggregate) -> bool:
    rows = len(work.rows) + len(work.outside)
    return rows * len(work.rows[0].payload.data) <= INLINE_ELEMENTS


def _prepared(n: int, d: int) -> dict[str, Any]:
    """Compile the kernels in a separate process, and then prepare them here. A compilation in a
    thread would delay the loop's replies to probes."""
    began = time.monotonic()
    if kernels.compile_apart(n, d, PREPARE_S):
        kernels.prepare(n, d)
    else:
        kernels.do_without()
    return {"seconds": round(time.monotonic() - began, 3), "backend": kernels.backend()}


class _Rows:
    """Stacked ``(n, d)`` input of a rule, in memory that is reused while the shape is unchanged."""

    def __init__(self) -> None:
        self._memory = np.empty((0, 0), dtype=np.float32)
        self._tensor = torch.from_numpy(self._memory)

    def stack(self, work: Aggregate, minus: np.ndarray | None) -> torch.Tensor:
        shape = (len(work.rows), len(work.rows[0].payload.data))
        if self._memory.shape != shape:
            self._memory = np.empty(shape, dtype=np.float32)
            self._tensor = torch.from_numpy(self._memory)
        for at, row in enumerate(work.rows):
            if minus is None:
                self._memory[at] = row.payload.data
            else:
                np.subtract(row.payload.data, minus, out=self._memory[at])
        return self._tensor

    def holds(self, vector: np.ndarray) -> bool:
        return bool(np.may_share_memory(self._memory, vector))


class TrainerJudge:
    """Lets the trainer judge updates by its loss. The updates are rows in shared memory, and the
    trainer writes the aggregate to the row after them.

    If the shards decide together, the updates stay in the node. The trainer computes the gradient
    of its loss once per round, and ``step`` receives the shard's columns of the gradient.

    Only one command is sent to the trainer at a time, because there is only one shared memory.
    Further work waits in order.
    """

    def __init__(
        self,
        ask: Callable[[control.JudgeCommand, int | None], None],
        worker: Worker,
        done: Callable[[Aggregated], None],
        step: Callable[[Aggregate, np.ndarray | None], None],
        results: ResultWriter = TO_NOBODY,
    ) -> None:
        self._ask, self._worker, self._done, self._step = ask, worker, done, step
        self._results = results
        self._waiting: deque[Aggregate] = deque()
        self._open: Aggregate | None = None
        self._memory = np.empty((0, 0), dtype=np.float32)
        self._fd = -1
        self._bounds: list[int] = []  # Start of each shard, and end of the last shard.
        self._gradient_of = -1  # Round of the gradient in the memory; -1 if there is none.

    def prepare(self, sizes: Sequence[int]) -> None:
        """Set the lengths of the trainer's shards."""
        self._bounds = [0, *itertools.accumulate(sizes)]

    def forget(self) -> None:
        """Drop the gradient, because the trainer has restored another state."""
        self._gradient_of = -1

    def reduce(self, work: Aggregate) -> None:
        """Send the work to the trainer, after replies to all earlier commands have arrived."""
        if work.step in ("decide", "combine"):
            self._step(work, self._columns(work))
            return
        self._waiting.append(work)
        self._next()

    def judged(self, said: control.JudgeReply) -> None:
        """Process the trainer's reply, which must be the reply to the last command."""
        work = self._open
        assert work is not None, f"no question is open for the reply to {said.ticket}"
        assert work.ticket == said.ticket, (
            f"the question is {work.ticket}, the reply is to {said.ticket}"
        )
        self._open = None
        if said.reason:
            self._done(Aggregated(work.ticket, None, reason=said.reason))
        elif work.step == "measure":
            self._gradient_of = work.round_id
            self._step(work, self._columns(work))
        else:
            vector = self._memory[len(work.rows) + len(work.outside)].copy()
            maker = self._results.of(work)
            far, n = said.outlyingness, len(work.rows)
            answer = with_own_share(vector, work)
            self._done(maker.answer(work.ticket, answer, said.weights, far[:n], far[n:]))
        self._next()

    def _next(self) -> None:
        while self._open is None and self._waiting:
            work = self._waiting.popleft()
            if work.step == "measure" and work.round_id == self._gradient_of:
                self._step(work, self._columns(work))
            else:
                self._open = work
                self._question(work)

    def _question(self, work: Aggregate) -> None:
        outside, elements = len(work.outside), len(work.rows[0].payload.data)
        rows = len(work.rows) + outside
        if work.step == "measure":
            rows, outside, elements = 0, 0, self._bounds[-1]
            self._gradient_of = -1
        capacity = 0
        if rows + 1 > len(self._memory) or elements != self._memory.shape[1]:
            capacity = rows + 2 if rows else 1
            self._renew(capacity, elements)
        own = -1 if work.own is None else work.own
        question = control.JudgeCommand(
            work.ticket, work.round_id, rows, capacity, work.f, own, work.mix, outside
        )
        fd = self._fd if capacity else None
        if rows * elements <= INLINE_ELEMENTS:
            self._copy(work, rows)
            self._ask(question, fd)
        else:
            self._worker.submit(lambda: self._copy(work, rows), lambda _: self._ask(question, fd))

    def _columns(self, work: Aggregate) -> np.ndarray | None:
        """Return the shard's columns of the gradient; None if the memory has no gradient for the
        round."""
        if work.round_id != self._gradient_of:
            return None
        start, stop = self._bounds[work.shard : work.shard + 2]
        columns: np.ndarray = self._memory[0, start:stop]
        return columns

    def _copy(self, work: Aggregate, rows: int) -> None:
        work = by_pull(work)
        given = (*work.rows, *work.outside)
        for into, row in zip(self._memory[:rows], given, strict=False):
            np.copyto(into, row.payload.data)

    def _renew(self, capacity: int, elements: int) -> None:
        self.close()
        self._fd = allocate(4 * capacity * elements)
        self._memory = map_rows(self._fd, capacity, elements)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
