"""Writes the events, commits and metrics of a node as JSON lines, to files in ``<run>/peer-<id>/``.
Events are also sent to the launcher."""

from __future__ import annotations

import json
import socket
import time
from collections import deque
from pathlib import Path
from typing import Any, TypeAlias

from gossip.core import Accusation, AuditVote, Committed, Contribution, Rejection, is_further

from .event_rates import EventRateLimiter
from .records import Appender, WriteFailures
from .rotation import ROTATE_BYTES
from .telemetry import header, json_line

THROTTLE_S = 0.1
FLUSH_S = 0.1
KINDS_MAX = 1000  # maximum number of kinds of lines whose rates are limited
UNWRITTEN_S = 5.0
"""Age, in seconds, after which a commit has certainly been written by its server."""
OTHERS_KEPT = 1024  # maximum number of commits: five seconds of the fastest rounds
AFTER_ROUNDS = ("halted", "paused", "recovering", "restored")
"""Events after which a peer does not take part in rounds. The peer's last round is written before
such an event."""
AWAY = ("skip", "dead")
"""Events after which a peer may be unable to write its commits."""
ABOUT = ("from", "subject", "to")
"""Fields that name the peer that an event is about. That peer may cause such events at any rate."""
STATUS_BACKLOG_BYTES = 2**20
"""Maximum number of bytes that wait for the launcher. Further lines are written to the file
only."""


_Dated: TypeAlias = "tuple[float, float, Committed, float | None]"
"""Time when a commit was applied, on the monotonic clock and on the wall clock; the commit; and the
duration of its rule in seconds, if known."""


class Journal:
    """Writer of JSON lines. It sends events to the status socket at once, and writes files within
    ``FLUSH_S``.

    Args:
        folder: ``<run>/peer-<id>``, which is created if necessary; None if the run writes no files.
        status: A connected stream socket to the launcher, or None. Its blocking mode is not
        changed, because the trainer uses the same socket.
        stage: Stage of this peer in a pipeline; None if there is no pipeline.
    """

    def __init__(
        self,
        peer: int,
        folder: Path | None,
        status: socket.socket | None = None,
        stage: int | None = None,
    ) -> None:
        self._peer, self._status, self._stage = peer, status, stage
        self.troubles = WriteFailures(self._report_write_failure)
        self._backlog = bytearray()
        self._unsent_lines = 0
        self._files: dict[str, Appender] = {}
        if folder is not None:
            self.troubles.try_to(folder, lambda: folder.mkdir(parents=True, exist_ok=True))
            how: Any = {"gather": True, "rotate_bytes": ROTATE_BYTES}
            self._files = {
                kind: Appender(folder / f"{kind}.jsonl", self.troubles, header(kind), **how)
                for kind in ("events", "commits", "metrics")
            }
        self._to_write: list[_Dated] = []
        # Commits of other servers, which are expected to write them.
        self._others: deque[_Dated] = deque(maxlen=OTHERS_KEPT)
        self._away: set[int] = set()  # peers that may be unable to write their commits
        self._next_flush = 0.0
        self._throttle: dict[object, float] = {}
        self._rate_limiter = EventRateLimiter()
        # Number of the last round, and its fields that are compared with those of the next round.
        self._last_round: tuple[int, Any] = -1, None
        self._last_step: int | None = None
        # Fields and times of the newest round, if no line was written for it yet.
        self._untold_round: tuple[dict[str, Any], float, float] | None = None
        self._untold_since: int | None = None  # The first round without a line.
        # The newest row with each set of names that was not sent yet, in the order of time.
        self._unsent_metrics: dict[tuple[str, ...], dict[str, Any]] = {}
        self.last_words: dict[str, Any] = {}  # Further fields of the last event.

    def event(self, name: str, **fields: Any) -> None:
        """Write one event line.

        Lines for rounds are written at most every ``THROTTLE_S``. Such a line covers all rounds
        from ``since`` on. If a round differs from the previous round in more than its number, a
        line is always written for both of them. A line is also always written for the last round of
        a peer. Events that another peer can cause are limited by ``EventRateLimiter``, and the
        suppressed events are counted.
        """
        now = time.monotonic()
        if name == "round":
            self._record_round(fields, now)
            return
        if name in AFTER_ROUNDS:
            self._write_untold_round()
            self._send_metrics(now, all_of_them=True)
        whom = next((fields[key] for key in ABOUT if isinstance(fields.get(key), int)), None)
        if whom is None or self._rate_limiter.lets(name, whom, now):
            self._write_event(name, fields, now)
        if name in AWAY:
            self._write_for(fields["subject"], now)
        elif name in ("unskip", "alive_again"):
            self._away.discard(fields["subject"])

    def _record_round(self, fields: dict[str, Any], now: float) -> None:
        number, step = fields["round"], fields.get("step")
        # A collective operation is a round after which the number of steps is the same. Topologies
        # that do not count steps have no number.
        was_step = step is None or step != self._last_step
        compared = was_step, fields.get("alive"), fields.get("contributors")
        is_like = (number - 1, compared) == self._last_round
        self._last_round, self._last_step = (number, compared), step
        if not is_like:
            self._write_untold_round()
        special = bool(fields.get("attempt")) or bool(fields.get("special")) or not is_like
        if self._untold_since is None:
            self._untold_since = number
        if self._rested("round", now) or special:
            self._write_round(fields, now)
        else:
            self._untold_round = fields, now, time.time()

    def _write_untold_round(self) -> None:
        if self._untold_round is not None:
            self._write_round(*self._untold_round)

    def _write_round(self, fields: dict[str, Any], now: float, wall: float | None = None) -> None:
        """Write a line for a round. The line also covers the earlier rounds that have no line."""
        if self._untold_since != fields["round"]:
            # ``since`` comes early in the line, because the last fields must be those that are
            # equal on all peers.
            fields = {"round": fields["round"], "since": self._untold_since, **fields}
        self._untold_round = self._untold_since = None
        self._write_event("round", fields, now, wall)

    def _write_event(
        self, name: str, fields: dict[str, Any], now: float, wall: float | None = None
    ) -> None:
        wall = time.time() if wall is None else wall
        line = json_line({"t": now, "wall": wall, "peer": self._peer, "event": name, **fields})
        self._append("events", line)
        self._send_status(line)

    def _report_write_failure(self, path: str, why: str) -> None:
        """Report a failure to write, but only to the launcher: the file that cannot be written may
        be the file of events."""
        self._send_status(self._line("cannot_write", path=path, why=why))

    def _line(self, name: str, **fields: Any) -> bytes:
        about = {"t": time.monotonic(), "wall": time.time(), "peer": self._peer, "event": name}
        return json_line(about | fields)

    def _write_held(self, all_of_them: bool = False) -> None:
        now = time.monotonic()
        for kind, whom, count in self._rate_limiter.held(now, all_of_them):
            self._write_event(
                "events_suppressed",
                {"of": kind, "about": whom, "count": count, "message": f"and {count:,} more"},
                now,
            )

    def commit(self, committed: Committed, rule_s: float | None = None) -> None:
        """Record a commit that this peer has applied. The server of the commit writes it at the
        next flush. Other peers write it only if the server is absent, because the server may have
        been killed before.

        Args:
            rule_s: Duration of the rule in seconds; None if another peer made the commit.
        """
        if not self._files:
            return
        dated = (time.monotonic(), time.time(), committed, rule_s)
        if committed.made or committed.commit.server in self._away:
            self._to_write.append(dated)
        else:
            self._others.append(dated)

    def _write_for(self, maker: int, now: float) -> None:
        self._away.add(maker)
        self._to_write += [
            dated
            for dated in self._others
            if dated[2].commit.server == maker and now - dated[0] < UNWRITTEN_S
        ]

    def _write_commit(self, dated: _Dated) -> None:
        t, wall, committed, rule_s = dated
        commit = committed.commit
        # A further step has no slices of its own: it uses the samples of the previous step.
        further = is_further(commit.kind)
        line = {
            "t": t,
            "wall": wall,
            **_fields(commit, "lineage", "shard", "attempt", "made_at", "server"),
            "round": commit.round_id,
            **({} if self._stage is None else {"stage": self._stage}),
            **_fields(commit, "parent", "digest", "roster", "loss", "rates", "reason", "kind"),
            "chain": committed.chain,
            "contributors": [_contributor(each) for each in commit.contributors],
            "rejected": [_rejection(rejection) for rejection in commit.rejected],
            "accusations": [_accusation(accusation) for accusation in commit.accusations],
            **_fields(committed, "trust", "samples_total", "steps_per_epoch"),
            "epoch": None if further else committed.epoch,
            "slices": {} if further else committed.slices,
            **({"audits": [_vote(vote) for vote in commit.audits]} if commit.audits else {}),
            **({} if rule_s is None else {"rule_ms": round(rule_s * 1000, 3)}),
        }
        self._append("commits", json_line(line))

    def metrics(self, text: str, round_id: int) -> None:
        """Write metrics that the user's script has logged. ``text``: a JSON object. Every line is
        written to the file. The launcher receives at most ten lines per second with the same metric
        names, the last one included."""
        try:
            logged = json.loads(text)
        except ValueError:
            logged = None
        if not isinstance(logged, dict):
            self.event(
                "error", message=f"the script logged what is not a JSON object: {text[:100]!r}"
            )
            return
        now = time.monotonic()
        logged = {"round": round_id, **logged}
        own: dict[str, Any] = {"t": now, "wall": time.time(), "peer": self._peer}
        row = {**own, **logged, **own}
        self._append("metrics", json_line(row))
        names = tuple(sorted(logged))
        self._unsent_metrics.pop(names, None)
        self._unsent_metrics[names] = row
        self._send_metrics(now, all_of_them=len(self._unsent_metrics) > KINDS_MAX)

    def _send_metrics(self, now: float, *, all_of_them: bool = False) -> None:
        """Send the metrics that are due. Older rows are sent first, because a reader uses the last
        value that it receives."""
        while self._unsent_metrics:
            names, row = next(iter(self._unsent_metrics.items()))
            if not (self._rested(names, now) or all_of_them):
                return
            del self._unsent_metrics[names]
            line = json_line(row | {"event": "metrics"})
            self._append("events", line)
            self._send_status(line)

    def _rested(self, kind: object, now: float) -> bool:
        if now < self._throttle.get(kind, 0.0):
            return False
        if len(self._throttle) > KINDS_MAX:  # for a script that logs ever new names
            self._throttle.clear()
        self._throttle[kind] = now + THROTTLE_S
        return True

    # --- out --------------------------------------------------------------------------------------

    def flush_due(self, now: float) -> None:
        """Write the lines if a flush is due."""
        if now >= self._next_flush:
            self.flush()

    def flush(self, wait_s: float = 0.0) -> None:
        """Write all pending lines. Wait at most ``wait_s`` seconds until the launcher has read
        them."""
        self._next_flush = time.monotonic() + FLUSH_S
        self._write_held()
        self._send_metrics(time.monotonic())
        due, self._to_write = self._to_write, []
        for dated in due:
            self._write_commit(dated)
        for file in self._files.values():
            file.flush()
        if self._backlog:
            self._push(wait_s)

    def close(self, wait_s: float = 0.5) -> None:
        self._write_held(all_of_them=True)
        self._send_metrics(time.monotonic(), all_of_them=True)
        self.flush()
        for file in self._files.values():
            file.close()
        if self.troubles.lacking:
            self._send_status(self._line("record_incomplete", files=self.troubles.lacking))
        self._push(wait_s)
        if self._status is not None:
            self._status.close()
            self._status = None

    def _append(self, kind: str, line: bytes) -> None:
        if self._files:
            self._files[kind].append(line)

    def _send_status(self, line: bytes) -> None:
        if self._status is None:
            return
        if len(self._backlog) + len(line) > STATUS_BACKLOG_BYTES:
            self._unsent_lines += 1
            return
        if self._unsent_lines:
            message = (
                f"{self._unsent_lines} status lines were dropped because the launcher did not read "
                "them; "
                "events.jsonl has them"
            )
            self._unsent_lines = 0
            self._backlog += self._line("error", message=message)
        self._backlog += line
        self._push()

    def _push(self, wait_s: float = 0.0) -> None:
        until = time.monotonic() + wait_s
        while self._backlog and self._status is not None:
            try:
                sent = self._status.send(self._backlog, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                del self._backlog[:sent]
            except BlockingIOError:
                if time.monotonic() >= until:
                    return
                # This blocks, but ``wait_s`` is only set by a node that is ending.
                time.sleep(0.002)
            except OSError:
                # The launcher has ended. The trainer detects this at the same socket, and ends both
                # processes. Until then the node continues to write files.
                self._status, self._backlog = None, bytearray()


def _fields(record: object, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _contributor(contributor: Contribution) -> dict[str, Any]:
    of_stage = ("micro_batches", "pass_us") if contributor.micro_batches else ()
    names = "peer", "samples", "weight", "outlyingness", "took_us"
    return _fields(contributor, *names, *of_stage)


def _rejection(rejection: Rejection) -> dict[str, Any]:
    of_quarantine = ("outlyingness",) if rejection.reason == "quarantined" else ()
    return _fields(rejection, "peer", "reason", *of_quarantine)


def _vote(vote: AuditVote) -> dict[str, Any]:
    """Return the fields of a vote in an audit of a micro-batch: the peer that votes, and the
    neighbours with results that it contradicts."""
    contradicts = [each for each in (vote.before, vote.behind) if each is not None]
    fields = {"peer": vote.peer, "round": vote.round_id, "micro_batch": vote.micro_batch}
    return {**fields, "contradicts": contradicts}


def _accusation(accusation: Accusation) -> dict[str, Any]:
    """Return the fields of an accusation that its kind uses."""
    fields: dict[str, Any] = {"peer": accusation.peer, "round": accusation.round_id}
    if accusation.turn:
        return {**fields, "turn": accusation.turn, "content": accusation.content}
    return {**fields, "silent": True} if accusation.silent else fields
