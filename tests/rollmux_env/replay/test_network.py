"""A link between the pools that all syncs share: what replays make of it, and what is planned."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.dispatch import make_dispatch
from policies.gavel import Gavel
from policies.placement.algorithm1 import Algorithm1
from policies.placement.baselines import ColocatedJobs, Solo
from policies.registry import make_runnable
from rollmux_env.cluster.events import Admitted
from rollmux_env.cluster.state import State
from rollmux_env.envs.placement.stream import stream_of
from rollmux_env.errors import InputError
from rollmux_env.replay.admission import admit_all
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.replay.failures import Failures
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.replay.run import Run
from rollmux_env.replay.unordered import replay_unordered
from rollmux_env.scenario import Scenario, parse_scenario
from tests.oracle import draw
from tests.oracle.draw import examples
from tests.rollmux_env.replay.test_event import NOISY, departures, job, played, scenario

LINK = {"network": {"link_gbps": 100}}


def admitted(run: Run) -> dict[str, float]:
    return {event.job_id: event.at_s for event in run.log if isinstance(event, Admitted)}


def test_syncs_that_meet_share_the_link() -> None:
    """Two jobs on nodes of their own; each fills the link for 4 s, so both together take 8."""
    jobs = [job("a", 10, 5, sync_s=4), job("b", 10, 5, sync_s=4)]
    assert departures(played(scenario(*jobs), Solo())) == {"a": 190, "b": 190}
    run = played(scenario(*jobs, **LINK), Solo())
    assert departures(run) == {"a": 230, "b": 230}
    assert run.solo_s == {"a": 190, "b": 190} and metrics(run).slowdown == pytest.approx({"a": 230 / 190, "b": 230 / 190})


def test_a_sync_that_comes_later_takes_half_from_then_on() -> None:
    """a's sync is on the link from 15 on, b's from 17: a has 2 s left then, which take 4; b has 2 s left at 21."""
    run = played(scenario(job("a", 10, 5, sync_s=4, iterations=1), job("b", 12, 5, sync_s=4, iterations=1), **LINK), Solo())
    assert departures(run) == {"a": 21, "b": 23}


def test_syncs_with_bytes_that_fit_side_by_side_are_in_nobodys_way() -> None:
    jobs = [job("a", 10, 5, sync_s=4), job("b", 10, 5, sync_s=4), job("c", NOISY | {"worst_case_s": 9.7}, 5.3, sync_s=0.1)]
    sized = [{**one, "sync_gb": gb} for one, gb in zip(jobs, (25, 20, 0.12), strict=True)]  # 50, 40 and 9.6 Gbit/s
    for policy in (Solo(), Algorithm1()):
        free, shared = played(scenario(*jobs), policy), played(scenario(*sized, **LINK), policy)
        assert free.log != shared.log  # the jobs differ in their bytes, all else is the same
        assert departures(free) == departures(shared) and free.phases == shared.phases


def test_what_is_planned_is_that_all_sync_at_once() -> None:
    jobs = [job(name, 10, 5, sync_s=4, sync_gb=gb) for name, gb in (("a", 50), ("b", 25), ("c", 5))]
    found = admit_all(scenario(*jobs, **LINK), Solo())
    # Of 100 Gbit/s the third wants 10 and gets it; the others want 100 and 50 and get 45 each.
    assert [group.period_s for group in found.groups] == pytest.approx([15 + 4 * 100 / 45, 15 + 4 * 50 / 45, 19])
    assert [group.slowdown["a"] for group in found.groups[:1]] == pytest.approx([(15 + 400 / 45) / 19])
    run = played(scenario(*jobs, **LINK), Solo())
    for group in found.groups:
        name = group.jobs[0]
        assert departures(run)[name] <= 10 * group.period_s * (1 + 1e-9)


def test_a_job_whose_sync_could_break_an_slo_waits_for_the_link() -> None:
    """With b the period of both could be 23 s, and the limit is 22.8; c has no sync, but waits behind b."""
    tight = {"slo": 1.2, "sync_s": 4}
    problem = scenario(job("a", 10, 5, **tight), job("b", 10, 5, **tight), job("c", 10, 5), **LINK)
    found = admit_all(problem, Solo())
    assert [decision.strategy for decision in found.decisions] == ["isolated", "queued", "queued"]
    assert "link between the pools" in found.decisions[1].reason
    for run in (replay(problem, Solo(), check=True), played(problem, Solo())):
        assert admitted(run) == pytest.approx({"a": 0, "b": 190, "c": 190})
        assert metrics(run).slo_attainment == 1


def test_a_sync_in_slack_costs_nobody() -> None:
    """Both fill their nodes: 20 s of rollouts a meta-iteration. The syncs may take 4 s in place of 2 and nothing changes."""
    jobs = [job("a", 10, 2, sync_s=2, slo=2), job("b", 10, 2, sync_s=2, slo=2)]
    free, linked = admit_all(scenario(*jobs), Algorithm1()), admit_all(scenario(*jobs, **LINK), Algorithm1())
    assert free == linked and free.groups[0].jobs == ("a", "b") and free.groups[0].period_s == 20
    one, other = played(scenario(*jobs), Algorithm1()), played(scenario(*jobs, **LINK), Algorithm1())
    assert departures(one) == departures(other) and metrics(one).cost_usd == metrics(other).cost_usd


class Careless(Solo):
    keeps_slo = False


def test_a_stale_jobs_syncs_follow_one_another() -> None:
    """Its trainings end at 14, 24 and 34. Beside b's sync, from 14 on, each of its own takes 12 s, until b's is over at 42."""
    jobs = [job("a", 10, 4, sync_s=6, staleness=3, iterations=3), job("b", 10, 4, sync_s=14, iterations=1, slo=9)]
    assert departures(played(scenario(*jobs, **LINK), Careless())) == {"a": 46, "b": 42}
    # So planned, a's syncs would come every 10 s and take 12 each: b waits until a has left.
    assert admitted(played(scenario(*jobs, **LINK), Solo())) == {"a": 0, "b": 40}


def test_nobody_else_counts_a_shared_link() -> None:
    problem = scenario(job("a", 10, 5, sync_s=4), **LINK)
    for refused in (
        lambda: replay_unordered(problem, Solo()),
        lambda: Gavel().replay(problem, False),
        lambda: stream_of(problem),
        lambda: State(problem.cluster, switches=True),
    ):
        with pytest.raises(InputError, match=r"^cluster\.network: does not go with "):
            refused()
    assert departures(played(problem, ColocatedJobs())) == {"a": 150}  # no sync


@pytest.mark.parametrize(
    ("of_job", "of_cluster", "says"),
    [
        ({"sync_s": 4, "sync_gb": 51}, LINK, "jobs[0].sync_s: 51 GB in it need 102 Gbit/s; cluster.network.link_gbps is 100"),
        ({"sync_gb": 5}, LINK, "jobs[0].sync_gb: goes with a sync_s above 0"),
        ({"sync_s": 4, "sync_gb": 5}, {}, "jobs[0].sync_gb: goes with cluster.network, which is missing"),
        (
            {"sync_s": 40, "staleness": 9},
            LINK,
            "jobs[0].sync_s: is longer than the job's iteration, 10 s: its syncs",
        ),
        ({}, {"network": {}}, "cluster.network.link_gbps: is missing"),
        ({}, {"network": {"link_gbps": 0}}, "cluster.network.link_gbps: must be above 0, not 0"),
        ({}, {**LINK, "one_device": True}, "cluster.network: does not go with one_device"),
    ],
)
def test_bad_input_is_one_line(of_job: dict[str, Any], of_cluster: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as caught:
        scenario(job("a", 10, 5, **of_job), **of_cluster)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_bytes_of_a_model_are_its_weights() -> None:
    pools = {"rollout": {"gpu": "H20", "gpus_per_node": 8, "usd_per_gpu_hour": 2}}
    pools["training"] = {"gpu": "H800", "gpus_per_node": 8, "usd_per_gpu_hour": 5}
    lengths = {"published": "7B-8k", "cap": 8192, "batch": 64, "prompt_tokens": 512}
    one = {"id": "a", "arrival_s": 0, "iterations": 2, "slo": 2, "model": "7B", "lengths": lengths}
    free, wide, slow = (
        parse_scenario({"version": 1, "cluster": {**pools, **network}, "jobs": [one]}).jobs[0]
        for network in ({}, {"network": {"link_gbps": 1000}}, {"network": {"link_gbps": 20}})
    )
    assert free.sync_gb is None and wide.sync_gb == slow.sync_gb == pytest.approx(15.2, abs=0.1)
    assert wide.sync_s == free.sync_s and slow.sync_s == pytest.approx(15.23 / 2.5, abs=0.01)


SHAPED = st.booleans().flatmap(lambda pooled: draw.scenarios(max_jobs=6, fine=True, shaped=True, pooled=pooled))
LINKED = SHAPED.flatmap(draw.linked)


def on_policy(data: dict[str, Any]) -> Scenario:
    """The same jobs without staleness: a stale one fills its pipeline first, and is that much late in its life."""
    return parse_scenario({**data, "jobs": [{**job, "staleness": 0} for job in data["jobs"]]})


@pytest.mark.parametrize("policy", ["rollmux", "consolidate"])
@examples(15)
@given(problem=LINKED.map(parse_scenario))
def test_every_slo_that_is_planned_is_kept(problem: Scenario, policy: str) -> None:
    """R6 is asserted at every instant, with every sync as long as it takes when all sync at once."""
    replay(problem, make_runnable(policy), check=True)
    for failures in (None, Failures(job_h=0.05, every=2)):
        runs = [
            replay_events(problem, make_runnable(policy), make_dispatch("round-robin"), 0, Watch(check=True), failures=failures)
            for _ in range(2)
        ]
        assert runs[0].log == runs[1].log


@examples(40)
@given(problem=LINKED.map(on_policy))
def test_no_job_alone_is_slower_than_planned(problem: Scenario) -> None:
    """At worst-case durations, on nodes of its own."""
    run = replay_events(problem, Solo(), make_dispatch("round-robin"), 0)
    assert metrics(run).slo_attainment == 1
