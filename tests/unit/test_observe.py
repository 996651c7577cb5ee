"""Events are what their rows say, whatever else the rows say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gossip.launch.report.growing import parse_line
from gossip.observe import (
    EVENTS,
    ContributionRow,
    Event,
    documents,
    events,
    read_commits,
    read_event,
)


def test_an_event_has_the_fields_of_its_row_and_none_in_place_of_the_others() -> None:
    event = read_event({"t": 1.0, "peer": 2, "event": "restored", "round": 7, "from": 1, "x": 3})
    assert event == events.Restored(t=1.0, peer=2, round=7, from_=1)  # type: ignore[call-arg]
    assert isinstance(event, events.Restored)
    assert event.nbytes is None


def test_a_row_that_is_written_is_read_as_the_same_event() -> None:
    event = events.Lingering(peer=1, for_=[0, 2], at_most_s=5.0)
    row = event.to_row(3.0, 4.0)
    assert list(row) == ["t", "wall", "peer", "event", "for", "at_most_s"]
    assert read_event({**row}) == events.Lingering(t=3.0, wall=4.0, **vars(event))


@pytest.mark.parametrize(
    "row",
    [{"event": "skip", "peer": 1}, {"event": "skip", "subject": 1}, {"event": "later"}, {}],
    ids=("no subject", "no peer", "unknown", "nothing"),
)
def test_a_row_of_no_known_kind_is_an_event_all_the_same(row: dict[str, Any]) -> None:
    assert type(read_event({"t": 1.0, **row})) is Event


def test_a_script_may_log_anything_as_its_loss() -> None:
    event = read_event({"event": "metrics", "peer": 0, "loss": "nan", "acc": 1, "t": None})
    assert event == events.Metrics(t=0.0, peer=0, loss=None, accuracy=1)


def test_the_names_of_fields_leave_the_methods_alone() -> None:
    for kind in EVENTS.values():
        assert not {"name", "to_row", "to_fields", "wrap", *Event.fields} & {
            *kind.fields.keys() - Event.fields.keys()
        }


def test_the_end_of_a_line_is_checked_as_its_event_and_under_no_second_name() -> None:
    end = ',"contributors":[0],"reasons":7}'
    parse_line(f'{{"event":"round","round":1{end}'.encode(), "events.jsonl")
    with pytest.raises(ValueError, match="reasons"):
        parse_line(f'{{"event":"suspected","round":1{end}'.encode(), "events.jsonl")
    twice = b'{"event":"x","loss":"high","contributors":[0],"event":"round"}'
    with pytest.raises(ValueError, match="loss"):
        parse_line(twice, "events.jsonl")
    assert parse_line(json.dumps({"event": "x", "loss": "high"}).encode(), "events.jsonl")


@pytest.mark.parametrize("file", ["commits.jsonl", "metrics.jsonl"])
def test_a_file_without_events_may_have_anything_as_its_event(file: str) -> None:
    row = {"event": [1], "round": 1, "contributors": []}
    assert parse_line(json.dumps(row, separators=(",", ":")).encode(), file) == row


def test_a_commit_has_the_fields_of_its_row_and_defaults_in_place_of_the_others() -> None:
    part = {"peer": 2, "samples": None, "took_us": 2500}
    row = {"t": 1.0, "round": 3, "server": 1, "shard": None, "contributors": [part], "x": 1}
    [commit] = read_commits([row, {"round": 3}, {"server": 1}])
    assert (commit.round, commit.server, commit.shard, commit.reason) == (3, 1, 0, "")
    assert ContributionRow(peer=2, took_us=2500) in commit.contributors
    assert (commit.contributors[0].update_s, commit.contributors[0].samples) == (0.0025, 0)


def test_a_document_has_what_is_of_its_type_and_defaults_in_place_of_the_rest() -> None:
    told = {"name": "digits", "peers": "many", "rounds": 7.5, "resume": None, "faults": ["x", 1]}
    assert documents.RunSettings.pick(told) == documents.RunSettings(name="digits")
    assert documents.RunSettings.pick(told).local_steps == 1
    assert documents.RunSettings.pick([told]) == documents.RunSettings()
