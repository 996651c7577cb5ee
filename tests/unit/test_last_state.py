"""What a peer leaves on disk that gives up, and what is said of it when all are lost."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import safetensors.torch
from trainer_fakes import FakeNode, backward, prepared_swarm, small_model

from gossip.core import QUORUM_LOST, events
from gossip.errors import ConfigError, SwarmError
from gossip.launch.local import lost_state
from gossip.run import checkpoints


def give_up(folder: Path, peer: int = 0, rounds: int = 3) -> str:
    """Take part in so many rounds, and lose the quorum. Returns the error."""

    def node(n: FakeNode) -> None:
        n.prepared()
        for round_id in range(rounds):
            n.offered(round_id)
            n.lost(round_id)
        n.send(events.Halt("too few peers", QUORUM_LOST))

    options = {"peers": 4, "peer": peer, "run_dir_path": folder}
    with prepared_swarm(node, **options) as (_, model, optimizer):
        for step in range(rounds - 1):
            backward(model, step)
            optimizer.step()
        backward(model, rounds)
        with pytest.raises(SwarmError) as caught:
            _ = [optimizer.step() for _ in range(2)]
    return str(caught.value)


def test_a_peer_that_gives_up_leaves_a_checkpoint_of_its_state(tmp_path: Path) -> None:
    for rounds in (3, 7):
        said = give_up(tmp_path, rounds=rounds)
        place = tmp_path / "peer-0" / "last_state" / checkpoints.name_of(rounds)
        assert said.endswith(f"its state of round {rounds} is in {place}")
    assert [path for _, path in checkpoints.listed(place.parent)] == [place]
    found = checkpoints.open_at(place)
    assert not checkpoints.verify(found)
    assert (found.manifest["round"], found.manifest["reason"]) == (7, "too few peers")
    model, _ = small_model()
    model.load_state_dict(safetensors.torch.load_file(place / checkpoints.MODEL_FILE))


def test_a_state_that_cannot_be_written_is_no_other_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*values: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints.OutgoingCheckpoint, "add", refuse)
    assert "could not be written" in give_up(tmp_path)


def test_what_peers_left_is_named_with_its_round_when_the_state_is_lost(tmp_path: Path) -> None:
    for peer, rounds in enumerate((2, 5, 4)):
        give_up(tmp_path, peer, rounds)
    states = [
        f"{tmp_path}/peer-{peer}/last_state/step-{at:09d} (round {at})"
        for peer, at in ((1, 5), (2, 4), (0, 2))
    ]
    assert lost_state.hints(tmp_path)[0] == f"  on disk: {', '.join(states)}"


def test_a_folder_that_cannot_be_listed_does_not_hide_the_loss(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    give_up(tmp_path)

    def refuse(folder: Path) -> list[tuple[int, Path]]:
        raise ConfigError(f"the checkpoints in {folder} cannot be listed")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "listed", refuse)
        disk, _ = lost_state.hints(tmp_path)
    assert disk == "  the run's folder has no part of the state"
