"""Command lines that pages show, checked as far as that is possible without what they start: those
of ``gossip`` by its own parser, the others by what the repository has."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Sequence
from functools import cache
from typing import Any

import typer
from code_blocks import ROOT

from gossip.launch.cli import commands

FOREIGN = {
    "torchrun": "the launcher of PyTorch",
    "srun": "needs Slurm",
    "kubectl": "needs Kubernetes",
    "condor_submit": "needs HTCondor",
    "tensorboard": "a server of TensorBoard",
    "scp": "needs a second host",
    "git": "changes the reader's checkout",
    "sed": "changes the reader's checkout",
    ".": "changes the reader's shell",
}
"""Programs that are not ours: why what they are given is not looked at."""
PROGRAMS = ("gossip", "python", "python3", ".venv/bin/python", ".venv/bin/pytest", "make", "pip")
OF_A_READER = ("train.py", "path/to/")
"""Files that a reader has, and the repository has not."""


def words_of(command: str) -> list[str]:
    """The words of a command line, without its comment, what it is piped into, ``sudo`` and
    ``nohup``."""
    words = shlex.split(command, comments=True)
    for stop in ("|", ">", "&&", "&"):
        words = words[: words.index(stop)] if stop in words else words
    return words[1:] if words[0] in ("sudo", "nohup") else words


@cache
def command_line() -> Any:
    """That of ``gossip``, as its parser has it. To make it takes 60 ms."""
    return typer.main.get_command(commands.app)


def parsed(words: Sequence[str]) -> Any:
    """The context of a command of ``gossip``, as its own parser makes it. Nothing is started.

    Raises: a usage error of the parser.
    """
    command = command_line()
    rest, context = list(words[1:]), None
    while hasattr(command, "resolve_command"):
        context = command.make_context(words[0], rest, parent=context)
        # where a group keeps the words of its subcommand until it calls that
        name, command, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
    return command.make_context(name, rest, parent=context)


def complaint(command: str) -> str:
    """What is wrong with a command line; empty: nothing that can be seen."""
    words = words_of(command)
    program, rest = words[0], words[1:]
    if program in FOREIGN:
        inner = rest.index("gossip") if "gossip" in rest else len(rest)
        return complaint(shlex.join(rest[inner:])) if rest[inner:] else ""
    if program not in PROGRAMS:
        return f"{program} is neither ours nor among the programs that are not"
    return {"gossip": _of_gossip, "make": _of_make, "pip": _of_pip}.get(program, _of_python)(words)


def _of_gossip(words: Sequence[str]) -> str:
    if "..." in words:
        words = [*words[: words.index("...")], "train.py"]
    try:
        parsed(words)
    except Exception as error:  # noqa: BLE001
        # the parser's errors are of a class that typer does not name; the message is the finding
        return f"{type(error).__name__}: {error}"
    return ""


def _of_make(words: Sequence[str]) -> str:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    known = re.findall(r"^(\w+) \?=", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for word in words[1:]:
        name, given, _ = word.partition("=")
        if name not in (known if given else targets):
            return f"the Makefile has no {name}"
    return ""


def _of_pip(words: Sequence[str]) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        extra
        for word in words
        for group in re.findall(r"\[(.+)\]", word)
        for extra in group.split(",")
    }
    unknown = extras - set(project["optional-dependencies"])
    return f"there is no extra {', '.join(unknown)}" if unknown else ""


def _of_python(words: Sequence[str]) -> str:
    """Whether the files are there, and know the options that they are given."""
    source = ""  # of the file, and of those beside it, from which it has options, too
    for word in words[1:]:
        if word.startswith(OF_A_READER) or word.startswith("docs/"):
            continue
        if word.endswith(".py") or word.startswith("tests/"):
            if not (ROOT / word).exists():
                return f"there is no {word}"
            source = "".join(path.read_text() for path in (ROOT / word).parent.glob("*.py"))
        elif source and word.startswith("--") and f'"{word}"' not in source:
            return f"there is no option {word}"
    return ""
