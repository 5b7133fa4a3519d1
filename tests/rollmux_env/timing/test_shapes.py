"""Shapes of jobs with a model: the job as written is one of them, and what is printed can be pasted into its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from rollmux_env.errors import InputError
from rollmux_env.kernel.dispatch.pace import alone_s
from rollmux_env.reading import read_mapping
from rollmux_env.scenario import Scenario, load_scenario, parse_scenario
from rollmux_env.timing.hardware import GPUS, achieved
from rollmux_env.timing.models import SHAPES
from rollmux_env.timing.replica import replica_timing
from rollmux_env.timing.shapes import PoolNodes, ShapesOf, parallelisms, shapes_of
from tests.conftest import Command

FILE = Path(__file__).parents[3] / "examples" / "models.yaml"
H20 = achieved("H20", GPUS["H20"])


def file(**changes: Any) -> dict[str, Any]:
    """The example with its first job alone, and changes to that."""
    data = read_mapping(FILE)
    return data | {"jobs": [data["jobs"][0] | changes]}


def shapes(scenario: Scenario, most_nodes: int = 2, pools: tuple[str, ...] = ()) -> ShapesOf:
    return shapes_of(scenario.jobs[0], scenario.cluster, most_nodes, pools, FILE.parent)


def test_messages_and_stages_cost_what_is_said() -> None:
    shape, bytes_each = SHAPES["7B"], 3584 * 2
    alone, tensor = replica_timing(shape, H20, 1), replica_timing(shape, H20, 4)
    assert alone.message_s == 0
    assert tensor.step_s - alone.step_s == pytest.approx(4 * 28 * 1e-5)
    assert tensor.message_s == pytest.approx(4 * 28 * 3 * bytes_each / 4 / 450e9), "each sends three quarters, four times a layer"
    assert tensor.weights_s == pytest.approx(alone.weights_s / 4)
    staged = replica_timing(shape, H20, 1, stages=4)
    assert staged.step_s - alone.step_s == pytest.approx(4 * 1e-5)
    assert staged.message_s == pytest.approx(bytes_each / 450e9)
    assert staged.weights_s == pytest.approx(alone.weights_s), "each micro-batch reads all weights of its stage"
    assert staged.kv_s_per_token == pytest.approx(tensor.kv_s_per_token) and staged.kv_tokens == pytest.approx(tensor.kv_tokens, 1)
    apart = replica_timing(shape, H20, 4, machine=2)
    assert apart.step_s - alone.step_s == pytest.approx(4 * 28 * 5e-5)
    assert apart.message_s == pytest.approx(4 * 28 * 3 * bytes_each / 4 / (6.25e9 * 0.848))


def test_every_parallelism_uses_all_gpus() -> None:
    every = list(parallelisms(PoolNodes("rollout", H20, 3, 8), 28))
    assert len(set(every)) == len(every)
    assert all(one.tensor * one.stages * one.copies == 24 for one in every)
    assert {one.tensor for one in every} == {1, 2, 4, 8}


def test_the_own_shape_is_the_job_as_written() -> None:
    written = parse_scenario(
        file(rollout={"nodes": 1, "worst_case_s": 700, "host_memory_gb": 400}, training={"nodes": 2, "worst_case_s": 90}),
        folder=FILE.parent,
    )
    found = shapes(written)
    (own,) = [shape for shape in found.shapes if shape.own]
    assert (own.rollout.worst_case_s, own.rollout.host_memory_gb, own.training.worst_case_s) == (700, 400, 90)
    assert own.alone_s == written.jobs[0].solo_s
    assert own.usd == pytest.approx((8 * 1.85 + 16 * 5.28) * own.alone_s / 3600)
    assert own.busy_usd == pytest.approx((8 * 1.85 * 700 + 16 * 5.28 * 90) / 3600)
    less = next(time for time in found.trainings if time.nodes == 1)
    assert 90 < less.worst_case_s < 180, "half the nodes: longer, but not twice, as a part does not scale"


def test_no_shape_beats_one_that_is_pareto_optimal() -> None:
    found = shapes(load_scenario(FILE), 4).shapes
    assert len(found) == 9 and sum(shape.own for shape in found) == 1
    for shape in found:
        beaten = any(
            other.alone_s <= shape.alone_s
            and other.usd <= shape.usd
            and other.busy_usd <= shape.busy_usd
            and (other.alone_s, other.usd, other.busy_usd) != (shape.alone_s, shape.usd, shape.busy_usd)
            for other in found
        )
        assert shape.pareto != beaten
        assert shape.alone_s == alone_s(shape.rollout.worst_case_s, shape.training.worst_case_s, load_scenario(FILE).jobs[0].sync_s)


def test_what_is_printed_can_be_pasted(command: Command, tmp_path: Path) -> None:
    status, out, _ = command("shapes", str(FILE), "--job", "math-7b", "--format", "yaml")
    assert status == 0
    entries = YAML(typ="safe", pure=True).load(out)["shapes"]
    pasted = parse_scenario(file(shapes=entries), folder=FILE.parent).jobs[0]
    found = shapes(load_scenario(FILE), 4)
    chosen = [shape for shape in found.shapes if shape.pareto and not shape.own]
    assert len(pasted.shapes) == len(chosen) > 2
    for number, shape in enumerate(chosen, 1):
        rollout, training = pasted.phases(number)
        assert (rollout.nodes, training.nodes) == (shape.rollout.nodes, shape.training.nodes)
        assert rollout.worst_case_s == pytest.approx(shape.rollout.worst_case_s)
        assert training.worst_case_s == pytest.approx(shape.training.worst_case_s)
        assert bool(training.by_nodes) == (training.nodes < 4)


def test_a_shape_may_use_another_pool() -> None:
    data = file()
    pools = data["cluster"]
    spot = {"gpu": "H20", "gpus_per_node": 8, "usd_per_gpu_hour": 1.0, "max_nodes": 1}
    data["cluster"] = {"pools": {"rollout": pools["rollout"], "training": pools["training"], "spot": spot}}
    scenario = parse_scenario(data, folder=FILE.parent)
    found = shapes(scenario, 2, ("spot",))
    assert {(time.pool, time.nodes) for time in found.rollouts} == {("rollout", 1), ("rollout", 2), ("spot", 1)}
    assert not [shape for shape in found.shapes if shape.rollout.pool == shape.training.pool == "spot"], "it has one node"
    entries = found.in_file()
    assert {"pool": "spot", **entries[0]["rollout"]} == entries[0]["rollout"], "the cheapest is on the cheapest nodes"
    parse_scenario(data | {"jobs": [data["jobs"][0] | {"shapes": entries}]}, folder=FILE.parent)


def test_what_the_cluster_cannot_hold_is_no_shape() -> None:
    data = file()
    data["cluster"]["rollout"] |= {"max_nodes": 1}
    data["cluster"]["training"] |= {"node_memory_gb": 200}
    data["jobs"][0] |= {"training": {"nodes": 2}}
    found = shapes(parse_scenario(data, folder=FILE.parent), 4)
    assert {time.nodes for time in found.rollouts} == {1}
    assert {time.nodes for time in found.trainings} == {2, 4}, "one node does not hold it"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("quickstart.yaml",), "no job has a model"),
        (("models.yaml", "--job", "math"), "--job: must be one of math-7b"),
        (("models.yaml", "--pool", "spot"), "--pool: must be one of rollout, training"),
        (("models.yaml", "--max-nodes", "0"), "--max-nodes"),
    ],
)
def test_bad_input_is_one_line(command: Command, arguments: tuple[str, ...], problem: str) -> None:
    status, out, err = command("shapes", str(FILE.parent / arguments[0]), *arguments[1:])
    assert (status, out) == (2, "")
    assert problem in err and err.count("\n") == 1


def test_a_cluster_of_one_device_has_no_shapes() -> None:
    data = file()
    data["cluster"] = {"training": data["cluster"]["training"], "one_device": True}
    with pytest.raises(InputError, match=r"cluster\.one_device"):
        shapes(parse_scenario(data, folder=FILE.parent))


def test_the_command_prints_the_same_as_json(command: Command) -> None:
    status, out, _ = command("shapes", str(FILE), "--format", "json", "--max-nodes", "1")
    reports = json.loads(out)
    assert status == 0 and [report["job"] for report in reports] == ["math-7b", "code-7b", "math-14b"]
    assert all(report["shapes"] == [] and report["pairs"][0]["own"] for report in reports)
    assert "Pareto" in command("shapes", str(FILE), "--job", "math-7b")[1]
