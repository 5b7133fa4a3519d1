"""One rollout policy decides the same in `bench`, in the environment and on real engines, and what is sampled stays the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from threading import Barrier, Condition, get_ident
from typing import Any

import numpy as np
import pytest

from policies.rollout import make_rollout
from policies.rollout.environment import PolicyAgent
from policies.rollout.places import make_at
from rollmux_env.envs.rollout.env import RolloutVectorEnv
from rollmux_env.envs.rollout.generator import Fixed
from rollmux_env.envs.rollout.types import ATTEMPTS, Case
from rollmux_env.rollout.fleet import Fleet
from rollmux_env.rollout.job import play
from rollmux_env.rollout.observed import ObservedFleet
from rollmux_env.rollout.policy import Control, Round, Wake
from rollmux_env.timing.replica import ReplicaTiming
from runtime.engines.interface import Response
from runtime.grpo.control import setting_of_run
from runtime.grpo.job import Grpo
from runtime.grpo.messages import Sampled
from runtime.grpo.rollout_worker import RolloutWorker
from runtime.jobs.spec import JobSpec
from runtime.phases import set_session
from tests.runtime.grpo.here import two_engines

ALGORITHM = {"prompts_per_iteration": 6, "group_size": 4, "max_tokens": 60}
LOCKSTEP = ReplicaTiming(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2**40)  # a token of every response a second, however many there are
SLOW = ReplicaTiming(0.0, 1e-9, 0.0, 1.0, 0.0, 0.0, 0.0, 2**40)  # what a policy takes an engine for, so that moving pays
ROLLOUTS = 3


class Lockstep:
    """A run whose engines take their steps together, and stop after the step in which enough responses have finished."""

    worst_case, iteration, parts = False, 0, (0, 1)

    def __init__(self) -> None:
        self.limit: int | None = None
        self.done: dict[int, int] = {}
        self._changed = Condition()
        self._active, self._arrived = set[int](), set[int]()
        self._both, self._steps, self._stop = Barrier(2), 0, False

    def begin(self) -> None:
        with self._changed:
            self._active.add(get_ident())
        self._both.wait(60)  # nobody takes a step before the other is there

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

    def regroup(self, leave: Any) -> tuple[int, ...]:
        return self.parts

    def wait(self, calls: Any) -> Any:
        return [call.result(60) for call in calls] if isinstance(calls, list | tuple) else calls.result(60)


class Handle:
    """An engine with a thread of its own."""

    def __init__(self, worker: RolloutWorker, session: Lockstep) -> None:
        self._worker, self._session = worker, session
        self.thread = ThreadPoolExecutor(1)

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        return self.thread.submit(self._run, method, arguments)

    def _run(self, method: str, arguments: Sequence[Any]) -> Any:
        arguments = [one.result(60) if isinstance(one, Future) else one for one in arguments]
        if method == "sample":
            self._session.begin()
        try:
            return getattr(self._worker, method)(*arguments)
        finally:
            if method == "sample":
                self._session.leave()


class Watched:
    """A control, and what it saw whenever it was asked: responses that had finished, where the others were, and then went."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self.seen: list[tuple[list[int], dict[int, int], dict[int, int]]] = []

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        return self._control.begin(fleet, round)

    def act(self, fleet: Fleet) -> Wake:
        ended, before = sorted(fleet.finished.tolist()), {int(r): int(fleet.replica[r]) for r in fleet.open}
        wake = self._control.act(fleet)
        moved = fleet.orders.replica if isinstance(fleet, ObservedFleet) else {r: int(fleet.replica[r]) for r in before}
        self.seen.append((ended, before, before | moved))
        return wake

    def end(self, fleet: Fleet) -> None:
        self.seen.append((sorted(fleet.finished.tolist()), {}, {}))
        self._control.end(fleet)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[JobSpec, list[RolloutWorker]]]:
    """Two engines of a job."""
    with two_engines(ALGORITHM, tmp_path_factory.mktemp("cache")) as made:
        yield made


@pytest.fixture(autouse=True)
def _out_of_the_run() -> Iterator[None]:
    yield
    set_session(None)


def run(engines: tuple[JobSpec, list[RolloutWorker]], control: Control | None) -> list[list[Response]]:
    """Rollouts of a real job, one after the other: the responses of each, in the order in which they are trained on."""
    (spec, workers), session = engines, Lockstep()
    set_session(session)  # type: ignore[arg-type]
    job = Grpo(spec)
    handles = [Handle(worker, session) for worker in workers]
    vars(job)["_engines"], vars(job)["_control"] = handles, control
    found = []
    for _ in range(ROLLOUTS):
        job.rollout()
        rolled = vars(job)["_rolled"]
        parts: list[Sampled] = [part for own in rolled.samples for part in own.result(60)]
        found.append([response for part in sorted(parts, key=lambda part: part.place) for response in part.responses])
        vars(job)["_rounds"].done(rolled.complete)
    for handle in handles:
        handle.thread.shutdown()
    return found


def bench(spec: JobSpec, control: Control, lengths: Sequence[Sequence[int]]) -> None:
    """The same rollouts in the simulator, where every response is as long as it really was."""
    setting = replace(setting_of_run(spec, 2), timings=((1, LOCKSTEP),))
    rounds = make_rollout("plain").begin_job(setting).rounds
    for own in lengths:
        due = rounds.next()
        play(setting, control, due, np.array(own)[:, None])
        rounds.done(due.prompts)


@pytest.fixture(scope="module")
def plain(engines: tuple[JobSpec, list[RolloutWorker]]) -> list[list[Response]]:
    return run(engines, None)


@pytest.mark.parametrize("name", ["tail-migration", "adaptive-parallelism,margin=0", "learned:default"])
def test_a_policy_decides_on_real_engines_as_in_the_simulator_and_samples_stay(
    name: str, engines: tuple[JobSpec, list[RolloutWorker]], plain: list[list[Response]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.grpo.control.ENGINE", SLOW)
    spec = engines[0]
    policy = make_rollout(name) if name == "tail-migration" else make_at(name, "run")
    real, simulated = (Watched(policy.begin_job(setting_of_run(spec, 2)).control) for _ in range(2))
    sampled = run(engines, real)
    for one, other in zip(sampled, plain, strict=True):
        assert [response.token_ids for response in one] == [response.token_ids for response in other]
    bench(spec, simulated, [[len(response.token_ids) for response in own] for own in plain])
    assert real.seen == simulated.seen
    if name != "learned:default":
        assert any(before != after for _, before, after in real.seen), "nothing has moved"


def test_it_decides_so_in_the_environment_too(engines: tuple[JobSpec, list[RolloutWorker]], plain: list[list[Response]]) -> None:
    spec = engines[0]
    setting = replace(setting_of_run(spec, 2), timings=((1, LOCKSTEP),), prompt_tokens=0)
    simulated = Watched(make_rollout("tail-migration").begin_job(setting).control)
    lengths = [[len(response.token_ids) for response in own] for own in plain]
    bench(spec, simulated, lengths)
    prompts = [own[k : k + 4] for own in lengths for k in range(0, 24, 4)]
    case = Case(setting, ROLLOUTS, lengths=tuple(tuple((*tokens, 1) for _ in range(ATTEMPTS)) for tokens in prompts))
    env = RolloutVectorEnv(1, Fixed(case), autoreset=False)
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
    assert moves == [(ended, before) for ended, before, after in simulated.seen if before != after]
