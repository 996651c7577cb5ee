"""S11-S13: the content of commits, the state that a joiner restores, and the validation of received
data before use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gossip.core import (
    Aggregate,
    Apply,
    Commit,
    Committed,
    Payload,
    PeerId,
    Ranges,
    Received,
    Report,
    Restore,
    Restored,
    Send,
    SnapshotTaken,
    StartRound,
    StateOffer,
    Update,
    UpdateRequest,
    events,
    is_further,
    outline_of,
    parts_of,
)
from gossip.vectors import described, payload_digest, to_bytes
from gossip_lab.inspection import Inspection, RollingInspection
from gossip_lab.simulation.checkers.base import (
    Checker,
    PerIncarnation,
    after_event,
    around_event,
    on_effect,
    on_event,
    on_report,
)
from gossip_lab.simulation.world import OWN_BYTES, bytes_of_state

_Usable = Update | UpdateRequest | Commit | StateOffer


@dataclass(frozen=True, slots=True)
class _Branch:
    """State of a history after a round: the roster of the next round, the number of steps so far,
    and the used samples. Rounds of collective operations are not steps."""

    roster: tuple[PeerId, ...]
    steps: int = 0
    used: Ranges | None = None  # used, or will never be used; None: not known
    end: int = 0  # end of the assigned samples


class SampleConservation(Checker):
    """S11: the contributors in a commit's header are members of the roster, are named once, and
    have sent the updates that the header describes. Along a history each sample is used exactly
    once per epoch, and every epoch has the planned number of rounds."""

    invariant = "S11"
    # Kind of step -> aggregate that the peer applied last, since it last restored a state.
    _previous = PerIncarnation(dict[int, tuple[Payload, ...]])

    def make_records(self) -> None:
        self._read: dict[tuple[PeerId, int, bytes], Ranges] = {}
        self._branches: dict[bytes, _Branch] = {}
        self._batch = 0

    @on_event
    def record_batch(self, event: events.DataConfigured) -> None:
        self._batch = event.batch

    @on_event
    def forget_previous(self, event: Restored) -> None:
        if not event.error:
            self._previous.clear()

    @on_effect
    def record_samples(self, start: StartRound) -> None:
        rounds = self.core.rolling
        if rounds is not None and start.samples is not None and rounds.round_id == start.round_id:
            self._read[self.peer, start.round_id, rounds.chain] = start.samples.ranges

    @on_effect
    def judge_apply(self, apply: Apply) -> None:
        done = self.commits
        if apply.payloads:
            self._previous[apply.kind] = apply.payloads
        if done and done[0].chain not in self._branches:
            self._branches[done[0].chain] = self._follow(done)

    @on_effect
    def judge_rows(self, ask: Aggregate) -> None:
        peers = [row.peer for row in ask.rows]
        what = f"round {ask.round_id}, shard {ask.shard}"
        self.demand(
            peers == sorted(set(peers)),
            f"{what}: the rows are of peers {peers}, not distinct and ascending",
        )
        own = peers.index(self.peer) if self.peer in peers else None
        if ask.own != own:
            raise self.violated(f"{what}: the own row is {ask.own} and should be {own}")
        if min([row.samples for row in ask.rows], default=1) < 1:
            samples = [(row.peer, row.samples) for row in ask.rows]
            raise self.violated(f"{what}: a row has no samples; (peer, samples): {samples}")
        last = self._previous
        sent = [each for row in ask.rows for each in self.contributions.of(row.peer, ask.round_id)]
        kinds = {each.kind for each in sent} or {*last, 0}
        known = [last[kind][ask.shard] if kind in last and not ask.mix else None for kind in kinds]
        if not any(ask.previous is each for each in known):
            raise self.violated(
                f"{what}: the rule does not receive the aggregate that was applied last"
            )

    def _follow(self, done: list[Committed]) -> _Branch:
        """Judge a round when its first peer applies it, and return the state of the history after
        it."""
        commits = [committed.commit for committed in done]
        settings = self.core.settings
        before = self._branches.get(commits[0].parent)
        roster = before.roster if before is not None else settings.peers
        for commit in commits:
            self._judge_header(commit, roster)
        whole = all(commit.digest and commit.kind == commits[0].kind for commit in commits)
        used_by = _samples_used(commits) if whole else {}
        slices = done[0].slices
        if before is None and commits[0].round_id == 0:
            before = _Branch(roster, 0, ())
        if slices is None or before is None:
            return _Branch(commits[0].roster)
        operation = len(commits[0].collected) > settings.callers_too_few(len(roster))
        is_step = not (operation or is_further(commits[0].kind))
        self._judge_slices(commits[0], slices)
        if before.used is None:
            return _Branch(commits[0].roster)
        self._judge_epoch(done[0], before.steps)
        self._judge_order(done[0], before.used)
        fresh = []
        if is_step:
            fresh = [
                pair
                for contributor, samples in sorted(used_by.items())
                for pair in _first(samples, tuple(slices.get(contributor, ())))
            ]
            fresh += _discarded_samples(commits, slices, before.end)
        merged = _disjoint([*before.used, *fresh])
        assert merged is not None, "none of the assigned samples was used"
        stops = [stop for ranges in slices.values() for _, stop in ranges] if is_step else []
        end = max([before.end, *stops])
        return _Branch(commits[0].roster, before.steps + is_step, merged, end)

    def _judge_header(self, commit: Commit, roster: tuple[PeerId, ...]) -> None:
        names = [c.peer for c in commit.contributors]
        where = f"round {commit.round_id}, shard {commit.shard}"
        if names != sorted(set(names)) or not set(names) <= set(roster):
            raise self.violated(
                f"{where} names {names} as contributors, but its roster is {roster}"
            )
        if names and not commit.digest:
            raise self.violated(f"{where} has contributors {names}, but no aggregate")
        if both := set(names) & {rejection.peer for rejection in commit.rejected}:
            raise self.violated(f"{where} both uses and rejects {sorted(both)}")
        for rejection in commit.rejected:
            if rejection.reason == "skipped":
                sent = self.contributions.of(rejection.peer, commit.round_id)
                text = f"{where} states that peer {rejection.peer} skipped its samples: it did not"
                self.demand(any(each.skipped for each in sent), text)
        for c in commit.contributors:
            offered = [
                (each.samples, each.kind) for each in self.contributions.of(c.peer, commit.round_id)
            ]
            self.demand(
                (c.samples, commit.kind) in offered,
                f"{where}, of kind {commit.kind}, counts {c.samples} samples of peer {c.peer}, "
                f"which sent {offered}",
            )

    def _judge_slices(self, commit: Commit, slices: dict[PeerId, Any]) -> None:
        if _disjoint([pair for ranges in slices.values() for pair in ranges]) is None:
            raise self.violated(f"round {commit.round_id} assigns samples to two peers: {slices}")
        for c in commit.contributors:
            read = self._read.get((c.peer, commit.round_id, commit.parent))
            if read is not None and read != tuple(slices.get(c.peer, ())):
                raise self.violated(
                    f"round {commit.round_id}: peer {c.peer} has read {read}, but the commits "
                    f"count {slices.get(c.peer)}"
                )

    def _judge_epoch(self, done: Committed, steps: int) -> None:
        """Check the epoch number by counting steps independently: failures must not change the
        length of an epoch."""
        planned = self._batch * len(self.core.settings.peers)
        epoch = steps // -(-done.samples_total // planned)
        text = (
            f"round {done.commit.round_id} is one of epoch {done.epoch}, but was planned for epoch "
            f"{epoch}"
        )
        self.demand(done.epoch == epoch, text)

    def _judge_order(self, done: Committed, used: Ranges) -> None:
        """Check that a round assigns the first unused samples, and no samples beyond the end of its
        epoch."""
        assert done.slices is not None
        given = [pair for ranges in done.slices.values() for pair in ranges]
        where = f"round {done.commit.round_id}"
        merged = _disjoint([*used, *given])
        self.judged += 1
        if merged is None:
            raise self.violated(f"{where} assigns used samples again: {given}")
        # Samples that were returned, but do not fit into this round, may remain below the used
        # samples.
        if given and not (merged[0][0] == 0 and merged[0][1] >= max(stop for _, stop in given)):
            raise self.violated(f"{where} omits samples: {merged}")
        end = done.samples_total * (done.epoch + 1)
        if given and merged[0][1] > end:
            raise self.violated(f"{where} assigns {merged}, but its epoch ends at {end}")


def _samples_used(commits: list[Commit]) -> dict[PeerId, int]:
    """Return, for each peer that contributes to all commits, its smallest number of samples in
    them."""
    counts: dict[PeerId, list[int]] = {}
    for commit in commits:
        for c in commit.contributors:
            counts.setdefault(c.peer, []).append(c.samples)
    return {peer: min(samples) for peer, samples in counts.items() if len(samples) == len(commits)}


def _discarded_samples(
    commits: list[Commit], slices: dict[PeerId, Any], end: int
) -> list[tuple[int, int]]:
    """Return the unused samples that will not be assigned again: samples that a script skipped, and
    samples that have twice led to an update that was not finite. Samples below ``end`` were
    assigned before, so this is their second time."""
    reasons = {each.peer: each.reason for commit in commits for each in commit.rejected}
    return [
        (start, min(stop, end) if reasons[peer] != "skipped" else stop)
        for peer, ranges in slices.items()
        if reasons.get(peer) in ("skipped", "non_finite")
        for start, stop in ranges
        if start < end or reasons[peer] == "skipped"
    ]


def _first(samples: int, ranges: Ranges) -> Ranges:
    """Return the part of the ranges with their first ``samples`` positions."""
    positions = [at for start, stop in ranges for at in range(start, stop)][:samples]
    return _disjoint([(at, at + 1) for at in positions]) or ()


def _disjoint(pairs: list[tuple[int, int]]) -> Ranges | None:
    """Return the union of the ranges in ascending order, with adjacent ranges joined. Return None
    if two ranges overlap."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(pairs):
        if joined and start < joined[-1][1]:
            return None
        if joined and start == joined[-1][1]:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)


class RestoredStatesMatchDonors(Checker):
    """S12: a joiner restores a state that a donor has packed before the same round, with a history
    that a peer has. It then offers no update for earlier rounds."""

    invariant = "S12"
    _first = PerIncarnation(int)  # round of the peer's first or restored state

    def make_records(self) -> None:
        self._taken: dict[int, list[bytes]] = {}
        # Round -> hashes of the previous round.
        self._history_hashes: dict[int, set[bytes]] = defaultdict(set)

    @on_event
    def record_state(self, event: SnapshotTaken) -> None:
        self._taken.setdefault(event.round_id, []).append(_state_digest(event.payload))

    @on_effect
    def record_history(self, committed: Committed) -> None:
        self._history_hashes[committed.commit.round_id + 1].add(committed.chain)

    @on_report("ready", "stage_rebuilt")
    def record_beginning(self, report: Report) -> None:
        if (rounds := self.core.rolling) is not None:
            first = report.fields["round"] if report.event == "stage_rebuilt" else 0
            self._first = first
            self._history_hashes[first].add(rounds.chain)

    @on_effect
    def judge_offer(self, send: Send, update: Update) -> None:
        first = self._first
        if update.round_id < first:
            raise self.violated(
                f"offers an update of round {update.round_id}, although its state is of round "
                f"{first}"
            )

    @on_effect
    def judge_state(self, restore: Restore) -> None:
        content = _state_digest(restore.payload)
        stated = parts_of(restore.payload)[0]
        if _state_identifier(restore.payload) != stated:
            raise self.violated(f"restores bytes with the digest {content.hex()} as {stated.hex()}")
        if self.peer not in self.tainted:
            known = content in self._taken.get(restore.round_id, [])
            self.demand(
                known, f"restores a state of round {restore.round_id} that no donor has packed"
            )

    @after_event
    def judge_history(self, event: Restored) -> None:
        rounds = self.core.rolling
        if event.error or self.core.recovery.stage != "idle":
            return
        self._first = event.round_id
        if rounds is not None and self.peer not in self.tainted:
            head = rounds.replicated.lineage.at(event.round_id - 1)
            text = f"restores round {event.round_id} on a history that no peer has: "
            self.demand(
                head in self._history_hashes[event.round_id], f"{text}{(head or b'').hex()}"
            )


def content_digest(payload: Payload) -> bytes:
    """Return the digest of the payload's bytes. The digest that is stored in the payload is not
    used."""
    return payload_digest(to_bytes(np.ascontiguousarray(payload.data)))


def _state_digest(payload: Payload) -> bytes:
    """Return the digest of the parameters in a toy trainer's packed state. The digest that is
    stored in the payload is not used."""
    return payload_digest(bytes_of_state(payload)[:-OWN_BYTES])


def _state_identifier(payload: Payload) -> bytes:
    """Return the identifier of the parameters in the payload: their digest, or the packed manifest
    of their pieces."""
    content, outline = bytes_of_state(payload), outline_of(payload)
    sizes = (len(content) - OWN_BYTES, OWN_BYTES)
    return described(content, sizes, outline.piece_bytes if outline else len(content))[1][0]


class ValidationBeforeUse(Checker):
    """S13: only validated content is applied. A message changes nothing if it comes from an unknown
    peer or a former incarnation, belongs to another lineage, round or branch, or has a payload that
    differs from its header. The input of a rule or a model is finite and has the right size. Only a
    commit may come from a former incarnation, because any peer may forward it."""

    invariant = "S13"

    @around_event
    def judge_refusable(self, event: Received, message: _Usable) -> Iterator[None]:
        core, rounds = self.core, self.core.rolling
        # Two changes of state happen before any event is handled, and are not judged here: a server
        # stores a commit that it has sent, and a peer that was paused stops serving.
        pause_s = self.clock_s - core.handled_at
        if rounds is None or rounds.holds_back or pause_s > core.tolerance_s:
            return
        if not (reason := self._rejection_reason(rounds, event, message)):
            return
        before = _state_of(core, rounds)
        yield
        rounds = core.rolling
        if rounds is None or core.phase == "recovering":
            return
        after = _state_of(core, rounds)
        self.demand(
            before == after,
            f"uses a {type(message).__name__} of peer {event.sender}, which it must not use "
            f"({reason}): {before} -> {after}",
        )

    def _rejection_reason(
        self, rounds: RollingInspection, event: Received, message: _Usable
    ) -> str:
        core = self.core
        member = core.membership.members.get(event.sender)
        if not core.settings.may_be(event.sender):
            return "a stranger"
        # A recorded incarnation that has sent no message may have been invented by an attacker.
        invented = (
            member is not None and self.conditions.invented_incarnations and not member.spoken
        )
        bound = not isinstance(message, Commit) and not invented
        if member is not None and event.incarnation < member.incarnation and bound:
            return f"a former life, {event.incarnation}"
        if isinstance(message, StateOffer):
            taker = core.recovery
            asked = message.nonce == taker.nonce and event.sender in taker.waits_for
            asked = asked and (
                taker.pieces is None or (event.sender, message.piece) in taker.pieces.asked
            )
            return "" if asked else "it was not requested"
        if message.lineage != core.settings.lineage:
            return "another lineage"
        if message.round_id < rounds.round_id:
            return f"an old round, {message.round_id}"
        is_present = message.round_id == rounds.round_id
        if is_present and message.parent != rounds.chain:
            return "another branch"
        if is_present and isinstance(message, Update) and event.sender not in rounds.roster:
            return "not in the roster"
        return ""

    @on_effect
    def judge_rows(self, ask: Aggregate) -> None:
        want = self.core.rounds.shard_bytes[ask.shard]
        for row in ask.rows:
            if not self.core.settings.may_be(row.peer):
                raise self.violated(
                    f"round {ask.round_id}: a row of {row.peer}, which cannot be a peer"
                )
            self._judge_payload(row.payload, want, f"peer {row.peer}'s row in round {ask.round_id}")

    @on_effect
    def judge_apply(self, apply: Apply) -> None:
        commits = [committed.commit for committed in self.commits]
        shard_bytes = self.core.rounds.shard_bytes
        for shard, payload in enumerate(apply.payloads):
            where = f"shard {shard} of round {apply.round_id}"
            self._judge_payload(payload, shard_bytes[shard], where)
            if commits and content_digest(payload) != commits[shard].digest:
                raise self.violated(f"applies to {where} a result other than that of its commit")
        for commit in commits:
            roster, known = set(commit.roster), self.core.settings.everybody
            if list(commit.roster) != sorted(roster) or not roster or not roster.issubset(known):
                raise self.violated(
                    f"round {commit.round_id} names {commit.roster}, which is not a roster"
                )

    def _judge_payload(self, payload: Payload, nbytes: int, what: str) -> None:
        self.demand(payload.nbytes == nbytes, f"{what} has {payload.nbytes} bytes, not {nbytes}")
        if not payload.finite:
            raise self.violated(f"{what} is not finite")


def _state_of(core: Inspection, rounds: RollingInspection) -> tuple[Any, ...]:
    """Return the progress of rounds and recovery, which an unusable message must not change."""
    shards = tuple((shard.commit is None, len(shard.served.answers)) for shard in rounds.shards)
    return rounds.round_id, rounds.chain, core.recovery.stage, len(core.recovery.kept), shards
