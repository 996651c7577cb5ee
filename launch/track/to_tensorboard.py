"""Export to TensorBoard: event files in ``RUN/tensorboard``."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from .base import Point, RunDescription

QUEUE = 1000


class TensorBoard:
    """Exports values as scalars, and events as text. It replaces an earlier export of the run."""

    def __init__(self, folder: Path) -> None:
        if folder.is_dir():
            shutil.rmtree(folder)
        self._writer = EventFileWriter(str(folder), max_queue_size=QUEUE)

    def begin(self, about: RunDescription) -> None:
        rows = {**about.tags, **about.settings}
        lines = [f"|{_cell(key)}|{_cell(value)}|" for key, value in rows.items()]
        table = "\n".join(["|setting|value|", "|---|---|", *lines])
        self._text("run", 0, about.began, table)

    def points(self, points: Sequence[Point]) -> None:
        for point in points:
            value = summary_pb2.Summary.Value(tag=point.name, simple_value=point.value)
            self._add(point.step, point.at, value)
        self._writer.flush()

    def log_event(self, step: int, at: float, text: str) -> None:
        self._text("events", step, at, text)

    def close(self) -> None:
        self._writer.close()

    def _text(self, tag: str, step: int, at: float, text: str) -> None:
        about = create_summary_metadata(display_name=tag, description="")
        tensor = make_tensor_proto([text.encode()], shape=(1,))
        self._add(step, at, summary_pb2.Summary.Value(tag=tag, metadata=about, tensor=tensor))

    def _add(self, step: int, at: float, value: summary_pb2.Summary.Value) -> None:
        summary = summary_pb2.Summary(value=[value])
        self._writer.add_event(event_pb2.Event(wall_time=at, step=step, summary=summary))


def _cell(text: str) -> str:
    """Escape the text of a Markdown table cell: a bar, as in the event of a partition, would end
    the cell."""
    return text.replace("|", "\\|")


def open_tracker(folder: Path) -> TensorBoard:
    """Open the tracker of the run in ``folder``."""
    return TensorBoard(folder / "tensorboard")
