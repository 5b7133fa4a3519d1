"""Event replays of jobs with a model: their rollouts take what their responses take."""

from __future__ import annotations

from typing import Any

import pytest

from policies.dispatch import make_dispatch
from policies.registry import make_policy
from policies.rollout import make_rollout
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.replay.metrics import metrics
from rollmux_env.replay.run import PhaseRun, Run
from rollmux_env.replay.sampling import Durations
from rollmux_env.rollout.profile import KEPT, rollout_profiles
from rollmux_env.rollout.setting import setting_of
from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.timing.tail import Migration

ITERATIONS = 20
LENGTHS = {"cap": 8192, "batch": 64, "prompt_tokens": 512, "published": "7B-8k"}


def pair(**changes: Any) -> Scenario:
    """Two 7B jobs that come together and may share a node of each pool."""
    job = {"arrival_s": 0, "iterations": ITERATIONS, "slo": 3, "rollout": {}, "training": {}, "model": "7B", "lengths": LENGTHS}
    cluster = {
        "rollout": {"gpu": "H20", "gpus_per_node": 8, "usd_per_gpu_hour": 1.85},
        "training": {"gpu": "H800", "gpus_per_node": 8, "usd_per_gpu_hour": 5.28},
    }
    return parse_scenario({"version": 1, "cluster": cluster, "jobs": [{"id": name, **job, **changes} for name in ("a", "b")]})


def played(policy: str, dispatch: str = "round-robin", placement: str = "rollmux") -> Run:
    return replay_events(
        pair(),
        make_policy(placement),  # type: ignore[arg-type]
        make_dispatch(dispatch),
        0,
        watch=Watch(check=True, keep_phases=True),
        rollout=make_rollout(policy),
    )


def phases(run: Run, job_id: str, *kinds: str) -> list[PhaseRun]:
    return [phase for phase in run.phases if phase.job_id == job_id and phase.phase in kinds]


def test_a_rollout_lasts_as_long_as_its_simulated_responses() -> None:
    run = played("plain", placement="solo")
    setting = setting_of(run.scenario.jobs[0])
    assert setting is not None and (setting.prompts, setting.responses, setting.gpus) == (8, 8, 8)
    durations = Durations(run.scenario.jobs[0], 0, policy=make_rollout("plain"))
    durations.extend()
    for phase in phases(run, "a", "rollout"):
        expected = durations.rollout[phase.iteration] * run.scenario.jobs[0].rollout.worst_case_s
        assert phase.end_s - phase.start_s == pytest.approx(expected)
    assert 0 < max(durations.rollout) <= 1, "no rollout passes its worst case"
    assert len(set(durations.rollout[:KEPT])) > KEPT / 2
    assert durations.rollout[:KEPT] == durations.rollout[KEPT : 2 * KEPT]


def test_without_a_rollout_policy_a_job_with_a_model_takes_what_its_lengths_say() -> None:
    watch = Watch(keep_phases=True)
    run = replay_events(pair(), make_policy("solo"), make_dispatch("round-robin"), 0, watch=watch)  # type: ignore[arg-type]
    job = run.scenario.jobs[0]
    for name in ("rollout", "training"):
        phase = getattr(job, name)
        taken = [one.end_s - one.start_s for one in phases(run, "a", name)]
        assert sum(taken) / len(taken) == pytest.approx(phase.actual.mean_fraction * phase.worst_case_s, rel=0.1)
        assert max(taken) <= phase.worst_case_s * (1 + 1e-9)


def test_a_migrated_tail_overlaps_the_next_jobs_rollout() -> None:
    run = played("tail-migration", "round-robin,migrate=0.8")
    tails = phases(run, "a", "tail")
    assert len(tails) >= ITERATIONS // 2
    for tail in tails:
        assert tail.share == 0.5
    others = phases(run, "b", "rollout")
    overlapping = sum(any(other.start_s < tail.end_s and tail.start_s < other.end_s for other in others) for tail in tails)
    assert overlapping == len(tails)
    assert metrics(run).hours < metrics(played("plain")).hours


@pytest.mark.parametrize(("dispatch", "share"), [("round-robin,migrate=0.8,share=0.25", 0.25), ("fifo,migrate=0.8", 0.5)])
def test_a_tail_keeps_what_the_dispatch_policy_says(dispatch: str, share: float) -> None:
    tails = phases(played("plain", dispatch), "a", "tail")
    assert tails and {tail.share for tail in tails} == {share}


def test_tail_batching_and_sharing_nodes_gain_together() -> None:
    usd = {
        (placement, policy): metrics(played(policy, placement=placement)).usd_per_work_hour
        for placement in ("solo", "rollmux")
        for policy in ("plain", "tail-batching")
    }
    both = usd["rollmux", "tail-batching"]
    assert both < usd["solo", "tail-batching"] < usd["solo", "plain"]
    assert both < usd["rollmux", "plain"] < usd["solo", "plain"]


def test_a_tail_is_slower_on_fewer_replicas_and_so_is_a_rollout_beside_it() -> None:
    setting = setting_of(pair().jobs[0])
    assert setting is not None
    narrow, wide = (rollout_profiles(setting, make_rollout("plain"), 1, Migration(0.8, share)) for share in (0.25, 0.5))
    assert [one.seconds for one in narrow] == [one.seconds for one in wide]
    assert all(0 < one.threshold < 1 <= other.stretch <= one.stretch for one, other in zip(narrow, wide, strict=True))
    assert all(one.rate >= other.rate > 0 for one, other in zip(narrow, wide, strict=True))
    assert all(one.threshold == 1 for one in rollout_profiles(setting, make_rollout("plain"), 1, None))


def test_the_same_seed_gives_the_same_replay() -> None:
    assert played("tail-batching").phases == played("tail-batching").phases
