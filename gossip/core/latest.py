"""Dictionary that stores only the latest entries."""

from __future__ import annotations

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Latest(dict[Key, Value]):
    """Dictionary with at most ``most`` entries. A new key removes the oldest key. A key that is set
    again keeps its place."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        if len(self) > self.most:
            del self[next(iter(self))]
