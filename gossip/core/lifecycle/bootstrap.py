"""Before the first round: who is here, do we train the same model,
and whose weights do we begin with?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from gossip.core.events import Halt, Report
from gossip.core.messages import Hello, PeerId
from gossip.core.rounds import quorum_of
from gossip.core.settings import CoreSettings
from gossip.core.view import View

from .exit_codes import NEVER_STARTED, REFUSED, STATE_LOST

HELLO_INTERVAL_S = 0.25
WAITING_REPORT_S = 5.0
PARDONS_MAX = 3
"""Most new incarnations in which the run waits again for a peer that sent no weights. A Byzantine
peer can start any number of incarnations."""


@dataclass(frozen=True, slots=True)
class WaitForPeers:
    """Not everybody is here yet."""

    missing: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class BeginFresh:
    """We hold what the swarm begins with."""

    present: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class TakeState:
    """The swarm is ahead, or begins with other weights than ours: take the state of ``donor``."""

    donor: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class RebuildStage:
    """The other stages of the pipeline are in round ``round_id``, and nobody has the state of ours:
    this peer makes one."""

    round_id: int


@dataclass(frozen=True, slots=True)
class HaltStateLost:
    """The run has had rounds, and nobody came who has their state."""

    reason: str


@dataclass(frozen=True, slots=True)
class HaltModelDiffers:
    """We train another model than the swarm."""

    reason: str


@dataclass(frozen=True, slots=True)
class HaltTooFewPeers:
    """No quorum came in time."""

    reason: str


Decision: TypeAlias = (
    WaitForPeers
    | BeginFresh
    | TakeState
    | RebuildStage
    | HaltStateLost
    | HaltModelDiffers
    | HaltTooFewPeers
)


def end_of(decision: HaltModelDiffers | HaltTooFewPeers | HaltStateLost) -> Halt:
    """How a peer ends that cannot begin."""
    match decision:
        case HaltModelDiffers(reason):
            return Halt(f"refused by the swarm: {reason}", REFUSED)
        case HaltTooFewPeers(reason):
            return Halt(reason, NEVER_STARTED)
        case HaltStateLost(reason):
            return Halt(f"state lost: {reason}", STATE_LOST)


class Bootstrap:
    """Collects the ``Hello`` of each peer and says what to do.
    Every peer that has heard the same decides alike."""

    def __init__(
        self,
        local: PeerId,
        settings: CoreSettings,
        view: View,
        elsewhere: Callable[[], int | None] = lambda: None,
    ) -> None:
        """``elsewhere``: the round that the other stages of a pipeline are in, where that is
        known."""
        self.local, self.settings, self.view, self.elsewhere = local, settings, view, elsewhere
        self.needed = max(quorum_of(settings, len(settings.peers)), settings.rounds.min_peers)
        self.hellos: dict[PeerId, Hello] = {}
        self._first = frozenset(settings.peers)
        # models that hellos speak of; whether any is of a run that has begun
        self._layouts: set[bytes] = set()
        self._begun = False
        self._started_at = self._reported_at = 0.0
        self._prepared_at: float | None = None  # since when we have a model ourselves
        self._heard_since: set[PeerId] = set()
        self._followed: tuple[PeerId, float] | None = None  # whose weights we want, and since when
        self._passed: set[PeerId] = set()  # of those who have not given them in time
        self._pardons: Counter[PeerId] = Counter()
        self._stale: set[PeerId] = set()  # who has said nothing since nobody had what it spoke of
        # our trainer has the state of a round, of which an earlier node of ours knew
        self.holds = False
        self._said: dict[PeerId, int] = {}  # the furthest round that each has said it is in
        # since when so many are here that they may begin without the others
        self._enough_at: float | None = None

    def prepare(self, holds: bool) -> None:
        """``holds``: the trainer has the state of a round already."""
        self.holds = holds

    def start(self, now: float) -> None:
        """The patience with those who are missing begins."""
        self._started_at = self._reported_at = now

    def again(self, now: float) -> list[Report]:
        """Nobody had the weights that we were to begin with: of whom they are may be dead, or late,
        or lie, in the end. Nobody is taken for being ahead of us who does not say so now."""
        self.start(now)
        if (
            self._followed is not None
            and now - self._followed[1] > self.settings.rounds.round_timeout_s
        ):
            self._passed.add(self._followed[0])
        self._prepared_at, self._stale = now, set(self.hellos)
        self._heard_since.clear()
        return [Report("no_state_found", {"passed": sorted(self._passed)})]

    def begins_anew(self, peer: PeerId) -> None:
        """It speaks in another life, and may give what it did not give in the last;
        but not life after life."""
        if peer in self._passed and self._pardons[peer] < PARDONS_MAX:
            self._pardons[peer] += 1
            self._passed.remove(peer)

    @property
    def had_round(self) -> int:
        """The furthest that the run is known to have been in: who begins it anew throws that away.
        More than f have said so, or whoever has started us knows."""
        said = sorted(self._said.values(), reverse=True)
        heard = said[self.settings.f] if len(said) > self.settings.f else 0
        return max(self.settings.had_round, heard, self.elsewhere() or 0)

    @property
    def may_begin(self) -> bool:
        """Whether the run may begin with our weights: not one stage of it alone, while the others
        go on."""
        anew = self.settings.begin_anew and not self.elsewhere()
        return self.holds or anew or not self.had_round

    def begun_anew(self) -> list[Report]:
        """Return what to report when the run begins now and throws away what somebody has had."""
        return (
            [Report("begun_anew", {"lost": self.had_round})]
            if self.had_round and not self.holds
            else []
        )

    def waited_s(self, now: float) -> float:
        return now - self._started_at

    def record_hello(self, peer: PeerId, hello: Hello, now: float) -> bool:
        """Whether that is the first that we hear of it."""
        new = peer not in self.hellos
        self.hellos[peer] = hello
        self._layouts.add(hello.layout)
        self._begun = self._begun or hello.begun or hello.round_id > 0
        if hello.round_id > 0 and peer != self.local:
            self._said[peer] = max(hello.round_id, self._said.get(peer, 0))
        self._stale.discard(peer)
        if peer == self.local and self._prepared_at is None:
            self._prepared_at = now
        elif self._prepared_at is not None:
            self._heard_since.add(peer)
        return new

    def unheard(self) -> set[PeerId]:
        """Return the first peers of the run that have not said anything yet."""
        return {peer for peer in self.settings.peers if peer not in self.hellos}

    def initial_digest(self, donor: PeerId | None) -> bytes:
        """The weights that it has said it begins with."""
        return b"" if donor is None or donor not in self.hellos else self.hellos[donor].state

    def missed_by(self, donor: PeerId) -> set[PeerId]:
        """Return the peers that have not come to the start of a run that begins with another's
        state; nobody if it goes on already."""
        return self.unheard() if self.hellos[donor].round_id == 0 else set()

    def report_waiting(self, missing: tuple[PeerId, ...], now: float) -> list[Report]:
        """Says whom we wait for, every few seconds."""
        if now - self._reported_at < WAITING_REPORT_S:
            return []
        self._reported_at = now
        return [
            Report("waiting", {"missing": list(missing), "waited_s": round(self.waited_s(now), 1)})
        ]

    def only_waits(self, now: float) -> bool:
        """Whether ``decide`` can only wait, and nothing is to be said of that: nobody has begun,
        and somebody who may come is missing. That is what all hellos but the last find, and
        ``decide`` looks at everybody each time."""
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
        """Return what to do now. After the start timeout, or the patience of ``min_peers``: begin
        with those here, or not at all."""
        expected = self.settings.peers
        others = [peer for peer in expected if peer != self.local]
        # Nobody waits for them. Who was sent away before it had a link has said goodbye to nobody.
        gone = {peer for peer in others if self.view.is_gone(peer) or self.view.has_ended(peer)}
        self._forget_weights(gone)
        own = self.hellos.get(self.local)
        # A newcomer has no say in what the run begins with, however many come: neither in its
        # weights nor in its model.
        voices = {
            peer: hello
            for peer, hello in self.hellos.items()
            if peer in self._first or hello.round_id > 0
        }
        if own is None or not voices:
            return self._wait(tuple(peer for peer in expected if peer not in self.hellos), now)
        # though they may have said hello
        unreachable = {peer for peer in others if self.view.skip_reason(peer)}
        layout = _most_common({peer: hello.layout for peer, hello in voices.items()})
        # Who is in its first round with other weights than ours; of who is away they may be lost.
        apart = (
            {peer for peer, hello in voices.items() if hello.begun and hello.state != own.state}
            - gone
            - unreachable
        )
        # With a checkpoint loaded we are in a later round than the first, too.
        ahead_of_us = {
            peer for peer, hello in self.hellos.items() if hello.round_id > own.round_id
        } | apart
        ahead_of_us -= self._stale | {self.local}
        # Those that were followed in vain are taken for liars, as long as there may be so many.
        running = sorted(
            ahead_of_us - self._passed
            if len(self._passed & ahead_of_us) <= self.settings.f
            else ahead_of_us
        )
        if own.layout != layout and self._believes(
            sum([hello.layout == layout for hello in voices.values()]), now
        ):
            return HaltModelDiffers(
                f"the swarm trains a model of layout {layout.hex()}, this peer one of layout "
                f"{own.layout.hex()}"
            )
        if running and own.layout == layout:
            ahead = max(running, key=lambda peer: self.hellos[peer].round_id)
            return self._follow(ahead, f"the swarm is in round {self.hellos[ahead].round_id}", now)
        if self.local not in self._first:
            # until the others have begun
            return self._wait(tuple(peer for peer in expected if peer not in self.hellos), now)
        here = (peer for peer in sorted(voices) if peer not in gone and peer not in unreachable)
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
        # Who has loaded a checkpoint is in the round of that, with all other stages.
        outlived = self.holds and own.round_id == 0  # a node that its trainer has outlived
        if (lacks or outlived) and (rebuilds := self._rebuild(present, time_is_up)) is not None:
            return rebuilds
        if lacks:
            held = f"{self._none_has_it()} came in {self.waited_s(now):.0f} s"
            return HaltStateLost(held) if time_is_up else WaitForPeers(missing)
        if len(present) < self.needed:
            if not time_is_up:
                return WaitForPeers(missing)
            came = (
                f"{len(present)} of {self.needed} needed peers came in {self.waited_s(now):.0f} s"
            )
            return HaltTooFewPeers(f"{came}; missing: {', '.join(map(str, missing))}")
        return self._begin(own, present, now)

    def _none_has_it(self) -> str:
        pipeline = self.settings.pipeline
        stage = None if pipeline is None else pipeline.stage_of(self.local)
        of = "its state" if stage is None else f"the state of stage {stage}"
        return f"the run has been in round {self.had_round}, and nobody who has {of}"

    def _rebuild(self, present: tuple[PeerId, ...], time_is_up: bool) -> Decision | None:
        """One of a stage's peers makes its state anew, if that is wanted, or goes on with what its
        trainer has: the others wait for it. None: nobody can now."""
        pipeline, round_id = self.settings.pipeline, self.elsewhere()
        if pipeline is None or len(present) < self.needed:
            return None
        if self.holds and round_id is None:  # a node beside a trainer that has had rounds
            return None if time_is_up else WaitForPeers(())
        if not pipeline.rebuilds and not self.holds:
            return (
                None
                if round_id is None
                else HaltStateLost(
                    f"{self._none_has_it()} is left; it is not to be made anew (lost_stage = stop)"
                )
            )
        first = min(present)
        if first != self.local:
            return WaitForPeers((first,))
        return None if round_id is None else RebuildStage(round_id)

    def _forget_weights(self, gone: set[PeerId]) -> None:
        """Forget the weights of a peer that comes in another life: it may have others."""
        for peer in gone.intersection(self.hellos):
            if self.hellos[peer].round_id == 0:
                del self.hellos[peer]

    def _begin(self, own: Hello, present: tuple[PeerId, ...], now: float) -> Decision:
        """Enough are here. They begin with the weights that most of them have."""
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
        """Return the peers that may have begun since they were heard last, without us: they had
        other weights than we would begin with, before we had any. A peer that is silent is not
        waited for for long."""
        if self._prepared_at is None or now - self._prepared_at > WAITING_REPORT_S:
            return ()
        return tuple(
            [
                peer
                for peer in present
                if peer not in self._heard_since and self.hellos[peer].state != state
            ]
        )

    def _is_patience_over(self, present: tuple[PeerId, ...], now: float) -> bool:
        """Whether enough have been here for so long that the others are not waited for.

        It counts from when they were enough, not from who came last: so all of them begin in nearly
        the same moment.
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

    def _believes(self, sayers: int, now: float) -> bool:
        """Whether what so many say sends this peer away. Its own word weighs against theirs; a
        newcomer's does not."""
        return (
            self.local in self._first
            or sayers > self.settings.f
            or self.waited_s(now) > WAITING_REPORT_S
        )

    def _wait(self, missing: tuple[PeerId, ...], now: float) -> Decision:
        """Wait as long as nobody of the run has said anything, or as a newcomer to one that has not
        begun."""
        waited_s = self.waited_s(now)
        if self.local in self._first or waited_s <= self.settings.rounds.start_timeout_s:
            return WaitForPeers(missing)
        return HaltTooFewPeers(f"nobody of the run has let this newcomer in for {waited_s:.0f} s")


def _most_common(values: dict[PeerId, bytes]) -> bytes:
    """Return the value that most peers have; of several, that of the lowest peer."""
    counts = Counter(values.values())
    best = max(counts.values())
    return next(values[peer] for peer in sorted(values) if counts[values[peer]] == best)
