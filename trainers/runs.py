"""Training runs with several seeds in one folder, with progress."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.text import Text

from rollmux_env.bench.intervals import mean_interval
from rollmux_env.errors import InputError
from rollmux_env.files import check_regular, read_json, write_whole
from rollmux_env.locks import only_writer
from rollmux_env.report.folder import make_folder
from rollmux_env.report.loggers import MakeLogger
from rollmux_env.report.tables import heading, make_table
from rollmux_env.validation_errors import describe
from trainers.config import LAST_SEED, AnyConfig, Evaluation
from trainers.problem import Figures, Problem, best_rule
from trainers.problems.catalogue import make_problem
from trainers.progress import ProgressPrinter, training_bar
from trainers.references import AGENTS, reference_usd
from trainers.train import CHECKPOINT, Learner, TrainingRun, train

Curve = list[dict[str, float]]

_CONFIG, REFERENCES = "config.json", "references.json"


def run_all(
    config: AnyConfig,
    name: str,
    seeds: int,
    folder: Path,
    resume: bool,
    learner: Learner | None = None,
    logger: MakeLogger | None = None,
) -> dict[int, Curve]:
    """Train with consecutive seeds from `config.seed` on, each in `folder/seed-N`. Return the evaluations by seed.

    Args:
        config: Configuration of the runs.
        name: Name of the configuration, for error messages.
        seeds: Number of seeds.
        folder: Folder of all runs.
        resume: Whether to continue the runs in the folder.
        learner: Function that creates the model, or None for that of the configuration.
        logger: Function that makes a logger beside TensorBoard from the folder of a run, or None.

    Raises:
        InputError: The folder has another writer or, without `resume`, runs already; with `resume`, its runs have another
            configuration; a checkpoint is damaged; or a seed is too large.
    """
    problem = make_problem(config.environment, name)
    if config.seed + seeds - 1 > LAST_SEED:
        raise InputError(f"--seeds {seeds}: from {config.seed} on goes beyond the last seed, {LAST_SEED}")
    _check_folder(folder, resume)
    curves: dict[int, Curve] = {}
    with only_writer(folder), training_bar(config.environment["name"]) as progress:
        _claim(folder, config, resume)
        bar = progress.add_task("", total=None)
        references = find_references(
            problem, config.evaluation, folder / REFERENCES, lambda task: progress.update(bar, description=f"reference {task}")
        )
        for seed in range(config.seed, config.seed + seeds):
            progress.reset(bar, total=config.steps)
            make_folder(folder / f"seed-{seed}")
            tell = ProgressPrinter(progress, bar, seed, config.steps, best_rule(references))
            run = TrainingRun(config, problem, references, seed, folder / f"seed-{seed}", tell, learner, logger)
            curves[seed] = train(run, resume)
    return curves


def find_references(problem: Problem, settings: Evaluation, file: Path, tell: Callable[[str], None]) -> Figures:
    """Return the dollars of each reference on the held-out streams, shape (E,). Compute missing ones and add them to the file.

    Args:
        problem: The learning problem.
        settings: References and seeds of the held-out streams.
        file: File of known dollars.
        tell: Function that receives a description of each computation.

    Raises:
        InputError: There is no such policy, or the file was not written by this function.
    """
    seeds = range(settings.first_seed, settings.first_seed + settings.seeds)
    known = _read_references(file)
    references: dict[str, NDArray[np.float64]] = {}
    for policy in settings.references:
        usd = []
        for seed in seeds:
            key = _reference_key(problem, policy, seed)
            if key not in known:
                tell(f"{policy}, seed {seed}")
                known[key] = reference_usd(problem, policy, seed)
                write_whole(file, json.dumps(known, indent=1) + "\n")
            usd.append(known[key])
        references[policy] = np.array(usd)
    return references


def best_table(name: str, folder: Path, curves: Mapping[int, Curve]) -> RenderableType:
    """Create a table of the evaluation with the highest return of every seed, and their mean."""
    best = {seed: max(curve, key=lambda row: row["return"]) for seed, curve in curves.items()}
    names = [key for key in next(iter(best.values())) if key not in ("frames_per_s", "environment_share")]
    table = make_table("seed", *(key.replace("_", " ") for key in names))
    for seed, row in best.items():
        table.add_row(str(seed), f"{row['steps']:,.0f}", *(f"{row[key]:.4f}" for key in names[1:]))
    if len(best) > 1:
        table.add_row("mean", "", *(mean_interval([row[key] for row in best.values()]).text(4) for key in names[1:]), style="bold")
    note = (
        f"greedy choices on held-out streams, at the evaluation with the highest return; networks: {folder}/seed-*/best.safetensors"
    )
    return Group(heading(f"{name}: best of each run"), table, Text(note, style="dim"))


def _check_folder(folder: Path, resume: bool) -> None:
    """Create the folder of new runs, or check that the folder of runs to resume exists."""
    if not resume:
        make_folder(folder)
        return
    try:
        check_regular(folder / _CONFIG)
    except InputError as error:
        raise InputError(f"--resume: {error}") from None


def _claim(folder: Path, config: AnyConfig, resume: bool) -> None:
    """Write the configuration into the folder. A resumed configuration must be equal, or have fewer steps."""
    file = folder / _CONFIG
    if resume:
        if not _is_longer(file, config):
            return  # The file says the same already.
    elif next(folder.glob(f"seed-*/{CHECKPOINT}"), None):
        raise InputError(f"--out {folder}: holds runs already; --resume continues them")
    write_whole(file, config.model_dump_json(indent=1) + "\n")


def _is_longer(file: Path, config: AnyConfig) -> bool:
    """Return whether resumed runs get more steps than before.

    Any other difference is refused, and so are more steps if something else depends on their number.

    Raises:
        InputError: The file cannot be read, or differs.
    """
    try:
        saved = read_json(file)
    except InputError as error:
        raise InputError(f"--resume: {error}") from None
    present, steps = json.loads(config.model_dump_json()), saved.get("steps") if isinstance(saved, dict) else None
    if isinstance(steps, int) and steps < config.steps and not _difference({**saved, "steps": config.steps}, present):
        if not config.ppo.linear:
            return True
        raise InputError(
            f"--resume: {file}: steps is {steps} there; with ppo.linear the learning rate has fallen to 0 by then, so more steps "
            "are another run"
        )
    if different := _difference(saved, present):
        raise InputError(f"--resume: {file}: {different}")
    return False


def _difference(saved: Any, present: Any, path: Sequence[str] = ()) -> str | None:
    """Describe the first difference between two configurations, or return None if they are equal."""
    if isinstance(saved, dict) and isinstance(present, dict):
        for key in sorted(saved.keys() | present.keys()):
            if difference := _difference(saved.get(key), present.get(key), (*path, key)):
                return difference
        return None
    return None if saved == present else f"{'.'.join(path)} is {describe(saved)} there, and {describe(present)} here"


def _reference_key(problem: Problem, policy: str, seed: int) -> str:
    """Return the name under which the dollars of a reference on the stream of a seed are kept.

    An agent plays the environment, and draws from the seed, so its dollars depend on more than the stream.
    """
    played = f" with seed {seed} in {problem.model_dump_json()}" if policy in AGENTS else ""
    return f"{policy}{played} on {problem.reference_key(seed)}"


def _read_references(file: Path) -> dict[str, float]:
    if not file.exists():
        return {}
    try:
        known = read_json(file)
        return {str(key): float(usd) for key, usd in known.items()}
    except (ValueError, AttributeError, TypeError):
        raise InputError(f"{file}: is no file of reference dollars, or damaged; delete it to have them computed again") from None
