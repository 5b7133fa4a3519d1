"""The tables of `rollmux status` and of `rollmux submit --dry-run`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text
from rollmux_client import ENDED

from rollmux_env.report.tables import figure, heading, make_table, sharing_table
from rollmux_env.validation_errors import one_line

LAST_ENDED = 10  # jobs that have ended and are shown unasked
_LONGEST = 1000  # characters of a line about a job
_STYLES = {"failed": "red", "lost": "red", "cancelled": "dim", "done": "dim", "over_budget": "dim"}


def status_tables(report: dict[str, Any], every: bool = False) -> list[RenderableType]:
    """Return the tables of `rollmux status`.

    Args:
        report: Result of `runtime.service.report.Reports.all`, or of `past_report`, of which only the jobs are shown.
        every: Whether all jobs that have ended are shown, and not only the last `LAST_ENDED` ones.
    """
    shown, folded = (report["jobs"], "") if every else _folded(report["jobs"])
    table = _jobs_table(shown, report["now_s"])
    jobs = Group(table, Text(folded, style="dim")) if folded else table
    problems = _problems(report, shown)
    title = f"{report['folder']}: {report['policy']}, {report['dispatch']}"
    if ended := report.get("ended"):
        when = f"{'killed, last heard of' if ended == 'killed' else ended} at {report['ended_at']}"
        goes_on = "" if ended == "done" else f"; `{report['continue']}` continues it"
        return [heading(f"{title}, {when}"), jobs, *problems, Text(f"as the journal has it{goes_on}", style="dim")]
    title += f", {figure(report['usd_per_hour'], ' $/h')}, {figure(report['usd_per_hour_solo'], ' $/h')} if every job were alone"
    title += ", stopping" if report["stopping"] else ""
    drains = [Text(_drain_words(plan), style="red" if plan.get("overdue") else "") for plan in report.get("drains", ())]
    pools = _groups_table(report["groups"]), _pools_table(report["pools"])
    return [heading(title), jobs, *_of_all_jobs(report), *pools, *drains, *problems]


def _problems(report: Mapping[str, Any], shown: Sequence[Mapping[str, Any]]) -> list[Text]:
    """Return the lines below the tables: why the service is paused, and what is wrong with the jobs that are shown."""
    said = [(job["id"], job[key]) for job in shown for key in ("problem", "reason") if _is_told(job, key)]
    problems = [Text(one_line(f"{job_id}: {words}", _LONGEST)) for job_id, words in said]
    if report["paused"]:
        problems.insert(0, Text(one_line(f"paused: {report['paused']}", _LONGEST), style="red"))
    return problems


def _of_all_jobs(report: Mapping[str, Any]) -> list[RenderableType]:
    """Return the queue, and the figures of jobs and users as a whole, without what nothing is known of."""
    parts: list[RenderableType] = []
    if waiting := [job for job in report["jobs"] if job["position"] is not None]:
        parts.append(queue_table(waiting, report["now_s"], report["order"]))
    if placed := [job for job in report["jobs"] if job["usd_per_hour"] is not None]:
        parts += heading("Shared against alone, by profiles"), sharing_table(placed)
    if report["completion"] is not None:
        parts.append(Text(_completion_words(report["completion"])))
    if report["throughput_gain"] is not None:
        parts.append(Text(f"recent throughput per node-hour: {report['throughput_gain']:.2f}x that of the jobs alone"))
    if any(user["quota"] or user["user"] for user in report["users"]):
        parts.append(users_table(report["users"], report["order"]))
    return parts


def _completion_words(completion: Mapping[str, float]) -> str:
    mean, most = (figure(completion[key], " h", ".1f") for key in ("mean_completion_h", "completion_p95_h"))
    queue = figure(completion["mean_queue_h"], " h", ".1f")
    return f"{completion['jobs']:,} done, from arrival to departure {mean} on average, 95% within {most}; without a place {queue}"


def _folded(jobs: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], str]:
    """Return the jobs to show, without the ones that ended long ago, and a line about the others or an empty text."""
    ended = [job for job in jobs if job["state"] in ENDED]
    if len(ended) <= LAST_ENDED:
        return [*jobs], ""
    earlier = sorted(ended, key=lambda job: job.get("ended_s") or 0.0)[:-LAST_ENDED]
    hidden, counts = {job["id"] for job in earlier}, Counter(job["state"] for job in earlier)
    words = ", ".join(f"{count:,} {state}" for state, count in counts.items())
    return [job for job in jobs if job["id"] not in hidden], f"and {len(hidden):,} jobs that have ended ({words}): --all shows them"


def _is_told(job: Mapping[str, Any], key: str) -> bool:
    """Return whether a line below the tables gives this reason of a job. The queue's table gives those of jobs in the queue."""
    return bool(job[key]) and (key == "problem" or job["position"] is None)


def _jobs_table(jobs: Sequence[Mapping[str, Any]], now_s: float) -> RenderableType:
    table = make_table("job", "state", "group", "nodes", "iteration", "done", "at risk", "reward", left=2)
    for job in jobs:
        state = job["state"] + (f" ({job['phase']})" if job["phase"] else "")
        group = "" if job["group"] is None else str(job["group"])
        reward = "" if (value := job["metrics"].get("reward")) is None else f"{value:.4g}"
        iteration, risk = f"{job['iteration']} of {job['iterations']}", "yes" if job["at_risk"] else ""
        row = (group, " ".join(job["nodes"]), iteration, _done(job, now_s), risk, reward)
        table.add_row(job["id"], state, *row, style=_STYLES.get(job["state"], ""))
    return table


def _drain_words(plan: Mapping[str, Any]) -> str:
    """Return a line about a drain that begins later or has a deadline."""
    starts, deadline = (
        None if wall_s is None else datetime.fromtimestamp(wall_s).astimezone().isoformat(timespec="seconds")
        for wall_s in (plan["starts_s"], plan["deadline_s"])
    )
    node, jobs, waits_for = plan["node"], *(", ".join(plan.get(key, ())) for key in ("jobs", "waits_for"))
    if plan.get("overdue"):
        return f"{node} is held by {jobs} after its deadline, {deadline}"
    words = (
        f"{node} is drained"
        + (f" from {starts} on" if starts else "")
        + (f", so that its jobs leave it by {deadline}" * bool(deadline))
    )
    if waits_for:
        return f"{words}; {waits_for} cannot leave it"
    return f"{words}; still on it: {jobs}" if jobs and not starts else words


def _done(job: Mapping[str, Any], now_s: float) -> str:
    """Return when a job is expected to be done, or how long it took from its arrival."""
    if job["completion_h"] is not None:
        return f"after {figure(job['completion_h'], ' h', '.1f')}"
    return "" if job["done_eta_s"] is None else _expected(job["done_eta_s"], now_s)


def users_table(users: Sequence[Mapping[str, Any]], order: Mapping[str, Any] | None = None) -> RenderableType:
    """Return the table of what users hold, and of their quotas.

    Args:
        users: Reports of `runtime.service.quotas.user_reports`.
        order: Order of the queue, or None; with `fair` the usage is shown by which users take turns.
    """
    is_fair = order is not None and order["name"] == "fair"
    usage = ("usage h",) if is_fair else ()
    table = make_table("user", "jobs", "nodes", "$/h", "node-hours this month", *usage, "longest run h", "weight", left=1)
    for user in users:
        quota = user["quota"] or {}

        forms = {"jobs": "d", "nodes": ".3g", "usd_per_hour": ",.2f", "node_hours": ",.1f"}
        cells = (f"{user[key]:{form}}" + (f" of {quota[key]:g}" if key in quota else "") for key, form in forms.items())
        own = (f"{quota[key]:g}" if key in quota else "" for key in ("run_hours", "weight"))
        table.add_row(user["user"] or "(no name)", *cells, *(f"{user['usage_h']:,.1f}" for _ in usage), *own)
    return table


def _groups_table(groups: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = make_table("group", "period s", "$/h", "alone $/h", "nodes", "jobs", left=0)
    table.columns[-2].justify = table.columns[-1].justify = "left"
    for group in groups:
        figures = (figure(group[key]) for key in ("period_s", "usd_per_hour", "usd_per_hour_solo"))
        table.add_row(str(group["id"]), *figures, " ".join(group["nodes"]), ", ".join(group["jobs"]))
    return table


def _pools_table(pools: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    table = make_table("pool", "nodes", "busy", "idle", "free", "suspect", "draining", "utilization")
    for name, pool in pools.items():
        counts = (str(pool.get(key, 0)) for key in ("nodes", "busy", "idle", "free", "suspect", "draining"))
        table.add_row(name, *counts, f"{100 * pool['utilization']:.0f}%")
    return table


def queue_table(jobs: Sequence[Mapping[str, Any]], now_s: float, order: Mapping[str, Any] | None = None) -> RenderableType:
    """Return the table of the queue, with the reason why each job waits.

    Args:
        jobs: Reports of the jobs that have a position in the queue.
        now_s: Time of the report, in seconds of the run's clock.
        order: Order of the queue, whose keys are shown, or None for first come, first served.
    """
    key = () if order is None else (", ".join(filter(None, (order["name"], order["unit"]))),)
    table = make_table("", "waits", "user", "priority", *key, "expected", "why", left=2)
    table.columns[2].justify = table.columns[-1].justify = "left"
    for job in sorted(jobs, key=lambda job: int(job["position"])):
        place = (str(job["position"]), job["id"], job["user"], str(job["priority"]))
        keys = (figure(job["key"], form=".4g") for _ in key)
        table.add_row(*place, *keys, _expected(job["eta_s"], now_s), one_line(job["reason"] or "", _LONGEST))
    return table


def preview_table(previews: Mapping[str, Mapping[str, Any]], now_s: float) -> RenderableType:
    """Return the table of `rollmux submit --dry-run`.

    Args:
        previews: Previews by job; `rollmux_env.scheduler.preview.Preview` explains the keys.
        now_s: Present time, in seconds of the run's clock.
    """
    table = make_table("job", "would get", "+$/h", "period s", "slowdown", "expected", "done", "why it would wait", left=2)
    table.columns[-1].justify = "left"
    for job_id, preview in previews.items():
        done = _expected(preview["done_eta_s"], now_s)
        if preview["fits"]:
            place = f"group {preview['group']}, {preview['strategy'].replace('_', ' ')}"
            usd, period_s, slowdown = preview["delta_usd_per_hour"], preview["period_s"], preview["slowdown"][job_id]
            figures = (figure(usd), figure(period_s, form=".1f"), figure(slowdown, "x"))
            table.add_row(job_id, place, *figures, "now", done, "")
        else:
            expected = _expected(preview["eta_s"], now_s)
            table.add_row(job_id, f"place {preview['position']} of the queue", "", "", "", expected, done, preview["reason"])
    return table


def _expected(eta_s: float | None, now_s: float) -> str:
    """Return the time until an expected instant, in words."""
    if eta_s is None:
        return "unknown"
    seconds = max(0.0, eta_s - now_s)
    if seconds >= 3600:
        return f"in {figure(seconds / 3600, ' h', '.1f')}"
    return f"in {seconds / 60:.0f} min" if seconds >= 60 else f"in {seconds:.0f} s"
