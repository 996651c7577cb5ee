"""``python -m gossip.launch.ssh.agent``: agent of the launcher on one host, reached over ssh.

The agent reads all input from stdin, and nothing from argv: first the requests for checks, then
config, command, environment and secrets. It supervises the peers of its host, and sends their
events and output to the launcher. An end of file on stdin means that the launcher or its ssh has
died, so the agent ends its peers. During an interruption of the network the peers continue, and
unsent data is sent later. If the launcher was already silent for ``LOST_S`` at the end of file, the
host was cut off and the launcher may be alive. Then the peers continue until they finish.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gossip.config import RunConfig
from gossip.errors import GossipError, LocalError, Malformed
from gossip.launch import guardian
from gossip.launch.local import Program, RunOutcome, Supervisor, feasible, runs
from gossip.launch.registry import JoinEndpoint
from gossip.launch.report import RunModel, counted, launchers
from gossip.observe import events
from gossip.run import (
    RECORD_BYTES_MAX,
    SWARM_KEY,
    announce_end,
    open_in,
    owner_of,
    parse_json,
    read_at_most,
    read_json,
    read_seed,
    shown_lines,
    whole,
    write_json,
    write_pair,
)
from gossip.transport import KeyPair, is_loopback

from . import frames, hostfacts, pairs
from .frames import Frame

VERSION = 2
# Silence of the launcher before the end of stdin, in seconds, from which on the network counts as
# interrupted.
LOST_S = 10.0
STOP_S = 0.5  # grace period of peers after the death of the launcher, in seconds
# Time that the agent then has for its last files, in seconds. The summary of a long run takes
# longer, but no process waits for it.
LEAVE_S = 0.5
GOODBYE_S = 0.1
OUTPUTS_MAX = 5000
ROWS_AT_ONCE = 200
FILE_BYTES_MAX = 64 * 2**20
LOOK_S = 0.05
FETCHED = ("*.log", "*.jsonl", "*.jsonl.*", "*.json", "*.toml", "*.md", "*.txt")
NOT_FETCHED = ("seeds", "join_servers", "launchers", "checkpoints")
AGENT = "agent.json"
TOKEN_LEAST = 16  # characters; a shorter token could occur in the environment of any process


class LauncherBacklog:
    """Queue of messages to the launcher. Sending never blocks: unsent events stay in their file,
    and the oldest unsent output is dropped."""

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque()
        self._outputs: deque[Frame] = deque(maxlen=OUTPUTS_MAX)
        self._dropped = 0
        self._rows: Path | None = None
        self._offset = 0
        self._some = asyncio.Event()
        self._closed = False

    def send(self, kind: str, **fields: Any) -> None:
        self._frames.append({"kind": kind, **fields})
        self._some.set()

    def output(self, peer: int, text: str, err: bool) -> None:
        self._dropped += len(self._outputs) == OUTPUTS_MAX
        self._outputs.append({"kind": "output", "peer": peer, "text": text, "err": err})
        self._some.set()

    def follow(self, rows: Path) -> None:
        """Send all rows of a file, including rows that are appended later."""
        self._rows, self._offset = rows, 0

    async def run(self, writer: asyncio.StreamWriter) -> None:
        """Send frames until the launcher has closed the connection."""
        try:
            while True:
                for frame in self._next():
                    writer.write(frames.encode(frame))
                await writer.drain()
                if not self._frames and not self._outputs:
                    self._some.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._some.wait(), LOOK_S)
        except OSError:
            pass  # Ignore the error: the end of stdin shows whether the launcher has died.
        finally:
            self._closed = True

    async def flushed(self) -> None:
        """Wait until all frames are sent, or the launcher has closed the connection."""
        while not self._closed and (self._frames or self._outputs or self._has_rows()):
            await asyncio.sleep(LOOK_S)

    def _has_rows(self) -> bool:
        return (
            self._rows is not None
            and self._rows.exists()
            and self._rows.stat().st_size > self._offset
        )

    def _next(self) -> list[Frame]:
        found = [self._frames.popleft() for _ in range(min(len(self._frames), 16))]
        found += self._new_rows()
        if self._dropped:
            lines = (
                f"{counted(self._dropped, 'line')} of its peers' output "
                f"{'is' if self._dropped == 1 else 'are'}"
            )
            found.append({"kind": "say", "text": f"! {lines} only in the logs there"})
            self._dropped = 0
        found += [self._outputs.popleft() for _ in range(min(len(self._outputs), ROWS_AT_ONCE))]
        return found

    def _new_rows(self) -> list[Frame]:
        if self._rows is None or not self._rows.exists():
            return []
        with self._rows.open("rb") as file:
            file.seek(self._offset)
            lines = [line for line in itertools.islice(file, ROWS_AT_ONCE) if line.endswith(b"\n")]
        self._offset += sum(map(len, lines))
        rows = [json.loads(line) for line in lines]
        return [{"kind": "row", "row": row} for row in rows if "schema" not in row]


class _Screen:
    """Screen of the agent's supervisor. It sends all lines to the launcher."""

    def __init__(self, outbox: LauncherBacklog) -> None:
        self.output, self._outbox = outbox.output, outbox

    def print_line(self, text: str) -> None:
        self._outbox.send("say", text=text)

    def tick(self, view: RunModel) -> None:
        pass

    def close(self, view: RunModel) -> None:
        pass


class Agent:
    """Runs the peers of one host."""

    def __init__(self, outbox: LauncherBacklog) -> None:
        self._outbox = outbox
        self._listener: pairs.Listener | None = None
        self._supervisor: Supervisor | None = None
        self._outcome: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._folder: Path | None = None
        self._heard_at = time.monotonic()
        self._reader: asyncio.StreamReader | None = None

    async def run(self, reader: asyncio.StreamReader) -> int:
        """Handle frames until the launcher dismisses the agent, or stdin ends and the peers have
        ended. Return the exit code."""
        self._reader = reader
        self._outbox.send("hello", version=VERSION, pid=os.getpid())
        decoder = frames.Decoder()
        code = 0
        try:
            async for frame in frames.read(reader, decoder):
                self._heard_at = time.monotonic()
                if frame["kind"] == "bye":
                    break
                self._handle_frame(frame)
                # Let tasks begin before the next frame refers to them.
                await asyncio.sleep(0)
            self._at_end_of_input()
        except (OSError, Malformed) as error:
            print(f"gossip agent: {shown_lines(error)}", file=sys.stderr)
            self._at_end_of_input()
            code = 1
        if self._outcome is not None:
            await self._outcome
        if self._listener is not None:
            self._listener.close()
        return code

    def _at_end_of_input(self) -> None:
        silent_s = time.monotonic() - self._heard_at
        if self._supervisor is None or self._outcome is None or self._outcome.done():
            return
        if silent_s < LOST_S:
            self._supervisor.shutdown.end("terminate", "the launcher is gone: stopping", STOP_S)
            asyncio.get_running_loop().call_later(
                STOP_S + LEAVE_S, _leave, self._supervisor.processes.token
            )
            if self._supervisor.join_server is not None:
                # The other join servers of the run close at the same time, so do not wait for
                # replies.
                self._supervisor.join_server.goodbye_s = GOODBYE_S
        else:
            self._supervisor.ongoing.record(events.LauncherLost(silent_s=round(silent_s, 1)))

    def _handle_frame(self, frame: Frame) -> None:
        match frame["kind"]:
            case "ping":
                self._outbox.send("pong", n=frame["n"], **hostfacts.clock())
            case "check":
                self._do(self._send_facts(frame)).add_done_callback(self._end_if_failed)
            case "listen":
                self._do(self._listen(frame["word"], frame["addresses"]))
            case "probe":
                self._do(self._probe(frame["targets"], frame["word"]))
            case "measure":
                self._do(self._measure(frame["target"], frame["word"]))
            case "start":
                try:
                    self._start(frame)
                except (GossipError, OSError) as error:
                    self._send_failure(error)
            case _:
                self._handle_order(frame, self._supervisor, self._folder)

    def _handle_order(
        self, frame: Frame, supervisor: Supervisor | None, folder: Path | None
    ) -> None:
        """Handle an order about the peers of this host, or about the run's folder."""
        match frame["kind"]:
            case "stop" if supervisor is not None:
                supervisor.shutdown.end(frame["why"])
            case "kill" if supervisor is not None:
                supervisor.shutdown.kill("stopping now")
            case "join_servers" if supervisor is not None and supervisor.join_server is not None:
                supervisor.join_server.meet(frame["addresses"])
            case "gone" if folder is not None:
                seeds, peer, incarnation = folder / "seeds", frame["peer"], frame["incarnation"]
                known = read_seed(seeds, peer)
                # A newcomer may already have the id, with a higher incarnation.
                if known is None or known.incarnation <= incarnation:
                    announce_end(seeds, peer, incarnation)
            case "fetch" if folder is not None:
                self._do(self._send_files(folder))

    def _do(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- before the start -------------------------------------------------------------------------

    async def _send_facts(self, asked: Frame) -> None:
        """Send the facts of this host. A thread collects them, because a slow disk must not delay
        pongs, which measure the clock and show that the agent is alive."""
        self._outbox.send("facts", facts=await asyncio.to_thread(hostfacts.collect_facts, asked))

    def _end_if_failed(self, looking: asyncio.Task[None]) -> None:
        """Pass the exception of a failed check to the frame reader, so that the agent ends.
        Otherwise the launcher would wait for facts until its timeout."""
        if (
            not looking.cancelled()
            and isinstance(error := looking.exception(), Exception)
            and self._reader is not None
        ):
            self._reader.set_exception(error)

    async def _listen(self, word: str, addresses: Sequence[str]) -> None:
        self._listener = pairs.Listener(word)
        self._outbox.send(
            "listening", ports=await self._listener.open(addresses), agent=self._listener.agent
        )

    async def _probe(self, targets: Sequence[Mapping[str, Any]], word: str) -> None:
        said = await asyncio.gather(
            *(pairs.probe(to["address"], to["port"], to["agent"], word) for to in targets)
        )
        self._outbox.send("probed", results=said)

    async def _measure(self, target: Mapping[str, Any], word: str) -> None:
        self._outbox.send(
            "measured", result=await pairs.measure(target["address"], target["port"], word)
        )

    # --- the run ----------------------------------------------------------------------------------

    def _start(self, order: Mapping[str, Any]) -> None:
        if self._listener is not None:
            self._listener.close()
        folder = Path(order["run_dir"]).resolve()
        given = RunConfig.model_validate({**order["config"], "run_dir": str(folder)})
        if hostfacts.is_of_run(folder, given.run):
            _end_former(folder)
            if self._is_done(folder):
                return
        else:
            feasible.make_run_folder(folder)
        given.dump(folder / "config.json")
        environment = dict(order["environment"])
        if not is_loopback(order["address"]):
            environment["GOSSIP_LISTEN"] = order["address"]
        program = Program.of(order["words"])
        runs.record_command(folder, program)
        share = {int(peer): int(incarnation) for peer, incarnation in order["peers"].items()}
        key = folder / SWARM_KEY if order["key"] is not None else None
        if key is not None and not key.exists():
            write_pair(key, KeyPair(**order["key"]))
        endpoint = JoinEndpoint(
            tuple(order["join_servers"]), host=order["address"], key=key, invites=False
        )
        supervisor = Supervisor(
            given,
            program,
            _Screen(self._outbox),
            environment,
            share=share,
            endpoint=endpoint,
            relays=True,
        )
        found = guardian.stat(os.getpid())
        assert found is not None
        write_json(
            folder / AGENT,
            {"pid": os.getpid(), "started": found.started, "token": supervisor.processes.token},
        )
        self._supervisor, self._folder = supervisor, folder
        events = folder / "events.jsonl"
        self._outbox.follow(events)
        self._outcome = asyncio.get_running_loop().create_task(self._supervise(supervisor, folder))
        self._outbox.send("started", peers=sorted(share), run_dir=str(folder))

    def _is_done(self, folder: Path) -> bool:
        """Whether the peers of this host finished while the launcher was unreachable. If so, report
        their end now."""
        summary = read_json(folder / "summary.json") or {}
        if not summary.get("finished"):
            return False
        self._folder = folder
        self._outbox.follow(folder / "events.jsonl")
        self._do(self._send_end("", summary["exit_code"], ()))
        return True

    async def _send_end(self, stopped: str, exit_code: int, dismissed: Iterable[int]) -> None:
        """Report the end of this host's peers, after all their events."""
        await self._outbox.flushed()
        self._outbox.send(
            "ended", stopped=stopped, exit_code=exit_code, dismissed=sorted(dismissed)
        )

    def _send_failure(self, error: Exception) -> None:
        hint = error.hint if isinstance(error, GossipError) else None
        self._outbox.send("failed", message=str(error), hint=hint)

    async def _supervise(self, supervisor: Supervisor, folder: Path) -> None:
        try:
            with launchers.present(folder, supervisor.ongoing.peers):
                outcome: RunOutcome = await supervisor.run()
        except (GossipError, OSError) as error:
            self._send_failure(error)
            raise
        summary = await asyncio.to_thread(runs.conclude, folder, outcome)
        (folder / AGENT).unlink(missing_ok=True)
        await self._send_end(outcome.stopped, summary["exit_code"], outcome.dismissed)

    async def _send_files(self, folder: Path) -> None:
        """Send the files of a run that are meant for users. If a file is too long, send only its
        end."""
        for path in sorted({path for pattern in FETCHED for path in folder.rglob(pattern)}):
            where = path.relative_to(folder)
            if path.is_file() and where.parts[0] not in NOT_FETCHED and where.name != AGENT:
                await self._send_file(path, str(where))
        self._outbox.send("fetched")

    async def _send_file(self, path: Path, where: str) -> None:
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(0, size - FILE_BYTES_MAX))
            left_out = file.tell()
            while True:
                data = file.read(frames.CHUNK_BYTES)
                self._outbox.send(
                    "file", path=where, data=base64.b64encode(data).decode(), left_out=left_out
                )
                if not data:
                    break
                await self._outbox.flushed()


def _leave(token: str) -> None:
    """End the remaining peers and this process."""
    guardian.end({}, token, mercy_s=0.0)
    os._exit(1)


def _end_former(folder: Path) -> None:
    """End an earlier agent of this run and its peers, because these peers are started again now.

    A record that belongs to another user, or that names a process of another program, is ignored.
    """
    try:
        with open_in(folder, AGENT) as file:
            said = (
                parse_json(read_at_most(file, RECORD_BYTES_MAX, AGENT))
                if owner_of(file.fileno()) == os.geteuid()
                else None
            )
    except (FileNotFoundError, ValueError):
        return
    former = said if isinstance(said, dict) else {}
    pid, started, token = (
        whole(former.get("pid")),
        whole(former.get("started")),
        former.get("token"),
    )
    if not pid or started is None or not isinstance(token, str) or len(token) < TOKEN_LEAST:
        return
    with contextlib.suppress(OSError):
        # Check after opening the handle, which always refers to the same process.
        handle = os.pidfd_open(pid)
        try:
            found = guardian.stat(pid)
            if (
                found is not None
                and found.started == started
                and "gossip" in launchers.command_of(pid)
            ):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
    guardian.end({}, token, mercy_s=1.0)


async def _main() -> int:
    loop = asyncio.get_running_loop()
    # Redirect stdout to stderr: output of libraries must not mix with the frames.
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(0), "rb", buffering=0)
    )
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(), out
    )
    outbox = LauncherBacklog()
    sender = asyncio.create_task(outbox.run(asyncio.StreamWriter(transport, protocol, None, loop)))
    try:
        return await Agent(outbox).run(reader)
    finally:
        # Drop unsent frames: after "bye" the launcher expects none.
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)
        transport.abort()


def main() -> None:
    """Run the agent. The only argument is the name of the run, which is visible in the process
    list."""
    if len(sys.argv) > 2:
        raise LocalError("an agent is started by gossip hosts and reads its settings from stdin")
    sys.exit(asyncio.run(_main()))


if __name__ == "__main__":
    main()
