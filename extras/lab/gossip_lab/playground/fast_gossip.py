"""Gossip rounds of the fast engine: each peer has its own model, trust table and clock."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from .adamw import AdamW
from .attacking import KINDS, Attackers, Kind
from .consensus import MixingStrength
from .fast_rolling import are_finite
from .judging import Judges
from .learners import chunks
from .moments import Moment
from .neighbourhoods import Neighbourhoods
from .parts import Parts
from .presence import Peers, Times, slice_of
from .pushing import Pushes, PushStore, VectorRows
from .schedule import Schedule, Wave, by_round


class GossipWorld:
    """State of a world in gossip rounds.

    At one time, different peers are in different rounds. So the world is played in waves: in each
    wave some peers begin a round and some peers close a round.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts, self._task, task = parts, parts.task, parts.task
        n, d, settings = parts.peers, task.cohort.d, parts.settings
        self._here = task.cohort.initial.repeat(n, 1)  # current parameters of each peer
        self._shown = self._here.clone()  # parameters after the present round
        self._ahead: defaultdict[int, list[tuple[Peers, Tensor]]] = defaultdict(list)
        self._vectors = VectorRows(d)
        # For each kind and peer: the row of its last true vector, and of the vector that it sent.
        # -1 if there is no vector.
        self._own_rows = {kind: np.full(n, -1) for kind in KINDS}
        self._sent_rows = {kind: np.full(n, -1) for kind in KINDS}
        self._memory = None if task.outer is None else torch.zeros(n, d)
        self._adamw = None if task.optimizer == "sgd" else AdamW(n, d, task.lr)
        self._exchanged: dict[Kind, Tensor] = {}
        if self._adamw is not None and task.vectors_mixed > 1:
            self._exchanged |= {"first": self._adamw.first, "second": self._adamw.second}
        self._exchanged["parameters"] = self._here  # must be the last key, see _send
        self._moves: Tensor | None = None  # reused, because allocating it for each exchange is slow
        # Last aggregate of each peer; NaN before its first aggregate.
        remembers = "previous" in parts.rule.needs
        self._previous = torch.full((n, d), torch.nan) if remembers else None
        self._attackers = Attackers(parts)
        self._judges = Judges(parts, self._here)
        self._mixing = MixingStrength(settings, self._judges)
        self._schedule = Schedule(parts, self._judges.are_locked)
        most = settings.gossip.staleness_max
        self._stores = {kind: PushStore(n, most) for kind in KINDS}
        self._round_id = self._bytes = self._samples = 0
        self._lost: set[int] = set()  # rounds in which some peer made no step
        self._honest = parts.honest

    def play_round(self) -> Moment:
        """Play until all peers that take part in the next round have closed it.

        Raises: ConfigError: All peers have crashed.
        """
        schedule = self._schedule
        while not schedule.is_over():
            wave = schedule.next_wave()
            self._restore(wave.lost)
            self._send(wave)
            for round_id, peers in by_round(wave.rounds, wave.closed):
                self._close(round_id, peers, wave.close_s)
        times = schedule.end_round()
        peers = times.peers
        self._bytes += times.nbytes
        self._samples += len(peers) * self._task.samples
        if (policy := self._parts.moves) is not None and policy.is_due(self._round_id):
            updates = self._vectors.vectors[self._sent_rows["gradient"][peers]]
            self._task, nbytes = self._task.swap_samples(policy, peers, updates, self._round_id)
            self._bytes += nbytes
        for some, states in self._ahead.pop(self._round_id, ()):
            self._shown[some] = states
        self._round_id += 1
        present = schedule.presence.present
        return Moment(
            self._round_id,
            times.end_s,
            self._bytes,
            self._samples,
            self._shown,
            present,
            self._judges.count_quarantined(self._honest & present),
            self._round_id - 1 in self._lost,
            self._round_id - 1 in self._judges.lowered,
        )

    def _restore(self, lost: Peers) -> None:
        """Copy the state of another peer to the peers that have lost their own."""
        donors = np.setdiff1d(np.flatnonzero(self._schedule.presence.runs), lost)
        for peer in lost.tolist():
            own, memory = self._here, self._memory
            own[peer] = own[donors[0]] if len(donors) else self._task.cohort.initial
            if memory is not None:
                memory[peer] = memory[donors[0]] if len(donors) else 0.0
            if self._adamw is not None:
                self._adamw.restore(peer, int(donors[0]) if len(donors) else None)
            self._judges.forget(peer)
            self._mixing.forget(peer)
        for store in self._stores.values():
            store.drop(lost)

    # --- pushes -----------------------------------------------------------------------------------

    def _send(self, wave: Wave) -> None:
        """Compute and send the updates of the peers that begin a round."""
        begun, presence = wave.begun, self._schedule.presence
        expected = wave.expected  # encoded pairs of receiver and sender
        self._expected = expected["receiver"] * self._parts.peers + expected["sender"]
        if not len(begun):
            return
        for store in self._stores.values():
            store.drop(np.flatnonzero(~presence.runs))
        for rows in (*self._own_rows.values(), *self._sent_rows.values()):
            rows[begun] = -1
        kept = [store.pushes["row"] for store in self._stores.values()]
        self._vectors.keep(*kept, *self._own_rows.values(), *self._sent_rows.values())
        flipped = self._attackers.flipped
        for round_id, peers in by_round(wave.rounds, begun):
            rows = self._vectors.add(len(peers))
            for chunk in chunks(len(peers)):
                some = peers[chunk]
                here = self._here[slice_of(some)]
                updates = self._task.compute_updates(here, some, round_id, flipped[some])
                self._vectors.vectors[slice_of(rows[chunk])] = updates
            self._push("gradient", round_id, peers, rows, wave)
            if self._schedule.mixes(round_id):
                for kind, state in self._exchanged.items():
                    rows = self._vectors.add(len(peers))
                    for chunk in chunks(len(peers)):
                        self._vectors.vectors[slice_of(rows[chunk])] = state[slice_of(peers[chunk])]
                    sent = self._push(kind, round_id, peers, rows, wave)
                self._mixing.learn(  # here ``sent`` has the rows of the parameters
                    round_id, peers, self._vectors.vectors, sent, wave.pushes_of(round_id)
                )

    def _push(self, kind: Kind, round_id: int, peers: Peers, rows: Peers, wave: Wave) -> Peers:
        """Push the vectors in these rows. Attackers push false vectors instead. Return the rows of
        the sent vectors, ``(m,)``."""
        attackers, sent = self._attackers, rows.copy()
        false = attackers.false[peers]
        if false.any():
            sent[false] = self._vectors.add(int(false.sum()))
            matrix = self._vectors.vectors
            matrix[sent[false]] = matrix[rows[false]]
            if (colluding := peers[attackers.colluding[peers]]).size:
                attackers.inform_of_loss(self._here[colluding[0]], round_id, kind)
            attackers.falsify(matrix, sent, peers, round_id, kind)
        self._own_rows[kind][peers], self._sent_rows[kind][peers] = rows, sent
        pushes = wave.pushes_of(round_id)
        pushes["row"] = self._sent_rows[kind][pushes["sender"]]
        told = np.flatnonzero(attackers.apart[pushes["sender"]])
        if len(told):
            pushes["row"][told] = self._vectors.add(len(told))
            for at in told.tolist():
                self._falsify_for(kind, pushes, at, round_id)
        all_sent, vectors = np.sort(np.concatenate([sent, pushes["row"][told]])), self._vectors
        for chunk in chunks(len(all_sent)):
            some = all_sent[chunk]
            vectors.are_finite[some] = are_finite(vectors.vectors[slice_of(some)])
        self._stores[kind].add(pushes)
        return sent

    def _falsify_for(self, kind: Kind, pushes: Pushes, at: int, round_id: int) -> None:
        """Write the vector of the push ``pushes[at]``, in which an attacker sends it to only this
        receiver."""
        receiver, sender = int(pushes["receiver"][at]), int(pushes["sender"][at])
        near = pushes["sender"][pushes["receiver"] == receiver]
        rows = self._own_rows[kind][[receiver, *near[self._honest[near]]]]
        own, vectors = int(self._own_rows[kind][sender]), self._vectors.vectors
        others = vectors[np.where(rows < 0, own, rows)]
        words = kind, round_id
        lie = self._attackers.falsify_for(vectors[own], sender, receiver, others, *words)
        vectors[int(pushes["row"][at])] = lie

    def _collect(self, kind: Kind, round_id: int, peers: Peers, close_s: Times) -> Neighbourhoods:
        """Return the vectors that each peer uses in this round: its own vector, and one vector of
        each sender."""
        used = self._stores[kind].pop_pushes(peers, round_id, close_s, self._expected)
        n = self._parts.peers
        receivers = np.concatenate([peers, used["receiver"]])
        senders = np.concatenate([peers, used["sender"]])
        rows = np.concatenate([self._own_rows[kind][peers], used["row"]])
        order = np.argsort(receivers * n + senders)
        counts = np.bincount(receivers, minlength=n)[peers]
        starts = np.concatenate([[0], counts.cumsum()])
        near = Neighbourhoods(peers, starts, senders[order], rows[order])
        degrees = self._schedule.degrees(round_id)
        return near if degrees is None else self._pull(near, degrees)

    def _pull(self, near: Neighbourhoods, degrees: Peers) -> Neighbourhoods:
        """Apply Metropolis weights: pull the vectors of neighbours with a higher degree towards the
        peer's own vector, as ``Reducer`` does."""
        factors = (1 + degrees[near.peers[near.owners]]) / (1 + degrees[near.members])
        far = np.flatnonzero(factors < 1)
        rows, vectors = near.rows.copy(), self._vectors
        rows[far] = vectors.add(len(far))
        own = vectors.vectors[near.own_rows[near.owners[far]]]
        pulls = torch.from_numpy(factors[far].astype(np.float32))[:, None]
        vectors.vectors[rows[far]] = (vectors.vectors[near.rows[far]] - own).mul_(pulls).add_(own)
        vectors.are_finite[rows[far]] = vectors.are_finite[near.rows[far]]
        return replace(near, rows=rows)

    # --- results ----------------------------------------------------------------------------------

    def _close(self, round_id: int, peers: Peers, close_s: Times) -> None:
        """Close a round on these peers: aggregate, and apply the results."""
        judges = self._judges
        judges.begin(round_id, self._schedule.roster(round_id))
        moves = None
        if self._schedule.mixes(round_id):
            self._mixing.measure(round_id, peers, close_s)
            for kind, state in self._exchanged.items():
                moves = self._mix(kind, round_id, peers, close_s)
                if state is not self._here:
                    moved = state[peers] + moves
                    # A second moment becomes negative only if an attacker sent a false moment.
                    is_false = (moved < 0) & (kind == "second")
                    state[peers] = torch.where(is_false, state[peers], moved)
        near = self._collect("gradient", round_id, peers, close_s)
        vectors, here = self._vectors.vectors, self._here
        broken = ~self._vectors.are_finite[near.rows] & ~near.are_own
        faulty, near = near.choose(broken), near.choose(~broken)
        out = judges.find_outside(near)
        outside, used = near.choose(out), near.choose(~out)
        for chunk in chunks(len(peers)):
            some, at = used.between(chunk), slice_of(peers[chunk])
            before = None if self._previous is None else self._previous[at]
            found = judges.aggregate(vectors, some, before)
            if found.failed.any():
                self._lost.add(round_id)
            judges.observe(vectors, some, found, outside.between(chunk), faulty.between(chunk))
            if moves is not None:
                here[at] += moves[chunk]
            self._step(at, found.vectors, some, vectors)
            if round_id == self._round_id:
                self._shown[at] = here[at]
        if round_id > self._round_id:
            self._ahead[round_id].append((peers, here[peers]))

    def _step(
        self, at: slice | Peers, results: Tensor, near: Neighbourhoods, vectors: Tensor
    ) -> None:
        """Make an optimizer step on the peers ``at`` with their aggregates ``results``, ``(m, d)``.
        ``results`` is overwritten."""
        here, outer = self._here, self._task.outer
        if outer is not None:
            shares = (near.counts > 1) * self._parts.settings.gossip.kept_share
            own_share = torch.from_numpy(shares).float()[:, None]
            results.mul_(1 - own_share).add_(vectors[near.own_rows].mul_(own_share))
        if self._previous is not None:
            self._previous[at] = results
        if self._adamw is not None:
            self._adamw.step(here, at, results)
            return
        if outer is None:
            here[at] -= results.mul_(self._task.lr)
            return
        assert self._memory is not None
        move, self._memory[at] = outer.move(results, self._memory[at])
        here[at] -= move

    def _mix(self, kind: Kind, round_id: int, peers: Peers, close_s: Times) -> Tensor:
        """Return the difference by which each peer moves towards the vectors of its neighbours,
        ``(m, d)``."""
        near = self._collect(kind, round_id, peers, close_s)
        vectors = self._vectors.vectors
        near = near.choose(self._vectors.are_finite[near.rows] | near.are_own)
        near = near.choose(~self._judges.find_outside(near))
        if self._moves is None:
            self._moves = torch.empty(self._parts.peers, vectors.shape[1])
        moves = self._moves[: len(near.peers)]
        self._judges.mix(vectors, near, moves)
        others = near.counts - 1
        if self._schedule.degrees(round_id) is not None:
            others = np.minimum(1, others)
        return moves.mul_(self._mixing.scales(others, near.peers)[:, None])
