"""The rollout simulator: what a token loop would give, nothing lost, no length seen early."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux_env.errors import InputError, PlanError
from rollmux_env.kernel.rollout_records import ABORTED, FINISHED, NEW, RUNNING, WAITING
from rollmux_env.kernel.rollouts import decode_s
from rollmux_env.rollout.fleet import Fleet
from rollmux_env.timing.replica import MixtureTiming, ReplicaTiming
from tests.oracle.draw import examples
from tests.oracle.rollouts import Sequence, roll_replica

REPLICA = ReplicaTiming(0.002, 0.004, 2e-8, 1e-4, 1e-4, 1e-9, 0.002, 100_000)

SECONDS = st.floats(1e-6, 0.01)
PARTS = dict(
    step_s=SECONDS, weights_s=SECONDS, kv_s_per_token=st.floats(0, 1e-4), sequence_s=st.floats(0, 0.01),
    prefill_s_per_token=st.floats(0, 1e-3), prefill_s_per_token2=st.floats(0, 1e-6), prefill_s=st.floats(0, 0.01),
    kv_tokens=st.integers(150, 1000), message_s=st.floats(0, 0.01),
)  # fmt: skip
TIMINGS = st.builds(ReplicaTiming, **PARTS) | st.builds(MixtureTiming, **PARTS, experts_s=SECONDS, expert_share=st.floats(0, 1))
RESPONSES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 100)), min_size=1, max_size=25)


def fleet_of(timings: list[ReplicaTiming], tokens: list[tuple[int, int]], most: int = 256, each: int = 1) -> Fleet:
    """Responses dealt out in turn, `each` to a prompt and all needed."""
    prompts, lengths = (np.array(column) for column in zip(*tokens, strict=True))
    fleet = Fleet(timings, prompts, lengths[:, None], each, each, most)
    fleet.launch(np.arange(len(tokens)), np.arange(len(tokens)) % len(timings))
    return fleet


def grown(tokens: list[tuple[int, int]], more: np.ndarray) -> list[tuple[int, int]]:
    """The same prompts with longer responses."""
    return [(prompt, length + extra) for (prompt, length), extra in zip(tokens, more.tolist(), strict=True)]


@examples(150)
@given(TIMINGS, RESPONSES, st.integers(1, 3), st.integers(1, 8))
def test_it_agrees_with_a_loop_over_tokens(timing: ReplicaTiming, tokens: list[tuple[int, int]], replicas: int, most: int) -> None:
    fleet = fleet_of([timing] * replicas, tokens, most)
    fleet.run()
    preemptions = 0
    for k in range(replicas):
        mine = [Sequence(r, *tokens[r]) for r in range(k, len(tokens), replicas)]
        ends, preempted = roll_replica(timing, mine, most)
        preemptions += preempted
        for r, end_s in ends.items():
            assert fleet.end_s[r] == pytest.approx(end_s, rel=1e-6)
    assert fleet.preemptions == preemptions
    assert (fleet.state == FINISHED).all()


@examples(150)
@given(
    TIMINGS,
    st.lists(st.tuples(st.integers(1, 15), st.lists(st.integers(1, 30), min_size=3, max_size=3)), min_size=1, max_size=15),
    st.integers(1, 2),
    st.integers(1, 8),
    st.one_of(st.just(0.0), st.floats(0.0, 0.5).map(lambda seconds: seconds + 1.2345e-5)),  # not in the instant of a step's end
)
def test_turns_agree_with_a_loop_over_tokens(
    timing: ReplicaTiming, tokens: list[tuple[int, list[int]]], replicas: int, most: int, away_s: float
) -> None:
    prompts, lengths = np.array([prompt for prompt, _ in tokens]), np.array([turns for _, turns in tokens])
    numbers = np.arange(len(tokens))
    fleet = Fleet([timing] * replicas, prompts, lengths, 1, 1, most, away_s=away_s)
    fleet.launch(numbers, numbers % replicas)
    fleet.run()
    preemptions = 0
    for k in range(replicas):
        mine = [Sequence(r, tokens[r][0], tokens[r][1][0], later=tokens[r][1][1:]) for r in range(k, len(tokens), replicas)]
        ends, preempted = roll_replica(timing, mine, most, away_s)
        preemptions += preempted
        assert ends.keys() == {r for r in numbers if r % replicas == k}
        for r, end_s in ends.items():
            assert fleet.end_s[r] == pytest.approx(end_s, rel=1e-6)
    assert fleet.preemptions == preemptions
    assert (fleet.sampled() == lengths.sum(axis=1)).all() and (fleet.context() == fleet.sampled() + 3 * prompts).all()


@given(TIMINGS, st.integers(1, 50), st.integers(1, 500), st.integers(0, 300))
def test_seconds_of_many_steps_are_the_sum_of_single_ones(timing: ReplicaTiming, running: int, context: int, n: int) -> None:
    cost = np.array(timing.costs)
    summed = sum(timing.decode_s(running, context + k * running) for k in range(n))
    assert decode_s(cost, running, context, n) == pytest.approx(summed, rel=1e-9)


@examples(60)
@given(RESPONSES, st.integers(1, 3), st.integers(1, 4), st.floats(0.0, 2.0), st.randoms(use_true_random=False))
def test_every_response_is_finished_or_aborted_once_whatever_is_moved(
    tokens: list[tuple[int, int]], replicas: int, most: int, every_s: float, order: object
) -> None:
    timing = ReplicaTiming(0.01, 0.01, 1e-6, 1e-3, 1e-4, 0, 0.01, 400)
    fleet = fleet_of([timing] * replicas, tokens, most)
    choose = np.random.default_rng(order.randrange(2**32))  # type: ignore[attr-defined]
    finished: list[int] = []
    for moment in range(20):
        fleet.run(until_s=fleet.now_s + every_s if moment < 19 else np.inf)
        assert list(fleet.finished[: len(finished)]) == finished, "what has finished stays so"
        finished = list(fleet.finished)
        before = fleet.sampled()
        if fleet.open.size and choose.random() < 0.5:
            some = choose.choice(fleet.open, choose.integers(1, fleet.open.size + 1), replace=False)
            fleet.migrate(some, choose.integers(0, fleet.size, some.size))
            assert (fleet.sampled() >= before).all(), "nothing that was sampled is lost"
        if fleet.open.size and choose.random() < 0.1:
            fleet.abort(fleet.open[:1])
    assert not fleet.open.size
    assert len(set(finished)) == len(finished)
    assert set(finished) == set(np.flatnonzero(fleet.state == FINISHED))
    assert set(np.unique(fleet.state)) <= {FINISHED, ABORTED}
    assert np.isfinite(fleet.end_s).all()
    assert (fleet.sampled()[fleet.state == FINISHED] == np.array([length for _, length in tokens])[fleet.state == FINISHED]).all()


@examples(60)
@given(RESPONSES, st.integers(1, 4), st.integers(0, 2**32))
def test_twice_the_replicas_are_never_slower_and_longer_responses_never_faster(
    tokens: list[tuple[int, int]], replicas: int, seed: int
) -> None:
    def seconds(count: int, responses: list[tuple[int, int]]) -> float:
        fleet = fleet_of([REPLICA] * count, responses)
        fleet.run()
        return fleet.now_s

    longer = np.random.default_rng(seed).integers(0, 50, len(tokens))
    base = seconds(replicas, tokens)
    assert seconds(2 * replicas, tokens) <= base * (1 + 1e-12)
    assert seconds(replicas, [(prompt, length + more) for (prompt, length), more in zip(tokens, longer, strict=True)]) >= base * (
        1 - 1e-12
    )


@examples(40)
@given(RESPONSES, st.floats(0.01, 3.0), st.integers(0, 2**32))
def test_nothing_that_is_seen_tells_what_is_still_to_come(tokens: list[tuple[int, int]], at_s: float, seed: int) -> None:
    fleet = fleet_of([REPLICA] * 2, tokens)
    fleet.run(until_s=at_s)
    more = np.random.default_rng(seed).integers(0, 50, len(tokens))
    more[fleet.state == FINISHED] = 0
    other = fleet_of(
        [REPLICA] * 2, [(prompt, length + extra) for (prompt, length), extra in zip(tokens, more.tolist(), strict=True)]
    )
    other.run(until_s=at_s)
    assert (fleet.sampled() == other.sampled()).all() and (fleet.state == other.state).all()
    assert (fleet.finished == other.finished).all()


def test_a_complete_prompt_aborts_the_rest_of_its_responses() -> None:
    prompts, lengths = np.full(6, 10), np.array([5, 50, 20, 60, 7, 30])
    fleet = Fleet([REPLICA, REPLICA], prompts, lengths[:, None], 3, needed=2)
    assert (fleet.state == NEW).all()
    fleet.launch(np.arange(6), np.arange(6) % 2)
    fleet.run(complete=1)
    assert fleet.finished.tolist() == [0, 4, 2] and fleet.complete == 1
    assert (fleet.state[[1, 3, 5]] >= WAITING).all() and (fleet.state[[1, 3, 5]] <= RUNNING).all()
    fleet = Fleet([REPLICA, REPLICA], prompts, lengths[:, None], 3, needed=2)
    fleet.launch(np.arange(6), np.arange(6) % 2)
    fleet.run()
    assert fleet.finished.tolist() == [0, 4, 2, 5]
    assert fleet.state.tolist() == [FINISHED, ABORTED, FINISHED, ABORTED, FINISHED, FINISHED]
    assert fleet.end_s[1] == fleet.end_s[2] and fleet.end_s[3] == fleet.end_s[5]


def test_what_a_policy_is_shown_cannot_be_written() -> None:
    fleet = fleet_of([REPLICA], [(10, 5), (10, 9)])
    fleet.run(responses=1)
    for shown in (fleet.state, fleet.replica, fleet.end_s, fleet.busy_s, fleet.finished, fleet.gpus):
        with pytest.raises(ValueError, match="read-only"):
            shown[:] = 0


def test_replicas_that_are_added_begin_when_they_are_there() -> None:
    fleet = fleet_of([REPLICA], [(10, 100), (10, 100)])
    fleet.run(until_s=0.3)
    new = fleet.add([REPLICA], from_s=5.0)
    fleet.migrate(np.array([1]), np.full(1, new[0]))
    fleet.run()
    assert fleet.end_s[0] < 2 < 5 < fleet.end_s[1]


@pytest.mark.parametrize(("tokens", "kv"), [((10, 0), 100), ((60, 40), 100), ((60, 400), 100)])
def test_what_cannot_run_is_refused_in_one_line(tokens: tuple[int, int], kv: int) -> None:
    with pytest.raises(InputError, match=r"^rollout: "):
        fleet_of([ReplicaTiming(0.01, 0.01, 0, 0, 0, 0, 0, kv)], [tokens])


def test_a_step_reads_the_experts_that_any_of_its_sequences_is_sent_to() -> None:
    """Two responses of 10 and 30 tokens: ten steps read 0.19 of the experts, and 20 steps a tenth."""
    timing = MixtureTiming(0.01, 0.02, 0, 0, 0, 0, 0, 100, experts_s=1.0, expert_share=0.1)
    fleet = fleet_of([timing], [(10, 10), (10, 30)])
    fleet.run()
    both_s = 10 * (0.03 + 0.19)
    assert fleet.end_s.tolist() == pytest.approx([both_s, both_s + 20 * (0.03 + 0.1)])


def test_a_response_is_launched_once_and_moves_only_while_it_runs() -> None:
    fleet = fleet_of([REPLICA], [(10, 5), (10, 50)])
    with pytest.raises(PlanError, match="R5: a response is launched once"):
        fleet.launch(np.array([0]), np.array([0]))
    fleet.run(responses=1)
    with pytest.raises(PlanError, match="R5: only a response that waits or runs"):
        fleet.migrate(np.array([0]), np.array([0]))
