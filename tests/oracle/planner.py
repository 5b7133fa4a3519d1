"""Algorithm 1 over plain dicts and lists: every group, every number of new nodes, every subset of the old ones.

A cluster is a dict with `pools` (by name), `max_group_size`, `migration_s`; jobs are dicts as in a
scenario file with every key filled in (see `read`). A group is a dict:
`{"id", "rollout_nodes": [numbers], "next_node", "training": how many nodes, "members": [{"job", "nodes": [numbers]}]}`.
Its pools are those of its members. With `one_device` jobs have the key too, and ask for no rollout nodes. A member's job is as
`in_shape` gives it. With a `network`, `link_s` is what its sync takes on the link as `tests.oracle.link` plans it.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import Any

from tests.oracle.period import Member, Seconds, period, period_of_one_device

TOLERANCE = 1e-9
Dict = dict[str, Any]
MEMORY = {"host_memory_gb": "node_memory_gb", "device_gb": "device_memory_gb"}  # of a phase, and of a pool


def read(scenario: Dict) -> tuple[Dict, list[Dict]]:
    """Cluster and jobs of a scenario that is known to be valid, in the file's order, with every default filled in."""
    cluster = {"max_group_size": 5, "migration_s": 300, "one_device": False, "network": None, **scenario["cluster"]}
    sides = ("training",) if cluster["one_device"] else ("rollout", "training")
    pools = cluster["pools"] if "pools" in cluster else {side: cluster[side] for side in sides}
    unlimited = {"node_memory_gb": None, "device_memory_gb": None, "max_nodes": None}
    cluster["pools"] = {name: {**unlimited, **pool} for name, pool in pools.items()}
    jobs = [read_job(merged(scenario.get("defaults", {}), job)) for job in scenario["jobs"]]
    for job in jobs:
        job["one_device"] = cluster["one_device"]
        job["rollout"] = {**job["rollout"], **({"nodes": 0, "pool": "training"} if cluster["one_device"] else {})}
    return cluster, jobs


def merged(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return {**below, **{key: merged(below.get(key), value) for key, value in above.items()}}


def read_job(job: Dict) -> Dict:
    full = {
        "sync_s": 0,
        "sync_gb": None,
        "link_s": None,
        "staleness": 0,
        "iterations": None,
        "duration_s": None,
        "one_device": False,
        "shapes": [],
        "shape": 0,
        **job,
    }
    for phase in ("rollout", "training"):
        full[phase] = {"pool": phase, "nodes": 1, "host_memory_gb": 0, "device_gb": 0, **full[phase]}
    by_nodes = full["training"].get("by_nodes") or {}
    full["training"]["by_nodes"] = {int(nodes): seconds for nodes, seconds in by_nodes.items()}
    return full


def in_shape(job: Dict, number: int) -> Dict:
    """The job with the numbers of one of its shapes; 0 is as it is written, which every other one has under `written`."""
    written: Dict = job.get("written", job)
    if number == 0:
        return written
    shape = written["shapes"][number - 1]
    rollout, training = {**written["rollout"], **shape.get("rollout", {})}, written["training"]
    if shape.get("training"):
        by_nodes = {int(nodes): seconds for nodes, seconds in shape["training"].get("by_nodes", {}).items()}
        training = {**training, **shape["training"], "by_nodes": by_nodes}
    if written["one_device"]:
        rollout |= {"nodes": 0, "pool": "training"}
    return {**written, "rollout": rollout, "training": training, "shape": number, "written": written}


def all_shapes(job: Dict) -> list[Dict]:
    """The job in each of its shapes."""
    return [in_shape(job, number) for number in range(1 + len(job["shapes"]))]


def at_most(a: Seconds, b: Seconds) -> bool:
    return bool(a <= b + TOLERANCE * max(abs(float(a)), abs(float(b))))


def solo_s(job: Dict) -> float:
    return alone_s({**in_shape(job, 0), "link_s": None})


def sync_s(job: Dict) -> Seconds:
    """What a sync is planned to take: on the link, where the job has its two sides on two pools."""
    crosses = job["link_s"] is not None and job["rollout"]["pool"] != job["training"]["pool"]
    seconds: Seconds = job["link_s" if crosses else "sync_s"]
    return seconds


def alone_s(job: Dict) -> float:
    rollout, training = job["rollout"]["worst_case_s"], job["training"]["worst_case_s"]
    seconds: float = rollout + training + float(sync_s(job))
    if job["staleness"]:
        seconds = max(rollout, training, seconds / (1 + job["staleness"]))
    return seconds


def training_s(job: Dict, pool_size: int) -> float:
    known: dict[int, float] = {job["training"]["nodes"]: job["training"]["worst_case_s"], **job["training"]["by_nodes"]}
    return known[max(nodes for nodes in known if nodes <= pool_size)]


def node_usd_per_hour(cluster: Dict, pool: str) -> float:
    usd: float = cluster["pools"][pool]["gpus_per_node"] * cluster["pools"][pool]["usd_per_gpu_hour"]
    return usd


def pools_of(group: Dict) -> tuple[str, str]:
    """Names of the pools of a group's rollout and training nodes."""
    first = group["members"][0]["job"]
    return first["rollout"]["pool"], first["training"]["pool"]


def group_usd_per_hour(cluster: Dict, group: Dict) -> float:
    rollout, training = (node_usd_per_hour(cluster, pool) for pool in pools_of(group))
    usd: float = len(group["rollout_nodes"]) * rollout + group["training"] * training
    return usd


def period_of(group: Dict) -> float:
    if _one_device(group):
        times = [_as_member(m["job"], [], group["training"])[:3] for m in group["members"]]
        return period_of_one_device(times)
    return _period(tuple(_as_member(m["job"], m["nodes"], group["training"]) for m in group["members"]))


@cache
def _period(members: tuple[Member, ...]) -> float:
    return float(period(members))


def _one_device(group: Dict) -> bool:
    return any(m["job"].get("one_device") for m in group["members"])


def _as_member(job: Dict, nodes: list[int], pool_size: int) -> tuple[float, float, Seconds, tuple[int, ...], int]:
    return job["rollout"]["worst_case_s"], training_s(job, pool_size), sync_s(job), (*nodes,), job["staleness"]


def cycle_s(group: Dict) -> float:
    return max(alone_s(m["job"]) for m in group["members"])


def load_s(group: Dict) -> float:
    pinned: list[float] = [
        sum(m["job"]["rollout"]["worst_case_s"] for m in group["members"] if node in m["nodes"]) for node in group["rollout_nodes"]
    ]
    rollouts: float = sum(m["job"]["rollout"]["worst_case_s"] for m in group["members"]) if _one_device(group) else 0
    return max([*pinned, rollouts + sum(training_s(m["job"], group["training"]) for m in group["members"])])


def is_saturated(group: Dict) -> bool:
    return at_most(cycle_s(group), load_s(group))


def fits_memory(cluster: Dict, group: Dict, on: str) -> bool:
    """Whether the members of a group may all stay resident on its nodes of one side."""
    pool = cluster["pools"][pools_of(group)[on == "training"]]
    sides = ("rollout", "training") if _one_device(group) else ("training",)
    for key, name in MEMORY.items():
        limit = pool[name]
        used = [sum(m["job"][side][key] for m in group["members"] for side in sides)]
        if on == "rollout":
            used = [
                sum(m["job"]["rollout"][key] for m in group["members"] if node in m["nodes"]) for node in group["rollout_nodes"]
            ]
        if limit is not None and not all(at_most(x, limit) for x in used):
            return False
    return True


def keeps_slos(group: Dict) -> bool:
    length = period_of(group)
    return all(at_most(length, m["job"]["slo"] * solo_s(m["job"])) for m in group["members"])


def nodes_in_use(groups: list[Dict], pool: str) -> int:
    counts = [(pools_of(g), (len(g["rollout_nodes"]), g["training"])) for g in groups]
    return sum(count for names, nodes in counts for name, count in zip(names, nodes, strict=True) if name == pool)


def are_free(cluster: Dict, groups: list[Dict], job: Dict, rollout: int, training: int) -> bool:
    """Whether the job's pools have so many more nodes on its two sides; wanting none is always possible."""
    more: Dict = {}
    for phase, count in (("rollout", rollout), ("training", training)):
        more[job[phase]["pool"]] = more.get(job[phase]["pool"], 0) + count
    limits = {pool: cluster["pools"][pool]["max_nodes"] for pool in more}
    return all(limits[pool] is None or not n or nodes_in_use(groups, pool) + n <= limits[pool] for pool, n in more.items())


def joined(group: Dict, job: Dict, old_nodes: tuple[int, ...], new: int) -> Dict:
    """The group with the job as its last member, on `old_nodes` and on `new` nodes that it did not have."""
    added = list(range(group["next_node"], group["next_node"] + new))
    return {
        **group,
        "rollout_nodes": [*group["rollout_nodes"], *added],
        "next_node": group["next_node"] + new,
        "members": [*group["members"], {"job": job, "nodes": [*old_nodes, *added]}],
    }


def subsets(group: Dict, size: int) -> list[tuple[int, ...]]:
    """Sets of the group's nodes in lexicographic order, of those alike up to interchangeable nodes only the first."""
    found: dict[Any, tuple[int, ...]] = {}
    for chosen in combinations(sorted(group["rollout_nodes"]), size):
        alike = sorted(tuple(i for i, m in enumerate(group["members"]) if node in m["nodes"]) for node in chosen)
        found.setdefault(tuple(alike), chosen)
    return list(found.values())


def isolated(groups_made: int, job: Dict) -> Dict:
    empty = {"id": groups_made, "rollout_nodes": [], "next_node": 0, "training": job["training"]["nodes"], "members": []}
    return joined(empty, job, (), job["rollout"]["nodes"])


def choose(cluster: Dict, groups: list[Dict], groups_made: int, job: Dict) -> tuple[str, float, Dict] | None:
    """Algorithm 1: strategy, marginal $/h and the group as it becomes; None where the job fits nowhere."""
    best: tuple[str, float, Dict] | None = None
    for group in groups:
        for shaped in all_shapes(job):
            n = shaped["rollout"]["nodes"]
            if len(group["members"]) >= cluster["max_group_size"] or group["training"] < shaped["training"]["nodes"]:
                continue
            if is_saturated(group) or pools_of(group) != (shaped["rollout"]["pool"], shaped["training"]["pool"]):
                continue
            for new in range(n + 1):
                for old in subsets(group, n - new):
                    after = joined(group, shaped, old, new)
                    resident = fits_memory(cluster, after, "rollout") and fits_memory(cluster, after, "training")
                    if not (resident and are_free(cluster, groups, shaped, new, 0) and keeps_slos(after)):
                        continue
                    delta = new * node_usd_per_hour(cluster, shaped["rollout"]["pool"])
                    if best is None or delta < best[1]:
                        best = ("rollout_scaling" if new else "direct_packing", delta, after)
    for shaped in all_shapes(job):
        fresh = own_group(cluster, groups, groups_made, shaped) if opens_groups(shaped) else None
        if fresh is not None and (best is None or fresh[1] < best[1]):
            best = fresh
    return best


def opens_groups(job: Dict) -> bool:
    """Whether the job keeps its SLO alone in its shape; as written it always does."""
    return job["shape"] == 0 or at_most(alone_s(job), job["slo"] * solo_s(job))


def choose_solo(cluster: Dict, groups: list[Dict], groups_made: int, job: Dict) -> tuple[str, float, Dict] | None:
    """The `solo` baseline: nodes of its own for the job as it is written, or None where there are too few left."""
    return own_group(cluster, groups, groups_made, in_shape(job, 0))


def own_group(cluster: Dict, groups: list[Dict], groups_made: int, job: Dict) -> tuple[str, float, Dict] | None:
    """A new group for the job in its shape, or None where there are too few nodes left."""
    if not are_free(cluster, groups, job, job["rollout"]["nodes"], job["training"]["nodes"]):
        return None
    alone = isolated(groups_made, job)
    return "isolated", group_usd_per_hour(cluster, alone), alone


def without(group: Dict, job_id: str) -> Dict | None:
    """The group after a departure, its idle rollout nodes given back; None where nobody is left."""
    members = [m for m in group["members"] if m["job"]["id"] != job_id]
    pinned = {node for m in members for node in m["nodes"]}
    kept = [node for node in group["rollout_nodes"] if node in pinned]
    return {**group, "members": members, "rollout_nodes": kept} if members else None


def vacated(group: Dict, job_id: str, old: tuple[int, ...]) -> Dict:
    """The group that a member comes back to in another shape, on some of the nodes that there are: they stay."""
    members = [m for m in group["members"] if m["job"]["id"] != job_id]
    pinned = {node for m in members for node in m["nodes"]} | {*old}
    return {**group, "members": members, "rollout_nodes": [node for node in group["rollout_nodes"] if node in pinned]}


def in_order(jobs: list[Dict]) -> list[Dict]:
    return sorted(jobs, key=lambda job: job["arrival_s"])  # stable: the file's order where equal


def moved(groups: list[Dict], groups_made: int, job: Dict, target: int | None, old: tuple[int, ...], new: int) -> list[Dict]:
    """The groups after a running job went to group `target` (None: a new one of its own size), in the shape that it has there."""
    home = next(g for g in groups if any(m["job"]["id"] == job["id"] for m in g["members"]))
    others = [g for g in groups if g is not home]
    if target == home["id"]:
        return [joined(vacated(g, job["id"], old), job, old, new) if g is home else g for g in groups]
    left = without(home, job["id"])
    if target is None:
        others.append(isolated(groups_made, job))
    else:
        others = [joined(g, job, old, new) if g["id"] == target else g for g in others]
    return sorted([*others, *([left] if left else [])], key=lambda g: g["id"])


def table(cluster: Dict, groups: list[Dict], job: Dict) -> list[Dict]:
    """All that can be done with a job, in Algorithm 1's order, with the first reason against each.

    A group that is out as a whole (full, too few training nodes, their memory) has one row a shape, with `new` None; the last rows
    are a new group. `slack` is the least limit over the period, less 1.
    """
    rows: list[Dict] = []
    for group in groups:
        for shaped in all_shapes(job):
            n = shaped["rollout"]["nodes"]
            row = {"group": group["id"], "saturated": is_saturated(group), "new": None, "old": (), "usd": None, "period_s": None}
            row["shape"] = shaped["shape"]
            after = joined(group, shaped, (), n)
            if pools_of(group) != (shaped["rollout"]["pool"], shaped["training"]["pool"]):
                rows.append({**row, "reason": "the group is on other pools"})
            elif len(group["members"]) >= cluster["max_group_size"]:
                rows.append({**row, "reason": "the group is full"})
            elif group["training"] < shaped["training"]["nodes"]:
                rows.append({**row, "reason": "the group has too few training nodes"})
            elif not fits_memory(cluster, after, "training"):
                rows.append({**row, "reason": "memory of the training nodes"})
            else:
                for new in range(n + 1):
                    for old in subsets(group, n - new):
                        after = joined(group, shaped, old, new)
                        rows.append({**row, **_priced(cluster, groups, after, old, new)})
    for shaped in all_shapes(job):
        alone = isolated(-1, shaped)
        reason = "feasible" if opens_groups(shaped) else "an SLO would be broken"
        if not are_free(cluster, groups, shaped, shaped["rollout"]["nodes"], shaped["training"]["nodes"]):
            reason = "max_nodes of a pool"
        row = {"group": -1, "saturated": False, "shape": shaped["shape"], "new": shaped["rollout"]["nodes"], "old": ()}
        rows.append({**row, "usd": group_usd_per_hour(cluster, alone), "period_s": alone_s(shaped), "reason": reason})
    return [{**row, "slack": _slack(groups, job, row)} for row in rows]


def _priced(cluster: Dict, groups: list[Dict], after: Dict, old: tuple[int, ...], new: int) -> Dict:
    reason = "feasible"
    if not fits_memory(cluster, after, "rollout"):
        reason = "memory of a rollout node"
    elif not are_free(cluster, groups, after["members"][-1]["job"], new, 0):
        reason = "max_nodes of a pool"
    elif not keeps_slos(after):
        reason = "an SLO would be broken"
    usd = new * node_usd_per_hour(cluster, pools_of(after)[0])
    return {"new": new, "old": old, "usd": usd, "period_s": period_of(after), "reason": reason}


def _slack(groups: list[Dict], job: Dict, row: Dict) -> float | None:
    if row["period_s"] is None:
        return None
    present = [m["job"] for g in groups if g["id"] == row["group"] for m in g["members"]]
    slack: float = min(x["slo"] * solo_s(x) for x in [*present, job]) / row["period_s"] - 1
    return slack
