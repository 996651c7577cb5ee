"""S1-S7: what may never be seen in anybody's table of members."""

from __future__ import annotations

from gossip.core import (
    Event,
    MembershipSettings,
    PeerId,
    Stop,
    TrainerLost,
    incarnation_of,
    longest_s,
    shortest_s,
)
from gossip_lab.simulation.checkers.base import Checker, RunConditions
from gossip_lab.simulation.checkers.disturbances import DisturbedChecker
from gossip_lab.simulation.checkers.transitions import TableChecker, TableTransition
from gossip_lab.simulation.world import AnySwarm

GONE = ("dead", "left")


def is_invented(
    circumstances: RunConditions, swarm: AnySwarm, peer: PeerId, subject: PeerId
) -> bool:
    """Whether a liar may have invented the life of ``subject`` that ``peer`` knows of,
    and has not heard from."""
    membership = swarm.hosts[peer].membership if circumstances.invented_lives else None
    return membership is not None and peer != subject and not membership.members[subject].spoken


class StandingNeverFalls(TableChecker):
    """S1: at no observer does a peer's standing fall,
    and nobody but the peer itself ever raises it."""

    invariant = "S1"

    def make_records(self) -> None:
        self._highest: dict[PeerId, int] = {}  # that a peer has had itself, in all its lives
        self._seen: dict[PeerId, dict[PeerId, int]] = {}

    def born(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._seen[peer] = {}
        self._note(swarm, peer)

    def _note(self, swarm: AnySwarm, peer: PeerId) -> None:
        membership = swarm.hosts[peer].membership
        if membership is not None:
            self._highest[peer] = max(self._highest.get(peer, 0), membership.standing)

    def judge(
        self, swarm: AnySwarm, peer: PeerId, transition: TableTransition, event: Event | None
    ) -> None:
        if transition.field not in ("standing", "enlisted"):
            return
        subject, standing = transition.subject, transition.standing
        before = self._seen[peer].get(subject, 0)
        self._seen[peer][subject] = standing
        gave_way = self.circumstances.invented_lives and before > self._highest.get(subject, 0)
        if gave_way or is_invented(self.circumstances, swarm, peer, subject):
            return
        self.demand(
            standing >= before,
            swarm,
            peer,
            f"the standing of peer {subject} fell from {before} to {standing}",
        )
        if subject == peer:
            self._highest[peer] = max(self._highest.get(peer, 0), standing)
        if swarm.hosts[subject].state == "starting":
            self._note(swarm, subject)  # a folder of addresses may name it before it runs
        highest = self._highest.get(subject, 0)
        if self.circumstances.invented_lives and incarnation_of(standing) == incarnation_of(
            highest
        ):
            # how often it has refuted in this life: others may lie about that, and it outbids them
            return
        if standing > highest:
            text = (
                f"gives peer {subject} the standing {standing}, which it never had: "
                f"{self._highest.get(subject, 0)} at most"
            )
            raise self.violated(swarm, peer, text)


class NoReturnFromTheDead(TableChecker):
    """S2 (and S4): who is dead or has left with a standing becomes alive again with a higher one
    only, and suspect never."""

    invariant = "S2"
    forbidden = "alive"

    def make_records(self) -> None:
        self._gone: dict[PeerId, dict[PeerId, int]] = {}  # the standing with which a subject went

    def born(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._gone[peer] = {}

    def judge(
        self, swarm: AnySwarm, peer: PeerId, transition: TableTransition, event: Event | None
    ) -> None:
        if transition.field not in ("status", "enlisted"):
            return
        gone = self._gone[peer]
        if transition.status in GONE:
            gone[transition.subject] = transition.standing
            return
        went_with = gone.get(transition.subject, -1)
        if went_with < 0:
            return
        if (
            self.circumstances.invented_lives
            and incarnation_of(went_with) > swarm.hosts[transition.subject].incarnation
        ):
            del gone[transition.subject]  # the life that died was a liar's invention, and gives way
            return
        if transition.standing > went_with:
            del gone[transition.subject]
            self.judged += 1
        elif transition.status == self.forbidden:
            what = (
                f"peer {transition.subject} is {transition.status} with standing "
                f"{transition.standing}"
            )
            raise self.violated(swarm, peer, f"{what}, but it was gone with {went_with}")


class NoSuspicionOfTheDead(NoReturnFromTheDead):
    """S4: nobody who is dead or has left becomes suspect with the same standing."""

    invariant = "S4"
    forbidden = "suspect"


class NotDeadWhileRunning(TableChecker):
    """S3: no running peer takes itself for dead, whatever others say;
    only one that halts may say so of itself."""

    invariant = "S3"

    def judge(
        self, swarm: AnySwarm, peer: PeerId, transition: TableTransition, event: Event | None
    ) -> None:
        if transition.subject != peer:
            return
        self.judged += 1
        if transition.status == "alive":
            return
        phase = getattr(
            swarm.hosts[peer].core,
            "phase",
            "halted" if isinstance(event, Stop | TrainerLost) else "running",
        )
        if transition.status not in GONE or phase != "halted":
            raise self.violated(swarm, peer, f"takes itself for {transition.status} and is {phase}")


class OneAddressALife(TableChecker):
    """S5: within a life of a peer its address does not change at an observer, and is never that of
    an earlier life."""

    invariant = "S5"

    def make_records(self) -> None:
        # the last life in which a peer had an address
        self._lives: dict[PeerId, dict[tuple[str, str], int]] = {}
        # observer -> subject -> life, control address
        self._held: dict[PeerId, dict[PeerId, tuple[int, str]]] = {}

    def born(self, swarm: AnySwarm, peer: PeerId) -> None:
        self._held[peer] = {}
        self._note(swarm, peer)

    def _note(self, swarm: AnySwarm, peer: PeerId) -> None:
        host = swarm.hosts[peer]
        membership = host.membership
        if membership is not None:
            self._lives.setdefault(peer, {})[membership.me.control, membership.me.bulk] = (
                host.incarnation
            )

    def _is_mended(self, swarm: AnySwarm, subject: PeerId, control: str) -> bool:
        """A liar may have named a life before it began, with an address of its own; the true one
        takes its place."""
        membership = swarm.hosts[subject].membership if self.circumstances.invented_lives else None
        return membership is not None and membership.me.control == control

    def judge(
        self, swarm: AnySwarm, peer: PeerId, transition: TableTransition, event: Event | None
    ) -> None:
        if transition.field not in ("control", "bulk", "enlisted"):
            return
        if is_invented(self.circumstances, swarm, peer, transition.subject):
            self._held[peer].pop(transition.subject, None)
            return
        subject, life, control = transition.subject, transition.incarnation, transition.control
        if transition.field != "bulk":
            held_life, held = self._held[peer].get(subject, (life, ""))
            if (
                held
                and held != control
                and held_life == life
                and not self._is_mended(swarm, subject, control)
            ):
                text = (
                    f"peer {subject}.{life} had the address {held} and now has {control or 'none'}"
                )
                raise self.violated(swarm, peer, text)
            self._held[peer][subject] = (life, control)
        if transition.field == "control" or not control:
            return  # the bulk address follows
        if swarm.hosts[subject].state == "starting":
            self._note(swarm, subject)  # a folder of addresses may name it before it runs
        last_life = self._lives.get(subject, {}).get((control, transition.bulk), -1)
        self.demand(
            last_life >= life,
            swarm,
            peer,
            f"peer {subject}.{life} has the address {control}, {transition.bulk}: not its own",
        )


class NoFalseDeath(DisturbedChecker, TableChecker):
    """S6: nobody declares a peer dead that runs and was undisturbed for as long as a
    suspicion can last.

    Holds for up to 20 % loss and 100 ms of jitter, whoever else crashes, sleeps or is cut off.
    """

    invariant = "S6"

    def judge(
        self, swarm: AnySwarm, peer: PeerId, transition: TableTransition, event: Event | None
    ) -> None:
        subject, membership = transition.subject, swarm.hosts[peer].membership
        if membership is None or not _declares_dead_who_lives(swarm, peer, transition):
            return
        if self.circumstances.unfounded_deaths and not membership.members[subject].spoken:
            return
        if self._is_outbid(swarm, peer, subject):
            return
        self.judged += 1
        undisturbed_s = self.disturbances.undisturbed_s(swarm, subject)
        window_s = memory_s(membership.settings, len(swarm.hosts))
        if undisturbed_s > window_s:
            text = (
                f"declares peer {subject} dead, which runs and was undisturbed for "
                f"{min(undisturbed_s, swarm.now):.2f} s"
            )
            raise self.violated(swarm, peer, f"{text}; after {window_s:.2f} s that must not happen")

    def _is_outbid(self, swarm: AnySwarm, peer: PeerId, subject: PeerId) -> bool:
        """Whether ``subject`` takes what ``peer`` asks for the word of a former life, and answers
        nothing: a liar has invented a later one before the two had met (seed 923271)."""
        theirs = swarm.hosts[subject].membership if self.circumstances.invented_lives else None
        known = theirs.members.get(peer) if theirs is not None else None
        if known is None or known.spoken:
            return False
        return known.incarnation > swarm.hosts[peer].incarnation


class NoDeathByAStalledPeer(DisturbedChecker, TableChecker):
    """S7: one that stood still gives those it then misses all their time again,
    before it declares anybody dead."""

    invariant = "S7"

    def judge(
        self, swarm: AnySwarm, peer: PeerId, transition: TableTransition, event: Event | None
    ) -> None:
        subject, membership = transition.subject, swarm.hosts[peer].membership
        if membership is None or not _declares_dead_who_lives(swarm, peer, transition):
            return
        own_verdict = membership.members[subject].origin == peer
        woke_at, long_s = self.disturbances.slept(swarm, peer)
        awake_s = swarm.now - woke_at
        # Shorter pauses than twice the probe interval may pass for jitter.
        if not own_verdict or long_s <= 2.0 * membership.settings.probe_interval_s:
            return
        least_s = shortest_s(membership.n, membership.settings)
        self.judged += 1
        if awake_s < least_s - 1e-6:
            text = (
                f"declares peer {subject}, which runs, dead {awake_s:.3f} s after it slept for "
                f"{long_s:.2f} s itself"
            )
            raise self.violated(swarm, peer, f"{text}; it has to wait {least_s:.3f} s")


def memory_s(settings: MembershipSettings, n: int) -> float:
    """How long a disturbance can have consequences: the last probe of it, by one that doubts itself
    most, and a suspicion."""
    slowest_probe_s = 1.5 * settings.awareness_max * settings.probe_interval_s
    return slowest_probe_s + longest_s(n, settings) + 1.0


def _declares_dead_who_lives(swarm: AnySwarm, peer: PeerId, transition: TableTransition) -> bool:
    """Whether ``peer`` declares another dead whose life of that number runs."""
    subject = transition.subject
    if transition.field != "status" or transition.status != "dead" or subject == peer:
        return False
    return _lives(swarm, subject, transition.incarnation)


def _lives(swarm: AnySwarm, peer: PeerId, incarnation: int) -> bool:
    """Whether that very life of a peer runs, and takes part."""
    host = swarm.hosts[peer]
    membership = host.membership
    if not host.running or host.incarnation != incarnation or membership is None:
        return False
    return membership.me.status == "alive"


MEMBERSHIP: tuple[type[Checker], ...] = (
    StandingNeverFalls,
    NoReturnFromTheDead,
    NotDeadWhileRunning,
    NoSuspicionOfTheDead,
    OneAddressALife,
    NoFalseDeath,
    NoDeathByAStalledPeer,
)

__all__ = [*(checker.__name__ for checker in MEMBERSHIP), "MEMBERSHIP", "memory_s"]
