"""What `rollmux compare` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rollmux_env.report.tables import heading, make_table
from runtime.compare.parts import Parts

_WORDS = {
    "rollout": "the rollouts of {job} take {by} {more} than predicted",
    "training": "the trainings of {job} take {by} {more} than predicted",
    "sync": "the syncs of {job} take {by} {more} than predicted",
    "switch": "the switches of {job} take {by} {more} than predicted",
    "waiting": "{job} waits {by} {more} for nodes than predicted",
    "other": "what {job} does between its phases takes {by} {more} than predicted",
}


def comparison_table(comparison: Mapping[str, Any]) -> RenderableType:
    """The whole, then each group's iterations by their parts, and a line that says in which part prediction and run differ most."""
    rows: dict[str, Mapping[str, Any]] = {}
    for job_id, job in comparison["jobs"].items():
        rows[f"iteration of {job_id}"] = job
        for one in job.get("shapes", ()):
            nodes = " + ".join(str(count) for count in one["nodes"].values())
            rows[f"iteration of {job_id}, shape {one['shape']} ({nodes} nodes)"] = one
    rows["makespan"] = comparison["makespan"]
    table = make_table("", "predicted", "measured", "error")
    for name, row in rows.items():
        table.add_row(name, f"{row['predicted_s']:.2f} s", f"{row['measured_s']:.2f} s", f"{100 * row['error']:+.1f}%")
    prefix = ", ".join(f"{number} of {job_id}" for job_id, number in comparison["iterations_seen"].items())
    note = (
        f"predicted by the event replay from the profiles and the first iterations ({prefix}); measured: the iterations after them"
    )
    parts: list[RenderableType] = [heading("Prediction against the run"), table, Text(note, style="dim")]
    if cores := comparison["cores"]:
        shares = f"{100 * cores['before']:.1f}% of their seconds in the first iterations and {100 * cores['after']:.1f}% after them"
        parts.append(Text(f"phases were ready and had no core for {shares}"))
    for group in comparison["groups"]:
        parts += [heading(f"Group {group['group']}: seconds of an iteration"), _parts_table(group["jobs"]), Text(in_words(group))]
    return Group(*parts)


def in_words(group: Mapping[str, Any]) -> str:
    """What tells a group's prediction and its run apart most."""
    largest = group["largest"]
    if largest is None:
        return "no part differs by a hundredth of an iteration"
    by_s = largest["measured_s"] - largest["predicted_s"]
    words = _WORDS[largest["part"]].format(job=largest["job"], by=f"{abs(by_s):.3f} s", more="more" if by_s > 0 else "less")
    return f"the largest difference: {words}, in each of its iterations"


def _parts_table(jobs: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    table = make_table("job", "", *Parts._fields, "iteration", left=2)
    for position, (job_id, job) in enumerate(jobs.items()):
        if position:
            table.add_section()
        rows = {name: [job[f"{name}_s"][part] for part in Parts._fields] for name in ("predicted", "measured")}
        apart = [b - a for a, b in zip(rows["predicted"], rows["measured"], strict=True)]
        for name, values in rows.items():
            table.add_row(job_id if name == "predicted" else "", name, *(f"{value:.3f}" for value in (*values, sum(values))))
        table.add_row("", "difference", *(f"{value:+.3f}" for value in (*apart, sum(apart))))
    return table
