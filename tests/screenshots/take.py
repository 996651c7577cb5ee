"""Screenshots of ``gossip report`` in a headless Chromium: light and dark, 400 and 1,600 pixels
wide; and what can be seen in them without eyes.

    python tests/screenshots/take.py --into shots                # made-up runs of 8 and 200 peers
    python tests/screenshots/take.py --into shots runs/mine      # real ones
    python tests/screenshots/take.py --into shots --docs docs runs/mine   # the pictures of the docs

The page is opened from its file. It must not ask for anything else, say anything on its console,
be wider than the screen, cut a text, break a short word, or have two words on each other in a
picture.

Exit codes: 0 nothing was found, 1 something was, 2 there is no Chromium or no playwright.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from made_up_run import MadeUp, write  # noqa: E402

from gossip.launch.report.html import page  # noqa: E402

WIDTHS, SCHEMES = (400, 1600), ("light", "dark")
MADE_UP = (MadeUp(rounds=1500, peers=8, pace=25.0), MadeUp(rounds=300, peers=200, pace=10.0))
# A page can be higher than what a GPU, or its emulation, draws at once.
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
IN_DOCS = (
    ("report", 1100, "light", "section:has(#incidents)"),
    ("report-narrow", 400, "dark", "section:has(#membership)"),
    ("concepts-lanes", 1100, "light", "section:has(#membership)"),
    ("concepts-trust", 1100, "light", "section:has(#trust)"),
)
"""Name of a picture, width, scheme, which part of the page."""
FOUND = """() => {
  const found = [];
  const named = (each) => `${each.tagName.toLowerCase()} ${(each.textContent || "").slice(0, 40)}`;
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) found.push(`the page is ${wide} px wide, the screen ${innerWidth}`);
  for (const each of document.querySelectorAll("p, h1, h2, h3, h4, li, dd, dt, td, th, b, a")) {
    if (each.matches(".hidden")) continue;
    const style = getComputedStyle(each);
    if (each.clientWidth && each.scrollWidth > each.clientWidth + 1 && style.overflow !== "visible")
      found.push(`cut: ${named(each)}`);
  }
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const hidden = text.parentElement.closest("thead, .hidden");
    if (hidden && hidden.getBoundingClientRect().width <= 1) continue;
    for (const word of text.data.matchAll(/\\S+/g)) {
      if (word[0].length > 20 || !/^[\\w.:]+$/.test(word[0])) continue;
      const range = document.createRange();
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map((each) => Math.round(each.top))).size > 1)
        found.push(`broken: ${word[0]} in ${named(text.parentElement)}`);
    }
  }
  for (const each of document.querySelectorAll(".scroll")) {
    if (each.scrollWidth > each.clientWidth + 1)
      found.push(`a table is cut: ${each.getAttribute("aria-label")}`);
  }
  for (const plot of document.querySelectorAll(".plot")) {
    const words = [...plot.querySelectorAll(".badges span, .x span, .y span, .y b")];
    const boxes = words.map((each) => each.getBoundingClientRect());
    for (let i = 0; i < words.length; i++) {
      if (boxes[i].left < -0.5 || boxes[i].right > innerWidth + 0.5)
        found.push(`beyond the screen: ${named(words[i])}`);
      for (let j = i + 1; j < words.length; j++) {
        const [a, b] = [boxes[i], boxes[j]];
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        const apart = words[i].closest(".x") && words[j].closest(".x") ? 3 : -1;
        if (across > -apart && down > 1)
          found.push(`on each other: ${named(words[i])} | ${named(words[j])}`);
      }
    }
  }
  return found;
}"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--into", type=Path, default=Path("screenshots"))
    parser.add_argument("--docs", type=Path, help="Take the pictures of the docs, too.")
    options = parser.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        print("playwright is not installed: pip install playwright", file=sys.stderr)
        return 2
    with sync_playwright() as playwright:
        chromium = _chromium(playwright)
    if chromium is None:
        print(
            "there is no Chromium: install it (apt-get install chromium, or playwright install "
            "chromium), or name one with CHROMIUM=PATH",
            file=sys.stderr,
        )
        return 2
    options.into.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        pages = _pages(options.runs, Path(scratch), options.into)
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        for path in pages:
            for width in WIDTHS:
                for scheme in SCHEMES:
                    picture = options.into / f"{path.stem}-{width}-{scheme}.png"
                    problems += _take(browser, path, width, scheme, picture)
        for name, width, scheme, part in IN_DOCS if options.docs else ():
            tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            tab.goto(pages[0].as_uri())
            tab.add_style_tag(content="section { padding: 12px }")
            tab.locator(part).screenshot(path=options.docs / f"{name}.png")
            _take_fewer_colours(options.docs / f"{name}.png")
            tab.close()
        browser.close()
    print("\n".join(problems) or f"nothing was found; pictures are in {options.into}/")
    return 1 if problems else 0


def _chromium(playwright: Any) -> str | None:
    """The one that is named, or on the path, or that playwright has installed."""
    named = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    own: str = playwright.chromium.executable_path
    return named or (own if Path(own).exists() else None)


def _take_fewer_colours(picture: Path) -> None:
    """A picture of text and areas needs no more than 256: a third of the bytes."""
    from PIL import Image

    Image.open(picture).convert("RGB").quantize(256).save(picture, optimize=True)


def _pages(runs: list[Path], scratch: Path, into: Path) -> list[Path]:
    """The page of each run, unfolded, so that all of it is looked at."""
    folders = list(runs)
    for run in () if runs else MADE_UP:
        folder = scratch / f"{run.peers}-peers"
        write(run, folder)
        folders.append(folder)
    made = []
    for folder in folders:
        path = into.resolve() / f"{folder.name}.html"
        path.write_text(page.render(page.make(folder)))
        made.append(path)
    return made


def _take(browser: Any, path: Path, width: int, scheme: str, picture: Path) -> list[str]:
    """Takes one screenshot of the whole page. Returns what is wrong with it."""
    found: list[str] = []
    asked: list[str] = []
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab.on("console", lambda message: found.append(f"console: {message.text}"))
    tab.on("pageerror", lambda error: found.append(f"script: {error}"))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(path.as_uri())
    tab.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    found += tab.evaluate(FOUND)
    tab.screenshot(path=picture, full_page=True)
    tab.close()
    found += [f"asks for {url}" for url in asked if url != path.as_uri() and url[:5] != "data:"]
    return [f"{picture.name}: {each}" for each in found]


if __name__ == "__main__":
    sys.exit(main())
