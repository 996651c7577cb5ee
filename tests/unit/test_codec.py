"""Each bound of the codec, by example. What holds for all messages is in tests/property."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import msgpack
import pytest

from gossip.core.messages import (
    ROUND_MAX,
    Ack,
    Commit,
    Contribution,
    Envelope,
    Message,
    Nack,
    Ping,
    Progress,
    Push,
    PushPull,
    Rumor,
    StateOffer,
    StateRequest,
    Update,
)
from gossip.errors import Malformed
from gossip.ipc.messages import Close, FromNode, FromTrainer, JudgeReply, StartRoundCommand
from gossip.transport.codec import (
    CORE_BYTES_MAX,
    HEADER_BYTES_MAX,
    MESSAGES,
    OUTLINE_BYTES_MAX,
    PROTOCOL_VERSION,
    Codec,
    Limits,
    decode,
    encode,
    seal,
)

UPDATE = Update(b"lineage1", 7, 1, 0, b"d" * 16, 32, 0.5)
RUN = b"this-run"


def wire(message: Message) -> list:
    return msgpack.unpackb(encode(Envelope(RUN, 3, 1, message))[:-4])


def refused(items: object) -> str:
    with pytest.raises(Malformed) as caught:
        decode(seal(msgpack.packb(items)))
    return str(caught.value)


def with_field(message: Message, at: int, value: object) -> list:
    items = wire(message)
    items[5][at] = value
    return items


def test_an_envelope_says_version_run_sender_incarnation_tag_and_fields():
    tag = get_args(Message).index(Update)
    assert wire(UPDATE) == [
        PROTOCOL_VERSION,
        RUN,
        3,
        1,
        tag,
        [b"lineage1", 7, 1, 0, b"d" * 16, 32, 0.5, [], 0, b"", False, [], 0, b"", 0],
    ]


def test_a_memoryview_is_read_without_being_copied_first():
    data = b"..." + encode(Envelope(RUN, 3, 1, UPDATE)) + b"..."
    assert decode(memoryview(data)[3:-3]) == Envelope(RUN, 3, 1, UPDATE)


@pytest.mark.parametrize("at", range(6))
def test_no_part_of_an_envelope_may_be_missing(at: int):
    items = wire(UPDATE)
    del items[at]
    refused(items)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        *((0, value) for value in (PROTOCOL_VERSION + 1, True, 1.0)),
        *((1, value) for value in ("this-run", b"x" * 65)),
        *((2, value) for value in (-1, True, ROUND_MAX + 1)),
        *((3, value) for value in (0.5, -1)),
        *((4, value) for value in (len(get_args(Message)), -1, None)),
        *((5, value) for value in ({}, [], None)),
    ],
)
def test_an_envelope_with_a_wrong_part_is_refused(at: int, value: object):
    items = wire(UPDATE)
    items[at] = value
    refused(items)


@pytest.mark.parametrize(
    ("at", "value", "complaint"),
    [
        (0, "lineage1", "Update.lineage"),
        (0, b"x" * 4097, "Update.lineage"),
        (1, -1, "Update.round_id"),
        (1, ROUND_MAX + 1, "Update.round_id"),
        (1, 2**64 - 1, "Update.round_id"),
        (1, True, "Update.round_id"),
        (1, 7.0, "Update.round_id"),
        (1, None, "Update.round_id"),
        (6, float("nan"), "Update.loss"),
        (6, float("inf"), "Update.loss"),
        (6, "0.5", "Update.loss"),
        (6, True, "Update.loss"),
    ],
)
def test_a_field_out_of_bounds_is_named(at: int, value: object, complaint: str):
    assert complaint in refused(with_field(UPDATE, at, value))


def test_the_bounds_themselves_are_allowed():
    for message in (
        replace(UPDATE, round_id=ROUND_MAX),
        replace(UPDATE, loss=None),
        replace(UPDATE, lineage=b"x" * 4096),
    ):
        assert decode(encode(Envelope(RUN, 3, ROUND_MAX, message))).message == message


def test_a_whole_number_will_do_for_a_float():
    message = decode(seal(msgpack.packb(with_field(UPDATE, 6, 1)))).message
    assert isinstance(message, Update)
    assert type(message.loss) is float


def test_a_word_that_is_not_among_the_choices_is_refused():
    rumor = Rumor(1, "alive", 0, "tcp://127.0.0.1:1", "", 1)
    items = wire(Ping(1, 2, (rumor,)))
    items[5][2][0][1] = "undead"
    assert "Rumor.status" in refused(items)


def test_a_flag_is_a_flag():
    assert "PushPull.reply" in refused(with_field(PushPull((), True), 1, 1))


def test_nested_fields_are_checked():
    commit = Commit(
        b"l", 1, 0, 0, 0, 3, b"p", b"d", (Contribution(1, 2, 0.5, 1.0),), (), (0, 1), None, ""
    )
    items = wire(commit)
    items[5][8][0][2] = float("nan")
    assert "Contribution.weight" in refused(items)
    items = wire(commit)
    items[5][8][0].append(0)
    assert "Contribution" in refused(items)
    assert "Commit.roster" in refused(with_field(commit, 10, [1, -1]))
    assert "Progress" in refused(with_field(Ack(1, 2, Progress(1, 2), ()), 2, [1]))


def test_a_list_has_at_most_1024_entries():
    commit = Commit(b"l", 1, 0, 0, 0, 3, b"p", b"d", (), (), tuple(range(1024)), None, "")
    assert decode(encode(Envelope(RUN, 3, 1, commit))).message == commit
    assert "Commit.roster" in refused(with_field(commit, 10, list(range(1025))))


def test_only_the_state_offer_may_carry_48_kib():
    offer = StateOffer(b"l", 1, 2, b"c", b"d", 10, b"x" * CORE_BYTES_MAX, "")
    assert decode(encode(Envelope(RUN, 3, 1, offer))).message == offer
    refused(with_field(offer, 6, b"x" * (CORE_BYTES_MAX + 1)))
    whole = replace(offer, outline=b"x" * OUTLINE_BYTES_MAX)
    assert decode(encode(Envelope(RUN, 3, 1, whole))).message == whole, (
        "beside the outline of as many pieces as there can be"
    )
    assert "StateOffer.outline" in refused(with_field(offer, 9, b"x" * (OUTLINE_BYTES_MAX + 1)))
    assert "Push.sketch" in refused(
        with_field(Push(b"l", 1, "gradient", 1, None, b""), 5, b"x" * CORE_BYTES_MAX)
    )


def test_a_message_that_others_would_refuse_is_not_made():
    far = tuple(Rumor(peer, "alive", 1, "a" * 100, "b" * 100, peer) for peer in range(1000))
    with pytest.raises(ValueError, match=f"larger than the {HEADER_BYTES_MAX - 4}"):
        encode(Envelope(RUN, 3, 1, PushPull(far, False)))
    # The packer is as good as new afterwards.
    assert decode(encode(Envelope(RUN, 3, 1, UPDATE))).message == UPDATE


def test_a_value_that_msgpack_does_not_know_is_our_bug():
    with pytest.raises(TypeError):
        encode(Envelope(RUN, 3, 1, replace(UPDATE, samples=object())))  # type: ignore[arg-type]
    assert decode(encode(Envelope(RUN, 3, 1, UPDATE))).message == UPDATE


@pytest.mark.parametrize(
    "bomb",
    [
        b"",
        b"\xc1",
        b"\x80" * HEADER_BYTES_MAX,
        b"\x91" * HEADER_BYTES_MAX,  # depth
        b"\xdd\x00\x01\x00\x00" * 10_000,  # nested arrays that each claim 65536 entries
        b"\xdc\x04\x00" * 20_000,  # nested arrays within the limit
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\xd4\x01\x00",  # an extension type
        b"\x96" + b"\x81\x01\x02" * 6,  # maps
        b"\xa2\xff\xff",  # not UTF-8
        b"\xdc\xff\xff" + b"\x90" * 65_000,  # width
        b"\x00" * (HEADER_BYTES_MAX + 1),
    ],
)
def test_a_bomb_is_malformed(bomb: bytes):
    with pytest.raises(Malformed):
        decode(bomb)
    with pytest.raises(Malformed):
        decode(seal(bomb))
    with pytest.raises(Malformed):
        MESSAGES.decode_many(bomb)


def test_what_follows_a_message_makes_it_malformed():
    with pytest.raises(Malformed):
        decode(encode(Envelope(RUN, 3, 1, UPDATE)) + b"\x00")
    with pytest.raises(Malformed):
        decode(seal(encode(Envelope(RUN, 3, 1, UPDATE))[:-4] + b"\x00"))


# --- codecs of others -----------------------------------------------------------------------------


def test_several_messages_share_a_packet_in_order():
    codec: Codec[Message] = Codec(get_args(Message))
    messages: list[Message] = [UPDATE, Nack(1, 2), StateRequest(b"l", 5, 7, "attestation"), UPDATE]
    assert codec.decode_many(codec.encode_many(messages)) == messages
    assert codec.decode_many(codec.encode_many([])) == []
    for version in (PROTOCOL_VERSION + 1, True, 1.0, None):
        with pytest.raises(Malformed, match="version"):
            codec.decode_many(codec.pack([version]))
    with pytest.raises(Malformed, match="4 messages"):
        codec.decode(codec.encode_many(messages))


def test_the_trainers_messages_pass():
    node: Codec[FromNode] = Codec(get_args(FromNode), Limits(int_min=-1))
    go = StartRoundCommand(5, -1, True, 2, ((0, 10), (20, 30)), False, 8, 7)
    assert node.decode(node.encode(go)) == go
    trainer: Codec[FromTrainer] = Codec(get_args(FromTrainer), Limits(int_min=-1))
    both = [JudgeReply(1, (0.5, 0.25), (1.0, 2.0), ""), Close("finished")]
    assert trainer.decode_many(trainer.encode_many(both)) == both


def test_a_pair_has_two_parts():
    codec: Codec[FromNode] = Codec(get_args(FromNode), Limits(int_min=-1))
    go = codec.to_plain(StartRoundCommand(5, -1, True, 2, ((0, 10),), False, 8, 7))
    with pytest.raises(Malformed, match=r"StartRoundCommand\.ranges"):
        codec.decode(codec.pack([PROTOCOL_VERSION, go[0], [*go[1][:4], [[0, 10, 20]], *go[1][5:]]]))


def test_a_trusting_codec_counts_the_fields_and_takes_them():
    codec: Codec[FromNode] = Codec(get_args(FromNode), Limits(int_min=-1), trusting=True)
    go = StartRoundCommand(5, -1, True, 2, ((0, 10), (20, 30)), False, 8, 7)
    assert codec.decode_many(codec.encode_many([go])) == [go]
    tag, fields = codec.to_plain(go)
    for wrong in ([*fields, 1], fields[1:], 7):
        with pytest.raises(Malformed, match="StartRoundCommand has 19 fields"):
            codec.decode(codec.pack([PROTOCOL_VERSION, tag, wrong]))
    with pytest.raises(TypeError, match="contains another dataclass"):
        Codec(get_args(Message), trusting=True)


def test_an_annotation_without_a_form_is_refused_when_the_codec_is_built():
    @dataclass(frozen=True)
    class Odd:
        what: dict[str, int]

    with pytest.raises(TypeError, match=r"Odd\.what"):
        Codec([Odd])


def test_an_empty_message_and_a_choice_of_its_own():
    @dataclass(frozen=True)
    class Empty:
        pass

    @dataclass(frozen=True)
    class One:
        word: Literal["yes", "no"]

    codec: Codec[Empty | One] = Codec([Empty, One])
    assert codec.decode_many(codec.encode_many([Empty(), One("no")])) == [Empty(), One("no")]
