"""Every error that gossip raises, by its origin.

GossipError
├── ConfigError (ValueError)       the user: an option, a file, a script
│   ├── UnknownName                an unknown name, with its nearest neighbour
│   ├── BadFault                   a fault that cannot be parsed or carried out
│   ├── AggregationError           a rule cannot aggregate as requested
│   │   └── TooFewUpdates          fewer updates than f requires
│   ├── BadTopology                a topology returned an invalid plan
│   ├── UnsupportedModel           a part of the model or the optimizer that cannot be exchanged
│   └── RunExists                  the run folder exists already
├── LocalError                     this peer or this machine
│   ├── NodeLost                   the node died and could not be restarted
│   ├── OutOfMemory                more peers than the memory holds
│   ├── SpawnFailed                a run of gossip.spawn did not finish
│   └── AddressInUse               another process has the port
├── RemoteError                    a remote peer
│   ├── Malformed                  bytes that are not a message (never leaves the transport)
│   └── Refused                    the swarm rejects this peer: another model, version or run
│       └── ModelDiffers           another model, and where it differs
└── SwarmError                     the swarm, or the network between peers
    ├── NeverStarted               too few peers started before the start timeout
    ├── NobodyAnswers              no join server of the run answers at its address
    ├── StateLost                  the run had rounds, and no peer has their state
    └── ReplicasDiverged           replicas differ again after a state transfer
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable


class GossipError(Exception):
    """Base of all errors of gossip. ``hint`` is advice for the user, ``exit_code`` the exit code of
    a command."""

    exit_code = 1
    hint: str | None = None

    def __init__(self, message: str, hint: str | None = None) -> None:
        # Exception.__init__ is not called, so that ``args`` stay the arguments of the constructor.
        # Errors of every class can thus be pickled.
        self.message = message
        if hint is not None:
            self.hint = hint

    def __str__(self) -> str:
        return self.message


class ConfigError(GossipError, ValueError):
    """An error in the user's input. The message names the option, its value and the allowed
    values."""

    exit_code = 2


def suggest_name(given: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a question that suggests a similar name, for the end of a message; "" if none is
    similar."""
    near = difflib.get_close_matches(given, known, n=1, cutoff=cutoff)
    return f". Did you mean {near[0]!r}?" if near else ""


def list_nearest(given: str, known: Collection[str]) -> str:
    """List the known names, most similar first, for a hint. If there are more than ten, list only
    the five most similar."""
    most = len(known) if len(known) <= 10 else 5
    near = difflib.get_close_matches(given, known, n=max(1, most), cutoff=0.0)
    more = f" and {len(known) - len(near)} more" if len(known) > len(near) else ""
    return f"known: {', '.join(near)}{more}"


class TrainingWarning(UserWarning):
    """A warning: the script probably does not train what its author intends. ``gossip explain`` and
    the report list these warnings."""


class UnknownName(ConfigError):
    """An unknown name. The message suggests the most similar known name."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, tuple(sorted(known))
        suggestion = suggest_name(name, self.known)
        super().__init__(f"unknown {kind} {name!r}{suggestion}", list_nearest(name, self.known))
        self.args = (kind, name, self.known)


class BadFault(ConfigError):
    """A fault that cannot be parsed, or that names a peer or a round that does not exist."""


class AggregationError(ConfigError):
    """A rule cannot aggregate as requested."""


class TooFewUpdates(AggregationError):
    """``rule`` needs ``need`` updates to tolerate ``f`` Byzantine peers and got ``got``."""

    def __init__(self, rule: str, f: int, need: int, got: int, hint: str = "") -> None:
        super().__init__(
            f"{rule} needs {need} update{'' if need == 1 else 's'} to tolerate f={f} Byzantine "
            f"peers, got {got}",
            hint or f"start at least {need} peers",
        )
        self.rule, self.f, self.need, self.got = rule, f, need, got


class BadTopology(ConfigError):
    """A topology returned an invalid plan for its roster."""


class UnsupportedModel(ConfigError):
    """The model or the optimizer has a part that gossip cannot exchange."""


class RunExists(ConfigError):
    """The run folder exists already and is not empty."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"the run folder {path} already exists",
            "choose another --name or --run-dir, or remove the old run: gossip rm",
        )
        self.path = path


class LocalError(GossipError):
    """An error of this peer, or of its machine."""


class NodeLost(LocalError):
    """The node process died and could not be restarted."""

    def __init__(self, peer: int, restarts: int, last_words: str) -> None:
        super().__init__(f"the node of peer {peer} died {restarts + 1} times: {last_words}")


class OutOfMemory(LocalError):
    """The peers need more memory than this machine has."""

    exit_code = 2

    def __init__(self, peers: int, need_bytes: int, have_bytes: int) -> None:
        most = max(1, peers * have_bytes // max(1, need_bytes))
        super().__init__(
            f"{peers} {'peer needs' if peers == 1 else 'peers need'} "
            f"about {need_bytes / 2**30:.1f} GiB of memory, "
            f"{have_bytes / 2**30:.1f} GiB are available",
            f"start at most {most} peers on this machine",
        )


class SpawnFailed(LocalError):
    """A run that ``gossip.spawn`` started has failed. ``code``: exit code of the run. ``folder``:
    the run's folder. The output of the run has the reason."""

    def __init__(self, code: int, folder: str) -> None:
        super().__init__(
            f"the run ended with exit code {code}; its output has the reason: {folder}",
            f"gossip explain {code} explains the code",
        )
        self.code, self.folder = code, folder


class AddressInUse(LocalError):
    """Another process listens on the port. ``holder`` describes that process, if it is known."""

    exit_code = 2
    hint = "leave the port out: a free one is chosen; gossip ls shows runs that may have it"

    def __init__(self, address: str, holder: str | None = None) -> None:
        super().__init__(f"{address} is taken" + (f" by {holder}" if holder else ""))


class RemoteError(GossipError):
    """An error of a remote peer."""


class Malformed(RemoteError):
    """Bytes that are not a message. The transport counts and drops them, and never raises this
    error to its caller."""


class Refused(RemoteError):
    """The swarm rejects this peer, because its model, version or run differs."""

    exit_code = 6


class ModelDiffers(Refused):
    """The swarm trains another model. The message has a line about each of the two models."""

    def __init__(self, swarm: str, here: str) -> None:
        super().__init__(
            f"refused: the model differs from the swarm's\n  swarm  {swarm}\n  here   {here}",
            "all peers must build the same model: from the same code, with the same arguments",
        )
        self.swarm, self.here = swarm, here


class SwarmError(GossipError):
    """An error of the swarm, or of the network between its peers."""


class NeverStarted(SwarmError):
    """Too few peers started before the start timeout."""

    exit_code = 4
    hint = "look at the log of the first missing peer, or raise --start-timeout"

    def __init__(
        self, need: int, present: tuple[int, ...], missing: tuple[int, ...], waited_s: float
    ) -> None:
        super().__init__(
            f"{len(present)} of {need} needed peers started in {waited_s:.0f} s; "
            f"missing: {', '.join(map(str, missing))}"
        )


class StateLost(SwarmError):
    """The run had completed rounds, but no running peer has the state after them. This peer could
    only start from the beginning."""

    exit_code = 7
    hint = "resume from the newest checkpoint (--resume), if there is one"


class ReplicasDiverged(SwarmError):
    """Replicas differ again, although a state transfer had made them equal and no round was missed
    since."""

    exit_code = 9
    hint = (
        "gossip explain RUN names the tensors; put changes of weights outside of "
        "optimizer.step() into peer.each_step, and draw nothing from this peer's data there; "
        "--on-divergence heal continues"
    )


class NobodyAnswers(SwarmError):
    """No join server of the run replied. ``tried``: a line for each address that was tried, with
    the result."""

    exit_code = 4

    def __init__(self, address: str, tried: tuple[str, ...], waited_s: float) -> None:
        lines = "".join(f"\n  tried {line}" for line in tried)
        super().__init__(
            f"no join server replied at {address} in {waited_s:.0f} s{lines}",
            "check that a launcher of the run is up and printed this address; any "
            f"launcher's works. Try: gossip doctor --to {address.partition(',')[0]}",
        )
