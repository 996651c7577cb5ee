"""No dangling citation: a page that code, docs or tests name is in the repository, and so is each
note that they cite."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    "gossip",
    "aggregators",
    "topologies",
    "launch",
    "tests",
    "benchmarks",
    "examples",
    "docs",
)
SUFFIXES = {".py", ".md", ".toml", ".txt"}

PAGE = re.compile(r"(?<![\w./{}*-])[\w.-]+(?:/[\w.-]+)*\.md\b", re.ASCII)
URL = re.compile(r"\bhttps?://\S+")
WRITTEN = re.compile(r"logbook(-N)?\.md")
"""Pages that a run writes into its folder."""
INVENTED = {"page.md", "docs/page.md", "index.md"}
"""Pages that tests write into folders of their own, and the home page of the site."""

NOTES = "docs/design_notes.md"
CITED = re.compile(r"design_notes\.md((?:(?:,|:|-| to| and)? ?[NSL]\d+)+)")
NOTE = re.compile(r"^(?:### (N\d+) |\| ([SL]\d+) \|)", re.MULTILINE)
WRAP = re.compile(r"\s*\n\s*(?:#\s*)?")
"""A line's end inside of a comment or a docstring."""


def sources(root: Path) -> Iterator[Path]:
    """What may cite a page. Links are not followed."""
    found = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*"))]
    for path in [*found, *sorted(root.iterdir())]:
        if path.is_file() and (path.suffix in SUFFIXES or path.name == "Makefile"):
            yield path


def dangling(root: Path) -> list[str]:
    """``file: what it names`` for each page that is not there."""
    missing = []
    for path in sources(root):
        for page in PAGE.findall(URL.sub("", path.read_text("utf-8"))):
            here = any((folder / page).is_file() for folder in (root, root / "docs", path.parent))
            if not here and not WRITTEN.fullmatch(page) and page not in INVENTED:
                missing.append(f"{path.relative_to(root)}: {page}")
    return missing


def unknown_notes(root: Path) -> list[str]:
    """``file: number`` for each note that is cited and does not exist."""
    there = {number for pair in NOTE.findall((root / NOTES).read_text("utf-8")) for number in pair}
    missing = []
    for path in sources(root):
        for cited in CITED.findall(WRAP.sub(" ", path.read_text("utf-8"))):
            missing += [
                f"{path.relative_to(root)}: {number}"
                for number in re.findall(r"[NSL]\d+", cited)
                if number not in there
            ]
    return missing


def test_every_page_that_is_named_is_in_the_repository() -> None:
    assert dangling(ROOT) == []


def test_every_note_that_is_cited_exists() -> None:
    assert unknown_notes(ROOT) == []


def test_the_list_of_pages_leads_to_every_page() -> None:
    assert "(docs/tour.md#pages)" in (ROOT / "README.md").read_text("utf-8")
    listed = (ROOT / "docs" / "tour.md").read_text("utf-8").partition("## Pages")[2]
    linked = set(re.findall(r"\]\(([\w-]+\.md)", listed))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - linked == {"tour.md"}
