"""The suites by name: those of placement policies, read from files of published figures, and those with other measures."""

from __future__ import annotations

from collections.abc import Iterable

from rollmux_env.bench.suite import Suite
from rollmux_env.bench.suites import areal_hex, fabric, fidelity, rollout
from rollmux_env.bench.suites.assuming import assuming
from rollmux_env.bench.suites.published import make_published_suite
from rollmux_env.errors import InputError
from rollmux_env.validation_errors import not_one_of

_PLACEMENT = {
    "rollmux": "temporal rollout-heavy spatial production sensitivity latency mixed drift contention",
    "beyond": "failures quantile promises learned shift asynchrony shapes fleet",
}
SUITES: dict[str, Suite] = {name: make_published_suite(file, name) for file, names in _PLACEMENT.items() for name in names.split()}
SUITES |= {suite.name: suite for suite in (rollout.SUITE, areal_hex.SUITE, fabric.SUITE, fidelity.SUITE)}


def find_suite(name: str, settings: Iterable[str] = ()) -> Suite:
    """Return a suite by name, with values of `--set`.

    Args:
        name: Name of the suite.
        settings: Texts `key=value` of `--set`.

    Raises:
        InputError: If there is no such suite, or it does not support these values.
    """
    if name not in SUITES:
        raise InputError(f"--suite: {not_one_of(name, [*SUITES, 'leaderboard'])}")
    return assuming(SUITES[name], settings)
