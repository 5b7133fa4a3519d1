"""What a round samples on its engines: the same wherever its shares go, and no more than it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from threading import Event, get_ident
from typing import Any

import pytest

from policies.rollout.rounds import Rounds
from rollmux_env.rollout.policy import Round
from runtime.grpo.job import Grpo
from runtime.grpo.messages import ShareSamples
from runtime.grpo.rollout_worker import RolloutWorker
from runtime.grpo.shares import EngineShare, rounds_of
from runtime.grpo.state import DataPosition, read_data, write_data
from runtime.jobs.spec import TaskJob
from runtime.jobs.tasks import LongTail, TaskExample
from runtime.machine import Node, Pool
from runtime.phases import set_session
from tests.runtime.grpo.here import NODES, Here, two_engines
from tests.runtime.jobs.task_job import task_job

ALGORITHM = {"prompts_per_iteration": 6, "group_size": 3, "max_tokens": 60}


class Session(Here):
    """A run that says stop after so many steps, once."""

    parts = (0, 1)

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left, self.told = after, list[tuple[int, int]]()

    def stops(self) -> bool:
        self.left -= 1
        return self.left == 0

    def progress(self, done: int, total: int, tokens: int) -> None:
        self.told.append((done, total))


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RolloutWorker]]:
    """Two engines of a job."""
    with two_engines(ALGORITHM, tmp_path_factory.mktemp("cache")) as made:
        yield made[1]


@pytest.fixture(autouse=True)
def _out_of_the_run() -> Iterator[None]:
    yield
    set_session(None)


def begin(workers: list[RolloutWorker], due: Round) -> None:
    for k, (worker, share) in enumerate(zip(workers, due.shares(2), strict=True)):
        worker.begin(0, False, len(due.prompts) * due.responses, (EngineShare(k, share),), {})


def tried(worker: RolloutWorker, place: int, of: int, worst_case: bool) -> tuple[float, int]:
    worker.evaluate(place, of, worst_case)
    return worker.evaluation()


def sampled(workers: list[RolloutWorker]) -> list[ShareSamples]:
    for worker in workers:
        worker.results()
    return sorted((part for worker in workers for part in worker.take()), key=lambda part: part.place)


@pytest.mark.parametrize("eta", [1.0, 1.5])
def test_shares_that_go_on_elsewhere_sample_the_same(workers: list[RolloutWorker], eta: float) -> None:
    due = Rounds(6, 3, eta).next()
    begin(workers, due)
    assert [worker.sample() for worker in workers] == [(), ()]
    whole = sampled(workers)
    assert [len(part.responses) for part in whole] == [9, 9]

    session = Session(3)  # short rounds are over soon
    set_session(session)  # type: ignore[arg-type]
    begin(workers, due)
    assert workers[1].sample() == (1,)  # it has stopped
    assert workers[0].sample() == ()  # and this one has gone on to its end
    workers[0].join([0, 1], workers[0].leave(), workers[1].leave())
    assert workers[0].sample() == () and workers[1].sample() == ()
    moved = sampled(workers)
    assert {total for _, total in session.told} == {len(due.prompts) * due.responses}
    assert sum(worker._done for worker in workers) == len(due.prompts) * due.responses  # noqa: SLF001 (progress is told before the end)
    for share, worker in ((0, workers[0]), (1, workers[0])):
        lines = worker.results().lines[9 * share :][:9]
        assert [line.tokens for line in lines] == [len(one.token_ids) for one in moved[share].responses]
        assert {line.switches for line in lines} <= {0, 1} and all(line.seconds >= 0 for line in lines)
    for before, after in zip(whole, moved, strict=True):
        assert before.prompts == after.prompts and before.rewards == after.rewards
        for one, other in zip(before.responses, after.responses, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)
            assert replace(one, prompt=0, logprobs=()) == replace(other, prompt=0, logprobs=())


def test_a_short_round_samples_what_it_needs_and_the_long_one_what_was_put_off(workers: list[RolloutWorker]) -> None:
    rounds, trained = Rounds(6, 3, 1.5), list[int]()
    lengths: dict[bool, list[int]] = {False: [], True: []}
    for number in range(6):
        due = rounds.next()
        for k, (worker, share) in enumerate(zip(workers, due.shares(2), strict=True)):
            worker.begin(number, False, len(due.prompts) * due.responses, (EngineShare(k, share),), {})
        assert [worker.sample() for worker in workers] == [(), ()]
        found = [worker.results() for worker in workers]
        complete = [*dict.fromkeys(line.prompt for part in found for line in part.lines)]
        parts = sampled(workers)
        for part, share in zip(parts, due.shares(2), strict=True):
            assert len(part.responses) == len(part.rewards) == share.wanted * 3 == 9
            assert all(len(set(part.prompts[k : k + 3])) == 1 for k in (0, 3, 6))
            assert all(response.finished for response in part.responses)
        lengths[due.long] += [len(response.token_ids) for part in parts for response in part.responses]
        rounds.done(complete)
        trained += complete
    assert sorted(trained + rounds.queue) == [*range(rounds.position)] and len(trained) == 36
    assert fmean(lengths[True]) > 1.5 * fmean(lengths[False])


def test_a_checkpoint_has_the_prompts_that_were_put_off(tmp_path: Path) -> None:
    set_session(Session(0))  # type: ignore[arg-type]
    given: dict[str, Any] = {"id": "a", "slo": 2, "iterations": 1, "task": "long-tail", "algorithm": ALGORITHM}
    rollout = {"policy": "tail-batching", "eta": 1.5}
    spec = task_job(given | {"rollout": rollout})
    rounds = rounds_of(spec)
    rounds.done([1, 3, 4, 6, 7, 8])
    wanted = DataPosition(9, [0, 2, 5], {"test": 3.5})
    assert (rounds.position, rounds.queue) == (wanted.position, wanted.queue)
    (first := tmp_path / "first").mkdir()
    (second := tmp_path / "second").mkdir()
    write_data(first, wanted)
    job = Grpo(spec)
    job.restore(first)
    job.checkpoint(second)
    assert read_data(second) == wanted
    rounds.done(range(9, 15))
    assert rounds.next().prompts == (0, 2, 5, 15, 16, 17) and rounds.next().long


def test_a_reward_that_is_none_fails_the_rollout(workers: list[RolloutWorker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LongTail, "reward", lambda self, example, response: float("nan"))
    begin(workers, Rounds(6, 3, 1.0).next())
    workers[0].sample()
    with pytest.raises(RuntimeError, match="is nan, no finite number"):
        workers[0].results()


def test_an_evaluation_is_greedy_and_changes_nothing_of_what_is_sampled(
    workers: list[RolloutWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    due, found = Rounds(6, 3, 1.0).next(), []
    prompts = [vars(worker)["_prompts"] for worker in workers]
    held_out = tuple(prompts[0].numbered(range(100, 111)).values())
    for evaluated in (False, True):
        begin(workers, due)
        if evaluated:
            for own in prompts:
                monkeypatch.setattr(own, "held_out", held_out)
            parts = [tried(worker, k, 2, False) for k, worker in enumerate(workers)]
            assert [count for _, count in parts] == [6, 5] and parts == [tried(w, k, 2, False) for k, w in enumerate(workers)]
            assert tried(workers[0], 0, 1, True) == (tried(workers[0], 0, 1, True)[0], 11)  # more than a batch
        assert [worker.sample() for worker in workers] == [(), ()]
        found.append([(part.responses, part.rewards) for part in sampled(workers)])
    assert found[0] == found[1]


def test_every_response_comes_with_its_prompt_and_reward(workers: list[RolloutWorker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LongTail, "reward", lambda self, example, response: 1.0)
    begin(workers, Rounds(6, 3, 1.0).next())
    assert workers[0].sample() == ()
    found = [(line.prompt, line.reward) for line in workers[0].results().lines]
    assert found == [(prompt, 1.0) for prompt in (0, 1, 2) for _ in range(3)]


def test_a_task_that_gives_too_few_examples_is_named(workers: list[RolloutWorker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LongTail, "prompts", lambda self, count, position: [TaskExample("1", "1")])
    due = Rounds(6, 3, 1.0).next()
    with pytest.raises(RuntimeError, match=r"long-tail: prompts\(\d+, 0\) gives 1 of \d+ examples"):
        begin(workers, due)


def test_nothing_waits_for_a_slow_reward_but_training(workers: list[RolloutWorker], monkeypatch: pytest.MonkeyPatch) -> None:
    slow, called = Event(), list[str]()

    def reward(self: LongTail, example: TaskExample, response: str) -> float:
        called.append(response)
        assert slow.wait(60)
        return 0.5

    monkeypatch.setattr(LongTail, "reward", reward)
    due, session = Rounds(6, 3, 1.0).next(), Session(8)
    set_session(session)  # type: ignore[arg-type]
    begin(workers, due)
    assert workers[1].sample() == (1,)
    left = workers[1].leave()  # a tail moves without the rewards that it waits for
    assert left[0].finished and {one.reward for one in left[0].finished} == {None}
    workers[0].join([0, 1], workers[0].leave(), left)
    assert workers[0].sample() == () and workers[1].sample() == ()  # all is sampled, and no reward is there
    assert called
    slow.set()
    assert [part.rewards for part in sampled(workers)] == [(0.5,) * 9] * 2


class Quick(Here):
    """A run of two engines, whose first one stops as often as somebody says, after so many steps."""

    parts = (0, 1)

    def __init__(self, nodes: tuple[Node, ...], every: int) -> None:
        super().__init__()
        self._nodes, self._every, self._steps = nodes, every, 0
        self.at, self.done = [10**9], dict[int, int]()

    def nodes(self, pool: Pool) -> tuple[Node, ...]:
        return self._nodes if pool == "rollout" else super().nodes(pool)

    def wake(self, responses: int | None) -> None:
        self.at[0] = 10**9 if responses is None else responses

    def progress(self, done: int, total: int, tokens: int) -> None:
        self.done[get_ident()] = done

    def stops(self) -> bool:
        self._steps += 1
        return sum(self.done.values()) >= self.at[0] or (self._every > 0 and self._steps % self._every == 0)


def rounds_run(spec: TaskJob, every: int) -> list[tuple[list[int], list[int]]]:
    """Of each round of a job the prompts that are trained on, and how many responses of each engine."""
    run = Quick((NODES["rollout"], replace(NODES["rollout"], name="rollout-1")), every)
    set_session(run)  # type: ignore[arg-type]
    made, found = Grpo(spec), list[tuple[list[int], list[int]]]()
    for run.iteration in range(3):
        run.done.clear()
        due = made._rounds.next()  # noqa: SLF001
        made.rollout()
        rolled = made._next_samples()  # noqa: SLF001
        parts = [share for one in rolled.samples for share in run.wait(one)]
        assert len(rolled.complete) == due.wanted
        found.append(([*rolled.complete], [len(part.responses) for part in parts]))
        made._count(rolled)  # noqa: SLF001
    made.close()
    return found


def test_a_round_of_two_engines_ends_over_both_however_often_they_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path))
    model = {"name": "tiny", "hidden_size": 64, "layers": 1}
    rollout = {"engine": "torch", "nodes": 2, "policy": "tail-batching", "eta": 1.5}
    given: dict[str, Any] = {"id": "a", "slo": 2, "iterations": 3, "task": "long-tail", "model": model, "seed": 3}
    spec = task_job(given | {"algorithm": ALGORITHM, "rollout": rollout})
    rounds = rounds_run(spec, 0)
    assert rounds_run(spec, 7) == rounds  # what is trained on does not depend on how fast the engines are
    assert all(sum(counts) == 18 for _, counts in rounds) and len({prompt for own, _ in rounds for prompt in own}) == 18
    assert any(counts != [9, 9] for _, counts in rounds)  # as many of each engine as were quick
