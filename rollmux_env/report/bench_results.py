"""The result of a bench (a comparison of policies): one format for Python, JSON and CSV, for any number of seeds.

docs/reference/results.md explains it. In a *fluid* replay jobs run at the steady period of their group; in an *event* replay every
phase is simulated.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import Field, TypeAdapter

from rollmux_env.bench.comparison import ComparisonRow, compare
from rollmux_env.bench.differences import Difference, differences
from rollmux_env.bench.harness import Result
from rollmux_env.errors import InputError
from rollmux_env.replay.completion import Shown
from rollmux_env.replay.job_results import JobResult
from rollmux_env.replay.metrics import Figures
from rollmux_env.report.look import Look, drawn_as
from rollmux_env.scenario import Scenario
from rollmux_env.validation_errors import not_one_of
from rollmux_env.workloads.fleets import fleet_words

SCHEMA: Literal[2] = 2
"""Version of the JSON format. Version 1 had different formats for one seed and for several."""
SWEEP_SCHEMA: Literal[3] = 3
"""Version of the JSON format of sweeps. Version 2 supported only one key."""

Table = Literal["runs", "jobs", "summary", "differences", "timeline", "phases"]


class Shareable:
    """Base class of results that can be written as the files, tables and plots of `rollmux bench`."""

    def save(
        self,
        folder: str | Path,
        plots: Literal["png", "svg", "pdf"] = "png",
        overwrite: bool = False,
        width_in: float | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Write the folder that `rollmux bench --out` writes: JSON, CSV, plots, and one HTML page.

        Args:
            folder: Path of the folder.
            plots: File format of the plots.
            overwrite: Whether results in the folder may be replaced.
            width_in: Width of the plots in inches, such as 3.3 for a column of a paper, or None for a screen.
            labels: Labels of policies in plots by their names, or None.

        Raises:
            InputError: If the folder holds results already, or cannot be written.
        """
        with drawn_as(Look(width_in, labels or {})):
            _shown().save(Path(folder), self, plots, overwrite)

    def to_latex(self) -> str:
        """Return the tables as LaTeX with the rules of the package booktabs, as `rollmux bench --format latex` prints them."""
        return str(_shown().latex_of(self))

    def plot(self, name: str = "saving", width_in: float | None = None, labels: Mapping[str, str] | None = None) -> Any:
        """Return a plot of `rollmux bench --out` as a `matplotlib.figure.Figure`, which a notebook shows.

        Args:
            name: Name of the plot: the name of its file without the suffix.
            width_in: Width in inches, such as 3.3 for a column of a paper, or None for a screen.
            labels: Labels of policies by their names, or None.

        Raises:
            InputError: If there is no such plot.
        """
        with drawn_as(Look(width_in, labels or {})):
            return _shown().figure_of(self, name)

    def _repr_html_(self) -> str:
        """Return the tables as HTML, for notebooks."""
        return str(_shown().html_of(self))


def _shown() -> Any:
    """Return the module that shows results. It is imported late, because it imports this module."""
    return importlib.import_module("rollmux_env.report.benches")


@dataclass(frozen=True, repr=False)
class RunResult:
    """The result of one policy on the stream of one seed.

    Attributes:
        policy: Name and options of the policy.
        seed: Seed of the stream and of sampled durations.
        scenario_sha256: SHA-256 of the replayed scenario.
        figures: Measured values of the whole run, such as its cost.
        extra: Measured values that only some policies or replays have, by name; None for a bound that was not found.
        jobs: Result of each job.
    """

    policy: str
    seed: int
    scenario_sha256: str
    figures: Figures
    extra: dict[str, float | None]
    jobs: tuple[JobResult, ...]

    def __repr__(self) -> str:
        """Return a line; the figures and the jobs are attributes."""
        return f"<RunResult: {self.policy}, seed {self.seed}, {len(self.jobs)} jobs, ${self.figures.cost_usd:,.0f}>"


@dataclass(frozen=True)
class Timing:
    """Computing time of a run. Only these values differ if the same bench is repeated.

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


@dataclass(frozen=True, repr=False)
class BenchResult(Shareable):
    """The result of a bench: a comparison of policies on the same streams of jobs. `save`, `plot` and `to_latex` show it.

    Attributes:
        schema: Version of this format.
        scenario: File, example or workload that was replayed.
        settings: Options of the workload, as text by key.
        fidelity: Kind of replay: `fluid` for steady periods, `event` for every phase.
        dispatch: Name of the dispatch policy of an event replay; None for a fluid one.
        rollout_policy: Name of the rollout policy of an event replay; None for a fluid one.
        failures: Text of the option `failures` of an event replay; None without failures.
        seeds: Seeds of the replays, ascending.
        baseline: Policy to which savings are relative.
        summary: One row for each policy, with means over all seeds.
        differences: One entry for every two policies, with their difference on the same seeds.
        runs: One result for each policy and seed.
        left_out: Policies that do not support this replay, with the reason for each.
        timings: Computing time of each run.
        results: Complete results of the replays, for plots and for the tables `timeline` and `phases`; not part of the JSON.
        streams: Scenario by seed, for plots and notes; not part of the JSON.
        fleet: Text of the option `fleet`, such as `12+10` or `load=1.6`; None for the scenario's own `max_nodes`.
        fleet_nodes: Nodes of each pool of that fleet as text, such as `12 + 10`, or `14 to 16 + 10` if seeds differ. None without
            `fleet`.
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
    streams: Annotated[Any, Field(exclude=True)] = field(default_factory=dict, repr=False, compare=False)
    fleet: Shown[str] = None
    fleet_nodes: Shown[str] = None

    @property
    def stream(self) -> Any:
        """Scenario of the first seed, or None in results that were read from a file."""
        return next(iter(self.streams.values()), None)

    def __repr__(self) -> str:
        """Return a line: what was replayed, and the cost of each policy."""
        costs = ", ".join(f"{row.policy} ${row.cost_usd.mean:,.0f}" for row in self.summary)
        seeds = f"{len(self.seeds)} seed{'s' if len(self.seeds) > 1 else ''}"
        return f"<BenchResult: {self.scenario}, {seeds}, {self.fidelity}: {costs}>"

    def as_dict(self) -> dict[str, Any]:
        """Return the result as dicts, lists and plain values, as in its JSON file."""
        plain: dict[str, Any] = _adapter().dump_python(self, mode="json")
        return plain

    def rows(self, table: Table = "runs") -> list[dict[str, Any]]:
        """Return a tidy table: a flat mapping per row. Nested values have names such as `peak_gpus.rollout` and `saving.mean`.

        Args:
            table: Name of the table: `runs`, `jobs`, `summary`, `differences`, `timeline` or `phases`.

        Raises:
            InputError: If there is no such table, or phases were not kept.
        """
        if table not in get_args(Table):
            raise InputError(f"table: {not_one_of(table, get_args(Table))}")
        if table == "timeline":
            return [row for result in self.results for row in _timeline(result)]
        if table == "phases":
            return [row for result in self.results for row in _phases(result)]
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

        Args:
            table: Name of the table, as for `rows`.

        Raises:
            InputError: If there is no such table, phases were not kept, or pandas is not installed.
        """
        return _frame(self.rows(table))

    def timeline(self) -> Any:
        """Return the table `timeline` as a DataFrame: a row for each change of a run's nodes or of its number of waiting jobs."""
        return self.to_pandas("timeline")

    def phases(self) -> Any:
        """Return the table `phases` as a DataFrame: a row for every phase of every run.

        It needs an event replay with `bench(..., keep_phases=True)`.
        """
        return self.to_pandas("phases")


def _frame(rows: list[dict[str, Any]]) -> Any:
    if importlib.util.find_spec("pandas") is None:
        raise InputError("to_pandas: needs pandas, which is not installed: pip install pandas")
    return importlib.import_module("pandas").DataFrame(rows)


def bench_result(
    results: Sequence[Result], baseline: str, how: Mapping[str, Any], scenarios: Mapping[int, Scenario]
) -> BenchResult:
    """Return the result of a bench, made from those of its runs.

    Args:
        results: Results of every policy on the same seeds.
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
        streams=dict(scenarios),
        fleet_nodes=nodes,
        **how,
    )


def draws_nothing(results: Sequence[Result]) -> bool:
    """Return whether there are several seeds and each policy has the same result on all, as in a fluid replay of a file."""
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


def _timeline(result: Result) -> Iterator[dict[str, Any]]:
    """Yield a row for each time at which the nodes of a pool or the number of waiting jobs of a run changed."""
    outcome, before = result.outcome, None
    for k, time_s in enumerate(outcome.time_s):
        now = {f"nodes.{pool}": counts[k] for pool, counts in outcome.nodes.items()} | {"waiting": outcome.waiting[k]}
        if now != before:
            yield {"policy": result.spec, "seed": result.seed, "time_s": time_s, **now}
        before = now


def _phases(result: Result) -> Iterator[dict[str, Any]]:
    """Yield every phase of a run.

    Raises:
        InputError: If phases were not kept.
    """
    if not result.outcome.phases:
        raise InputError("phases: were not kept: bench(..., fidelity='event', keep_phases=True) keeps them")
    for phase in result.outcome.phases:
        yield {"policy": result.spec, "seed": result.seed, **phase._asdict()}


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


@dataclass(frozen=True, repr=False)
class SweepResult(Shareable):
    """The results of a sweep: one bench for each combination of values of some keys. `save`, `plot` and `to_latex` show it.

    Attributes:
        schema: Version of this format.
        keys: Names of the swept keys, which belong to the workload or to the cluster.
        points: One bench for each combination of values. The value of the last key changes fastest.
    """

    schema: Literal[3]
    keys: tuple[str, ...]
    points: tuple[SweepPoint, ...]

    def __repr__(self) -> str:
        """Return a line: what was replayed, and at how many points."""
        return f"<SweepResult: {self.points[0].bench.scenario}, {len(self.points)} points of {', '.join(self.keys)}>"

    def as_dict(self) -> dict[str, Any]:
        """Return the result as dicts, lists and plain values, as in its JSON file."""
        points = [{"swept": point.swept, "bench": point.bench.as_dict()} for point in self.points]
        return {"schema": self.schema, "keys": [*self.keys], "points": points}

    def rows(self, table: Table = "runs") -> list[dict[str, Any]]:
        """Return a table of all benches, as `BenchResult.rows` does. Each row begins with the swept values, such as `swept.slo`.

        Args:
            table: Name of the table, as for `BenchResult.rows`.
        """
        return [_flat({"swept": point.swept}) | row for point in self.points for row in point.bench.rows(table)]

    def to_pandas(self, table: Table = "runs") -> Any:
        """Return a tidy table as a `pandas.DataFrame`, as `BenchResult.to_pandas` does."""
        return _frame(self.rows(table))
