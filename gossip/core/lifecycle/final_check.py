"""The last round of a training: a lie in any other is found out by the hashes that travel
with the next one.

A peer whose trainer has had all its rounds therefore asks everybody for their H before the trainer
goes on with its parameters (``Hello`` with ``asks``; whoever is in the same round answers). If more
peers hold another H than ours, and more than f of them, we were told something else than they: we
take over the state of one of them, as from any other branch. Of equals the lower hash is right, so
that both come to the same end; where both may have gone on by themselves, ``fork_choice`` says
which. Nobody waits long: neither for those who keep silent nor for those who are lost, nor for a
state longer than those stay who could give it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from gossip.core.events import Effect, Report, StateConfirmed
from gossip.core.membership import MemberTable, StageView
from gossip.core.messages import Commit, Hello, Message, PeerId
from gossip.core.rounds import LagDetector, LocalProgress, PeerTimer
from gossip.core.timers import Timers

from .hello import HelloExchange

ASK_EVERY_S = 0.25
LATER_ROUNDS = 3.0  # usual ones: the result comes late, and a state for who was told another
GRACE_S = 1.0
"""How long those are waited for whose word cannot change anything any more: one of them may need
our state, and not know yet."""


class FinalCheck:
    """``round_id``: before which the trainer holds its last state and waits for others' word;
    None: it does not."""

    def __init__(
        self,
        progress: LocalProgress,
        lag_detector: LagDetector | None,
        members: MemberTable | StageView,
        hello_exchange: HelloExchange,
        timers: Timers[Any],
    ) -> None:
        self.local, self.progress, self.members, self.hello_exchange, self.timers = (
            members.local,
            progress,
            members,
            hello_exchange,
            timers,
        )
        # else there is nothing to confirm
        self.lag = lag_detector if lag_detector is not None and lag_detector.settings.f else None
        self.round_id: int | None = None
        # the round that each is in, and its H of the one before
        self._said: dict[PeerId, tuple[int, bytes]] = {}
        self._last = -1  # the round that was asked about last
        self._since = self._again_at = 0.0
        self._taking_since: float | None = None  # a state that does not come yet
        # the H that was given up for another: once is enough, no liar sends us to and fro
        self._left: bytes | None = None
        self._changes = False

    def ask(self, round_id: int, phase: str, now: float) -> list[Effect]:
        """The trainer of a peer in that ``phase`` has had all its rounds before ``round_id``."""
        # then there are no others to ask
        if self.lag is None or phase not in ("running", "recovering"):
            return [StateConfirmed(round_id, self.lag is None)]
        if self.round_id == round_id:
            return []
        # who asks again has had its time, and is told what is known by then
        if round_id != self._last:
            self._last, self._since, self._left = round_id, now, None
        self.round_id = round_id
        self.hello_exchange.ask(True)
        return self._send_hellos(now)

    def on_hello(self, peer: PeerId, incarnation: int, hello: Hello, now: float) -> list[Effect]:
        """Record the round and branch of a hello, and reply if the sender requests it in the same
        round. During its own final check, this peer need not reply, as it sends hellos
        periodically."""
        if self.lag is None or not hello.chain:
            return []
        self._said[peer] = hello.round_id, hello.chain
        answers = hello.asks and self.round_id is None and hello.round_id == self.progress.round_id
        return self.hello_exchange.answer(peer, incarnation, now) if answers else []

    def differs(self, peer: PeerId) -> bool:
        """Whether it holds another state before our round than we do."""
        if self.lag is None:
            return False
        at, chain = self._said.get(peer, (-1, b""))
        return at == self.progress.round_id and chain != self.lag.lineage.head

    def rejects(self, message: Message) -> bool:
        """Whether this commit is of a round after the last one. Nobody here has an update for it,
        so nothing of ours could tell that it is a lie:
        it takes more than f who say that they are past it."""
        if self.lag is None or self.round_id is None or not isinstance(message, Commit):
            return False
        return message.round_id == self.round_id and not self.lag.is_passed(message.round_id)

    def allows_recovery(self) -> bool:
        """Whether the rounds may be left for another's state. While others' word is waited for only
        where that was weighed here, or where two sides may have gone on,
        which ``fork_choice`` weighs."""
        weighed, self._changes = self._changes, False
        return (
            weighed
            or self.round_id is None
            or (self.lag is not None and self.lag.fork_choice.may_differ)
        )

    def check_result(self, takes_part: bool, now: float) -> list[Effect]:
        """To be called after whatever happens, while ``round_id`` is not None. ``takes_part``: in
        the rounds, which it does not while it takes over a state."""
        lag, asked, here = self.lag, self.round_id, self.progress.round_id
        assert lag is not None
        assert asked is not None
        if not takes_part or lag.lost_track is not None:
            return self._await_state(now)
        self._taking_since = None
        if here != asked:  # more than f are past it
            over = now >= self._since + self._patience_s(lag, False)
            return self._confirm(here > asked) if over or here > asked else []
        missing = [
            peer
            for peer in self.progress.roster
            if not self._has_reported(peer) and not self.members.skip_reason(peer)
        ]
        voices = Counter([chain for at, chain in self._said.values() if at == asked])
        own, f = lag.lineage.head, lag.settings.f
        ours = 1 + voices.pop(own, 0)
        others, waited = sum(voices.values()), now >= self._since + GRACE_S
        over = now >= self._since + self._patience_s(lag, others > 0)
        chain, theirs = min(
            voices.items(), key=lambda voice: (-voice[1], voice[0]), default=(b"", 0)
        )
        # A donor that was about to take over a state itself gives none, so it is tried again, as
        # long as there is time.
        may_change = self._left in (None, None if over else own) and not lag.fork_choice.may_differ
        if theirs > f and (theirs, own) > (ours, chain) and may_change:
            if (
                over
                or not missing
                or theirs > ours + len(missing)
                or (waited and len(missing) <= f)
            ):
                return self._change(chain, theirs, ours)
        elif (
            ours > max(f, len(missing)) + others
            and others <= f
            and (waited or not (missing or others))
        ):
            return self._confirm(True)
        if over or (not missing and max(theirs, ours) <= f):
            return self._decide_at_deadline(ours, dict(voices), missing)
        return self._send_hellos(now) if now >= self._again_at else []

    def _patience_s(self, lag: LagDetector, differ: bool) -> float:
        """How long others' word is waited for. Where results take long to arrive, some have the
        last one later than we do; and where some hold another one, they need time to take over
        ours, or we theirs."""
        usual_s = lag.deadline.typical_round_s() if lag.transfer_tracker.takes_time else None
        taken_over_s = lag.deadline.cap_s if differ else 0.0
        return lag.settings.rounds.drain_timeout_s + LATER_ROUNDS * (usual_s or 0.0) + taken_over_s

    def _await_state(self, now: float) -> list[Effect]:
        """It takes over a state, and looks again then.
        Whoever could give it one stays no longer than that."""
        assert self.lag is not None
        self._taking_since = now if self._taking_since is None else self._taking_since
        settings = self.lag.settings.rounds
        if now < self._taking_since + settings.drain_timeout_s + settings.linger_s:
            return []
        voices = Counter(
            [
                chain
                for at, chain in self._said.values()
                if at == self.round_id and chain != self.lag.lineage.head
            ]
        )
        return self._decide_at_deadline(
            0, dict(voices), [peer for peer in self.progress.roster if not self._has_reported(peer)]
        )

    def _send_hellos(self, now: float) -> list[Effect]:
        self._again_at = now + ASK_EVERY_S
        return [
            *self.hello_exchange.to_all(),
            self.timers.set(self._again_at, PeerTimer("confirm")),
        ]

    def stop(self) -> None:
        """The trainer does not wait any more."""
        self.round_id = None
        self.hello_exchange.ask(False)

    def _has_reported(self, peer: PeerId) -> bool:
        return peer == self.local or self._said.get(peer, (-1, b""))[0] == self.round_id

    def _change(self, chain: bytes, theirs: int, ours: int) -> list[Effect]:
        assert self.lag is not None
        self._left, self._changes = self.lag.lineage.head, True
        there = sorted(peer for peer, said in self._said.items() if said == (self.round_id, chain))
        self.lag.fork_choice.choose(there)
        self.lag.lose_track(
            there[0], f"{theirs} peers hold another result of the last round, {ours} ours"
        )
        return []

    def _confirm(self, agreed: bool) -> list[Effect]:
        assert self.round_id is not None
        confirmed = StateConfirmed(self.round_id, agreed)
        self.stop()
        return [confirmed]

    def _decide_at_deadline(
        self, ours: int, others: dict[bytes, int], missing: list[PeerId]
    ) -> list[Effect]:
        """Time is up: what speaks for our result has to do."""
        assert self.lag is not None
        agreed = ours > self.lag.settings.f + sum(others.values())
        told = {
            "round": self.round_id,
            "same": ours,
            "other": sum(others.values()),
            "silent": missing,
        }
        return [*([] if agreed else [Report("unconfirmed_result", told)]), *self._confirm(agreed)]
