"""A terminal that is as much of one as the launcher uses: what stands on it after what was
written."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+|\x1b")


class Terminal:
    """Of ``width`` columns and ``height`` rows, with all that has scrolled away.

    Attributes:
        lines: From the first to that with the cursor, or those below it.
        broken: Lines that were wider than the terminal.
        modes: What was set and must be set back, such as a hidden cursor.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.lines, self.broken, self.modes = [""], list[str](), list[str]()
        self._row = self._column = 0
        self._rest = ""

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def cursor(self) -> tuple[int, int]:
        """Row and column."""
        return self._row, self._column

    def feed(self, written: str) -> None:
        written, self._rest = self._rest + written, ""
        if cut := re.search(r"\x1b(\[[?0-9;]*)?$", written):  # the rest of it comes later
            written, self._rest = written[: cut.start()], cut[0]
        for token in _TOKEN.finditer(written):
            self._obey(token)

    def narrow(self, width: int) -> None:
        """Lines that are too wide now are broken, as most terminals do. The cursor stays with its
        line."""
        rows = [
            [line[at : at + width] for at in range(0, max(len(line), 1), width)]
            for line in self.lines
        ]
        self._row = sum(map(len, rows[: self._row]))
        self.lines, self.width = [part for parts in rows for part in parts], width

    def _obey(self, token: re.Match[str]) -> None:
        match token[0], token[2]:
            case "\r", _:
                self._column = 0
            case "\n", _:
                self._down()
            case _, "A":
                top = max(0, len(self.lines) - self.height)
                self._row = max(self._row - int(token[1] or 1), top)
            case _, "J":
                self.lines[self._row] = self.lines[self._row][: self._column]
                del self.lines[self._row + 1 :]
            case _, "m":
                pass  # colours
            case text, None:
                for character in text:
                    self._put(character)
            case mode, _:
                self.modes.append(mode)

    def _put(self, character: str) -> None:
        if self._column >= self.width:
            self.broken.append(self.lines[self._row])
            self._down()
        line = self.lines[self._row].ljust(self._column)
        self.lines[self._row] = line[: self._column] + character + line[self._column + 1 :]
        self._column += 1

    def _down(self) -> None:
        self._row, self._column = self._row + 1, 0
        if self._row == len(self.lines):
            self.lines.append("")
