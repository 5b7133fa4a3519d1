"""Suites: the paper's evaluation as data, and the code that runs one.

A suite of placement policies is a list of cases. A case has a stream for every seed and the policies that run on it. Figures are
measured for each (case, policy, seed) and averaged over seeds. A ratio is computed per seed, so its interval is paired. A suite of
something else names the function that measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

from pydantic import ConfigDict

from rollmux_env.bench.harness import MakeContender, Result, Task
from rollmux_env.bench.intervals import Mean, mean_if_known
from rollmux_env.replay.failures import Failures
from rollmux_env.replay.metrics import Outcome
from rollmux_env.rollout.policy import RolloutPolicy
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.view import DispatchPolicy

Value = Callable[[Outcome, Outcome], float | None]


class Makers(NamedTuple):
    """Factories of policies by name, passed in because `policies` is above this package.

    Attributes:
        placement, dispatch, rollout, network, allocator: by name. migrating: a dispatch policy's name, with the migration that a
            rollout policy wants.
    """

    placement: MakeContender
    dispatch: Callable[[str], DispatchPolicy]
    rollout: Callable[[str], RolloutPolicy]
    migrating: Callable[[str, RolloutPolicy], str]
    network: Callable[[str], Any]
    allocator: Callable[[str], Any]


@dataclass(frozen=True)
class Case:
    """One stream and the policies compared on it.

    Attributes:
        label: what tells it from the suite's other cases.
        stream: the scenario of a seed, shorter where `quick` is true.
        policies: contenders by name.
        dispatch: name of the dispatch policy of an event replay; None for fluid replays.
        observed: those of the policies that an event replay follows too, in round robin, for columns of what was observed.
        failures: of an event replay, what dies.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")  # where a case is read from a file
    label: str
    stream: Callable[[int, bool], Scenario]
    policies: tuple[str, ...]
    dispatch: str | None = None
    failures: Failures | None = None
    observed: tuple[str, ...] = ()

    @property
    def replays(self) -> tuple[Case, ...]:
        """The case, and what is to be observed of it."""
        return (self, replace(self, policies=self.observed, dispatch="round-robin", observed=())) if self.observed else (self,)


@dataclass(frozen=True)
class Column:
    """One figure of a suite's table.

    Attributes:
        heading: over the column.
        value: of a policy's outcome, given that of the policy that the column is relative to, if any; None where it has none, and
            for a suite that is measured by a function of its own.
        against: the policy that it is relative to; the first of those named that the case has.
        digits: after the point; style: `x` for ratios, `%` for shares, `` for plain figures.
        observed: it is of the event replay, where a case has one beside its fluid one.
    """

    heading: str
    value: Value = lambda own, base: None
    against: tuple[str, ...] = ()
    digits: int = 2
    style: str = "x"
    observed: bool = False


@dataclass(frozen=True)
class SuiteRow:
    """One policy in one case: its figures by heading; None where a figure has no meaning."""

    case: str
    policy: str
    figures: Mapping[str, Mean | None]


def measured_row(case: str, policy: str, headings: Iterable[str], values: Mapping[str, Sequence[float | None]]) -> SuiteRow:
    """Return the row of values of every seed, by heading; a heading that lacks the value of a seed has no figure."""
    return SuiteRow(case, policy, {name: mean_if_known(values.get(name, ())) for name in headings})


@dataclass(frozen=True)
class Suite:
    """A part of the paper's evaluation.

    Attributes:
        name: for `--suite`. title: over its table. source: section, figure or table of the paper.
        cases, columns: what is run and what is shown.
        paper: the paper's figures by (label of the case, policy, heading).
        differences: one line a reason why ours differ.
        frontier: headings of two figures to plot against each other, x and y; None for no such plot.
        least: heading of a figure of which less is better: each policy's best case is named below the table.
        varied: name of the option along which the frontier's curves run.
        assumes: sections of a file of assumptions that it takes (`rollmux_env.keys.assumptions`).
        seeds: how many, as a rule; `--quick` takes one, and shorter streams. 0: nothing is drawn by chance.
        measure: of a suite without cases of placement policies, its rows, from seeds, whether to be quick, and policies.
        compares: what such a suite compares, in words. adds: the kind of policies that `--policy` adds to it, a field of `Makers`;
            they are the argument `added` of `measure`. None: it has its own.
        sweep: figures that are plotted beside the table, from a seed and policies.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")  # where a suite is read from a file
    name: str
    title: str
    source: str
    cases: tuple[Case, ...]
    columns: tuple[Column, ...]
    paper: Mapping[tuple[str, str, str], int | float] = field(default_factory=dict)
    differences: tuple[str, ...] = ()
    frontier: tuple[str, str] | None = None
    least: str = ""
    varied: str = ""
    assumes: tuple[str, ...] = ()
    seeds: int = 5
    measure: Callable[..., list[SuiteRow]] | None = None
    compares: str = ""
    adds: str | None = None
    sweep: Callable[[int, Makers], Sequence[Any]] | None = None


def suite_tasks(
    suite: Suite, seeds: Sequence[int], quick: bool, dispatch: Callable[[str], DispatchPolicy], check: bool = False
) -> list[tuple[Case, Task]]:
    """Return all tasks of a suite, seed by seed."""
    return [
        (
            replay,
            Task(policy, seed, scenario, dispatch(replay.dispatch) if replay.dispatch else None, check, failures=replay.failures),
        )
        for case in suite.cases
        for seed in seeds
        for scenario in (case.stream(seed, quick),)
        for replay in case.replays
        for policy in replay.policies
    ]


def suite_rows(suite: Suite, results: Sequence[tuple[Case, Result]]) -> list[SuiteRow]:
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


def _outcomes(replay: Case, results: Sequence[tuple[Case, Result]]) -> Mapping[str, Mapping[int, Outcome]]:
    """What was measured, by policy and seed."""
    outcomes: dict[str, dict[int, Outcome]] = {}
    for owner, result in results:
        if (owner.label, owner.dispatch) == (replay.label, replay.dispatch):
            outcomes.setdefault(result.spec, {})[result.seed] = result.outcome
    return outcomes


def best_cases(suite: Suite, rows: Sequence[SuiteRow]) -> dict[str, SuiteRow]:
    """The row of each policy in which the figure `least` is; of cases in which something dies."""
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
