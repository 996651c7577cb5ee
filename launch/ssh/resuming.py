"""Resume of a pipeline with checkpoints in separate folders of hosts. Each host has some of the
layers, and all hosts must resume from the same step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gossip.config import PipelineConfig, Resolved
from gossip.errors import ConfigError
from gossip.run import OTHERS, SavedStage, shown, stage_parts

from .hostcheck import HostReport
from .hostlist import Host
from .survey import HostSurvey

ABOUT = "resume"
AUTO = "auto"
COPY = "collect all parts, such as with rsync -a OTHER:FOLDER/ FOLDER/, and copy them to the host"


def put_off(resolved: Resolved) -> tuple[Resolved, str]:
    """Return the settings of a pipeline without ``resume``, and ``resume``, because only the hosts
    can resolve it.

    Raises: ConfigError: The folder cannot be determined before the script runs.
    """
    config = resolved.config
    if config.pipeline is None or not config.resume:
        return resolved, ""
    if config.resume == AUTO:
        raise ConfigError(
            "--resume auto: the folder of the checkpoints is unknown before the script runs, but "
            "all hosts have to resume from the same step",
            "--resume FOLDER, as in peer.steps(N, save=FOLDER), or the name of the last run",
        )
    return resolved.with_values(resolved.sources["resume"], resume=""), config.resume


def from_hosts(
    resolved: Resolved, said: str, hosts: Sequence[Host], found: HostSurvey
) -> tuple[Resolved, dict[str, str]]:
    """Return the settings with the step from which all hosts resume, and the setting ``resume`` of
    each host. Add a line to the report."""
    plan, report = resolved.config.pipeline, found.report
    assert plan is not None, "only a pipeline resumes from parts"
    if report.failed:
        return resolved, {}
    parts = parts_of(found.saved)
    where, asked = stage_parts.where_and_step(said)
    steps = stage_parts.whole_steps([part for own in parts.values() for part in own])
    step = max(steps, default=None) if asked is None else asked
    if step is None or step not in steps:
        report.add("fail", ABOUT, *_no_step(where, asked, list(steps), found.saved))
        return resolved, {}
    whole = steps[step]
    try:
        stage_parts.check_model(whole, plan.model, shown(where))
    except ConfigError as error:
        report.add("fail", ABOUT, str(error), error.hint or "")
        return resolved, {}
    able = {
        name: [part for part in own if (part.step, part.cut) == (step, whole[0].cut)]
        for name, own in parts.items()
    }
    report.add("ok", ABOUT, f"step {step} of {shown(where)}: {_who_has(able)}")
    _judge(report, plan, hosts, able)
    resumes = {name: f"{said['folder']}@{step}{OTHERS}" for name, said in found.saved.items()}
    return resolved.with_values("the hosts", resume=f"{where}@{step}"), resumes


def parts_of(saved: Mapping[str, Mapping[str, Any]]) -> dict[str, list[SavedStage]]:
    """Return the saved stages that each host has reported."""
    return {
        name: [part for each in said["parts"] if (part := SavedStage.from_json(each)) is not None]
        for name, said in saved.items()
    }


def _judge(
    report: HostReport,
    plan: PipelineConfig,
    hosts: Sequence[Host],
    able: Mapping[str, Sequence[SavedStage]],
) -> None:
    """Report hosts that lack the layers of their peers' stage. If another host of the stage has the
    layers, the peers will receive its state. Otherwise the check fails."""
    for number, stage in enumerate(plan.stages):
        where = {peer: host.name for host in hosts for peer in host.numbers if peer in stage.peers}
        have = [name for name in where.values() if stage_parts.covering(able[name], stage.layers)]
        lacking = [name for name in where.values() if name not in have]
        first, last = stage.layers
        for name in dict.fromkeys(lacking):
            if have:
                report.add("ok", name, f"copies the state of stage {number} from {have[0]}")
            else:
                has = stage_parts.layers_in_words(able[name])
                report.add(
                    "fail",
                    name,
                    f"lacks layers {first}-{last} of stage {number}: it has {has}",
                    COPY,
                )


def _who_has(able: Mapping[str, Sequence[SavedStage]]) -> str:
    return "; ".join(
        [
            f"{name} has layers {stage_parts.layers_in_words(own)}"
            for name, own in able.items()
            if own
        ]
    )


def _no_step(
    where: str, asked: int | None, steps: Sequence[int], saved: Mapping[str, Mapping[str, Any]]
) -> tuple[str, str]:
    """Return an error message and a hint for the case that the requested step is not complete, or
    that no step is."""
    if asked is not None:
        return (
            f"no set of stages in {shown(where)} has the whole model of step {asked}",
            f"complete steps: {', '.join(map(str, steps)) or 'none'}",
        )
    told = []
    for name, said in saved.items():
        has = ", ".join(
            [f"stage {part.stage} @{part.step}" for part in parts_of({name: said})[name]]
        )
        told.append(f"{name}: {said['error'] or has or 'nothing in ' + str(said['folder'])}")
    return (
        f"no step of {shown(where)} is complete: {shown('; '.join(told))}",
        "use the folder of the checkpoints, or the name of a run that has saved some",
    )
