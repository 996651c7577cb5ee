"""Licences of installed distributions, and whether a package under Apache-2.0 may depend on them.

python licences.py  # prints name and licence of all that this Python can import"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from importlib.metadata import Distribution, distributions

ALLOWED = re.compile(
    r"MIT|0?BSD|Apache|ISC|Python Software Foundation|Python-2\.0|PSF|CNRI|Zlib|Unlicense|CC0|HPND|"
    r"Historical Permission|MPL|Mozilla|Boost|BSL-1\.0|LLVM|FTL|bzip2|blessing|X11|NCSA|curl",
    re.IGNORECASE,
)
"""Permissive licences, and the Mozilla licence, whose copyleft ends with the file."""
COPYLEFT = re.compile(r"GPL|General Public|EUPL|SSPL|CC-BY-(?:NC|SA)", re.IGNORECASE)
OF_TORCH = re.compile(r"(?:nvidia|cuda)-")
"""Libraries of torch's builds for GPUs: proprietary. Torch's wheels ask for them on some indexes;
none of our packages names or ships one."""
UNKNOWN = "unknown"


def licence_of(distribution: Distribution) -> str:
    """Return the licence that the metadata of a distribution name."""
    metadata = distribution.metadata.json
    if expression := metadata.get("license_expression"):
        return str(expression)
    classifiers = [each.split(" :: ") for each in metadata.get("classifier", ())]
    named = [each[-1] for each in classifiers if each[0] == "License" and len(each) > 2]
    text = str(metadata.get("license") or UNKNOWN)
    return " AND ".join(named) or text.strip().split("\n")[0]


def is_allowed(licence: str) -> bool:
    """Whether Apache-2.0 can stand beside a licence: one side of each OR, both of each AND."""
    choices = re.split(r"\s+OR\s+", licence.replace("(", " ").replace(")", " "))
    return any(
        all(
            ALLOWED.search(part) is not None and COPYLEFT.search(part) is None
            for part in re.split(r"\s+AND\s+|\s*;\s*", choice)
        )
        for choice in choices
    )


def problems(licences: Mapping[str, str]) -> list[str]:
    """Return a line for each distribution with a licence that is unknown or not allowed."""
    return [
        f"{name}: {licence}: unknown, or Apache-2.0 cannot stand beside it"
        for name, licence in sorted(licences.items())
        if not is_allowed(licence) and OF_TORCH.match(name) is None
    ]


def table_of(licences: Mapping[str, str]) -> str:
    """Return a row for each licence, with the distributions that have it."""
    grouped = defaultdict(list)
    for name, licence in sorted(licences.items()):
        grouped[licence].append(name)
    rows = sorted(grouped.items(), key=lambda row: -len(row[1]))
    return "\n".join(f"{len(names):4}  {licence}: {', '.join(names)}" for licence, names in rows)


def main() -> None:
    """Print a row for each installed distribution."""
    for each in distributions():
        print(each.metadata["Name"].lower(), licence_of(each).replace("\t", " "), sep="\t")


if __name__ == "__main__":
    main()
