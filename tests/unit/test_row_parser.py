"""What many peers tell alike of a round is parsed once, and nothing else changes."""

import json
from pathlib import Path
from typing import Any

import pytest

from gossip.launch.report import growing
from gossip.launch.report.growing import TAILS_KEPT, GrowingFile, parse_line


def row(peer: int, number: int, **more: Any) -> bytes:
    told = {"t": 1.5, "peer": peer, "event": "round", "round": number, "contributors": [0, number]}
    told |= {"trust": {"0": 1.0}, **more}
    return json.dumps(told, separators=(",", ":")).encode()


def test_the_rows_are_those_of_the_lines() -> None:
    lines = [row(peer, number) for number in range(3 * TAILS_KEPT) for peer in range(3)]
    assert [parse_line(line, "events.jsonl") for line in lines] == [
        json.loads(line) for line in lines
    ]


def test_what_peers_tell_alike_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes | str] = []

    def parse(data: bytes | str) -> Any:
        parsed.append(data)
        return json.loads(data)

    monkeypatch.setattr(growing, "parse_json", parse)
    growing._parse_tail.cache_clear()
    for peer in range(200):
        parse_line(row(peer, 7), "events.jsonl")
    assert sum("trust" in str(each) for each in parsed) == 1


@pytest.mark.parametrize(
    "line",
    [
        b'{"a":{"b":1,"contributors":[1]},"c":2}',
        b'{"a":"x,\\"contributors\\":","b":1,"contributors":[1]}',
        b'{"a":1,"contributors":[1],"b":{"d":1,"contributors":[2]}}',
    ],
)
def test_where_the_name_stands_elsewhere_the_line_is_parsed_as_a_whole(line: bytes) -> None:
    assert parse_line(line, "events.jsonl") == json.loads(line)


def test_a_line_that_is_no_json_is_torn(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(row(0, 1)[:-5] + b"\n" + row(1, 1) + b"\n")
    file = GrowingFile(tmp_path, "events.jsonl")
    assert [each["peer"] for each in file.rows()] == [1]
    assert file.refused == 1


@pytest.mark.parametrize(
    "line", [b' {"a":1} ', b'\xef\xbb\xbf{"a":1}', b'{"a":1} {"b":2}', b"[" * 9999]
)
def test_a_line_without_the_name_is_parsed_or_refused_as_by_json(line: bytes) -> None:
    try:
        expected = growing.parse_json(str(line, "utf-8"))
    except ValueError:
        with pytest.raises(ValueError):
            parse_line(line, "events.jsonl")
    else:
        assert parse_line(line, "events.jsonl") == expected
