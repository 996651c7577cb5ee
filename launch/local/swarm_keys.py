"""``gossip keygen``: makes keys for swarms that other machines join, and for peers with a permanent
key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gossip.errors import ConfigError

if TYPE_CHECKING:
    from gossip.config import RunConfig
    from gossip.transport import KeyPair


def keygen(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to write. An existing file is kept.")
    ] = Path("swarm.key"),
    show: Annotated[
        bool, typer.Option("--show", help="Only show the public half of the key in FILE.")
    ] = False,
) -> None:
    """Make a key, in a file that only you can read: gossip keygen,
    then gossip run --key swarm.key train.py

    With gossip run --key FILE, the key is a swarm key, which admits any holder of the file to the
    run. With GOSSIP_KEY=FILE, it is the permanent key of a peer. The file of gossip run --allowed
    FILE can list its public half.
    """
    from gossip.run import fingerprint, make_pair, read_pair

    pair = read_pair(path) if show else make_pair(path)
    print(f"{path}: {'a key' if show else 'a new key, readable only by you'}")
    print(f"fingerprint  {fingerprint(pair.public)}")
    print(f"public       {pair.public}")


def own_key(path: Path | None, config: RunConfig) -> KeyPair | None:
    """Return the swarm key in the user's file; None if the run makes a new one.

    Raises: ConfigError: The file contains no key, the list of allowed peers has an entry that is
    not a key, or the run has no keys.
    """
    from gossip.run import allow_list, read_pair

    for what in filter(None, (str(path or ""), config.allowed)):
        if not config.keyed:
            raise ConfigError(
                f"{what} has no effect in a run without keys",
                "start the run with --keys, or leave the file out",
            )
    allow_list(config.allowed)
    return None if path is None else read_pair(path)


def check_listed(config: RunConfig, key_file: str) -> None:
    """Check the keys of all peers before the start. Otherwise each peer would find an error by
    itself, and other peers might begin without it.

    Args:
        key_file: Value of ``GOSSIP_KEY``.

    Raises: ConfigError: All peers have the same key, or the key of a peer cannot be read or is not
    on the list of allowed peers.
    """
    from gossip.run import allow_list, listed_pair

    if key_file and "{peer}" not in key_file and config.keyed and config.peers > 1:
        raise ConfigError(
            f"GOSSIP_KEY names one file for {config.peers} peers: {key_file}; a key belongs to "
            "one peer",
            "make one for each with gossip keygen, and write {peer} where their names differ: "
            "GOSSIP_KEY='keys/{peer}.key'",
        )
    if (allowed := allow_list(config.allowed)) is not None:
        for peer in range(config.peers):
            listed_pair(key_file, peer, allowed)
