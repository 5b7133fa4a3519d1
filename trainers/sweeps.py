"""Sweeps: training runs at every combination of values of some keys, in one folder, with the best configuration in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rollmux_env.bench.intervals import mean_interval
from rollmux_env.command_options import parse_pairs
from rollmux_env.errors import InputError
from rollmux_env.files import write_whole
from rollmux_env.report.folder import make_folder
from rollmux_env.report.loggers import MakeLogger
from rollmux_env.report.tables import heading, make_table
from trainers.config import AnyConfig, read_config
from trainers.runs import REFERENCES, Curve, run_all

BEST_CONFIG = "best.json"
_COST = "over_best_rule"
_MAX_NAME_LENGTH = 100  # characters of a combination in the name of its folder
Curves = dict[int, Curve]


def combinations(name: str, changes: Sequence[str], keys: Mapping[str, Sequence[Any]]) -> dict[str, AnyConfig]:
    """Return the configuration of every combination by its text, such as `ppo.gamma=0.9,ppo.copies=4`.

    Args:
        name: Name of a preset, or path of a file.
        changes: Changes of the form `key=value` that all combinations have.
        keys: Values of each key.

    Raises:
        InputError: A configuration is not valid, a key has no value, or one twice, or it is changed for all combinations too.
    """
    pairs = {
        key: [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for value in values] for key, values in keys.items()
    }
    for key, own in pairs.items():
        if not own or len({*own}) < len(own):
            raise InputError(f"--sweep {key}: give one value or more, each once")
        if key in dict(parse_pairs("--set", changes)):
            raise InputError(f"--sweep {key}: is changed by --set too; give it once")
    read = partial(read_config, name, changes)
    return {",".join(combination).replace('"', ""): read(combination) for combination in product(*pairs.values())}


def sweep(
    configs: Mapping[str, AnyConfig], name: str, seeds: int, folder: Path, resume: bool, logger: MakeLogger | None = None
) -> dict[str, Curves]:
    """Train at every combination, and write the configuration with the best evaluations to `best.json`.

    Args:
        configs: Configuration of each combination, by its text.
        name: Name of the configuration, for error messages.
        seeds: Number of seeds of each combination.
        folder: Folder of the sweep, with a folder of runs for each combination.
        resume: Whether to continue the runs in the folder, and start those that are missing.
        logger: Function that makes the logger of a run, or None.

    Returns:
        The evaluations by seed of each combination.

    Raises:
        InputError: As from `trainers.runs.run_all`.
    """
    curves: dict[str, Curves] = {}
    known: Path | None = None
    make_folder(folder)
    for number, (text, config) in enumerate(configs.items()):
        own = folder / f"{number:02d}-{text.replace('/', '_')[:_MAX_NAME_LENGTH]}"
        make_folder(own)
        if known is not None and not (own / REFERENCES).exists():
            write_whole(own / REFERENCES, known.read_text())  # dollars are kept by all that they depend on
        curves[text] = run_all(config, name, seeds, own, resume and (own / "config.json").exists(), logger=logger)
        known = own / REFERENCES
    best = _ordered(configs, curves)[0]
    write_whole(folder / BEST_CONFIG, configs[best].model_dump_json(indent=1) + "\n")
    return curves


def sweep_table(name: str, folder: Path, configs: Mapping[str, AnyConfig], curves: Mapping[str, Curves]) -> RenderableType:
    """Create a table of the combinations, the best first, with the mean over seeds of each seed's best evaluation.

    Args:
        name: Name of the configuration.
        folder: Folder of the sweep.
        configs: Configuration of each combination, by its text.
        curves: Result of `sweep`.
    """
    figure = _COST if _have_cost(curves) else None
    table = make_table("combination", "return", *(["cost over the best rule"] if figure else []), "decisions", left=1)
    for text in _ordered(configs, curves):
        rows = _best_rows(curves[text])
        cost = [mean_interval([row[figure] for row in rows]).text(4)] if figure else []
        returns = mean_interval([row["return"] for row in rows]).text(4)
        table.add_row(text, returns, *cost, f"{max(row['steps'] for row in rows):,.0f}")
    note = (
        f"means over seeds of each run's best evaluation, on the streams that also chose it: compare winners on other streams; "
        f"the first row is {folder / BEST_CONFIG}"
    )
    return Group(heading(f"{name}: {len(curves)} combinations"), table, Text(note, style="dim"))


def _best_rows(curves: Curves) -> list[dict[str, float]]:
    return [max(curve, key=lambda row: row["return"]) for curve in curves.values()]


def _ordered(configs: Mapping[str, AnyConfig], curves: Mapping[str, Curves]) -> list[str]:
    """Return the combinations, the best first.

    They are compared by their returns. Returns of other rewards or streams mean something else, so combinations with other
    environments are compared by their cost over the best rule, if there is one.
    """
    first, *others = ((config.environment, config.evaluation) for config in configs.values())
    by_cost = _have_cost(curves) and any(other != first for other in others)

    def score(text: str) -> float:
        rows = _best_rows(curves[text])
        return sum(-row[_COST] if by_cost else row["return"] for row in rows) / len(rows)

    return sorted(curves, key=score, reverse=True)


def _have_cost(curves: Mapping[str, Curves]) -> bool:
    """Return whether every evaluation has a cost over a rule."""
    return all(_COST in row for seeds in curves.values() for row in seeds[min(seeds)])
