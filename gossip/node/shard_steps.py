"""Steps of a rule with cross-shard decisions: measure, decide, combine. The core requests each
step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from torch import Tensor

from gossip.aggregators import Decision, ShardedRule, Updates
from gossip.core import Aggregate, Aggregated, Payload, PeerId, ShardStatistics
from gossip.errors import ConfigError

_WIRE = np.dtype("<f8")
_LARGEST = float(np.finfo(np.float32).max)


def scores(numbers: Sequence[float]) -> tuple[float, ...]:
    """Return the numbers, limited to the largest finite float32. They are sent in commits, and
    messages cannot carry non-finite numbers."""
    # ``number == number`` is false for NaN.
    return tuple([min(number, _LARGEST) if number == number else _LARGEST for number in numbers])


def run_step(
    rule: ShardedRule,
    ask: Aggregate,
    updates: Updates,
    points: Mapping[str, Tensor],
    payload_of: Callable[[Tensor], Payload | None],
) -> Aggregated:
    """Return the reply to ``ask``. If the rule fails on an update, the reply has a reason instead
    of a result.

    Args:
        updates: Vectors of ``ask.rows``.
        points: Further inputs of the rule: the last aggregate of the shard (``previous``), and the
            ``gradient`` of the judge's loss. An unknown input is omitted.
        payload_of: Returns the payload of a result; None if the result is not finite.
    """
    inside = _inside(ask)
    try:
        if ask.step == "measure":
            measured = rule.measure(updates, **points, inside=inside).astype(_WIRE)
            return Aggregated(ask.ticket, None, statistics=measured.tobytes())
        if ask.step == "combine":
            payload = payload_of(rule.combine(updates, ask.decision, **points, inside=inside))
            return Aggregated(
                ask.ticket, payload, reason="" if payload is not None else "non_finite result"
            )
        return _decide(rule, ask, updates, points, payload_of)
    except ConfigError as error:
        return Aggregated(ask.ticket, None, reason=str(error))
    except Exception as error:  # noqa: BLE001
        # An update of a Byzantine peer may make the rule fail, which must not end the server.
        return Aggregated(
            ask.ticket,
            None,
            reason=f"{rule.bound.name} failed: {type(error).__name__}: {error}"[:200],
        )


def _decide(
    rule: ShardedRule,
    ask: Aggregate,
    updates: Updates,
    points: Mapping[str, Tensor],
    payload_of: Callable[[Tensor], Payload | None],
) -> Aggregated:
    decision = _decision_on(rule, ask, ask.peers)
    count = len(ask.peers)
    counted = dict(zip(ask.peers, decision.weights[:count].tolist(), strict=True))
    beside = decision.weights[count:].tolist()
    aggregate = rule.combine(
        updates,
        [counted.get(row.peer, 0.0) for row in ask.rows] + beside,
        **points,
        inside=_inside(ask),
    )
    payload = payload_of(aggregate)
    if payload is None:
        return Aggregated(ask.ticket, None, reason="non_finite result")
    assert decision.shares is not None
    assert decision.outlyingness is not None
    judged = scores(decision.shares.tolist()), scores(decision.outlyingness.tolist())
    weights = (*counted.values(), *beside)
    return Aggregated(
        ask.ticket, payload, *judged, decision=weights, outside=_measure_outside(rule, ask)
    )


def _inside(ask: Aggregate) -> list[int] | None:
    """Return the indices of the rows that are not in ``ask.outside``; None means all rows."""
    if not ask.outside:
        return None
    outside = {row.peer for row in ask.outside}
    return [at for at, row in enumerate(ask.rows) if row.peer not in outside]


def _measure_outside(rule: ShardedRule, ask: Aggregate) -> tuple[float, ...]:
    """Return the outlyingness of the rows in ``ask.outside``. It is computed as if the rule had
    received these rows, too."""
    if not ask.outside:
        return ()
    peers = (*ask.peers, *[row.peer for row in ask.outside])
    try:
        decision = _decision_on(rule, ask, peers)
    except Exception:  # noqa: BLE001
        return ()  # the decision on the other rows remains valid
    assert decision.outlyingness is not None
    return scores(decision.outlyingness[len(ask.peers) :].tolist())


def _decision_on(rule: ShardedRule, ask: Aggregate, peers: Sequence[PeerId]) -> Decision:
    """Return the rule's decision on the updates of ``peers``, from the measurements of all
    shards."""
    parts = [_measured(part, peers) for part in ask.parts]
    return rule.decide(parts, f=ask.f, round_id=ask.round_id)


def _measured(part: ShardStatistics, peers: Sequence[PeerId]) -> tuple[list[int], np.ndarray]:
    places = {peer: at for at, peer in enumerate(part.peers)}
    return [places[peer] for peer in peers], np.frombuffer(part.statistics, _WIRE)
