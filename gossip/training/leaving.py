"""End of a peer: after its last round, a signal, an exception, or the end of its launcher."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from gossip.errors import GossipError
from gossip.ipc import EXIT_SIGTERM, METRICS_MAX, clip
from gossip.run import write_error

from .loops import TrainingLoop
from .peer_run import PeerRun
from .watch import HURRIED_S, ExceptHook, record_warnings, user_frames, watch_launcher

CLOSE_S = 45.0
"""Timeout of ``close``. It exceeds ``linger_s`` and ``drain_timeout_s``, the times that a node
waits for peers that were lost shortly before the end."""


class Leaving:
    """Ends this peer's participation in the run. Further calls have no effect.

    Attributes:
        at_end: Functions to call after the peer has left.
    """

    def __init__(self, run: PeerRun, loop: TrainingLoop, status_fd: int | None) -> None:
        """``status_fd``: socket to the launcher, or None."""
        self._run, self._loop = run, loop
        # The text is cut, because JSON needs up to twelve characters for one character.
        end = record_warnings(lambda text: run.node.log_line(warning=clip(text, METRICS_MAX // 16)))
        self.at_end: list[Callable[[], object]] = [end]
        termination = run.termination
        termination.stop, termination.in_step = self.stop, lambda: run.in_round or run.in_loop
        # A forked child, such as a DataLoader's worker, must not keep the channel to the node open.
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self.close)
        self._hook = ExceptHook(self.record, lambda: termination.interrupted)
        if status_fd is not None:
            watch_launcher(status_fd, self._launcher_gone)

    def close(self, reason: str = "finished") -> None:
        """Leave the swarm (``Session.close``)."""
        run, rounds = self._run, self._loop.rounds
        if not run.is_active:
            return
        run.is_closed = True
        if reason == "finished" and run.is_asked_to_stop:
            reason = "stopped"
        finished = reason == "finished"
        patience_s = CLOSE_S if finished else HURRIED_S
        until = time.monotonic() + patience_s
        hurry: Callable[[], bool] = lambda: run.is_asked_to_stop  # noqa: E731
        stepper, saves = run.stepper, rounds.checkpoints
        if not run.in_round:
            stepper.note_script_ready()
        rounds.undo_local_steps()
        try:
            if finished:
                with suppress(SystemExit):  # the node has ended as planned
                    rounds.drain(lambda: hurry() or time.monotonic() >= until)
            else:
                run.exchange.abandon()
            stepper.return_to_anchor()
            if finished:
                rounds.confirm(hurry)
            saves.save_last(in_hurry=not finished, leaves_early=finished and self._loop.is_left)
            if saves.saver is not None:
                saves.saver.close()
            run.node.close(reason, patience_s, hurry, saves.missing)
        except KeyboardInterrupt:
            run.node.close(reason, HURRIED_S)  # a second Close message makes the node end at once
            raise
        finally:
            if not run.termination.interrupted:  # the hook still handles a Ctrl-C
                self._hook.uninstall()
            run.termination.uninstall()
            atexit.unregister(self.close)
            for function in self.at_end:
                function()

    def check_termination(self) -> None:
        """Stop the script if a signal has requested its end. Every wait calls this about twice a
        second. The current step gets ``HURRIED_S`` to finish."""
        run = self._run
        since = None if run.is_closed else run.termination.since
        if since is not None and (not run.in_round or time.monotonic() - since > HURRIED_S):
            self.stop()

    def stop(self) -> NoReturn:
        """Leave, and end the script."""
        self._run.is_stopped = True
        self.close("stopped")
        if self._run.termination.interrupted:
            raise KeyboardInterrupt
        raise SystemExit(EXIT_SIGTERM)

    def record(self, error: BaseException) -> None:
        """Record an uncaught exception of the script, and leave."""
        run = self._run
        if not run.is_active:
            return
        if not isinstance(error, Exception):
            self.close("stopped")  # KeyboardInterrupt and its like
            return
        if run.run_dir is not None:
            write_error(
                run.run_dir / f"peer-{run.peer}" / "error.json",
                error,
                peer=run.peer,
                incarnation=run.incarnation,
                round=run.applied.round_id,
                exit_code=getattr(error, "exit_code", 1),
                frames=user_frames(error.__traceback__),
            )
        self.close("raised")

    def _launcher_gone(self) -> None:
        """End the process after the launcher has ended. The thread that watches the launcher calls
        this, because the training thread may be busy."""
        if not self._run.is_active:
            return
        link = self._run.node.link
        try:
            link.send_close("stopped")
            link.node_ended(HURRIED_S)
        except GossipError:
            link.node_ended(0.1)
        os._exit(1)

    def _forked(self) -> None:
        if not self._run.is_closed:
            self._run.node.link.drop_after_fork()
