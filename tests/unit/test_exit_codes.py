from __future__ import annotations

import re
from pathlib import Path

import pytest

from gossip.errors import GossipError
from gossip.launch.report.exit_codes import CODES, explain

DOCS = Path(__file__).resolve().parents[2] / "docs" / "exit_codes.md"


def test_the_documented_table_says_what_the_command_says() -> None:
    rows = re.findall(
        r"^\| (\d+) \| `(\w+)`.*? \| (.+?) \| ?(.*?) ?\|$", DOCS.read_text(), re.MULTILINE
    )
    documented = {int(code): (status, meaning, action) for code, status, meaning, action in rows}
    assert documented == {
        code: (each.status, each.meaning, each.action) for code, each in CODES.items()
    }


def test_every_code_that_a_run_or_an_error_ends_with_is_explained() -> None:
    def kinds(kind: type[GossipError]) -> set[type[GossipError]]:
        return {kind}.union(*(kinds(below) for below in kind.__subclasses__()))

    assert {kind.exit_code for kind in kinds(GossipError)} <= set(CODES)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (5, "quorum_lost"),
        (137, "killed by SIGKILL; the system does that when memory runs out"),
        (139, "SIGSEGV"),
        (77, "the script"),
    ],
)
def test_any_code_gets_an_answer(code: int, says: str) -> None:
    assert says in "\n".join(explain(code))
