"""S9 and L12 at the end of training: all peers end, and all peers with a confirmed final state have
bitwise equal states."""

from __future__ import annotations

from collections.abc import Iterable

from gossip.core import ConfirmState, Halt, PeerId, Restore, StateConfirmed
from gossip_lab.simulation.checkers.base import Checker, PerIncarnation, on_effect, on_event
from gossip_lab.simulation.world import ToyTrainer


class IdenticalFinalStates(Checker):
    """S9: all peers whose final state before the same round is confirmed have the same state. If
    more than 2f peers without a tainted state run, every requested confirmation is finally given.
    Both are judged only if f > 0; with tainted states, the first is judged only if more than 2f
    peers without one run."""

    invariant = "S9"
    needs = "rolling"

    def make_records(self) -> None:
        self._confirmed: dict[int, tuple[bytes, PeerId]] = {}
        # Peer -> time at which it requested a confirmation.
        self.waiting: dict[PeerId, float] = self.per_incarnation({})

    @on_event
    def record_question(self, event: ConfirmState) -> None:
        self.waiting.setdefault(self.peer, self.now)

    @on_effect
    def judge(self, confirmed: StateConfirmed) -> None:
        since = self.waiting.pop(self.peer, None)
        f = self.core.settings.f
        trainer = self.trainer
        if since is None or not f:
            return
        others = sum(host.running for host in self.swarm.hosts.values()) - 1
        self.demand(
            confirmed.agreed or self._count_untainted() <= 2 * f,
            f"its last state is not confirmed as that of {others} others",
        )
        if not confirmed.agreed or not isinstance(trainer, ToyTrainer):
            return
        ends = f"it ends before round {confirmed.round_id} with"
        self.demand(
            trainer.next_round == confirmed.round_id,
            f"{ends} the state before round {trainer.next_round}",
        )
        state = (trainer.digest, self.peer)
        digest, first = self._confirmed.setdefault(confirmed.round_id, state)
        tainted = self.peer in self.tainted or first in self.tainted
        if tainted and self._count_untainted() <= 2 * f:
            return  # too few peers are left that could have confirmed it
        text = f"{ends} {trainer.digest.hex()}, peer {first} with {digest.hex()}"
        self.demand(trainer.digest == digest, text)

    def judge_end(self, peers: Iterable[PeerId]) -> None:
        """Judge the end of the training: if one of ``peers`` has reached its last round, then all
        running peers among them have, and no peer still waits for a confirmation."""
        hosts = self.swarm.hosts
        trainers = {peer: hosts[peer].trainer for peer in peers if hosts[peer].running}
        finished = {
            peer
            for peer, it in trainers.items()
            if peer in self.waiting or (isinstance(it, ToyTrainer) and it.confirmed)
        }
        for peer in trainers if finished else ():
            where = hosts[peer].core.rounds.round_id
            text = f"it has not reached its last round, and is in {where}"
            self.demand(peer in finished, text, peer)
        for peer, since in self.waiting.items():
            core = self.swarm.inspections[peer]
            if self.tainted.unreliable and self._count_untainted() <= 2 * core.settings.f:
                continue  # too few peers are left that could have confirmed it
            text = f"it has requested at {since:.2f} s that its last state be confirmed: it was not"
            self.demand(not hosts[peer].running, text, peer)

    def _count_untainted(self) -> int:
        """Return the number of running peers without a tainted state."""
        hosts = self.swarm.hosts.items()
        return sum(host.running and other not in self.tainted for other, host in hosts)


class AllPeersEnd(Checker):
    """L12: in gossip rounds, after the scripts have reached their last round, all peers end by
    themselves. This includes peers that are behind, pause, hang, or are killed and restarted. A
    peer that has restored the final state ends with exit code 0, also in rolling rounds."""

    invariant = "L12"

    # Round of the state that this incarnation restored last; -1 if it has restored none.
    _restored_round = PerIncarnation[int](lambda: -1)

    @on_effect
    def record_restore(self, restore: Restore) -> None:
        self._restored_round = restore.round_id

    @on_effect
    def judge(self, halt: Halt) -> None:
        last = self.trainer.rounds if isinstance(self.trainer, ToyTrainer) else None
        if self.peer in self.conditions.attackers or last is None:
            return
        if self._restored_round >= last:
            text = f"it was sent the final state, and ends with exit code {halt.exit_code}: "
            self.demand(halt.exit_code == 0, text + halt.reason)

    def remaining(self) -> list[PeerId]:
        """Return the peers that still run, or are being started."""
        hosts = self.swarm.hosts.items()
        return [p for p, host in hosts if host.running or host.state == "starting"]

    def judge_end(self, since: float) -> None:
        """Judge that all peers have ended, with the time since ``since`` to do so."""
        self.judged += 1
        for peer in self.remaining():
            core = self.swarm.hosts[peer].core
            raise self.violated(
                f"it has not ended {self.now - since:.1f} s after all scripts were to end: "
                f"{core.phase} in round {core.rounds.round_id}",
                peer,
            )
