"""``docs/glossary.md`` is a short table in alphabetical order."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "glossary.md"
TERMS_MAX = 70


def test_each_term_has_one_sentence() -> None:
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    terms = [term for term, _ in rows[1:]]
    assert terms == sorted(terms, key=str.lower)
    assert len(set(terms)) == len(terms) <= TERMS_MAX
    assert [term for term, text in rows[1:] if not text.endswith((".", ")."))] == []
