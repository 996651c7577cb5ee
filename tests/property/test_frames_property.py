from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from gossip.errors import Malformed
from gossip.launch.ssh import frames
from gossip.launch.ssh.frames import FRAME_BYTES_MAX, Decoder, encode
from gossip.launch.ssh.remote import RemoteAgent
from gossip.run.rendezvous import parse_seed

FRAMES = st.lists(
    st.fixed_dictionaries({"kind": st.text()}, optional={"text": st.text(), "n": st.integers()}),
    max_size=5,
)


@given(sent=FRAMES, cuts=st.lists(st.integers(min_value=0, max_value=400)))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    sent: list[dict[str, object]], cuts: list[int]
) -> None:
    data = b"".join(map(encode, sent))
    decoder, got, last = Decoder(), [], 0
    for cut in [*sorted(cuts), len(data)]:
        got += decoder.feed(data[last:cut])
        last = max(last, cut)
    assert got == sent
    assert decoder.noise == []


def test_what_a_login_shell_writes_is_no_frame() -> None:
    decoder = Decoder()
    data = (
        b'Welcome to nodeb!\n\n{"kind": "not ours"}\nprompt> ' + encode({"kind": "hello"}) + b"bye"
    )
    assert decoder.feed(data) == [{"kind": "hello"}]
    assert decoder.noise == ["Welcome to nodeb!", '{"kind": "not ours"}', "prompt>"]


def test_of_what_is_no_frame_the_last_lines_are_kept() -> None:
    decoder = Decoder()
    decoder.feed(b"".join(b"%d\n" % number for number in range(1000)))
    assert decoder.noise == [str(number) for number in range(1000 - Decoder.NOISE_LINES, 1000)]


@pytest.mark.parametrize("line", [b"{", b"[]", b"{}", b'{"kind":3}', b"\xff"])
def test_a_marked_line_that_is_no_frame_is_refused(line: bytes) -> None:
    with pytest.raises(Malformed):
        Decoder().feed(frames.MARK + line + b"\n")


def test_a_line_that_never_ends_is_refused() -> None:
    decoder = Decoder()
    decoder.feed(b"x" * FRAME_BYTES_MAX)
    with pytest.raises(Malformed, match="a line of more than"):
        decoder.feed(b"x")


def test_a_frame_that_no_reader_would_take_is_not_sent() -> None:
    with pytest.raises(ValueError, match="the frame has"):
        encode({"kind": "x", "text": "y" * FRAME_BYTES_MAX})


def test_a_word_that_cannot_be_taken_costs_that_word_and_is_told_once() -> None:
    heard: list[dict[str, object]] = []

    def on_frame(remote: RemoteAgent, frame: dict[str, object]) -> None:
        if frame["kind"] == "row":
            raise OSError(28, "No space left on device")
        heard.append({"peer": int(str(frame["peer"]))} if frame["kind"] == "output" else frame)

    remote = RemoteAgent.__new__(RemoteAgent)
    remote._on_frame, remote.stumbled = on_frame, False
    for frame in (
        {"kind": "output"},
        {"kind": "row"},
        {"kind": "output", "peer": "x"},
        {"kind": "output", "peer": 3},
    ):
        remote._handle_frame(frame)
    assert heard == [
        {"kind": "say", "text": "! some of its output is lost: KeyError: 'peer'"},
        {"peer": 3},
    ]
    on_frame_that_says_nothing = RemoteAgent.__new__(RemoteAgent)
    on_frame_that_says_nothing._on_frame, on_frame_that_says_nothing.stumbled = on_frame, False
    on_frame_that_says_nothing._handle_frame({"kind": "row"})
    assert heard[-1]["kind"] == "say"


def test_what_is_nested_without_end_is_no_frame_and_no_address() -> None:
    with pytest.raises(Malformed, match="not JSON"):
        Decoder().feed(frames.MARK + b"[" * 100_000 + b"\n")
    assert parse_seed(0, b"[" * 100_000) is None
