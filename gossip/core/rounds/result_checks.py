"""Claims of a result beside its numbers: the rates with which all peers step, and the next roster.

A receiver cannot compute either again, but it has expectations: the rates that it would step with
itself, those of the round before, and whether each member is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gossip.core.events import Contributed
from gossip.core.frozen import record
from gossip.core.ledger import ReplicatedState
from gossip.core.messages import Commit
from gossip.core.view import View

from .lag import LagDetector
from .quorum import Quorum


@record
class Objection:
    """``why`` is empty where there is none. ``is_evidence``: more than f peers who hold it against
    a server are proof. It is reported as ``event``."""

    why: str
    is_evidence: bool = True
    event: Literal["refused_result", "bad_commit"] = "refused_result"


NO_OBJECTION = Objection("")


class ResultChecks:
    """Checks of these claims by the local state."""

    def __init__(
        self, replicated: ReplicatedState, lag_detector: LagDetector, quorum: Quorum, view: View
    ) -> None:
        self.replicated, self.lag_detector, self.quorum, self.view = (
            replicated,
            lag_detector,
            quorum,
            view,
        )
        self.f, self.settings = replicated.settings.f, replicated.settings.results

    def objection(self, commit: Commit, own: Contributed | None) -> Objection:
        """Return the objection to a sound commit of the present round, to which this peer has
        contributed ``own``."""
        if not self.f or commit.shard or self.quorum.local not in self.quorum.present.roster:
            return NO_OBJECTION  # who is not in the roster follows whatever was committed
        if commit.collected and self._misquotes(commit, own):
            return Objection("it has another value for a collective operation than was given here")
        if (
            own is not None
            and self.quorum.local in commit.diverged
            and own.replica in (b"", commit.replica)
        ):
            return Objection("it names this replica as different, which it is not")
        if own is not None and own.kind != commit.kind and commit.digest and own.samples:
            # Who is elsewhere in its loop than most takes it from more than f of them.
            counts = self._counts(commit)
            return Objection("it makes another kind of step than this peer", is_evidence=counts)
        if commit.rejected and own is not None and not own.skipped and self._skips(commit):
            return Objection("it says that this peer skipped its samples, which it did not")
        enough = (
            len(self.quorum.present.roster) >= 2 * self.f + 2
        )  # as ``ResultValidator.compared_with``
        told = [
            rates
            for rates in (own.rates if own is not None else (), self.replicated.rates)
            if rates
        ]
        if enough and commit.digest and told and (why := self._rates(commit.rates, told)):
            # Where the others have come to meanwhile,
            # who has nothing of its own to compare with cannot say.
            return Objection(
                why,
                is_evidence=bool(own is not None and own.rates)
                and not self.lag_detector.is_passed(commit.round_id),
            )
        if commit.roster == self.quorum.present.roster.peers:
            return NO_OBJECTION
        return self._roster(commit, enough)

    def _misquotes(self, commit: Commit, own: Contributed | None) -> bool:
        """Whether it gives a value of this peer to a collective operation that is not its own."""
        local = self.quorum.local
        given = next((each.data for each in commit.collected if each.peer == local), None)
        return own is not None and given is not None and given != own.collective

    def _counts(self, commit: Commit) -> bool:
        """Whether it says that this peer's update is in the aggregate."""
        local = self.quorum.local
        return any(each.peer == local for each in commit.contributors)

    def _skips(self, commit: Commit) -> bool:
        """Whether it says that this peer skipped its samples."""
        local = self.quorum.local
        return any(each.peer == local and each.reason == "skipped" for each in commit.rejected)

    def _rates(self, rates: tuple[float, ...], told: Sequence[tuple[float, ...]]) -> str:
        alike = [each for each in told if len(each) == len(rates)]
        if not alike:
            return f"it has {len(rates)} optimizer settings, and the own optimizer {len(told[0])}"
        for rate, *known in zip(rates, *alike, strict=True):
            if rate < 0.0 <= min(known):
                return f"a setting of {rate:.3g} is negative, and the own one and the last are not"
            sizes = [abs(each) for each in known]
            if abs(rate) > self.settings.higher * max(sizes):
                return (
                    f"a learning rate or setting of {rate:.3g} is far above the own one and the "
                    f"last, at most {max(sizes):.3g}"
                )
            if abs(rate) < self.settings.lower * min(sizes):
                return (
                    f"a learning rate or setting of {rate:.3g} is far below the own one and the "
                    f"last, at least {min(sizes):.3g}"
                )
        return ""

    def _roster(self, commit: Commit, enough: bool) -> Objection:
        here = self.quorum.present.roster.peers
        # Who has been away knows nothing of who was there in the rounds that the
        # others had meanwhile.
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
        # Of itself alone a peer cannot tell what the others see. And of a few two honest views may
        # differ: that is no lie.
        gross = len(missed) + len(strange) > self.f
        # The server of a collective operation may have heard of a death a moment before this peer.
        # A refusal would give those who took its commit another answer than the rest, for good;
        # who is left out without being dead comes back.
        wronged = missed not in ([], [quorum.local]) and not commit.collected
        if gross or (enough and (strange or wronged)):
            out = f"leaves out {missed}, who are here" if missed else ""
            put_in = f"takes in {strange}, who are not" if strange else ""
            return Objection(
                f"the next roster {' and '.join(filter(None, (out, put_in)))}", is_evidence=gross
            )
        return NO_OBJECTION
