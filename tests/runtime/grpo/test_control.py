"""One rollout policy decides the same in `bench`, in the environment and on real engines, and what is sampled stays the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from threading import Condition, get_ident
from typing import Any

import numpy as np
import pytest

from policies.rollout import make_rollout
from policies.rollout.environment import PolicyAgent
from policies.rollout.places import make_at
from rollmux_env.envs.rollout.env import RolloutVectorEnv
from rollmux_env.envs.rollout.generator import Fixed
from rollmux_env.envs.rollout.types import ATTEMPTS, RolloutJob
from rollmux_env.kernel.tables import Ints
from rollmux_env.rollout.fleet import Fleet, ObservedFleet
from rollmux_env.rollout.job import play
from rollmux_env.rollout.policy import Control, JobPolicy, RolloutPolicy, Round, Wake
from rollmux_env.rollout.setting import Setting
from rollmux_env.timing.replica import ReplicaTiming
from runtime.engines.interface import Response
from runtime.grpo.control import ControlledRollout, RunControl, setting_of_run
from runtime.grpo.job import Grpo
from runtime.grpo.messages import ShareSamples
from runtime.grpo.rollout_worker import RolloutWorker
from runtime.jobs.spec import TaskJob
from runtime.phases import set_session
from tests.runtime.grpo.here import Here, always_resizes, engines_of_two_sizes

ALGORITHM = {"prompts_per_iteration": 6, "group_size": 4, "max_tokens": 60, "max_prompt_tokens": 16}
LOCKSTEP = ReplicaTiming(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2**40)  # a token of every response a second, however many there are
SLOW = ReplicaTiming(0.0, 1e-9, 0.0, 1.0, 0.0, 0.0, 0.0, 2**40)  # what a policy takes an engine for, so that moving pays
NARROW, WIDE = (
    replace(SLOW, weights_s=4.0),
    replace(SLOW, weights_s=2.0, sequence_s=0.6),
)  # the second is quicker with few responses
ROLLOUTS = 3


class Lockstep(Here):
    """A run whose engines take their steps together, and stop after the step in which enough responses have finished."""

    parts = (0, 1)

    def __init__(self) -> None:
        super().__init__()
        self.limit: int | None = None
        self.done: dict[int, int] = {}
        self._changed = Condition()
        self._called, self._begun = 0, 0  # engines
        self._waiting = False  # the job, for calls that it has made
        self._active, self._arrived = set[int](), set[int]()
        self._steps, self._stop = 0, False

    def call(self) -> None:
        self._called += 1

    def begin(self) -> None:
        with self._changed:
            self._begun += 1
            self._active.add(get_ident())
            self._changed.notify_all()  # nobody takes a step before the others are there
            assert self._changed.wait_for(lambda: self._waiting and self._begun == self._called, 60)

    def leave(self) -> None:
        with self._changed:
            self._active.discard(get_ident())
            self._step_if_all_are_there()

    def progress(self, done: int, total: int, tokens: int) -> None:
        with self._changed:
            self.done[get_ident()] = done

    def stops(self) -> bool:
        with self._changed:
            step = self._steps
            self._arrived.add(get_ident())
            self._step_if_all_are_there()
            assert self._changed.wait_for(lambda: self._steps > step, 60)
            return self._stop

    def _step_if_all_are_there(self) -> None:
        if self._arrived and self._arrived >= self._active:
            self._stop = self.limit is not None and sum(self.done.values()) >= self.limit
            self._arrived.clear()
            self._steps += 1
            self._changed.notify_all()

    def hold(self, job: Any, phase: str) -> Any:
        self.done.clear()
        return nullcontext()

    def wake(self, responses: int | None) -> None:
        self.limit = responses

    def wait(self, calls: Any) -> Any:
        with self._changed:
            self._waiting = True
            self._changed.notify_all()
        found = [call.result(60) for call in calls] if isinstance(calls, list | tuple) else calls.result(60)
        self._waiting = False
        return found


class Handle:
    """An engine with a thread of its own."""

    def __init__(self, worker: RolloutWorker, session: Lockstep) -> None:
        self._worker, self._session = worker, session
        self.thread = ThreadPoolExecutor(1)

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        if method == "sample":
            self._session.call()
        return self.thread.submit(self._run, method, arguments)

    def _run(self, method: str, arguments: Sequence[Any]) -> Any:
        arguments = [one.result(60) if isinstance(one, Future) else one for one in arguments]
        if method == "sample":
            self._session.begin()
        try:
            return attrgetter(method)(self._worker)(*arguments)
        finally:
            if method == "sample":
                self._session.leave()


Where = dict[int, tuple[int, int]]  # a response's engine, by the size of the engines and among those of it


class Watched:
    """A control, and what it saw whenever it was asked: responses that had finished, where the others were, and then went."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self.seen: list[tuple[list[int], Where, Where]] = []
        self._first = 0  # of the engines in use, where a simulated rollout counts all that there ever were

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        self._first = 0
        return self._asked(fleet, lambda: self._control.begin(fleet, round))

    def act(self, fleet: Fleet) -> Wake:
        ended, before = sorted(fleet.finished.tolist()), self._where(fleet)
        wake = self._asked(fleet, lambda: self._control.act(fleet))
        after = self._where(fleet)
        if isinstance(fleet, ObservedFleet):
            size = fleet.orders.size or int(fleet.gpus[0])
            after = {r: (size, fleet.orders.replica.get(r, k)) for r, (_, k) in before.items()}
        self.seen.append((ended, before, after))
        return wake

    def end(self, fleet: Fleet) -> None:
        self.seen.append((sorted(fleet.finished.tolist()), {}, {}))
        self._control.end(fleet)

    def _asked(self, fleet: Fleet, ask: Callable[[], Wake]) -> Wake:
        before, wake = fleet.size, ask()
        self._first = before if fleet.size > before else self._first
        return wake

    def _where(self, fleet: Fleet) -> Where:
        return {int(r): (int(fleet.gpus[-1]), int(fleet.replica[r]) - self._first) for r in fleet.open}


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TaskJob, list[RolloutWorker]]]:
    """Two engines of a core and one of two, of a job."""
    with engines_of_two_sizes(ALGORITHM, tmp_path_factory.mktemp("cache"), "adaptive-parallelism") as made:
        yield made


@pytest.fixture(scope="module")
def engines(sized: tuple[TaskJob, list[RolloutWorker]]) -> tuple[TaskJob, list[RolloutWorker]]:
    """The first two, of the job without the third."""
    spec, workers = sized
    return spec.model_copy(update={"rollout": spec.rollout.model_copy(update={"sizes": ()})}), workers[:2]


@pytest.fixture(autouse=True)
def _out_of_the_run() -> Iterator[None]:
    yield
    set_session(None)


def run(made: tuple[TaskJob, list[RolloutWorker]], control: RunControl | None) -> list[list[Response]]:
    """Rollouts of a real job, one after the other: the responses of each, in the order in which they are trained on."""
    (spec, workers), session = made, Lockstep()
    set_session(session)  # type: ignore[arg-type]
    job = Grpo(spec)
    handles = [Handle(worker, session) for worker in workers]
    sizes = [1, 1, 2][: len(handles)]
    for worker, size in zip(workers, sizes, strict=True):
        (worker.residency.restore if size == 1 else worker.residency.offload)()
    engines = vars(job)["_engines"]
    vars(engines).update(_workers=handles, control=control, _sizes=sizes)
    found = []
    for _ in range(ROLLOUTS):
        job.rollout()
        rolled = vars(job)["_rolled"]
        parts: list[ShareSamples] = [part for own in rolled.samples for part in own.result(60)]
        found.append([response for part in sorted(parts, key=lambda part: part.place) for response in part.responses])
        vars(job)["_rounds"].done(rolled.complete)
    for handle in handles:
        handle.thread.shutdown()
    return found


def bench(own: RunControl, lengths: Sequence[Sequence[int]]) -> None:
    """The same rollouts in the simulator, where every response is as long as it really was."""
    setting = replace(own.setting, timings=tuple((size, LOCKSTEP) for size, _ in own.setting.timings))
    for tokens in lengths:
        due = own.policy.rounds.next()
        play(setting, own.policy.control, due, np.array(tokens)[:, None])
        own.policy.rounds.done(due.prompts)


def watched(policy: RolloutPolicy, setting: Setting) -> tuple[RunControl, Watched]:
    """A policy as a job has it, and what it will have seen."""
    own = policy.begin_job(setting)
    control = Watched(own.control)
    return RunControl(JobPolicy(own.rounds, control), setting), control


@pytest.fixture(scope="module")
def plain(engines: tuple[TaskJob, list[RolloutWorker]]) -> list[list[Response]]:
    return run(engines, None)


@pytest.mark.parametrize("name", ["tail-migration", "adaptive-parallelism,margin=0", "learned:default"])
def test_a_policy_decides_on_real_engines_as_in_the_simulator_and_samples_stay(
    name: str, engines: tuple[TaskJob, list[RolloutWorker]], plain: list[list[Response]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.grpo.control.ENGINE", SLOW)
    spec = engines[0]
    policy = make_rollout(name) if name == "tail-migration" else make_at(name, "run")
    (own, real), (again, simulated) = (watched(policy, setting_of_run(spec, 2)) for _ in range(2))
    sampled = run(engines, own)
    for one, other in zip(sampled, plain, strict=True):
        assert [response.token_ids for response in one] == [response.token_ids for response in other]
    bench(again, [[len(response.token_ids) for response in rollout] for rollout in plain])
    assert real.seen == simulated.seen
    if name != "learned:default":
        assert any(before != after for _, before, after in real.seen), "nothing has moved"


@pytest.mark.parametrize("name", ["adaptive-parallelism,margin=0,switch_s=0", "always resizes"])
def test_engines_of_another_size_go_on_as_in_the_simulator_and_samples_stay(
    name: str,
    sized: tuple[TaskJob, list[RolloutWorker]],
    plain: list[list[Response]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    add, name = Fleet.add, always_resizes(tmp_path / "policy") + ",switch_s=0" if name == "always resizes" else name

    def added(self: Fleet, made: Sequence[ReplicaTiming], gpus: int = 1, from_s: float | None = None) -> Ints:
        """A policy gives new engines of the simulator the costs that it forecasts with."""
        return add(self, made if from_s is None else [LOCKSTEP] * len(made), gpus, from_s)

    monkeypatch.setattr(Fleet, "add", added)
    setting = setting_of_run(sized[0], 2, {1: NARROW, 2: WIDE})
    (own, real), (again, simulated) = (watched(make_at(name, "run"), setting) for _ in range(2))
    sampled = run(sized, own)
    for one, other in zip(sampled, plain, strict=True):
        assert [response.token_ids for response in one] == [response.token_ids for response in other]
    bench(again, [[len(response.token_ids) for response in rollout] for rollout in plain])
    assert real.seen == simulated.seen
    sizes = [{size for size, _ in where.values()} for _, *both in real.seen for where in both if where]
    assert {1} in sizes and {2} in sizes, "the size never changed"


def test_it_decides_so_in_the_environment_too(engines: tuple[TaskJob, list[RolloutWorker]], plain: list[list[Response]]) -> None:
    spec = engines[0]
    setting = replace(setting_of_run(spec, 2), timings=((1, LOCKSTEP),), prompt_tokens=0)
    own, simulated = watched(make_rollout("tail-migration"), setting)
    lengths = [[len(response.token_ids) for response in rollout] for rollout in plain]
    bench(own, lengths)
    prompts = [own[k : k + 4] for own in lengths for k in range(0, 24, 4)]
    case = RolloutJob(setting, ROLLOUTS, lengths=tuple(tuple((*tokens, 1) for _ in range(ATTEMPTS)) for tokens in prompts))
    env = RolloutVectorEnv(1, Fixed(case), autoreset_mode="Disabled")
    observation, _ = env.reset(seed=0, options={"stream_seed": 0})
    agent, moves, over = PolicyAgent("tail-migration", env), [], False
    while not over:
        action = agent.actions(observation)
        if action[0]:
            responses = env.jobs.responses[0]
            left = np.flatnonzero(np.isin(responses["state"], (1, 2)))
            ended = env.jobs.order[0, : env.jobs.order[0, -1]]
            moves.append((sorted(ended.tolist()), {int(r): int(responses["replica"][r]) for r in left}))
        observation, _, ended_now, _, _ = env.step(action)
        over = bool(ended_now[0])
    assert moves == [(ended, {r: k for r, (_, k) in before.items()}) for ended, before, after in simulated.seen if before != after]


@pytest.mark.parametrize("name", ["learned:default", "adaptive-parallelism"])
def test_a_policy_learns_nothing_from_a_rollout_that_is_closed_before_a_response_has_finished(
    name: str, engines: tuple[TaskJob, list[RolloutWorker]]
) -> None:
    """It read the lengths of no responses, which now and then ended the process."""
    own, control = watched(make_at(name, "run"), setting_of_run(engines[0], 2))
    course = ControlledRollout(own, own.policy.rounds.next())
    course.begin()
    course.end([], 1.0)
    assert control.seen == []
