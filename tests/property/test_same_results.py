"""What was made quicker gives what the plain form gave, byte for byte: peers of other versions are
in the same swarm."""

import math
import struct
from hashlib import blake2b
from random import Random

from effort import effort
from hypothesis import given, settings, strategies as st

from gossip.core.ledger.chain import header_bytes
from gossip.core.ledger.data_cursor import DataCursor, Ranges
from gossip.core.ledger.trust import TrustTable
from gossip.core.messages import Accusation, Commit, Contribution, PeerId, Rejection
from gossip.core.settings import TrustSettings
from gossip.topologies import Roster, load
from gossip.topologies.base import draw, draws

WHOLE = st.integers(-(2**63), 2**63 - 1)
PEER = st.integers(0, 2**48)
COMMITS = st.builds(
    Commit,
    lineage=st.binary(max_size=20),
    round_id=WHOLE,
    shard=WHOLE,
    attempt=WHOLE,
    made_at=WHOLE,
    server=PEER,
    parent=st.binary(max_size=20),
    digest=st.binary(max_size=20),
    contributors=st.lists(
        st.builds(Contribution, PEER, WHOLE, st.floats(), st.floats(), WHOLE), max_size=6
    ).map(tuple),
    rejected=st.lists(
        st.builds(Rejection, PEER, st.text(max_size=30), st.floats()), max_size=4
    ).map(tuple),
    roster=st.lists(PEER, max_size=40).map(tuple),
    loss=st.none() | st.floats(),
    reason=st.text(max_size=40),
    rates=st.lists(st.floats(), max_size=4).map(tuple),
    accusations=st.lists(
        st.builds(
            Accusation,
            PEER,
            st.integers(0, 2**48),
            st.booleans(),
            st.binary(max_size=16),
            st.binary(max_size=16),
        ),
        max_size=3,
    ).map(tuple),
)


def plain_header(commit: Commit) -> bytes:
    def blob(value: bytes) -> bytes:
        return struct.pack(">I", len(value)) + value

    def whole(value: int) -> bytes:
        return struct.pack(">q", value)

    def real(value: float) -> bytes:
        return struct.pack(">d", math.nan if math.isnan(value) else value)

    def text(value: str) -> bytes:
        return blob(value.encode("utf-8", "surrogatepass"))

    data = (
        blob(commit.lineage)
        + whole(commit.round_id)
        + whole(commit.shard)
        + whole(commit.made_at)
        + whole(commit.server)
    )
    data += blob(commit.parent) + blob(commit.digest) + whole(len(commit.contributors))
    for each in commit.contributors:
        data += (
            whole(each.peer)
            + whole(each.samples)
            + whole(each.took_us)
            + real(each.weight)
            + real(each.outlyingness)
        )
    data += whole(len(commit.rejected))
    for rejection in commit.rejected:
        data += whole(rejection.peer) + text(rejection.reason) + real(rejection.outlyingness)
    data += whole(len(commit.roster)) + b"".join(map(whole, commit.roster))
    data += b"\0" if commit.loss is None else b"\1" + real(commit.loss)
    data += text(commit.reason) + whole(len(commit.rates)) + b"".join(map(real, commit.rates))
    accusations = [
        whole(accusation.peer)
        + whole(-1 - accusation.round_id if accusation.silent else accusation.round_id)
        + blob(accusation.turn)
        + blob(accusation.content)
        for accusation in commit.accusations
    ]
    return data + (whole(-len(accusations)) if accusations else b"") + b"".join(accusations)


@given(COMMITS)
@settings(max_examples=effort(100, 300))
def test_a_header_has_the_bytes_of_its_fields_one_after_the_other(commit: Commit) -> None:
    assert header_bytes(commit) == plain_header(commit)


def plain_draw(*words: object) -> int:
    text = "/".join(word.hex() if isinstance(word, bytes) else str(word) for word in words)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


WORDS = st.lists(st.integers() | st.binary(max_size=12) | st.text(max_size=8), max_size=4)


@given(WORDS, WORDS)
def test_many_draws_are_those_of_one_at_a_time(begin: list[object], last: list[object]) -> None:
    assert (
        draws(begin, last)
        == [plain_draw(*begin, word) for word in last]
        == [draw(*begin, word) for word in last]
    )


@given(
    st.sets(PEER, min_size=1, max_size=12),
    st.binary(max_size=16),
    PEER,
    st.integers(),
    st.integers(1, 3),
)
def test_servers_are_ordered_by_their_draws(
    peers: set[int], lineage: bytes, round_id: int, seed: int, shards: int
) -> None:
    """The first place goes round all peers."""
    roster = Roster(tuple(sorted(peers)), lineage)
    served: list[int] = []
    expected = []
    for shard in reversed(range(shards)):
        drawn = sorted(
            roster, key=lambda peer: (plain_draw(seed, lineage, round_id, shard, peer), peer)
        )
        turns = min(served.count(peer) for peer in roster)
        first = next(peer for peer in drawn if served.count(peer) == turns)
        served.append(first)
        expected.insert(0, (first, *(peer for peer in drawn if peer != first)))
    assert load("rolling")(roster, round_id, seed, shards=shards).servers == tuple(expected)


class PlainCursor(DataCursor):
    """Deals every slice, piece by piece, and takes each back that was not used."""

    def assign(self, roster: tuple[PeerId, ...]) -> dict[PeerId, Ranges]:  # type: ignore[override]
        slices: dict[PeerId, Ranges] = dict.fromkeys(roster, ())
        sharers = self._in_turn(roster)
        places = [at for start, stop in self._returned for at in range(start, stop)]
        places += range(self._position, self.samples_total * (self.epoch + 1))
        for share, peer in zip(self._shares(sharers), sharers, strict=True):
            slices[peer], places = _ranges(places[:share]), places[share:]
        return slices

    def commit(self, roster: tuple[PeerId, ...], used: dict[PeerId, int]) -> object:  # type: ignore[override]
        slices = self.assign(roster)
        back = [
            at
            for peer, ranges in slices.items()
            for at in [at for pair in ranges for at in range(*pair)][used.get(peer, 0) :]
        ]
        given_out = [at for ranges in slices.values() for pair in ranges for at in range(*pair)]
        kept = {at for pair in self._returned for at in range(*pair)}.difference(given_out)
        self._position += sum(at >= self._position for at in given_out)
        self._returned = _ranges(sorted(kept.union(back)))
        self._used += len(given_out) - len(back)
        self._turn += 1
        self._step += 1
        return self._end_epoch() if self._step == self.steps_per_epoch else None


def _ranges(places: list[int]) -> Ranges:
    ranges: list[tuple[int, int]] = []
    for at in places:
        if ranges and ranges[-1][1] == at:
            ranges[-1] = (ranges[-1][0], at + 1)
        else:
            ranges.append((at, at + 1))
    return tuple(ranges)


@given(
    seed=st.integers(0, 2**32),
    samples_total=st.integers(1, 300),
    batch=st.integers(1, 40),
    at_least=st.integers(1, 4),
    reliability=st.sampled_from([0.3, 0.9, 1.0]),
)
@settings(max_examples=effort(40, 100))
def test_slices_are_those_of_a_cursor_that_deals_piece_by_piece(
    seed: int, samples_total: int, batch: int, at_least: int, reliability: float
) -> None:
    random = Random(seed)
    quick, plain = (
        DataCursor(4, samples_total, batch),
        PlainCursor(4, samples_total, batch),
    )
    quick.require(at_least)
    plain.require(at_least)
    for _ in range(60):
        roster = tuple(sorted(random.sample(range(12), random.randint(1, 6))))
        # of its slice, somebody uses less, and somebody says that it was more
        used = {
            peer: random.choice([batch, batch, random.randint(1, 2 * batch)])
            for peer in roster
            if random.random() < reliability
        }
        assert quick.assign(roster) == plain.assign(roster)
        assert quick.commit(roster, used) == plain.commit(roster, used)
        assert quick.pack() == plain.pack()


@given(st.integers(0, 2**32), st.integers(0, 3))
@settings(max_examples=effort(20, 50))
def test_a_trust_table_goes_on_alike_from_what_it_has_packed(seed: int, f: int) -> None:
    random = Random(seed)
    one = TrustTable(TrustSettings(), f)
    for round_id in range(150):
        other = TrustTable(TrustSettings(), f)
        other.unpack(one.pack())
        attacker = round_id // 40 % 7
        told = [
            Contribution(p, 1, 0.1, random.choice([1.0, 50.0]) if p == attacker else 1.0)
            for p in range(7)
            if random.random() < 0.9
        ]
        assert one.observe_commit(round_id, told, ()) == other.observe_commit(round_id, told, ())
        assert one.pack() == other.pack()
