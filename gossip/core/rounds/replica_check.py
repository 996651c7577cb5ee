"""Comparison of the local replica with the replica digest in each commit."""

from __future__ import annotations

from gossip.core.events import Contributed, Effect, Report
from gossip.core.ledger import DivergenceWatch, ReplicatedState
from gossip.core.messages import Commit

from .lag import LagDetector


class LocalReplicaCheck:
    """Check that requests a state if the local replica differs from the replicas of most peers.

    Attributes:
        end_reason: Reason for which this peer has to end: its own replica, or the replicas of more
            than f peers, differ repeatedly. Empty if the peer need not end.
    """

    def __init__(self, replicated: ReplicatedState, lag_detector: LagDetector) -> None:
        self.replicated, self.lag_detector = replicated, lag_detector
        self.watch = DivergenceWatch(lag_detector.settings.f)
        self.end_reason = ""

    def on_commit(self, commit: Commit, own: Contributed | None, of: int) -> list[Effect]:
        """Observe the commit of the first shard of a finished round. ``own`` is the local update,
        and ``of`` the number of expected updates."""
        watch, contributors = self.watch, list(self.replicated.contributors)
        # After the adoption of a state, a round may be repeated. The replicas in a repeated round
        # are not compared again.
        diverged = commit.diverged if commit.round_id > watch.round_id else ()
        if watch.is_active or commit.replica or contributors != watch.contributors:
            step = self.replicated.lineage.next_round - self.replicated.collectives
            watch.observe(commit, contributors, step)
        return self._on_divergence(commit, own, of) if diverged else []

    def _on_divergence(self, commit: Commit, own: Contributed | None, of: int) -> list[Effect]:
        differ, struck, local = commit.diverged, self.watch.struck, self.lag_detector.local
        settings = self.lag_detector.settings
        sent = b"" if own is None else own.replica
        is_own = local in differ and sent not in (b"", commit.replica)
        report = Report(
            "replicas_differ", {"round": commit.round_id, "peers": list(differ), "of": of}
        )
        on_divergence = settings.rounds.on_divergence
        if on_divergence == "warn":
            return [report]
        if on_divergence == "stop" and (local in struck or len(struck) > settings.f):
            who = ", ".join(map(str, sorted(struck)))
            self.end_reason = (
                f"before round {commit.round_id} the replica of peer {who} differs from the "
                "replicas of most peers again, although it was replaced and no round was missed"
            )
        if self.end_reason or is_own:
            donors = [each.peer for each in commit.contributors if each.peer not in differ]
            donor = commit.server if commit.server in donors else min(donors, default=local)
            reason = f"its replica differs from most replicas before round {commit.round_id}"
            self.lag_detector.lose_track(donor, reason)
        return [report]
