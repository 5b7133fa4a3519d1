"""Options of workloads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from rollmux_env.command_options import parse_pairs, parse_value
from rollmux_env.errors import InputError
from rollmux_env.fields import LARGEST, AtLeastOne, Checked, NonNegative
from rollmux_env.keys.assumptions import Assumptions, assumed
from rollmux_env.suggestions import did_you_mean

MAX_JOBS = 1_000_000
STREAM_OPTIONS = frozenset({"seed", "jobs", "interarrival_s", "stays", "slo", "max_group_size", "asynchronous", "assumptions"})
STRUCTURE_OPTIONS = frozenset({"classes", "users", "explained", "explained_by", "turns"})
Trait = Literal["class", "user", "phases", "hour"]
# Options that are texts even if they look like numbers: a virtual cluster may be called 103959.
_TEXTS = ("csv", "columns", "virtual_cluster", "profile", "trace", "phase_times", "drift", "assumptions")


@dataclass(frozen=True)
class WorkloadOptions(Checked):
    """Options of all workloads. A workload rejects options that it does not support.

    The workloads that support an option are named in brackets, unless all do.

    Attributes:
        seed: Seed of all draws. Each purpose (types, stays, SLOs, ...) has a random stream, so that changing one option does not
            change the other draws.
        jobs: Number of jobs, or None for the workload's default. Of a trace the first ones are used.
        interarrival_s: Mean time between two arrivals in seconds, or None for the workload's own (all but `micro-*` and `authors`).
        stays: Kind of stay: `iterations`, each job does the iterations that would fit into its stay if it ran alone (equal work
            under every policy), or `fixed`, each job departs a fixed time after its admission (the paper's accounting).
        slo: Lower and upper limit of uniform SLOs, as a number the SLO of every job, or None for the workload's default, (1, 2)
            unless it says otherwise.
        max_group_size: Largest number of jobs in a co-execution group.
        switches: Whether jobs have the paper's warm and cold starts, which event replays add (`production`, `authors`, `micro-*`).
        shapes: Whether jobs may also run on half or twice their nodes, by the rule of `rollmux_env.workloads.shapes`
            (`production`).
        asynchronous: Share of asynchronous jobs, by the rule of `rollmux_env.workloads.draws` (all but `micro-*`).
        third_pool: Whether jobs may run on nodes of a third kind, by the rule of `rollmux_env.workloads.shapes` (`production`).
        assumptions: Values that are not published, for the options above and for actual durations: `ours`, those of the phase-time
            `model`, or a file, as in `rollmux_env.keys.assumptions` (all but `micro-*` and `authors`).
        semantics: Accounting; `paper` has what the paper's reported production figures need: SLOs from U(1.1, 2) and half the
            training nodes for 32B jobs (`production`, `authors`).
        classes: Number of classes of jobs, or 0 for none; jobs of a class have stays of similar length, by the rule of
            `rollmux_env.workloads.structure` (all but `micro-*`, `philly` and `authors`).
        users: Number of users, each with as many jobs on average, or 0 for jobs without a user (likewise).
        explained: Share of the variance of the logarithm of stays that the traits of a job explain (likewise).
        explained_by: These traits, each with an equal part of the share: `class`, `user`, `phases` and `hour` (likewise).
        turns: Number of times that the classes change between short and long and back during the stream (likewise).
        profile: Profile of the phase times of a CSV file's jobs: mixed, balanced, rollout-heavy or train-heavy (`philly`).
        csv: Path of the trace, with the columns that `rollmux_env.workloads.philly` names (`philly`).
        columns: Names of the trace's columns by key, as in `{arrival: submit_time, user: user}`, or None (`philly`).
        trace: Path of a trace of RollMux's authors, in the format of `rollmux_env.workloads.authors` (`authors`).
        phase_times: Path of the authors' phase times, or None (`authors`).
        drift: Path of the authors' drift, or None (`authors`).
        window_start_h: Start of the window of submissions, in hours after the first one (`philly`).
        window_h: Length of the window of submissions in hours, or None for no end (`philly`).
        virtual_cluster: Virtual cluster whose rows are used, or None for all (`philly`).
        min_stay_h: Shortest duration of the rows that are used, in hours (`philly`).
        max_stay_h: Longest duration of the rows that are used in hours, or None for no limit (`philly`).
    """

    seed: Annotated[int, Field(ge=0, le=2**63)] = 0
    jobs: Annotated[int, Field(ge=1, le=MAX_JOBS)] | None = None
    interarrival_s: Annotated[float, Field(gt=0, le=LARGEST / MAX_JOBS)] | None = None
    stays: Literal["iterations", "fixed"] = "iterations"
    slo: tuple[AtLeastOne, AtLeastOne] | None = None
    max_group_size: Annotated[int, Field(ge=1, le=2**31)] = 5
    switches: bool = False
    shapes: bool = False
    asynchronous: Annotated[float, Field(ge=0, le=1)] = 0.0
    third_pool: bool = False
    assumptions: str | Path = "ours"
    semantics: Literal["default", "paper"] = "default"
    classes: Annotated[int, Field(ge=0, le=1000)] = 0
    users: Annotated[int, Field(ge=0, le=1000)] = 0
    explained: Annotated[float, Field(ge=0, le=1)] = 0.5
    explained_by: Annotated[tuple[Trait, ...], Field(min_length=1)] = ("class",)
    turns: Annotated[float, Field(ge=0, le=1000)] = 0.0
    profile: str = "mixed"
    csv: str | Path | None = None
    columns: str | None = None
    trace: str | Path | None = None
    phase_times: str | Path | None = None
    drift: str | Path | None = None
    window_start_h: NonNegative = 0.0
    window_h: NonNegative | None = None
    virtual_cluster: str | None = None
    min_stay_h: NonNegative = 0.0
    max_stay_h: NonNegative | None = None

    def __post_init__(self) -> None:
        for name, value in [*vars(self).items()]:
            if isinstance(value, list):  # as JSON, YAML and users have it
                object.__setattr__(self, name, tuple(value))
            elif name == "slo" and isinstance(value, int | float) and not isinstance(value, bool):
                object.__setattr__(self, name, (value, value))
        super().__post_init__()
        if self.slo is not None and self.slo[1] < self.slo[0]:
            raise InputError(f"slo: must be low and high, not {self.slo[0]:g} and {self.slo[1]:g}")
        if len({*self.explained_by}) < len(self.explained_by):
            raise InputError("explained_by: has a trait twice")
        for trait, needed in (("class", "classes"), ("user", "users")) if self.has_structure else ():
            if trait in self.explained_by and not getattr(self, needed):
                raise InputError(f"explained_by: {trait} goes with {needed}, of which there are 0")

    @property
    def has_structure(self) -> bool:
        """Whether the lengths of jobs depend on their traits."""
        return self.classes > 0 or self.explained_by != ("class",)

    @property
    def assumed(self) -> Assumptions:
        """The assumptions that the options name.

        Raises:
            InputError: If the name is unknown, or a file has an invalid value.
        """
        return assumed(self.assumptions)

    def reject_unused(self, workload: str, used: frozenset[str]) -> None:
        """Reject options that would have no effect.

        Args:
            workload: Name of the workload, for error messages.
            used: Names of the options that it supports.

        Raises:
            InputError: If an option outside `used` differs from its default.
        """
        for option in fields(self):
            if option.name not in used and getattr(self, option.name) != option.default:
                has = ", ".join(sorted(used))
                raise InputError(f"{option.name}: the workload {workload} has no such option; it has {has}")


OPTION_NAMES = tuple(option.name for option in fields(WorkloadOptions) if option.name != "seed")


def parse_options(pairs: Iterable[str], seed: int) -> WorkloadOptions:
    """Parse options from pairs such as `stays=fixed` and `slo=[1.2,1.8]`.

    Args:
        pairs: Texts `key=value`.
        seed: Seed of all draws.

    Raises:
        InputError: If a pair is malformed, a key is unknown or a value is out of range.
    """
    values: dict[str, Any] = {}
    for key, text in parse_pairs("--set", pairs):
        if key not in OPTION_NAMES:
            near = did_you_mean(key, OPTION_NAMES)
            raise InputError(f"--set {key}: workloads have no such option; they have {', '.join(OPTION_NAMES)}{near}")
        values[key] = text if key in _TEXTS else parse_value(text)
    return WorkloadOptions(seed=seed, **values)
