"""The demo's curves as a picture: accuracy against rounds for each run, with its events.

python benchmarks/demo_picture.py runs/demo-1234 docs/demo.png
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib import pyplot

from gossip.config import RunConfig
from gossip.run import read_json, read_lines

INK, MUTED, BLUE, RED = "#1a1a1a", "#8a8a8a", "#1f5fbf", "#c23b22"


def draw(folder: Path, picture: Path) -> None:
    """Draw the runs of a demo's folder into a picture in the format of its name, such as PNG."""
    config = RunConfig.load(folder / "config.json")
    summary = read_json(folder / "summary.json") or {}
    honest = [peer for peer in range(config.peers) if peer not in config.plan.byzantine]
    figure, axes = pyplot.subplots(figsize=(8, 4), dpi=150)
    curves = (
        (
            folder,
            f"{config.aggregator}, {len(config.plan.byzantine)} of {config.peers} peers Byzantine",
            BLUE,
            "-",
        ),
        (folder / "plain", "plain averaging, the same faults", RED, "-"),
        (folder / "alone", "one process, no faults", MUTED, "--"),
    )
    for where, label, colour, style in curves:
        rounds, accuracies = _curve(where, honest)
        if rounds:
            axes.plot(rounds, accuracies, style, color=colour, label=label, linewidth=1.8)
    for number, death in enumerate(summary.get("deaths", ())):
        axes.axvline(death["round"], color=INK, linewidth=0.8, linestyle=":")
        noticed = (
            f",\n skipped by all in {death['skip_ms']:.0f} ms"
            if death["skip_ms"] is not None
            else ""
        )
        axes.annotate(
            f" peer {death['peer']} killed{noticed}",
            (death["round"], 0.74 - 0.1 * (number % 4)),
            fontsize=8,
            color=INK,
        )
    suspicion = {
        peer: why["round"]
        for peer, why in summary.get("suspicion", {}).items()
        if why.get("round") is not None
    }
    if suspicion:
        axes.plot(
            list(suspicion.values()),
            [0.02] * len(suspicion),
            "v",
            color=BLUE,
            markersize=6,
            clip_on=False,
        )
        label = (
            f"  {', '.join(suspicion)} suspected from round "
            f"{', '.join(map(str, sorted(set(suspicion.values()))))}"
        )
        # The curve of plain averaging rises in its first rounds, so the text is to the right of it.
        at = (max(suspicion.values()) + 0.05 * (config.rounds or 0), 0.02)
        axes.annotate(label, at, fontsize=8, color=BLUE)
    axes.set(xlabel="round", ylabel="test accuracy", ylim=(0, 1.02), xlim=(0, config.rounds))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center right", bbox_to_anchor=(1.0, 0.4), fontsize=9)
    figure.tight_layout()
    figure.savefig(picture)


def _curve(folder: Path, peers: list[int]) -> tuple[list[int], list[float]]:
    """Return the evaluated rounds, and for each the mean accuracy of the honest peers that tested
    then."""
    found: dict[int, list[float]] = {}
    paths = [
        folder / "metrics.jsonl",
        *(folder / f"peer-{peer}" / "metrics.jsonl" for peer in peers),
    ]
    for path in paths:
        for row in read_lines(path):
            if isinstance(row.get("accuracy"), int | float) and isinstance(row.get("round"), int):
                found.setdefault(row["round"], []).append(float(row["accuracy"]))
    rounds = sorted(found)
    return rounds, [sum(found[number]) / len(found[number]) for number in rounds]


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
