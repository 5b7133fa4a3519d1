"""`one_device`: rollouts and trainings of a group take turns on its only nodes; by hand and against plain definitions."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.dispatch import DISPATCH, make_dispatch
from policies.gavel import Gavel
from policies.placement.algorithm1 import Algorithm1
from policies.placement.baselines import Solo
from policies.placement.optimal import Optimal
from policies.placement.planned import rescaled
from policies.registry import make_runnable
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Arrived, isolated
from rollmux_env.cluster.plan import Policy
from rollmux_env.cluster.state import State
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.generator import Fixed
from rollmux_env.errors import InputError
from rollmux_env.replay.admission import admit_all
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.replay.run import Run
from rollmux_env.scenario import Scenario, parse_scenario
from tests.oracle import planner
from tests.oracle.draw import Dict, examples, on_one_device, scenarios
from tests.oracle.replay import replay as naive_replay
from tests.rollmux_env.envs.playing import cheapest, play
from tests.rollmux_env.replay.restless import Restless, cost_of_log
from tests.rollmux_env.replay.test_fluid import close

POOL = {"gpus_per_node": 1, "usd_per_gpu_hour": 36}


def job(name: str, rollout_s: float, training_s: float, sync_s: float = 0, **more: Any) -> Dict:
    stay = {} if "duration_s" in more else {"iterations": 10}
    rollout, training = more.pop("rollout", {}), more.pop("training", {})
    phases = {"rollout": {"worst_case_s": rollout_s, **rollout}, "training": {"worst_case_s": training_s, **training}}
    return {"id": name, "arrival_s": 0, "slo": 4, "sync_s": sync_s, **stay, **phases, **more}


def scenario(*jobs: Dict, training: Dict = POOL, **cluster: Any) -> Scenario:
    return parse_scenario({"version": 1, "cluster": {"training": training, "one_device": True, **cluster}, "jobs": list(jobs)})


def events(problem: Scenario, policy: Policy, dispatch: str = "round-robin", seed: int = 0) -> Run:
    return replay_events(problem, policy, make_dispatch(dispatch), seed, Watch(check=True, keep_phases=True))


def unpruned() -> Algorithm1:
    return Algorithm1(prune=False)


def groups_of(problem: Scenario, policy: Policy) -> list[tuple[tuple[str, ...], float, float]]:
    return [(group.jobs, group.period_s, group.usd_per_hour) for group in admit_all(problem, policy).groups]


def test_a_period_is_the_sum_of_the_phases_or_the_longest_job_alone() -> None:
    """A sync is not on the device: b and c run in that of a, 10 + 5 + 20 alone, until there is more than that of them."""
    a, b, c = job("a", 10, 5, 20), job("b", 5, 5, slo=3.5), job("c", 8, 4)
    assert groups_of(scenario(a, b), unpruned()) == [(("a", "b"), 35, 36)]
    assert groups_of(scenario(a, {**b, "slo": 4}, c), unpruned()) == [(("a", "b", "c"), 37, 36)]
    assert groups_of(scenario(a, b, c), unpruned()) == [(("a", "b"), 35, 36), (("c",), 12, 36)]  # b would take 37 / 10 > 3.5
    alone = groups_of(scenario(a, b), Solo())
    assert alone == [(("a",), 35, 36), (("b",), 10, 36)]


def test_a_device_without_syncs_is_saturated_from_the_first_job_on() -> None:
    jobs = job("a", 10, 5), job("b", 5, 5)
    assert groups_of(scenario(*jobs), Algorithm1()) == [(("a",), 15, 36), (("b",), 10, 36)]
    assert groups_of(scenario(*jobs), unpruned()) == [(("a", "b"), 25, 36)]


def test_groups_buy_training_nodes_alone_and_a_larger_one_trains_faster() -> None:
    """On the two nodes of a, b trains in 3 s; its rollout takes as long as ever, whatever nodes it names."""
    a = job("a", 10, 5, 20, training={"nodes": 2})
    b = job("b", 5, 9, rollout={"nodes": 3}, training={"by_nodes": {2: 3}})
    admission = admit_all(scenario(a, b, training={**POOL, "max_nodes": 2}), unpruned())
    assert [(d.strategy, d.delta_usd_per_hour, d.rollout_nodes, d.training_nodes) for d in admission.decisions] == [
        ("isolated", 72, (), (0, 1)),
        ("direct_packing", 0, (), (0, 1)),
    ]
    found = metrics(replay(scenario(a, b), unpruned(), check=True))
    assert found.peak_gpus == {"rollout": 0, "training": 2} and found.utilization["rollout"] is None
    assert found.utilization["training"] == pytest.approx((10 + 5 + 5 + 3) / 35)
    assert found.cost_usd == pytest.approx(72 * 350 / 3600)


def test_a_node_keeps_the_memory_of_both_sides() -> None:
    memory: Dict = {"rollout": {"host_memory_gb": 30}, "training": {"host_memory_gb": 20}}
    jobs = job("a", 10, 5, 20, **memory), job("b", 5, 5, **memory)
    assert len(groups_of(scenario(*jobs, training={**POOL, "node_memory_gb": 100}), unpruned())) == 1
    assert len(groups_of(scenario(*jobs, training={**POOL, "node_memory_gb": 99}), unpruned())) == 2
    with pytest.raises(InputError, match=r"jobs\[0\].training.host_memory_gb: the job asks for 50 GB; a training node has 49 GB"):
        scenario(*jobs, training={**POOL, "node_memory_gb": 49})
    with pytest.raises(InputError, match=r"jobs\[0\].training.nodes: asks for 2 nodes; the training pool has at most 1"):
        scenario(job("a", 1, 1, training={"nodes": 2}), training={**POOL, "max_nodes": 1})


def test_a_rollout_pool_may_be_left_out_or_counts_for_nothing() -> None:
    jobs = job("a", 10, 5, 20), job("b", 5, 5)
    bare, both = (
        scenario(*jobs),
        scenario(*jobs, rollout={"gpus_per_node": 8, "usd_per_gpu_hour": 99, "node_memory_gb": 0, "max_nodes": 1}),
    )
    assert metrics(replay(bare, unpruned())) == metrics(replay(both, unpruned()))
    with pytest.raises(InputError, match=r"cluster\.rollout: is missing"):
        scenario(*jobs, one_device=False)
    two: Dict = {"rollout": POOL, "one_device": False}
    assert (
        scenario(*jobs, **two).sha256
        == parse_scenario({"version": 1, "cluster": {"rollout": POOL, "training": POOL}, "jobs": [*jobs]}).sha256
    )


def test_phases_follow_one_another_in_order_of_admission() -> None:
    """a: 10 + 5, and 20 s of sync off the device; b: 5 + 5. b is done with its second iteration when a begins its own."""
    run = events(scenario(job("a", 10, 5, 20, iterations=2), job("b", 5, 5, iterations=2)), unpruned())
    timeline = [(p.job_id, p.phase, p.start_s) for p in sorted(run.phases, key=lambda p: p.start_s)]
    assert timeline == [
        ("a", "rollout", 0),
        ("a", "training", 10),
        ("b", "rollout", 15),
        ("b", "training", 20),
        ("a", "rollout", 35),
        ("a", "training", 45),
        ("b", "rollout", 50),
        ("b", "training", 55),
    ]
    assert {(p.pool, p.nodes) for p in run.phases} == {("training", (0,))}


@examples(30)
@given(drawn=scenarios().map(on_one_device))
def test_the_fluid_replay_is_the_naive_one(drawn: Dict) -> None:
    for policy, decide in ((Algorithm1(), planner.choose), (Solo(), planner.choose_solo)):
        found = metrics(replay(parse_scenario(drawn), policy, check=True)).as_dict()
        expected = naive_replay(drawn, decide)
        close({key: found[key] for key in expected}, expected)


@examples(20)
@given(drawn=scenarios().map(on_one_device), seed=st.integers(0, 999), dispatch=st.sampled_from(sorted(DISPATCH)))
def test_no_node_runs_two_phases_at_once(drawn: Dict, seed: int, dispatch: str) -> None:
    """Under policies that place and move at random, with durations that vary."""
    noisy = {"actual": {"mean_fraction": 0.6, "cv": 0.4}}
    jobs = [{**one, "rollout": {**one["rollout"], **noisy}, "training": {**one["training"], **noisy}} for one in drawn["jobs"]]
    problem = parse_scenario({**drawn, "jobs": jobs})
    run = events(problem, Restless(seed, True), dispatch, seed)
    spans = sorted((p.group, node, p.start_s, p.end_s) for p in run.phases for node in p.nodes)
    for before, after in itertools.pairwise(spans):
        assert before[:2] != after[:2] or before[3] <= after[2] + 1e-9
    found = metrics(run)
    assert found.cost_usd == pytest.approx(cost_of_log(problem, run.log), rel=1e-9, abs=1e-9)
    assert found.peak_gpus["rollout"] == 0 and (found.utilization["training"] or 0) <= 1 + 1e-9


@examples(20)
@given(times=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20), st.sampled_from([0, 0, 15])), min_size=1, max_size=4))
def test_the_steady_pace_is_the_planned_period(times: list[tuple[int, int, int]]) -> None:
    jobs = [job(f"j{k}", *map(float, seconds), iterations=40, slo=99) for k, seconds in enumerate(times)]
    (group,) = groups_of(scenario(*jobs), unpruned())
    run = events(scenario(*jobs), unpruned())
    ends = [p.end_s for p in run.phases if p.job_id == "j0" and p.phase == "training"]
    assert (ends[-1] - ends[9]) / 30 == pytest.approx(group[1])
    assert group[1] >= sum(rollout + training for rollout, training, _ in times)


def partitions(names: list[Dict]) -> Any:
    if not names:
        yield []
        return
    for rest in partitions(names[1:]):
        yield [[names[0]], *rest]
        for k, part in enumerate(rest):
            yield [*rest[:k], [names[0], *part], *rest[k + 1 :]]


def least_usd(cluster: Dict, members: list[Dict]) -> float:
    """Of one group on the fewest nodes, from the members' largest request up, on which every SLO is kept."""
    least = max(one["training"]["nodes"] for one in members)
    for nodes in range(least, 5):
        group = {"id": 0, "rollout_nodes": [], "training": nodes, "members": [{"job": one, "nodes": []} for one in members]}
        if (
            planner.fits_memory(cluster, group, "training")
            and planner.keeps_slos(group)
            and len(members) <= cluster["max_group_size"]
        ):
            return planner.group_usd_per_hour(cluster, group)
    return float("inf")


@examples(20)
@given(drawn=scenarios(max_jobs=5).map(on_one_device))
def test_the_optimum_is_the_best_of_all_partitions(drawn: Dict) -> None:
    drawn["cluster"]["training"].pop("max_nodes", None)
    cluster, jobs = planner.read(drawn)
    brute = min(sum(least_usd(cluster, part) for part in partition) for partition in partitions(jobs))
    assert Optimal().plan(parse_scenario(drawn)).value == pytest.approx(brute, abs=1e-9)


@pytest.mark.parametrize("name", ["rollmux", "random", "most-idle", "colocated", "consolidate", "regroup", "learned:default"])
def test_every_policy_that_runs_jobs_takes_one_pool(name: str) -> None:
    arrivals = [job(f"j{k}", 5 + 3 * (k % 4), 4 + k % 3, 20 * (k % 2), arrival_s=30 * k, duration_s=900) for k in range(8)]
    problem = scenario(*[{key: value for key, value in one.items() if key != "iterations"} for one in arrivals], migration_s=5)
    fluid, event = replay(problem, make_runnable(name, 1), check=True), events(problem, make_runnable(name, 1))
    for found in (metrics(fluid), metrics(event)):
        assert found.peak_gpus["rollout"] == 0 < found.peak_gpus["training"] <= 8
    assert metrics(fluid).cost_usd <= metrics(replay(problem, Solo())).cost_usd * (1 + 1e-9)


def test_planning_with_other_durations_scales_both_phases() -> None:
    """As `quantile` and `observe` do: rollouts half, trainings a quarter as long."""
    problem = scenario(job("a", 10, 8, 2, training={"by_nodes": {2: 4}}))
    state = State(problem.cluster)
    apply(state, Arrived(0.0, problem.jobs[0]))
    apply(state, Admitted(0.0, "a", isolated(problem.jobs[0], problem.cluster)))
    twin = rescaled(state, {0: (0.5, 0.25)}, slo_too=False)
    assert (twin.tables.jobs.placed_training_s[0], twin.tables.jobs.rescale_s[0, 0], twin.tables.jobs.solo_s[0]) == (7, 6, 9)
    assert twin.group_list()[0].period_s == 9 and state.group_list()[0].period_s == 20


def test_a_model_is_predicted_for_the_gpus_of_the_only_pool() -> None:
    pool = {"gpu": "H800", "gpus_per_node": 8, "usd_per_gpu_hour": 1}
    model = {"id": "a", "arrival_s": 0, "iterations": 1, "slo": 2, "model": "7B", "lengths": {"cap": 1024}}
    alone = parse_scenario({"version": 1, "cluster": {"training": pool, "one_device": True}, "jobs": [model]})
    two = parse_scenario({"version": 1, "cluster": {"rollout": pool, "training": pool}, "jobs": [model]})
    assert alone.jobs == two.jobs


def test_what_needs_two_pools_says_so() -> None:
    with pytest.raises(InputError, match="--policy gavel: needs two pools; the cluster is one_device"):
        Gavel().replay(scenario(job("a", 1, 1)))


def test_an_environment_costs_what_the_replay_of_its_choices_does() -> None:
    problem = scenario(*[job(f"j{k}", 5, 3 + k % 3, 15 * (k % 2), arrival_s=20.0 * k, slo=3) for k in range(8)])
    env = PlacementVectorEnv(1, Fixed(problem), autoreset_mode="Disabled")
    episode = play(env, cheapest)
    assert episode.info["cost_usd"] == pytest.approx(metrics(replay(problem, unpruned())).cost_usd)
