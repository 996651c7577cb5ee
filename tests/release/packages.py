"""Builds the packages as they are published, from a fresh clone of what is committed.

On a package index no link of a README leads to a file beside it. So the address of the repository,
which only the release knows, makes the links absolute and becomes the URLs of the packages."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "gossip-train": ".",
    "gossip-pipelines": "extras/pipelines",
    "gossip-lab": "extras/lab",
    "gossip-clusters": "extras/clusters",
}
"""Packages and their folders; none needs one that stands after it."""
NOWHERE = "https://repository.invalid/gossip"
"""Address of the repository until the release names one. No package that has it can be uploaded."""
LINK = re.compile(r"(?P<opening>!?\[[^]]*\]\()(?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")


def clone(folder: Path) -> str:
    """Clone the repository into ``folder``. Returns the commit."""
    for words in (["clone", "--quiet", str(ROOT), str(folder)], ["-C", str(folder), "log", "-1"]):
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=True)
    return done.stdout.split()[1]


def make_links_absolute(text: str, folder: Path, root: Path, base: str) -> str:
    """Return the text of a README with links to the repository in place of relative ones.

    Args:
        folder: Folder of the README.
        base: Address of the repository.
    """
    version = project(root)["version"]

    def absolute(link: re.Match[str]) -> str:
        file = (folder / link["target"]).resolve()
        if not file.is_relative_to(root.resolve()) or not file.exists():
            return link[0]
        kind = "raw" if link["opening"].startswith("!") else "tree" if file.is_dir() else "blob"
        path = file.relative_to(root.resolve())
        return f"{link['opening']}{base}/{kind}/v{version}/{path}{link['anchor'] or ''})"

    return LINK.sub(absolute, text)


def project(folder: Path) -> dict[str, str]:
    """Return the table ``project`` of the pyproject.toml in a folder."""
    table: dict[str, str] = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    return table


def add_address(root: Path, base: str) -> None:
    """Write the address of the repository into the READMEs and the metadata of a clone."""
    for place in PACKAGES.values():
        folder = root / place
        readme, settings = folder / "README.md", folder / "pyproject.toml"
        readme.write_text(make_links_absolute(readme.read_text("utf-8"), folder, root, base))
        blob = f"{base}/blob/v{project(root)['version']}"
        urls = (
            "[project.urls]\n"
            f'Source = "{base}"\n'
            f'Documentation = "{blob}/docs/tour.md"\n'
            f'Changelog = "{blob}/CHANGELOG.md"\n'
        )
        settings.write_text(f"{settings.read_text('utf-8')}\n{urls}")


def build(root: Path, dist: Path, python: str) -> list[Path]:
    """Build each sdist, and from it the wheel, in environments that are made for it.

    Args:
        python: An interpreter with the package ``build``.
    Raises: subprocess.CalledProcessError: A package cannot be built.
    """
    for place in PACKAGES.values():
        words = [python, "-m", "build", "--outdir", str(dist), str(root / place)]
        subprocess.run(words, capture_output=True, text=True, check=True)
    return sorted(dist.iterdir())


def main() -> None:
    """Build the packages into a folder; `make package`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    parser.add_argument("--source", default="", help="address of the repository, for an upload")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "gossip"
        print(f"commit {clone(root)}; what is not committed is left out")
        if options.source:
            add_address(root, options.source)
        try:
            for path in build(root, options.dist, sys.executable):
                print(path)
        except subprocess.CalledProcessError as error:
            sys.exit(f"{error}\n{error.stdout}{error.stderr}")


if __name__ == "__main__":
    main()
