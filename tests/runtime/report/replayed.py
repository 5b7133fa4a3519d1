"""A record of a run whose figures are known: an event replay, written down as a run writes down what happens."""

from __future__ import annotations

from collections import defaultdict

from policies.dispatch import make_dispatch
from policies.registry import make_runnable
from rollmux_env.cluster.events import Admitted, Progressed
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.replay.run import PhaseRun
from rollmux_env.scenario import Scenario, parse_scenario
from runtime.journal.facts import (
    IterationSlice,
    JobProfiled,
    NodeShareSpan,
    PhaseSlice,
    RunEnded,
    RunStarted,
    SoloIterationSlice,
    SyncSlice,
)
from runtime.journal.record import RunRecord
from runtime.machine import Node

JOB = {"arrival_s": 0, "iterations": 20, "slo": 1.5, "rollout": {"worst_case_s": 10}, "training": {"worst_case_s": 10}}
POOL = {"gpus_per_node": 1, "usd_per_gpu_hour": 1}


def scenario_of(*jobs: dict[str, object], max_nodes: int | None = None, **cluster: object) -> Scenario:
    pool = POOL | ({} if max_nodes is None else {"max_nodes": max_nodes})
    cluster = {"rollout": pool, "training": pool, **cluster}
    return parse_scenario({"version": 1, "cluster": cluster, "jobs": [JOB | job for job in jobs]})


def name_of(phase: PhaseRun, node: int) -> str:
    return f"{phase.pool}-{phase.group}-{node}"


def whole_phases(phases: list[PhaseRun]) -> list[tuple[PhaseRun, tuple[NodeShareSpan, ...]]]:
    """Phases in order of their end, each rollout as one with what it held of its nodes, where that was not all all the time."""
    parts: dict[tuple[str, int, bool], list[PhaseRun]] = defaultdict(list)
    for phase in phases:
        parts[phase.job_id, phase.iteration, phase.phase == "training"].append(phase)
    whole = []
    for own in parts.values():
        own.sort(key=lambda phase: phase.start_s)
        nodes = tuple(sorted({node for phase in own for node in phase.nodes}))
        one = own[0]._replace(nodes=nodes, end_s=max(phase.end_s for phase in own))
        alike = len(own) == 1 and own[0].share == 1
        spans = (
            ()
            if alike
            else tuple(
                NodeShareSpan(name_of(phase, node), phase.start_s, phase.end_s, phase.share, phase.phase == "tail")
                for phase in own
                for node in phase.nodes
            )
        )
        whole.append((one, spans))
    return sorted(whole, key=lambda pair: pair[0].end_s)


def recorded(scenario: Scenario, policy: str = "rollmux", dispatch: str = "round-robin", alone: bool = False) -> RunRecord:
    """The replay as a record; with `alone`, the iterations of each job's own replay as those alone."""
    run = replay_events(scenario, make_runnable(policy), make_dispatch(dispatch), 0, Watch(keep_phases=True))
    jobs = {job.id: job for job in scenario.jobs}
    at_s = {event.job_id: event.at_s for event in run.log if isinstance(event, Admitted)}  # when each was last done with something
    cold: dict[tuple[str, str], bool] = defaultdict(lambda: True)
    slices: list[PhaseSlice] = []
    syncs: list[SyncSlice] = []
    iterations: list[IterationSlice] = []
    began_s = dict(at_s)
    for phase, spans in whole_phases(run.phases):
        key = (phase.job_id, phase.phase)
        names = tuple(name_of(phase, node) for node in phase.nodes)
        run_s = phase.start_s + phase.switch_s
        slices.append(
            PhaseSlice(
                job_id=phase.job_id,
                phase=phase.phase,  # type: ignore[arg-type]
                profile=False,
                iteration=phase.iteration,
                group=phase.group,
                pool=phase.pool,  # type: ignore[arg-type]
                numbers=phase.nodes,
                nodes=names,
                asked_s=at_s[phase.job_id],
                start_s=phase.start_s,
                end_s=phase.end_s,
                run_s=run_s,
                done_s=phase.end_s,
                permit_s=0.001,
                load_s=phase.switch_s,
                cold=cold[key],
                stages={"weights": phase.switch_s / 2},
                spans=spans,
            )
        )
        cold[key] = False
        at_s[phase.job_id] = phase.end_s
        if phase.phase == "training":
            at_s[phase.job_id] += (sync_s := jobs[phase.job_id].sync_s)
            end_s = at_s[phase.job_id]
            if sync_s:
                syncs.append(SyncSlice(phase.job_id, False, phase.iteration, (), end_s - sync_s, end_s, ("other",)))
            reward = {"reward": phase.iteration / 10}
            iterations.append(IterationSlice(phase.job_id, phase.iteration, began_s[phase.job_id], end_s, reward))
            began_s[phase.job_id] = end_s
    last_s = max(iteration.end_s for iteration in iterations)
    node = Node("rollout-0", "rollout", "here", (0,), (), 8.0, "cpu")
    solos = [recorded(scenario.model_copy(update={"jobs": (job,)}), "solo") for job in scenario.jobs] if alone else []
    return RunRecord(
        RunStarted(0.0, 1e9, policy, dispatch, scenario.cluster, (node,), {"python": "3"}, 0),
        log=tuple(event for event in run.log if not isinstance(event, Progressed)),
        profiled=tuple(JobProfiled(0.0, job, True) for job in scenario.jobs),
        phases=tuple(slices),
        syncs=tuple(syncs),
        iterations=tuple(iterations),
        ended=RunEnded(last_s, "done"),
        solo=tuple(SoloIterationSlice(one.job_id, one.number, one.start_s, one.end_s) for own in solos for one in own.iterations),
    )
