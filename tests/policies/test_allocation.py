"""Allocators: the integer program, the yardstick, how near `hex` comes to it, and the command."""

from __future__ import annotations

import json
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from policies.allocation import ALLOCATION, make_allocator
from policies.allocation.hex import bisections
from policies.allocation.plan_table import PlanTable
from policies.allocation.plans import ReplicaKind, rollout_plan
from rollmux_env.allocation.allocation import GpuBudget
from rollmux_env.allocation.job import make_allocated_scenario
from rollmux_env.errors import InputError
from rollmux_env.timing.models import SHAPES
from rollmux_env.timing.stages import Replica
from rollmux_env.timing.work import IterationWork
from runtime.jobs.spec import job_of
from tests.conftest import Command
from tests.oracle.draw import examples

H800, H20 = "H800-areal-hex", "H20-areal-hex"
SMALL = IterationWork(SHAPES["1.5B"], 256)

kinds = st.builds(
    lambda gpus, batch, rate: ReplicaKind(Replica((), batch), gpus, rate),
    st.sampled_from([(1, 0), (0, 1), (2, 0), (0, 2), (1, 1), (4, 0)]),
    st.integers(1, 8),
    st.floats(0.1, 10),
)


@given(st.lists(kinds, min_size=1, max_size=3), st.integers(0, 3), st.integers(0, 3), st.integers(1, 12))
@examples(40)
def test_the_rollout_program_equals_brute_force(some: list[ReplicaKind], first: int, second: int, in_flight: int) -> None:
    best = 0.0
    for numbers in product(range(4), repeat=len(some)):
        used = [sum(y * kind.gpus[k] for y, kind in zip(numbers, some, strict=True)) for k in range(2)]
        sequences = sum(y * kind.replica.batch for y, kind in zip(numbers, some, strict=True))
        if used[0] <= first and used[1] <= second and sequences <= in_flight:
            best = max(best, sum(y * kind.responses_per_s for y, kind in zip(numbers, some, strict=True)))
    plan = rollout_plan(some, (first, second), in_flight)
    assert (0.0 if plan is None else plan.responses_per_s) == pytest.approx(best, rel=1e-5)


def test_the_yardstick_is_the_best_of_all_pairs_of_plans() -> None:
    budget = GpuBudget({H800: 3, H20: 2}, 2)
    table = PlanTable(SMALL, budget)
    every = [found.iteration_s for timed in table.plans if (found := table.complete(timed)) is not None]
    assert len(every) > 5
    assert make_allocator("exhaustive")(SMALL, budget).iteration_s == min(every)


@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from([0, 2]), st.booleans())
@settings(max_examples=12)
def test_more_gpus_are_never_slower(first: int, second: int, staleness: int, which: bool) -> None:
    work = IterationWork(SHAPES["1.5B"], 256, staleness=staleness)
    divide = make_allocator("exhaustive")
    less = divide(work, GpuBudget({H800: first, H20: second})).iteration_s
    more = divide(work, GpuBudget({H800: first + which, H20: second + (not which)})).iteration_s
    assert more <= less * (1 + 1e-5)


@pytest.mark.parametrize("counts", [(8, 8), (16, 8), (16, 16)])
@pytest.mark.parametrize(("size", "staleness"), [("7B", 4), ("14B", 0)])
def test_hex_is_within_three_percent_of_the_yardstick(counts: tuple[int, int], size: str, staleness: int) -> None:
    work, budget = IterationWork(SHAPES[size], staleness=staleness), GpuBudget({H800: counts[0], H20: counts[1]})
    best, found = (make_allocator(name)(work, budget).iteration_s for name in ("exhaustive", "hex"))
    assert best <= found * (1 + 1e-5)
    assert found <= 1.03 * best


@pytest.mark.parametrize("name", ALLOCATION)
def test_an_allocation_stays_within_its_budget_and_memory_and_is_the_same_again(name: str) -> None:
    work, budget = IterationWork(SHAPES["7B"], 512, staleness=1), GpuBudget({H800: 8, H20: 8})
    allocation = make_allocator(name)(work, budget)
    for gpu, count in budget.gpus.items():
        assert (
            allocation.training.gpus.get(gpu, 0) + allocation.rollout_gpus.get(gpu, 0) + allocation.spare_gpus.get(gpu, 0) == count
        )
    assert allocation.training.fits(work.micro_tokens) and all(replica.fits(work) for replica, _ in allocation.replicas)
    assert sum(number * replica.batch for replica, number in allocation.replicas) <= work.in_flight
    assert allocation.iteration_s == max(allocation.training_s, allocation.rollout_s)
    again = make_allocator(name)(work, budget)
    assert (again.training, again.replicas) == (allocation.training, allocation.replicas)


def test_more_staleness_never_makes_an_iteration_longer() -> None:
    budget = GpuBudget({H800: 4, H20: 4})
    seconds = [make_allocator("exhaustive")(IterationWork(SHAPES["7B"], 64, staleness=e), budget).iteration_s for e in (0, 1, 2, 4)]
    assert all(later <= earlier * (1 + 1e-5) for earlier, later in pairwise(seconds))
    assert seconds[1] < 0.9 * seconds[0]


def test_a_bisection_is_found_in_every_window_that_discrete_gpus_can_meet() -> None:
    graph = bisections(GpuBudget({H800: 8, H20: 8}))
    assert len(graph.counts) == 9 * 9 - 2
    for gamma in (0.1, 0.3, 0.5, 0.7, 0.9):
        for weight in (0.0, 0.5):
            row = graph.counts.tolist().index(list(graph.best(gamma, weight)))
            assert abs(graph.compute[row] - gamma) <= graph.tolerance * (1 + 1e-9)
    assert graph.best(0.4, 0.0)[0] > graph.best(0.4, 0.0)[1], "what has more arithmetic than memory bandwidth trains"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("7B", "--budget", "H800=1"), "1 x H800 cannot hold"),
        (("70B", "--budget", "H800=4"), "cannot hold a training of this model"),
        (("7B", "--budget", "H900=8"), "--budget GPU: must be one of H20"),
        (("7B", "--budget", "H800=8", "--staleness", "-1"), "--staleness: must be at least 0, not -1"),
        (("9B", "--budget", "H800=8"), "must be one of 0.5B"),
        (("7B", "--budget", "H800=8", "--allocator", "best"), "--allocator: must be one of uniform, hex, exhaustive"),
        (("7B", "--budget", "H800=100", "--allocator", "exhaustive"), "at most 96 GPUs, not 100"),
        (("7B", "--budget", "H800=8", "--gpus-per-node", "0"), "--gpus-per-node: must be at least 1, not 0"),
    ],
)
def test_bad_input_is_one_line(command: Command, arguments: tuple[str, ...], problem: str) -> None:
    status, out, err = command("allocate", *arguments)
    assert (status, out) == (2, "")
    assert problem in err and err.count("\n") == 1


def test_the_command_prints_the_plan(command: Command) -> None:
    arguments = ("allocate", "7B", "--budget", "H800=8,H20=8", "--staleness", "1", "--set", "responses=512")
    status, out, _ = command(*arguments)
    assert status == 0
    assert "training" in out and "rollout" in out and "responses/s" in out
    report = json.loads(command(*arguments, "--format", "json")[1])
    assert report["budget"] == {"H800": 8, "H20": 8}
    assert report["iteration_s"] == max(report["training"]["seconds"], report["rollout"]["seconds"])


def test_a_budget_that_holds_no_plan_is_refused() -> None:
    with pytest.raises(InputError, match="beside it"):
        PlanTable(IterationWork(SHAPES["1.5B"], 64), GpuBudget({H800: 1}))


@pytest.mark.parametrize("staleness", [0, 4])
def test_a_plan_becomes_a_job_whose_iteration_it_is_and_other_budgets_its_shapes(staleness: int) -> None:
    work = IterationWork(SHAPES["7B"], 1024, staleness=staleness)
    plans = [make_allocator("hex")(work, GpuBudget(gpus)) for gpus in ({"H800": 8, "H20": 16}, {"H800": 16, "H20": 32})]
    scenario = make_allocated_scenario("7B", plans)
    (job,) = scenario.jobs
    assert [pool.gpu for pool in scenario.cluster.pools.values()] == ["H20", "H800"]
    assert (job.rollout.nodes, job.training.nodes, job.staleness) == (2, 1, staleness)
    for shape, plan in enumerate(plans):
        rollout, training = job.phases(shape)
        assert job.iteration_s(rollout.worst_case_s, training.worst_case_s, 0.0) == pytest.approx(plan.iteration_s, rel=1e-5)
    assert job.phases(1).rollout.nodes == 4 and job.phases(1).training.nodes == 2


def test_allocate_writes_a_job_that_plan_takes_and_shapes_that_run_takes_or_says_why_not(command: Command, tmp_path: Path) -> None:
    words = ("allocate", "7B", "--set", "responses=1024")
    status, _, err = command(*words, "--budget", "H800=8,H20=16", "--shape", "H800=16,H20=32", "--out", str(tmp_path / "job.yaml"))
    assert (status, err) == (0, "")
    status, out, _ = command("plan", str(tmp_path / "job.yaml"))
    assert status == 0 and "7B (1.00x)" in out
    (planned,) = YAML(typ="safe").load((tmp_path / "job.yaml").read_text())["jobs"]
    nodes = {side: {"nodes": planned[side].get("nodes", 1)} for side in ("rollout", "training")}
    real = job_of({"id": "7B", "iterations": 9, "slo": 1.5, "task": "count", **nodes, "shapes": planned["shapes"]})
    assert [real.nodes_in(shape) for shape in (0, 1)] == [{"rollout": 2, "training": 1}, {"rollout": 4, "training": 2}]
    mixed = (*words, "--budget", "H800=8,H20=8", "--format", "json")
    free, one = (json.loads(command(*mixed, *more)[1]) for more in ((), ("--out", str(tmp_path / "one.yaml"))))
    assert free["iteration_s"] < one["iteration_s"], "as a job, each side has GPUs of one type"
    assert command("plan", str(tmp_path / "one.yaml"))[0] == 0
    status, _, err = command(*words, "--budget", "H800=8,H20=16", "--shape", "H800=16,H20=32")
    assert status == 2 and "goes with --out and --job-file" in err


def test_allocate_writes_a_job_file_that_run_takes_and_says_what_that_cannot_do(command: Command, tmp_path: Path) -> None:
    words = ("allocate", "1.5B", "--set", "responses=64", "--set", "cap=8192", "--set", "updates=2")
    small, large = (str(tmp_path / name) for name in ("small.yaml", "large.yaml"))
    assert command(*words, "--budget", "H800=1,H20=1", "--gpus-per-node", "1", "--job-file", small)[0] == 0
    assert command("run", small, "--dry-run")[0] == 0
    (job,) = YAML(typ="safe").load(Path(small).read_text())["jobs"]
    assert (job["id"], job["staleness"], job["rollout"]["tensor_parallel"]) == ("1.5B", 4, 1)
    assert job["algorithm"] == {"prompts_per_iteration": 8, "group_size": 8, "minibatches": 2}
    assert command(*words, "--budget", "H800=4,H20=4", "--shape", "H800=8,H20=16", "--job-file", large)[0] == 0
    head = [line for line in Path(large).read_text().splitlines() if line.startswith("# A real run cannot do: ")]
    assert any("4 of the 8 GPUs of a rollout node" in line for line in head)
    (job,) = YAML(typ="safe").load(Path(large).read_text())["jobs"]
    assert job["shapes"] == [{"rollout": {"nodes": 2}, "training": {"nodes": 1}}]
