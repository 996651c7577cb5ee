"""Links of the pages lead somewhere, on a code host as on the site (`make docs` builds that, and
asks the same of it), and each page has a place in its navigation."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "extras").glob("*/README.md")),
]
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]*))?\)")
WEB_LINK = re.compile(r"(?:\]\(|<)(\w*://[^)>\n]*)")
BLOCK = re.compile(r"^( *)(`{3,}).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")


def prose(page: Path) -> str:
    return BLOCK.sub("", page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of its headings, as code hosts and the site name them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def broken(page: Path) -> list[str]:
    found = []
    for target, anchor in LINK.findall(CODE.sub("", prose(page))):
        there = (page.parent / target).resolve() if target else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            found.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    return found


def is_web_address(address: str) -> bool:
    """Whether an address can be of a page on the web; nothing is fetched."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    host = re.fullmatch(r"(?:[a-z0-9-]+\.)+[a-z]{2,}(?::\d+)?", parts.netloc)
    return parts.scheme in ("http", "https") and host is not None and " " not in address


def test_each_link_to_the_web_is_an_address() -> None:
    found = [link for page in PAGES for link in WEB_LINK.findall(prose(page))]
    assert [link for link in found if not is_web_address(link)] == []
    assert len(found) > 5


def test_each_link_leads_to_a_file_and_a_heading() -> None:
    assert [link for page in PAGES for link in broken(page)] == []


def test_each_page_is_in_the_navigation_of_the_site_once() -> None:
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:\n")[1]
    named = re.findall(r"[\w/]+\.md", nav)
    assert len(named) == len(set(named))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= set(named)
