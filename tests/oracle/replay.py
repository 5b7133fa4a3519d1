"""A naive fluid replay of a policy that only admits: departures, the queue, arrivals, and the metrics by definition.

Progress is kept as exact fractions, every group's period is found anew at every instant, and all the integrals are
sums over the stretches between two instants.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from tests.oracle import link, planner

INSTANT_S = Fraction(1, 10**6)
Dict = dict[str, Any]


def replay(scenario: Dict, decide: Any = planner.choose) -> Dict:
    """The figures that `rollmux bench` prints for one policy (`planner.choose` or `planner.choose_solo`)."""
    cluster, jobs = planner.read(scenario)
    to_come = planner.in_order(jobs)
    groups: list[Dict] = []
    queue: list[Dict] = []
    groups_made = 0
    done: dict[str, Fraction] = {}  # iterations
    admitted: dict[str, Fraction] = {}
    departed: dict[str, Fraction] = {}
    admissions = {"direct_packing": 0, "rollout_scaling": 0, "isolated": 0}
    usd = Fraction(0)
    names = ["rollout", "training"] if cluster["one_device"] else [*cluster["pools"]]
    provisioned, busy = dict.fromkeys(names, Fraction(0)), dict.fromkeys(names, Fraction(0))  # node-seconds
    peak = dict.fromkeys(names, 0)
    now = first = Fraction(to_come[0]["arrival_s"])

    def admit_head() -> bool:
        nonlocal groups, groups_made
        choice = link.ask(decide, cluster, groups, groups_made, queue)
        if choice is None:
            return False
        job = queue.pop(0)
        strategy, _, after = choice
        groups_made = max(groups_made, after["id"] + 1)
        groups = sorted([g for g in groups if g["id"] != after["id"]] + [after], key=lambda g: g["id"])
        admissions[strategy] += 1
        admitted[job["id"]], done[job["id"]] = now, Fraction(0)
        return True

    while to_come or groups:
        groups, queue, _ = link.shared(cluster, groups, queue)
        lengths = {g["id"]: _rounded(planner.period_of(g)) for g in groups}
        due = {}  # when each member leaves if nothing else happens
        for g in groups:
            for m in g["members"]:
                job = m["job"]
                if job["iterations"] is not None:
                    due[job["id"]] = now + (job["iterations"] - done[job["id"]]) * lengths[g["id"]]
                else:
                    due[job["id"]] = admitted[job["id"]] + Fraction(job["duration_s"])
        instant = min([*due.values(), *(Fraction(job["arrival_s"]) for job in to_come[:1])])
        stretch = max(instant - now, Fraction(0))
        for g in groups:
            usd += stretch / 3600 * Fraction(planner.group_usd_per_hour(cluster, g))
            own = dict(zip(("rollout", "training"), planner.pools_of(g), strict=True))
            provisioned[own["rollout"]] += stretch * len(g["rollout_nodes"])
            provisioned[own["training"]] += stretch * g["training"]
            for m in g["members"]:
                rounds = stretch / lengths[g["id"]]
                done[m["job"]["id"]] += rounds
                nodes = g["training"] if m["job"]["one_device"] else len(m["nodes"])
                busy[own["rollout"]] += rounds * nodes * Fraction(m["job"]["rollout"]["worst_case_s"])
                busy[own["training"]] += rounds * g["training"] * Fraction(planner.training_s(m["job"], g["training"]))
        now = max(now, instant)

        for job_id in [job_id for job_id, when in due.items() if when <= now + INSTANT_S]:
            departed[job_id] = now
            groups = [left for g in groups if (left := planner.without(g, job_id)) is not None]
        while queue and admit_head():
            pass
        while to_come and Fraction(to_come[0]["arrival_s"]) <= now + INSTANT_S:
            queue.append(to_come.pop(0))
            if len(queue) == 1:
                admit_head()
        for name, pool in cluster["pools"].items():
            peak[name] = max(peak[name], planner.nodes_in_use(groups, name) * pool["gpus_per_node"])
        done = {job_id: _rounded(x) for job_id, x in done.items()}

    by_id = {job["id"]: job for job in jobs}
    slowdown = {
        job_id: float((departed[job_id] - admitted[job_id]) / done[job_id]) / planner.solo_s(by_id[job_id]) for job_id in departed
    }
    kept = sum(slowdown[job["id"]] <= job["slo"] * (1 + 1e-6) for job in jobs)
    work_h = sum(float(done[job["id"]]) * planner.solo_s(job) for job in jobs) / 3600
    hours = float(now - first) / 3600
    return {
        "cost_usd": float(usd),
        "hours": hours,
        "usd_per_hour": float(usd) / hours,
        "work_h": work_h,
        "usd_per_work_hour": float(usd) / work_h,
        "slo_attainment": kept / len(jobs),
        "slowdown": slowdown,
        "wait_s": {x["id"]: wait for x in jobs if (wait := float(admitted[x["id"]]) - x["arrival_s"]) > 0},
        "peak_gpus": peak,
        "admissions": admissions,
        "migrations": 0,
        "utilization": {pool: float(busy[pool] / provisioned[pool]) if provisioned[pool] else None for pool in busy},
    }


def _rounded(x: float | Fraction) -> Fraction:
    """Keeps the fractions short; the error, 1e-24, is nothing beside an instant."""
    return Fraction(round(Fraction(x) * 10**24), 10**24)
