"""Fixed fleets for streams: `12+10` nodes, or as many as a load needs."""

from __future__ import annotations

import re
from math import inf, isfinite

from rollmux_env.cluster.demand import nodes_asked
from rollmux_env.errors import InputError
from rollmux_env.keys.job import Job
from rollmux_env.scenario import Scenario, change_scenario, dump_cluster

_FORM = "is neither numbers of nodes, as in 12+10, nor load=NUMBER"
SHORT = 3  # number of mean jobs that a stream with a steady load lasts at least


def with_fleet(scenario: Scenario, fleet: str) -> Scenario:
    """Return the scenario on a fixed fleet: `max_nodes` of every pool is set.

    Args:
        scenario: Scenario with the jobs.
        fleet: Nodes of each pool in the scenario's order, as in `12+10`, or `load=1.6` for as many as `nodes_at_load` says.

    Raises:
        InputError: If the text has another form, there are more or fewer pools, or a job is wider than the fleet.
    """
    label, pools = f"--fleet {fleet}", scenario.cluster.pools
    key, equals, number = fleet.partition("=")
    if equals and key == "load":
        nodes = nodes_at_load(scenario, _load(label, number))
    else:
        if not re.fullmatch(r"[0-9]+(\+[0-9]+)*", fleet):
            raise InputError(f"{label}: {_FORM}")
        counts = [int(count) for count in fleet.split("+")]
        if len(counts) != len(pools):
            raise InputError(f"{label}: must be a number of nodes for each pool of the cluster: {' + '.join(pools)}")
        nodes = dict(zip(pools, counts, strict=True))
    sized = {name: pool.model_copy(update={"max_nodes": nodes[name]}) for name, pool in pools.items()}
    return change_scenario(scenario, dump_cluster(scenario.cluster.with_pools(sized)), label)


def _load(label: str, text: str) -> float:
    try:
        load = float(text)
    except ValueError:
        raise InputError(f"{label}: {_FORM}") from None
    if not (isfinite(load) and load > 0):
        raise InputError(f"{label}: the load must be above 0")
    return load


def nodes_at_load(scenario: Scenario, load: float) -> dict[str, int]:
    """Return the nodes of each pool on which a stream is a load.

    The load is 1 where the nodes are as many as the jobs, each alone, would hold on average between the first and the last arrival.
    Nodes are rounded to the nearest whole number, and are at least what the widest job asks for.

    Args:
        scenario: Scenario with the jobs.
        load: Load, above 0.

    Raises:
        InputError: If all jobs arrive at once, or the load is too small for a finite number of nodes.
    """
    if _span_s(scenario) <= 0:
        raise InputError(f"--fleet load={load:g}: all jobs arrive at once, so there is no load; give numbers of nodes")
    nodes = {}
    for name, mean in _held_alone(scenario).items():
        if not isfinite(mean / load):
            raise InputError(f"--fleet load={load:g}: is too small")
        nodes[name] = max(1, round(mean / load), *(nodes_asked(job, scenario.cluster)[name] for job in scenario.jobs))
    return nodes


def load_of(scenario: Scenario) -> float | None:
    """Return the load of a stream on its fleet in the scarcest pool, or None if it says little, as of `is_short`."""
    pools = scenario.cluster.pools
    if is_short(scenario) or any(pool.max_nodes is None for pool in pools.values()):
        return None
    return max(mean / (pools[name].max_nodes or inf) for name, mean in _held_alone(scenario).items())


def is_short(scenario: Scenario) -> bool:
    """Return whether jobs arrive over less than `SHORT` times the hours of a mean job alone, so that no load is steady."""
    return _span_s(scenario) < SHORT * sum(map(alone_s, scenario.jobs)) / len(scenario.jobs)


def _span_s(scenario: Scenario) -> float:
    arrivals_s = [job.arrival_s for job in scenario.jobs]
    return max(arrivals_s) - min(arrivals_s)


def _held_alone(scenario: Scenario) -> dict[str, float]:
    """Return the nodes of each pool that the jobs, each alone, would hold on average between the first and the last arrival."""
    asked = [(nodes_asked(job, scenario.cluster), alone_s(job)) for job in scenario.jobs]
    return {name: sum(counts[name] * seconds for counts, seconds in asked) / _span_s(scenario) for name in scenario.cluster.pools}


def alone_s(job: Job) -> float:
    """Return the time that a job takes alone, in seconds."""
    return job.duration_s if job.iterations is None else job.iterations * job.solo_s  # type: ignore[return-value]


def fleet_words(scenarios: list[Scenario]) -> str:
    """Return the nodes of the fleets of several streams, as in `12 + 10` or `14 to 16 + 10`."""
    counts = [[pool.max_nodes or 0 for pool in scenario.cluster.pools.values()] for scenario in scenarios]
    ranges = [(min(own), max(own)) for own in zip(*counts, strict=True)]
    return " + ".join(f"{low} to {high}" if low < high else str(low) for low, high in ranges)
