"""Notes of people in the folder of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gossip.errors import ConfigError
from gossip.launch.report import notes
from gossip.launch.report.run_reader import RunReader


def read(folder: Path) -> list[notes.Note]:
    reader = RunReader(folder)
    reader.update()
    return reader.notes


def test_a_note_is_read_back_and_stands_in_the_logbook(tmp_path: Path) -> None:
    (tmp_path / "logbook.md").write_text("# run\n\n- started\n")
    written = notes.write(tmp_path, "  lowered the\nlearning rate ")
    notes.write(tmp_path, "and raised it again")

    first, second = read(tmp_path)

    assert first == written
    assert (first.text, second.text) == ("lowered the learning rate", "and raised it again")
    lines = (tmp_path / "logbook.md").read_text().splitlines()
    assert lines[2] == "- started"
    assert lines[3].endswith(f"note by {first.by}: lowered the learning rate")
    assert len(lines) == 5


def test_a_line_that_was_cut_off_and_one_of_somebody_else_do_not_hide_the_others(
    tmp_path: Path,
) -> None:
    notes.write(tmp_path, "one")
    with (tmp_path / notes.FILE).open("a") as file:
        file.write('{"text": 3}\n[1]\n{"wall": 1.0, "te\n')
    notes.write(tmp_path, "two \x1b[2J")
    assert [note.text for note in read(tmp_path)] == ["one", "two \\x1b[2J"]


@pytest.mark.parametrize("text", ["", " \n ", "x" * (notes.NOTE_MAX + 1)])
def test_an_empty_and_an_endless_note_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="note"):
        notes.write(tmp_path, text)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [notes.FILE, notes.LOGBOOK])
def test_a_link_that_leads_out_of_the_folder_is_not_written_through(
    name: str, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine\n")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / name).symlink_to(outside)
    with pytest.raises(ConfigError, match=name):
        notes.write(folder, "text")
    assert outside.read_text() == "mine\n"


@pytest.mark.parametrize("name", [notes.FILE, notes.LOGBOOK])
def test_nor_is_a_second_name_or_a_pipe(name: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine\n")
    folder = tmp_path / "run"
    folder.mkdir()
    os.link(outside, folder / name)
    with pytest.raises(ConfigError, match=name):
        notes.write(folder, "text")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ConfigError, match=name):
        notes.write(folder, "text")
    assert outside.read_text() == "mine\n"


def test_a_run_without_notes_has_none(tmp_path: Path) -> None:
    assert read(tmp_path) == []
