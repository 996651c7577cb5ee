"""``gossip.init()`` in a process that is no peer, or that torch.distributed joins to others."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import gossip
from gossip.config import RunConfig
from gossip.errors import ConfigError
from gossip.launch.local.peer_setup import peer_environment


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of a launched peer."""
    config = tmp_path / "config.json"
    RunConfig(peers=2, name="a-run", run="0" * 16, run_dir=str(tmp_path)).dump(config)
    monkeypatch.setenv("GOSSIP_CONFIG", str(config))
    monkeypatch.setenv("GOSSIP_PEER", "1")
    monkeypatch.setenv("GOSSIP_RUN_DIR", str(tmp_path))
    return tmp_path


def test_a_child_process_of_a_peer_is_refused_before_it_leaves_anything(
    launched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOSSIP_TRAINER", str(os.getppid()))
    before = sorted(launched.rglob("*"))
    with pytest.raises(ConfigError, match="child process of a peer"):
        gossip.init()
    assert sorted(launched.rglob("*")) == before


def test_a_child_of_a_rank_is_refused_and_a_script_alone_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GOSSIP_TRAINER", str(os.getppid()))
    gossip.init().close()
    for name, value in (("RANK", "0"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WORLD_SIZE", "1")
    gossip.init().close()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="child process of a peer"):
        gossip.init()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("launched")
def test_a_launched_process_trains_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossip.training.start._open", Mock(closed=True))
    with pytest.raises(ConfigError, match="called twice") as caught:
        gossip.init()
    assert "once" in caught.value.hint


@pytest.mark.usefixtures("launched")
def test_a_worker_started_before_the_peer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSIP_TRAINER", "")
    monkeypatch.setattr(multiprocessing, "parent_process", object)
    with pytest.raises(ConfigError, match="child process of a peer"):
        gossip.init()


def test_a_process_that_imports_the_script_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(ConfigError) as refused:
        gossip.init()
    assert "__main__" in str(refused.value.hint)
    assert refused.value.__notes__ == [f"hint: {refused.value.hint}"]


def test_a_launcher_in_a_peer_starts_peers_of_its_own(tmp_path: Path) -> None:
    assert not peer_environment(tmp_path, {"GOSSIP_TRAINER": "1"})["GOSSIP_TRAINER"]


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[int]:
    """A process group of that size, without its other processes."""
    dist.init_process_group("fake", rank=0, world_size=request.param, store=FakeStore())
    yield request.param
    dist.destroy_process_group()


@pytest.mark.parametrize("group", [2], indirect=True)
def test_processes_that_torch_distributed_has_joined_are_refused(group: int) -> None:
    with pytest.raises(ConfigError, match=f"with {group} processes") as refused:
        gossip.init()
    assert "init_process_group" in str(refused.value.hint)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("group", [1], indirect=True)
def test_a_process_group_of_one_is_no_hindrance() -> None:
    gossip.init().close()
