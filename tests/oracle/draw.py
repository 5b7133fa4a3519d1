"""Hypothesis strategies for pools, jobs and scenarios as the plain dicts of a scenario file.

Numbers come in coarse steps, so that ties are common and nothing lies within the contract's tolerances without being equal.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.oracle import planner

Dict = dict[str, Any]
THREE = ("H20", "A100", "H800")


def examples(count: int) -> settings:
    """Return settings that draw the same examples in every run.

    The profile `thorough` has `count` of them, and others 30% of `count`, at least 10.
    """
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    drawn = max(min(count, 10), count * settings().max_examples // 100)
    return settings(max_examples=drawn, deadline=None, derandomize=True, database=None, suppress_health_check=slow)


Member = tuple[float, float, float, list[int], int]


def seconds(fine: bool = False) -> st.SearchStrategy[float]:
    """A phase's duration: small integers, or hundredths."""
    whole = st.integers(1, 20).map(float)
    return whole | st.integers(1, 4000).map(lambda n: n / 100) if fine else whole


@st.composite
def group_members(
    draw: st.DrawFn, fine: bool = False, max_members: int = 5, max_nodes: int = 4, stale: bool = True
) -> list[Member]:
    """Members of one group as `tests.oracle.period` wants them: (rollout_s, training_s, sync_s, nodes, staleness)."""
    nodes = st.lists(st.integers(0, draw(st.integers(0, max_nodes - 1))), min_size=1, max_size=max_nodes, unique=True).map(sorted)
    sync = st.just(0.0) | seconds(fine)
    staleness = draw(st.sampled_from([st.just(0), st.sampled_from([0, 1, 2, 5])])) if stale else st.just(0)
    return draw(st.lists(st.tuples(seconds(fine), seconds(fine), sync, nodes, staleness), min_size=1, max_size=max_members))


@st.composite
def clusters(draw: st.DrawFn, limited: bool = True, pooled: bool = False) -> Dict:
    """The `cluster` block. With `limited`, memory and `max_nodes` may bind; a job of at most 3 + 2 nodes always fits alone.

    With `pooled`, there are three pools of other names, any of which a job may name on either side.
    """
    pools: Dict = {}
    two = (("rollout", 1.85, 3), ("training", 5.28, 2))
    for name, usd, fewest in zip(THREE, (1.85, 2.4, 5.28), (5, 5, 5), strict=True) if pooled else two:
        pools[name] = {"gpus_per_node": draw(st.sampled_from([1, 8])), "usd_per_gpu_hour": draw(st.sampled_from([usd, usd, 0, 1]))}
        if limited:
            pools[name]["node_memory_gb"] = draw(st.sampled_from([None, 600, 900]))
            pools[name]["device_memory_gb"] = draw(st.sampled_from([None, None, 4, 6]))
            pools[name]["max_nodes"] = draw(st.none() | st.integers(fewest, 8))
    return {
        **({"pools": pools} if pooled else pools),
        "max_group_size": draw(st.integers(1, 5)),
        "migration_s": draw(st.sampled_from([0, 5, 300])),
    }


@st.composite
def shapes(draw: st.DrawFn, job: Dict, fine: bool = False) -> list[Dict]:
    """Up to three other ways to run a job, each a new one."""
    found: list[Dict] = []
    known = [planner.in_shape(planner.read_job(job), 0)]
    for _ in range(draw(st.integers(1, 3))):
        shape: Dict = {}
        for phase, most in (("rollout", 3), ("training", 2)):
            keys: Dict = {
                "nodes": st.integers(1, most),
                "worst_case_s": seconds(fine),
                "host_memory_gb": st.sampled_from([0, 150, 600]),
                "device_gb": st.sampled_from([0, 4]),
            }
            named = draw(st.sampled_from([[], ["nodes", "worst_case_s"], ["worst_case_s"], ["nodes", "host_memory_gb"], [*keys]]))
            if named:
                shape[phase] = {name: draw(keys[name]) for name in named}
            if "pool" in job[phase] and draw(st.booleans()):
                shape[phase] = {**shape.get(phase, {}), "pool": draw(st.sampled_from(THREE))}
        if "training" in shape and draw(st.booleans()):
            shape["training"]["by_nodes"] = {draw(st.integers(3, 4)): draw(seconds(fine))}
        read = planner.in_shape(planner.read_job({**job, "shapes": [shape]}), 1)
        if all(any(read[phase] != other[phase] for phase in ("rollout", "training")) for other in known):
            found.append(shape)
            known.append(read)
    return found


@st.composite
def jobs(draw: st.DrawFn, job_id: str, latest_s: int = 200, fine: bool = False, shaped: bool = False, pooled: bool = False) -> Dict:
    """One job with every kind of key that a fluid replay reads; with `shaped`, some have several shapes; `pooled` as above."""
    training: Dict = {
        "nodes": draw(st.sampled_from([1, 1, 1, 2])),
        "worst_case_s": draw(seconds(fine)),
        "host_memory_gb": draw(st.sampled_from([0, 150, 300, 600])),
        "device_gb": draw(st.sampled_from([0, 0, 1, 2, 4])),
    }
    if draw(st.booleans()):
        more = st.integers(training["nodes"] + 1, 4)
        training["by_nodes"] = draw(st.dictionaries(more, seconds(fine), min_size=1, max_size=2))
    stay = draw(st.integers(1, 40).map(lambda n: {"iterations": n}) | st.integers(1, 600).map(lambda s: {"duration_s": s / 2}))
    job: Dict = {
        "id": job_id,
        "arrival_s": draw(st.integers(0, latest_s)) / 2,
        **stay,
        "slo": draw(st.sampled_from([1, 1.2, 1.5, 2, 2.5, 4])),
        "rollout": {
            "nodes": draw(st.sampled_from([1, 1, 1, 2, 3])),
            "worst_case_s": draw(seconds(fine)),
            "host_memory_gb": draw(st.sampled_from([0, 150, 300, 600])),
            "device_gb": draw(st.sampled_from([0, 0, 1, 2, 4])),
        },
        "training": training,
        "sync_s": draw(st.sampled_from([0, 0, 0, 2, 15])),
        "staleness": draw(st.sampled_from([0, 0, 0, 1, 3])),
    }
    if pooled:
        for phase in ("rollout", "training"):
            job[phase]["pool"] = draw(st.sampled_from(THREE))
    if shaped and draw(st.booleans()):
        job["shapes"] = draw(shapes(job, fine))
    return job


def on_one_device(scenario: Dict) -> Dict:
    """The same jobs where one pool runs both phases; what a job keeps of either phase fits a node together."""
    training = scenario["cluster"]["training"]
    pool = {**training, **{name: 2 * training[name] for name in ("node_memory_gb", "device_memory_gb") if training.get(name)}}
    jobs = [{**job, "staleness": 0} for job in scenario["jobs"]]
    return {**scenario, "cluster": {**scenario["cluster"], "training": pool, "one_device": True}, "jobs": jobs}


@st.composite
def linked(draw: st.DrawFn, scenario: Dict) -> Dict:
    """The same jobs with syncs, some with bytes, on a link that is narrow for them together."""
    jobs = []
    for job in scenario["jobs"]:
        sync_s = draw(st.sampled_from([0, 1, 3, 6]))
        gb = {"sync_gb": sync_s * draw(st.sampled_from([2, 6, 12]))} if sync_s and draw(st.booleans()) else {}
        one = {**job, "sync_s": sync_s, **gb}
        jobs.append(one if sync_s <= planner.solo_s(planner.read_job(one)) else {**one, "staleness": 0})
    return {**scenario, "cluster": {**scenario["cluster"], "network": {"link_gbps": 100}}, "jobs": jobs}


@st.composite
def scenarios(
    draw: st.DrawFn, max_jobs: int = 10, limited: bool = True, fine: bool = False, shaped: bool = False, pooled: bool = False
) -> Dict:
    """A whole scenario; its jobs are not in order of arrival, and some arrive together."""
    count = draw(st.integers(1, max_jobs))
    listed = [draw(jobs(f"j{k}", latest_s=20 * count, fine=fine, shaped=shaped, pooled=pooled)) for k in range(count)]
    return {"version": 1, "cluster": draw(clusters(limited, pooled)), "jobs": listed}
