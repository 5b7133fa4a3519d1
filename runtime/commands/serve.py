"""The command `rollmux serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from policies.dispatch import make_dispatch
from policies.registry import make_runnable
from rollmux_env.errors import InputError, require
from rollmux_env.keys.cluster import Cluster
from rollmux_env.report.compiling import announce_compiling
from rollmux_env.report.folder import make_folder
from runtime.commands.options import Address, DispatchName, PolicyName
from runtime.coordinator.run_plan import dispatch_name, placement_name
from runtime.jobs.file import load_cluster
from runtime.journal.parts import newest_part
from runtime.journal.write import SERVES, is_begun, lock_driver, read_run
from runtime.machines.hosts import load_hosts
from runtime.service.address import continuing, has_service, in_shell, parse_listen
from runtime.service.head import head
from runtime.service.plan import ServiceOptions
from runtime.signals import listening


def _refuse_out(value: Path | None) -> None:
    """Refuse the option --out of `rollmux run`, which a service does not have."""
    if value is not None:
        raise InputError(f"--out: is for `rollmux run`; the folder of a service is its argument: `rollmux serve {in_shell(value)}`")


def _check_journal(folder: Path) -> None:
    """Check that the journal of a folder can be read, before Ray is started, and is that of a service."""
    record = read_run(folder)
    if not has_service(folder) and any(not fact.spec.is_attached for fact in record.submitted):
        raise InputError(f"{folder}: holds a run, and no service; `{continuing(folder)}` continues it")


def _limits_of(path: Path | None, no_ray: bool) -> Cluster | None:
    """Return the cluster of a file, or None without one.

    Args:
        path: File of --cluster, or None.
        no_ray: Whether the service runs without Ray.

    Raises:
        InputError: If the file cannot be read, or names hosts of a service with Ray; one line.
    """
    if path is None:
        return None
    limits = load_cluster(path)
    if load_hosts(path) is not None and not no_ray:
        raise InputError("--cluster: its hosts go with --no-ray; a Ray cluster says itself which nodes it has")
    return limits


def _serve_here(folder: Path, wish: ServiceOptions, cluster: Path | None) -> None:
    from runtime.service.serve_here import serve_here  # it imports the HTTP server, of an extra

    serve_here(folder, wish, cluster, typer.echo)


def _serve_on_ray(folder: Path, wish: ServiceOptions, address: str | None) -> None:
    with head(folder, address, typer.echo) as service:
        from runtime.service.serve_loop import serve_loop  # it imports Ray, whose environment `head` prepares

        serve_loop(folder, service, wish, typer.echo)


def serve(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The service's folder: journal, checkpoints, logs.")],
    policy: PolicyName = None,
    dispatch: DispatchName = None,
    cluster: Annotated[
        Path | None,
        typer.Option(
            "--cluster",
            metavar="FILE",
            help="File with a `cluster` section, and `hosts` for --no-ray. (default: one node of each pool)",
        ),
    ] = None,
    address: Address = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Where the service listens. (default: as before in this folder, else 127.0.0.1 and a free port)",
        ),
    ] = None,
    beyond_loopback: Annotated[
        bool, typer.Option("--listen-beyond-loopback", help="Let other machines reach it, without TLS (docs/guides/security.md).")
    ] = False,
    no_ray: Annotated[
        bool, typer.Option("--no-ray", help="Serve attached jobs and commands alone, without Ray (docs/guides/attach.md).")
    ] = False,
    grace: Annotated[
        float | None,
        typer.Option(
            "--grace",
            metavar="SECONDS",
            min=0,
            help="Free the nodes of a lost lease after this time. (default: only when its owner is known to have ended)",
        ),
    ] = None,
    max_hold: Annotated[
        float | None,
        typer.Option(
            "--max-hold",
            metavar="N",
            min=1,
            help="Revoke the lease of an attached job whose phase exceeds N times its worst case. (default: no limit)",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed of random policies. (default: 0)")] = None,
    out: Annotated[Path | None, typer.Option("--out", hidden=True, is_eager=True, callback=_refuse_out)] = None,
) -> None:
    """Run a service for RL post-training jobs. Ctrl-C stops it; the same folder resumes it.

    Submit jobs with `rollmux submit` from another terminal. Inspect them with `status` and `logs`, end them with `cancel`.

    Example: `rollmux serve rollmux-service --policy consolidate`
    """
    require(*(("serve", "serve --no-ray") if no_ray else ("run", "serve")))
    if no_ray and address is not None:
        raise InputError("--no-ray: does not go with --address")
    limits = _limits_of(cluster, no_ray)
    listen = parse_listen(http, beyond_loopback)
    make_runnable(placement_name(policy), seed or 0)
    make_dispatch(dispatch_name(dispatch))
    make_folder(folder, private=True, option="")
    folder = folder.resolve()
    if is_begun(newest_part(folder)) and not (no_ray and has_service(folder)):  # a long journal takes long to be read
        _check_journal(folder)
    try:
        with listening(), lock_driver(folder, SERVES):
            announce_compiling()
            wish = ServiceOptions(policy, dispatch, seed, limits, listen, beyond_loopback, grace, max_hold)
            if no_ray:
                _serve_here(folder, wish, cluster)
            else:
                _serve_on_ray(folder, wish, address)
    except KeyboardInterrupt:
        typer.echo("stopped at once")
        raise
    typer.echo(f"stopped; `rollmux serve {in_shell(folder)}{' --no-ray' if no_ray else ''}` continues it")
