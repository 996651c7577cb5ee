"""``gossip plan link`` over gossip's own transport, between two real processes."""

from __future__ import annotations

from pathlib import Path

import psutil

from gossip_pipelines.plan.linking import link_from
from gossip_pipelines.planning import (
    CostLine,
    LayerProfile,
    PeerProfile,
    read_profile,
    write_profile,
)


def test_a_link_is_measured_and_kept_in_the_profile(tmp_path: Path) -> None:
    path, line = tmp_path / "lab1.toml", CostLine(0.001, 0.0)
    layer = LayerProfile("0 Linear", "0" * 16, 4, 4.0, 4.0, line, line)
    path.write_text(write_profile(PeerProfile("lab1", 2**30, (2, 16), (layer,))))
    before = sockets()
    said = link_from(path, "lab2", ("127.0.0.1", "127.0.0.1", ""), repeats=2)
    assert "lab1 to lab2" in said
    links = read_profile(path).links
    assert links.keys() == {"lab2"}
    assert 0 < links["lab2"].at(2**20) < 60
    assert sockets() == before


def sockets() -> int:
    """Of ours, that others can connect to."""
    listening = psutil.Process().net_connections("all")
    return sum(
        one.status == psutil.CONN_LISTEN or one.family.name == "AF_UNIX" for one in listening
    )
