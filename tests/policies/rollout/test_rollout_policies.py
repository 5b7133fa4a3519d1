"""What rollout policies do inside a rollout, and what they may not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.rollout import ROLLOUT, make_rollout
from policies.rollout.rounds import Race, Rounds
from rollmux_env.errors import InputError
from rollmux_env.kernel.rollout_records import ABORTED, FINISHED
from rollmux_env.rollout.job import JobRollouts, RolloutOutcome, play
from rollmux_env.rollout.profile import rollout_profiles
from rollmux_env.rollout.setting import Setting
from rollmux_env.timing.lengths import Lognormal
from rollmux_env.timing.replica import ReplicaTiming
from rollmux_env.timing.tail import Migration
from tests.oracle.draw import examples

TIMINGS = {
    1: ReplicaTiming(0.008, 0.006, 2e-8, 1e-4, 1e-4, 1e-9, 0.01, 200_000),
    2: ReplicaTiming(0.008, 0.003, 1e-8, 5e-5, 5e-5, 5e-10, 0.01, 500_000),
    4: ReplicaTiming(0.008, 0.0015, 5e-9, 2.5e-5, 2.5e-5, 2.5e-10, 0.01, 1_100_000),
}
NAMES = (*ROLLOUT, "tail-batching+tail-migration", "tail-batching,each_engine=true")


def setting(prompts: int = 16, responses: int = 4, sigma: float = 1.2, gpus: int = 8, alike: float = 0.5) -> Setting:
    return Setting(tuple(TIMINGS.items()), gpus, 1, prompts, responses, 100, Lognormal(8192, 500, sigma), alike)


def rollouts(name: str, count: int = 10, seed: int = 0, **changes: float) -> list[RolloutOutcome]:
    job = JobRollouts(setting(**changes), make_rollout(name), seed)  # type: ignore[arg-type]
    return [job.next() for _ in range(count)]


def seconds(found: list[RolloutOutcome]) -> float:
    return float(np.mean([one.seconds for one in found]))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_rollouts(name: str) -> None:
    first, second = rollouts(name, 6), rollouts(name, 6)
    for one, other in zip(first, second, strict=True):
        assert one.seconds == other.seconds and (one.end_s == other.end_s).all() and one.lost_tokens == other.lost_tokens
    assert rollouts(name, 1, seed=1)[0].seconds != first[0].seconds


@pytest.mark.parametrize("name", NAMES)
def test_every_response_is_finished_or_aborted_and_every_prompt_complete_once(name: str) -> None:
    policy = make_rollout(name)
    where = setting()
    rounds, control = policy.begin_job(where)
    draw = np.random.default_rng(3)
    trained: list[int] = []
    for _ in range(8):
        due = rounds.next()
        lengths = np.ceil(where.lengths.quantile(draw.random(len(due.prompts) * due.responses))).astype(np.int64)
        fleet, complete, *_ = play(where, control, due, lengths[:, None])
        assert set(np.unique(fleet.state)) <= {FINISHED, ABORTED}
        assert len(complete) == len(set(complete)) == where.prompts
        trained += [due.prompts[place] for place in complete]
        rounds.done([due.prompts[place] for place in complete])
    assert len(trained) == len(set(trained))


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from(NAMES), st.integers(1, 200))
def test_no_policy_acts_on_a_length_before_it_is_reached(seed: int, name: str, more: int) -> None:
    """Two rollouts that differ only in what comes after a moment are the same up to then."""
    policy, where = make_rollout(name), setting(prompts=8)
    due = policy.begin_job(where).rounds.next()
    draw = np.random.default_rng(seed)
    lengths = np.ceil(where.lengths.quantile(draw.random(len(due.prompts) * due.responses))).astype(np.int64)
    fleet, *_ = play(where, policy.begin_job(where).control, due, lengths[:, None])
    moment = float(draw.random() * fleet.now_s)
    late = np.flatnonzero(fleet.end_s > moment)
    longer = lengths.copy()
    longer[late] = np.minimum(np.maximum(lengths, fleet.sampled())[late] + draw.integers(0, more, late.size), 8192)
    other, *_ = play(where, policy.begin_job(where).control, due, longer[:, None])
    early = fleet.end_s <= moment
    assert np.array_equal(fleet.end_s[early], other.end_s[early])
    assert (other.end_s[~early] > moment).all()


@examples(40)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 4), st.sampled_from([1.0, 1.25, 1.5]))
def test_the_simulator_ends_a_round_as_the_bookkeeping_does(seed: int, prompts: int, responses: int, eta: float) -> None:
    due = Rounds(prompts, responses, eta).next()
    lengths = np.random.default_rng(seed).integers(1, 5000, len(due.prompts) * due.responses)
    where = setting(prompts, responses)
    fleet, complete, *_ = play(where, make_rollout("plain").begin_job(where).control, due, lengths[:, None])
    race = Race(due)
    running = set(range(lengths.size))
    for response in fleet.finished.tolist():
        running.remove(response)
        gone = race.finished(due.prompts[response // due.responses], response % due.responses)
        running -= {due.prompts.index(prompt) * due.responses + number for prompt, number in gone}
    assert race.is_over
    assert [due.prompts[place] for place in complete] == race.complete
    assert not running


def test_tail_batching_is_faster_where_tails_are_long() -> None:
    long, short = ({"sigma": sigma, "prompts": 32, "responses": 8} for sigma in (1.5, 0.1))
    gain = seconds(rollouts("plain", **long)) / seconds(rollouts("tail-batching", **long))  # type: ignore[arg-type]
    none = seconds(rollouts("plain", **short)) / seconds(rollouts("tail-batching", **short))  # type: ignore[arg-type]
    assert gain > 1.5 > 1.1 > none


def test_spare_prompts_and_spare_responses_have_factors_of_their_own() -> None:
    for spec, launched in (("eta_responses=1", (20, 4)), ("eta=1,eta_responses=1.5", (16, 6)), ("eta=1.5", (24, 6))):
        due = make_rollout(f"tail-batching,{spec}").begin_job(setting()).rounds.next()
        assert (len(due.prompts), due.responses) == launched


def test_prompts_are_complete_with_their_last_response_that_counts() -> None:
    for name in ("plain", "tail-batching", "tail-batching,each_engine=true"):
        for one in rollouts(name):
            assert one.complete_s.size == 16 and one.counted_tokens.size == 64
            assert (np.diff(one.complete_s) >= 0).all() and np.isin(one.complete_s, one.end_s).all()
            assert one.complete_s[-1] == one.seconds
            assert (np.searchsorted(one.end_s, one.complete_s, side="right") >= 4 * np.arange(1, 17)).all()
            assert sorted(one.tokens[one.counts]) == sorted(one.counted_tokens)
            assert [one.prompts[one.counts].tolist().count(prompt) for prompt in set(one.prompts[one.counts])] == [4] * 16


def test_engines_that_end_their_shares_for_themselves_wait_for_the_slowest() -> None:
    """With a single engine there is nothing to be said; with eight, the round is not over until each has done its share."""
    names = "tail-batching", "tail-batching,each_engine=true"
    alone = replace(setting(gpus=4), timings=((4, TIMINGS[4]),), parallel=4)
    first, second = (JobRollouts(alone, make_rollout(name), 0) for name in names)
    assert [first.next().seconds for _ in range(6)] == [second.next().seconds for _ in range(6)]
    together, apart = (rollouts(name, prompts=32, responses=8) for name in names)
    assert 1.05 * seconds(together) < seconds(apart)


def test_no_tail_of_engines_that_end_for_themselves_is_profiled() -> None:
    with pytest.raises(InputError, match="each_engine=true no tail moves"):
        rollout_profiles(setting(), make_rollout("tail-batching,each_engine=true"), 0, Migration())


def test_the_tail_of_a_job_with_other_sizes_frees_what_these_may_not_divide() -> None:
    one = replace(setting(), timings=((1, TIMINGS[1]),))
    found = [rollout_profiles(where, make_rollout("plain"), 0, Migration(0.8, 0.75)) for where in (setting(), one)]
    assert found[0] == found[1] and all(profile.rate < 1 for profile in found[0])


def test_a_migrated_tail_frees_most_replicas_early_and_takes_no_shorter() -> None:
    for plain, moved in zip(rollouts("plain"), rollouts("tail-migration,share=0.25"), strict=True):
        assert moved.migrations > 0
        assert moved.seconds >= plain.seconds
        done_s = moved.done_s(0.8)
        assert moved.busy_gpu_s <= 8 * (done_s + 0.1) + 2 * (moved.seconds - done_s) < 8 * plain.seconds
        assert moved.done_s(0.8) == plain.done_s(0.8)


def test_longer_tails_are_never_faster_and_twice_the_replicas_never_slower() -> None:
    for name in NAMES[:-1]:  # engines that end their shares for themselves have fewer prompts to choose from where there are more
        found = [seconds(rollouts(name, sigma=sigma)) for sigma in (0.5, 1.0, 1.5)]
        assert found == sorted(found), name
        found = [seconds(rollouts(name, gpus=gpus)) for gpus in (16, 8, 4)]
        assert found == sorted(found), name


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("none", "rollout policy: must be one of plain, .*, not 'none'"),
        ("tail-batching,eta=1", "eta must be a number above 1"),
        ("tail-batching,eta=true", "eta must be"),
        ("tail-batching,eta=1,eta_responses=1", "or eta_responses must"),
        ("tail-batching,eta_responses=3", "eta_responses must be a number from 1 to 2, not 3"),
        ("tail-batching,each_engine=1", "each_engine must be true or false"),
        ("tail-batching,each_engine=true+tail-migration", "tail-migration has no effect"),
        ("tail-migration,at=1.5", "at: must be below 1, not 1.5"),
        ("tail-migration,share=x", "share: must be"),
        ("plain,eta=1.2", "has no option .eta.; it has none"),
        ("tail-migration+tail-batching", "as a\\+b"),
        ("tail-batching+plain", "as a\\+b"),
    ],
)
def test_bad_configurations_are_refused_in_one_line(spec: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as error:
        make_rollout(spec)
    assert "\n" not in str(error.value)


def test_settings_that_do_not_fit_are_refused_in_one_line() -> None:
    for changes in ({"gpus": 0}, {"alike": 1.5}, {"prompts": 0}):
        with pytest.raises(InputError, match="rollout: "):
            setting(**changes)
