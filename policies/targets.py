"""Targets of commands and experiments: scenario files, examples, and workloads by name or as Python objects."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from rollmux_env.commands.workload import make_scenario
from rollmux_env.errors import InputError
from rollmux_env.files import example_names
from rollmux_env.scenario import Scenario, load_scenario
from rollmux_env.suggestions import did_you_mean
from rollmux_env.user_code import is_whole
from rollmux_env.validation_errors import describe
from rollmux_env.workloads import WORKLOADS
from rollmux_env.workloads.fleets import with_fleet
from rollmux_env.workloads.options import OPTION_NAMES
from rollmux_env.workloads.own import OwnWorkload, draw, is_own, name_of, options_of

Target = str | Path | Sequence[str | Path] | Scenario | Callable[[int], Scenario] | OwnWorkload
"""What to replay: a scenario file or a workload by name, several files, a scenario, or a workload of a user as an object."""

_SHORT = {"toy": "rollmux_env.envs.placement.generator:Toy"}
"""Names of workloads that are made for environments."""


@dataclass(frozen=True)
class ResolvedTarget:
    """A target of a bench after its name was looked up: a source of scenarios by seed.

    Attributes:
        name: Name in titles and results.
        source: Name of a file or a workload, a scenario, or a workload of a user as an object; None for several files.
        files: Several files, whose seeds are the first seed and those after it.
    """

    name: str
    source: str | Scenario | Callable[[int], Scenario] | OwnWorkload | None
    files: tuple[str, ...] = ()

    def seeds(self, asked: int | Iterable[int] | None) -> list[int]:
        """Return the seeds of a bench.

        Args:
            asked: Number of seeds, starting at 0, or the seeds themselves, or None for one seed or one per file.

        Raises:
            InputError: There is no seed, or files are given with seeds.
        """
        if self.files:
            if asked is not None:
                raise InputError(f"seeds: {self.name} has {len(self.files)} files, and each is one replicate; leave the seeds out")
            return [*range(len(self.files))]
        seeds: list[Any] = [0] if asked is None else [*asked] if isinstance(asked, Iterable) else [*range(asked)]
        if not seeds:
            raise InputError("seeds: must be at least one")
        for seed in seeds:
            if not is_whole(seed) or seed < 0:
                raise InputError(f"seeds: must be whole numbers of at least 0, not {describe(seed)}")
        return [int(seed) for seed in seeds]  # of NumPy's numbers, plain ones

    def file(self, seed: int) -> str | None:
        """Return the name of the scenario file of a seed, or None for a workload or an object."""
        if self.files:
            return self.files[seed]
        return self.source if isinstance(self.source, str) and not is_workload(self.source) else None

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options of the workload, if it has one of them by name."""
        if not isinstance(self.source, str) or not is_workload(self.source):
            return ()
        return options_of(self.source) if is_own(self.source) else OPTION_NAMES

    def scenario(self, seed: int, settings: Mapping[str, str]) -> Scenario:
        """Return the scenario of a seed.

        Args:
            seed: Seed of a workload. A file is the same for every seed.
            settings: Options of a workload by name, as text.

        Raises:
            InputError: The file or the options are not valid, or something other than a named workload has options.
            PlanError: A workload of a user raised an exception.
        """
        target = self.file(seed) or self.source
        if isinstance(target, str):
            return find_scenario(target, seed, [f"{key}={text}" for key, text in settings.items()])
        if settings:
            raise InputError("settings: only a workload by name has options")
        assert target is not None
        return target if isinstance(target, Scenario) else draw(target, seed)


def find_streams(target: Target) -> ResolvedTarget:
    """Resolve a target.

    Args:
        target: File, example or workload by name, a pattern of files such as `streams/*.json`, several files, a scenario, or a
            workload of a user.

    Raises:
        InputError: No file matches the pattern, or the target is none of these.
    """
    if isinstance(target, Sequence) and not isinstance(target, str):
        names = [str(file) for file in target]
        if len(names) == 1:
            return find_streams(names[0])
        if not names:
            raise InputError("target: give a file at least")
        return ResolvedTarget(f"{names[0]} and {len(names) - 1} more", None, tuple(names))
    if isinstance(target, str | Path):
        name = str(target)
        if not has_magic(name) or Path(name).exists():
            return ResolvedTarget(name, _SHORT.get(name, name))
        if not (files := sorted(glob(name))):
            raise InputError(f"{name}: no file matches")
        return ResolvedTarget(name, None, tuple(files))
    if not (isinstance(target, Scenario) or callable(target) or hasattr(target, "scenario")):
        raise InputError(f"target: must be a file, a workload or a scenario, not {describe(target)}")
    return ResolvedTarget(name_of(target), target)


def is_workload(target: str) -> bool:
    """Return whether a target is the name of a workload, of RollMux or as `module:name` of a user."""
    return target in WORKLOADS or is_own(target)


def find_scenario(target: str, seed: int, settings: Sequence[str]) -> Scenario:
    """Load the scenario of a file or an example, or generate a workload.

    Args:
        target: Path of a scenario file, name of an example, or name of a workload.
        seed: Seed of a workload. Files and examples are the same for every seed.
        settings: Settings of a workload as `KEY=VALUE`, as given to `--set`.

    Raises:
        InputError: There is no such file, example or workload, or settings are given with a file.
        PlanError: A workload of a user raised an exception.
    """
    if is_workload(target := _SHORT.get(target, target)):
        return make_scenario(target, seed, settings)
    if Path(target).suffix == ".csv":
        raise InputError(
            f"{target}: a CSV file is a trace: `rollmux bench philly --set {shlex.quote(f'csv={target}')}` has its jobs"
        )
    if not Path(target).suffix and not Path(target).exists() and target not in (names := example_names()):
        known = [*WORKLOADS, *_SHORT]
        near = did_you_mean(target, [*known, *names])
        raise InputError(
            f"{target}: is no file, example or workload; workloads are {', '.join(known)}, or module:name of your own{near}"
        )
    if settings:
        raise InputError(f"{target}: a scenario file takes no options of a workload (--set {settings[0]})")
    return load_scenario(target)


def apply_fleet(scenarios: Mapping[int, Scenario], fleet: str | None) -> dict[int, Scenario]:
    """Give the scenarios of all seeds the nodes of a fleet, if one is named.

    Args:
        scenarios: Scenario by seed.
        fleet: Nodes of each pool, as in `12+10`, or `load=1.6`; None for those of the scenarios.

    Raises:
        InputError: The scenarios have different pools, or the fleet does not go with them.
    """
    pools = [" + ".join(scenario.cluster.pools) for scenario in scenarios.values()]
    if different := next((k for k, names in enumerate(pools) if names != pools[0]), None):
        raise InputError(f"seed {[*scenarios][different]}: has the pools {pools[different]}, and the first seed {pools[0]}")
    return {seed: scenario if fleet is None else with_fleet(scenario, fleet) for seed, scenario in scenarios.items()}
