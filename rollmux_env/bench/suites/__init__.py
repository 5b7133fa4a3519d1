"""The suites by name. Each module is data: cases, columns, the paper's figures, and why ours differ."""

from __future__ import annotations

from rollmux_env.bench.suite import Suite
from rollmux_env.bench.suites import areal_hex, beyond, fabric, fidelity, paper, rollout
from rollmux_env.errors import InputError
from rollmux_env.validation_errors import not_one_of

SUITES: dict[str, Suite] = {
    suite.name: suite for suite in (*paper.SUITES, *beyond.SUITES, rollout.SUITE, areal_hex.SUITE, fabric.SUITE, fidelity.SUITE)
}


def find_suite(name: str) -> Suite:
    """A suite by name.

    Raises:
        InputError: there is none; one line with the names.
    """
    if name not in SUITES:
        raise InputError(f"--suite: {not_one_of(name, SUITES)}")
    return SUITES[name]
