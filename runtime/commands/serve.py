"""`rollmux serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The service's folder: journal, checkpoints, logs.", show_default=False)
    ],
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy", "-p", metavar="NAME", help="A placement policy by name, or `module:Class` of your own; else rollmux."
        ),
    ] = None,
    dispatch: Annotated[
        str | None,
        typer.Option("--dispatch", metavar="NAME", help="Which waiting phase of a group is next; else round-robin."),
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(
            "--cluster", metavar="FILE", help="A file with a `cluster` section; else one node of each pool.", show_default=False
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="A", help="Join the Ray cluster there; else this machine.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of policies that draw at random.")] = 0,
) -> None:
    """Serve RL post-training jobs that come and go. Ctrl-C stops it; with the same folder it goes on later.

    Example: `rollmux serve rollmux-service --policy consolidate`
    """
    from policies.dispatch import make_dispatch
    from policies.registry import make_runnable
    from rollmux_env.dispatcher import migrates_at
    from rollmux_env.errors import InputError
    from rollmux_env.report.folder import make_folder
    from runtime.jobs.spec import load_cluster
    from runtime.journal import DRIVER_LOCK, take_lock
    from runtime.service.head import actor_name, standing, start_head
    from runtime.service.place import Where

    given = load_cluster(cluster) if cluster is not None else None
    make_runnable(policy or "rollmux", seed)
    if dispatch is not None and migrates_at(make_dispatch(dispatch)) is not None:
        raise InputError(f"--dispatch {dispatch}: real rollouts are not migrated; leave out its option")
    make_folder(folder)
    folder = folder.resolve()
    with take_lock(folder / DRIVER_LOCK):
        where = standing(folder)
        if where is None:
            where = Where(address, actor_name()) if address is not None else start_head(folder)
        from runtime.service.attending import Wish, attend  # not before the environment is prepared for Ray

        attend(folder, where, Wish(policy, dispatch, seed, given), typer.echo)
    typer.echo(f"stopped; `rollmux serve {folder}` goes on")
