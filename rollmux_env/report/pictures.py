"""The pictures of `rollmux trace`: the choice of group and window, and the files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf, isfinite
from pathlib import Path
from typing import NamedTuple

from rollmux_env.cluster.events import Admitted, Arrived, Departed, Event, Moved, Resumed
from rollmux_env.errors import InputError
from rollmux_env.files import write_whole
from rollmux_env.replay.run import Run
from rollmux_env.report.folder import make_folder
from rollmux_env.report.gantt import gantt_png
from rollmux_env.report.lanes import POOLS, Membership, follow, shares
from rollmux_env.report.perfetto import trace_json

META_ITERATIONS = 6  # in a Gantt, unless its hours are given


class Stay(NamedTuple):
    """A time in which a group's members stay the same, seconds."""

    members: Membership
    until_s: float

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.until_s - self.members.at_s


class View(NamedTuple):
    """What a Gantt shows: a group, and a window in seconds."""

    group: int
    from_s: float
    until_s: float


def write_pictures(
    folder: Path, run: Run, title: str, group: int | None = None, from_h: float | None = None, hours: float | None = None
) -> list[str]:
    """Write `group-N.png`, a Gantt of one group, and `trace.json`, for Perfetto, of an event replay that kept its phases.

    Args:
        folder: made where it does not exist, once there is something to write.
        title: begins the Gantt's title.
        group: show this one in both files; else the trace shows all groups, and the Gantt one as `choose_view` says.
        from_h, hours: show this window in both files; else the trace shows the whole replay, and the Gantt as `choose_view` says.

    Returns:
        What each file shows, a line a file.

    Raises:
        InputError: no such group, nobody runs in the window, or a file cannot be written; one line.
    """
    cluster, zero_s = run.scenario.cluster, run.time_s[0]
    lanes, memberships = follow(cluster, run.log)
    view = choose_view(memberships, zero_s, group, from_h, hours)
    own = [lane for lane in lanes if lane.group == view.group]
    phases = [phase for phase in run.phases if phase.group == view.group]
    span = f"{(view.from_s - zero_s) / 3600:.2f} to {(view.until_s - zero_s) / 3600:.2f} h"
    make_folder(folder)
    gantt = folder / f"group-{view.group}.png"
    write_whole(gantt, gantt_png(phases, own, view.from_s, view.until_s, f"{title}: group {view.group}, {span}"))
    by_pool = {pool: shares(phases, [lane for lane in own if lane.pool == pool], view.from_s, view.until_s) for pool in POOLS}
    bubbles = [f"{pool} {100 * pool_shares.bubble:.1f}%" for pool, pool_shares in by_pool.items() if pool_shares]

    events = run.log
    if group is not None:
        jobs = {job_id for membership in memberships if membership.group == group for job_id in membership.jobs}
        events = [event for event in run.log if _job_of(event) in jobs]
    window = None if from_h is None and hours is None else (view.from_s, view.until_s)
    shown = lanes if group is None else own
    if window:
        shown = [lane for lane in shown if lane.from_s < view.until_s and lane.until_s > view.from_s]
    trace = folder / "trace.json"
    write_whole(trace, trace_json(cluster, run.phases if group is None else phases, shown, events, zero_s, window))
    which = "all groups" if group is None else f"group {group}"
    return [
        f"{gantt}: group {view.group}, {span}, bubbles: {', '.join(bubbles)}",
        f"{trace}: {which}, {span if window else 'the whole replay'}, for ui.perfetto.dev",
    ]


def choose_view(
    memberships: Iterable[Membership],
    zero_s: float,
    group: int | None = None,
    from_h: float | None = None,
    hours: float | None = None,
) -> View:
    """Choose the group and window. Unless the options say otherwise: the longest time in which a group has the most members.

    Args:
        memberships: in order of time.
        zero_s: the time that hours count from.
        group: its number.
        from_h: start of the window, hours; else the start of that time.
        hours: its length; else six meta-iterations at the planned period, or what is left of the replay.

    Raises:
        InputError: no such group, no such window, or nobody runs in it; one line.
    """
    _require_hours("--from", from_h, "0 or more", from_h is None or from_h >= 0.0)
    _require_hours("--hours", hours, "above 0", hours is None or hours > 0.0)
    every = list(_stays(memberships))
    stays = [stay for stay in every if group is None or stay.members.group == group]
    if not stays:
        last = max(stay.members.group for stay in every)
        raise InputError(f"--group {group}: there is no such group; the last one is {last}")
    end_s = max(stay.until_s for stay in stays)
    if from_h is None:
        shown = stays
    else:
        from_s = zero_s + 3600 * from_h
        until_s = from_s + 3600 * (hours or 0.0)
        shown = [stay for stay in stays if stay.until_s > from_s and stay.members.at_s <= until_s]
    if not shown:
        who = "the replay" if group is None else f"group {group}"
        begins_h = (stays[0].members.at_s - zero_s) / 3600
        raise InputError(
            f"--from {from_h:g}: nobody runs then; {who} has jobs from {begins_h:.2f} to {(end_s - zero_s) / 3600:.2f} h"
        )
    best = max(shown, key=lambda stay: (len(stay.members.jobs), stay.seconds, -stay.members.group))
    begin_s = best.members.at_s if from_h is None else from_s
    if hours is not None:
        return View(best.members.group, begin_s, begin_s + 3600 * hours)
    return View(best.members.group, begin_s, min(begin_s + META_ITERATIONS * best.members.period_s, end_s))


def _stays(memberships: Iterable[Membership]) -> Iterator[Stay]:
    """How long each membership lasted; one that has not ended lasts for ever."""
    present: dict[int, Membership] = {}
    for members in memberships:
        before = present.pop(members.group, None)
        if before is not None:
            yield Stay(before, members.at_s)
        if members.jobs:
            present[members.group] = members
    for members in present.values():
        yield Stay(members, inf)


def _job_of(event: Event) -> str | None:
    """Id of the job whose place an event is about."""
    match event:
        case Arrived(job=job):
            return job.id
        case Admitted(job_id=job_id) | Moved(job_id=job_id) | Resumed(job_id=job_id) | Departed(job_id=job_id):
            return job_id
        case _:
            return None


def _require_hours(option: str, value: float | None, wanted: str, holds: bool) -> None:
    if value is not None and not (holds and isfinite(value)):
        raise InputError(f"{option} {value:g}: must be a number of hours, {wanted}")
