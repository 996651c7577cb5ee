"""The hash chain of commits: H_r binds everything that was ever committed, so two histories that
differ show it at once.

``H_r = blake2b(H_{r-1} || header and payload digest of every shard, in order)``. A header covers
every field of a commit but ``attempt``, which changes when a later server hands the same commit on.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from math import isnan, nan
from typing import Literal

from gossip.core.messages import DIGEST_BYTES, Collected, Commit

HISTORY_ROUNDS = 1024

Stance = Literal["same", "fork", "unknown"]

_SHARD = struct.Struct(">4q")  # round, shard, made_at, server
_COUNT = struct.Struct(">q")
_LENGTH = struct.Struct(">I")
_CONTRIBUTION = struct.Struct(">3q2d")
_ACCUSATION = struct.Struct(">2q")
_VOTE = struct.Struct(">5q")
_REAL = struct.Struct(">d")


def _blob(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value


def _text(value: str) -> bytes:
    return _blob(value.encode("utf-8", "surrogatepass"))


def _real(value: float) -> float:
    # There are many bit patterns that are no number: whoever decodes one may hold another,
    # so all hash alike.
    return nan if isnan(value) else value


def header_bytes(commit: Commit) -> bytes:
    """The canonical bytes of a commit's header: every field except ``attempt``, each with its
    length where it varies."""
    parts = [
        _blob(commit.lineage),
        _SHARD.pack(commit.round_id, commit.shard, commit.made_at, commit.server),
        _blob(commit.parent),
        _blob(commit.digest),
        _COUNT.pack(len(commit.contributors)),
    ]
    for given in commit.contributors:
        weight, far = given.weight, given.outlyingness
        if isnan(weight + far):
            weight, far = _real(weight), _real(far)
        parts.append(_CONTRIBUTION.pack(given.peer, given.samples, given.took_us, weight, far))
        if given.micro_batches or given.pass_us:
            parts += [_named(given.micro_batches), _COUNT.pack(given.pass_us)]
    parts.append(_COUNT.pack(len(commit.rejected)))
    for rejection in commit.rejected:
        parts += [_COUNT.pack(rejection.peer), _text(rejection.reason)]
        parts.append(_REAL.pack(_real(rejection.outlyingness)))
    count = len(commit.roster)
    parts.append(struct.pack(f">{count + 1}q", count, *commit.roster))
    parts.append(b"\0" if commit.loss is None else b"\1" + _REAL.pack(_real(commit.loss)))
    parts += [
        _text(commit.reason),
        _COUNT.pack(len(commit.rates)),
        *[_REAL.pack(_real(rate)) for rate in commit.rates],
    ]
    if commit.decision or commit.measured:
        parts += [
            _COUNT.pack(len(commit.decision)),
            *[_REAL.pack(_real(weight)) for weight in commit.decision],
        ]
        parts += [_blob(digest) for digest in commit.measured]
    if commit.accusations or commit.audits:
        parts += _pack_accusations_and_votes(commit)
    if commit.collected:
        parts += _collected(commit.collected)
    if commit.replica:
        # likewise
        parts += [_text("replica"), _blob(commit.replica), _named(commit.diverged)]
    if commit.kind or commit.length:
        parts += [_text("kind"), _COUNT.pack(commit.kind), _REAL.pack(_real(commit.length))]
    return b"".join(parts)


def _pack_accusations_and_votes(commit: Commit) -> list[bytes]:
    """Charges and votes; nothing where there are none."""
    parts: list[bytes] = []
    if commit.accusations:
        parts.append(_COUNT.pack(-len(commit.accusations)))  # below zero: no weights of a decision
        for c in commit.accusations:
            parts += [
                _ACCUSATION.pack(c.peer, -1 - c.round_id if c.silent else c.round_id),
                _blob(c.turn),
                _blob(c.content),
            ]
    if commit.audits:
        parts.append(_text("audits"))  # as a count it would be larger than any
        for vote in commit.audits:
            sides = [-1 if side is None else side for side in (vote.before, vote.behind)]
            parts.append(_VOTE.pack(vote.peer, vote.round_id, vote.micro_batch, *sides))
    return parts


def _collected(values: Sequence[Collected]) -> list[bytes]:
    parts = [_text("collected")]  # likewise
    for value in values:
        parts += [_COUNT.pack(value.peer), _blob(value.data)]
    return parts


def _named(micro_batches: tuple[int, ...]) -> bytes:
    """Behind a contribution. As the id of the next one its first bytes would be larger than any."""
    count = len(micro_batches)
    return _text("micro_batches") + struct.pack(f">{count + 1}q", count, *micro_batches)


def genesis(run: bytes, lineage: bytes, start: bytes = b"") -> bytes:
    """H_{-1}: what the commits of round 0 name as their parent.

    Args:
        start: Digest of the weights that the run begins with. So peers that have begun with
            different ones are on different branches from the first round on. Empty where every peer
            has its own, and as long as this one has not begun.
    """
    return blake2b(
        _blob(run) + _blob(lineage) + _blob(start),
        digest_size=DIGEST_BYTES,
        person=b"gossip-genesis",
    ).digest()


def chain_hash(
    parent: bytes, commits: Sequence[Commit], header: Callable[[Commit], bytes] = header_bytes
) -> bytes:
    """H_r from H_{r-1} and the commits of round r, one a shard, in order of their shards."""
    chain = blake2b(parent, digest_size=DIGEST_BYTES)
    for commit in commits:
        chain.update(_blob(header(commit)))
        chain.update(_blob(commit.digest))
    return chain.digest()


class Lineage:
    """The chain as far as this peer has followed it,
    with the hashes of the last ``HISTORY_ROUNDS`` rounds."""

    def __init__(self, run: bytes, lineage: bytes) -> None:
        self.run, self.id = run, lineage
        self.next_round = 0
        """The round whose commits come next."""
        self.unbegun = genesis(run, lineage)
        """Value of ``head`` until this peer has begun: until then it is on no branch."""
        self.head = self.unbegun
        """H of the round before ``next_round``: the parent of the next commits."""
        self._history: OrderedDict[int, bytes] = OrderedDict({-1: self.head})
        self._headers: dict[int, tuple[Commit, bytes]] = {}  # of each shard, the last one asked for

    def begin(self, start: bytes) -> None:
        """Begins with the weights of the digest ``start``."""
        assert self.next_round == 0, f"a run begins with round 0, not {self.next_round}"
        self.restart(0, genesis(self.run, self.id, start))

    def append(self, commits: Sequence[Commit]) -> bytes:
        """Follows one round: ``commits`` of round ``next_round``, every shard once, in order.

        Returns: the new head H_r. Callers have compared each commit's parent before (``stance``): a
            wrong one is our bug.
        """
        assert commits, "a round has at least one shard"
        for shard, commit in enumerate(commits):
            assert commit.lineage == self.id, "a commit of another lineage"
            assert commit.round_id == self.next_round, (
                f"round {commit.round_id} after {self.next_round - 1}"
            )
            assert commit.shard == shard, f"shard {commit.shard} in place {shard}"
            assert commit.parent == self.head, f"round {commit.round_id} has another parent"
        self.head = chain_hash(self.head, commits, self.header)
        self._remember(self.next_round, self.head)
        self.next_round += 1
        return self.head

    def header(self, commit: Commit) -> bytes:
        """Return ``header_bytes`` of a commit, cached for the latest commit of each shard."""
        commit_before, header = self._headers.get(commit.shard, (None, b""))
        if commit_before is not commit:
            header = header_bytes(commit)
            self._headers[commit.shard] = commit, header
        return header

    def restart(self, next_round: int, head: bytes) -> None:
        """Goes on elsewhere in the chain: after a state transfer, whose offer names H of the round
        before ``next_round``."""
        self.next_round, self.head = next_round, head
        self._history.clear()
        self._remember(next_round - 1, head)

    def at(self, round_id: int) -> bytes | None:
        """H of a round (-1: the genesis), or None when it is not known (any more)."""
        return self._history.get(round_id)

    def before(self, round_id: int) -> bytes:
        """H of the round before; empty when it is not known (any more)."""
        return self._history.get(round_id - 1, b"")

    def stance(self, round_id: int, parent: bytes) -> Stance:
        """How somebody stands to us who names ``parent`` as H of the round before ``round_id``. Who
        has not begun, they or we, may still come to any branch."""
        ours = self.at(round_id - 1)
        if ours == parent:
            return "same"
        return "unknown" if ours is None or self.unbegun in (ours, parent) else "fork"

    def _remember(self, round_id: int, chain: bytes) -> None:
        self._history[round_id] = chain
        while len(self._history) > HISTORY_ROUNDS:
            self._history.popitem(last=False)
