"""What a bench gives: one shape for Python, JSON and CSV, whatever the number of seeds (docs/reference/results.md)."""

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

from rollmux_env.bench.comparison import Row, by_policy, compare
from rollmux_env.bench.harness import Result
from rollmux_env.bench.intervals import Mean, mean_if_known, mean_interval, ratio
from rollmux_env.errors import InputError
from rollmux_env.replay.metrics import Figures, JobResult
from rollmux_env.scenario import Scenario
from rollmux_env.validation_errors import not_one_of

SCHEMA: Literal[2] = 2
"""Version of the JSON shape: a later one has another number. 1 had one shape for a seed and another for several."""
SWEEP_SCHEMA: Literal[3] = 3
"""The same for sweeps: 2 had one key alone."""

Table = Literal["runs", "jobs", "summary", "differences"]


@dataclass(frozen=True)
class RunResult:
    """One policy on one seed.

    Attributes:
        policy: by name and options. seed: of the stream and of sampled durations. scenario_sha256: of what was replayed.
        figures: Figures of the whole run.
        extra: Figures that only some policies or replays have, by name; None where a bound is unknown.
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
    """Two policies, paired by seed: the first one's figure less the other's; negative where the first has less.

    Attributes:
        policy, other: their names. cost_usd, usd_per_work_hour, slowdown: mean differences; `slowdown` of the mean over jobs, as
            observed where it was.
        cost_ratio: cost of the other over that of the first, the first one's saving over it; None where the first one's is 0.
    """

    policy: str
    other: str
    cost_usd: Mean
    usd_per_work_hour: Mean
    slowdown: Mean
    cost_ratio: Mean | None


@dataclass(frozen=True)
class Timing:
    """Computing time, the only figures that differ between runs.

    Attributes:
        decision_ms_p50, decision_ms_p99: of a decision, milliseconds; None without any. total_s: of the replay, seconds.
    """

    policy: str
    seed: int
    decision_ms_p50: float | None
    decision_ms_p99: float | None
    total_s: float


@dataclass(frozen=True)
class BenchResult:
    """What a bench gives.

    Attributes:
        schema: version of this shape. scenario: file, example or workload. settings: options of the workload, as text by key.
        fidelity: of the replay. dispatch, rollout_policy, failures: of an event replay, as named; None of others.
        seeds: as replayed. baseline: the policy that savings are relative to.
        summary: each policy over all seeds. differences: every two policies, paired by seed. runs: each policy on each seed.
        left_out: policies that this replay could not have, and why. timings: computing time.
        results, stream: what was measured, and the scenario of the first seed, for plots; not in JSON.
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
    summary: tuple[Row, ...]
    differences: tuple[Difference, ...]
    runs: tuple[RunResult, ...]
    left_out: dict[str, str]
    timings: tuple[Timing, ...]
    results: Annotated[tuple[Any, ...], Field(exclude=True)] = field(default=(), repr=False, compare=False)
    stream: Annotated[Any, Field(exclude=True)] = field(default=None, repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        plain: dict[str, Any] = _adapter().dump_python(self, mode="json")
        return plain

    def rows(self, table: Table = "runs") -> list[dict[str, Any]]:
        """A tidy table: a flat mapping a row. Nested figures are named like `peak_gpus.rollout`, and `saving.mean`.

        Raises:
            InputError: no such table.
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
        """The same as a `pandas.DataFrame`.

        Raises:
            InputError: no such table, or pandas is not installed.
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
        results: every contender on the same seeds.
        how: the fields of `BenchResult` that say what was replayed. scenarios: by seed.
    """
    hashes = {seed: scenario.sha256 for seed, scenario in scenarios.items()}
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
        **how,
    )


def differences(results: Sequence[Result]) -> tuple[Difference, ...]:
    """Every two policies, in order of first appearance."""
    rows = []
    for (policy, own), (other, others) in combinations(by_policy(results).items(), 2):

        def between(of: Callable[[Result, Result], float], own: list[Result] = own, others: list[Result] = others) -> Mean:
            return mean_interval([of(one, two) for one, two in zip(own, others, strict=True)])

        pairs = zip(own, others, strict=True)
        rows.append(
            Difference(
                policy,
                other,
                between(lambda one, two: one.outcome.metrics.cost_usd - two.outcome.metrics.cost_usd),
                between(lambda one, two: one.outcome.metrics.usd_per_work_hour - two.outcome.metrics.usd_per_work_hour),
                between(lambda one, two: one.outcome.mean_slowdown - two.outcome.mean_slowdown),
                mean_if_known([ratio(two.outcome.metrics.cost_usd, one.outcome.metrics.cost_usd) for one, two in pairs]),
            )
        )
    return tuple(rows)


def draws_nothing(results: Sequence[Result]) -> bool:
    """Whether several seeds have given the same results, as those of a fluid replay of a file do."""
    outcomes: dict[str, set[str]] = {}
    for result in results:
        outcomes.setdefault(result.spec, set()).add(repr((result.outcome.metrics, result.outcome.jobs)))
    return len({result.seed for result in results}) > 1 and all(len(own) == 1 for own in outcomes.values())


@cache
def _adapter() -> TypeAdapter[BenchResult]:
    return TypeAdapter(BenchResult)


def results_schema() -> dict[str, Any]:
    """The JSON Schema of a bench's JSON; `results.schema.json` in `rollmux_env.report` is this one."""
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
    """Means over the jobs of each run of what a line about it has too."""
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
    """Benches that differ in some keys alone.

    Attributes:
        schema: Version of this format.
        keys: Swept keys, of the workload or of the cluster.
        points: Benches of the grid of values; the value of the last key changes from one point to the next.
    """

    schema: Literal[3]
    keys: tuple[str, ...]
    points: tuple[SweepPoint, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        points = [{"swept": point.swept, "bench": point.bench.as_dict()} for point in self.points]
        return {"schema": self.schema, "keys": [*self.keys], "points": points}

    def rows(self, table: Table = "runs") -> list[dict[str, Any]]:
        """Return the rows of every bench, as `BenchResult.rows` does, each beginning with the swept values, such as `swept.slo`."""
        return [_flat({"swept": point.swept}) | row for point in self.points for row in point.bench.rows(table)]

    def to_pandas(self, table: Table = "runs") -> Any:
        """As `BenchResult.to_pandas`."""
        return _frame(self.rows(table))
