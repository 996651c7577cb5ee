"""Every checker catches a violation planted in a real swarm,
and says nothing where there is none."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pkgutil import walk_packages
from typing import Any

import numpy as np
import pytest
from checked_swarm import (
    Change,
    assert_sound,
    changed,
    checked_swarm,
    disturb,
    each,
    recommitted,
    resent,
    swapped,
    tamper,
)

from gossip.core import events
from gossip.core.events import (
    Aggregate,
    Apply,
    Committed,
    Contributed,
    Effect,
    Event,
    Received,
    Restore,
    Send,
)
from gossip.core.membership.table import REFUTATIONS
from gossip.core.messages import (
    Commit,
    CommitRequest,
    Contribution,
    Gossip,
    NotServing,
    PeerId,
    Ping,
    Rumor,
    Update,
    UpdateRequest,
)
from gossip.core.peer import Peer
from gossip.faults.kinds import Crash
from gossip.faults.world import NodeAttack
from gossip.topologies import Roster
from gossip_lab.simulation import checkers
from gossip_lab.simulation.checkers import (
    Checker,
    CheckerSuite,
    RunConditions,
    Violation,
    as_violation,
    every_checker,
)
from gossip_lab.simulation.checkers.base import Recorders
from gossip_lab.simulation.checkers.liveness.crashes import LOST_BY_A_BYZANTINE_SERVER
from gossip_lab.simulation.checkers.liveness.liveness import RoundProgress
from gossip_lab.simulation.checkers.safety.commit_transfer import (
    CommitForwarding,
    CommitRequestReplies,
)
from gossip_lab.simulation.checkers.safety.membership import memory_s
from gossip_lab.simulation.checkers.safety.rounds import FORKS_AFTER_S
from gossip_lab.simulation.schedules.schedule import Schedule
from gossip_lab.simulation.world.driver import Swarm
from gossip_lab.simulation.world.observer import Observer
from gossip_lab.simulation.world.toy_model import OWN_BYTES
from gossip_lab.simulation.world.toy_payloads import packed_of, payload_of

ATTACKERS = RunConditions.of(attackers=(3,))


def only(invariant: str, conditions: RunConditions | None = None) -> CheckerSuite:
    """The checkers of one invariant, with what they ask."""
    chosen = [each for each in every_checker(conditions) if each.invariant == invariant]
    assert chosen, f"no checker of {invariant}"
    return CheckerSuite(chosen)


def caught(swarm: Swarm[Peer], invariant: str, for_s: float = 3.0) -> Violation:
    with pytest.raises(Violation) as found:
        swarm.run_for(for_s)
    assert found.value.invariant == invariant, found.value
    return found.value


def running(
    invariant: str, *, until_s: float = 1.0, conditions: RunConditions | None = None, **options: Any
) -> Swarm[Peer]:
    """A swarm that trains, under the checkers of one invariant."""
    swarm = checked_swarm(only(invariant, conditions), **options)
    swarm.run_for(until_s)
    return swarm


def suite_of(swarm: Swarm[Peer]) -> CheckerSuite:
    [suite] = [hook for hook in swarm.hooks if isinstance(hook, CheckerSuite)]
    return suite


def judged_by(swarm: Swarm[Peer]) -> Mapping[str, int]:
    return suite_of(swarm).judged_by()


# --- without a plant ------------------------------------------------------------------------------


def lively(swarm: Swarm[Peer]) -> None:
    """A crash, a restart, a pause of one and one of three, a cut, a polite leave; then all come
    back."""
    swarm.run_for(4.0)
    swarm.crash(1)
    swarm.run_for(4.0)
    swarm.restart(1)
    swarm.run_for(1.0)
    swarm.pause_for(2, 2.0)
    swarm.run_for(2.0)
    for peer in (0, 1, 2):
        swarm.pause_for(peer, 0.6)
    swarm.run_for(0.6)
    swarm.network.partition({3}, {0, 1, 2, 4})
    swarm.run_for(4.0)
    swarm.network.heal()
    swarm.run_for(1.0)
    swarm.stop(4)
    swarm.run_for(2.0)
    swarm.restart(4)


@pytest.fixture(scope="module")
def sound() -> tuple[Swarm[Peer], CheckerSuite]:
    """A swarm of five after all that, every checker looking on."""
    suite = CheckerSuite(every_checker(RunConditions.of(forks=True)))
    assert isinstance(suite, CheckerSuite)
    swarm = checked_swarm(suite, n=5, compute_s=0.15)
    lively(swarm)
    suite.settle(swarm)
    return swarm, suite


def test_a_sound_swarm_is_judged_in_all_respects(sound: tuple[Swarm[Peer], CheckerSuite]) -> None:
    judged = sound[1].judged()
    # For runs without a fault, with payloads that trickle and nothing else, of whom somebody gives
    # up, of fragments, and for the end of gossip rounds.
    assert sorted(invariant for invariant, times in judged.items() if not times) == [
        "L10",
        "L11",
        "L12",
        "L8",
        "S27",
    ]
    safe = {f"S{i}" for i in (*range(1, 20), 24, 27) if i not in (16, 18)}  # the rest: of pipelines
    assert set(judged) == safe | {f"L{i}" for i in range(1, 13)}


def test_observation_changes_no_trace(sound: tuple[Swarm[Peer], CheckerSuite]) -> None:
    alone = checked_swarm(n=5, compute_s=0.15)
    lively(alone)
    alone.run_for(sound[0].now - alone.now)
    assert alone.trace_hash == sound[0].trace_hash


def test_gossip_rounds_are_found_sound_too() -> None:
    suite = CheckerSuite(every_checker())
    assert isinstance(suite, CheckerSuite)
    swarm = checked_swarm(suite, n=5, topology="random_k", compute_s=0.05)
    swarm.run_for(2.0)
    swarm.restart(1)
    swarm.run_for(2.0)
    swarm.network.partition({0, 2}, {1, 3, 4})
    swarm.run_for(1.0)
    swarm.network.heal()
    suite.settle(swarm)
    assert suite.judged()["S8"] > 100


def test_checkers_judge_alone_as_in_a_suite() -> None:
    suite = CheckerSuite(every_checker())
    known = Recorders.create()
    alone = [CheckerSuite([each], has_recorders=False) for each in every_checker(recorders=known)]
    for observers in ([suite], [*known, *alone]):
        swarm = checked_swarm(*observers)
        swarm.run_for(2.0)
        swarm.crash(2)
        swarm.run_for(2.0)
    judged = {name: times for each in alone for name, times in each.judged_by().items()}
    assert judged == suite.judged_by()


def test_every_module_of_checkers_is_imported_so_none_is_left_out() -> None:
    modules = {each.name for each in walk_packages(checkers.__path__, f"{checkers.__name__}.")}
    assert modules <= set(sys.modules)
    found = {type(checker).__name__ for checker in every_checker()}
    assert {kind.__name__ for kind in Checker.kinds} == found


def test_a_violation_crosses_processes() -> None:
    found = Violation("S1", 3, 1.25, "it fell")
    again = copy.copy(found)  # by what __reduce__ says, as it is sent
    assert (str(again), again.peer) == ("S1 at 1.250000 s, peer 3: it fell", 3)


# --- S1-S7 ----------------------------------------------------------------------------------------


def row_becomes(**fields: Any) -> Callable[[Peer, float], None]:
    """What the local peer believes of peer 1 is set to each value in turn, within one event."""

    def act(core: Peer, now: float) -> None:
        member = core.membership.members[1]
        for name, values in fields.items():
            for value in values:
                setattr(member, name, value)

    return act


@pytest.mark.parametrize(
    ("invariant", "plant", "words"),
    [
        ("S1", row_becomes(standing=[-1, 0]), "fell from 0 to -1"),
        ("S1", row_becomes(standing=[1]), "which it never had: 0 at most"),
        (
            "S2",
            row_becomes(status=["dead", "alive"]),
            "peer 1 is alive with standing 0, but it was gone with 0",
        ),
        ("S2", row_becomes(status=["left", "alive"]), "gone"),
        (
            "S4",
            row_becomes(status=["dead", "suspect", "dead"]),
            "peer 1 is suspect with standing 0",
        ),
        (
            "S5",
            row_becomes(control=["tcp://10.9.9.9:1", "tcp://10.0.0.1:10000"]),
            "had the address tcp://10.0.0.1:10000",
        ),
        ("S5", row_becomes(bulk=["tcp://10.9.9.9:1"]), "not its own"),
    ],
)
def test_a_wrong_row_is_caught_even_when_it_is_right_again_at_the_end_of_the_event(
    invariant: str, plant: Callable[[Peer, float], None], words: str
) -> None:
    swarm = running(invariant)
    disturb(swarm, 0, plant)
    assert words in caught(swarm, invariant).text


def test_s1_a_row_that_vanishes_and_comes_back_lower_is_caught() -> None:
    swarm = running("S1")
    swarm.restart(1)
    swarm.run_for(1.0)

    def forget(core: Peer, now: float) -> None:
        members = core.membership.members
        members[1] = replace(members[1], standing=0)
        members[99] = replace(members[1], peer=99)

    disturb(swarm, 0, forget)
    caught(swarm, "S1")


def test_s3_a_running_peer_that_takes_itself_for_dead_is_caught() -> None:
    swarm = running("S3")
    disturb(swarm, 2, lambda core, now: setattr(core.membership.me, "status", "dead"))
    assert "records itself as dead" in caught(swarm, "S3").text


def test_s5_the_address_of_an_earlier_life_is_caught() -> None:
    swarm = running("S5")
    swarm.restart(1)
    swarm.run_for(1.0)

    def old_address(core: Peer, now: float) -> None:
        core.membership.members[1].bulk = "tcp://10.0.0.1:10001"

    disturb(swarm, 0, old_address)
    assert "peer 1.1 has the address" in caught(swarm, "S5").text


def test_what_a_peer_did_just_before_it_was_killed_is_judged_too() -> None:
    class Killer(Observer):
        def on_effect(self, swarm: Swarm[Any], peer: int, effect: Effect) -> None:
            if peer == 0 and swarm.now > 1.0 and isinstance(effect, Send):
                swarm.crash(0)

    swarm = checked_swarm(only("S2"), Killer())
    swarm.run_for(1.0)
    tamper(
        swarm,
        0,
        lambda event, effects: row_becomes(status=["dead", "alive"])(swarm.hosts[0].core, 0.0),
    )
    assert "was gone" in caught(swarm, "S2").text


def test_a_forged_life_outranks_nobody_who_is_heard() -> None:
    suite = CheckerSuite(every_checker(RunConditions.of((2,), equivocating=(2,))))
    swarm = checked_swarm(suite, n=5)
    swarm.run_for(1.0)
    swarm.inject(0, Received(2, 0, Gossip((Rumor(4, "dead", 3 * REFUTATIONS, "", "", 4),))))
    swarm.inject(
        0, Received(2, 0, Gossip((Rumor(4, "alive", 3 * REFUTATIONS, "tcp://10.9.9.9:1", "", 4),)))
    )
    swarm.run_for(2.0)
    assert {swarm.hosts[peer].core.membership.members[4].status for peer in range(4)} == {"alive"}
    suite.settle(swarm)


def bury_1(core: Peer, now: float) -> None:
    core.membership.transitions.mark_dead(core.membership.members[1], core.local, now, "no answer")


def test_s6_the_death_of_a_healthy_peer_is_caught_and_that_of_a_cut_off_one_is_not() -> None:
    swarm = running("S6", compute_s=0.5)
    swarm.run_for(memory_s(swarm.hosts[0].core.settings.membership, 4))
    swarm.network.cut([(2, 3), (3, 2)])
    disturb(
        swarm,
        0,
        lambda core, now: core.membership.transitions.mark_dead(
            core.membership.members[2], 0, now, "no answer"
        ),
    )
    swarm.run_for(0.5)
    disturb(swarm, 0, bury_1)
    assert "declares peer 1 dead, which runs" in caught(swarm, "S6").text


def test_s7_a_death_declared_by_one_that_just_woke_up_is_caught() -> None:
    swarm = running("S7")
    disturb(swarm, 2, bury_1)  # one that did not sleep
    swarm.run_for(0.5)
    swarm.pause(0)
    swarm.run_for(1.0)
    disturb(swarm, 0, bury_1)
    with pytest.raises(Violation, match=r"S7 .* after its own pause of 1.0"):
        swarm.resume(0)


# --- S8-S13 ---------------------------------------------------------------------------------------


def flipped(digest: bytes) -> bytes:
    return bytes([digest[0] ^ 1]) + digest[1:]


def test_s8_one_hash_for_two_commits_is_caught() -> None:
    swarm = running("S8")
    for peer in range(4):
        tamper(swarm, peer, recommitted(loss=float(peer)))
    assert caught(swarm, "S8").text


def test_s11_a_push_that_is_used_again_is_caught() -> None:
    swarm = running("S11", topology="random_k")
    first: list[events.Payload] = []

    def same_rows(ask: Aggregate) -> tuple[Any, ...]:
        if ask.mix:
            return ask.rows
        first[:] = first or [row.payload for row in ask.rows if row.peer != 0]
        return tuple(row if row.peer == 0 else replace(row, payload=first[0]) for row in ask.rows)

    tamper(swarm, 0, swapped(Aggregate, rows=same_rows))
    assert "arrived or own are" in caught(swarm, "S11").text


def test_s9_replicas_that_differ_in_one_bit_are_caught() -> None:
    swarm = running("S9")
    trainer: Any = swarm.trainer(2)
    changed = trainer.parameters.copy()
    changed[0] += 1e-7
    trainer.parameters = changed
    assert "its parameters differ from peer" in caught(swarm, "S9").text


def test_s9_data_cursors_that_differ_are_caught() -> None:
    swarm = running("S9")
    disturb(swarm, 2, lambda core, now: setattr(core.rounds.replicated.cursor, "_turn", 77))  # type: ignore[union-attr]
    assert "data cursor differ" in caught(swarm, "S9").text


ANOTHER_DIGEST = recommitted(digest=b"another digest!!")
ANOTHER_FORWARDED = each(
    Committed, lambda done: [done] if done.made else ANOTHER_DIGEST(None, [done])
)


def test_s10_a_second_digest_is_excused_while_the_network_loses_commits_and_caught_later() -> None:
    def forking() -> Swarm[Peer]:
        swarm = running("S10", conditions=RunConditions.of(forks=True))
        swarm.network.cut([(0, 3)])
        swarm.run_for(0.2)
        swarm.network.heal()
        return swarm

    swarm = forking()
    tamper(swarm, 1, ANOTHER_FORWARDED)
    swarm.run_for(1.0)  # a fork, which is healed later
    swarm = forking()
    swarm.run_for(FORKS_AFTER_S + 1.0)
    tamper(swarm, 1, ANOTHER_FORWARDED)
    assert "at peer" in caught(swarm, "S10").text


def test_s10_a_server_that_makes_two_commits_of_one_round_is_caught() -> None:
    swarm = running("S10", conditions=RunConditions.of(forks=True))
    two = each(Committed, lambda done: [done, *ANOTHER_DIGEST(None, [done] * done.made)])
    tamper(swarm, 1, two)
    assert "two commits" in caught(swarm, "S10", 6.0).text


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda answers: [answers.popitem() for _ in range(len(answers) - 2)], "but needs 3"),
        (
            lambda answers: answers.update({2: (replace(answers[2][0], attempt=5), answers[2][1])}),
            "not meant for it",
        ),
    ],
)
def test_s10_a_round_that_is_closed_with_too_few_or_wrong_answers_is_caught(
    spoil: Callable[[dict[PeerId, Any]], object], words: str
) -> None:
    swarm = running("S10")

    def spoils(event: Event, effects: list[Effect]) -> None:
        if any(isinstance(effect, Aggregate) for effect in effects):
            spoil(swarm.hosts[1].core.rounds.shards[0].served.answers)  # type: ignore[union-attr]

    tamper(swarm, 1, spoils)
    assert words in caught(swarm, "S10", 6.0).text


def test_s10_a_peer_that_forgets_what_it_promised_is_caught() -> None:
    swarm = running("S10")
    core = swarm.hosts[0].core
    rounds: Any = core.rounds
    handle = core.handle

    def forgetful(event: Event, now: float) -> list[Effect]:
        if isinstance(event, Contributed):
            shard = rounds.shards[0]
            effects = handle(event, now)
            if shard.commit is None and 0 not in (shard.server_of(0), shard.server_of(1)):
                shard.attempt = 1  # as if it had waited in vain
            return effects
        if (
            isinstance(event, Received)
            and isinstance(event.message, Commit)
            and event.message.round_id == rounds.round_id
        ):
            rounds.shards[0].attempt = 0
        return handle(event, now)

    core.handle = forgetful  # type: ignore[method-assign]
    assert "has moved on to attempt 1" in caught(swarm, "S10", 6.0).text


@pytest.mark.parametrize("question", [UpdateRequest, Update])
@pytest.mark.parametrize("answer", ["as it should", "nothing", "under the old attempt", "another"])
def test_s10_a_commit_that_is_kept_back_is_caught(
    question: type[UpdateRequest] | type[Update], answer: str
) -> None:
    swarm = running("S10")
    checker = suite_of(swarm).find(CommitForwarding)
    held = swarm.cores[1].rounds.log.get(swarm.cores[1].rounds.round_id - 1)  # type: ignore[union-attr]
    commit, rest = held[0][0], {UpdateRequest: (), Update: (4, 0.5)}[question]
    asked = question(commit.lineage, commit.round_id, 0, commit.attempt + 2, commit.parent, *rest)

    def says(send: Send) -> list[Effect]:
        if not isinstance(send.message, Commit) or answer == "as it should":
            return [send]
        changes: dict[str, Any] = (
            {"attempt": 0} if answer == "under the old attempt" else {"digest": bytes(16)}
        )
        return (
            [] if answer == "nothing" else [replace(send, message=replace(send.message, **changes))]
        )

    tamper(swarm, 1, each(Send, says))
    before = checker.judged
    if answer == "as it should":
        swarm.inject(1, Received(2, 0, asked))
        assert checker.judged == before + 1
        return
    with pytest.raises(Violation, match="does not send it to peer 2, which"):
        swarm.inject(1, Received(2, 0, asked))


@pytest.mark.parametrize(
    "answer",
    ["as it should", "not the first", "not the last", "nothing", "of too early an attempt"],
)
def test_l5_commits_that_are_asked_for_in_vain_are_caught(answer: str) -> None:
    swarm = running("L5")
    checker = suite_of(swarm).find(CommitRequestReplies)
    here = swarm.cores[1].rounds.round_id
    first, lineage = here - 3, swarm.cores[1].settings.lineage
    left_out = {"not the first": [first], "not the last": [here - 1], "nothing": range(here)}.get(
        answer, []
    )

    def says(send: Send) -> list[Effect]:
        if answer == "of too early an attempt" and isinstance(send.message, Commit):
            return [replace(send, message=replace(send.message, attempt=2))]
        return [] if getattr(send.message, "round_id", here) in left_out else [send]

    tamper(swarm, 1, each(Send, says))
    before = checker.judged
    if answer == "as it should":
        swarm.inject(1, Received(2, 0, CommitRequest(lineage, first, 3)))
        assert checker.judged == before + 1
        return
    with pytest.raises(
        Violation, match="does not send peer 2, which requests commits, the commits"
    ):
        swarm.inject(1, Received(2, 0, CommitRequest(lineage, first, 3)))


def test_l5_who_asks_for_what_is_not_kept_and_is_not_told_so_is_caught() -> None:
    swarm = running("L5")
    core = swarm.cores[1]
    core.rounds.log.clear()
    tamper(
        swarm, 1, each(Send, lambda send: [] if isinstance(send.message, NotServing) else [send])
    )
    with pytest.raises(Violation, match="the reply that they are no longer stored"):
        swarm.inject(
            1, Received(2, 0, CommitRequest(core.settings.lineage, core.rounds.round_id - 1, 0))
        )


@pytest.mark.parametrize("serves", [False, True])
def test_s10_a_commit_that_is_passed_over_is_caught(serves: bool) -> None:
    swarm = running("S10")
    core = swarm.hosts[1].core
    rounds: Any = core.rounds
    handle = core.handle

    def deaf(event: Event, now: float) -> list[Effect]:
        if (
            isinstance(event, Received)
            and isinstance(event.message, Commit)
            and event.message.round_id == rounds.round_id
        ):
            return []
        effects = handle(event, now)
        shard = rounds.shards[0]
        if (
            serves
            and isinstance(event, Contributed)
            and shard.commit is None
            and 1 not in (shard.server_of(0), shard.server_of(3))
        ):
            # the others are to come to it
            shard.attempt = next(attempt for attempt in range(4) if shard.server_of(attempt) == 1)
        return effects

    core.handle = deaf  # type: ignore[method-assign]
    words = "serves attempt" if serves else "is at attempt"
    assert words in caught(swarm, "S10", 6.0).text


@pytest.mark.parametrize(
    ("move", "words"), [(lambda at: 0, "again|has read"), (lambda at: at + 3, "omits|has read")]
)
def test_s11_samples_used_twice_or_lost_are_caught(move: Callable[[int], int], words: str) -> None:
    swarm = running("S11", until_s=0.6)

    def act(core: Peer, now: float) -> None:
        cursor: Any = core.rounds.replicated.cursor  # type: ignore[union-attr]
        cursor._position = move(cursor._position)

    for peer in range(4):
        disturb(swarm, peer, act)
    # whichever shows first: the round, or what one has read in it
    assert re.search(words, caught(swarm, "S11", 6.0).text)


def zeros(restore: Restore) -> events.Payload:
    return packed_of([bytes(restore.payload.nbytes - OWN_BYTES), bytes(OWN_BYTES)])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (swapped(Restore, payload=zeros), "no donor has packed"),
        (
            swapped(Restore, payload=lambda it: replace(it.payload, data=it.payload.data * 0)),
            "restores bytes with the digest",
        ),
        (resent(Update, round_id=0), "although its state is of round"),
    ],
)
def test_s12_a_false_state_or_an_update_before_it_is_caught(change: Change, words: str) -> None:
    swarm = running("S12")
    swarm.restart(1)
    tamper(swarm, 1, change)
    assert words in caught(swarm, "S12").text


def test_s12_a_joiner_that_goes_on_from_another_history_is_caught() -> None:
    swarm = running("S12")
    swarm.restart(1)
    core = swarm.hosts[1].core
    adopt = core.rounds.adopt

    def elsewhere(round_id: int, chain: bytes, snapshot: tuple[Any, ...]) -> None:
        adopt(round_id, flipped(chain), snapshot)

    core.rounds.adopt = elsewhere  # type: ignore[method-assign]
    assert "a history that no peer has" in caught(swarm, "S12").text


def with_first_row(**fields: Any) -> Change:
    """Replace fields of the first row of each request to the rule."""
    return swapped(
        Aggregate,
        rows=lambda ask: (replace(ask.rows[0], **changed(fields, ask.rows[0])), *ask.rows[1:]),
    )


def with_payload(change: Callable[[Any], Any]) -> Change:
    """Apply what ``change`` makes of each aggregate."""
    return swapped(
        Apply, payloads=lambda apply: (payload_of(change(apply.payloads[0].data), digest=True),)
    )


def with_nan(data: Any) -> Any:
    return np.append(np.float32("nan"), data[1:])


def moves_on(send: Send) -> list[Effect]:
    later = replace(send.message, attempt=send.message.attempt + 1)  # type: ignore[type-var, union-attr]
    return [send, replace(send, message=later)]


def of_updates(change: Callable[[Send], list[Effect]]) -> Change:
    return each(Send, lambda send: change(send) if isinstance(send.message, Update) else [send])


@pytest.mark.parametrize(
    ("invariant", "change", "words"),
    [
        ("S8", each(Apply, lambda apply: [apply, apply]), "is next"),
        ("S8", each(Apply, lambda apply: [apply] if apply.round_id % 3 else []), "is next"),
        ("S8", each(Committed, lambda done: []), "; next is round"),
        ("S8", swapped(Committed, chain=lambda done: flipped(done.chain)), "does not hash to"),
        ("S8", recommitted(parent=b"x" * 16), "next is round"),
        ("S10", ANOTHER_DIGEST, "at peer"),
        ("S10", recommitted(server=lambda commit: (commit.server + 1) % 4), "in the turn of"),
        ("S10", of_updates(lambda send: moves_on(send)[::-1]), "goes back to attempt 0"),
        ("S10", of_updates(moves_on), "of attempt 0, although it has moved on to attempt 1"),
        ("S11", swapped(Aggregate, rows=lambda ask: ask.rows[::-1]), "distinct and ascending"),
        ("S11", swapped(Aggregate, own=None), "the own row is None"),
        ("S11", with_first_row(samples=0), "has no samples"),
        ("S11", with_first_row(samples=99), "and averaged"),
        (
            "S11",
            swapped(events.StartRound, samples=events.DataSlice(0, ((0, 4),))),
            "has read ((0, 4),)",
        ),
        ("S13", with_payload(with_nan), "is not finite"),
        ("S13", with_payload(lambda data: data + 1), "a result other than that of its commit"),
        (
            "S13",
            with_first_row(payload=lambda row: payload_of(row.payload.data.repeat(2))),
            "has 64 bytes, not 32",
        ),
        ("S13", recommitted(roster=(3, 1)), "which is not a roster"),
        ("S14", each(Send, lambda send: [send] * 2000), "sends more than"),
        ("S17", lambda event, effects: [*effects, events.CancelTimer(1)], "which is not pending"),
        ("S17", lambda event, effects: [*effects, events.SetTimer(1, 9.0)], "it has used before"),
        (
            "S17",
            lambda event, effects: [events.Halt("enough"), *effects] if effects else None,
            "after it halted",
        ),
    ],
)
def test_a_peer_that_does_something_else_than_its_core_is_caught(
    invariant: str, change: Change, words: str
) -> None:
    swarm = running(invariant)
    tamper(swarm, 1, change)
    assert words in caught(swarm, invariant, 6.0).text


def with_contributors(change: Callable[[tuple[Contribution, ...]], Any]) -> Change:
    header = recommitted(contributors=lambda commit: change(commit.contributors))
    return lambda event, effects: swapped(Committed, made=False)(event, header(event, effects))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_contributors(lambda named: (*named, Contribution(9, 4, 0.2, 1.0))), "its roster is"),
        (with_contributors(lambda named: named[::-1]), "as contributors"),
        (
            with_contributors(
                lambda named: (replace(named[0], samples=named[0].samples + 1), *named[1:])
            ),
            "which sent",
        ),
        (
            lambda event, effects: swapped(Committed, made=False)(
                event, recommitted(digest=b"")(event, effects)
            ),
            "no aggregate",
        ),
        (swapped(Committed, epoch=lambda done: done.epoch + 1), "was planned for epoch"),
    ],
)
def test_s11_a_header_that_all_misstate_is_caught(change: Change, words: str) -> None:
    swarm = running("S11")
    for peer in range(4):
        tamper(swarm, peer, change)
    assert words in caught(swarm, "S11", 6.0).text


def test_s13_an_update_of_another_branch_that_is_used_is_caught() -> None:
    swarm = running("S13")
    core = swarm.hosts[1].core
    core.rounds.lag_detector.record_branch = lambda peer, parent, now: False  # type: ignore[union-attr, method-assign, assignment]

    def forge(event: Event, effects: list[Effect]) -> None:
        rounds: Any = core.rounds
        shard = rounds.shards[0]
        if (
            shard.served.attempt == shard.attempt
            and shard.served.ticket is None
            and 2 not in shard.served.answers
            and shard.served.answers
        ):
            update = Update(
                b"lineage!", rounds.round_id, 0, shard.attempt, b"another branch!!", 0, None
            )
            swarm.at(swarm.now, lambda: swarm.inject(1, Received(2, 0, update)))

    tamper(swarm, 1, forge)
    assert "another branch" in caught(swarm, "S13", 6.0).text


def update_of_the_round_before(core: Peer, sender: PeerId) -> Received:
    """As of one that has seen no commit of that round, and offers its update to another server."""
    rounds = core.rounds
    round_id = rounds.round_id - 1
    parent = rounds.replicated.lineage.before(round_id)
    return Received(sender, 0, Update(b"lineage!", round_id, 0, 1, parent, 0, None))


def is_old(event: Event, core: Peer) -> bool:
    told = event.message if isinstance(event, Received) else None
    return isinstance(told, Update) and told.round_id < core.rounds.round_id


def test_s13_an_old_update_is_not_blamed_for_what_a_peer_hands_on_that_stood_still() -> None:
    """Half a second is noticed, also by one that probes once in a second. Where nobody else may
    serve it hands on to itself, and has the updates of no one then."""
    swarm = checked_swarm(only("S13"), n=2, compute_s=0.4, probe_interval_s=1.0)
    for core in swarm.cores.values():
        core.rounds.replicated.serving_roster = lambda: Roster((0,))  # type: ignore[method-assign]
    swarm.run_for(1.0)
    core, handed_on = swarm.hosts[0].core, list[dict[str, Any]]()

    def stand_still(event: Event, effects: list[Effect]) -> None:
        if not handed_on and isinstance(event, Contributed):
            old = update_of_the_round_before(core, 1)
            swarm.at(swarm.now, lambda: swarm.pause_for(0, 0.5))
            swarm.at(swarm.now, lambda: swarm.inject(0, old))
        elif is_old(event, core):
            told = [e for e in effects if isinstance(e, events.Report) and e.event == "attempt"]
            handed_on.extend(dict(report.fields) for report in told)

    tamper(swarm, 0, stand_still)
    swarm.run_for(3.0)
    assert {fields["reason"] for fields in handed_on} == {"0 was paused for 0.5 s"}


# --- S14, S15, S17 --------------------------------------------------------------------------------


def test_s14_an_exception_out_of_a_core_is_a_violation_that_names_the_event() -> None:
    swarm = checked_swarm()
    swarm.run_for(1.0)

    def chokes(event: Event, effects: list[Effect]) -> None:
        if isinstance(event, Received) and isinstance(event.message, Ping):
            raise KeyError("nonce")

    tamper(swarm, 2, chokes)
    with pytest.raises(KeyError) as raised:
        swarm.run_for(2.0)
    found = as_violation(swarm, raised.value)
    assert (found.invariant, found.peer) == ("S14", 2)
    assert "KeyError: 'nonce'" in found.text
    assert "Ping" in found.text
    assert as_violation(swarm, found) is found


def test_s14_a_peer_that_halts_at_a_liars_word_is_caught() -> None:
    swarm = running("S14", conditions=ATTACKERS)

    def obeys(event: Event, effects: list[Effect]) -> list[Effect] | None:
        by_attacker = isinstance(event, Received) and event.sender == 3
        return [events.Halt("told to")] if by_attacker else None

    tamper(swarm, 1, obeys)
    assert "because of a Byzantine peer's message" in caught(swarm, "S14").text


def test_s15_what_grows_without_bound_is_caught() -> None:
    swarm = running("S15")
    core = swarm.hosts[0].core

    def hoards(event: Event, effects: list[Effect]) -> None:
        if isinstance(event, Received):
            core.bootstrap.hellos[1000 + len(core.bootstrap.hellos)] = core.hello_exchange.hello()

    tamper(swarm, 0, hoards)
    assert "hellos, at most 4 are allowed" in caught(swarm, "S15").text


def test_s17_a_timer_that_fires_twice_is_caught() -> None:
    swarm = running("S17")
    token = next(iter(swarm.hosts[0].timers))
    swarm.run_until(lambda: token not in swarm.hosts[0].timers, 10.0)
    with pytest.raises(Violation, match="but is not pending"):
        swarm.inject(0, events.TimerFired(token))


# --- L1-L7 ----------------------------------------------------------------------------------------


def never_settles(swarm: Swarm[Peer], invariant: str) -> Violation:
    with pytest.raises(Violation) as found:
        suite_of(swarm).settle(swarm)
    assert found.value.invariant == invariant
    return found.value


def test_l1_tables_that_do_not_come_together_are_caught() -> None:
    swarm = running("L1", compute_s=0.5)
    swarm.network.cut([(0, 1), (1, 0)])
    swarm.run_for(1.0)
    assert "disconnected" in never_settles(swarm, "L1").text


def test_l2_a_peer_that_stands_still_in_the_calm_is_caught() -> None:
    swarm = checked_swarm(CheckerSuite([RoundProgress()]), compute_s=0.5)
    swarm.run_for(1.0)
    tamper(
        swarm,
        2,
        lambda event, effects: (
            [] if isinstance(event, Received) and isinstance(event.message, Commit) else None
        ),
    )
    tamper(swarm, 2, each(Aggregate, lambda ask: []))
    assert never_settles(swarm, "L2").peer == 2


def narrow(swarm: Swarm[Peer]) -> None:
    """Some payloads are lost at full queues."""
    swarm.network.shape(
        [(a, b) for a in range(4) for b in range(4) if a != b], bytes_per_s=1e6, queue_bytes=16.0
    )


def crash_after_which_nothing_goes_on(swarm: Swarm[Peer]) -> None:
    swarm.crash(1)
    for peer in (0, 2, 3):
        tamper(swarm, peer, each(Aggregate, lambda ask: []))


def test_l3_a_crash_after_which_nothing_goes_on_is_caught() -> None:
    swarm = running("L3", until_s=4.0, compute_s=0.5)
    crash_after_which_nothing_goes_on(swarm)
    assert "the others are still in round" in caught(swarm, "L3", 6.0).text


def test_l3_a_crash_while_queues_are_full_is_not_judged() -> None:
    """Seed 1574."""
    swarm = running("L3", until_s=4.0, compute_s=0.5)
    narrow(swarm)
    swarm.run_for(0.5)
    crash_after_which_nothing_goes_on(swarm)
    swarm.run_for(6.0)
    assert not judged_by(swarm)["BoundedCrashCost"]


def test_l3_a_crash_long_after_queues_were_full_is_judged() -> None:
    swarm = running("L3", until_s=1.0, compute_s=0.5)
    narrow(swarm)
    swarm.run_for(0.5)
    swarm.network.models.clear()
    swarm.run_for(4.0)
    crash_after_which_nothing_goes_on(swarm)
    assert "the others are still in round" in caught(swarm, "L3", 6.0).text


def test_l3_one_that_a_liar_says_has_left_is_not_wanting_when_the_liar_crashes() -> None:
    """Seed 2780: three updates were needed, and peer 3, which the liar had made leave the roster,
    was on its way back."""
    faults = (NodeAttack("forged_departures", (2,)), Crash(2, at_s=6.5))
    schedule = Schedule(
        28,
        peers=4,
        aggregator="median",
        faults=faults,
        active_s=11.0,
        duration_s=11.5,
        compute_s=(0.46, 0.58),
    )
    outcome = assert_sound(
        replace(schedule, rule_s=0.01, probe_interval_s=1.0, stable_addresses=True)
    )
    assert outcome.judged_by["BoundedCrashCost"] > 0
    assert "lost_round" not in outcome.reports


def loses_rounds_after_a_crash(reason: str, lies: Collection[str] = ()) -> Swarm[Peer]:
    swarm = running(
        "L3", until_s=4.0, compute_s=0.5, conditions=RunConditions.of({3}, attacks=lies)
    )
    swarm.crash(1)
    numbers: Iterator[int] = iter(range(1000))
    lost = lambda apply: [  # noqa: E731
        apply,
        events.Report("lost_round", {"round": next(numbers), "reason": reason}),
    ]
    tamper(swarm, 0, each(Apply, lost))
    return swarm


def test_l3_a_crash_that_costs_rounds_is_caught() -> None:
    for lost in (
        loses_rounds_after_a_crash("planted"),
        loses_rounds_after_a_crash(LOST_BY_A_BYZANTINE_SERVER),
        loses_rounds_after_a_crash("planted", ["wrong_measures"]),
    ):
        assert "cost" in caught(lost, "L3", 6.0).text


def test_l3_rounds_that_a_liar_loses_in_its_turns_are_not_what_a_crash_costs() -> None:
    """Seed 61952."""
    swarm = loses_rounds_after_a_crash(LOST_BY_A_BYZANTINE_SERVER, ["wrong_measures"])
    swarm.run_for(6.0)
    assert judged_by(swarm)["BoundedCrashCost"] > 0


def test_l4_one_whose_updates_are_never_used_is_caught() -> None:
    swarm = running("L4", compute_s=0.5)
    core = swarm.hosts[2].core
    handle = core.handle

    def idle(event: Event, now: float) -> list[Effect]:
        return handle(
            replace(event, samples=0, payloads=()) if isinstance(event, Contributed) else event, now
        )

    core.handle = idle  # type: ignore[method-assign]
    assert never_settles(swarm, "L4").peer == 2


def test_l5_histories_that_stay_apart_are_caught() -> None:
    swarm = running("L5", compute_s=0.5)
    swarm.network.partition({0}, {1, 2, 3})
    swarm.run_for(3.0)
    assert never_settles(swarm, "L5").text


def test_l6_one_that_never_gets_its_turn_is_caught() -> None:
    swarm = checked_swarm(only("L6"), compute_s=0.02)
    for peer in range(4):
        rounds: Any = swarm.hosts[peer].core.rounds
        plan = rounds.topology

        def last(*args: Any, plan: Any = plan, **options: Any) -> Any:
            made = plan(*args, **options)
            return replace(
                made, servers=tuple((*(p for p in order if p != 3), 3) for order in made.servers)
            )

        rounds.topology = last
    found = caught(swarm, "L6", 20.0)
    assert found.peer == 3


def test_l7_one_that_does_not_stop_is_caught() -> None:
    swarm = running("L7", compute_s=0.5)
    tamper(swarm, 1, each(events.Halt, lambda halt: []))
    swarm.stop(1)
    assert "still runs" in caught(swarm, "L7", 5.0).text


def test_a_calm_phase_that_is_too_short_is_no_verdict() -> None:
    suite = only("L2")
    swarm = checked_swarm(suite)
    swarm.run_for(1.0)
    suite.begin_calm()
    with pytest.raises(ValueError, match="ends too soon"):
        suite.finish()
    swarm.run_for(5.0)
    suite.finish()
