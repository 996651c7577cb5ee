"""The table of habits: what each should come to in each situation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Habit:
    group: str
    refused: str = ""
    numbers: bool = True
    words: tuple[str, ...] = ()
    stdin: str = ""


HABITS = {"sgd": Habit("optimizers")}
