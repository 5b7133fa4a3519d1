"""The command `rollmux train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollmux_env.errors import require
from rollmux_env.report.loggers import find_logger
from rollmux_env.report.tables import show
from trainers.config import read_config


def train(
    name: Annotated[str, typer.Argument(metavar="NAME|CONFIG", help="A preset (toy, mixed, production, ...) or a YAML file.")],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a value, as in steps=20000 or ppo.gamma=0.9; can be repeated."),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="Number of runs, with seeds counting up from the configuration's.")
    ] = 1,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Output folder. (default: runs/NAME)")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume exactly from the checkpoints in the folder.")] = False,
    swept: Annotated[
        list[str] | None,
        typer.Option("--sweep", metavar="KEY=VALUE,...", help="Train at each value; repeated, at all combinations."),
    ] = None,
    logger: Annotated[
        str | None,
        typer.Option(
            "--logger",
            metavar="MODULE:NAME",
            help="Function of a run's folder that returns a logger, with write() as SB3's KVWriter.",
        ),
    ] = None,
) -> None:
    """Train a scheduling policy on a Gymnasium environment; `rollmux run` trains language models.

    Every seed gets a folder: a checkpoint, the policy files last.safetensors and best.safetensors, curve.csv, TensorBoard's events.

    Examples: `rollmux train toy`

    `rollmux train production --set ppo.gamma=0.9 --set steps=500000 --seeds 3 --out runs/longer`

    `rollmux train toy --sweep ppo.learning_rate=0.001,0.003 --sweep ppo.copies=4,8 --seeds 3`

    `tensorboard --logdir runs`
    """
    require("train", "train")
    from policies.sweeps import parse_sweep

    config, keys = read_config(name, changes or []), parse_sweep(swept or [])
    from trainers.runs import best_table, run_all
    from trainers.sweeps import combinations, sweep, sweep_table

    folder, make_logger = out or Path("runs") / Path(name).stem, find_logger(logger) if logger else None
    if keys:
        configs = combinations(name, changes or [], keys)
        show(sweep_table(name, folder, configs, sweep(configs, name, seeds, folder, resume, make_logger)))
    else:
        show(best_table(name, folder, run_all(config, name, seeds, folder, resume, logger=make_logger)))
