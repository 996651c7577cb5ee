"""Check of the last result of a training. The hash chain in the messages of the next round shows a
wrong result of an earlier round; the last round has no next one.

After its trainer has applied the last round, a peer therefore requests the head of every peer's
hash chain, before the trainer continues with its parameters (``Hello`` with ``asks``; peers in the
same round reply). If more than f peers hold another head, and more than hold the local one, this
peer adopts the state of one of them. If two heads have equally many peers, the lower one is right,
so both sides reach the same result; where minorities may continue, ``fork_choice.py`` decides.
All waits are limited: for silent peers, for lost peers, and for a state.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from gossip.core.events import Effect, Report, StateConfirmed
from gossip.core.messages import Commit, Hello, Message, PeerId
from gossip.core.rounds import LagDetector, LocalProgress, PeerTimer
from gossip.core.settings import CHECK_INTERVAL_S, REPLY_S, USUAL_FACTOR
from gossip.core.timers import Timers
from gossip.core.view import MembersView

from .hello import HelloExchange


class FinalCheck:
    """Compares the last result with those of the other peers.

    ``round_id`` is the round after the last one while the trainer waits for the comparison, else
    None.
    """

    def __init__(
        self,
        progress: LocalProgress,
        lag_detector: LagDetector | None,
        members: MembersView,
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
        # With f = 0 no result is compared.
        self.lag = lag_detector if lag_detector is not None and lag_detector.settings.f else None
        self.round_id: int | None = None
        # round and head of the hash chain that each peer has announced
        self._heads: dict[PeerId, tuple[int, bytes]] = {}
        self._last = -1  # the last round that was checked
        self._since = self._again_at = 0.0
        self._taking_since: float | None = None  # start of the wait for another state
        # the head that was given up, only once, because otherwise Byzantine peers could make this
        # peer alternate
        self._left: bytes | None = None
        self._changes = False

    def ask(self, round_id: int, phase: str, now: float) -> list[Effect]:
        """Begin the check: the trainer of this peer, which is in ``phase``, has applied all rounds
        before ``round_id``."""
        if self.lag is None or phase not in ("running", "recovering"):
            return [StateConfirmed(round_id, self.lag is None)]
        if self.round_id == round_id:
            return []
        # A repeated request of the trainer does not extend the time.
        if round_id != self._last:
            self._last, self._since, self._left = round_id, now, None
        self.round_id = round_id
        self.hello_exchange.ask(True)
        return self._request_heads(now)

    def on_hello(self, peer: PeerId, incarnation: int, hello: Hello, now: float) -> list[Effect]:
        """Record the round and branch of a hello, and reply if the sender requests it in the same
        round. During its own final check, this peer need not reply, as it sends hellos
        periodically."""
        if self.lag is None or not hello.chain:
            return []
        self._heads[peer] = hello.round_id, hello.chain
        answers = hello.asks and self.round_id is None and hello.round_id == self.progress.round_id
        return self.hello_exchange.answer(peer, incarnation, now) if answers else []

    def differs(self, peer: PeerId) -> bool:
        """Whether ``peer`` has announced another state before the present round."""
        if self.lag is None:
            return False
        at, chain = self._heads.get(peer, (-1, b""))
        return at == self.progress.round_id and chain != self.lag.lineage.head

    def rejects(self, message: Message) -> bool:
        """Whether ``message`` is a commit of a round after the last one. This peer has no update to
        compare it with, so it is accepted only if more than f peers are past that round."""
        if self.lag is None or self.round_id is None or not isinstance(message, Commit):
            return False
        return message.round_id == self.round_id and not self.lag.is_passed(message.round_id)

    def allows_recovery(self) -> bool:
        """Whether this peer may adopt another state. During the check it may do so only by the
        decision of the check, or where minorities may continue, by that of ``fork_choice``."""
        weighed, self._changes = self._changes, False
        return (
            weighed
            or self.round_id is None
            or (self.lag is not None and self.lag.fork_choice.may_differ)
        )

    def check_result(self, takes_part: bool, now: float) -> list[Effect]:
        """Confirm the result, reject it, or wait. Called after each event while ``round_id`` is not
        None.

        Args:
            takes_part: Whether this peer is in the rounds, which it is not while it recovers.
        """
        lag, asked, here = self.lag, self.round_id, self.progress.round_id
        assert lag is not None
        assert asked is not None
        if not takes_part or lag.lost_track is not None:
            return self._await_state(now)
        self._taking_since = None
        if here != asked:  # more than f peers are past it
            over = now >= self._since + self._patience_s(lag, False)
            return self._confirm(here > asked) if over or here > asked else []
        missing = [
            peer
            for peer in self.progress.roster
            if not self._has_reported(peer) and not self.members.skip_reason(peer)
        ]
        heads = Counter([chain for at, chain in self._heads.values() if at == asked])
        own, f = lag.lineage.head, lag.settings.f
        ours = 1 + heads.pop(own, 0)
        others, waited = sum(heads.values()), now >= self._since + REPLY_S
        over = now >= self._since + self._patience_s(lag, others > 0)
        chain, theirs = min(heads.items(), key=lambda head: (-head[1], head[0]), default=(b"", 0))
        # A donor that is about to adopt a state itself sends none. So the change is tried again
        # while there is time.
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
            return self._decide_at_deadline(ours, dict(heads), missing)
        return self._request_heads(now) if now >= self._again_at else []

    def _patience_s(self, lag: LagDetector, differ: bool) -> float:
        """Return the longest wait for replies, in seconds. On slow links other peers get the last
        result later. If some peers ``differ``, one side also needs time to adopt a state."""
        usual_s = lag.deadline.typical_round_s() if lag.transfer_tracker.takes_time else None
        taken_over_s = lag.deadline.cap_s if differ else 0.0
        return lag.settings.rounds.drain_timeout_s + USUAL_FACTOR * (usual_s or 0.0) + taken_over_s

    def _await_state(self, now: float) -> list[Effect]:
        """Wait for another state, no longer than its donors stay."""
        assert self.lag is not None
        self._taking_since = now if self._taking_since is None else self._taking_since
        settings = self.lag.settings.rounds
        if now < self._taking_since + settings.drain_timeout_s + settings.linger_s:
            return []
        heads = Counter(
            [
                chain
                for at, chain in self._heads.values()
                if at == self.round_id and chain != self.lag.lineage.head
            ]
        )
        return self._decide_at_deadline(
            0, dict(heads), [peer for peer in self.progress.roster if not self._has_reported(peer)]
        )

    def _request_heads(self, now: float) -> list[Effect]:
        self._again_at = now + CHECK_INTERVAL_S
        return [
            *self.hello_exchange.to_all(),
            self.timers.set(self._again_at, PeerTimer("confirm")),
        ]

    def stop(self) -> None:
        """End the check: the trainer no longer waits."""
        self.round_id = None
        self.hello_exchange.ask(False)

    def _has_reported(self, peer: PeerId) -> bool:
        return peer == self.local or self._heads.get(peer, (-1, b""))[0] == self.round_id

    def _change(self, chain: bytes, theirs: int, ours: int) -> list[Effect]:
        assert self.lag is not None
        self._left, self._changes = self.lag.lineage.head, True
        wanted = (self.round_id, chain)
        donors = sorted(peer for peer, head in self._heads.items() if head == wanted)
        self.lag.fork_choice.choose(donors)
        self.lag.lose_track(
            donors[0], f"{theirs} peers hold another result of the last round, {ours} this one"
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
        """Decide by the replies so far, after the timeout."""
        assert self.lag is not None
        agreed = ours > self.lag.settings.f + sum(others.values())
        fields = {
            "round": self.round_id,
            "same": ours,
            "other": sum(others.values()),
            "silent": missing,
        }
        report = [] if agreed else [Report("unconfirmed_result", fields)]
        return [*report, *self._confirm(agreed)]
