"""Workloads: seeded streams of jobs by name, as scenarios.

production                     the statistics of the paper's production replay
mixed, balanced,               the paper's simulation profiles (Table 6) with Philly-like arrivals; `rollout-heavy` is the
rollout-heavy, train-heavy     profile RH, not the case of Figure 10 that the paper calls by the same name
micro-temporal,                the three cases of the paper's Table 4 and Figure 10
micro-rollout-heavy,
micro-spatial
micro-contention               the two jobs of its Figure 3
philly                         arrivals and stays from a user's CSV file
authors                        a trace in the format that the paper's authors publish
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rollmux_env.errors import InputError
from rollmux_env.scenario import Scenario
from rollmux_env.validation_errors import not_one_of
from rollmux_env.workloads import authors, micro, philly, production, profiles
from rollmux_env.workloads.draws import with_durations
from rollmux_env.workloads.options import WorkloadOptions

__all__ = ["WORKLOADS", "WorkloadOptions", "make_workload"]

Generator = Callable[[WorkloadOptions], Scenario]

_WORKLOADS: dict[str, tuple[Generator, frozenset[str]]] = {
    "production": (production.production, production.OPTIONS),
    **{name: (partial(profiles.profile_workload, name), profiles.OPTIONS) for name in profiles.NAMES},
    **{name: (partial(micro.micro_workload, name), micro.OPTIONS) for name in micro.NAMES},
    "philly": (philly.philly, philly.OPTIONS),
    "authors": (authors.authors, authors.OPTIONS),
}
WORKLOADS = tuple(_WORKLOADS)


def make_workload(name: str, options: WorkloadOptions | None = None) -> Scenario:
    """Build a workload by name. The same name, options and version give the same bytes.

    Args:
        name: Name of the workload, one of `WORKLOADS`.
        options: Options, or None for the defaults.

    Raises:
        InputError: If the name is unknown, the workload does not have an option, or a trace cannot be used.
    """
    if name not in _WORKLOADS:
        raise InputError(f"workload: {not_one_of(name, WORKLOADS)}")
    options = options or WorkloadOptions()
    generate, used = _WORKLOADS[name]
    options.reject_unused(name, used | {"seed"})
    scenario, actual = generate(options), options.assumed.durations
    if actual is None or "assumptions" not in used:
        return scenario
    return scenario.model_copy(update={"jobs": with_durations(scenario.jobs, actual)})
