"""Checks, before a run starts, that its names, its rule and its topology are valid and fit the
number of peers.

Modules with rules import torch. So a separate process checks the rule, and the launcher needs
little memory.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gossip import topologies
from gossip.aggregators import registry
from gossip.aggregators.attacks import checked_strength, kind_of
from gossip.config import Resolved, RunConfig
from gossip.errors import BadFault, ConfigError, GossipError, TooFewUpdates
from gossip.faults import ByzantineFault, check_attack, parse
from gossip.interpreter import python_command
from gossip.topologies import read_weights
from gossip.vectors import load_encoding

from . import tolerance

PLAIN = "float32"
OTHER_PARTS = "but each peer sends other coordinates"
NOT_PARTS = {
    "bulyan": f"aggregates each coordinate alone at the end, {OTHER_PARTS}",
    "krum": "returns the update of one peer, so coordinates that only other peers sent are lost",
}
"""Rules on inner products that cannot work on sparse updates, each with the reason."""
AUDITED_MIN = 3
"""Minimum number of peers in a stage with audits: one member is audited, and two others must
agree."""
PEERS_FOR_ONE_MAX = 64
"""Maximum number of peers that ``_peers_for_one`` tries."""


def check_names(topology: str, aggregator: str) -> None:
    """Check the names of a topology and a rule, without importing torch.

    Raises: UnknownName or ConfigError: There is no topology or rule of that name.
    """
    topologies.load(topology)
    registry.check(aggregator)


def check(config: RunConfig) -> None:
    """Check everything that needs no torch: names, ``room``, weights of servers, and options that
    exclude each other. Raises: UnknownName or ConfigError."""
    name = config.name
    if name and (Path(name).name != name or name.startswith((".", "-")) or not name.isprintable()):
        raise ConfigError(
            f"name = {name!r}: it must be a plain word, because it names the run's folder",
            "--run-dir sets the folder of the run",
        )
    if 0 < config.room < config.peers:
        raise ConfigError(
            f"room = {config.room}: {config.peers} peers start",
            f"--room {2 * config.peers}, or leave it out",
        )
    check_names(config.topology, config.aggregator)
    topology = topologies.load(config.topology)
    if not topology.rolling:
        _check_without_server(config)
    topologies.load(config.weighted_topology)
    _check_alike(config)
    _check_fragments(config)
    _check_pipeline(config)
    given = {"server_weights": config.server_weights}
    if topology.name == "rolling":  # other topologies check their own weights
        given[f"topology {config.topology}: weights"] = str(topology.bound.get("weights", ""))
    for what, weights in given.items():
        if (last := max(read_weights(weights), default=0)) >= config.peers_max:
            raise ConfigError(
                f"{what} = {weights!r}: there is no peer {last} of {config.peers_max}",
                f"peers are 0 to {config.peers_max - 1}",
            )


def _check_without_server(config: RunConfig) -> None:
    """Check the options of a run whose rounds have no server. Raises: ConfigError: An option needs
    rolling rounds."""
    reasons = {
        "server_weights": "have no server",
        "deterministic": "do not wait for other peers, and no two runs are equal",
        "overlap": "have no common result, and the parameters of peers, which differ anyway, would "
        "diverge further",
        "fragments": "mix all parameters of peers",
        "batch_policy": "do not agree on the number of peers, and so on their batches",
    }
    for name, why in reasons.items():
        if (given := getattr(config, name)) != RunConfig.model_fields[name].default:
            raise ConfigError(
                f"{name} = {given}: {config.topology} rounds {why}",
                "leave it out, or --topology rolling",
            )


def _check_alike(config: RunConfig) -> None:
    """Check that two runs can be equal, if ``deterministic`` is set. Raises ConfigError."""
    if config.deterministic and config.min_peers is not None and config.min_peers < config.peers:
        raise ConfigError(
            f"deterministic: with min_peers = {config.min_peers} of {config.peers}, it depends on "
            "the clock which peers begin",
            "leave one of them out",
        )


def _check_fragments(config: RunConfig) -> None:
    """Check that ``fragments`` fits the local steps and the encoding. Raises ConfigError."""
    fragments, steps = config.fragments, config.local_steps
    if fragments == 1:
        return
    what = f"fragments = {fragments}"
    if steps % fragments:
        above = steps + fragments - steps % fragments
        raise ConfigError(
            f"{what} and local_steps = {steps}: there is a round every local_steps / fragments "
            "steps, which is not a whole number",
            f"--local-steps {above}",
        )
    if load_encoding(config.encoding).shaped:
        raise ConfigError(
            f"{what}, and the encoding {config.encoding} is made for the tensors of a whole model",
            "use int8, int4 or topk:0.05, or leave the fragments out",
        )


def _check_pipeline(config: RunConfig) -> None:
    """Check that a run can execute its pipeline plan. Raises ConfigError."""
    plan = config.pipeline
    _check_audit(config)
    if plan is None and config.lost_stage != "checkpoint":
        raise ConfigError(
            f"lost_stage = {config.lost_stage}: it applies to stages of a pipeline, and the run "
            "has no plan",
            "--plan plan.toml, or leave it out",
        )
    if plan is None:
        return
    if sorted(peer for stage in plan.stages for peer in stage.peers) != [*range(config.peers)]:
        raise ConfigError(
            f"{config.peers} peers start, and the plan has {len(plan.names)}",
            f"start {len(plan.names)}, one for each of {', '.join(plan.names)}",
        )
    refused = {
        f"topology {config.topology}": not config.is_rolling,
        f"room {config.room}": config.room > config.peers,
        f"encoding {config.encoding}": config.encoding != PLAIN,
        f"sender {config.sender}": bool(config.sender),
        f"local_steps {config.local_steps}": config.has_local_steps,
        f"overlap {config.overlap}": bool(config.overlap),
        f"min_peers {config.min_peers}": config.min_peers is not None,
        "server_weights": bool(config.server_weights),
    }
    for what, is_given in refused.items():
        if is_given:
            raise ConfigError(
                f"{what}: a pipeline does not support that yet",
                "leave it out; docs/plan.md lists what it supports",
            )


def _check_audit(config: RunConfig) -> None:
    """Check that a stage of the plan has enough peers for audits, if there are audits. Raises
    ConfigError."""
    if not config.audit:
        return
    if config.pipeline is None:
        raise ConfigError(
            f"audit = {config.audit:g}: members of a stage of a pipeline audit each other, and the "
            "run has no plan",
            "--plan plan.toml, or leave it out",
        )
    most, needed = max(len(stage.peers) for stage in config.pipeline.stages), AUDITED_MIN
    if most < needed:
        raise ConfigError(
            f"audit = {config.audit:g}: the largest stage has {most} peers, and {needed} are "
            "needed to find the Byzantine one",
            "a plan with larger stages: gossip plan --liars 1 PROFILE..., or leave it out",
        )


def check_rule(resolved: Resolved) -> Resolved:
    """Check the rule, and return the config with ``f`` and ``peers_for_one`` set.

    Raises:
        TooFewUpdates: The rule cannot tolerate ``f`` Byzantine peers among this number of peers.
        ConfigError: The rule cannot be loaded, or a fault of the plan does not fit the rule or the
            topology.
    """
    config = resolved.config
    # If peers may join later, f may require more peers than start. Until they join, the run waits,
    # or with the quorum ``available`` it tolerates fewer Byzantine peers.
    most = config.peers if config.f is None else config.peers_max
    if config.pipeline is not None:
        most = config.pipeline.smallest  # each stage has its own rounds
    answer = _describe_rule(config, most)
    if "too_few" in answer:
        error = TooFewUpdates(*answer["too_few"])
        if config.pipeline is not None:
            error.hint = f"a plan with at least {error.need} peers in each stage"
        raise error
    if config.f is not None and config.f >= most:
        raise ConfigError(
            f"f={config.f} of {most} peers may be Byzantine: no honest peer is left",
            f"use -f {most - 1} or less, or start at least {config.f + 1} peers",
        )
    if "error" in answer:
        raise ConfigError(answer["error"], answer["hint"])
    config.plan.fits_stages(
        config.pipeline is not None, "--plan plan.toml, or an attack on updates"
    )
    config.plan.fits(config.topology, config.is_rolling, answer["name"], answer["asks_loss"])
    if config.overlap and answer["asks_loss"]:
        raise ConfigError(
            f"overlap = 1: the rule {answer['name']} requests the loss in every round, "
            "so the trainer cannot compute ahead",
            "leave one of them out",
        )
    if config.fragments > 1 and (answer["asks_loss"] or answer["remembers"]):
        why = (
            "asks for the loss of the whole model"
            if answer["asks_loss"]
            else "starts from the last result, which is of another fragment"
        )
        raise ConfigError(
            f"fragments = {config.fragments}: the rule {answer['name']} {why}",
            "leave one of them out",
        )
    if config.has_local_steps and "no_differences" in answer:
        raise ConfigError(*answer["no_differences"])
    check_start(config, answer["f"], answer["needs"], answer["name"])
    resolved = resolved.with_values(
        f"what {answer['name']} allows", peers_for_one=answer["for_one"]
    )
    if config.f is not None:
        return resolved
    return resolved.with_values(
        f"{tolerance.FOUND}{answer['name']} and {most} peers allow, at most a quarter",
        f=answer["f"],
    )


def check_encoding(encoding: str, rule: registry.BoundRule) -> None:
    """Check that the rule works on updates in this encoding. Measurements show which rules do not
    work (docs/results/encodings.md). Raises ConfigError."""
    written = load_encoding(encoding)
    if not (written.sparse or written.low_rank):
        return
    if why := _not_parts(rule):
        raise ConfigError(
            f"encoding {encoding}: it sends a small part of an update, and {rule.name} {why}",
            "use int8 or int4, or a rule such as geometric_median",
        )


def _not_parts(rule: registry.BoundRule) -> str:
    """Return the reason why a rule cannot work if each peer sends other coordinates of its update;
    "" if it can."""
    from gossip.aggregators import CoordinateRule

    last = registry.load(rule.spec.rpartition("+")[2]) if "+" in rule.spec else rule
    if isinstance(last.rule, CoordinateRule) and last.discerning:
        return f"aggregates each coordinate alone, {OTHER_PARTS}"
    return NOT_PARTS.get(last.name, "")


def check_start(config: RunConfig, f: int, needs: int, rule: str) -> None:
    """Check that ``min_peers`` peers can train without the others.

    Args:
        needs: Number of updates that the rule needs to tolerate ``f``.
    Raises: ConfigError: ``min_peers`` peers are too few for a round.
    """
    least, peers = config.min_peers, config.peers
    if least is None:
        return
    if least > peers:
        raise ConfigError(
            f"min_peers = {least}: only {peers} peers start",
            f"--min-peers {peers} at most, or more peers",
        )
    if config.quorum == "available":
        return
    quorum = 1 if peers < 3 else peers // 2 + 1
    needs = min(needs, peers)  # the run waits until later peers join
    need = max(quorum, needs)
    if least < need:
        why = f"for {rule} to tolerate f={f}" if needs > quorum else f"the majority of {peers}"
        raise ConfigError(
            f"min_peers = {least}: at least {need} peers are needed, {why}",
            f"--min-peers {need} or more, or --quorum available"
            + (", or a lower -f" if needs > quorum and f else ""),
        )


def _describe_rule(config: RunConfig, peers: int) -> dict[str, Any]:
    """Return the result of ``describe_or_refuse``. If torch is not imported yet, call that function
    in a separate process."""
    own = [str(f) for f in config.plan if isinstance(f, ByzantineFault) and not f.built_in]
    asked = own, config.aggregator, config.topology, peers, config.f, config.encoding
    if "torch" in sys.modules:
        try:
            return describe_or_refuse(*asked)
        except Exception as error:
            raise ConfigError(
                f"aggregator {config.aggregator!r} cannot be loaded: {type(error).__name__}: "
                f"{error}"
            ) from error
    command = python_command("-m", "gossip.run.fitting", json.dumps(asked))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise ConfigError(f"aggregator {config.aggregator!r} cannot be loaded: {last}") from None
    return answer


def describe_or_refuse(attacks: Sequence[str], *asked: Any) -> dict[str, Any]:
    """Check ``attacks``, and return the result of ``describe``. If a check fails, return a dict
    with the error: ``too_few`` has the arguments of TooFewUpdates, ``error`` and ``hint`` have the
    texts of other errors."""
    try:
        found = describe(*asked)
        check_attacks(attacks, found)
        return found
    except TooFewUpdates as error:
        return {"too_few": error.args}
    except GossipError as error:
        return {"error": str(error), "hint": error.hint}


def describe(
    aggregator: str, topology: str, peers: int, f: int | None = None, encoding: str = PLAIN
) -> dict[str, Any]:
    """Return a description of the rule: its name, what it needs, and its f. If ``f`` is None, f is
    the largest number of Byzantine peers that the rule tolerates, up to a quarter of the peers.

    Raises: TooFewUpdates or ConfigError: The rule cannot tolerate ``f`` Byzantine peers among this
        number of peers, cannot aggregate this number of updates at all, or does not fit the
        topology or the encoding.
    """
    rule, who = registry.load(aggregator), topologies.load(topology)
    check_encoding(encoding, rule)
    if rule.needs_center and who.rolling:
        raise ConfigError(
            f"rule {rule.name} needs the peer's own update, and {topology} has none",
            registry.CENTER_HINT,
        )
    rows = _rows(who, peers)
    chosen = _most(rule, peers // 4, rows, centered=not who.rolling) if f is None else f
    rule.check(chosen, rows, centered=not who.rolling)
    # in gossip rounds a peer continues with any number of updates
    needs = rule.at_least(chosen) if who.rolling else 1
    found: dict[str, Any] = {
        "name": rule.name,
        "f": chosen,
        "needs": needs,
        "for_one": _peers_for_one(rule, who),
        "served": topology if who.rolling else "",
        "asks_loss": rule.needs_trainer,
        "remembers": "previous" in rule.needs,
    }
    try:
        rule.check_model_differences()
    except ConfigError as error:
        found["no_differences"] = str(error), error.hint
    return found


def check_attacks(words: Sequence[str], rule: dict[str, Any]) -> None:
    """Check faults with an attack that is a user's function. Load the file of the function.

    Args:
        words: The faults, as the user has typed them.
        rule: Result of ``describe``.

    Raises: ConfigError, BadFault: A function cannot be loaded, or the attack cannot be carried out
        in this run.
    """
    for fault in parse(words):
        assert isinstance(fault, ByzantineFault)
        attack = kind_of(fault.attack)
        checked_strength(attack, fault.strength)
        if attack.refusal:
            raise BadFault(f"fault {fault}: {attack.refusal}")
        asks_loss = rule["name"] if rule["asks_loss"] else ""
        check_attack(fault, attack, served=rule["served"], asks_loss=asks_loss)


def _rows(who: topologies.Topology, peers: int) -> int:
    """Return the smallest number of updates that any of the peers aggregates."""
    plan = who(topologies.Roster(tuple(range(peers))), 0, 0)
    if plan.pushes is None:
        return peers
    return min(1 + len(plan.sources(peer)) for peer in range(peers))


def _peers_for_one(rule: registry.BoundRule, who: topologies.Topology) -> int:
    """Return the smallest number of peers with which f is 1 by default; 0 if the rule tolerates no
    Byzantine peer."""
    if not rule.robust:
        return 0
    for peers in range(4, PEERS_FOR_ONE_MAX + 1):
        if _most(rule, 1, _rows(who, peers), centered=not who.rolling):
            return peers
    return 0


def _most(rule: registry.BoundRule, highest: int, rows: int, *, centered: bool) -> int:
    """Return the largest f, at most ``highest``, that the rule tolerates with this number of
    updates (``rows``); 0 if there is none. With a server it must also tolerate f with one update
    fewer: otherwise the run would end with the first peer that is lost."""
    for f in range(highest, 0, -1):
        with contextlib.suppress(ConfigError):
            rule.check(f, rows, centered=centered)
            if not centered:
                rule.check(f, rows - 1)
            return f
    return 0


if __name__ == "__main__":
    print(json.dumps(describe_or_refuse(*json.loads(sys.argv[1]))))
