"""The tables that `rollmux run` prints at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rollmux_env.report.tables import figure, heading, make_table, sharing_table
from runtime.report.jobs import lines_about


def summary(figures: Mapping[str, Any]) -> RenderableType:
    """Return tables of the figures of `runtime.report.figures.figures`; a figure that was not measured is an empty cell."""
    parts: list[RenderableType] = [heading(f"Jobs, placed by {figures['policy']}"), _jobs(figures)]
    parts += [
        Text(f"{job_id} failed: {job['failed']}", style="bold red") for job_id, job in figures["jobs"].items() if job["failed"]
    ]
    parts += [Text(line) for line in lines_about(figures["jobs"])]
    parts += [*_shapes(figures), *_sharing(figures)]
    if users := figures.get("usd_by_user"):
        parts.append(Text("charged: " + ", ".join(f"{user or 'no user'} {usd:,.2f} $" for user, usd in users.items())))
    parts += [heading("Pools, shares of provisioned node time"), _pools(figures), heading("Switches"), _switches(figures)]
    parts += [Text(line) for line in _lines(figures)]
    return Group(*parts)


def _jobs(figures: Mapping[str, Any]) -> RenderableType:
    evaluated = any(job["eval_reward_last"] is not None for job in figures["jobs"].values())
    table = make_table("job", "iterations", "reward", *(("held out",) if evaluated else ()), "placed")
    for job_id, job in figures["jobs"].items():
        held_out = (_change(job["eval_reward_first"], job["eval_reward_last"]),) if evaluated else ()
        rewards = _change(job["reward_first"], job["reward_last"])
        table.add_row(
            job_id, f"{job['iterations']}/{job['of'] or '?'}", rewards, *held_out, (job["strategy"] or "").replace("_", " ")
        )
    return table


def _shapes(figures: Mapping[str, Any]) -> list[RenderableType]:
    """Return a table of the shapes that jobs had, with measured and planned seconds; nothing if no job has shapes."""
    table = make_table(
        "job", "shape", "nodes", "iterations", "rollout (planned)", "training (planned)", "iteration", "alone, planned"
    )
    for job_id, job in figures["jobs"].items():
        for used in job.get("shapes", ()):
            planned = used["worst_case_s"]
            phases = (f"{figure(value, ' s')} ({planned[phase]:.2f} s)".lstrip() for phase, value in used["phase_s"].items())
            nodes = " + ".join(str(count) for count in used["nodes"].values())
            whole = figure(used["iteration_s"], " s"), figure(used["alone_s"], " s")
            table.add_row(job_id, str(used["shape"]), nodes, str(used["iterations"]), *phases, *whole)
    return [heading("Shapes that jobs were in"), table] if table.row_count else []


def _sharing(figures: Mapping[str, Any]) -> list[RenderableType]:
    """Return a table of shared against alone, with the times measured at the end of the run, or else those of the profiles."""
    compared = any(job["solo_iteration_s"] for job in figures["jobs"].values())
    rows = []
    for job_id, job in figures["jobs"].items():
        alone_s = job["solo_iteration_s" if compared else "profiled_iteration_s"]
        slowdown = job["iteration_s"] / alone_s if job["iteration_s"] and alone_s else None
        half_width_s = job["solo_half_width_s"] if compared else None
        rows.append({"id": job_id, **job, "alone_s": alone_s, "alone_half_width_s": half_width_s, "slowdown": slowdown})
    title = "Shared against alone" if compared else "Shared against alone, by profiles"
    whole = f"dollars: {figures['usd']:.3f} in all, {figures['usd_solo']:.3f} for the same iterations of the jobs alone"
    parts: list[RenderableType] = [heading(title), sharing_table(rows), Text(whole)]
    if compared:
        alone = (f"{job_id} {job['solo_iterations'] or 'not measured'}" for job_id, job in figures["jobs"].items())
        parts.append(Text(f"alone: at the end of the run, with nobody else; iterations: {', '.join(alone)}; ±: 95% interval"))
    return parts


def _change(first: float | None, last: float | None) -> str:
    return f"{first:.3f} -> {last:.3f}" if first is not None and last is not None else ""


def _pools(figures: Mapping[str, Any]) -> RenderableType:
    rows = [(f"{pool} pool, whole run", shares) for pool, shares in figures["pools"].items()]
    alone = Counter(group["jobs"][0] for group in figures["groups"] if len(group["jobs"]) == 1)
    for group in figures["groups"]:
        first, number = group["jobs"][0], group["group"]
        if len(group["jobs"]) > 1:
            when = f"group {number} while it is shared"
        else:
            when = f"{first} alone, warm" + (f", group {number}" if alone[first] > 1 else "")
        rows += [(f"{pool}, {when}", shares) for pool, shares in group["pools"].items()]
    table = make_table("", "running", "switching", "bubble")
    for name, shares in rows:
        if shares:
            table.add_row(name, *(f"{shares[key]:.1%}" for key in ("running", "switching", "bubble")))
    return table


def _switches(figures: Mapping[str, Any]) -> RenderableType:
    table = make_table("job", "phase", "cold", "warm", "faster", "stays", "stages of the cold one, of the warm one", left=2)
    table.columns[-1].justify = "left"
    for job_id, phases in figures["switches"].items():
        for phase, switches in phases.items():
            if switches["cold_s"] is None and switches["warm_s"] is None:
                continue  # the job failed before its first switch
            stages = "; ".join(filter(None, (_stages(switches["cold_stages_s"]), _stages(switches["warm_stages_s"]))))
            seconds = _short(switches["cold_s"]), _short(switches["warm_s"])
            shares = figure(switches["times_faster"], "x", ".0f"), figure(switches["stays"], form=".0%")
            table.add_row(job_id, phase, *seconds, *shares, stages)
    return table


def _lines(figures: Mapping[str, Any]) -> list[str]:
    lines = []
    if gained := figures["throughput"]:
        if gained["gain"] is not None:
            bound = f", {100 * gained['of_bound']:.0f}% of the bound {gained['bound']:.2f}x" if gained["of_bound"] else ""
            shared = any(len(group["jobs"]) > 1 for group in figures["groups"])
            when = "while groups are shared" if shared else "of warm iterations; no two jobs shared a group"
            lines.append(f"throughput per node-hour against solo: {gained['gain']:.2f}x {when}{bound}")
        if gained["gain_whole_run"] is not None:
            lines.append(
                f"whole run, starts and tails included: {gained['gain_whole_run']:.2f}x; node-hours {gained['node_hours']:.3f}, "
                f"solo {gained['solo_node_hours']:.3f}"
            )
    if permits := figures["permit_ms"]:
        lines.append(f"permit to phase: {permits['p50']:.1f} ms at the median, {permits['p99']:.1f} ms at the 99th percentile")
    syncs = figures["syncs"]
    if syncs["count"]:
        beside = f"{syncs['beside_others']} of them while another job held a node"
        lines.append(f"syncs: {syncs['count']}, {1e3 * syncs['mean_s']:.0f} ms in the mean, {beside}")
    return lines


def _short(value: float | None) -> str:
    """Return a time in seconds, or in milliseconds if it is shorter than one second."""
    return figure(value, " s") if value is None or value >= 1 else f"{1e3 * value:.1f} ms"


def _stages(stages: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_short(seconds)}" for name, seconds in stages.items())
