"""Suites: the paper's evaluation as data, and the code that runs a suite.

A suite of placement policies is a list of cases. A case has a stream for every seed and the policies that run on it. Figures are
measured for each (case, policy, seed) and averaged over seeds. A ratio is computed per seed, so that its interval is paired. A
suite of other policies names the function that measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

from pydantic import ConfigDict

from rollmux_env.bench.harness import MakeContender, Result, Task
from rollmux_env.bench.intervals import Mean, mean_if_known
from rollmux_env.replay.failures import Failures
from rollmux_env.replay.outcome import Outcome
from rollmux_env.rollout.policy import RolloutPolicy
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.view import DispatchPolicy

Value = Callable[[Outcome, Outcome], float | None]


class Makers(NamedTuple):
    """Factories of policies by name, passed in because `policies` is above this package.

    Attributes:
        placement: Factory of placement policies and yardsticks.
        dispatch: Factory of dispatch policies.
        rollout: Factory of rollout policies.
        migrating: Function that adds the migration that a rollout policy wants to the name of a dispatch policy.
        network: Factory of network policies.
        allocator: Factory of allocators.
    """

    placement: MakeContender
    dispatch: Callable[[str], DispatchPolicy]
    rollout: Callable[[str], RolloutPolicy]
    migrating: Callable[[str, RolloutPolicy], str]
    network: Callable[[str], Any]
    allocator: Callable[[str], Any]


@dataclass(frozen=True)
class SuiteCase:
    """One stream and the policies compared on it.

    Attributes:
        label: Name of the case within its suite.
        stream: Function of a seed and of whether to be quick that returns the scenario.
        policies: Names of the contenders.
        dispatch: Name of the dispatch policy of an event replay, or None for a fluid replay.
        failures: Failures of an event replay, or None.
        observed: Contenders that also run in an event replay, in round robin, for columns with observed figures.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")  # for cases that are read from a file
    label: str
    stream: Callable[[int, bool], Scenario]
    policies: tuple[str, ...]
    dispatch: str | None = None
    failures: Failures | None = None
    observed: tuple[str, ...] = ()

    @property
    def replays(self) -> tuple[SuiteCase, ...]:
        """The case, and the event replay for its observed figures if there is one."""
        return (self, replace(self, policies=self.observed, dispatch="round-robin", observed=())) if self.observed else (self,)


@dataclass(frozen=True)
class Column:
    """One figure of a suite's table.

    Attributes:
        heading: Heading of the column.
        value: Function that returns the figure from a policy's outcome and that of the reference policy. None means no figure;
            suites with a `measure` function return only None.
        against: Candidates for the reference policy; the first one that the case has is used.
        digits: Number of digits after the decimal point.
        style: `x` for ratios, `%` for shares, empty for plain figures.
        observed: Whether the figure comes from the event replay of a case that also has a fluid one.
        bound: Whether the figure needs the lower bounds of the stream's dollars.
        grows: Whether the figure grows with the number of jobs, so that a shorter stream is not beside the paper's.
    """

    heading: str
    value: Value = lambda own, base: None
    against: tuple[str, ...] = ()
    digits: int = 2
    style: str = "x"
    observed: bool = False
    bound: bool = False
    grows: bool = False


@dataclass(frozen=True)
class SuiteRow:
    """One policy in one case.

    Attributes:
        case: Label of the case.
        policy: Name of the policy.
        figures: Figures by heading; None for figures that have no meaning.
    """

    case: str
    policy: str
    figures: Mapping[str, Mean | None]


def make_measured_row(case: str, policy: str, headings: Iterable[str], values: Mapping[str, Sequence[float | None]]) -> SuiteRow:
    """Return the row of a policy in a case.

    Args:
        case: Label of the case.
        policy: Name of the policy.
        headings: Headings of the row.
        values: Value of every seed by heading. If the value of a seed is missing, the row has no such figure.
    """
    return SuiteRow(case, policy, {name: mean_if_known(values.get(name, ())) for name in headings})


@dataclass(frozen=True)
class Suite:
    """A part of the paper's evaluation.

    Attributes:
        name: Name for `--suite`.
        title: Title of its table.
        source: Section, figure or table of the paper.
        cases: Cases to run; empty if `measure` is given.
        columns: Columns to show.
        paper: Figures of the paper by label of the case, policy and heading.
        differences: Reasons why our figures differ, one line each.
        frontier: Headings of two figures to plot against each other, x and y, or None.
        series: Heading of a figure to plot along the loads in which the labels of cases end, as in `mixed, load 1.6`, or empty.
        of_trace: Cases that `--set csv=FILE` adds, whose streams take the file of a trace.
        least: Heading of a figure of which less is better. Each policy's best case is named below the table.
        varied: Name of the option along which the frontier's curves run.
        assumes: Sections of a file of assumptions that the suite uses (`rollmux_env.keys.assumptions`).
        seeds: Default number of seeds, or 0 if nothing is random. `--quick` uses one, with shorter streams.
        measure: Function that returns the rows from seeds, whether to be quick, and factories of policies, for suites of other than
            placement policies.
        compares: Description of the policies that such a suite compares.
        adds: Kind of policies that `--policy` adds to such a suite, a field of `Makers`, passed to `measure` as `added`; None if it
            takes none.
        sweep: Function of a seed and factories of policies that returns figures to plot beside the table, or None.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")  # for suites that are read from a file
    name: str
    title: str
    source: str
    cases: tuple[SuiteCase, ...]
    columns: tuple[Column, ...]
    paper: Mapping[tuple[str, str, str], int | float] = field(default_factory=dict)
    differences: tuple[str, ...] = ()
    frontier: tuple[str, str] | None = None
    series: str = ""
    of_trace: tuple[SuiteCase, ...] = ()
    least: str = ""
    varied: str = ""
    assumes: tuple[str, ...] = ()
    seeds: int = 5
    measure: Callable[..., list[SuiteRow]] | None = None
    compares: str = ""
    adds: str | None = None
    sweep: Callable[[int, Makers], Sequence[Any]] | None = None


def shortened(suite: Suite) -> Suite:
    """Return the suite for shorter streams: without the paper's figures that grow with the number of jobs."""
    grows = {column.heading for column in suite.columns if column.grows}
    return replace(suite, paper={key: figure for key, figure in suite.paper.items() if key[2] not in grows})


def suite_tasks(
    suite: Suite, seeds: Sequence[int], quick: bool, dispatch: Callable[[str], DispatchPolicy], check: bool = False
) -> list[tuple[SuiteCase, Task]]:
    """Return all tasks of a suite, seed by seed."""
    bound = any(column.bound for column in suite.columns)

    def task(replay: SuiteCase, policy: str, seed: int, scenario: Scenario) -> Task:
        order = dispatch(replay.dispatch) if replay.dispatch else None
        return Task(policy, seed, scenario, order, check, failures=replay.failures, bound=bound and order is None)

    return [
        (replay, task(replay, policy, seed, scenario))
        for case in suite.cases
        for seed in seeds
        for scenario in (case.stream(seed, quick),)
        for replay in case.replays
        for policy in replay.policies
    ]


def suite_rows(suite: Suite, results: Sequence[tuple[SuiteCase, Result]]) -> list[SuiteRow]:
    """Return the table of a suite: one row per case and policy, in order."""
    rows: list[SuiteRow] = []
    for case in suite.cases:
        planned, observed = (_outcomes(replay, results) for replay in (case.replays[0], case.replays[-1]))
        rows += [
            SuiteRow(
                case.label,
                policy,
                {column.heading: _figure(column, policy, observed if column.observed else planned) for column in suite.columns},
            )
            for policy in case.policies
        ]
    return rows


def _outcomes(replay: SuiteCase, results: Sequence[tuple[SuiteCase, Result]]) -> Mapping[str, Mapping[int, Outcome]]:
    """Return the outcomes of a replay by policy and seed."""
    outcomes: dict[str, dict[int, Outcome]] = {}
    for owner, result in results:
        if (owner.label, owner.dispatch) == (replay.label, replay.dispatch):
            outcomes.setdefault(result.spec, {})[result.seed] = result.outcome
    return outcomes


def best_cases(suite: Suite, rows: Sequence[SuiteRow]) -> dict[str, SuiteRow]:
    """Return the row of each policy with the least figure `suite.least`, among cases with failures."""
    idle = {case.label for case in suite.cases if case.failures == Failures()}
    best: dict[str, SuiteRow] = {}
    for row in rows:
        mean = row.figures[suite.least]
        if mean is None or row.case in idle:
            continue
        known = best[row.policy].figures[suite.least] if row.policy in best else None
        if known is None or mean.mean < known.mean:
            best[row.policy] = row
    return best


def _figure(column: Column, policy: str, outcomes: Mapping[str, Mapping[int, Outcome]]) -> Mean | None:
    if policy not in outcomes:
        return None
    mine = outcomes[policy]
    base = next((outcomes[name] for name in column.against if name in outcomes), None)
    if column.against and base is None:
        return None
    return mean_if_known([column.value(mine[seed], base[seed] if base else mine[seed]) for seed in sorted(mine)])
