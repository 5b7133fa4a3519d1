"""The baselines: isolated provisioning, and sharing without looking at SLOs."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.placement.algorithm1 import Algorithm1
from policies.placement.baselines import ColocatedJobs, MostIdle, Random, Solo, idle_share
from policies.placement.openrl import OpenRL
from policies.registry import make_policy
from rollmux_env.bench.harness import OwnReplay
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Arrived, Event, Placement
from rollmux_env.cluster.plan import Place, Plan, Wait, carry_out
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.kernel.pools import penalty_usd
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.lent import Borrower, lent_share
from rollmux_env.replay.metrics import metrics
from rollmux_env.replay.outcome import outcome
from rollmux_env.replay.piped import piped_s, piped_share
from rollmux_env.replay.unordered import replay_unordered
from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.workloads import make_workload
from rollmux_env.workloads.options import WorkloadOptions
from tests.oracle.draw import examples
from tests.oracle.planner import MEMORY


def scenario(*jobs: dict[str, object], **cluster: object) -> Scenario:
    pools = {
        "rollout": {"gpus_per_node": 8, "usd_per_gpu_hour": 1.0, **dict(cluster.pop("rollout", {}))},  # type: ignore[call-overload]
        "training": {"gpus_per_node": 8, "usd_per_gpu_hour": 4.0, **dict(cluster.pop("training", {}))},  # type: ignore[call-overload]
    }
    filled = [{"id": f"j{k}", "arrival_s": k, "duration_s": 1e4, "slo": 1.1, **job} for k, job in enumerate(jobs)]
    return parse_scenario({"version": 1, "cluster": {**pools, **cluster}, "jobs": filled})


def phases(rollout_s: float, training_s: float, nodes: int = 1) -> dict[str, object]:
    return {"rollout": {"worst_case_s": rollout_s, "nodes": nodes}, "training": {"worst_case_s": training_s}}


def test_solo_gives_every_job_its_own_nodes() -> None:
    stream = scenario(phases(100, 50, nodes=2), phases(10, 5))
    found = metrics(replay(stream, Solo(), check=True))
    assert found.admissions == {"direct_packing": 0, "rollout_scaling": 0, "isolated": 2}
    assert found.peak_gpus == {"rollout": 24, "training": 16}
    assert list(found.slowdown.values()) == pytest.approx([1, 1])


def test_openrl_seats_a_job_where_fewest_are_and_opens_a_claim_before_or_after() -> None:
    jobs = [phases(100, 50), phases(80, 40), phases(90, 50, nodes=2), phases(70, 60), phases(60, 60), phases(10, 5)]
    stream = scenario(*jobs, max_group_size=2)

    def groups(policy: OpenRL, stream: Scenario = stream) -> list[int | None]:
        log = replay(stream, policy, check=True).log
        return [event.placement.group for event in log if isinstance(event, Admitted)]

    assert groups(OpenRL()) == [None, 0, None, None, 2, None], "two fill a group; several nodes share nothing; then a group again"
    assert groups(OpenRL("spread")) == [None] * 6, "there are nodes enough"
    few = scenario(*jobs, rollout={"max_nodes": 4}, training={"max_nodes": 3})
    assert groups(OpenRL("spread"), few) == [None, None, None, 0, 1, 0], "fewest members first; the last one waits for a seat"
    with pytest.raises(InputError, match="strategy must be binpack or spread, not pack"):
        make_policy("openrl,strategy=pack")


def test_solo_waits_for_nodes() -> None:
    stream = scenario(phases(100, 50), phases(10, 5), training={"max_nodes": 1})
    found = metrics(replay(stream, Solo(), check=True))
    assert found.wait_s == pytest.approx({"j1": 1e4 - 1})
    assert found.slo_attainment == 1.0


def test_a_stale_job_does_not_go_where_its_phases_would_take_turns() -> None:
    stream = scenario({**phases(100, 50), "staleness": 1})
    assert metrics(replay(stream, Solo(), check=True)).work_h == pytest.approx(1e4 / 3600), "100 s an iteration, and 100 alone"
    with pytest.raises(InputError, match=r"^job j0: staleness: does not go with --policy colocated"):
        replay(stream, ColocatedJobs())
    with pytest.raises(InputError, match=r"^job j0: staleness: does not go with --policy naive"):
        replay_unordered(stream, Solo())


def test_colocated_runs_both_phases_on_training_nodes_alone() -> None:
    block = {"colocated": {"nodes": 2, "rollout_s": 60, "training_s": 40}}
    stream = scenario({**phases(30, 20), **block, "sync_s": 50})
    found = metrics(replay(stream, ColocatedJobs(), check=True))
    assert found.peak_gpus == {"rollout": 0, "training": 16}
    assert found.cost_usd == pytest.approx(2 * 32 * 1e4 / 3600)
    assert found.slowdown["j0"] == pytest.approx(1.0), "100 s an iteration, and 30 + 20 + 50 alone"
    assert found.utilization == {"rollout": None, "training": pytest.approx(1.0)}


def test_colocated_without_a_block_takes_the_phases_as_they_are_and_can_break_an_slo() -> None:
    block = {"colocated": {"nodes": 1, "rollout_s": 200, "training_s": 20}}
    found = metrics(replay(scenario(phases(30, 20), {**phases(30, 20), **block}), ColocatedJobs(), check=True))
    assert found.slowdown == pytest.approx({"j0": 1.0, "j1": 4.4})
    assert found.slo_attainment == 0.5


def test_colocated_that_can_never_fit_is_bad_input() -> None:
    block = {"colocated": {"nodes": 3, "rollout_s": 60, "training_s": 40}}
    with pytest.raises(InputError, match=r"j0: colocated\.nodes: 3 nodes"):
        replay(scenario({**phases(30, 20), **block}, training={"max_nodes": 2}), ColocatedJobs())


def test_nobody_joins_a_colocated_jobs_nodes() -> None:
    state = State(scenario(phases(30, 20), phases(1, 1)).cluster)
    first, second = scenario(phases(30, 20), phases(1, 1)).jobs
    apply(state, Arrived(0.0, first))
    carry_out(state, (Place("j0", Placement(None, training_nodes=1, colocated=True)),), keeps_slo=True)
    apply(state, Arrived(0.0, second))
    for policy in (Random(seed=1), MostIdle()):
        (action,) = policy.decide(state, Arrived(0.0, second))
        assert isinstance(action, Place) and action.placement.group is None


@pytest.mark.parametrize("policy", [Random(seed=3), MostIdle()])
def test_blind_policies_keep_what_is_physical_and_nothing_else(policy: Random | MostIdle) -> None:
    stream = make_workload("mixed", WorkloadOptions(jobs=60, slo=(1.0, 1.2)))
    found = metrics(replay(stream, policy, check=True))
    assert found.slo_attainment < 0.8


@pytest.mark.parametrize("policy", [Random(seed=3), MostIdle()])
def test_blind_policies_wait_for_nodes(policy: Random | MostIdle) -> None:
    for key, limit in MEMORY.items():
        full = {limit: 100, "max_nodes": 1}
        heavy: dict[str, object] = {"rollout": {"worst_case_s": 5, key: 80}, "training": {"worst_case_s": 5}}
        run = replay(scenario(heavy, heavy, rollout=full), policy, check=True)
        assert metrics(run).wait_s == pytest.approx({"j1": 1e4 - 1})


def test_random_is_uniform_over_groups_and_a_new_one() -> None:
    stream = scenario(*[phases(10, 10)] * 3)
    state = State(stream.cluster)
    for job in stream.jobs[:2]:
        apply(state, Arrived(0.0, job))
        carry_out(state, (Place(job.id, Placement(None, (), 1, 1)),), keeps_slo=True)
    apply(state, Arrived(0.0, stream.jobs[2]))
    policy = Random(seed=0)
    chosen = Counter()  # type: ignore[var-annotated]
    for _ in range(3000):
        (action,) = policy.decide(state, Arrived(0.0, stream.jobs[2]))
        assert isinstance(action, Place) and action.placement.new_rollout_nodes == (action.placement.group is None)
        chosen[action.placement.group] += 1
    assert set(chosen) == {0, 1, None}
    assert np.ptp(list(chosen.values())) < 250


def test_random_repeats_itself_for_a_seed() -> None:
    stream = make_workload("mixed", WorkloadOptions(jobs=40))
    logs = [replay(stream, Random(seed=seed)).log for seed in (5, 5, 6)]
    assert logs[0] == logs[1]
    assert logs[0] != logs[2]


def test_most_idle_takes_the_idlest_group_and_its_least_loaded_node() -> None:
    stream = scenario(phases(100, 80), phases(100, 10), phases(10, 10), phases(5, 5))
    state = State(stream.cluster)
    placements = [Placement(None, (), 1, 1), Placement(None, (), 1, 1), Placement(1, (), 1)]
    for job, placement in zip(stream.jobs, placements, strict=False):
        apply(state, Arrived(0.0, job))
        carry_out(state, (Place(job.id, placement),), keeps_slo=False)
    assert idle_share(state, 1) > idle_share(state, 0)
    apply(state, Arrived(0.0, stream.jobs[3]))
    (action,) = MostIdle().decide(state, Arrived(0.0, stream.jobs[3]))
    assert action == Place("j3", Placement(1, (1,), 0)), "node 1 of group 1 holds 10 s, node 0 holds 100 s"


def test_idle_share_counts_every_node() -> None:
    stream = scenario(phases(60, 40))
    state = State(stream.cluster)
    apply(state, Arrived(0.0, stream.jobs[0]))
    (action,) = Solo().decide(state, Arrived(0.0, stream.jobs[0]))
    assert not isinstance(action, Wait)
    carry_out(state, (action,), keeps_slo=True)
    assert idle_share(state, 0) == pytest.approx(1 - (60 + 40) / (2 * 100))


@pytest.mark.parametrize(
    ("staleness", "warm_s", "iteration_s"),
    [
        (0, 0.0, 60 + 40),  # 100 s of rollout on nodes that take 100 and 150 s: 1 / (1/100 + 1/150) = 60
        (0, 5.0, 62 + 5 + 40),  # they come 5 s late, and train 5 s late
        (2, 0.0, 76),  # outside their 40 s of training: (1 + 40/150) * 60
        (0, 90.0, 100 + 40),  # too far away to help
    ],
)
def test_lent_training_nodes_shorten_the_rollouts_of_their_own_job(staleness: int, warm_s: float, iteration_s: float) -> None:
    start = {"warm_s": warm_s, "cold_s": warm_s}
    parts = {name: {"worst_case_s": seconds, "switch": start} for name, seconds in (("rollout", 100.0), ("training", 40.0))}
    stream = scenario({**parts, "staleness": staleness, "colocated": {"nodes": 1, "rollout_s": 150.0, "training_s": 40.0}})
    lending = make_policy("solo,lend=true")
    assert isinstance(lending, OwnReplay)
    found = lending.replay(stream, check=True).metrics
    assert found.slowdown["j0"] == pytest.approx(iteration_s / stream.jobs[0].solo_s)
    assert found.work_h == pytest.approx(1e4 / 3600 / found.slowdown["j0"])


def test_lending_beside_sharing_fills_the_bubbles_that_a_group_leaves() -> None:
    """Two jobs of 100 + 20 s on rollout nodes of their own share a training node, which is idle for 80 s of their 120 s.

    With h seconds of help each, at the speed of its own node, an iteration takes 100 - h + 20 s, and the training node is busy for
    2 x (20 + h): both are 93.3 s where h is 26.7, and less than that is not possible.
    """
    both = {**phases(100, 20), "slo": 1.1}
    stream = scenario(both, both)
    plain = outcome(replay(stream, Algorithm1(prune=False))).metrics
    lending = make_policy("rollmux,prune=false,lend=true")
    assert isinstance(lending, OwnReplay)
    lent = lending.replay(stream, check=True).metrics
    assert plain.admissions == lent.admissions and plain.cost_usd == pytest.approx(lent.cost_usd), "stays are fixed"
    assert plain.slowdown["j1"] == pytest.approx(1, rel=1e-3) and lent.slowdown["j1"] == pytest.approx(7 / 9, rel=1e-3)


@given(st.lists(st.tuples(st.floats(1, 50), st.floats(1, 50), st.floats(1, 90), st.integers(0, 2)), min_size=1, max_size=4))
@examples(40)
def test_lending_never_costs_and_never_beats_what_all_nodes_together_could_do(parts: list[tuple[float, float, float, int]]) -> None:
    members = tuple(Borrower(r, t, 0.0, there, 0.0, 0.0, e, (k % 2,)) for k, (r, t, there, e) in enumerate(parts))
    share = lent_share(members)
    assert 0 < share <= 1
    alone_s = max(
        sum(one.training_s for one in members),
        *(sum(one.rollout_s for one in members if one.nodes == (node,)) for node in range(2)),
        *((one.rollout_s + one.training_s) / (1 + one.staleness) for one in members),
    )
    assert share * alone_s >= sum(one.training_s for one in members) * (1 - 1e-9)
    assert share * alone_s >= max(one.rollout_s * one.there_s / (one.rollout_s + one.there_s) for one in members) * (1 - 1e-9)


def test_complete_groups_are_trained_on_while_the_rollout_continues() -> None:
    """Of 100 + 1 s almost all training is hidden; 1 + 100 s wait for the first group alone; a shared training node stays busy."""
    assert 100 < piped_s(100.0, 1.0) < 100.3 and 100 < piped_s(1.0, 100.0) < 100.6
    assert 100 < piped_s(100.0, 100.0) < 150
    piping = make_policy("solo,pipe=true")
    assert isinstance(piping, OwnReplay)
    stream = scenario(phases(100, 60))
    assert piping.replay(stream, check=True).metrics.slowdown["j0"] == pytest.approx(piped_s(100, 60) / 160)
    busy = tuple(Borrower(20.0, 50.0, 0.0, 20.0, 0.0, 0.0, 0, (k,)) for k in range(2))
    assert piped_share(busy) == 1 > piped_share(busy[:1])


def test_what_lends_is_a_yardstick_and_the_option_is_refused_in_one_line() -> None:
    for spec, problem in (
        ("colocated,lend=true", "lend: does not go with a policy that only replays, or that rolls out on training nodes"),
        ("optimal,lend=true", "lend: does not go with"),
        ("rollmux,lend=1", "lend: must be true or false, not 1"),
        ("rollmux,lend=true,lend=false", "'lend' is set twice"),
        ("optimal,pipe=true", "pipe: does not go with"),
        ("solo,lend=true,pipe=true", "pipe: does not go with a policy that only replays"),
    ):
        with pytest.raises(InputError, match=re.escape(problem)):
            make_policy(spec)
    assert not isinstance(make_policy("rollmux,lend=false"), OwnReplay)


def test_a_group_whose_members_miss_their_slos_is_charged_the_slowdown_of_the_worst() -> None:
    """Two jobs of 100 + 50 s on one rollout node have a period of 200 s, so the one that may take 165 s is 4/3 as slow."""
    stream = scenario({**phases(100, 50), "slo": 2.0}, phases(100, 50))
    found = outcome(replay(stream, MostIdle()))
    both_h, alone_h = (1e4 - 1) / 3600, 1 / 3600  # they come and leave a second apart
    assert found.metrics.slowdown == pytest.approx({"j0": 4 / 3, "j1": 4 / 3}, rel=1e-3)
    assert found.extra["penalised_usd"] == pytest.approx(40 * (both_h * 4 / 3 + 2 * alone_h))
    assert "penalised_usd" not in outcome(replay(stream, Solo())).extra


class _Compared(MostIdle):
    """Compares what is charged at each decision with its plain definition, of Python objects."""

    def __init__(self) -> None:
        super().__init__()
        self.charged = list[float]()

    def decide(self, state: State, event: Event) -> Plan:
        plain = 0.0
        for group in state.group_list():
            jobs = [state.job(job_id) for job_id in group.jobs]
            late = [group.period_s / job.solo_s for job in jobs if group.period_s > job.slo * job.solo_s * (1 + 1e-6)]
            plain += (max(late, default=1.0) - 1) * group.usd_per_hour
        self.charged.append(penalty_usd(state.view))
        assert self.charged[-1] == pytest.approx(plain)
        return super().decide(state, event)


@pytest.mark.parametrize("shapes", [False, True])
def test_what_is_charged_is_what_its_plain_definition_says(shapes: bool) -> None:
    policy = _Compared()
    replay(make_workload("production", WorkloadOptions(jobs=40, shapes=shapes)), policy)
    assert max(policy.charged) > 0
