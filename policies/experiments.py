"""Experiments: the comparisons behind `rollmux.bench`, `rollmux.replay` and the command `rollmux bench`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from policies.replaying import Fidelity, OwnPolicy, Replaying, contenders, make_contender, replay_tasks
from policies.targets import Target, apply_fleet, find_streams
from rollmux_env.bench.harness import Result, run_tasks
from rollmux_env.bench.processes import Report
from rollmux_env.errors import InputError
from rollmux_env.report.bench_results import BenchResult, RunResult, bench_result
from rollmux_env.scenario import Scenario
from rollmux_env.validation_errors import describe
from rollmux_env.workloads.own import name_of

Run = Callable[[Callable[[Report], Iterable[tuple[int, Result]]], Sequence[str]], list[Result]]
"""Function that gathers the results of tasks. It gets a function that starts them and reports progress, and their labels."""


def bench(
    target: Target,
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
    keep_phases: bool = False,
    bound: bool = False,
    check: bool = False,
    workers: int = 1,
    limit_s: float | None = None,
    run: Run | None = None,
) -> BenchResult:
    """Compare placement policies on a stream.

    Args:
        target: Stream to replay. It is the path of a scenario file, the name of an example or of a workload, `module:name` of a
            workload of your own, a pattern of files, several files, a `Scenario`, a function from seed to scenario, or an object
            with such a function as `scenario`.
        policies: Policies to compare, each a name or a class of your own.
        seeds: Number of seeds, starting at 0, or the seeds themselves. None for one seed, or with several files for one replicate
            per file.
        baseline: Name of the policy that savings are relative to, or None for the first one.
        settings: Options of the workload, such as `{"jobs": 50, "stays": "fixed"}`.
        fleet: Number of nodes of each pool in the scenario's order, such as `12+10`. `load=1.6` computes it from the stream: 1.6
            times as many nodes would be needed to run every job alone on arrival, on average
            (`rollmux_env.workloads.fleets.nodes_at_load`). None for the scenario's own `max_nodes`.
        fidelity: `fluid` to simulate steady periods, `event` to simulate every phase. None means `event` if a dispatch policy, a
            rollout policy or failures are given, else `fluid`.
        dispatch: Name of the dispatch policy of an event replay, or None for `round-robin`.
        rollout_policy: Name of the rollout policy for jobs with a model, or None for `plain`.
        failures: Failures in an event replay, such as `job_h=24,every=10`: a job dies every 24 hours on average, and writes a
            checkpoint every 10 iterations (docs/reference/failures.md). None for no failures.
        most_phases: Largest number of phases in an event replay, or None for 20 million.
        keep_phases: Whether the result has every phase of an event replay, for `phases`.
        bound: Whether the result has a lower bound of the stream's dollars. No policy that places jobs on arrival and keeps every
            SLO costs less.
        check: Whether to check the invariants after every event of the replay.
        workers: Number of processes in which replays run in parallel.
        limit_s: Longest computing time of one replay, in seconds, or None for no limit. With a limit, each replay runs in a
            separate process.
        run: Function that runs the replays and may show their progress (see `Run` in `policies.experiments`), or None to run them
            without a display.

    Raises:
        InputError: An argument is not valid, as for the command `rollmux bench`.
        PlanError: A policy returned a plan that breaks an invariant, or a workload of yours raised an exception.
    """
    replaying = Replaying(fidelity, dispatch, rollout_policy, failures, check, most_phases, keep_phases, bound)
    comparison = Comparison(policies, baseline, replaying, workers, limit_s, run)
    streams, texts = find_streams(target), texts_of(settings)
    return comparison.compare_on(streams.name, lambda seed: streams.scenario(seed, texts), streams.seeds(seeds), texts, fleet)


class Comparison:
    """A comparison of policies, which runs on any number of streams.

    Args:
        policies: Policies to compare, as for `bench`.
        baseline: Name of the policy that savings are relative to, or None for the first one.
        replaying: Options of the replays.
        workers: Number of processes.
        limit_s: Longest computing time of one replay, in seconds, or None for no limit.
        run: Function that runs the replays, as for `bench`, or None to run them without a display.

    Raises:
        InputError: There is no policy, one is not valid, or the baseline is none of them.
    """

    def __init__(
        self,
        policies: Sequence[str | OwnPolicy],
        baseline: str | None,
        replaying: Replaying,
        workers: int,
        limit_s: float | None,
        run: Run | None,
    ) -> None:
        self._replaying, self._workers, self._limit_s, self._gather = replaying, workers, limit_s, run or _gather_silently
        named = _by_name(policies)
        self._make = partial(make_contender, {name: policy for name, policy in named.items() if not isinstance(policy, str)})
        self._names, self._left_out = contenders([*named], self._make, replaying)
        self._baseline = baseline or self._names[0]
        if self._baseline not in self._names:
            raise InputError(f"--baseline: {baseline} is not among the policies {', '.join(self._names)}")

    def compare_on(
        self, name: str, stream: Callable[[int], Scenario], seeds: Iterable[int], options: Mapping[str, str], fleet: str | None
    ) -> BenchResult:
        """Compare the policies on a stream.

        Args:
            name: Name of the stream in the result.
            stream: Function from seed to scenario.
            seeds: Seeds of the replays.
            options: Options of the workload in the result, as text.
            fleet: Number of nodes of each pool, as for `bench`.
        """
        scenarios = apply_fleet({seed: stream(seed) for seed in seeds}, fleet)
        tasks, phases = replay_tasks(self._names, scenarios, self._replaying)
        labels = [f"{task.spec}, seed {task.seed}" for task in tasks]
        results = self._gather(lambda report: run_tasks(self._make, tasks, self._workers, report, self._limit_s), labels)
        metadata = {"scenario": name, "settings": dict(options), "fleet": fleet, "left_out": self._left_out, **phases}
        return bench_result(results, self._baseline, {**metadata, "failures": self._replaying.failures}, scenarios)


def replay(
    target: Target,
    policy: str | OwnPolicy = "rollmux",
    seed: int = 0,
    *,
    settings: Mapping[str, Any] | None = None,
    fleet: str | None = None,
    fidelity: Fidelity | None = None,
    dispatch: str | None = None,
    rollout_policy: str | None = None,
    failures: str | None = None,
    most_phases: int | None = None,
    check: bool = False,
) -> RunResult:
    """Replay one stream under one placement policy. Arguments and errors are those of `bench`, with one policy and one seed."""
    benched = bench(
        target,
        [policy],
        [seed],
        settings=settings,
        fleet=fleet,
        fidelity=fidelity,
        dispatch=dispatch,
        rollout_policy=rollout_policy,
        failures=failures,
        most_phases=most_phases,
        check=check,
    )
    return benched.runs[0]


def _by_name(policies: Sequence[str | OwnPolicy]) -> dict[str, str | OwnPolicy]:
    """Return policies by name, each once.

    Raises:
        InputError: There is no policy, one is neither a name nor can be called, or different ones have the same name.
    """
    if isinstance(policies, str) or callable(policies):
        raise InputError(f"policies: must be a list, as in [{repr(policies) if isinstance(policies, str) else name_of(policies)}]")
    named: dict[str, str | OwnPolicy] = {}
    for policy in policies:
        if not (isinstance(policy, str) or callable(policy)):
            raise InputError(f"policies: must be names or classes, not an object of {type(policy).__name__}")
        name = name_of(policy)
        if named.setdefault(name, policy) != policy:
            raise InputError(f"policies: two are called {name}, by which results tell them apart; rename a class or function")
    if not named:
        raise InputError("policies: must be at least one")
    return named


def _gather_silently(report: Callable[[Report], Iterable[tuple[int, Result]]], names: Sequence[str]) -> list[Result]:
    return [result for _, result in sorted(report(lambda *progress: None), key=lambda one: one[0])]


def texts_of(settings: Mapping[str, Any] | None) -> dict[str, str]:
    """Return options of a workload as text, in which a value that is no text is JSON."""
    return {
        key: str(value) if isinstance(value, str | Path) else json.dumps(value, default=_plain)
        for key, value in (settings or {}).items()
    }


def _plain(value: object) -> Any:
    """Return a number or an array of NumPy as plain values.

    Raises:
        InputError: The value is neither.
    """
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise InputError(f"settings: must be texts, numbers, lists or mappings, not {describe(value)}")
