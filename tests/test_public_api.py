"""The names that users write. One that is missing here or there is a decision, not an accident."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest

import gossip
from gossip.training.session import Session


def test_the_public_names_are_these():
    public = [
        "MembershipChange",
        "Session",
        "__version__",
        "aggregators",
        "errors",
        "init",
        "spawn",
        "testing",
        "topologies",
    ]
    assert sorted(gossip.__all__) == public
    assert dir(gossip) == public
    for name in public:
        assert getattr(gossip, name) is not None
    assert gossip.Session is Session
    assert not hasattr(gossip, "no_such_name")


def test_a_session_offers_this_and_no_more():
    public = {name for name, _ in inspect.getmembers(Session) if not name.startswith("_")}
    of_the_user = {"prepare", "shard", "log", "keep", "epochs", "steps", "save_every", "each_step"}
    of_the_user |= {"no_sync", "close", "on_membership_change"}
    facts = {"id", "round", "step", "initial_peers", "roster_peers", "alive_peers", "is_main"}
    facts |= {"run_dir", "finished", "device", "roster"}
    facts |= {"confirmed", "answered", "stepped", "planned_peers", "closed"}
    of_the_user |= {"pipeline", "search_start"}
    collective = {"mean", "gather", "broadcast", "any", "barrier", "save"}
    assert public == of_the_user | facts | collective


def test_signatures_that_users_rely_on():
    assert [*inspect.signature(Session.prepare).parameters] == [
        "self",
        "model",
        "optimizer",
        "judge",
        "together",
        "clip_norm",
    ]
    assert [*inspect.signature(Session.shard).parameters] == [
        "self",
        "data",
        "batch_size",
        "classes",
        "accumulate",
        "order",
        "options",
    ]
    assert inspect.signature(Session.shard).parameters["classes"].default is None
    assert inspect.signature(Session.shard).parameters["accumulate"].default == 1
    assert inspect.signature(Session.shard).parameters["order"].default == ""
    reference, track, overrides = inspect.signature(gossip.init).parameters.values()
    assert (reference.name, reference.default) == ("reference", None)
    assert reference.kind is inspect.Parameter.KEYWORD_ONLY
    assert (track.name, track.default, track.kind) == ("track", (), reference.kind)
    assert overrides.kind is inspect.Parameter.VAR_KEYWORD


@pytest.mark.parametrize("name", ["aggregators", "errors", "testing", "topologies"])
def test_a_public_package_needs_no_import_of_its_own(name: str):
    code = f"import gossip, sys; dir(gossip.{name}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, check=False).returncode == 0


def test_what_init_needs_before_the_node_runs_does_not_import_torch():
    code = (
        "import sys; from gossip.ipc import channel; from gossip.training import node_start, "
        "start, watch; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, check=False).returncode == 0


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert gossip.__version__ == version("gossip-train")
