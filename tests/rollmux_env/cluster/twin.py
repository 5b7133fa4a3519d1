"""A `State` and the same cluster as the plain groups of `tests.oracle.planner`, changed side by side."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from hypothesis import strategies as st

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Arrived, Departed, Moved, Placement, Reprofiled, Resumed, Withdrawn
from rollmux_env.cluster.state import State
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.job import Job
from rollmux_env.scenario import parse_scenario
from tests.oracle import draw as drawing
from tests.oracle import planner

CLUSTER = {
    "rollout": {"gpus_per_node": 8, "usd_per_gpu_hour": 1.85},
    "training": {"gpus_per_node": 8, "usd_per_gpu_hour": 5.28},
}


def make_job(job_id: str, rollout_s: float = 10, training_s: float = 10, **keys: Any) -> dict[str, Any]:
    """A job of a scenario file; `rollout` and `training` add keys to the phases."""
    phases = {
        "rollout": {"worst_case_s": rollout_s, **keys.pop("rollout", {})},
        "training": {"worst_case_s": training_s, **keys.pop("training", {})},
    }
    stay = {} if "duration_s" in keys else {"iterations": 10}
    return {"id": job_id, "arrival_s": 0, "slo": 2, **stay, **phases, **keys}


def model(job: dict[str, Any], cluster: dict[str, Any] = CLUSTER) -> Job:
    """The checked model of a job's dict."""
    return parse_scenario({"version": 1, "cluster": cluster, "jobs": [job]}).jobs[0]


class Twin:
    """Applies every event to both; nothing is validated, so states that no plan may reach come up too."""

    def __init__(self, cluster: dict[str, Any]) -> None:
        self.cluster, _ = planner.read({"cluster": cluster, "jobs": []})
        self.scenario_cluster = cluster
        self.state = State(Cluster.model_validate(cluster))
        self.groups: list[dict[str, Any]] = []
        self.groups_made = 0
        self.held: dict[str, dict[str, int]] = {}  # nodes held for the move of a job, by pool

    @property
    def pooled(self) -> bool:
        """Whether its pools have other names than rollout and training."""
        return "pools" in self.scenario_cluster

    def arrive(self, job: dict[str, Any]) -> dict[str, Any]:
        apply(self.state, Arrived(self.state.now_s, model(job, self.scenario_cluster)))
        return planner.read_job(job)

    def admit(self, job: dict[str, Any], placement: Placement) -> None:
        apply(self.state, Admitted(self.state.now_s, job["id"], placement))
        job = planner.in_shape(job, placement.shape)
        if placement.group is None:
            self.groups.append({**planner.isolated(self.groups_made, job), "training": placement.training_nodes})
            self.groups_made += 1
        else:
            self.groups = [
                planner.joined(g, job, placement.rollout_nodes, placement.new_rollout_nodes) if g["id"] == placement.group else g
                for g in self.groups
            ]

    def move(self, job_id: str, placement: Placement) -> None:
        apply(self.state, Moved(self.state.now_s, job_id, placement))
        before = self._in_use()
        job = planner.in_shape(self.find(job_id)[0], placement.shape)
        self.groups = planner.moved(
            self.groups, self.groups_made, job, placement.group, placement.rollout_nodes, placement.new_rollout_nodes
        )
        before[job["rollout"]["pool"]] += placement.new_rollout_nodes
        before[job["training"]["pool"]] += placement.training_nodes
        self.held[job_id] = {pool: before[pool] - count for pool, count in self._in_use().items()}
        self.groups_made += placement.group is None

    def _in_use(self) -> dict[str, int]:
        return {pool: planner.nodes_in_use(self.groups, pool) for pool in self.cluster["pools"]}

    def resume(self, job_id: str) -> None:
        apply(self.state, Resumed(self.state.pauses.next_end_s(), job_id))
        del self.held[job_id]

    def depart(self, job_id: str) -> None:
        apply(self.state, Departed(self.state.now_s, job_id))
        self.groups = [left for g in self.groups if (left := planner.without(g, job_id)) is not None]

    def withdraw(self, job_id: str) -> None:
        apply(self.state, Withdrawn(self.state.now_s, job_id))

    def reprofile(self, job: dict[str, Any]) -> None:
        """A running job is known anew, by the dict of a scenario file."""
        apply(self.state, Reprofiled(self.state.now_s, model(job, self.scenario_cluster)))
        known = planner.read_job(job)
        self.groups = [
            {
                **g,
                "members": [
                    {**m, "job": planner.in_shape(known, m["job"]["shape"])} if m["job"]["id"] == job["id"] else m
                    for m in g["members"]
                ],
            }
            for g in self.groups
        ]

    def cluster_left(self) -> dict[str, Any]:
        """The cluster with `max_nodes` lowered by the nodes that are held."""
        pools = {}
        for name, pool in self.cluster["pools"].items():
            held = sum(nodes[name] for nodes in self.held.values())
            pools[name] = {**pool, "max_nodes": None if pool["max_nodes"] is None else pool["max_nodes"] - held}
        return {**self.cluster, "pools": pools}

    def find(self, job_id: str) -> tuple[dict[str, Any], int]:
        """A running job and the id of its group."""
        return next((m["job"], g["id"]) for g in self.groups for m in g["members"] if m["job"]["id"] == job_id)

    def running(self) -> list[str]:
        return [m["job"]["id"] for g in self.groups for m in g["members"]]


def places(twin: Twin, job: dict[str, Any], home: int | None = None) -> list[Placement]:
    """Every place for a job that is physical: size, training nodes, memory, `max_nodes`. SLOs are not looked at.

    Args:
        home: the group of a running job, where it cannot keep its shape.
    """
    found = []
    for shaped in planner.all_shapes(job):
        found += _places(twin, shaped, home if shaped["shape"] == job["shape"] else None)
    return found


def _places(twin: Twin, job: dict[str, Any], home: int | None) -> list[Placement]:
    cluster, n, shape = twin.cluster_left(), job["rollout"]["nodes"], job["shape"]
    found = []
    if planner.own_group(cluster, twin.groups, twin.groups_made, job):
        found.append(Placement(None, (), n, job["training"]["nodes"], shape=shape))
    for group in twin.groups:
        others = [m for m in group["members"] if m["job"]["id"] != job["id"]]
        if planner.pools_of(group) != (job["rollout"]["pool"], job["training"]["pool"]):
            continue
        if group["id"] == home or len(others) >= cluster["max_group_size"] or group["training"] < job["training"]["nodes"]:
            continue
        for new in range(n + 1):
            for old in combinations(group["rollout_nodes"], n - new):
                after = planner.joined(planner.vacated(group, job["id"], old), job, old, new)
                resident = planner.fits_memory(cluster, after, "rollout") and planner.fits_memory(cluster, after, "training")
                if resident and planner.are_free(cluster, twin.groups, job, new, 0):
                    found.append(Placement(group["id"], old, new, shape=shape))
    return found


@st.composite
def twins(draw: st.DrawFn, max_jobs: int = 12, limited: bool = True, fine: bool = False) -> Twin:
    """A twin after a random history of arrivals, admissions, moves, ends of pauses and departures."""
    pooled = draw(st.booleans())
    twin = Twin(draw(drawing.clusters(limited, pooled)))
    given: dict[str, dict[str, Any]] = {}
    for k in range(draw(st.integers(0, max_jobs))):
        given[f"j{k}"] = draw(drawing.jobs(f"j{k}", fine=fine, shaped=True, pooled=pooled))
        job = twin.arrive(given[f"j{k}"])
        options = places(twin, job)
        if options:
            twin.admit(job, draw(st.sampled_from(options)))
        elif draw(st.booleans()):
            twin.withdraw(job["id"])
        change = draw(st.sampled_from(["none", "none", "depart", "move", "resume", "reprofile"]))
        free = [job_id for job_id in twin.running() if job_id not in twin.held]
        if change == "resume" and twin.held:
            twin.resume(next(iter(twin.held)))
        elif change == "depart" and free:
            twin.depart(draw(st.sampled_from(free)))
        elif change == "move" and free:
            job, home = twin.find(draw(st.sampled_from(free)))
            options = places(twin, job, home)
            if options:
                twin.move(job["id"], draw(st.sampled_from(options)))
        elif change == "reprofile" and twin.running():
            job_id = draw(st.sampled_from(twin.running()))
            other = draw(drawing.jobs(job_id, fine=fine))
            times = {pool: {**given[job_id][pool], "worst_case_s": other[pool]["worst_case_s"]} for pool in ("rollout", "training")}
            times["training"].pop("by_nodes", None)
            changed = {**given[job_id], **times, "sync_s": other.get("sync_s", 0)}
            shapes = [(job["rollout"], job["training"]) for job in planner.all_shapes(planner.read_job(changed))]
            if all(shape not in shapes[:k] for k, shape in enumerate(shapes)):
                given[job_id] = changed
                twin.reprofile(changed)
    return twin
