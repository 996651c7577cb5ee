"""Values of options, read from a text."""

from typing import Any, Literal

import pytest

from gossip.errors import UnknownName
from gossip.specs import read_value


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("auto", float | Literal["auto"], "auto"),
        ("1e-3", float | Literal["auto"], 0.001),
        ("None", Literal["all"] | int | None, None),
        ("2", Literal[1, 2] | str, 2),
        ("none", Literal["mean", "sum"] | None, None),
    ],
)
def test_a_union_with_literals_also_reads_its_other_types(text: str, kind: Any, value: Any) -> None:
    assert read_value("mine", "scale", text, kind) == value


def test_a_value_of_no_type_of_a_union_is_told_all_of_them() -> None:
    with pytest.raises(UnknownName, match="unknown value of mine's scale 'autp'") as caught:
        read_value("mine", "scale", "autp", float | Literal["auto"])
    assert caught.value.hint == "known: auto, a number"
