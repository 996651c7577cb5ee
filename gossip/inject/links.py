"""Carrying out, at one node, what is to befall the network: by the plan, and by drills."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gossip.core import PeerId
from gossip.faults import (
    Delay,
    FaultPlan,
    Flap,
    LinkFault,
    Loss,
    Partition,
    Ring,
    Trickle,
    near,
    severed,
)
from gossip.run import Journal, WriteFailures

from .sieve import LinkCondition

LOOK_EVERY_S = 0.01


class ClaimFiles:
    """What the peers of a run must agree on though none leads them: files in a folder, of which the
    first to be made counts.

    No disk that is full, and no folder that is gone, is an error here: it is told, and each peer
    goes on by itself.

    Args:
        folder: Where; None: this peer is alone, and what it claims is its own.
        troubles: Hears of what cannot be written.
    """

    def __init__(self, folder: Path | None, peer: int, troubles: WriteFailures) -> None:
        self.folder, self._peer, self._troubles = folder, peer, troubles

    def take(self, name: str, otherwise: bool, **fields: Any) -> bool:
        """Whether this peer is the first to claim it. ``otherwise``: where no claim can be made, so
        that nobody can tell."""
        if self.folder is None:
            return True
        path = self.folder / name
        if not self._troubles.try_to(path, self._make_folder):
            return otherwise
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return False
        except OSError as error:
            self._troubles.failed(path, error)
            return otherwise
        text = json.dumps({**fields, "peer": self._peer, "wall": time.time()})
        # the claim is made: what it says is for people
        self._troubles.try_to(path, lambda: _write(fd, text))
        return True

    def beginning(self) -> float:
        """When the first round of the run began, on the monotonic clock, which the peers of a host
        share: whoever begins it writes that down for the others, and for later lives. Where that
        cannot be written, each counts from its own."""
        now = time.monotonic()
        if self.folder is None:
            return now
        if self.began() is None:
            path = self.folder / "began"
            self._troubles.try_to(path, lambda: self._begin(path, now))
        known = self.began()
        return now if known is None else known

    def began(self) -> float | None:
        """The same; None as long as nobody has begun."""
        try:
            return (
                None if self.folder is None else float((self.folder / "began").read_text("utf-8"))
            )
        except (OSError, ValueError):
            return None

    def _make_folder(self) -> None:
        assert self.folder is not None
        # none above it: whoever has deleted the run's folder wants it gone
        self.folder.mkdir(exist_ok=True)

    def _begin(self, path: Path, now: float) -> None:
        self._make_folder()
        scratch = path.with_name(f"began.{self._peer}.{os.getpid()}")
        try:
            scratch.write_text(repr(now), "utf-8")
            with contextlib.suppress(FileExistsError):
                os.link(scratch, path)  # whole, and only if there is none yet
        finally:
            # it tells of what went wrong before, if anything did
            with contextlib.suppress(OSError):
                scratch.unlink()


def _write(fd: int, text: str) -> None:
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)


class LinkFaults:
    """Makes this peer's links fail as the plan and drills say. Each drops what would leave it, and
    what has come all the same."""

    def __init__(
        self, plan: FaultPlan, peer: PeerId, peers: int, claims: ClaimFiles, journal: Journal
    ) -> None:
        self._peer, self._peers, self._claims, self._journal = peer, range(peers), claims, journal
        self.planned = [
            (index, fault) for index, fault in enumerate(plan) if isinstance(fault, LinkFault)
        ]
        self._told: dict[int, bool] = {}  # which were said to begin, and which to be over
        self._now: dict[PeerId, LinkCondition] = {}
        self._look_at = 0.0
        self.on_change: Callable[[Mapping[PeerId, LinkCondition]], None] = lambda faults: None

    def tick(
        self, now: float, began: float | None, round_id: int, drilled: Iterable[Any] = ()
    ) -> None:
        """Time passes; to be called often. ``began``: when the run did, if this peer was there."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        on = [fault for fault in drilled if isinstance(fault, LinkFault)]
        if self.planned and began is None:
            began = self._claims.began()
        if began is not None:
            on += self._on(now - began, round_id)
        faults = links_at(self._peer, self._peers, on)
        if faults != self._now:
            self._now = faults
            self.on_change(faults)

    def _on(self, run_s: float, round_id: int) -> list[LinkFault]:
        """Those of the plan that are on, and told of."""
        on: list[LinkFault] = []
        for index, fault in self.planned:
            passed_s = run_s - fault.at_s
            if passed_s < 0.0:
                continue
            over = passed_s >= fault.for_s
            self._tell(index, fault, over, round_id)
            broken = not isinstance(fault, Flap) or (passed_s % fault.period_s < fault.period_s / 2)
            if broken and not over:
                on.append(fault)
        return on

    def _tell(self, index: int, fault: LinkFault, over: bool, round_id: int) -> None:
        """One peer tells of it, for all; where they cannot agree on one, each does."""
        if self._told.get(index) in (over, True):
            return
        self._told[index] = over
        if self._claims.take(
            f"{index}.over" if over else str(index), otherwise=True, fault=str(fault)
        ):
            extra = {} if over else {"seconds": fault.for_s}
            self._journal.event(
                "fault_over" if over else "fault",
                kind=fault.kind,
                round=round_id,
                fault=str(fault),
                **extra,
            )


def links_at(
    local: PeerId, peers: Iterable[PeerId], faults: Iterable[LinkFault]
) -> dict[PeerId, LinkCondition]:
    """What befalls the links of one peer while these faults are on. The worst counts where several
    befall one link."""
    everybody = tuple(peers)
    found: dict[PeerId, LinkCondition] = {}
    for fault in faults:
        match fault:
            case Partition() | Ring() | Flap():
                for a, b in severed(fault):
                    if local in (a, b):
                        other = b if a == local else a
                        known = found.get(other, LinkCondition())
                        found[other] = replace(
                            known, mute=known.mute or a == local, deaf=known.deaf or b == local
                        )
            case Loss() | Delay() | Trickle():
                for a, b in near(fault, everybody):
                    if b == local:
                        found[a] = _worse(found.get(a, LinkCondition()), fault)
    return found


def _worse(known: LinkCondition, fault: Loss | Delay | Trickle) -> LinkCondition:
    match fault:
        case Loss():
            return replace(known, loss=max(known.loss, fault.share))
        case Delay():
            return replace(known, delay_s=max(known.delay_s, fault.delay_s))
        case Trickle():
            return replace(known, bytes_per_s=min(known.bytes_per_s, fault.bytes_per_s))
