"""S1-S7: transitions that must never appear in a table of members."""

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
from gossip_lab.simulation.checkers.base import PerLife
from gossip_lab.simulation.checkers.transitions import TableChecker, TableTransition

GONE = ("dead", "left")


class StandingNeverFalls(TableChecker):
    """S1: no observer records a fall of a peer's standing, and only the peer itself raises it."""

    invariant = "S1"
    fields = ("standing", "enlisted")
    _seen = PerLife(dict[PeerId, int])

    def judge(self, transition: TableTransition) -> None:
        subject, standing = transition.subject, transition.standing
        before = self._seen.get(subject, 0)
        self._seen[subject] = standing
        highest = max(membership.standing for membership in self.lives_of(subject).values())
        gave_way = self.circumstances.invented_lives and before > highest
        if gave_way or self.is_invented(subject):
            return
        self.demand(
            standing >= before, f"the standing of peer {subject} fell from {before} to {standing}"
        )
        if self.circumstances.invented_lives and incarnation_of(standing) == incarnation_of(
            highest
        ):
            # the number of refutations in this incarnation: an attacker may misstate it, and the
            # peer outbids it
            return
        if standing > highest:
            raise self.violated(
                f"gives peer {subject} the standing {standing}, which it never had: {highest} at "
                "most"
            )


class NoReturnFromTheDead(TableChecker):
    """S2 (and S4): a peer that is dead or has left with a standing returns to alive only with a
    higher one, and never becomes suspect."""

    invariant = "S2"
    fields = ("status", "enlisted")
    forbidden = "alive"
    # standing with which a subject left or died
    _gone = PerLife(dict[PeerId, int])

    def judge(self, transition: TableTransition) -> None:
        gone, subject = self._gone, transition.subject
        if transition.status in GONE:
            gone[subject] = transition.standing
            return
        went_with = gone.get(subject, -1)
        if went_with < 0:
            return
        life = self.swarm.hosts[subject].incarnation
        if self.circumstances.invented_lives and incarnation_of(went_with) > life:
            del gone[subject]  # an attacker invented the incarnation that died, and it is replaced
        elif transition.standing > went_with:
            del gone[subject]
            self.judged += 1
        elif transition.status == self.forbidden:
            raise self.violated(
                f"peer {subject} is {transition.status} with standing {transition.standing}, but "
                f"it was gone with {went_with}"
            )


class NoSuspicionOfTheDead(NoReturnFromTheDead):
    """S4: a peer that is dead or has left never becomes suspect with the same standing."""

    invariant = "S4"
    forbidden = "suspect"


class NotDeadWhileRunning(TableChecker):
    """S3: no running peer records itself as dead, regardless of claims of others; only a peer that
    halts may announce its own death."""

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


class OneAddressALife(TableChecker):
    """S5: within an incarnation of a peer its address does not change at an observer, and is never
    that of an earlier one."""

    invariant = "S5"
    fields = ("control", "bulk", "enlisted")
    # subject -> incarnation, control address
    _held = PerLife(dict[PeerId, tuple[int, str]])

    def _is_mended(self, subject: PeerId, control: str) -> bool:
        """Whether the true incarnation replaces an invented one: an attacker may have named it
        before it began, with another address."""
        membership = self.swarm.hosts[subject].membership
        own = membership is not None and membership.me.control == control
        return self.circumstances.invented_lives and own

    def judge(self, transition: TableTransition) -> None:
        subject, life, control = transition.subject, transition.incarnation, transition.control
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
            return  # the bulk address follows
        own = [
            membership.me
            for incarnation, membership in self.lives_of(subject).items()
            if incarnation >= life
        ]
        self.demand(
            any((me.control, me.bulk) == (control, transition.bulk) for me in own),
            f"peer {subject}.{life} has the address {control}, {transition.bulk}: not its own",
        )


class NoFalseDeath(TableChecker):
    """S6: no peer is declared dead that runs and was undisturbed for as long as a suspicion can
    last.

    Holds for up to 20 % loss and 100 ms of jitter, regardless of other peers that crash, pause or
    are cut off.
    """

    invariant = "S6"
    fields = ("status",)

    def judge(self, transition: TableTransition) -> None:
        subject, membership = transition.subject, self.membership
        if not self.is_false_death(transition):
            return
        if self.circumstances.unfounded_deaths and not membership.members[subject].spoken:
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
        """Whether ``subject`` treats the peer's probes as those of a former incarnation, and sends
        no acks: an attacker invented a later incarnation before the two had met (seed 923271)."""
        theirs = self.swarm.hosts[subject].membership
        known = theirs.members.get(self.peer) if theirs is not None else None
        if not self.circumstances.invented_lives or known is None or known.spoken:
            return False
        return bool(known.incarnation > self.host.incarnation)


class NoDeathByAStalledPeer(TableChecker):
    """S7: after a pause, a peer waits the full time again for peers without a reply before it
    declares any of them dead."""

    invariant = "S7"
    fields = ("status",)

    def judge(self, transition: TableTransition) -> None:
        subject, membership = transition.subject, self.membership
        if not self.is_false_death(transition):
            return
        own_verdict = membership.members[subject].origin == self.peer
        woke_at, long_s = self.disturbances.slept(self.peer)
        awake_s = self.now - woke_at
        # A pause below twice the probe interval may look like jitter.
        if not own_verdict or long_s <= 2.0 * membership.settings.probe_interval_s:
            return
        least_s = shortest_s(membership.n, membership.settings)
        self.demand(
            awake_s >= least_s - 1e-6,
            f"declares peer {subject}, which runs, dead {awake_s:.3f} s after it slept for "
            f"{long_s:.2f} s itself; it has to wait {least_s:.3f} s",
        )


def memory_s(settings: MembershipSettings, n: int) -> float:
    """Return the time for which a disturbance can have consequences: its last probe, by the peer
    with the lowest local health, and a suspicion."""
    slowest_probe_s = 1.5 * settings.awareness_max * settings.probe_interval_s
    return slowest_probe_s + longest_s(n, settings) + 1.0
