"""Hooks for the documentation site, so that links work both on a code host and on the site:
README.md becomes the home page, and each file outside of docs/ that a page links to
becomes a page, too."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
HOME = "README.md"
LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?=\))")
CELL = re.compile(r"<t[dh][ >].*?</t[dh]>", re.DOTALL)
CODE = re.compile(r"^( *)(```+).*?^\1\2 *$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside of docs/ that a page links to, and for files that these
    files link to."""
    pages = {file.src_uri: file.content_string for file in files.documentation_pages()}
    waiting = [(f"docs/{uri}", text) for uri, text in pages.items()] + [(HOME, _read(HOME))]
    added: dict[str, str] = {HOME: _read(HOME)}
    while waiting:
        path, text = waiting.pop()
        for target in _linked(path, text):
            if target.startswith("docs/") or target in added:
                continue
            added[target] = _read(target)
            if target.endswith(".md"):
                waiting.append((target, added[target]))
    for path, text in added.items():
        is_page = path.endswith(".md")
        content = text if is_page else _listing(path, text)
        level = InclusionLevel.INCLUDED if is_page else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, _uri(path), content=content, inclusion=level))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the links of a page by links to pages of the site."""
    path = _path(page.file.src_uri, files)
    here = posixpath.dirname(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link["target"]))
        return posixpath.relpath(_uri(target), here or ".") + (link["anchor"] or "")

    parts, end = [], 0
    for code in CODE.finditer(markdown):
        parts += [LINK.sub(moved, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, LINK.sub(moved, markdown[end:])])


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove the escape of vertical bars in the code of cells: code hosts need it, but the site
    would show the backslash."""
    return CELL.sub(lambda cell: cell[0].replace(r"\|", "|"), html)


def _linked(path: str, text: str) -> list[str]:
    """Return the files of the repository that a page links to."""
    folder = posixpath.dirname(path)
    found = (link["target"] for link in LINK.finditer(CODE.sub("", text)))
    return [posixpath.normpath(posixpath.join(folder, target)) for target in found]


def _read(path: str) -> str:
    try:
        return (ROOT / path).read_text("utf-8")
    except OSError as error:
        raise PluginError(f"a page links to {path}, which cannot be read: {error}") from error


def _uri(path: str) -> str:
    """Return the path on the site of a file of the repository."""
    if path == HOME:
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if path.endswith(".md") else f"{path}.md"


def _path(uri: str, files: Files) -> str:
    """Return the file of the repository that a page of the site is made from."""
    if uri == "index.md":
        return HOME
    file = files.get_file_from_path(uri)
    outside = file is not None and file.generated_by is not None
    return uri if outside else f"docs/{uri}"


def _listing(path: str, text: str) -> str:
    """Return a page that shows a source file."""
    language = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".svg": "xml"}
    return f"# {path}\n\n```{language.get(Path(path).suffix, 'text')}\n{text}```\n"
