"""``gossip keygen``: keys for those who come and go in a standing swarm."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gossip.errors import ConfigError

if TYPE_CHECKING:
    from gossip.config import RunConfig
    from gossip.transport.curve import KeyPair


def keygen(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it; nothing is overwritten.")] = Path("swarm.key"),
    swarm: Annotated[
        str, typer.Option("--for", metavar="PUBLIC", help="Public key of a swarm that somebody with a key of his own joins.")
    ] = "",
    show: Annotated[bool, typer.Option("--show", help="Show the public half of a key that is there.")] = False,
) -> None:
    """Make a key for a swarm, in a file that only you can read: gossip keygen, then gossip run --key swarm.key train.py

    Whoever has that file may join the runs that were started with it. Somebody else makes a key of his own with --for PUBLIC; it
    is let in as long as its public half is on a line of the file allowed.keys in the run's folder, which may change at any time.
    """
    from gossip.keys import fingerprint, make_pair, read_pass
    from gossip.transport.curve import is_key

    if swarm and not is_key(swarm):
        raise ConfigError(f"{swarm!r} is no public key", "gossip keygen --show FILE shows the one of a swarm")
    if not show:
        make_pair(path, swarm)
    found = read_pass(path)
    print(f"{path}: {'a key' if show else 'a new key'} of {'a swarm' if found.swarm == found.pair.public else 'somebody'}")
    print(f"fingerprint  {fingerprint(found.pair.public)}")
    print(f"public       {found.pair.public}")
    if found.swarm != found.pair.public:
        print(f"for          {found.swarm}")


def own_key(path: Path | None, config: RunConfig) -> KeyPair | None:
    """The swarm key that a run is started with; None: it makes one.

    Raises: ConfigError: There is none in the file, it is somebody's and no swarm's, or the run has no keys.
    """
    from gossip.keys import read_pass

    if path is None:
        return None
    if not config.keyed:
        raise ConfigError(f"the key {path} is of no use to a run without keys", "leave out --no-keys, or --key")
    found = read_pass(path)
    if found.swarm != found.pair.public:
        raise ConfigError(f"{path} is the key of somebody who joins a swarm, not a swarm's own", "gossip keygen makes one")
    return found.pair
