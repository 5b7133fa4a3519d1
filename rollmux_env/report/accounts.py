"""The table of what users and priorities were charged, and how long their jobs waited."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from rollmux_env.bench.harness import Result
from rollmux_env.bench.intervals import mean_interval
from rollmux_env.keys.job import Job
from rollmux_env.replay.metrics import Metrics
from rollmux_env.report.tables import heading, make_table
from rollmux_env.scenario import Scenario

_KEYS: dict[str, tuple[Callable[[Metrics], Mapping[str, float] | None], Callable[[Job], str]]] = {
    "user": (lambda figures: figures.usd_by_user, lambda job: job.user),
    "priority": (lambda figures: figures.usd_by_priority, lambda job: str(job.priority)),
}


def accounts_table(results: Sequence[Result], scenario: Scenario) -> RenderableType:
    """`bench` of a scenario with users or priorities: a line for each of them under each policy, the mean over the seeds."""
    table = make_table("policy", "jobs of", "jobs", "cost $", "mean wait h", "over budget", left=2)
    by_policy: dict[str, list[Metrics]] = {}
    for result in results:
        by_policy.setdefault(result.spec, []).append(result.outcome.metrics)
    for policy, runs in by_policy.items():
        for kind, (charged, of) in _KEYS.items():
            for name in dict.fromkeys(of(job) for job in scenario.jobs):
                mine = [job.id for job in scenario.jobs if of(job) == name]
                usd = mean_interval([(charged(run) or {})[name] for run in runs])
                waits_s = [run.wait_s.get(job_id, 0.0) for run in runs for job_id in mine]
                spent = np.mean([len({*mine} & {*(run.over_budget or ())}) for run in runs])
                who = f"{kind} {name}" if name else "no user"
                table.add_row(policy, who, str(len(mine)), usd.text(0), f"{np.mean(waits_s) / 3600:.2f}", f"{spent:.3g}")
    note = "a group's dollars are charged to its members evenly; mean wait: of all these jobs, those included that did not wait"
    return Group(heading("Users and priorities"), table, Text(note, style="dim"))
