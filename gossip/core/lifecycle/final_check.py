"""Check of the last result of a training. In all other rounds, the hash chain in the messages of
the next round reveals a wrong result, but no round follows the last round.

So after the trainer has applied the last round, the peer requests the head of the hash chain from
every other peer. The trainer waits for the result of this check before it continues with its
parameters. The request is a ``Hello`` with ``asks``, and peers in the same round reply. If more
than f peers have another head, and this head has more peers than the local head, this peer adopts
the state of one of them. If two heads have the same number of peers, the lower head wins, so that
both sides end with the same result. If minorities may continue, ``fork_choice.py`` decides instead.
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
    """Comparison of the last result with the last results of the other peers.

    While the trainer waits for the comparison, ``round_id`` is the round after the last round.
    Otherwise it is None.
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
        # latest round and head of the hash chain that each peer has announced
        self._heads: dict[PeerId, tuple[int, bytes]] = {}
        self._last = -1  # the last round that was checked
        self._since = self._again_at = 0.0
        self._taking_since: float | None = None  # Start of the wait for the state of another peer.
        # Head that this peer has left for another head. A peer changes its head only once, because
        # otherwise Byzantine peers could make it alternate between heads.
        self._left: bytes | None = None
        self._changes = False

    def ask(self, round_id: int, phase: str, now: float) -> list[Effect]:
        """Begin the check. The local trainer has applied all rounds before ``round_id``; ``phase``
        is the phase of the local peer."""
        if self.lag is None or phase not in ("running", "recovering"):
            return [StateConfirmed(round_id, self.lag is None)]
        if self.round_id == round_id:
            return []
        # A repeated request by the trainer does not extend the timeout.
        if round_id != self._last:
            self._last, self._since, self._left = round_id, now, None
        self.round_id = round_id
        self.hello_exchange.ask(True)
        return self._request_heads(now)

    def on_hello(self, peer: PeerId, incarnation: int, hello: Hello, now: float) -> list[Effect]:
        """Record the round and branch of a hello. Reply if the hello requests it and its sender is
        in the same round. If the local peer is in its own final check, it sends hellos
        periodically, so it need not reply."""
        if self.lag is None or not hello.chain:
            return []
        self._heads[peer] = hello.round_id, hello.chain
        answers = hello.asks and self.round_id is None and hello.round_id == self.progress.round_id
        return self.hello_exchange.answer(peer, incarnation, now) if answers else []

    def differs(self, peer: PeerId) -> bool:
        """Whether ``peer`` is in the present round with another head of the hash chain."""
        if self.lag is None:
            return False
        at, chain = self._heads.get(peer, (-1, b""))
        return at == self.progress.round_id and chain != self.lag.lineage.head

    def rejects(self, message: Message) -> bool:
        """Whether to reject ``message``, because it is a commit of the round after the last round.
        The local peer has no update to compare with such a commit, so it accepts the commit only if
        more than f peers are in a later round."""
        if self.lag is None or self.round_id is None or not isinstance(message, Commit):
            return False
        return message.round_id == self.round_id and not self.lag.is_passed(message.round_id)

    def allows_recovery(self) -> bool:
        """Whether this peer may adopt another state. During the check, it may do so only if the
        check has decided this, or if minorities may continue."""
        weighed, self._changes = self._changes, False
        return (
            weighed
            or self.round_id is None
            or (self.lag is not None and self.lag.fork_choice.may_differ)
        )

    def check_result(self, takes_part: bool, now: float) -> list[Effect]:
        """Confirm the result, adopt another result, or wait. The peer calls this after each event
        while ``round_id`` is not None.

        Args:
            takes_part: Whether this peer takes part in the rounds. It does not during recovery.
        """
        lag, asked, here = self.lag, self.round_id, self.progress.round_id
        assert lag is not None
        assert asked is not None
        if not takes_part or lag.lost_track is not None:
            return self._await_state(now)
        self._taking_since = None
        if here != asked:  # more than f peers are in a round after the last round
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
        # A donor that is about to adopt a state itself sends no state. So the change is tried again
        # until the timeout.
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
        """Return the longest wait for replies, in seconds. If links are slow, the other peers may
        receive the last result later. If heads ``differ``, one side also needs time to adopt a
        state."""
        usual_s = lag.deadline.typical_round_s() if lag.transfer_tracker.takes_time else None
        taken_over_s = lag.deadline.cap_s if differ else 0.0
        return lag.settings.rounds.drain_timeout_s + USUAL_FACTOR * (usual_s or 0.0) + taken_over_s

    def _await_state(self, now: float) -> list[Effect]:
        """Wait for the state of another peer, at most as long as the donors stay."""
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
        """End the check, so that the trainer no longer waits for the result."""
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
            donors[0],
            f"{theirs} peers have another result of the last round, {ours} have this result",
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
        """Decide after the timeout, from the replies that have arrived."""
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
