"""Shapes in job files: what is read, and what is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollmux_env.errors import InputError
from rollmux_env.keys.cluster import Cluster
from runtime.coordinator.profiles import profile_key
from runtime.jobs.file import parse_jobs
from runtime.jobs.spec import JobSpec, job_of
from runtime.machines.pools import cluster_of, nodes_wanted
from tests.runtime.pretend import NODES

TWO: dict[str, Any] = {"training": {"nodes": 2}}


def specs(shapes: Any, cluster: Any = None, **more: Any) -> tuple[JobSpec, ...]:
    job = {"id": "a", "iterations": 3, "slo": 2.0, "task": "echo", **more, "shapes": shapes}
    job = {key: value for key, value in job.items() if value is not None}
    return parse_jobs({"version": 1, "jobs": [job], **({"cluster": cluster} if cluster else {})}, "x", Path("/")).jobs


def test_shapes_are_read_and_survive_being_written() -> None:
    shapes = [TWO, {"rollout": {"nodes": 2, "worst_case_s": 3}, "training": {"nodes": 3, "by_nodes": {"4": 1.5}}}]
    (spec,) = specs(shapes)
    assert [spec.nodes_in(k) for k in range(3)] == [
        {"rollout": 1, "training": 1},
        {"rollout": 1, "training": 2},
        {"rollout": 2, "training": 3},
    ]
    assert spec.estimated_phases == {(1, "training"), (2, "training")}
    assert job_of(spec.model_dump(mode="json", by_alias=True, exclude_unset=True)) == spec
    assert "shapes" not in specs([])[0].model_dump(by_alias=True)
    assert profile_key(spec, ()) == profile_key(specs([])[0], ())  # it is profiled as it is written
    assert nodes_wanted(None, [spec]) == {"rollout": 2, "training": 3}


POOL = {"gpus_per_node": 1, "usd_per_gpu_hour": 1, "max_nodes": 2}


@pytest.mark.parametrize(
    ("shapes", "more", "problem"),
    [
        ([{}], {}, "shapes[0]: has the nodes of the job as it is written"),
        ([{"training": {"worst_case_s": 3}}], {}, "shapes[0]: has the nodes of the job as it is written"),
        ([TWO, {"training": {"nodes": 2, "worst_case_s": 1}}], {}, "shapes[1]: has the nodes of shapes[0]"),
        ([{"training": {"nodes": 0}}], {}, "shapes[0].training.nodes: must be at least 1, not 0"),
        ([{"training": {"nods": 2}}], {}, "shapes[0].training.nods: is not a key of this file format"),
        ([{"training": {"nodes": 2, "pool": "x"}}], {}, "shapes[0].training.pool: is of no use to a real run, which has the pools"),
        ([{"rollout": {"nodes": 2, "switch": {}}}], {}, "shapes[0].rollout.switch: is of no use to a real run, which takes those"),
        (
            [{"rollout": {"nodes": 2, "actual": {"mean_fraction": 1}}}],
            {},
            "shapes[0].rollout.actual: is of no use to a real run; it is for event replays",
        ),
        (
            [{"training": {"nodes": 2, "by_nodes": {2: 1}}}],
            {},
            "shapes[0].training.by_nodes[2]: must be above training.nodes, which is 2",
        ),
        ([{"rollout": {"nodes": k}} for k in range(2, 19)], {}, "shapes: are 17; a job has at most 16"),
        ([TWO], {"task": None, "class": "a:B"}, "shapes[0].training.worst_case_s: is missing; on other nodes than its own only a"),
        (
            [TWO],
            {
                "task": None,
                "command": ["x"],
                "rollout": {"worst_case_s": 1},
                "training": {"worst_case_s": 1},
            },
            "shapes: is a key of jobs with task or class, not with command",
        ),
        (
            [{"training": {"nodes": 3}}],
            {"cluster": {"rollout": POOL, "training": POOL}},
            "shapes[0].training.nodes: asks for 3 nodes; the training pool has at most 2",
        ),
        (
            [TWO],
            {"cluster": {"training": POOL, "one_device": True}},
            "shapes: do not go with cluster.one_device, where a job has all nodes of its group",
        ),
    ],
)
def test_shapes_that_a_run_can_do_nothing_with_are_refused_in_one_line(shapes: Any, more: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as error:
        specs(shapes, **more)
    assert str(error.value).startswith(f"x: jobs[0].{problem}") and "\n" not in str(error.value)


def test_a_shape_for_which_there_are_too_few_nodes_is_refused_before_the_run() -> None:
    (spec,) = specs([TWO, {"rollout": {"nodes": 3}}])
    with pytest.raises(InputError, match=r"^job a: shapes\[1\]\.rollout\.nodes: asks for 3 nodes; there are 2 of this pool$"):
        cluster_of(None, [spec], NODES)
    assert isinstance(cluster_of(None, specs([TWO]), NODES), Cluster)
    with pytest.raises(InputError, match=r"^job a: shapes: do not go with one device, where a job has all nodes of its group$"):
        cluster_of(None, specs([TWO]), [node for node in NODES if node.pool == "training"])
