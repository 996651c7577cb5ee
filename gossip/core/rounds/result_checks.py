"""Checks of the claims that a commit makes besides its tensors, such as optimizer rates and the
next roster.

A receiver cannot recompute these claims, but it can compare them with its own update, with the
rates of the previous round, and with its view of the members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gossip.core.events import Contributed
from gossip.core.frozen import record
from gossip.core.ledger import ReplicatedState
from gossip.core.messages import Commit
from gossip.core.view import MembersView

from .lag import LagDetector
from .quorum import Quorum


@record
class Objection:
    """Reason to reject a result.

    Attributes:
        why: The reason; empty if there is no objection.
        is_evidence: Whether the same objection by more than f peers proves the server Byzantine.
        event: Name of the event that reports the objection.
    """

    why: str
    is_evidence: bool = True
    event: Literal["refused_result", "bad_commit"] = "refused_result"


NO_OBJECTION = Objection("")


@dataclass(eq=False)
class ResultChecks:
    """Checks of the claims in a commit against the local state."""

    replicated: ReplicatedState
    lag_detector: LagDetector
    quorum: Quorum
    view: MembersView

    def __post_init__(self) -> None:
        self.f, self.settings = self.replicated.settings.f, self.replicated.settings.results

    def objection(self, commit: Commit, own: Contributed | None) -> Objection:
        """Return the objection to a sound commit of the present round, or ``NO_OBJECTION``. ``own``
        is the contribution of this peer to the round."""
        if not self.f or commit.shard or self.quorum.local not in self.quorum.present.roster:
            return NO_OBJECTION  # a peer outside the roster follows every commit
        if commit.collected and self._misquotes(commit, own):
            return Objection("it has a false value of this peer for a collective operation")
        if (
            own is not None
            and self.quorum.local in commit.diverged
            and own.replica in (b"", commit.replica)
        ):
            return Objection("it reports that this replica differs, but the replica does not")
        if own is not None and own.kind != commit.kind and commit.digest and own.samples:
            # If this peer is at another place of its training loop than most peers, it accepts the
            # result after more than f peers have sent this result.
            counts = self._counts(commit)
            return Objection("it makes another kind of step than this peer", is_evidence=counts)
        if commit.rejected and own is not None and not own.skipped and self._skips(commit):
            return Objection("it reports that this peer skipped its samples, but this peer did not")
        enough = (
            len(self.quorum.present.roster) >= 2 * self.f + 2
        )  # the condition of ``ResultValidator.compared_with``
        known = [
            rates
            for rates in (own.rates if own is not None else (), self.replicated.rates)
            if rates
        ]
        if enough and commit.digest and known and (why := self._rates(commit.rates, known)):
            # The objection is no evidence if this peer has no own rates for this round, or if the
            # other peers are already in a later round.
            return Objection(
                why,
                is_evidence=bool(own is not None and own.rates)
                and not self.lag_detector.is_passed(commit.round_id),
            )
        if commit.roster == self.quorum.present.roster.peers:
            return NO_OBJECTION
        return self._roster(commit, enough)

    def _misquotes(self, commit: Commit, own: Contributed | None) -> bool:
        """Whether ``commit`` contains another value of this peer for the collective operation than
        this peer has sent."""
        local = self.quorum.local
        given = next((each.data for each in commit.collected if each.peer == local), None)
        return own is not None and given is not None and given != own.collective

    def _counts(self, commit: Commit) -> bool:
        """Whether ``commit`` lists this peer as a contributor."""
        local = self.quorum.local
        return any(each.peer == local for each in commit.contributors)

    def _skips(self, commit: Commit) -> bool:
        """Whether ``commit`` claims that this peer skipped its samples."""
        local = self.quorum.local
        return any(each.peer == local and each.reason == "skipped" for each in commit.rejected)

    def _rates(self, rates: tuple[float, ...], known: Sequence[tuple[float, ...]]) -> str:
        alike = [each for each in known if len(each) == len(rates)]
        if not alike:
            return f"it has {len(rates)} optimizer settings, this peer's optimizer {len(known[0])}"
        for rate, *former in zip(rates, *alike, strict=True):
            if rate < 0.0 <= min(former):
                return f"a setting of {rate:.3g} is negative, unlike the local and the last setting"
            sizes = [abs(each) for each in former]
            if abs(rate) > self.settings.higher * max(sizes):
                return (
                    f"a learning rate or setting of {rate:.3g} is far above the local and the last "
                    f"setting, at most {max(sizes):.3g}"
                )
            if abs(rate) < self.settings.lower * min(sizes):
                return (
                    f"a learning rate or setting of {rate:.3g} is far below the local and the last "
                    f"setting, at least {min(sizes):.3g}"
                )
        return ""

    def _roster(self, commit: Commit, enough: bool) -> Objection:
        here = self.quorum.present.roster.peers
        # If this peer was away, its view does not show which peers were present in the rounds that
        # it missed.
        if self.lag_detector.is_passed(commit.round_id):
            return NO_OBJECTION
        quorum, gone = self.quorum, self.view.is_gone
        left_out = [
            peer
            for peer in here
            if peer not in commit.roster and not quorum.departures.leaves(peer)
        ]
        missed = [peer for peer in left_out if peer == quorum.local or not quorum.skip_reason(peer)]
        come = set(commit.roster).difference(here)
        strange = (
            sorted(come.difference(self.view.met()) | {peer for peer in come if gone(peer)})
            if come
            else []
        )
        # The views of two honest peers may differ in a few members, so only more than f differences
        # are evidence.
        gross = len(missed) + len(strange) > self.f
        # The server of a collective operation may detect a death a moment before this peer. If this
        # peer rejected the commit, it would get another result of the operation than the peers that
        # accept the commit. An omitted peer that is alive joins again later.
        wronged = missed not in ([], [quorum.local]) and not commit.collected
        if gross or (enough and (strange or wronged)):
            out = f"leaves out {missed}, which are present" if missed else ""
            put_in = f"adds {strange}, which are not" if strange else ""
            return Objection(
                f"the next roster {' and '.join(filter(None, (out, put_in)))}", is_evidence=gross
            )
        return NO_OBJECTION
