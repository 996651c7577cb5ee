"""Rolling rounds of the fast engine: all peers share one model and one trust table, and each round
has one server."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossip.aggregators import Verdict
from gossip.core import TRUST_ROUNDS, Contribution, Rejection, TrustTable, quorum
from gossip.errors import AggregationError, ConfigError
from gossip.topologies import Roster

from .attacking import Attackers
from .counters import draw_uniform
from .lateness import RollingPatience, RoundTimes
from .learners import chunks
from .moments import Moment
from .parts import Parts
from .presence import Peers, Presence, Times

log = logging.getLogger(__name__)
RULE_S, APPLY_S = 0.0001, 0.0002
"""Virtual time to aggregate and to apply a round, in seconds, the same as for the simulator's
trainers."""


class RollingWorld:
    """State of a world in rolling rounds."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._task, settings = parts, parts.task, parts.settings
        n = parts.peers
        self._settings, self._nbytes = settings, 4 * parts.task.cohort.d
        self._presence = Presence(parts)
        self._attackers = Attackers(parts)
        self._patience = RollingPatience(settings)
        self._trust = TrustTable(
            settings.trust, settings.f, settings.updates_for, judged=settings.judged
        )
        self._here: Tensor = parts.task.cohort.initial
        # Reused, because allocating it each round is slow.
        self._buffer = torch.empty(n, parts.task.cohort.d)
        self._memory: Tensor | None = None
        self._previous: Tensor | None = None
        self._lengths: deque[float] = deque(maxlen=TRUST_ROUNDS)
        self._roster = np.flatnonzero(self._presence.runs)
        self._round_id = self._bytes = self._samples = 0
        self._now_s = 0.0
        self._ready_s = np.zeros(n)  # time at which each peer can begin the next round
        self._honest = parts.honest

    def play_round(self) -> Moment:
        """Play one round. Raises: ConfigError: Too few peers are left for a round."""
        locked = self._locked_peers()
        times = self._time_round(locked)
        while (close_s := self._patience.close_s(times, self._required())) == np.inf:
            self._await_return()
            times = self._time_round(locked)
        answered = np.flatnonzero(times.arrives_s <= close_s)
        verdict, taken = self._learn(answered, locked)
        expected = times.expected & self._presence.runs
        self._patience.record_contributors(self._roster, expected, taken)
        self._end_round(times, close_s)
        self._round_id += 1
        return Moment(
            self._round_id,
            self._now_s,
            self._bytes,
            self._samples,
            self._here.expand(self._parts.peers, -1),
            self._presence.present,
            self._count_quarantined(),
            verdict is None,
        )

    # --- peers that are in time -------------------------------------------------------------------

    def _time_round(self, locked: NDArray[np.bool_]) -> RoundTimes:
        n, presence = self._parts.peers, self._presence
        member = np.zeros(n, bool)
        member[self._roster] = True
        begin_s = np.where(member & presence.runs, self._ready_s, np.inf)
        compute_s = self._parts.compute(np.arange(n), self._round_id)
        finish_s = begin_s + compute_s * presence.slowness(self._now_s)
        presence.strike(np.full(n, self._round_id), begin_s, finish_s)
        server, serves_s = self._find_server(self._serving_order())
        travel_s = self._draw_delays("up") + self._parts.links.transfer_s(self._nbytes)
        travel_s[server] = 0.0
        sent_s = np.maximum(finish_s, serves_s)
        arrives_s = np.where(member & presence.runs, sent_s + travel_s, np.inf)
        skipped_s = presence.noticed_s.copy()
        return RoundTimes(server, begin_s, finish_s, arrives_s, skipped_s, member & ~locked)

    def _draw_delays(self, way: str) -> Times:
        """Return the random delay of this round's message from or to each peer, in seconds,
        ``(n,)``. ``way`` is ``up`` or ``down``."""
        peers, (least_s, most_s) = np.arange(self._parts.peers), self._parts.links.delay_s
        drawn = draw_uniform(way, self._settings.seed, peers, self._round_id)
        return np.asarray(least_s + (most_s - least_s) * drawn)

    def _await_return(self) -> None:
        """Advance the time until an absent peer returns, because too few peers are left for the
        round."""
        back_s, running = self._presence.next_return_s(), self._presence.runs.copy()
        if back_s == np.inf:
            raise ConfigError(
                f"round {self._round_id} needs updates of {self._required()} peers, and "
                f"{int(running.sum())} of {len(self._roster)} are left",
                "let fewer peers crash, or add peers",
            )
        self._presence.return_peers(back_s)
        self._ready_s[self._presence.runs & ~running] = back_s

    def _required(self) -> int:
        """Return the number of updates that the round needs, as ``Quorum.required`` does."""
        members, settings = len(self._roster), self._settings
        return max(quorum.quorum_of(settings, members), quorum.needed_by_rule(settings, 0))

    def _serving_order(self) -> tuple[int, ...]:
        roster = tuple(self._roster.tolist())
        able = self._trust.servers(roster) or roster
        topology, settings = self._parts.topology, self._settings
        plan = topology(Roster(able, settings.lineage), self._round_id, settings.seed, shards=1)
        return plan.servers[0]

    def _find_server(self, order: tuple[int, ...]) -> tuple[int, float]:
        """Return the first running peer in the order, which is the server, and the time from which
        peers send to it. Before, peers have to detect that the peers ahead of it in the order are
        absent."""
        serves_s = -np.inf
        for peer in order:
            if self._presence.runs[peer]:
                return peer, serves_s
            serves_s = max(serves_s, float(self._presence.noticed_s[peer]))
        return order[0], np.inf

    # --- the result -------------------------------------------------------------------------------

    def _learn(self, answered: Peers, locked: NDArray[np.bool_]) -> tuple[Verdict | None, Peers]:
        """Aggregate the updates of these peers and make the step of the round. The return value is
        that of ``_aggregate``."""
        updates = self._updates_of(answered)
        verdict, taken = self._aggregate(updates, answered, locked)
        if (policy := self._parts.moves) is not None and policy.is_due(self._round_id):
            self._task, nbytes = self._task.swap_samples(policy, answered, updates, self._round_id)
            self._bytes += nbytes
        if verdict is not None:
            self._step(verdict.aggregate)
        self._samples += len(taken) * self._task.samples
        return verdict, taken

    def _locked_peers(self) -> NDArray[np.bool_]:
        """Return which peers are in quarantine, ``(n,)`` bool."""
        locked = np.zeros(self._parts.peers, bool)
        locked[list(self._trust.quarantined())] = True
        return locked

    def _updates_of(self, peers: Peers) -> Tensor:
        """Return the updates that these peers send, true or false, ``(m, d)``."""
        updates = self._compute_updates(peers)
        if self._attackers.colluding.any():
            self._attackers.inform_of_loss(self._here, self._round_id)
        self._attackers.falsify(updates, np.arange(len(peers)), peers, self._round_id)
        return updates

    def _compute_updates(self, peers: Peers) -> Tensor:
        """Return the true updates of these peers, ``(m, d)``, in memory that the next call
        overwrites."""
        flipped = self._attackers.flipped[peers]
        updates = self._buffer[: len(peers)]
        for chunk in chunks(len(peers)):
            here = self._here.expand(len(peers[chunk]), -1)
            updates[chunk] = self._task.compute_updates(
                here, peers[chunk], self._round_id, flipped[chunk]
            )
        return updates

    def _rule_inputs(self, f: int, reader: str = "judge") -> dict[str, Any]:
        """Return the arguments of the rule other than the updates. If the rule needs a loss, each
        ``reader`` draws its own reference samples."""
        inputs: dict[str, Any] = {"f": f, "round_id": self._round_id}
        if self._previous is not None:
            usual = max(self._lengths, default=0.0)
            inputs |= {"previous": self._previous, "usual": usual or None}
        rule = self._parts.rule
        if rule.needs_trainer:
            loss = self._task.reference_loss(self._here, self._round_id, reader=reader)
            inputs |= loss.inputs(rule.needs)
        return inputs

    def _aggregate(
        self, updates: Tensor, answered: Peers, locked: NDArray[np.bool_]
    ) -> tuple[Verdict | None, Peers]:
        """Run the rule as a real server would, and update the trust table as its commit would.

        Args:
            updates: ``(m, d)``: updates of the peers ``answered``.
        Returns: The verdict, or None if the round is lost; and the peers that sent a used update.
        """
        settings, finite = self._settings, are_finite(updates)
        broken = answered[~finite]
        f = settings.f
        if len(broken):  # the same f as ``Server.f_of`` in the core
            f = max(f - len(broken), settings.tolerable(f, int(finite.sum())))
        is_taken = finite & ~locked[answered]
        if is_taken.sum() < settings.updates_needed(f):
            is_taken = finite
        taken, outside = answered[is_taken], finite & ~is_taken
        inputs = self._rule_inputs(f)
        rows = updates if is_taken.all() else updates[torch.from_numpy(is_taken)]
        verdict = self._explain(rows, inputs)
        rejected: list[Rejection] = []
        if settings.f:  # with f = 0 no peer is ever in quarantine
            rejected = [Rejection(peer, "non_finite") for peer in broken.tolist()]
            is_due = self._round_id % settings.trust.measured_every == 0
            if verdict is not None and is_due and outside.any():
                vectors = [row.numpy() for row in (*rows, *updates[torch.from_numpy(outside)])]
                measures = self._parts.rule.measure(vectors, len(rows), **inputs)
                pairs = zip(answered[outside].tolist(), measures, strict=False)
                rejected += [Rejection(peer, "quarantined", value) for peer, value in pairs]
        self._observe(verdict, taken, rejected)
        if verdict is None:
            return None, taken[:0]
        self._previous = verdict.aggregate.clone()  # the aggregate may be a view of ``_buffer``
        if verdict.length:
            self._lengths.append(verdict.length)
        return verdict, taken

    def _explain(self, rows: Tensor, inputs: dict[str, Any]) -> Verdict | None:
        """Return the rule's verdict, or None if the rule has no finite result. As in a run, an
        exception of the rule loses the round, because an attack may cause it."""
        needed = self._settings.updates_needed(inputs["f"])
        if len(rows) < max(1, needed):
            self._lose_round(f"{len(rows)} finite updates were left, it needs {needed}")
            return None
        try:
            verdict = self._parts.rule.explain(rows, **inputs)
        except Exception as error:
            if isinstance(error, ConfigError) and not isinstance(error, AggregationError):
                raise
            self._lose_round(f"it raised {type(error).__name__}: {error}")
            return None
        if not bool(torch.isfinite(verdict.aggregate).all()):
            self._lose_round("its aggregate was not finite")
            return None
        return verdict

    def _lose_round(self, reason: str) -> None:
        """Log the reason why this round makes no step."""
        log.info("round lost: round=%s reason=%s", self._round_id, reason)

    def _observe(self, verdict: Verdict | None, taken: Peers, rejected: list[Rejection]) -> None:
        """Update the trust table with the verdict of the round."""
        if not self._settings.f:
            return
        contributors: list[Contribution] = []
        if verdict is not None:
            columns = taken.tolist(), verdict.weights.tolist(), verdict.outlyingness.tolist()
            contributors = [
                Contribution(peer, self._task.samples, weight, far)
                for peer, weight, far in zip(*columns, strict=True)
            ]
        rejected.sort(key=lambda rejection: rejection.peer)
        roster = tuple(self._roster.tolist())
        self._trust.observe_commit(self._round_id, contributors, rejected, roster=roster)

    def _step(self, aggregate: Tensor) -> None:
        if self._task.outer is None:
            self._here = self._here - self._task.lr * aggregate
        else:
            move, self._memory = self._task.outer.move(aggregate, self._memory)
            self._here = self._here - move

    # --- the end of a round -----------------------------------------------------------------------

    def _end_round(self, times: RoundTimes, close_s: float) -> None:
        n, presence, server = self._parts.peers, self._presence, times.server
        receivers = np.zeros(n, bool)
        receivers[self._roster] = True
        receivers &= presence.runs
        count = int(receivers.sum()) - 1
        made_s, began_s = close_s + RULE_S, self._now_s
        transfer_s = self._parts.links.transfer_s(self._nbytes, count)
        result_s = made_s + self._draw_delays("down") + transfer_s
        result_s[server] = made_s
        # A peer that is computing when the result arrives applies the result afterwards. A peer
        # that has not begun to compute skips its own update.
        begins = presence.runs & (times.begin_s < result_s)
        applied_s = np.maximum(result_s, np.where(begins, times.finish_s, self._ready_s))
        sent = begins & (times.finish_s < result_s)
        sent[server] = False
        self._bytes += (int(sent.sum()) + count) * self._nbytes
        self._ready_s = np.where(receivers, applied_s + APPLY_S, np.inf)
        ordered = np.sort(applied_s[receivers])
        self._now_s = float(ordered[(len(ordered) - 1) // 2])
        lags_s = np.where(sent, times.arrives_s - times.arrives_s.min(), np.nan)
        self._patience.record_round(times, lags_s, self._now_s - began_s)
        presence.return_peers(self._now_s)
        self._roster = np.flatnonzero(presence.runs | (presence.dead_s > self._now_s))
        self._ready_s[presence.runs & ~receivers] = self._now_s + APPLY_S

    def _count_quarantined(self) -> Peers:
        found = np.zeros(self._parts.peers, np.int64)
        observers = self._honest & self._presence.present
        locked = list(self._trust.quarantined())
        found[locked] = observers.sum() - observers[locked]  # a peer does not observe itself
        return found


def are_finite(updates: Tensor) -> NDArray[np.bool_]:
    """Return for each row whether all its elements are finite, ``(n,)`` bool."""
    # A sum takes one pass, and is not finite if any element is not. It may also overflow, so rows
    # with such a sum are checked again.
    found: NDArray[np.bool_] = updates.sum(dim=1).isfinite().numpy()
    for row in np.flatnonzero(~found).tolist():
        found[row] = bool(updates[row].isfinite().all())
    return found
