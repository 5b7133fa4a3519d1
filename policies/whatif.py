"""What-if questions about a scenario: a replay as the file says, and one with a change."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from policies.experiments import bench
from rollmux_env.errors import InputError
from rollmux_env.files import find_file
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.job import Job
from rollmux_env.reading import checked, read_mapping
from rollmux_env.replay.whatif import Projection, WhatIf, forecast_of
from rollmux_env.scenario import Scenario, change_scenario, dump_cluster, parse_scenario
from rollmux_env.suggestions import did_you_mean
from rollmux_env.validation_errors import not_one_of

_ASSUMED = "steady periods at the worst case, as in `rollmux bench`", "jobs arrive as the scenario says"


@dataclass(frozen=True)
class Change:
    """The changes that a question asks about.

    Attributes:
        nodes: Number of nodes by pool, as in `12`, or the difference, as in `+2` or `-1`.
        policy: Placement policy, or None for the present one.
        order: Order of the waiting jobs, a value of the policy's option `order`, or None for the present one.
        without: Identifiers of jobs that are not there.
        arriving: Further jobs; their `arrival_s` count from the present.
    """

    nodes: Mapping[str, str] = field(default_factory=dict)
    policy: str | None = None
    order: str | None = None
    without: tuple[str, ...] = ()
    arriving: tuple[Job, ...] = ()

    def policy_after(self, present: str) -> str:
        """Return the name and options of the policy after the change.

        Args:
            present: Name and options of the present policy.
        """
        name, *options = (self.policy or present).split(",")
        if self.order is not None:
            former = ("order=",) if self.order == "fair" else ("order=", "held_h=")  # `held_h` goes with `fair` alone
            options = [f"order={self.order}", *(option for option in options if not option.startswith(former))]
        return ",".join((name, *options))

    def nodes_after(self, cluster: Cluster) -> dict[str, int]:
        """Return the number of nodes of each pool that changes.

        Raises:
            InputError: If there is no such pool, the text is no number, or an unlimited pool shall have more nodes; one line.
        """
        after = {}
        for name, text in self.nodes.items():
            label = f"--nodes {name}={text}"
            if name not in cluster.pools:
                raise InputError(f"{label}: the pool {not_one_of(name, [*cluster.pools])}")
            if not re.fullmatch(r"[+-]?[0-9]{1,6}", text):
                raise InputError(f"{label}: must be a number of nodes, as in 12, or a difference, as in +2 or -1")
            before = cluster.pools[name].max_nodes
            if text[0] in "+-" and before is None:
                raise InputError(f"{label}: the pool has no max_nodes, so there are always enough; give a number, as in {name}=12")
            after[name] = int(text) + (before if text[0] in "+-" and before is not None else 0)
            if after[name] < 1:
                raise InputError(f"{label}: leaves {after[name]} nodes; there must be at least 1")
        return after

    def words(self, cluster: Cluster, present: str, after: str) -> tuple[str, ...]:
        """Return the changes in words.

        Args:
            cluster: Cluster before the change.
            present: Name and options of the present policy.
            after: Name and options of the policy after the change.
        """
        words = []
        for name, nodes in self.nodes_after(cluster).items():
            before = cluster.pools[name].max_nodes
            words.append(f"{name}: {nodes} nodes instead of {'as many as jobs need' if before is None else before}")
        if after != present:
            words.append(f"policy {after} instead of {present}")
        words += [f"without {job_id}" for job_id in self.without]
        if self.arriving:
            words.append(f"also arriving: {', '.join(job.id for job in self.arriving)}")
        return tuple(words)

    def check_jobs(self, present: Collection[str]) -> None:
        """Check that the jobs to be left out are present.

        Args:
            present: Identifiers of the present jobs.

        Raises:
            InputError: If one is not; one line.
        """
        for job_id in self.without:
            if job_id not in present:
                raise InputError(f"--without {job_id}: there is no such job{did_you_mean(job_id, present)}")


def read_arriving(file: str | Path, cluster: Cluster) -> tuple[Job, ...]:
    """Read the jobs of a scenario file for another cluster. The file's own `cluster`, if it has one, does not count.

    Args:
        file: Scenario file, or name of an example.
        cluster: Cluster at which the jobs arrive.

    Raises:
        InputError: If the file cannot be read, or its jobs do not fit the cluster; one line.
    """
    path = find_file(file)
    return parse_scenario(read_mapping(path) | {"cluster": dump_cluster(cluster)}, str(file), path.parent).jobs


def arriving_jobs(entries: list[dict[str, Any]], cluster: Cluster) -> tuple[Job, ...]:
    """Return the jobs that the entries of a scenario file describe. No file is read: each job states its seconds.

    Args:
        entries: Entries of the jobs, with the file's defaults.
        cluster: Cluster at which the jobs arrive.

    Raises:
        InputError: If an entry is invalid; one line.
    """
    data = {"version": 1, "cluster": dump_cluster(cluster), "jobs": entries}
    return checked(Scenario, data, "arrives", lambda data: data).jobs if entries else ()


def _change_scenario(scenario: Scenario, change: Change) -> Scenario:
    """Return a scenario with other nodes and jobs.

    Raises:
        InputError: If a change is not possible; one line.
    """
    change.check_jobs([job.id for job in scenario.jobs])
    pools = {
        name: scenario.cluster.pools[name].model_copy(update={"max_nodes": nodes})
        for name, nodes in change.nodes_after(scenario.cluster).items()
    }
    jobs = (*(job for job in scenario.jobs if job.id not in change.without), *change.arriving)
    return change_scenario(scenario, dump_cluster(scenario.cluster.with_pools(pools)), "the changed scenario", jobs)


def what_if(target: str, scenario: Scenario, present: str, change: Change) -> WhatIf:
    """Replay a scenario as it is and with a change.

    Each replay is that of `rollmux bench`.

    Args:
        target: Name of the scenario.
        scenario: The scenario.
        present: Name and options of the policy before the change.
        change: The change.

    Raises:
        InputError: If a policy or a change is not possible; one line.
        PlanError: If a policy breaks an invariant.
    """
    changed = _change_scenario(scenario, change)
    policy = change.policy_after(present)
    words = change.words(scenario.cluster, present, policy)
    return WhatIf(target, words, _ASSUMED, projection(scenario, present), projection(changed, policy))


def projection(scenario: Scenario, policy: str) -> Projection:
    """Return the course of a scenario's jobs under a policy."""
    benched = bench(scenario, [policy])
    weights = {job.id: job.weight for job in scenario.jobs}
    jobs = tuple(forecast_of(job, weights[job.job]) for job in benched.runs[0].jobs)
    return Projection(policy, jobs, benched.as_dict()["runs"][0])
