"""Runs public training scripts with the documented lines, and compares four peers with one process
that has four times larger batches. One of the four peers hangs for 3 s, another is killed and
restarted.

``python run_scripts.py CHECKOUTS --work FOLDER`` prints a table.
``docs/results/public_scripts.md`` lists the data that FOLDER must have. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from scripts import SCRIPTS, PublicScript

HERE = Path(__file__).resolve().parent
PEERS = 4


def substitute(text: str, edits: dict[str, str], where: str) -> str:
    """Return ``text`` with each edit applied once. Raises: SystemExit: ``text`` does not contain
    what an edit replaces."""
    for old, new in edits.items():
        if old not in text:
            raise SystemExit(f"{where}: no text {old!r}; is it another version of the script?")
        text = text.replace(old, new, 1)
    return text


def make_folder(folder: Path, script: PublicScript, source: Path, seed: int | None) -> list[int]:
    """Write the script and its dependencies to ``folder``: for one process with this ``seed``, or
    for gossip if ``seed`` is None. Return the numbers of lines that gossip adds and removes."""
    folder.mkdir(parents=True)
    work = folder.parents[2]
    # nanoGPT and llama2.c read data/, mnist ../data, and wgan and dcgan ../../data/mnist.
    links = {
        folder / "data": work,
        folder.parent / "data": work / "mnist",
        work / "runs/data": work,
    }
    links |= {folder / each.name: each for each in (work / "cwd" / folder.parent.name).glob("*")}
    for link, target in links.items():
        if not link.is_symlink():
            link.symlink_to(target.resolve())
    for name in script.beside:
        origin, copy = source.parent / name, folder / Path(name).name
        (shutil.copytree if origin.is_dir() else shutil.copy)(origin, copy)
    batch = str(script.batch if seed is None else script.batch * PEERS)
    text = substitute(source.read_text(), script.small, source.name).replace("BATCH", batch)
    if seed is not None:
        text = re.sub(r"((manual|set)_seed)\((\w|\.| |\+)+\)", rf"\1({seed})", text)
        # Policy gradients have no batch size, so the single process plays the episodes of four
        # peers.
        text = text.replace("in count(1):", f"in range(1, {PEERS * script.steps + 1}):")
    (folder / source.name).write_text(text)
    lines = [0, 0]
    for name, edits in script.edits.items() if seed is None else ():
        before = (folder / name).read_text()
        after = substitute(before, edits, name)
        (folder / name).write_text(after)
        diff = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0))[2:]
        lines = [lines[at] + sum(line[0] == "+-"[at] for line in diff) for at in (0, 1)]
    return lines


def run(folder: Path, command: list[str], words: str) -> str:
    """Run ``command`` in ``folder``. Returns its output."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(HERE / "probe"), str(folder)]),
        "PROBED": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with (folder / "output").open("w") as output:
        subprocess.run(
            [*command, *words.split()], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, timeout=600, check=False,
        )  # fmt: skip
    return (folder / "output").read_text()


def losses(output: str, script: PublicScript) -> list[float]:
    """Return the final loss of each process that has printed a loss."""
    found: dict[str, list[float]] = {}
    for line in output.splitlines():
        if match := re.search(script.loss, line):
            peer = line[0] if line[1:3] == "| " else ""
            found.setdefault(peer, []).append(float(match[1]))
    return [statistics.mean(each[-script.last :]) for each in found.values()] or [float("nan")]


def row_of(name: str, options: argparse.Namespace) -> str:
    """Run a script, and return its row of the table."""
    script = SCRIPTS[name]
    source, base = options.checkouts / script.file, options.work.resolve() / "runs" / name
    shutil.rmtree(base, ignore_errors=True)
    single, folder = [], base / "gossip"
    for seed in range(options.seeds):
        make_folder(base / f"single{seed}", script, source, seed)
        words = script.words.replace("BATCH", str(script.batch * PEERS))
        output = run(base / f"single{seed}", [sys.executable, source.name], words)
        single.append(statistics.median(losses(output, script)))
    added, removed = make_folder(folder, script, source, None)
    command = [str(Path(sys.executable).with_name("gossip")), "run", "-n", str(PEERS)]
    command += ["--run-dir", "run", "--output", "all", *options.options.split()]
    if not options.no_faults:
        command += [f"--fault=hang:1@{script.steps // 4}+3s"]
        command += [f"--fault=restart:2@{script.steps // 2}+0.5s"]
    output = run(folder, [*command, source.name], script.words.replace("BATCH", str(script.batch)))
    summary = json.loads((folder / "run/summary.json").read_text())
    digests = re.findall(r"^\d\| PARAMETERS \d+ (\w+)", output, re.M)
    equal = summary["replicas_identical"] and len(digests) == PEERS and len(set(digests)) == 1
    used = (summary["samples"] or {}).get("once", "")
    loss = statistics.median(losses(output, script))
    return (
        f"| {name} | +{added} -{removed} | {script.steps} / {summary['rounds']} | {used} "
        f"| {min(single):.3f} to {max(single):.3f} | {loss:.3f} | {'yes' if equal else 'NO'} "
        f"| {len(summary['finished'])} of {PEERS} | {len(summary['divergences'])} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("checkouts", type=Path, help="folder with the checkouts")
    parser.add_argument("names", nargs="*", default=list(SCRIPTS))
    parser.add_argument("--work", type=Path, required=True, help="folder with the data")
    parser.add_argument("--seeds", type=int, default=3, help="runs of the single process")
    parser.add_argument("--options", default="", help="further options of gossip run")
    parser.add_argument("--no-faults", action="store_true", help="no hang, no kill")
    options = parser.parse_args()
    for name in options.names:
        print(row_of(name, options), flush=True)


if __name__ == "__main__":
    main()
