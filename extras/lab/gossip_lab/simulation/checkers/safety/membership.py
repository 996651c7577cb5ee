"""S1-S7: changes that must never appear in a membership table."""

from __future__ import annotations

from gossip.core import (
    MembershipSettings,
    PeerId,
    Stop,
    TrainerLost,
    incarnation_of,
    longest_s,
    shortest_s,
)
from gossip_lab.simulation.checkers.base import PerIncarnation
from gossip_lab.simulation.checkers.transitions import TableChecker, TableTransition

GONE = ("dead", "left")


class MonotonicStandings(TableChecker):
    """S1: the recorded standing of a peer never falls, and only the peer itself raises it."""

    invariant = "S1"
    fields = ("standing", "enlisted")
    _seen = PerIncarnation(dict[PeerId, int])

    def judge(self, transition: TableTransition) -> None:
        subject, standing = transition.subject, transition.standing
        before = self._seen.get(subject, 0)
        self._seen[subject] = standing
        highest = max(membership.standing for membership in self.incarnations_of(subject).values())
        gave_way = self.conditions.invented_incarnations and before > highest
        if gave_way or self.is_invented(subject):
            return
        self.demand(
            standing >= before, f"the standing of peer {subject} fell from {before} to {standing}"
        )
        if self.conditions.invented_incarnations and incarnation_of(standing) == incarnation_of(
            highest
        ):
            # An attacker may claim too many refutations in this incarnation. The peer then raises
            # its standing above this claim.
            return
        if standing > highest:
            raise self.violated(
                f"gives peer {subject} the standing {standing}, which it never had: {highest} at "
                "most"
            )


class NoRevivalAtSameStanding(TableChecker):
    """S2: a peer that was recorded as dead or left becomes alive again only with a higher standing.
    ``NoSuspicionOfDeadPeers`` judges S4 in the same way."""

    invariant = "S2"
    fields = ("status", "enlisted")
    forbidden = "alive"
    # Peer -> standing with which it was recorded as dead or left.
    _gone = PerIncarnation(dict[PeerId, int])

    def judge(self, transition: TableTransition) -> None:
        gone, subject = self._gone, transition.subject
        if transition.status in GONE:
            gone[subject] = transition.standing
            return
        went_with = gone.get(subject, -1)
        if went_with < 0:
            return
        life = self.swarm.hosts[subject].incarnation
        if self.conditions.invented_incarnations and incarnation_of(went_with) > life:
            del gone[subject]  # an attacker had invented the dead incarnation
        elif transition.standing > went_with:
            del gone[subject]
            self.judged += 1
        elif transition.status == self.forbidden:
            raise self.violated(
                f"peer {subject} is {transition.status} with standing {transition.standing}, but "
                f"it was gone with {went_with}"
            )


class NoSuspicionOfDeadPeers(NoRevivalAtSameStanding):
    """S4: a peer that is dead or has left never becomes suspect with the same standing."""

    invariant = "S4"
    forbidden = "suspect"


class NoSelfDeathWhileRunning(TableChecker):
    """S3: no running peer records itself as dead, whatever others claim. Only a peer that halts may
    announce its own death."""

    invariant = "S3"

    def judge(self, transition: TableTransition) -> None:
        if transition.subject != self.peer:
            return
        ends = "halted" if isinstance(self.cause, Stop | TrainerLost) else "running"
        phase = getattr(self.host.core, "phase", ends)
        self.demand(
            transition.status == "alive" or (transition.status in GONE and phase == "halted"),
            f"records itself as {transition.status} and is {phase}",
        )


class OneAddressPerIncarnation(TableChecker):
    """S5: the recorded address of a peer's incarnation does not change, and is not the address of
    an earlier incarnation."""

    invariant = "S5"
    fields = ("control", "bulk", "enlisted")
    # Peer -> (incarnation, control address).
    _held = PerIncarnation(dict[PeerId, tuple[int, str]])

    def _is_mended(self, subject: PeerId, control: str) -> bool:
        """Whether the true address replaces a false address: an attacker may have announced the
        incarnation before it began."""
        membership = self.swarm.hosts[subject].membership
        own = membership is not None and membership.me.control == control
        return self.conditions.invented_incarnations and own

    def judge(self, transition: TableTransition) -> None:
        subject = transition.subject
        life = transition.incarnation
        control = transition.control
        if self.is_invented(subject):
            self._held.pop(subject, None)
            return
        if transition.field != "bulk":
            held_life, held = self._held.get(subject, (life, ""))
            changed = held and held != control and held_life == life
            if changed and not self._is_mended(subject, control):
                raise self.violated(
                    f"peer {subject}.{life} had the address {held} and now has {control or 'none'}"
                )
            self._held[subject] = (life, control)
        if transition.field == "control" or not control:
            return  # judged when the bulk address changes, which follows
        own = [
            membership.me
            for incarnation, membership in self.incarnations_of(subject).items()
            if incarnation >= life
        ]
        self.demand(
            any((me.control, me.bulk) == (control, transition.bulk) for me in own),
            f"peer {subject}.{life} has the address {control}, {transition.bulk}: not its own",
        )


class NoFalseDeath(TableChecker):
    """S6: a running peer is not declared dead if it was undisturbed for the maximum duration of a
    suspicion.

    This holds for up to 20 % loss and 100 ms of jitter, even if other peers crash, pause or are cut
    off.
    """

    invariant = "S6"
    fields = ("status",)

    def judge(self, transition: TableTransition) -> None:
        subject, membership = transition.subject, self.membership
        if not self.is_false_death(transition):
            return
        if self.conditions.unfounded_deaths and not membership.members[subject].spoken:
            return
        if self._is_outbid(subject):
            return
        undisturbed_s = self.disturbances.undisturbed_s(self.swarm, subject)
        window_s = memory_s(membership.settings, len(self.swarm.hosts))
        self.demand(
            undisturbed_s <= window_s,
            f"declares peer {subject} dead, which runs and was undisturbed for "
            f"{min(undisturbed_s, self.now):.2f} s; after {window_s:.2f} s it must not",
        )

    def _is_outbid(self, subject: PeerId) -> bool:
        """Whether ``subject`` ignores the peer's probes as those of a former incarnation, because
        an attacker invented a later incarnation of the peer before the two had met (seed
        923271)."""
        theirs = self.swarm.hosts[subject].membership
        known = theirs.members.get(self.peer) if theirs is not None else None
        if not self.conditions.invented_incarnations or known is None or known.spoken:
            return False
        return bool(known.incarnation > self.host.incarnation)


class NoDeathsByStalledPeers(TableChecker):
    """S7: after a pause of its own, a peer waits for the full timeout of a suspicion before it
    declares another peer dead."""

    invariant = "S7"
    fields = ("status",)

    def judge(self, transition: TableTransition) -> None:
        subject, membership = transition.subject, self.membership
        if not self.is_false_death(transition):
            return
        own_verdict = membership.members[subject].origin == self.peer
        woke_at, long_s = self.disturbances.last_pause(self.peer)
        awake_s = self.now - woke_at
        # The peer cannot distinguish a pause below twice the probe interval from jitter.
        if not own_verdict or long_s <= 2.0 * membership.settings.probe_interval_s:
            return
        least_s = shortest_s(membership.n, membership.settings)
        self.demand(
            awake_s >= least_s - 1e-6,
            f"declares peer {subject}, which runs, dead {awake_s:.3f} s after its own pause of "
            f"{long_s:.2f} s; it has to wait {least_s:.3f} s",
        )


def memory_s(settings: MembershipSettings, n: int) -> float:
    """Return the maximum time for which a past disturbance can have consequences, in seconds: a
    probe by the peer with the worst local health, and a suspicion after it."""
    slowest_probe_s = 1.5 * settings.awareness_max * settings.probe_interval_s
    return slowest_probe_s + longest_s(n, settings) + 1.0
