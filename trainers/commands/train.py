"""The command `rollmux train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollmux_env.errors import require
from rollmux_env.report.tables import show
from trainers.config import read_config


def train(
    name: Annotated[str, typer.Argument(metavar="NAME|CONFIG", help="A preset (toy, mixed, production, ...) or a YAML file.")],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a value, as in ppo.n_steps=256; can be repeated.", show_default=False
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="Number of runs, with seeds counting up from the configuration's.")
    ] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Output folder. (default: runs/NAME)", show_default=False)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume exactly from the checkpoints in the folder.")] = False,
) -> None:
    """Train a policy on a Gymnasium environment.

    Every seed gets a folder: a checkpoint, the policy files last.safetensors and best.safetensors, curve.csv, TensorBoard's events.

    Examples: `rollmux train toy`

    `rollmux train production --set ppo.n_steps=256 --set steps=500000 --seeds 3 --out runs/longer`

    `tensorboard --logdir runs`
    """
    require("train", "train")
    config = read_config(name, changes or [])
    from trainers.runs import best_table, run_all

    folder = out or Path("runs") / Path(name).stem
    show(best_table(name, folder, run_all(config, name, seeds, folder, resume)))
