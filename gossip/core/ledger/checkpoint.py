"""The ledger in a checkpoint: the hash of the history, and the tables that follow from the
history."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gossip.core.messages import DIGEST_BYTES, PeerId

from .data_cursor import DataCursor

FORMAT = 3


def pack_ledger(round_id: int, chain: bytes, snapshot: tuple[Any, ...], whole: bool) -> bytes:
    """Pack the ledger for a checkpoint.

    Args:
        round_id: The next round.
        chain: H of the previous round.
        snapshot: Roster, trust, data cursor and the other tables that a joining peer receives.
        whole: Whether all initial peers have contributed to every step of the run.
    """
    document = {
        "format": FORMAT,
        "round": round_id,
        "chain": chain.hex(),
        "whole": whole,
        "tables": snapshot,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def unpack_ledger(data: bytes, roster: Sequence[PeerId]) -> tuple[bytes, tuple[Any, ...], bool]:
    """Unpack the ledger of a checkpoint.

    Args:
        roster: Present peers, which replace the roster of the checkpoint.
    Returns: chain, snapshot and whole, as for ``pack_ledger``.
    Raises: ValueError: The data is not a ledger of this version.
    """
    document = json.loads(data)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError("the ledger of the checkpoint was written by another version of gossip")
    try:
        chain = bytes.fromhex(document["chain"])
        tables = tuple(document["tables"])
        whole = bool(document["whole"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"the ledger of the checkpoint lacks {error}") from error
    if len(chain) != DIGEST_BYTES:
        raise ValueError("the ledger of the checkpoint has no valid hash of its history")
    # In gossip rounds the snapshot has no tables.
    return chain, (list(roster), *tables[1:]) if tables else (), whole


def planned_peers(data: bytes) -> int | None:
    """Return the number of peers for which the epochs of a run are planned. Return None for gossip
    rounds, in which no epochs are planned.

    Raises: ValueError: The data is not a ledger of this version.
    """
    _, tables, _ = unpack_ledger(data, ())
    if not tables:
        return None
    if len(tables) < 3:
        raise ValueError("the ledger of the checkpoint lacks the data cursor")
    cursor = DataCursor()
    cursor.unpack(tables[2])
    return cursor.peers
