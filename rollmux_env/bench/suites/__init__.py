"""The suites by name. Each module is data: cases, columns, the paper's figures, and why ours differ."""

from __future__ import annotations

from rollmux_env.bench.suite import Suite
from rollmux_env.bench.suites import (
    asynchrony,
    contention,
    drift,
    failures,
    fidelity,
    figure10,
    latency,
    learned,
    mixed,
    production,
    promises,
    quantile,
    rollout,
    sensitivity,
    shapes,
)
from rollmux_env.errors import InputError
from rollmux_env.validation_errors import not_one_of

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        *figure10.SUITES,
        production.SUITE,
        sensitivity.SUITE,
        latency.SUITE,
        mixed.SUITE,
        drift.SUITE,
        contention.SUITE,
        failures.SUITE,
        quantile.SUITE,
        promises.SUITE,
        learned.SUITE,
        asynchrony.SUITE,
        shapes.SUITE,
    )
}

ROLLOUT = rollout.SUITE.name  # of rollout policies: its cases are `rollout.CASES`, measured by `rollmux_env.bench.rollouts`
FIDELITY = fidelity.SUITE.name  # of no policies: its tables are `fidelity.TABLES`, compared by `rollmux_env.bench.fidelity`


def find_suite(name: str) -> Suite:
    """A suite by name.

    Raises:
        InputError: there is none; one line with the names.
    """
    if name not in SUITES:
        raise InputError(f"--suite: {not_one_of(name, (*SUITES, ROLLOUT, FIDELITY))}")
    return SUITES[name]
