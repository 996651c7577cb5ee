"""The device that a peer's model goes to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gossip.training.session import Session


@pytest.mark.parametrize(
    ("devices", "peer", "expected"),
    [(0, 5, "cpu"), (1, 5, "cuda:0"), (4, 5, "cuda:1"), (4, 3, "cuda:3")],
)
def test_peers_share_the_devices_of_a_host_in_turn(
    devices: int, peer: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    session: Any = SimpleNamespace(id=peer)
    assert Session.device.fget(session) == torch.device(expected)  # type: ignore[attr-defined]
