"""Sweeps: comparisons of policies at every combination of values of some keys, behind `rollmux.sweep` and `bench --sweep`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from policies.experiments import Comparison, Run, texts_of
from policies.replaying import Fidelity, OwnPolicy, Replaying
from policies.targets import ResolvedTarget, Target, find_streams
from rollmux_env.command_options import parse_pairs, parse_value
from rollmux_env.errors import InputError
from rollmux_env.files import find_file
from rollmux_env.keys.cluster import Cluster
from rollmux_env.reading import read_mapping
from rollmux_env.report.bench_results import SWEEP_SCHEMA, SweepPoint, SweepResult
from rollmux_env.scenario import Scenario, change_scenario, dump_cluster, parse_scenario
from rollmux_env.suggestions import did_you_mean
from rollmux_env.workloads import WORKLOADS


def sweep(
    target: Target,
    keys: Mapping[str, Sequence[Any]],
    policies: Sequence[str | OwnPolicy] = ("solo", "rollmux"),
    seeds: int | Iterable[int] | None = None,
    *,
    baseline: str | None = None,
    settings: Mapping[str, Any] | None = None,
    fleet: str | None = None,
    fidelity: Fidelity | None = None,
    dispatch: str | None = None,
    rollout_policy: str | None = None,
    failures: str | None = None,
    most_phases: int | None = None,
    bound: bool = False,
    check: bool = False,
    workers: int = 1,
    limit_s: float | None = None,
    run: Run | None = None,
) -> SweepResult:
    """Compare placement policies on a stream at every combination of values of some keys.

    A key is `fleet`, an option of the workload, such as `slo`, or else a key of the cluster, such as `max_group_size` or
    `rollout.max_nodes`. A number for `slo` applies to all jobs.

    Args:
        target: Stream to replay, as for `bench`.
        keys: Values of each key, as in `{"slo": [1.2, 1.5, 2]}`.
        policies: Policies to compare, as for `bench`.
        seeds: Number of seeds or the seeds themselves, as for `bench`.
        baseline: Name of the policy that savings are relative to, or None for the first one.
        settings: Options of the workload that stay fixed.
        fleet: Nodes that there are, as for `bench`.
        fidelity: Kind of replay, as for `bench`.
        dispatch: Name of the dispatch policy, as for `bench`.
        rollout_policy: Name of the rollout policy, as for `bench`.
        failures: Rates of failures, as for `bench`.
        most_phases: Largest number of phases in an event replay, as for `bench`.
        bound: Whether results have a lower bound of the stream's dollars, as for `bench`.
        check: Whether to assert the invariants after every instant.
        workers: Number of processes.
        limit_s: Longest that one replay may take, in seconds, or None for no limit.
        run: Function that runs the tasks and gathers their results, as for `bench`.

    Raises:
        InputError: Neither the workload nor the cluster has such a key, or an argument is not valid.
        PlanError: A policy returned a plan that breaks an invariant.
    """
    keys = {key: [value.tolist() if isinstance(value, np.generic) else value for value in values] for key, values in keys.items()}
    _check_keys(keys, settings or {}, fleet)
    replaying = Replaying(fidelity, dispatch, rollout_policy, failures, check, most_phases, bound=bound)
    comparison = Comparison(policies, baseline, replaying, workers, limit_s, run)
    streams, points = find_streams(target), []
    numbers = streams.seeds(seeds)
    for combination in product(*keys.values()):
        swept = texts_of(dict(zip(keys, combination, strict=True)))
        own = {key: value for key, value in zip(keys, combination, strict=True) if key != "fleet"}
        options, cluster = _split(streams, own, settings or {})
        changed = partial(_scenario, streams, options, cluster)
        points.append(SweepPoint(swept, comparison.compare_on(streams.name, changed, numbers, options, swept.get("fleet", fleet))))
    return SweepResult(SWEEP_SCHEMA, tuple(keys), tuple(points))


def _check_keys(keys: Mapping[str, Sequence[Any]], settings: Mapping[str, Any], fleet: str | None) -> None:
    """Check the keys of a sweep and their values against each other and against what stays fixed.

    Raises:
        InputError: If there is no key or no value, or one is given twice; one line.
    """
    if not keys:
        raise InputError("keys: must be at least one")
    for key, values in keys.items():
        if len(set(texts_of({str(k): value for k, value in enumerate(values)}).values())) < len(values) or not values:
            raise InputError(f"--sweep {key}: give one value or more, each once")
        if key in settings:
            raise InputError(f"--sweep {key}: is an option of --set too; give it once")
        if key == "fleet" and fleet is not None:
            raise InputError("--sweep fleet: is given by --fleet too; give it once")
        if key.endswith(".max_nodes") and ("fleet" in keys or fleet is not None):
            raise InputError(f"--sweep {key}: is what a fleet says; give one of them")


def _split(streams: ResolvedTarget, swept: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the options of the workload as text, those that stay fixed included, and the changed keys of the cluster."""
    own = {key: value for key, value in swept.items() if key in streams.options}
    if isinstance(slo := own.get("slo"), int | float) and streams.source in WORKLOADS:
        own["slo"] = [slo, slo]
    return texts_of({**settings, **own}), {key: value for key, value in swept.items() if key not in own}


def _scenario(streams: ResolvedTarget, settings: Mapping[str, str], changes: Mapping[str, Any], seed: int) -> Scenario:
    """Return a stream with other values for some keys of its cluster, such as `migration_s` or `rollout.max_nodes`."""
    if not changes:
        return streams.scenario(seed, settings)
    label = "--sweep " + ", ".join(f"{key}={text}" for key, text in texts_of(changes).items())
    if (name := streams.file(seed)) is not None:
        file = find_file(name)  # read again, because some fields of its jobs derive from the cluster
        data = read_mapping(file)
        return parse_scenario(data | {"cluster": _set_keys(data["cluster"], changes, ())}, label, file.parent)
    scenario = streams.scenario(seed, settings)
    return change_scenario(scenario, _set_keys(dump_cluster(scenario.cluster), changes, streams.options), label)


def _set_keys(cluster: Mapping[str, Any], changes: Mapping[str, Any], options: Sequence[str]) -> dict[str, Any]:
    """Return a cluster of a file with changed keys.

    Args:
        cluster: Keys of the cluster.
        changes: New value of each key, whose parts are separated by points.
        options: Names of the options of the workload, for the message.
    """
    changed = deepcopy(dict(cluster))
    for key, value in changes.items():
        *path, last = key.split(".")
        inner: Any = changed
        for part in path:
            inner = inner.get(part) if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or (not path and last not in Cluster.model_fields):
            known = ["fleet", *options, *(name for name in Cluster.model_fields if name != "by_name")]
            raise InputError(f"--sweep {key}: neither an option of the workload nor a key of its cluster{did_you_mean(key, known)}")
        inner[last] = value
    return changed


def parse_sweep(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Parse texts such as `slo=1.2,1.5,2` or `slo=[1,2],[1.5,2]` into the values of each key.

    Raises:
        InputError: A text has another form.
    """
    values = {}
    for key, listed in parse_pairs("--sweep", texts, "key=value,value,..."):
        parsed = parse_value(f"[{listed}]")
        values[key] = parsed if isinstance(parsed, list) else listed.split(",")
    return values
