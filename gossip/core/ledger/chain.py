"""Hash chain of commits. H_r covers all commits up to round r, so two different histories have
different hashes.

``H_r = blake2b(H_{r-1} || header and payload digest of every shard, in order)``. A header covers
all fields of a commit except ``attempt``, which changes when the server of a later attempt
re-issues the commit.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from math import isnan, nan
from typing import Literal

from gossip.core.messages import DIGEST_BYTES, Collected, Commit
from gossip.core.settings import HISTORY_ROUNDS

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
    # All NaNs get the same hash, because the bit pattern of a NaN may change when it is decoded.
    return nan if isnan(value) else value


def header_bytes(commit: Commit) -> bytes:
    """Return the canonical bytes of the header of a commit. The header has all fields except
    ``attempt``. A field of variable length is preceded by its length."""
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
        parts += [_text("replica"), _blob(commit.replica), _named(commit.diverged)]
    if commit.kind or commit.length:
        parts += [_text("kind"), _COUNT.pack(commit.kind), _REAL.pack(_real(commit.length))]
    return b"".join(parts)


def _pack_accusations_and_votes(commit: Commit) -> list[bytes]:
    """Return the packed accusations and audit votes; empty if there are none."""
    parts: list[bytes] = []
    if commit.accusations:
        # The count is negative, so that it cannot be mistaken for the number of weights of a
        # decision.
        parts.append(_COUNT.pack(-len(commit.accusations)))
        for c in commit.accusations:
            parts += [
                _ACCUSATION.pack(c.peer, -1 - c.round_id if c.silent else c.round_id),
                _blob(c.turn),
                _blob(c.content),
            ]
    if commit.audits:
        parts.append(_text("audits"))  # as a count, these bytes exceed every valid count
        for vote in commit.audits:
            sides = [-1 if side is None else side for side in (vote.before, vote.behind)]
            parts.append(_VOTE.pack(vote.peer, vote.round_id, vote.micro_batch, *sides))
    return parts


def _collected(values: Sequence[Collected]) -> list[bytes]:
    parts = [_text("collected")]  # not a valid count, like the marker of audits
    for value in values:
        parts += [_COUNT.pack(value.peer), _blob(value.data)]
    return parts


def _named(micro_batches: tuple[int, ...]) -> bytes:
    """Pack the micro-batches after a contribution. The first bytes exceed every valid peer id, so
    the micro-batches cannot be mistaken for the next contribution."""
    count = len(micro_batches)
    return _text("micro_batches") + struct.pack(f">{count + 1}q", count, *micro_batches)


def genesis(run: bytes, lineage: bytes, start: bytes = b"") -> bytes:
    """Return H_{-1}, the parent of the commits of round 0.

    Args:
        start: Digest of the initial weights, so that peers with different initial weights are on
            different branches from the first round. Empty if each peer has its own weights, or if
            the local peer has not begun yet.
    """
    return blake2b(
        _blob(run) + _blob(lineage) + _blob(start),
        digest_size=DIGEST_BYTES,
        person=b"gossip-genesis",
    ).digest()


def chain_hash(
    parent: bytes, commits: Sequence[Commit], header: Callable[[Commit], bytes] = header_bytes
) -> bytes:
    """Return H_r, computed from H_{r-1} (``parent``) and the commits of round r: one for each
    shard, in order."""
    chain = blake2b(parent, digest_size=DIGEST_BYTES)
    for commit in commits:
        chain.update(_blob(header(commit)))
        chain.update(_blob(commit.digest))
    return chain.digest()


class Lineage:
    """The chain up to the last round of the local peer. The hashes of the last ``HISTORY_ROUNDS``
    rounds are stored."""

    def __init__(self, run: bytes, lineage: bytes) -> None:
        self.run, self.id = run, lineage
        self.next_round = 0
        """Round of the next commits."""
        self.unbegun = genesis(run, lineage)
        """Value of ``head`` until the local peer has begun. Until then, the peer is on no
        branch."""
        self.head = self.unbegun
        """H of the round before ``next_round``: the parent of the next commits."""
        self._history: OrderedDict[int, bytes] = OrderedDict({-1: self.head})
        self._headers: dict[int, tuple[Commit, bytes]] = {}  # latest commit of each shard

    def begin(self, start: bytes) -> None:
        """Begin the chain. ``start`` is the digest of the initial weights."""
        assert self.next_round == 0, f"a run begins with round 0, not {self.next_round}"
        self.restart(0, genesis(self.run, self.id, start))

    def append(self, commits: Sequence[Commit]) -> bytes:
        """Append the commits of round ``next_round``, one for each shard, in order.

        The caller has already compared the parent of each commit (``stance``).

        Returns: The new head H_r.
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
        self._history[self.next_round] = self.head
        if len(self._history) > HISTORY_ROUNDS:
            self._history.popitem(last=False)
        self.next_round += 1
        return self.head

    def header(self, commit: Commit) -> bytes:
        """Return ``header_bytes`` of a commit, cached for the latest commit of each shard."""
        commit_before, header = self._headers.get(commit.shard, (None, b""))
        if commit_before is not commit:
            header = header_bytes(commit)
            self._headers[commit.shard] = commit, header
        return header

    def share_headers(self, headers: dict[int, tuple[Commit, bytes]]) -> None:
        """Use ``headers`` as the cache of headers, so that several peers of a simulation share
        it."""
        self._headers = headers

    def restart(self, next_round: int, head: bytes) -> None:
        """Continue at another round of the chain, after a state transfer. ``head`` is H of the
        round before ``next_round``, from the offer."""
        self.next_round, self.head = next_round, head
        self._history.clear()
        self._history[next_round - 1] = head

    def at(self, round_id: int) -> bytes | None:
        """Return H of a round; None if it is not stored. Round -1 is the genesis."""
        return self._history.get(round_id)

    def before(self, round_id: int) -> bytes:
        """Return H of the round before ``round_id``; empty if it is not stored."""
        return self._history.get(round_id - 1, b"")

    def stance(self, round_id: int, parent: bytes) -> Stance:
        """Compare ``parent``, which another peer reports as H of the round before ``round_id``,
        with the local chain. The result is "unknown" if the local hash is not stored, or if one of
        the two peers has not begun, because such a peer is on no branch yet."""
        ours = self.at(round_id - 1)
        if ours == parent:
            return "same"
        return "unknown" if ours is None or self.unbegun in (ours, parent) else "fork"
