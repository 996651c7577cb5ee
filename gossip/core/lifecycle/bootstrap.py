"""Start of a run: wait for the peers, compare their models, and choose the initial weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from gossip.core.events import Halt, Report
from gossip.core.messages import Hello, PeerId
from gossip.core.rounds import quorum_of
from gossip.core.settings import PARDONS_MAX, WAITING_REPORT_S, CoreSettings
from gossip.core.view import MembersView

from .exit_codes import NEVER_STARTED, REFUSED, STATE_LOST


@dataclass(frozen=True, slots=True)
class WaitForPeers:
    """Decision to wait, because the ``missing`` peers have not arrived yet."""

    missing: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class BeginFresh:
    """Decision to begin with the local state, which equals the state of the other peers."""

    present: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class TakeState:
    """Decision to request the state of ``donor``, because the run is ahead or begins with other
    weights."""

    donor: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class RebuildStage:
    """Decision to create a new state of the local stage, because no peer has a state of this stage.
    The other stages of the pipeline are in round ``round_id``."""

    round_id: int


Decision: TypeAlias = WaitForPeers | BeginFresh | TakeState | RebuildStage | Halt
"""``Halt``: this peer cannot begin. Either its model differs from the model of the run, or no
quorum arrived in time, or the run has had rounds but no peer with their state has arrived."""


class Bootstrap:
    """Decision on the start of a run, from the hellos of the peers. Peers with the same hellos
    reach the same decision.

    Args:
        elsewhere: Function that returns the round of the other stages of a pipeline, or None if it
            is unknown.
    """

    def __init__(
        self,
        local: PeerId,
        settings: CoreSettings,
        view: MembersView,
        elsewhere: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.local, self.settings, self.view, self.elsewhere = local, settings, view, elsewhere
        self.needed = max(quorum_of(settings, len(settings.peers)), settings.rounds.min_peers)
        self.hellos: dict[PeerId, Hello] = {}
        self._first = frozenset(settings.peers)
        # all layouts in hellos, and whether any hello has shown that the run has begun
        self._layouts: set[bytes] = set()
        self._begun = False
        self._started_at = self._reported_at = 0.0
        self._prepared_at: float | None = None  # Time at which the local model was ready.
        # Peers that have sent a hello since ``_prepared_at``.
        self._hello_since: set[PeerId] = set()
        self._followed: tuple[PeerId, float] | None = None  # Chosen donor, and time of the choice.
        self._passed: set[PeerId] = set()  # Donors that have not sent a state in time.
        self._pardons: Counter[PeerId] = Counter()
        # Peers that have sent no hello since a poll found no state.
        self._stale: set[PeerId] = set()
        # Whether the trainer has the state of a round, because it has outlived an earlier node
        # process.
        self.holds = False
        self._rounds: dict[PeerId, int] = {}  # Latest round that each peer has announced.
        # Time since which enough peers are present to begin without the missing peers.
        self._enough_at: float | None = None

    def prepare(self, holds: bool) -> None:
        """Record whether the trainer already has the state of a round."""
        self.holds = holds

    def start(self, now: float) -> None:
        """Start the wait for missing peers."""
        self._started_at = self._reported_at = now

    def again(self, now: float) -> list[Report]:
        """Restart the wait, because no peer has sent the chosen weights: the donor may be dead,
        late or Byzantine. From now on, a peer counts as ahead only after a new hello."""
        self.start(now)
        if (
            self._followed is not None
            and now - self._followed[1] > self.settings.rounds.round_timeout_s
        ):
            self._passed.add(self._followed[0])
        self._prepared_at, self._stale = now, set(self.hellos)
        self._hello_since.clear()
        return [Report("no_state_found", {"passed": sorted(self._passed)})]

    def begins_anew(self, peer: PeerId) -> None:
        """If ``peer`` was excluded as a donor because it sent no state, permit its new incarnation
        to be a donor again, at most ``PARDONS_MAX`` times."""
        if peer in self._passed and self._pardons[peer] < PARDONS_MAX:
            self._pardons[peer] += 1
            self._passed.remove(peer)

    @property
    def had_round(self) -> int:
        """Latest round that the run has certainly reached: the maximum of the round that more than
        f peers have announced, the round in the settings, and the round of the other stages."""
        rounds = sorted(self._rounds.values(), reverse=True)
        announced = rounds[self.settings.f] if len(rounds) > self.settings.f else 0
        return max(self.settings.had_round, announced, self.elsewhere() or 0)

    @property
    def may_begin(self) -> bool:
        """Whether the run may begin with the weights of this peer."""
        return self.holds or not self.had_round

    def waited_s(self, now: float) -> float:
        return now - self._started_at

    def record_hello(self, peer: PeerId, hello: Hello, now: float) -> bool:
        """Record the hello of ``peer``. Return whether it is the first hello of ``peer``."""
        new = peer not in self.hellos
        self.hellos[peer] = hello
        self._layouts.add(hello.layout)
        self._begun = self._begun or hello.begun or hello.round_id > 0
        if hello.round_id > 0 and peer != self.local:
            self._rounds[peer] = max(hello.round_id, self._rounds.get(peer, 0))
        self._stale.discard(peer)
        if peer == self.local and self._prepared_at is None:
            self._prepared_at = now
        elif self._prepared_at is not None:
            self._hello_since.add(peer)
        return new

    def unheard(self) -> set[PeerId]:
        """Return the initial peers of the run that have sent no hello yet."""
        return {peer for peer in self.settings.peers if peer not in self.hellos}

    def initial_digest(self, donor: PeerId | None) -> bytes:
        """Return the digest of the initial weights that ``donor`` has announced, or b""."""
        return b"" if donor is None or donor not in self.hellos else self.hellos[donor].state

    def missed_by(self, donor: PeerId) -> set[PeerId]:
        """Return the peers that are missing at the start of a run with the state of ``donor``.
        Return an empty set if the run has already begun."""
        return self.unheard() if self.hellos[donor].round_id == 0 else set()

    def report_waiting(self, missing: tuple[PeerId, ...], now: float) -> list[Report]:
        """Report the missing peers, every ``WAITING_REPORT_S``."""
        if now - self._reported_at < WAITING_REPORT_S:
            return []
        self._reported_at = now
        return [
            Report("waiting", {"missing": list(missing), "waited_s": round(self.waited_s(now), 1)})
        ]

    def only_waits(self, now: float) -> bool:
        """Whether ``decide`` could only wait and no report is due: no peer has begun, and a missing
        peer may still arrive. This check avoids the costly ``decide`` at every hello except the
        last."""
        waited_s, rounds = self.waited_s(now), self.settings.rounds
        if (
            self._begun
            or len(self._layouts) > 1
            or rounds.min_peers
            or waited_s > rounds.start_timeout_s
            or now - self._reported_at >= WAITING_REPORT_S
            or self.local not in self._first
        ):
            return False
        missing = self._first.difference(self.hellos)
        return any(not (self.view.is_gone(peer) or self.view.has_ended(peer)) for peer in missing)

    def decide(self, now: float) -> Decision:
        """Return the decision. After the start timeout, or after ``patience_s`` with ``min_peers``,
        the run begins with the present peers, or this peer halts."""
        expected = self.settings.peers
        others = [peer for peer in expected if peer != self.local]
        # Do not wait for peers that are gone. A peer that ended before it had a link has announced
        # nothing, so the report of the launcher is used as well.
        gone = {peer for peer in others if self.view.is_gone(peer) or self.view.has_ended(peer)}
        self._drop_hellos(gone)
        own = self.hellos.get(self.local)
        # Newcomers do not vote on the model and the initial weights, however many they are.
        voters = {
            peer: hello
            for peer, hello in self.hellos.items()
            if peer in self._first or hello.round_id > 0
        }
        if own is None or not voters:
            return self._wait(tuple(peer for peer in expected if peer not in self.hellos), now)
        unreachable = {peer for peer in others if self.view.skip_reason(peer)}
        layout = _most_common({peer: hello.layout for peer, hello in voters.items()})
        # Peers that have begun with other weights. An absent peer is excluded, because its weights
        # may be lost.
        apart = (
            {peer for peer, hello in voters.items() if hello.begun and hello.state != own.state}
            - gone
            - unreachable
        )
        # Peers that have loaded a checkpoint also count as ahead.
        ahead_of_us = {
            peer for peer, hello in self.hellos.items() if hello.round_id > own.round_id
        } | apart
        ahead_of_us -= self._stale | {self.local}
        # Donors that sent no state are assumed to be Byzantine, as long as there are at most f of
        # them.
        running = sorted(
            ahead_of_us - self._passed
            if len(self._passed & ahead_of_us) <= self.settings.f
            else ahead_of_us
        )
        if own.layout != layout and self._is_credible(
            sum([hello.layout == layout for hello in voters.values()]), now
        ):
            return Halt(
                f"refused by the swarm: the swarm trains a model of layout {layout.hex()}, the "
                f"model of this peer has layout {own.layout.hex()}",
                REFUSED,
            )
        if running and own.layout == layout:
            ahead = max(running, key=lambda peer: self.hellos[peer].round_id)
            return self._follow(ahead, f"the swarm is in round {self.hellos[ahead].round_id}", now)
        if self.local not in self._first:
            # A newcomer waits until the other peers have begun.
            return self._wait(tuple(peer for peer in expected if peer not in self.hellos), now)
        here = (peer for peer in sorted(voters) if peer not in gone and peer not in unreachable)
        present = tuple(peer for peer in here if self.hellos[peer].layout == layout)
        here_now = frozenset(present)
        missing = tuple(peer for peer in expected if peer not in here_now)
        time_is_up = (
            self._is_patience_over(present, now)
            or self.waited_s(now) > self.settings.rounds.start_timeout_s
        )
        if any(peer not in gone for peer in missing) and not time_is_up:
            return WaitForPeers(missing)
        lacks = own.round_id == 0 and not any(self.hellos[peer].state for peer in present)
        # A peer with a loaded checkpoint is in the round of the checkpoint, and so are all other
        # stages. ``outlived``: the trainer has outlived its former node process.
        outlived = self.holds and own.round_id == 0
        if (lacks or outlived) and (rebuilds := self._rebuild(present, time_is_up)) is not None:
            return rebuilds
        if lacks:
            held = f"{self._no_state()} came in {self.waited_s(now):.0f} s"
            return Halt(f"state lost: {held}", STATE_LOST) if time_is_up else WaitForPeers(missing)
        if len(present) < self.needed:
            if not time_is_up:
                return WaitForPeers(missing)
            came = (
                f"{len(present)} of {self.needed} needed peers started in "
                f"{self.waited_s(now):.0f} s"
            )
            return Halt(f"{came}; missing: {', '.join(map(str, missing))}", NEVER_STARTED)
        return self._begin(own, present, now)

    def _no_state(self) -> str:
        pipeline = self.settings.pipeline
        stage = None if pipeline is None else pipeline.stage_of(self.local)
        of = "its state" if stage is None else f"the state of stage {stage}"
        return f"the run has been in round {self.had_round}, and no peer with {of}"

    def _rebuild(self, present: tuple[PeerId, ...], time_is_up: bool) -> Decision | None:
        """Return the decision of a stage without a state; None if no peer can create a state now.

        The present peer with the lowest id creates a new state, if the settings allow this, or
        continues with the state of its trainer. The other peers wait for the state of this peer.
        """
        pipeline, round_id = self.settings.pipeline, self.elsewhere()
        if pipeline is None or len(present) < self.needed:
            return None
        # the trainer has run rounds with an earlier node process
        if self.holds and round_id is None:
            return None if time_is_up else WaitForPeers(())
        if not pipeline.rebuilds and not self.holds:
            return (
                None
                if round_id is None
                else Halt(
                    f"state lost: {self._no_state()} is left; a new state is not allowed "
                    "(lost_stage = stop)",
                    STATE_LOST,
                )
            )
        first = min(present)
        if first != self.local:
            return WaitForPeers((first,))
        return None if round_id is None else RebuildStage(round_id)

    def _drop_hellos(self, gone: set[PeerId]) -> None:
        """Drop the round 0 hellos of the peers ``gone``, because their new incarnations may have
        other weights."""
        for peer in gone.intersection(self.hellos):
            if self.hellos[peer].round_id == 0:
                del self.hellos[peer]

    def _begin(self, own: Hello, present: tuple[PeerId, ...], now: float) -> Decision:
        """Return the decision when enough peers are present. The run begins with the most common
        weights of these peers."""
        if own.round_id > 0:
            return BeginFresh(present)
        states = {peer: self.hellos[peer].state for peer in present if self.hellos[peer].state}
        states = {
            peer: state for peer, state in states.items() if peer not in self._passed
        } or states
        state = _most_common(states)
        if own.state != state:
            donor = next(peer for peer in states if states[peer] == state)
            return self._follow(donor, "the swarm begins with other weights than this peer's", now)
        if unsure := self._may_have_begun(present, state, now):
            return WaitForPeers(unsure)
        return BeginFresh(present)

    def _follow(self, donor: PeerId, reason: str, now: float) -> TakeState:
        if self._followed is None or self._followed[0] != donor:
            self._followed = donor, now
        return TakeState(donor, reason)

    def _may_have_begun(
        self, present: tuple[PeerId, ...], state: bytes, now: float
    ) -> tuple[PeerId, ...]:
        """Return the peers that may have begun without the local peer since their last hello. When
        the local model was not ready yet, these peers announced other weights than ``state``. The
        wait for their next hello is short."""
        if self._prepared_at is None or now - self._prepared_at > WAITING_REPORT_S:
            return ()
        return tuple(
            [
                peer
                for peer in present
                if peer not in self._hello_since and self.hellos[peer].state != state
            ]
        )

    def _is_patience_over(self, present: tuple[PeerId, ...], now: float) -> bool:
        """Whether enough peers have been present for ``patience_s``, so that the run begins without
        the missing peers.

        The time is measured from the moment at which enough peers were present, not from the last
        arrival. So all present peers begin at nearly the same time.
        """
        if len(present) < self.needed:
            self._enough_at = None
        elif self._enough_at is None:
            self._enough_at = now
        rounds = self.settings.rounds
        return (
            rounds.min_peers > 0
            and self._enough_at is not None
            and now - self._enough_at > rounds.patience_s
        )

    def _is_credible(self, count: int, now: float) -> bool:
        """Whether the hellos of ``count`` peers with another model are enough for this peer to
        halt. An initial peer of the run needs no minimum, because it votes on the model itself. A
        newcomer halts if there are more than f such peers, or after a wait of
        ``WAITING_REPORT_S``."""
        return (
            self.local in self._first
            or count > self.settings.f
            or self.waited_s(now) > WAITING_REPORT_S
        )

    def _wait(self, missing: tuple[PeerId, ...], now: float) -> Decision:
        """Return the decision to wait, because no peer of the run has sent a hello yet, or because
        this peer is a newcomer and the run has not begun. A newcomer halts after the start
        timeout."""
        waited_s = self.waited_s(now)
        if self.local in self._first or waited_s <= self.settings.rounds.start_timeout_s:
            return WaitForPeers(missing)
        why = f"no peer of the run has admitted this newcomer in {waited_s:.0f} s"
        return Halt(why, NEVER_STARTED)


def _most_common(values: dict[PeerId, bytes]) -> bytes:
    """Return the most common value. If several values are equally common, return the value of the
    peer with the lowest id."""
    counts = Counter(values.values())
    best = max(counts.values())
    return next(values[peer] for peer in sorted(values) if counts[values[peer]] == best)
