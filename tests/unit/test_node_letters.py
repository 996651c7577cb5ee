"""What a node sends when the fault plan makes it lie about more than its updates, and that an
honest one pays nothing for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossip.config import RunConfig
from gossip.core import squeeze
from gossip.core.events import Contributed, Payload, SnapshotTaken
from gossip.core.messages import (
    Commit,
    Gossip,
    Message,
    PeerId,
    StateAttestation,
    StateOffer,
    Update,
)
from gossip.core.transfer.donor import attested_digest
from gossip.faults.world import FINAL_ROUND_ATTACKS, REAL_ATTACKS, RESULT_ATTACKS, STATE_ATTACKS
from gossip.inject.faulty_node import DisturbedTransport, FaultyNode, Site
from gossip.inject.message_attacks import LIES
from gossip.inject.state_attacks import FAR_ROUNDS
from gossip.run.journal import Journal
from gossip.transport.base import Traffic
from gossip.vectors import digests_of, payload_digest

ATTACKER, OTHER = 1, 2
TOLD = (0, 2, 3)
LINEAGE = b"lineage!"
CORE = squeeze(b"[[0, 1], [], []]")
RESULT = np.linspace(-1.0, 2.0, 1 << 20, dtype=np.float32)  # 4 MiB
TRUTH = Payload(RESULT, RESULT.nbytes, True, payload_digest(RESULT.data))
PARTS = (40, 16, 8)
STATE = np.arange(64, dtype=np.uint8)


class Sent:
    """A transport that keeps what it is given."""

    control = bulk = ""
    link_timeout_s = 1.0

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.outbox: list[tuple[PeerId, Message, Payload | None]] = []

    def send(self, peer: PeerId, message: Message, payload: Payload | None = None) -> bool:
        self.outbox.append((peer, message, payload))
        return True


def outbox_of(
    word: str, sent: Sent, folder: Path | None = None, core: Any = None, rounds: int | None = None
) -> DisturbedTransport:
    return tampering(word, sent, Journal(ATTACKER, folder, None), core, rounds)


def tampering(
    word: str, sent: Sent, journal: Journal, core: Any = None, rounds: int | None = None
) -> DisturbedTransport:
    config = RunConfig(peers=4, rounds=rounds, seed=7, faults=tuple(word.split()))
    node = FaultyNode(Site(config, ATTACKER, 0, None, journal), lambda updates: updates[0])
    node.core, node.round_id = core, 9
    return DisturbedTransport(sent, node)  # type: ignore[arg-type]


def commit(server: PeerId = ATTACKER) -> Commit:
    return Commit(
        LINEAGE, 9, 0, 0, 0, server, b"parent", TRUTH.digest, (), (), (0, 1, 2, 3), 0.5, ""
    )


def told(
    word: str, message: Message, payload: Payload | None
) -> dict[PeerId, tuple[Message, Payload | None]]:
    """Whom the liar sends what, when its core sends this to everybody."""
    sent = Sent()
    outbox = outbox_of(word, sent)
    for peer in TOLD:
        outbox.send(peer, message, payload)
    assert len({peer for peer, _, _ in sent.outbox}) == len(sent.outbox)
    return {peer: (said, content) for peer, said, content in sent.outbox}


def test_an_attack_that_raises_is_reported_by_its_name_before_it_ends_the_node(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.py").write_text("def boom(update):\n    raise ValueError('broke')\n")
    journal, word = Journal(ATTACKER, tmp_path), f"attack:{tmp_path}/own.py:boom:{ATTACKER}"
    node = tampering(word, Sent(), journal)._node
    with pytest.raises(ValueError, match="broke"):
        list(node.around_core(SimpleNamespace(), 0).handle(Contributed(10, 1, (TRUTH,)), 0.0))
    journal.close()
    (line,) = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines()[1:])
    assert (line["event"], line["part"], line["round"]) == ("error", word, 10)
    assert line["message"] == "its attack raised ValueError: broke"


@pytest.mark.parametrize("word", ["", "wrong_results:2,3", "sign_flip:1*10"])
def test_who_tells_no_such_lie_sends_its_messages_unchanged(word: str) -> None:
    sent, message = Sent(), commit()
    assert outbox_of(word or "crash:0@1", sent).send(OTHER, message, TRUTH)
    ((receiver, said, content),) = sent.outbox
    assert receiver == OTHER
    assert said is message
    assert content is TRUTH


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ("wrong_results", -RESULT),
        ("scaled_results", RESULT * np.float32(1000)),
        ("slightly_wrong_results", RESULT * np.float32(1.01)),
        ("nan_results", np.full_like(RESULT, np.nan)),
    ],
)
def test_a_liar_commits_another_result_with_a_digest_that_fits_the_same_to_all(
    lie: str, said: np.ndarray
) -> None:
    found = told(f"{lie}:1", commit(), TRUTH)
    assert sorted(found) == sorted(TOLD)
    contents = {id(content) for _, content in found.values()}
    assert len(contents) == 1, "megabytes are forged once, not for everybody anew"
    message, content = found[OTHER]
    assert isinstance(message, Commit)
    assert np.array_equal(content.data, said, equal_nan=True)
    assert message.digest == content.digest == payload_digest(content.data) != TRUTH.digest
    assert content.finite == bool(np.isfinite(said).all())
    assert np.array_equal(RESULT, TRUTH.data), "its core keeps the truth"


def test_a_broken_result_does_not_fit_its_digest() -> None:
    message, content = told("broken_results:1", commit(), TRUTH)[OTHER]
    assert isinstance(message, Commit)
    assert content is not None
    assert message.digest == TRUTH.digest != payload_digest(content.data)


def test_who_equivocates_tells_the_truth_to_even_numbers_only() -> None:
    found = told("two_results:1", commit(), TRUTH)
    assert found[0] == found[2] == (commit(), TRUTH)
    message, content = found[3]
    assert isinstance(message, Commit)
    assert message.digest == payload_digest(content.data) == payload_digest(-RESULT)


def test_who_lies_at_last_does_so_in_the_last_round_and_to_one_peer() -> None:
    for rounds, victims in ((10, [0]), (11, []), (None, [])):
        sent = Sent()
        outbox = outbox_of("last_results:1", sent, rounds=rounds)
        for peer in TOLD:
            outbox.send(peer, commit(), TRUTH)  # of round 9
        assert [peer for peer, said, _ in sent.outbox if said != commit()] == victims


def test_a_kept_result_reaches_nobody_and_a_roster_is_changed_without_the_result() -> None:
    assert told("kept_results:1", commit(), TRUTH) == {}
    message, content = told("strange_roster:1", commit(), TRUTH)[OTHER]
    assert isinstance(message, Commit)
    assert set(message.roster) > {0, 1, 2, 3}
    assert content is TRUTH


def test_what_a_result_says_beside_its_numbers_is_changed_without_them() -> None:
    honest = replace(commit(), rates=(0.5, 0.25))
    core = SimpleNamespace(settings=SimpleNamespace(everybody=tuple(range(6))))
    for lie, changes in (
        ("high_rates", {"rates": (500.0, 250.0)}),
        ("lone_roster", {"roster": (ATTACKER,)}),
        ("ghost_roster", {"roster": tuple(range(6))}),
    ):
        sent = Sent()
        outbox = outbox_of(f"{lie}:1", sent, core=core)
        outbox.send(OTHER, honest, TRUTH)
        outbox.send(OTHER, replace(honest, shard=1), TRUTH)
        assert sent.outbox == [
            (OTHER, replace(honest, **changes), TRUTH),
            (OTHER, replace(honest, shard=1), TRUTH),
        ]


@pytest.mark.parametrize("lie", RESULT_ATTACKS)
def test_updates_and_results_of_others_leave_a_lying_server_as_they_are(lie: str) -> None:
    update = Update(LINEAGE, 9, 0, 0, b"parent", 4, 0.5)
    for message, payload in ((update, TRUTH), (commit(server=OTHER), TRUTH), (Gossip(()), None)):
        assert all(
            said is message and content is payload
            for said, content in told(f"{lie}:1", message, payload).values()
        )


def test_what_a_liar_has_made_of_a_result_is_not_lied_about_again_when_it_comes_back() -> None:
    """Others hand it on, and then its own core does."""
    sent = Sent()
    outbox = outbox_of("wrong_results:1", sent)
    outbox.send(OTHER, commit(), TRUTH)
    _, once, content = sent.outbox[-1]
    outbox.send(0, once, content)
    assert sent.outbox[-1] == (0, once, content)


def test_a_lie_is_told_of_once_and_counted(tmp_path: Path) -> None:
    sent = Sent()
    journal = Journal(ATTACKER, tmp_path, None)
    outbox = tampering("wrong_results:1", sent, journal)
    for peer in TOLD:
        outbox.send(peer, commit(), TRUTH)
    journal.close()
    rows = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [
        row.count('"fault": "wrong_results:1"') + row.count('"fault":"wrong_results:1"')
        for row in rows
    ].count(1) == 1
    assert journal.last_words == {"attacks": {"wrong_results": len(TOLD)}}
    assert outbox_of("nan:1", sent)._attacker is None


def offer() -> tuple[StateOffer, Payload]:
    digest, parts = digests_of(STATE, PARTS)
    return StateOffer(LINEAGE, 5, 9, b"chain", digest, 64, CORE, "", PARTS), Payload(
        STATE, 64, True, digest, parts
    )


def test_a_forged_state_is_another_in_what_all_hold_alike_and_vouched_for_where_the_lie_says_so():
    message, payload = offer()
    said, content = told("wrong_states:1", message, payload)[OTHER]
    assert isinstance(said, StateOffer)
    assert (content.data != STATE).nonzero()[0].tolist() == [PARTS[0] // 2]
    assert said.digest == content.digest == digests_of(content.data, PARTS)[0] != message.digest
    copy = SimpleNamespace(taken=SnapshotTaken(9, payload, PARTS), chain=b"chain", core=CORE)
    core = SimpleNamespace(recovery=SimpleNamespace(giving=SimpleNamespace(copies={9: copy})))
    sent = Sent()
    outbox_of("wrong_states:1", sent, core=core).send(
        OTHER, StateAttestation(LINEAGE, 5, 9, b"chain", b"truth", b"", ""), None
    )
    vouched = sent.outbox[0][1]
    assert isinstance(vouched, StateAttestation)
    assert vouched.digest == attested_digest(LINEAGE, 9, b"chain", CORE, content.parts[0])


def test_a_state_is_broken_swapped_hollow_kept_or_of_a_round_that_nobody_has_come_to() -> None:
    message, payload = offer()
    said, content = told("broken_states:1", message, payload)[OTHER]
    assert isinstance(content, Payload)
    assert (said, content.digest == message.digest) == (message, False)
    said, content = told("swapped_states:1", message, payload)[OTHER]
    assert isinstance(said, StateOffer)
    assert isinstance(content, Payload)
    assert said.digest == content.digest != message.digest
    said, content = told("hollow_states:1", message, payload)[OTHER]
    assert isinstance(said, StateOffer)
    assert (said.core, said.digest == message.digest, content) == (squeeze(b"[]"), True, payload)
    assert told("kept_states:1", message, payload) == {}
    said, content = told("far_states:1", message, payload)[OTHER]
    assert isinstance(said, StateOffer)
    assert (said.round_id, content) == (9 + FAR_ROUNDS, payload)


def test_every_lie_of_a_real_run_has_a_word_and_a_liar_who_can_tell_it() -> None:
    assert {*RESULT_ATTACKS, *FINAL_ROUND_ATTACKS, *STATE_ATTACKS} == set(REAL_ATTACKS) <= set(LIES)
    for lie in REAL_ATTACKS:
        assert outbox_of(f"{lie}:1", Sent())._attacker is not None
