"""Targets of commands: scenario files, examples and workloads, by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rollmux_env.commands.workload import make_scenario
from rollmux_env.errors import InputError
from rollmux_env.files import example_names
from rollmux_env.scenario import load_scenario
from rollmux_env.suggestions import did_you_mean
from rollmux_env.workloads import WORKLOADS

if TYPE_CHECKING:
    from rollmux_env.scenario import Scenario


def find_scenario(target: str, seed: int, settings: Sequence[str]) -> Scenario:
    """Load the scenario of a file or an example, or generate a workload.

    Args:
        target: Path of a scenario file, name of an example, or name of a workload.
        seed: Seed of a workload. Files and examples are the same for every seed.
        settings: Settings of a workload as `KEY=VALUE`, as given to `--set`.

    Raises:
        InputError: There is no such file, example or workload, or settings are given with a file.
    """
    if target in WORKLOADS:
        return make_scenario(target, seed, settings)
    if Path(target).suffix == ".csv":
        raise InputError(f"{target}: a CSV file is a trace: `rollmux bench philly --set csv={target}` has its jobs")
    if not Path(target).suffix and not Path(target).exists() and target not in (names := example_names()):
        near = did_you_mean(target, [*WORKLOADS, *names])
        raise InputError(f"{target}: is no file, example or workload; workloads are {', '.join(WORKLOADS)}{near}")
    if settings:
        raise InputError(f"{target}: a scenario file takes no options of a workload (--set {settings[0]})")
    return load_scenario(target)
