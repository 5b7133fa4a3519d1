"""A plan as `rollmux plan` prints it: the jobs are admitted one after the other, and nobody leaves."""

from __future__ import annotations

from typing import Any

from tests.oracle import link
from tests.oracle.planner import Dict, choose, group_usd_per_hour, in_order, period_of, read, solo_s


def plan(scenario: Dict, decide: Any = choose) -> Dict:
    """What `rollmux plan` prints, but for the policy's name: the jobs admitted in order of arrival, nobody leaves."""
    cluster, jobs = read(scenario)
    groups: list[Dict] = []
    decisions: list[Dict] = []
    queue: list[Dict] = []
    for job in in_order(jobs):
        queue.append(job)
        choice = link.ask(decide, cluster, groups, len(groups), queue) if queue == [job] else None
        if choice is None:
            nothing: Dict = {"group": None, "delta_usd_per_hour": None, "rollout_nodes": [], "training_nodes": []}
            decisions.append({"job": job["id"], "strategy": "queued", **nothing})
            continue
        queue.clear()
        strategy, delta, after = choice
        groups = [g for g in groups if g["id"] != after["id"]] + [after]
        groups.sort(key=lambda g: g["id"])
        decisions.append(
            {
                "job": job["id"],
                "strategy": strategy,
                "group": after["id"],
                "delta_usd_per_hour": delta,
                "rollout_nodes": sorted(after["members"][-1]["nodes"]),
                "training_nodes": list(range(after["training"])),
                **({"shape": after["members"][-1]["job"]["shape"]} if job["shapes"] else {}),
            }
        )
    groups, *_ = link.shared(cluster, groups, queue)
    shown = [
        {
            "id": g["id"],
            "jobs": [m["job"]["id"] for m in g["members"]],
            "period_s": period_of(g),
            "usd_per_hour": group_usd_per_hour(cluster, g),
            "slowdown": {m["job"]["id"]: period_of(g) / solo_s(m["job"]) for m in g["members"]},
        }
        for g in groups
    ]
    return {"decisions": decisions, "groups": shown, "usd_per_hour": sum(g["usd_per_hour"] for g in shown)}
