"""Meanings of exit codes, for ``gossip explain``. A test checks that docs/exit_codes.md has the
same texts."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExitCodeMeaning:
    """Meaning of one code. ``action``: remedy for a user or a scheduler; "" means none."""

    status: str
    meaning: str
    action: str = ""


CODES: dict[int, ExitCodeMeaning] = {
    0: ExitCodeMeaning(
        "finished",
        "At least one peer finished. Others may have died on the way: see `deaths` in "
        "`summary.json`. If a peer found no other, it trained alone: see `trained_alone`.",
    ),
    1: ExitCodeMeaning(
        "failed",
        "The script raised in so many peers that none finished; the first failure was printed. "
        "For `demo` also: a result was not as expected; see the lines that begin with `error:`.",
        "fix the script",
    ),
    2: ExitCodeMeaning(
        "refused",
        "The command line, a setting, a fault, a name, the run folder or the memory does not "
        "allow this run. Nothing was started, or the peers refused to begin.",
        "follow the hint",
    ),
    4: ExitCodeMeaning(
        "never_started",
        "Fewer peers than a quorum, or than `--min-peers`, started before `--start-timeout`. For "
        "`gossip join ADDRESS`: no server replied there.",
        "read the log of the first missing peer: `gossip logs RUN -p PEER`",
    ),
    5: ExitCodeMeaning(
        "quorum_lost",
        "Too few peers were left to commit a round, or for the rule to tolerate `f` Byzantine "
        "peers, and none returned in time; or all were killed.",
        "restart, a smaller `-f`, or `--quorum available`",
    ),
    6: ExitCodeMeaning(
        "refused",
        "The swarm refused the peers: another model, version, swarm key or run. Or a peer could "
        "not load the state of the run three times in a row; the message has the first "
        "difference.",
        "make all peers build the same model and optimizer",
    ),
    7: ExitCodeMeaning(
        "state_lost",
        "All peers with the state of the run are lost, and a restarted one would begin with fresh "
        "weights. The output lists the lost state, and the part of it that is on disk.",
        "continue from the newest checkpoint with `--resume auto`, if the script saves any; use "
        "more peers next time",
    ),
    8: ExitCodeMeaning(
        "not_saved",
        "The training has finished, but its last checkpoint could not be written, for example to "
        "a full disk. Earlier checkpoints are unchanged.",
        "free space, and continue from the last one with `--resume auto`",
    ),
    9: ExitCodeMeaning(
        "diverged",
        "The replicas of peers differ, and a state transfer did not help, or no round was left "
        "for a transfer. The screen and `divergences` in `summary.json` name the tensors and the "
        "likely cause.",
        "put changes of weights outside of `optimizer.step()` into `peer.each_step`; "
        "`--on-divergence heal` or `warn` continues",
    ),
    130: ExitCodeMeaning(
        "stopped",
        "Ctrl-C: every peer finishes its round and leaves; a second Ctrl-C kills. If all peers "
        "have already finished, the code is 0.",
    ),
    143: ExitCodeMeaning(
        "stopped",
        "The launcher got SIGTERM, or SIGHUP without `nohup`; peers left as after one Ctrl-C.",
    ),
}


def status_of(code: int) -> str:
    """Return the status of a run with that exit code; "failed" for a code that gossip does not
    use."""
    return CODES[code].status if code in CODES else "failed"


def explain(code: int) -> list[str]:
    """Return lines with the status, the meaning and the action of a code."""
    known = CODES.get(code)
    if known is None and 128 < code < 128 + signal.NSIG:
        try:
            name = signal.Signals(code - 128).name
        except ValueError:
            name = f"signal {code - 128}"
        why = "; the system does that when memory runs out" if name == "SIGKILL" else ""
        known = ExitCodeMeaning(
            "killed",
            f"Not one of gossip's: 128 + {code - 128}, a process that was killed by {name}{why}.",
        )
    if known is None:
        known = ExitCodeMeaning(
            "",
            "Not one of gossip's: the script, or the program that ran it, exited with it.",
        )
    lines = [
        f"{code}  {known.status}".rstrip(),
        f"  {known.meaning}",
        *([f"  try: {known.action}"] if known.action else []),
    ]
    return [line.replace("`", "") for line in lines]
