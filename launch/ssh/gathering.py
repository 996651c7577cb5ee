"""``gossip checkpoints collect``: the parts of a pipeline's model that its hosts have saved in
folders of their own, brought into one folder."""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gossip.errors import ConfigError, GossipError
from gossip.launch.local import Guardian
from gossip.run import SavedStage, checkpoints, read_object, shown, stage_parts, whole

from . import ssh
from .frames import Frame
from .hostlist import Host, parse_target
from .remote import AgentLost, RemoteAgent
from .resuming import parts_of

PART_S = 6 * 3600.0
"""A part may be large and its way slow; a host that is lost is noticed long before."""
HERE = ""


def collect(run: Path, out: Path, step: int | None, command: Sequence[str]) -> list[str]:
    """Brings the newest step that is whole, or ``step``, into the folder ``out``, each stage into
    a folder of its own as the run has it. What is there already is not fetched again.

    Args:
        run: Folder of a run of ``gossip hosts``.
        command: Words of what reaches a host.
    Returns: What was done, in words.
    Raises: ConfigError: No step is whole on those hosts that answer, or ``out`` cannot be written.
        AgentLost: A host was lost meanwhile.
    """
    return asyncio.run(_Gathering(run, out, command).run(step))


def hosts_of(run: Path) -> dict[Host, str]:
    """The hosts of a run, and the folder that it has on each.

    Raises: ConfigError: It is no such run.
    """
    said = read_object(run, checkpoints.HOSTS)
    if said is None:
        raise ConfigError(
            f"{shown(run)} is no run of gossip hosts",
            "of other runs the checkpoints are where the script saves to: gossip checkpoints RUN",
        )
    found: dict[Host, str] = {}
    try:
        for name, row in said["hosts"].items():
            user, target = parse_target(str(row["ssh"]), checkpoints.HOSTS)
            if target != name or not isinstance(row["python"], str):
                raise ValueError(f"{name} is not {target}")
            port = whole(row["port"])
            host = Host(name, 1, user, port, row["python"], str(row["workdir"]))
            found[host] = str(row["run_dir"])
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{shown(run / checkpoints.HOSTS)} does not name hosts: {error}"
        ) from error
    return found


class _Gathering:
    def __init__(self, run: Path, out: Path, command: Sequence[str]) -> None:
        self._run, self._out, self._command = run, out, command
        self._hosts = hosts_of(run)
        self._guardian = Guardian(secrets.token_hex(16))
        self._arriving: dict[str, checkpoints.IncomingCheckpoint] = {}
        self._failed: dict[str, str] = {}

    async def run(self, step: int | None) -> list[str]:
        remotes = {host.name: self._remote(host) for host in self._hosts}
        try:
            asked = [self._ask(remotes[host.name], folder) for host, folder in self._hosts.items()]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            saved, silent = self._split_replies(list(remotes), answers)
            parts = parts_of(saved)
            parts[HERE] = stage_parts.parts_in(self._out)
            wanted = self._choose(parts, step, silent)
            told = [f"! {line}" for line in silent.values()]
            for host, part in wanted:
                told.append(await self._bring(remotes, host, part))
        finally:
            there = [remote for remote in remotes.values() if not remote.over]
            await asyncio.gather(*(remote.close() for remote in there))
            self._guardian.close()
        where = shown(self._out)
        told.append(f"{where}: step {wanted[0][1].step}, {len(wanted)} stages")
        told.append(f"one model of them: gossip checkpoints export {where} model.safetensors")
        return told

    def _remote(self, host: Host) -> RemoteAgent:
        argv = ssh.command(host, self._command, "collect")
        return RemoteAgent(host, argv, self._guardian, self._on_frame, lambda remote: None)

    async def _ask(self, remote: RemoteAgent, folder: str) -> Mapping[str, Any]:
        await remote.open()
        about: dict[str, Any] = {"workdir": remote.host.workdir, "saved": folder}
        answer = await remote.ask("saved", "saved", host=remote.name, **about)
        found: Mapping[str, Any] = answer["saved"]
        return found

    def _split_replies(
        self, names: Sequence[str], answers: Sequence[Any]
    ) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
        """Return what each host has saved, and for the other hosts why that is not known."""
        saved: dict[str, Mapping[str, Any]] = {}
        silent: dict[str, str] = {}
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, GossipError):
                silent[name] = f"{name}: {answer}"
            elif isinstance(answer, BaseException):
                raise answer
            elif answer["error"]:
                silent[name] = f"{name}: {answer['error']}"
            else:
                saved[name] = answer
        return saved, silent

    def _choose(
        self, parts: Mapping[str, Sequence[SavedStage]], step: int | None, silent: Mapping[str, str]
    ) -> list[tuple[str, SavedStage]]:
        """Return a part for each stage, with its holder. A part that is here already is
        preferred."""
        ordered = [HERE, *[name for name in parts if name != HERE]]
        steps = stage_parts.whole_steps([part for name in ordered for part in parts[name]])
        chosen = max(steps, default=None) if step is None else step
        if chosen is None or chosen not in steps:
            have = [f"{name} has {_in_words(parts[name])}" for name in ordered if name != HERE]
            told = "; ".join([*have, *silent.values()])
            what = "no step" if step is None else f"step {step}"
            raise ConfigError(
                f"{what} of {shown(self._run)} is {'' if step is None else 'not '}whole: {told}",
                f"whole are: {', '.join(map(str, steps))}" if steps else "every stage must answer",
            )
        holder = {part: name for name in reversed(ordered) for part in parts[name]}
        return [(holder[part], part) for part in steps[chosen]]

    async def _bring(self, remotes: Mapping[str, RemoteAgent], host: str, part: SavedStage) -> str:
        of = f"stage {part.stage}, layers {part.layers[0]}-{part.layers[1]}"
        if host == HERE:
            return f"{of}: it is here already"
        folder = checkpoints.stage_folder(self._out, part.stage)
        try:
            self._arriving[host] = incoming = checkpoints.IncomingCheckpoint(folder, part.step)
            said = await remotes[host].ask(
                "send_part", "sent_part", PART_S, folder=part.folder, step=part.step
            )
            if why := said["error"] or self._failed.get(host):
                raise AgentLost(f"stage {part.stage} of {host}: {why}")
            incoming.finish()
        except OSError as error:
            raise ConfigError(f"cannot write {shown(folder)}: {error.strerror}") from error
        finally:
            if (left := self._arriving.pop(host, None)) is not None:
                left.drop()
        return f"{of}: from {host}"

    def _on_frame(self, remote: RemoteAgent, frame: Frame) -> None:
        if frame["kind"] != "part" or (into := self._arriving.get(remote.name)) is None:
            return
        try:
            into.append(str(frame["name"]), base64.b64decode(frame["data"]))
        except (ConfigError, OSError, binascii.Error) as error:
            self._failed[remote.name] = str(error)


def _in_words(parts: Sequence[SavedStage]) -> str:
    found = [f"stage {part.stage} of step {part.step}" for part in parts]
    return ", ".join(found) or "nothing"
