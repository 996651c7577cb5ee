"""S11-S13: what goes into a commit, what a joiner takes over,
and that nothing unchecked is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gossip.core import (
    Aggregate,
    Apply,
    Commit,
    Committed,
    Contributed,
    Effect,
    Event,
    Inspection,
    Payload,
    PeerId,
    Ranges,
    Received,
    Report,
    Restore,
    Restored,
    RollingInspection,
    Row,
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
from gossip_lab.simulation.checkers.base import Checker, TaintedStates
from gossip_lab.simulation.world import OWN_BYTES, AnySwarm, bytes_of_state, digest_of

from .rounds import rolling_of


@dataclass(frozen=True, slots=True)
class _Branch:
    """State of a history after a round: the roster of its next round, its number of steps (rounds,
    except collective operations), and the samples used so far (None: not known)."""

    roster: tuple[PeerId, ...]
    steps: int = 0
    used: Ranges | None = None  # or never to be
    end: int = 0  # of all samples that were given out


class Conserved(Checker):
    """S11: a commit averages exactly what its header names: once each, what they sent, who were in
    the roster; and along a history no sample is used twice, none is passed over, and every epoch
    has as many rounds as planned."""

    invariant = "S11"
    events = (Contributed, events.DataConfigured, Restored)
    effects = (Aggregate, Committed, Apply, StartRound)

    def make_records(self) -> None:
        self._rows = self.per_life(dict[tuple[int, int], tuple[Row, ...] | None])
        self._pending = self.per_life(list[Committed])
        # what each has applied last by kinds of steps, since it took over a state
        self._previous: dict[PeerId, dict[int, tuple[Payload, ...]]] = {}
        # samples and kinds of steps
        self._sent: dict[tuple[PeerId, int], list[tuple[int, int]]] = {}
        self._skipped: set[tuple[PeerId, int]] = set()
        self._read: dict[tuple[PeerId, int, bytes], Ranges] = {}
        self._branches: dict[bytes, _Branch] = {}
        self._batch = 0

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        super().on_start(swarm, peer)
        self._previous[peer] = {}

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if isinstance(event, Contributed):
            self._sent.setdefault((peer, event.round_id), []).append((event.samples, event.kind))
            if event.skipped:
                self._skipped.add((peer, event.round_id))
        elif isinstance(event, events.DataConfigured):
            self._batch = event.batch
        elif isinstance(event, Restored) and not event.error:
            self._previous[peer] = {}

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        match effect:
            case Aggregate():
                self._on_aggregate(swarm, peer, effect)
            case StartRound():
                rounds = rolling_of(swarm.inspections.get(peer))
                if (
                    rounds is not None
                    and effect.samples is not None
                    and rounds.round_id == effect.round_id
                ):
                    self._read[peer, effect.round_id, rounds.chain] = effect.samples.ranges
            case Committed():
                self._pending[peer].append(effect)
                if effect.made:
                    self._on_made(swarm, peer, effect.commit)
            case Apply():
                done, self._pending[peer] = self._pending[peer], []
                if effect.payloads:
                    self._previous[peer][effect.kind] = effect.payloads
                if done and done[0].chain not in self._branches:
                    self._branches[done[0].chain] = self._follow(swarm, peer, done)
            case _:
                return

    def _on_aggregate(self, swarm: AnySwarm, peer: PeerId, ask: Aggregate) -> None:
        peers = [row.peer for row in ask.rows]
        what = f"round {ask.round_id}, shard {ask.shard}"
        self.judged += 1
        if peers != sorted(set(peers)):
            text = f"{what}: the rows are of peers {peers}; each once and ascending, or sums differ"
            raise self.violated(swarm, peer, text)
        own = peers.index(peer) if peer in peers else None
        if ask.own != own:
            raise self.violated(
                swarm, peer, f"{what}: the own row is {ask.own} and should be {own}"
            )
        if min([row.samples for row in ask.rows], default=1) < 1:
            raise self.violated(
                swarm,
                peer,
                f"{what}: a row without samples: {[(row.peer, row.samples) for row in ask.rows]}",
            )
        last = self._previous[peer]
        sent = [self._sent.get((row.peer, ask.round_id), ()) for row in ask.rows]
        kinds = {kind for each in sent for _, kind in each} or {*last, 0}
        known = [last[kind][ask.shard] if kind in last and not ask.mix else None for kind in kinds]
        if not any(ask.previous is each for each in known):
            raise self.violated(
                swarm, peer, f"{what}: the rule is not given the aggregate that was applied last"
            )
        rows = self._rows[peer]
        if len(rows) > 64:
            del rows[next(iter(rows))]
        # Who combines tells of what was decided elsewhere: ``DecidesTogether``.
        counted = (
            tuple([row for row in ask.rows if row.peer in ask.peers])
            if ask.step == "decide"
            else ask.rows
        )
        rows[ask.round_id, ask.shard] = counted if ask.step != "combine" else None

    def _on_made(self, swarm: AnySwarm, peer: PeerId, commit: Commit) -> None:
        rows = self._rows[peer].get((commit.round_id, commit.shard), ())
        if rows is None:
            return
        averaged = tuple((row.peer, row.samples) for row in rows) if commit.digest else ()
        named = tuple((c.peer, c.samples) for c in commit.contributors)
        self.judged += 1
        if named != averaged:
            raise self.violated(
                swarm, peer, f"round {commit.round_id} names {named} and averaged {averaged}"
            )

    def _follow(self, swarm: AnySwarm, peer: PeerId, done: list[Committed]) -> _Branch:
        """Judges a round that nobody has applied before, by what its history has come to."""
        commits = [committed.commit for committed in done]
        core, before = swarm.inspections.get(peer), self._branches.get(commits[0].parent)
        assert core is not None, "only a whole peer commits"
        roster = before.roster if before is not None else core.settings.peers
        for commit in commits:
            self._judge_header(swarm, peer, commit, roster)
        whole = all(commit.digest and commit.kind == commits[0].kind for commit in commits)
        used_by = _samples_used(commits) if whole else {}
        slices = done[0].slices
        if before is None and commits[0].round_id == 0:
            before = _Branch(roster, 0, ())
        if slices is None or before is None:
            return _Branch(commits[0].roster)
        operation = len(commits[0].collected) > core.settings.callers_too_few(len(roster))
        is_step = not (operation or is_further(commits[0].kind))
        self._judge_slices(swarm, peer, commits[0], slices)
        if before.used is None:
            return _Branch(commits[0].roster)
        self._judge_epoch(swarm, peer, done[0], before.steps)
        self._judge_order(swarm, peer, done[0], before.used)
        fresh = []
        if is_step:
            fresh = [
                pair
                for contributor, samples in sorted(used_by.items())
                for pair in _first(samples, tuple(slices.get(contributor, ())))
            ]
            fresh += _never_again(commits, slices, before.end)
        merged = _disjoint([*before.used, *fresh])
        assert merged is not None, "none of what is given out was used"
        stops = [stop for ranges in slices.values() for _, stop in ranges] if is_step else []
        end = max([before.end, *stops])
        return _Branch(commits[0].roster, before.steps + is_step, merged, end)

    def _judge_header(
        self, swarm: AnySwarm, peer: PeerId, commit: Commit, roster: tuple[PeerId, ...]
    ) -> None:
        names = [c.peer for c in commit.contributors]
        where = f"round {commit.round_id}, shard {commit.shard}"
        if names != sorted(set(names)) or not set(names) <= set(roster):
            raise self.violated(
                swarm, peer, f"{where} names {names} as contributors, its roster is {roster}"
            )
        if bool(names) and not commit.digest:
            raise self.violated(swarm, peer, f"{where} has contributors {names} and no aggregate")
        if both := set(names) & {rejection.peer for rejection in commit.rejected}:
            raise self.violated(swarm, peer, f"{where} both uses and rejects {sorted(both)}")
        for rejection in commit.rejected:
            if rejection.reason == "skipped":
                told = (rejection.peer, commit.round_id) in self._skipped
                text = f"{where} says that peer {rejection.peer} skipped its samples: it did not"
                self.demand(told, swarm, peer, text)
        for c in commit.contributors:
            sent = self._sent.get((c.peer, commit.round_id), [])
            self.judged += 1
            if (c.samples, commit.kind) not in sent:
                raise self.violated(
                    swarm,
                    peer,
                    f"{where}, of kind {commit.kind}, counts {c.samples} samples of peer {c.peer}, "
                    f"which sent {sent}",
                )

    def _judge_slices(
        self, swarm: AnySwarm, peer: PeerId, commit: Commit, slices: dict[PeerId, Any]
    ) -> None:
        if _disjoint([pair for ranges in slices.values() for pair in ranges]) is None:
            raise self.violated(
                swarm, peer, f"round {commit.round_id} gives samples to two peers: {slices}"
            )
        for c in commit.contributors:
            read = self._read.get((c.peer, commit.round_id, commit.parent))
            if read is not None and read != tuple(slices.get(c.peer, ())):
                text = (
                    f"round {commit.round_id}: peer {c.peer} has read {read}, the others count "
                    f"{slices.get(c.peer)}"
                )
                raise self.violated(swarm, peer, text)

    def _judge_epoch(self, swarm: AnySwarm, peer: PeerId, done: Committed, steps: int) -> None:
        """Its steps are counted here anew: nothing that fails makes it longer or shorter."""
        core = swarm.inspections.get(peer)
        assert core is not None, "only a whole peer commits"
        planned = self._batch * len(core.settings.peers)
        epoch = steps // -(-done.samples_total // planned)
        text = (
            f"round {done.commit.round_id} is one of epoch {done.epoch}, and was planned for epoch "
            f"{epoch}"
        )
        self.demand(done.epoch == epoch, swarm, peer, text)

    def _judge_order(self, swarm: AnySwarm, peer: PeerId, done: Committed, used: Ranges) -> None:
        """Check that a round gives out unused samples, the first ones that are left, and none
        beyond the end of its epoch."""
        assert done.slices is not None
        given = [pair for ranges in done.slices.values() for pair in ranges]
        where, merged = f"round {done.commit.round_id}", _disjoint([*used, *given])
        self.judged += 1
        if merged is None:
            raise self.violated(swarm, peer, f"{where} gives out used samples again: {given}")
        # Returned samples that do not fit this round may lie below those that others have used.
        if given and not (merged[0][0] == 0 and merged[0][1] >= max(stop for _, stop in given)):
            raise self.violated(swarm, peer, f"{where} passes over samples: {merged}")
        end = done.samples_total * (done.epoch + 1)
        if given and merged[0][1] > end:
            raise self.violated(swarm, peer, f"{where} gives out {merged}, its epoch ends at {end}")


def _samples_used(commits: list[Commit]) -> dict[PeerId, int]:
    """Return the smallest number of samples of each peer that all commits name."""
    told: dict[PeerId, list[int]] = {}
    for commit in commits:
        for c in commit.contributors:
            told.setdefault(c.peer, []).append(c.samples)
    return {peer: min(said) for peer, said in told.items() if len(said) == len(commits)}


def _never_again(
    commits: list[Commit], slices: dict[PeerId, Any], end: int
) -> list[tuple[int, int]]:
    """Return the unused samples that are not given out again: a script skipped them, or no update
    on them was finite for the second time. Samples below ``end`` were given out before."""
    told = {each.peer: each.reason for commit in commits for each in commit.rejected}
    return [
        (start, min(stop, end) if told[peer] != "skipped" else stop)
        for peer, ranges in slices.items()
        if told.get(peer) in ("skipped", "non_finite")
        for start, stop in ranges
        if start < end or told[peer] == "skipped"
    ]


def _first(samples: int, ranges: Ranges) -> Ranges:
    """The part of them that holds so many."""
    positions = [at for start, stop in ranges for at in range(start, stop)][:samples]
    return _disjoint([(at, at + 1) for at in positions]) or ()


def _disjoint(pairs: list[tuple[int, int]]) -> Ranges | None:
    """The union in ascending order, adjacent ranges joined; None when two of them overlap."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(pairs):
        if joined and start < joined[-1][1]:
            return None
        if joined and start == joined[-1][1]:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)


class TakesOverTheDonorsState(Checker):
    """S12: what a joiner restores is what a donor held before that round, with a history that
    somebody has; and it offers no update for a round before."""

    invariant = "S12"
    events = (SnapshotTaken,)
    effects = (Restore, Committed, Update, Report)
    afters = (Restored,)

    def make_records(self) -> None:
        self._misled = TaintedStates(self.circumstances)
        self._taken: dict[int, list[bytes]] = {}
        self._heads: dict[int, dict[bytes, None]] = {}  # of the round before
        self._first: dict[PeerId, int] = self.per_life()

    def on_start(self, swarm: AnySwarm, peer: PeerId) -> None:
        super().on_start(swarm, peer)
        self._misled.forget(peer)

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if isinstance(event, SnapshotTaken):
            self._taken.setdefault(event.round_id, []).append(_state_digest(event.payload))

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        match effect:
            case Committed():
                self._heads.setdefault(effect.commit.round_id + 1, {})[effect.chain] = None
            case Report("ready"):
                if (rounds := rolling_of(swarm.inspections.get(peer))) is not None:
                    self._heads.setdefault(0, {})[rounds.chain] = None
            case Report("stage_rebuilt", fields):
                if (rounds := rolling_of(swarm.inspections.get(peer))) is not None:
                    self._first[peer] = fields["round"]
                    self._heads.setdefault(fields["round"], {})[rounds.chain] = None
            case Restore():
                self._on_restore(swarm, peer, effect)
            case Send(_, Update() as update):
                first = self._first.get(peer, 0)
                if update.round_id < first:
                    text = (
                        f"offers an update of round {update.round_id}, although its state is of "
                        f"round {first}"
                    )
                    raise self.violated(swarm, peer, text)
            case _:
                return

    def _on_restore(self, swarm: AnySwarm, peer: PeerId, restore: Restore) -> None:
        content, said = _state_digest(restore.payload), parts_of(restore.payload)[0]
        if _name_of(restore.payload) != said:
            raise self.violated(
                swarm, peer, f"restores bytes with the digest {content.hex()} as {said.hex()}"
            )
        self._misled.restores(swarm, peer)
        if peer not in self._misled:
            known = content in self._taken.get(restore.round_id, [])
            self.demand(
                known,
                swarm,
                peer,
                f"restores a state of round {restore.round_id} that no donor has packed",
            )

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        core = swarm.inspections.get(peer)
        if (
            not isinstance(event, Restored)
            or event.error
            or core is None
            or core.recovery.stage != "idle"
        ):
            return
        self._first[peer] = event.round_id
        rounds = core.rolling if core is not None else None
        if rounds is None or peer in self._misled:
            return
        head = rounds.replicated.lineage.at(event.round_id - 1)
        known = head in self._heads.get(event.round_id, {})
        self.demand(
            known,
            swarm,
            peer,
            f"restores round {event.round_id} upon a history that nobody has: "
            f"{(head or b'').hex()}",
        )


def content_digest(payload: Payload) -> bytes:
    """Return the digest of the bytes themselves, whatever digest the payload states."""
    return digest_of(to_bytes(np.ascontiguousarray(payload.data)))


def _state_digest(payload: Payload) -> bytes:
    """Return the digest of the parameters in a toy trainer's packed state, whatever digest the
    payload states."""
    return payload_digest(bytes_of_state(payload)[:-OWN_BYTES])


def _name_of(payload: Payload) -> bytes:
    """Return what must stand for these parameters in the payload: their digest, or the packed
    manifest of their pieces."""
    content, outline = bytes_of_state(payload), outline_of(payload)
    sizes = (len(content) - OWN_BYTES, OWN_BYTES)
    return described(content, sizes, outline.piece_bytes if outline else len(content))[1][0]


class CheckedBeforeUse(Checker):
    """S13: what is applied was checked: a message of a stranger, of a former life, of another
    lineage, round or branch, or with a payload that is not what it says, changes nothing; what goes
    into a rule or a model is finite and of the right size. A commit is of its round whoever hands
    it over, so only its sender's life need not be the present one."""

    invariant = "S13"
    events = (Update, UpdateRequest, Commit, StateOffer)
    effects = (Aggregate, Apply, Committed)
    afters = (Update, UpdateRequest, Commit, StateOffer)

    def make_records(self) -> None:
        self._refusable: dict[PeerId, tuple[str, tuple[Any, ...]]] = self.per_life()
        self._commits = self.per_life(list[Commit])

    def on_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if not isinstance(event, Received) or not isinstance(
            event.message, Update | UpdateRequest | Commit | StateOffer
        ):
            return
        core = swarm.inspections.get(peer)
        if core is None or not isinstance(core.rounds, RollingInspection):
            return
        # Two things come before any event, whatever it says: a server holds the commit that it has
        # spread, and one that stood still hands on what it serves.
        still_s = swarm.hosts[peer].machine.clock_s(swarm.now_ns) - core.handled_at
        if core.rounds.holds_back or still_s > core.tolerance_s:
            return
        if reason := self._why_refused(core, core.rounds, event):
            self._refusable[peer] = (reason, _state_of(core, core.rounds))

    def _why_refused(self, core: Inspection, rounds: RollingInspection, event: Received) -> str:
        message, member = event.message, core.membership.members.get(event.sender)
        if not core.settings.may_be(event.sender):
            return "a stranger"
        # Who was never heard in its later life, and goes on speaking in this one, was lied about.
        invented = member is not None and self.circumstances.invented_lives and not member.spoken
        bound = not isinstance(message, Commit) and not invented
        if member is not None and event.incarnation < member.incarnation and bound:
            return f"a former life, {event.incarnation}"
        if isinstance(message, StateOffer):
            taker = core.recovery
            asked = message.nonce == taker.nonce and event.sender in taker.waits_for
            asked = asked and (
                taker.pieces is None or (event.sender, message.piece) in taker.pieces.asked
            )
            return "" if asked else "nobody asked for it"
        assert isinstance(message, Update | UpdateRequest | Commit)
        if message.lineage != core.settings.lineage:
            return "another lineage"
        if message.round_id < rounds.round_id:
            return f"an old round, {message.round_id}"
        if message.round_id == rounds.round_id and message.parent != rounds.chain:
            return "another branch"
        if (
            isinstance(message, Update)
            and event.sender not in rounds.roster
            and message.round_id == rounds.round_id
        ):
            return "not in the roster"
        return ""

    def after_event(self, swarm: AnySwarm, peer: PeerId, event: Event) -> None:
        if not isinstance(event, Received):
            return
        reason, before = self._refusable.pop(peer, ("", ()))
        core = swarm.inspections.get(peer)
        if (
            not reason
            or core is None
            or not isinstance(core.rounds, RollingInspection)
            or core.phase == "recovering"
        ):
            return
        after = _state_of(core, core.rounds)
        self.judged += 1
        if before != after:
            what = (
                f"a {type(event.message).__name__} of peer {event.sender} which is not to be used "
                f"({reason})"
            )
            raise self.violated(swarm, peer, f"uses {what}: {before} -> {after}")

    def on_effect(self, swarm: AnySwarm, peer: PeerId, effect: Effect) -> None:
        core = swarm.inspections.get(peer)
        if core is None:
            return
        match effect:
            case Aggregate():
                want = core.rounds.shard_bytes[effect.shard]
                for row in effect.rows:
                    if not core.settings.may_be(row.peer):
                        raise self.violated(
                            swarm, peer, f"round {effect.round_id}: a row of a stranger, {row.peer}"
                        )
                    if row.payload.nbytes != want or not row.payload.finite:
                        self._judge_payload(
                            swarm,
                            peer,
                            row.payload,
                            want,
                            f"peer {row.peer}'s row in round {effect.round_id}",
                        )
                self.judged += len(effect.rows)
            case Committed():
                self._commits[peer].append(effect.commit)
            case Apply():
                self._on_apply(swarm, peer, core, effect)
            case _:
                return

    def _on_apply(self, swarm: AnySwarm, peer: PeerId, core: Inspection, apply: Apply) -> None:
        commits, self._commits[peer] = self._commits[peer], []
        shard_bytes = core.rounds.shard_bytes
        for shard, payload in enumerate(apply.payloads):
            self._judge_payload(
                swarm, peer, payload, shard_bytes[shard], f"shard {shard} of round {apply.round_id}"
            )
            if commits and content_digest(payload) != commits[shard].digest:
                text = (
                    f"applies to shard {shard} in round {apply.round_id} what its commit does not "
                    "say"
                )
                raise self.violated(swarm, peer, text)
        for commit in commits:
            roster, known = set(commit.roster), core.settings.everybody
            if list(commit.roster) != sorted(roster) or not roster or not roster.issubset(known):
                raise self.violated(
                    swarm,
                    peer,
                    f"round {commit.round_id} names {commit.roster}, which is no roster",
                )

    def _judge_payload(
        self, swarm: AnySwarm, peer: PeerId, payload: Payload, nbytes: int, what: str
    ) -> None:
        self.judged += 1
        if payload.nbytes != nbytes:
            raise self.violated(swarm, peer, f"{what} has {payload.nbytes} bytes, not {nbytes}")
        if not payload.finite:
            raise self.violated(swarm, peer, f"{what} is not finite")


def _state_of(core: Inspection, rounds: RollingInspection) -> tuple[Any, ...]:
    """Return the state that only a usable message may change: the progress of the rounds and of a
    recovery."""
    shards = tuple((shard.commit is None, len(shard.served.answers)) for shard in rounds.shards)
    return rounds.round_id, rounds.chain, core.recovery.stage, len(core.recovery.kept), shards
