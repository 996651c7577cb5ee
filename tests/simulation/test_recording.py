"""A core that writes its life down, on a virtual clock: every life replays, and what is wrong with
a recording is said."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getfile
from pathlib import Path
from typing import Any

import msgpack
import pytest
from effort import effort

from gossip.core import events
from gossip.core.events import Contributed, Payload, Received, ResultSimilarity
from gossip.core.messages import PeerId, Ping, Progress
from gossip.core.peer import Peer
from gossip.core.settings import CoreSettings, MembershipSettings
from gossip.errors import ConfigError
from gossip.run import recorder
from gossip.run.recorder import RecordingCore
from gossip.topologies import load
from gossip_lab.simulation.campaign.replayer import ReplayDiverged, replay
from gossip_lab.simulation.world.driver import Swarm, address
from gossip_lab.simulation.world.toy_trainer import ToyTrainer

CODE = recorder.code_digest(getfile(Peer))


def recorded_swarm(folder: Path, topology: str, seed: int = 5, n: int = 4) -> Swarm[RecordingCore]:
    # a setting that is not the default must come back, too
    sharp = MembershipSettings(probe_interval_s=0.25)
    settings = CoreSettings(
        b"run-id!!", b"lineage!", seed=seed, peers=tuple(range(n)), membership=sharp
    )
    known = {peer: address(peer, 0) for peer in range(n)}

    def make(peer: PeerId, incarnation: int) -> RecordingCore:
        control, bulk = known[peer] = address(peer, incarnation)
        seeds = dict(known)
        core = Peer(
            peer, incarnation, settings, load(topology), control=control, bulk=bulk, seeds=seeds
        )
        header = recorder.Header(
            peer, incarnation, settings, topology, control, bulk, recorder.rows_of(seeds), CODE
        )
        return RecordingCore(core, header, recorder.path_of(folder, peer, incarnation))

    return Swarm(
        make,
        n,
        seed,
        make_trainer=lambda peer, life: ToyTrainer(peer, seed, incarnation=life, samples_total=997),
    )


def recording(path: Path, kind: type[Peer] = Peer) -> RecordingCore:
    """One of two peers, that records its life."""
    settings = CoreSettings(b"run-id!!", b"lineage!", seed=1, peers=(0, 1))
    core = kind(0, 0, settings, load("rolling"), control="c", bulk="b")
    header = recorder.Header(0, 0, settings, "rolling", "c", "b", (), CODE)
    return RecordingCore(core, header, path)


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording of a peer in a quiet swarm."""
    folder = tmp_path_factory.mktemp("recordings")
    swarm = recorded_swarm(folder, "rolling")
    swarm.run_for(1.0)
    return recorder.path_of(folder, 0, 0)


@pytest.mark.parametrize("topology", effort(["rolling"], ["rolling", "random-k:k=2"]))
def test_every_life_in_a_swarm_with_faults_replays_to_the_same_commits(
    tmp_path: Path, topology: str
) -> None:
    swarm = recorded_swarm(tmp_path, topology)
    swarm.at(0.8, lambda: swarm.crash(1))
    swarm.at(1.2, lambda: swarm.pause_for(2, 1.0))
    swarm.at(2.5, lambda: swarm.restart(1))
    swarm.at(3.7, lambda: swarm.stop(3))
    swarm.run_for(5.0)
    for host in [*swarm.past, *swarm.hosts.values()]:
        replayed = replay(recorder.path_of(tmp_path, host.peer, host.incarnation))
        assert [each.chain for each in replayed.commits] == [each.chain for _, each in host.commits]
        assert replayed.rounds == sum(1 for _, report in host.reports if report.event == "round")
        assert replayed.rounds > 10
        assert replayed.steps > 100
        assert (replayed.halt is None) == (host.halt is None)
        assert replayed.cut_off is None
        assert not replayed.changed
    assert replayed.header.settings.membership.probe_interval_s == 0.25


def test_a_core_that_does_something_else_is_caught_at_the_first_step_that_differs(
    life: Path, tmp_path: Path
) -> None:
    frames = list(msgpack.Unpacker(life.open("rb"), strict_map_key=False))
    at = next(
        n for n, frame in enumerate(frames) if isinstance(frame[1], dict) and "LinkUp" in frame[1]
    )
    frames[at][1]["LinkUp"][0] = 3 if frames[at][1]["LinkUp"][0] != 3 else 2
    forged = tmp_path / "forged.msgpack"
    forged.write_bytes(b"".join(map(msgpack.packb, frames)))

    with pytest.raises(
        ReplayDiverged,
        match=f"step {(at - 1) // 2} .*LinkUp.*the code is the very same: this is a bug",
    ):
        replay(forged)


def test_a_divergence_of_other_code_says_that_the_code_has_changed(
    life: Path, tmp_path: Path
) -> None:
    header, *frames = msgpack.Unpacker(life.open("rb"), strict_map_key=False)
    header[1]["Header"][-1] = b"older..."
    older = tmp_path / "older.msgpack"
    older.write_bytes(b"".join(map(msgpack.packb, [header, *frames])))
    assert replay(older).changed
    frames[1][1] = bytes(8)
    older.write_bytes(b"".join(map(msgpack.packb, [header, *frames])))

    with pytest.raises(ReplayDiverged, match=r"step 0 .*the core's code has changed since"):
        replay(older)


def test_a_recording_that_was_cut_off_anywhere_replays_up_to_the_cut(
    life: Path, tmp_path: Path
) -> None:
    whole = life.read_bytes()
    full = replay(life)
    head = len(msgpack.packb(msgpack.Unpacker(life.open("rb"), strict_map_key=False).unpack()))
    before = -1
    for length in [head, head + 1, *range(head + 9, len(whole), 4999)]:
        cut = tmp_path / "cut.msgpack"
        cut.write_bytes(whole[:length])
        replayed = replay(cut)
        assert before <= replayed.steps < full.steps
        before = replayed.steps
    assert before > 100


def test_an_event_that_kills_the_core_is_the_last_thing_in_its_recording(tmp_path: Path) -> None:
    core = recording(tmp_path / "life.msgpack")
    core.handle(events.Started(), 1.0)
    # an age that cannot be computed with
    fatal = events.TrainerProgress(1, None)  # type: ignore[arg-type]

    with pytest.raises(TypeError):
        core.handle(fatal, 1.5)

    replayed = replay(tmp_path / "life.msgpack")
    assert replayed.steps == 1
    assert replayed.cut_off == fatal


def test_an_event_is_in_the_recording_before_the_core_hears_it(tmp_path: Path) -> None:
    """Whoever is killed while the core is at work, as when it loops for ever,
    finds the event that it was at."""
    path, killed = tmp_path / "life.msgpack", tmp_path / "killed.msgpack"

    class Looping(Peer):
        def handle(self, event: events.Event, now: float) -> list[events.Effect]:
            killed.write_bytes(path.read_bytes())  # what is on the disk if this call never ends
            return super().handle(event, now)

    core = recording(path, Looping)
    core.handle(events.Started(), 1.0)
    core.handle(events.TrainerProgress(1, 0.0), 1.5)

    replayed = replay(killed)
    assert replayed.steps == 1
    assert isinstance(replayed.cut_off, events.TrainerProgress)


def test_addresses_learnt_from_outside_the_protocol_are_part_of_the_recording(
    tmp_path: Path,
) -> None:
    core = recording(tmp_path / "life.msgpack")
    core.handle(events.Started(), 1.0)
    assert core.handle(events.AddressLearned(1, "c1", "b1", 0), 1.5) == [
        events.Connect(1, "c1", "b1")
    ]
    core.handle(events.LinkUp(1), 2.0)

    seen: list[Any] = []
    replay(
        tmp_path / "life.msgpack", lambda now, event, effects: seen.append((now, event, effects))
    )

    assert seen[1] == (
        1.5,
        events.AddressLearned(1, "c1", "b1", 0),
        [events.Connect(1, "c1", "b1")],
    )


def test_recording_never_stands_in_the_way_of_the_core(tmp_path: Path) -> None:
    swarm = recorded_swarm(tmp_path, "rolling")
    for host in swarm.hosts.values():
        host.core.bytes_max = 20_000
    swarm.run_for(3.0)
    for peer in swarm.up:
        path = recorder.path_of(tmp_path, peer, 0)
        (said,) = [r for r in swarm.reports(peer, "error") if "recording" in r.fields["message"]]
        assert "20000 are the most" in said.fields["message"]
        assert 20_000 < path.stat().st_size < 30_000
        assert replay(path).steps > 50
        assert len(swarm.commits(peer)) > replay(path).rounds, "it went on"


def test_a_full_disk_ends_the_recording_and_says_so() -> None:
    core = recording(Path("/dev/full"))
    first = core.handle(events.Started(), 1.0)
    assert [e.fields["message"] for e in first if isinstance(e, events.Report)] == [
        "the recording full ends here: [Errno 28] No space left on device"
    ]
    assert not any(isinstance(e, events.Report) for e in core.handle(events.LinkUp(1), 1.1))


def _not_there(path: Path) -> None:
    return None


def _no_msgpack(path: Path) -> None:
    path.write_bytes(b"\xc1\xc1\xc1")


def _other_format(path: Path) -> None:
    path.write_bytes(msgpack.packb([99, {}]))


def _other_version(path: Path) -> None:
    path.write_bytes(msgpack.packb([recorder.FORMAT, {"Header": [1, 2]}]))


def _no_header(path: Path) -> None:
    path.write_bytes(msgpack.packb([recorder.FORMAT, {"AddressLearned": [1, "", "", 0]}]))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_not_there, "cannot read the recording"),
        (_no_msgpack, "is damaged"),
        (_other_format, "is no recording of format 3"),
        (_other_version, "has 'Header' in a form that this version of gossip does not know"),
        (_no_header, "does not begin with a header"),
    ],
)
def test_what_is_no_recording_is_refused_in_words(
    tmp_path: Path, make: Callable[[Path], None], says: str
) -> None:
    path = tmp_path / "life.msgpack"
    make(path)
    with pytest.raises(ConfigError, match=says):
        replay(path)


def test_frames_out_of_order_are_refused_with_their_number(life: Path, tmp_path: Path) -> None:
    frames = list(msgpack.Unpacker(life.open("rb"), strict_map_key=False))
    damaged = tmp_path / "damaged.msgpack"
    damaged.write_bytes(b"".join(map(msgpack.packb, [frames[0], *frames[2:]])))
    with pytest.raises(ConfigError, match="is damaged: frame 0 is"):
        replay(damaged)


def test_a_payload_is_recorded_as_its_facts_and_not_its_bytes() -> None:
    event: Any = Contributed(7, 3, (Payload(object(), 4_000_000, False, b"d" * 16),), loss=0.1)
    back = recorder.restored(
        msgpack.unpackb(msgpack.packb(recorder.plain(event)), strict_map_key=False)
    )
    assert (back.round_id, back.samples, back.loss) == (7, 3, 0.1)
    (payload,) = back.payloads
    assert (payload.data, payload.nbytes, payload.finite, payload.digest) == (
        None,
        4_000_000,
        False,
        b"d" * 16,
    )


def test_what_a_node_found_out_about_a_result_is_recorded_with_it() -> None:
    event: Any = Received(1, 0, Ping(3, 2, ()), None, ResultSimilarity(2.0, 4.0, 8.0))
    assert (
        recorder.restored(
            msgpack.unpackb(msgpack.packb(recorder.plain(event)), strict_map_key=False)
        )
        == event
    )


def test_what_is_no_plain_data_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="no form for <class 'set'>"):
        recorder.plain(Received(1, 0, Progress(1, 2), {1, 2}))  # type: ignore[arg-type]
