"""The leaderboard suite, `rollmux bench --suite leaderboard`: one entrant on all streams of its tracks."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from policies.commands.bench_options import BenchOptions
from policies.commands.printed import Printed
from policies.makers import makers
from policies.named import LEARNED, SEARCH, SHIPPED_NAMES, is_own
from policies.registry import make_runnable
from policies.rollout.places import make_at
from rollmux_env.bench.leaderboard.entries import (
    LeaderboardEntry,
    StreamResult,
    entry_json,
    entry_of,
    file_name,
    list_streams,
    measure,
)
from rollmux_env.bench.leaderboard.tracks import TRACKS, Entrant, Track, own_track
from rollmux_env.bench.processes import spread
from rollmux_env.bench.suite import Makers
from rollmux_env.command_options import parse_pairs
from rollmux_env.errors import InputError
from rollmux_env.factories import own_object
from rollmux_env.files import read_file, write_whole
from rollmux_env.progress import ProgressLines
from rollmux_env.report.folder import results_folder
from rollmux_env.report.leaderboard import entry_csv, entry_tables
from rollmux_env.user_code import keep_stdout
from rollmux_env.workloads.own import is_own as is_own_workload

_SETTINGS = ("author", "link", "workload")


def enter_leaderboard(options: BenchOptions) -> Printed:
    """Measure an entrant of the leaderboard, and write its entry.

    Raises:
        InputError: There is no policy, or more than one of a kind, or one is not valid, or a setting is none of the leaderboard.
        PlanError: A policy broke an invariant.
    """
    keep_stdout()
    if len(options.policy or ()) > 1:
        raise typer.BadParameter("the leaderboard takes one policy at a time", param_hint="--policy")
    settings = dict(parse_pairs("--set", options.settings or ()))
    for key in settings:
        if key not in _SETTINGS:
            raise InputError(f"--set {key}: the leaderboard takes {', '.join(_SETTINGS)} alone")
    workload, link = settings.get("workload"), settings.get("link", "")
    if link and not link.startswith(("http://", "https://")):
        raise InputError(f"--set link={link}: must be an address that begins with https://")
    if workload is not None and not is_own_workload(workload):
        raise InputError(f"--set workload={workload}: must be module:name of a workload of your own")
    tracks = TRACKS if workload is None else (*TRACKS, own_track(workload))
    entrant = Entrant(options.policy[0] if options.policy else None, options.dispatch, options.rollout_policy)
    folder = options.out or Path()
    file = folder / file_name(entrant)
    with results_folder(folder, file.name, options.overwrite):
        measured = enter(entrant, options.workers, options.limit_s, tracks)
        entry = replace(measured, author=settings.get("author", ""), link=link)
        text = entry_json(entry)
        write_whole(file, text)
    return Printed(json.loads(text), [*entry_tables(entry, tracks), Text(f"written: {file}")], entry_csv(entry))


def enter(entrant: Entrant, workers: int = 1, limit_s: float | None = None, tracks: Sequence[Track] = TRACKS) -> LeaderboardEntry:
    """Measure an entrant of the leaderboard.

    Args:
        entrant: Policies to measure.
        workers: Number of processes.
        limit_s: Longest that one stream may take, in seconds, or None for no limit.
        tracks: Tracks that are measured if the entrant is in them.

    Raises:
        InputError: A policy is unknown or not valid.
        PlanError: A policy broke an invariant.
    """
    if not entrant.name:
        raise InputError("--suite leaderboard: give --policy, --dispatch or --rollout-policy")
    made = replaying_makers()
    if entrant.placement is not None:
        make_runnable(entrant.placement)
    if entrant.dispatch is not None:
        made.dispatch(entrant.dispatch)
    if entrant.rollout is not None:
        made.rollout(entrant.rollout)
    streams, results = list_streams(entrant, tracks), {}
    with ProgressLines("leaderboard") as progress:
        for index, result in spread(partial(_one, entrant), streams, workers, limit_s=limit_s, name=lambda stream: entrant.name):
            results[index] = result
            progress.report(f"{len(results)} of {len(streams)} streams done")
    measured = entry_of(entrant, [results[index] for index in range(len(streams))], sources_of(entrant))
    return replace(measured, files=files_of(entrant))


@cache
def replaying_makers() -> Makers:
    """Return the factories of all kinds of policies, with rollout policies as event replays use them."""
    return makers()._replace(rollout=partial(make_at, place="replay"))


def _one(entrant: Entrant, stream: tuple[str, int, bool], report: Callable[[int, int], None]) -> StreamResult:
    return measure(entrant, stream, replaying_makers())


def sources_of(entrant: Entrant) -> dict[str, str]:
    """Return the SHA-256 of each user-written policy's source file and of each policy file, by the name of the policy."""
    files = {name: file for name, file, is_users in _files(entrant) if is_users}
    return {name: hashlib.sha256(read_file(file)).hexdigest() for name, file in files.items()}


def files_of(entrant: Entrant) -> dict[str, str]:
    """Return the file of each policy by its name: the name of a user's, or the path of one of RollMux."""
    root = Path(__file__).parents[2]
    return {name: file.name if is_users else str(file.relative_to(root)) for name, file, is_users in _files(entrant)}


def _files(entrant: Entrant) -> Iterator[tuple[str, Path, bool]]:
    """Yield the name and the file of each policy, and whether it is a user's."""
    for spec, make in _parts(entrant):
        name = spec.partition(",")[0]
        if name.startswith(LEARNED) and name.removeprefix(LEARNED) not in SHIPPED_NAMES:
            yield name, Path(name.removeprefix(LEARNED)), True
            continue
        own: Any = own_object("leaderboard", name) if is_own(spec) else type(make(spec))
        file = inspect.getsourcefile(own)
        if file is not None:
            yield name, Path(file), is_own(spec)


def _parts(entrant: Entrant) -> Iterator[tuple[str, Callable[[str], Any]]]:
    """Yield each policy with its factory, and a user's code around which another one searches, or which orders its queue."""
    made = replaying_makers()
    if entrant.placement is not None:
        yield entrant.placement, make_runnable
        base = entrant.placement.removeprefix(SEARCH)
        if base != entrant.placement and (is_own(base) or base.startswith(LEARNED)):
            yield base.partition(",")[0], make_runnable
        orders = (option.removeprefix("order=") for option in base.split(",")[1:] if option.startswith("order="))
        yield from ((order, make_runnable) for order in orders if is_own(order))
    if entrant.dispatch is not None:
        yield entrant.dispatch, made.dispatch
    if entrant.rollout is not None:
        yield entrant.rollout, made.rollout
