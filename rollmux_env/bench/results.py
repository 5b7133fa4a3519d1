"""The result of a bench: one format for Python, JSON and CSV, for any number of seeds (docs/reference/results.md)."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import Field, TypeAdapter

from rollmux_env.bench.comparison import ComparisonRow, by_policy, compare
from rollmux_env.bench.fleets import fleet_words
from rollmux_env.bench.harness import Result
from rollmux_env.bench.intervals import Mean, mean_if_known, mean_interval, ratio
from rollmux_env.errors import InputError
from rollmux_env.replay.completion import Shown
from rollmux_env.replay.metrics import Figures, JobResult
from rollmux_env.scenario import Scenario
from rollmux_env.validation_errors import not_one_of

SCHEMA: Literal[2] = 2
"""Version of the JSON format. Version 1 had different formats for one seed and for several."""
SWEEP_SCHEMA: Literal[3] = 3
"""Version of the JSON format of sweeps. Version 2 supported only one key."""

Table = Literal["runs", "jobs", "summary", "differences"]


@dataclass(frozen=True)
class RunResult:
    """One policy on one seed.

    Attributes:
        policy: Name and options of the policy.
        seed: Seed of the stream and of sampled durations.
        scenario_sha256: SHA-256 of the replayed scenario.
        figures: Figures of the whole run.
        extra: Figures that only some policies or replays have, by name; None for an unknown bound.
        jobs: Result of each job.
    """

    policy: str
    seed: int
    scenario_sha256: str
    figures: Figures
    extra: dict[str, float | None]
    jobs: tuple[JobResult, ...]


@dataclass(frozen=True)
class Difference:
    """The difference of two policies, paired by seed: the figure of `policy` minus that of `other`.

    Attributes:
        policy: Name and options of the first policy.
        other: Name and options of the second policy.
        cost_usd: Mean difference of the costs, in $.
        usd_per_work_hour: Mean difference of the dollars per work-hour.
        slowdown: Mean difference of the mean slowdowns of jobs, as observed if they were observed.
        cost_ratio: Cost of `other` over that of `policy`, or None if the latter is 0.
        mean_completion_h: Mean difference of the mean completions in hours; None where jobs do not wait.
        completion_ratio: Mean completion of `other` over that of `policy`; None where jobs do not wait.
    """

    policy: str
    other: str
    cost_usd: Mean
    usd_per_work_hour: Mean
    slowdown: Mean
    cost_ratio: Mean | None
    mean_completion_h: Shown[Mean] = None
    completion_ratio: Shown[Mean] = None


@dataclass(frozen=True)
class Timing:
    """Computing time, the only figures that differ between runs.

    Attributes:
        policy: Name and options of the policy.
        seed: Seed of the run.
        decision_ms_p50: Median time of a decision in milliseconds, or None without decisions.
        decision_ms_p99: 99th percentile of the time of a decision in milliseconds, or None without decisions.
        total_s: Time of the replay, in seconds.
    """

    policy: str
    seed: int
    decision_ms_p50: float | None
    decision_ms_p99: float | None
    total_s: float


@dataclass(frozen=True)
class BenchResult:
    """The result of a bench.

    Attributes:
        schema: Version of this format.
        scenario: File, example or workload that was replayed.
        settings: Options of the workload, as text by key.
        fidelity: Kind of replay.
        dispatch: Name of the dispatch policy of an event replay; None for a fluid one.
        rollout_policy: Name of the rollout policy of an event replay; None for a fluid one.
        failures: Failures of an event replay as given; None for a fluid one.
        seeds: Seeds of the replays.
        baseline: Policy to which savings are relative.
        summary: Each policy over all seeds.
        differences: Every two policies, paired by seed.
        runs: Each policy on each seed.
        left_out: Policies that do not support this replay, and the reason.
        timings: Computing time of each run.
        results: Measured results, for plots; not part of the JSON.
        stream: Scenario of the first seed, for plots; not part of the JSON.
        fleet: Fleet as asked for, such as `12+10` or `load=1.6`; None for the nodes of the scenario.
        fleet_nodes: Numbers of nodes of that fleet over all seeds, such as `12 + 10` or `14 to 16 + 10`.
    """

    schema: Literal[2]
    scenario: str
    settings: dict[str, str]
    fidelity: Literal["fluid", "event"]
    dispatch: str | None
    rollout_policy: str | None
    failures: str | None
    seeds: tuple[int, ...]
    baseline: str
    summary: tuple[ComparisonRow, ...]
    differences: tuple[Difference, ...]
    runs: tuple[RunResult, ...]
    left_out: dict[str, str]
    timings: tuple[Timing, ...]
    results: Annotated[tuple[Any, ...], Field(exclude=True)] = field(default=(), repr=False, compare=False)
    stream: Annotated[Any, Field(exclude=True)] = field(default=None, repr=False, compare=False)
    fleet: Shown[str] = None
    fleet_nodes: Shown[str] = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as in JSON."""
        plain: dict[str, Any] = _adapter().dump_python(self, mode="json")
        return plain

    def rows(self, table: Table = "runs") -> list[dict[str, Any]]:
        """Return a tidy table: a flat mapping per row, with nested figures named like `peak_gpus.rollout` and `saving.mean`.

        Args:
            table: Name of the table.

        Raises:
            InputError: If there is no such table.
        """
        if table not in get_args(Table):
            raise InputError(f"table: {not_one_of(table, get_args(Table))}")
        plain = self.as_dict()
        if table == "jobs":
            return [{"policy": run["policy"], "seed": run["seed"], **job} for run in plain["runs"] for job in run["jobs"]]
        if table != "runs":
            return [_flat(row) for row in plain[table]]
        sides = ("policy", "seed", "scenario_sha256")
        means = _means_of_jobs(self.runs)
        return [
            {name: run[name] for name in sides} | _flat(run["figures"]) | mean | run["extra"]
            for run, mean in zip(plain["runs"], means, strict=True)
        ]

    def to_pandas(self, table: Table = "runs") -> Any:
        """Return a tidy table as a `pandas.DataFrame`.

        Raises:
            InputError: If there is no such table, or pandas is not installed.
        """
        return _frame(self.rows(table))


def _frame(rows: list[dict[str, Any]]) -> Any:
    if importlib.util.find_spec("pandas") is None:
        raise InputError("to_pandas: needs pandas, which is not installed: pip install pandas")
    return importlib.import_module("pandas").DataFrame(rows)


def bench_result(
    results: Sequence[Result], baseline: str, how: Mapping[str, Any], scenarios: Mapping[int, Scenario]
) -> BenchResult:
    """Gather results.

    Args:
        results: Results of every contender on the same seeds.
        baseline: Policy to which savings are relative.
        how: Fields of `BenchResult` that describe what was replayed.
        scenarios: Scenario by seed.
    """
    hashes = {seed: scenario.sha256 for seed, scenario in scenarios.items()}
    nodes = fleet_words([*scenarios.values()]) if how.get("fleet") else None
    return BenchResult(
        schema=SCHEMA,
        seeds=tuple(sorted({result.seed for result in results})),
        baseline=baseline,
        summary=tuple(compare(results, baseline)),
        differences=differences(results),
        runs=tuple(_run(result, hashes[result.seed]) for result in results),
        timings=tuple(_timing(result) for result in results),
        results=tuple(results),
        stream=next(iter(scenarios.values())),
        fleet_nodes=nodes,
        **how,
    )


def differences(results: Sequence[Result]) -> tuple[Difference, ...]:
    """Return the difference of every two policies, in order of first appearance."""
    rows = []
    for (policy, own), (other, others) in combinations(by_policy(results).items(), 2):

        def between(of: Callable[[Result, Result], float], own: list[Result] = own, others: list[Result] = others) -> Mean:
            return mean_interval([of(one, two) for one, two in zip(own, others, strict=True)])

        pairs = [*zip(own, others, strict=True)]
        hours = [tuple(result.outcome.metrics.mean_completion_h for result in pair) for pair in pairs]
        rows.append(
            Difference(
                policy,
                other,
                between(lambda one, two: one.outcome.metrics.cost_usd - two.outcome.metrics.cost_usd),
                between(lambda one, two: one.outcome.metrics.usd_per_work_hour - two.outcome.metrics.usd_per_work_hour),
                between(lambda one, two: one.outcome.mean_slowdown - two.outcome.mean_slowdown),
                mean_if_known([ratio(two.outcome.metrics.cost_usd, one.outcome.metrics.cost_usd) for one, two in pairs]),
                mean_if_known([None if one is None or two is None else one - two for one, two in hours]),
                mean_if_known([None if one is None or two is None else two / one for one, two in hours]),
            )
        )
    return tuple(rows)


def draws_nothing(results: Sequence[Result]) -> bool:
    """Return whether several seeds gave the same results, as in a fluid replay of a file."""
    outcomes: dict[str, set[str]] = {}
    for result in results:
        outcomes.setdefault(result.spec, set()).add(repr((result.outcome.metrics, result.outcome.jobs)))
    return len({result.seed for result in results}) > 1 and all(len(own) == 1 for own in outcomes.values())


@cache
def _adapter() -> TypeAdapter[BenchResult]:
    return TypeAdapter(BenchResult)


def results_schema() -> dict[str, Any]:
    """Return the JSON Schema of a bench's JSON. The file `results.schema.json` of `rollmux_env.report` equals it."""
    schema = _adapter().json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"rollmux-bench-{SCHEMA}", **schema}


def _run(result: Result, scenario_sha256: str) -> RunResult:
    outcome = result.outcome
    return RunResult(result.spec, result.seed, scenario_sha256, outcome.metrics.figures, dict(outcome.extra), outcome.jobs)


def _timing(result: Result) -> Timing:
    decisions = result.outcome.decision_s
    p50, p99 = (np.percentile(decisions, (50, 99)) * 1e3).tolist() if decisions else (None, None)
    return Timing(result.spec, result.seed, p50, p99, result.total_s)


def _means_of_jobs(runs: Sequence[RunResult]) -> list[dict[str, float]]:
    """Return the means over each run's jobs that are columns of its row."""
    names = {"mean_slowdown": "shown_slowdown", "mean_queueing_s": "queueing_s", "mean_completion_s": "completion_s"}
    return [{name: float(np.mean([getattr(job, of) for job in run.jobs])) for name, of in names.items()} for run in runs]


def _flat(entry: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in entry.items():
        flat |= {f"{key}.{inner}": one for inner, one in value.items()} if isinstance(value, dict) else {key: value}
    return flat


@dataclass(frozen=True)
class SweepPoint:
    """A bench with one value of each swept key.

    Attributes:
        swept: Value of each swept key, as text.
        bench: Result of the bench with these values.
    """

    swept: dict[str, str]
    bench: BenchResult


@dataclass(frozen=True)
class SweepResult:
    """Benches that differ only in some keys.

    Attributes:
        schema: Version of this format.
        keys: Swept keys, of the workload or of the cluster.
        points: Benches of the grid of values; the value of the last key changes from one point to the next.
    """

    schema: Literal[3]
    keys: tuple[str, ...]
    points: tuple[SweepPoint, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as in JSON."""
        points = [{"swept": point.swept, "bench": point.bench.as_dict()} for point in self.points]
        return {"schema": self.schema, "keys": [*self.keys], "points": points}

    def rows(self, table: Table = "runs") -> list[dict[str, Any]]:
        """Return the rows of every bench, as `BenchResult.rows` does. Each begins with the swept values, such as `swept.slo`."""
        return [_flat({"swept": point.swept}) | row for point in self.points for row in point.bench.rows(table)]

    def to_pandas(self, table: Table = "runs") -> Any:
        """Return a tidy table as a `pandas.DataFrame`, as `BenchResult.to_pandas` does."""
        return _frame(self.rows(table))
