"""Participation of a peer in the attempts of the present round: send updates, serve attempts, and
leave a failed server. ``commits.py`` handles the commits of the shards."""

from __future__ import annotations

from gossip.core.events import Contributed, Effect, Payload, Received, Send
from gossip.core.ledger import ReplicatedState, reissue, since_us
from gossip.core.messages import NotServing, PeerId, Update, UpdateRequest
from gossip.core.settings import AFTER_PAUSE_S, LOADED_ROUNDS, SMALL_BYTES

from .attempt_locks import AttemptLocks
from .cross_shard import CrossShardRound
from .lag import LagDetector
from .later_turns import LaterTurns
from .roster import Attendance
from .server import Server
from .shard import RoundTimer, ShardRound, attempt_report
from .validation import ResultValidator


class Participant:
    """Participation of the local peer in the attempts of the present round."""

    def __init__(
        self,
        server: Server,
        lag_detector: LagDetector,
        attendance: Attendance,
        replicated: ReplicatedState,
    ) -> None:
        self.local, self.settings, self.timers = server.local, server.settings, server.timers
        self.server, self.present, self.patience = server, server.present, server.patience
        self.lag_detector, self.skip_reason = lag_detector, attendance.skip_reason
        self.view, self.future_buffer = attendance.view, attendance.future_buffer
        self.replicated = replicated
        self.later_turns = LaterTurns(self.settings.f, self.patience)
        self.cross_shard = CrossShardRound(
            self.local, self.settings, server, self.timers, self.advance
        )
        self.result_validator = ResultValidator(
            replicated, lag_detector, server, self.view, self.advance
        )
        # time from the start of the round, or from its first local step, to the local update
        self._computed_us = 0
        self._answered_round = -1  # Last round for which this peer has computed an update.
        self._serves_from = float("-inf")  # Time from which this peer serves again after a pause.
        self.attempt_locks = AttemptLocks()

    def begin(self, now: float) -> list[Effect]:
        """Begin the present round, or return to it. Restore the locks of this peer, and begin each
        shard with the first attempt that has a usable server."""
        present, is_active = self.present, self.present.mode == "active"
        firsts = self.attempt_locks.recall(present.round_id, present.parent, present.shards)
        self.cross_shard.begin(present.shards)
        effects: list[Effect] = []
        for shard, first in zip(present.shards, firsts, strict=True) if is_active else ():
            claims = shard.claims
            claims.came_at = now
            shard.attempt = self._next_attempt(shard, first, now)
            if shard.attempt > first:
                skipped = shard.server_of(first)
                reason = "it was paused" if skipped == self.local else self.skip_reason(skipped)
                effects.append(
                    attempt_report(present.round_id, shard, f"{skipped} is skipped: {reason}")
                )
            effects += self.server.pulse(shard, now)
        return effects

    def stop(self) -> list[Effect]:
        """Leave the present round, and store the locks of this peer in case it returns."""
        present = self.present
        self.attempt_locks.keep(present.round_id, present.parent, present.shards)
        return [
            effect
            for shard in present.shards
            for token in shard.tokens()
            for effect in self.timers.cancel(token)
        ]

    def contribute(self, event: Contributed, now: float) -> list[Effect]:
        """Send the update of the local trainer for the present round to the servers."""
        present = self.present
        began = now - event.lasted_us / 1e6 if event.lasted_us else present.began_at
        present.own, self._answered_round = event, event.round_id
        self._computed_us = 0 if event.compiled else since_us(began, now, event.steps)
        self.patience.transfer_tracker.contributed(now - present.began_at)
        effects: list[Effect] = []
        for shard in present.shards if present.mode == "active" else ():
            # If this peer could not serve after a pause, the present server may be a skipped peer.
            skipped = (
                self.skip_reason(shard.server_of(shard.attempt))
                if shard.commit is None and self.may_serve(now)
                else ""
            )
            effects += (
                self.advance(shard, f"its server is skipped: {skipped}", now)
                if skipped
                else self.send_update(shard, now)
            )
        return effects

    def has_answered(self) -> bool:
        """Whether other peers may have an update of this peer for the present round."""
        return (
            self.present.mode == "active"
            and self._answered_round == self.present.round_id
            and len(self.present.roster) > 1
        )

    def must_stay(self) -> bool:
        """Whether reachable peers may rely on the update of this peer in the present round.
        Reachable peers on another branch count as well."""
        has_sent = self.present.mode == "active" and self._answered_round == self.present.round_id
        return has_sent and any(
            peer != self.local and not self.skip_reason(peer) for peer in self.present.roster
        )

    def on_view_change(self, now: float) -> list[Effect]:
        """Leave the attempts of skipped servers, and end the wait for skipped participants."""
        effects: list[Effect] = []
        for shard in self._open_shards():
            server = shard.server_of(shard.attempt)
            if server != self.local and (reason := self.skip_reason(server)):
                effects += self.advance(shard, f"{server} is skipped: {reason}", now)
            elif server == self.local and not self.may_serve(now):
                effects += self.advance(shard, f"{server} was paused", now)
            else:
                effects += self.server.request_from_newcomers(shard) if server == self.local else []
                effects += self.server.maybe_close(shard, now)
        return effects

    def on_pause(self, paused_s: float, now: float) -> list[Effect]:
        """Move every shard that this peer serves to its next attempt, and serve no shard for
        ``AFTER_PAUSE_S``. The other peers may have moved on during the pause."""
        if len(self.present.roster) == 1:
            return []
        self._serves_from = now + AFTER_PAUSE_S
        effects: list[Effect] = []
        for shard in self._open_shards():
            if shard.server_of(shard.attempt) == self.local:
                effects += self.advance(shard, f"{self.local} was paused for {paused_s:.1f} s", now)
        return effects

    def _open_shards(self) -> list[ShardRound]:
        """Return the shards without a commit, if this peer takes part in the round."""
        return self.present.lacking() if self.present.mode == "active" else []

    def on_shard_timer(self, timer: RoundTimer, shard: ShardRound, now: float) -> list[Effect]:
        served = shard.served
        match timer.what:
            case "give_up":
                shard.give_up = None
                if timer.attempt != shard.attempt:
                    return []
                if more := self.patience.more_time(shard, now):
                    return more
                shard.timeouts += 1
                return self.result_validator.on_server_timeout(shard, now)
            case "grace":
                served.grace = None
                return (
                    self.server.maybe_close(shard, now) if timer.attempt == served.attempt else []
                )
            case "request":
                return self.server.request_missing(shard, timer.attempt)
            case "pulse":
                return self.server.pulse(shard, now)
            case "measurements_overdue":
                return self.cross_shard.lacks(shard, now)
            case "serve_postponed":
                return self._serve_postponed(shard, now)

    def on_update(
        self, sender: PeerId, shard: ShardRound, update: Update, payload: Payload | None, now: float
    ) -> list[Effect]:
        if sender not in self.present.roster:
            return []
        if self.lag_detector.record_branch(sender, update.parent, now):
            return [Send(sender, self.lag_detector.not_serving(update))]
        if shard.commit is not None:
            self.patience.lateness.record_late_update(sender, update, now)
            # This server has already sent its large commit to all peers. A peer that has lost the
            # commit requests it again.
            sent_before = shard.made_here and update.attempt <= shard.commit.attempt
            if sent_before and shard.payload is not None and shard.payload.nbytes > SMALL_BYTES:
                return []
            return [reissue(sender, shard.commit, shard.payload, update.attempt)]
        is_server = self.may_serve(now) and shard.server_of(update.attempt) == self.local
        if not is_server or update.attempt < shard.attempt:
            if sender == self.local:
                return []
            return [
                *self._postpone_serving(shard, sender, update.attempt, now),
                Send(sender, self.lag_detector.not_serving(update)),
            ]
        is_later = update.attempt > shard.attempt
        effects = self._move_to(shard, update.attempt, sender, now)
        if effects is None:
            return []
        if update.attempt > shard.served.attempt:
            effects += self.server.serve(shard, update.attempt, now)
            if is_later:
                effects += self.server.pulse(shard, now) + self.send_update(shard, now)
        return effects + self.server.accept_update(shard, sender, update, payload, now)

    def on_update_request(
        self, event: Received, shard: ShardRound, request: UpdateRequest, now: float
    ) -> list[Effect]:
        sender, attempt = event.sender, request.attempt
        if shard.commit is not None:
            return [reissue(sender, shard.commit, shard.payload, attempt)]
        if self.lag_detector.record_branch(sender, request.parent, now):
            # This peer may soon adopt a state of that branch, and then handles the stored request
            # again.
            self.future_buffer.stash(self.present.round_id, request.round_id, event, request.shard)
            return (
                [Send(sender, self.lag_detector.not_serving(request))]
                if self.future_buffer.is_first_request(sender, request)
                else []
            )
        cannot_move = self.present.mode != "active" or self.cross_shard.is_combining(shard)
        if cannot_move or shard.server_of(attempt) != sender or attempt < shard.attempt:
            return []
        withdrawal = self._move_to(shard, attempt, sender, now)
        return [] if withdrawal is None else withdrawal + self.send_update(shard, now)

    def on_not_serving(self, sender: PeerId, notice: NotServing, now: float) -> list[Effect]:
        if (
            self.present.mode != "active"
            or notice.asked_round != self.present.round_id
            or notice.shard >= len(self.present.shards)
        ):
            return []
        elsewhere = notice.round_id == self.present.round_id and self.lag_detector.record_branch(
            sender, notice.chain, now
        )
        shard = self.present.shards[notice.shard]
        # the sender takes part in no round
        if notice.attempt == shard.served.attempt and notice.round_id == 0:
            shard.served.in_no_round.add(sender)
        if self._is_withdrawal(shard, notice):
            shard.withdraw_update(sender, notice.attempt)
        refused = (
            shard.commit is None
            and notice.attempt == shard.attempt
            and shard.server_of(shard.attempt) == sender
        )
        if refused:
            shard.declined_attempt = shard.attempt
        # In the first pass through the order, the shard moves to the next attempt at once. In later
        # passes it waits for the timeout. Otherwise the shard would move from server to server at
        # the speed of messages.
        if refused and shard.attempt < len(shard.order):
            return self.advance(
                shard,
                f"{sender} {'is on another branch' if elsewhere else 'does not serve'}",
                now,
            )
        return []

    def _is_withdrawal(self, shard: ShardRound, notice: NotServing) -> bool:
        """Whether ``notice`` withdraws an update: its sender is in this round and on this branch,
        and this peer serves the attempt. With f = 0 updates stay valid, because no claim is
        false."""
        here = (notice.round_id, notice.chain) == (self.present.round_id, self.present.parent)
        to_us = shard.server_of(notice.attempt) == self.local
        return bool(self.settings.f) and here and to_us

    def request_again(self, peer: PeerId) -> list[Effect]:
        """If ``peer`` has replied to a request that it took part in no round, request its update
        again."""
        return [
            effect
            for shard in self.present.shards
            if peer in shard.served.in_no_round and shard.server_of(shard.attempt) == self.local
            for effect in self.server.request_again(shard, peer)
        ]

    def _move_to(
        self, shard: ShardRound, attempt: int, claimant: PeerId, now: float
    ) -> list[Effect] | None:
        """Move to an attempt that ``claimant`` claims to be in. Return None if this peer does not
        follow the claim.

        If this peer leaves its attempt only because of an unexplained claim, the server of that
        attempt is probably alive and would use the local update. So this peer withdraws the update:
        it sends ``NotServing`` to that server (``_is_withdrawal``).
        """
        if attempt == shard.attempt:
            return []
        if not self.later_turns.follow_claim(shard, claimant, attempt, now):
            return None
        server = shard.server_of(shard.attempt)
        asked = UpdateRequest(*self.present.place(shard))
        shard.attempt = attempt
        if shard.claims.led_here is None or self.present.own is None or server == self.local:
            return []
        return [Send(server, self.lag_detector.not_serving(asked))]

    def advance(self, shard: ShardRound, reason: str, now: float) -> list[Effect]:
        """Leave the present attempt, and send the local update to the server of a later attempt. If
        a deferred claim may be followed now, this is the claimed attempt. Otherwise it is the next
        attempt with a server that is not skipped."""
        self.later_turns.leave(shard, now)
        granted = self.later_turns.grant_claim(shard, self.may_serve(now), now)
        following = self._next_attempt(shard, shard.attempt + 1, now)
        shard.attempt = following if granted is None else granted
        effects: list[Effect] = [
            attempt_report(self.present.round_id, shard, reason),
            *self.server.pulse(shard, now),
        ]
        if shard.server_of(shard.attempt) == self.local and (shard.served.attempt < shard.attempt):
            effects += self.server.serve(shard, shard.attempt, now)
        return effects + self.send_update(shard, now)

    def _next_attempt(self, shard: ShardRound, first: int, now: float) -> int:
        """Return the first attempt, from ``first`` on, with a server that is not skipped. If all
        servers are skipped, return ``first``."""
        order = shard.order
        for attempt in range(first, first + len(order)):
            server = order[attempt % len(order)]
            if self.may_serve(now) if server == self.local else not self.skip_reason(server):
                return attempt
        return first

    def may_serve(self, now: float) -> bool:
        """Whether this peer may serve now. A roster of one peer has no other server."""
        return self.present.mode == "active" and (
            now >= self._serves_from or len(self.present.roster) == 1
        )

    def send_update(self, shard: ShardRound, now: float) -> list[Effect]:
        """Send the local update to the server of the shard's present attempt, and start the timeout
        of that server."""
        own = self.present.own
        effects = self.cross_shard.send_measurements() if shard.index == 0 else []
        if own is None or shard.commit is not None:
            return effects
        payload = own.payloads[shard.index] if own.samples else None
        first = shard.index == 0
        update = Update(
            *self.present.place(shard),
            own.samples,
            own.loss,
            own.rates if first else (),
            self._computed_us,
            own.collective if first else b"",
            own.skipped and first,
            own.micro_batches,
            own.pass_us,
            own.replica if first else b"",
            own.kind,
        )
        if self.cross_shard.is_timed(shard):
            effects += self.patience.start_timeout(shard, now, bool(own.collective))
        if (server := shard.server_of(shard.attempt)) == self.local:
            return effects + self.on_update(self.local, shard, update, payload, now)
        effects.append(Send(server, update, payload))
        if payload is not None and self.patience.transfer_tracker.may_be_slow:
            self.note_load(now)
        return effects

    def note_load(self, now: float) -> None:
        """Extend the timeouts for a few rounds. In the next round several large payloads arrive at
        the same time, and delay replies before any report about these payloads can arrive."""
        usual_s = (
            self.patience.deadline.typical_round_s() or self.patience.deadline.round_timeout_s()
        )
        self.view.note_load(now, LOADED_ROUNDS * usual_s)

    def _postpone_serving(
        self, shard: ShardRound, sender: PeerId, attempt: int, now: float
    ) -> list[Effect]:
        """Store an attempt that this peer does not serve yet, only because it was paused. The
        updates of the attempt are requested later. Otherwise a round in which all peers were paused
        would last until the timeout."""
        if (
            self.present.mode != "active"
            or shard.server_of(attempt) != self.local
            or attempt < max(shard.attempt, shard.postponed_attempt + 1)
        ):
            return []
        if attempt > shard.attempt and self.later_turns.defer_claim(shard, sender, attempt, now):
            return []
        shard.postponed_attempt, shard.postponed_from = attempt, sender
        if shard.serve_postponed is not None:
            return []
        timer = self.timers.set(
            self._serves_from,
            RoundTimer("serve_postponed", self.present.round_id, shard.index, attempt),
        )
        shard.serve_postponed = timer.token
        return [timer]

    def _serve_postponed(self, shard: ShardRound, now: float) -> list[Effect]:
        """Serve the attempt that this peer has postponed because it was paused."""
        shard.serve_postponed = None
        attempt, shard.postponed_attempt = shard.postponed_attempt, -1
        if attempt < shard.attempt:
            return []
        if not self.may_serve(now):  # The process was paused again.
            return self._postpone_serving(shard, shard.postponed_from, attempt, now)
        effects = self._move_to(shard, attempt, shard.postponed_from, now)
        if effects is None:
            return []
        if shard.served.attempt < attempt:
            effects += self.server.serve(shard, attempt, now)
            if attempt == 0:  # ``serve`` schedules a request only for later attempts
                effects += self.server.request_missing(shard, attempt)
        return [*effects, *self.server.pulse(shard, now), *self.send_update(shard, now)]
