"""Use of a rollout policy inside a real rollout. Every response is a separate share, sent to the engine that the policy orders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from policies.named import is_own
from policies.rollout.places import make_at
from rollmux_env.errors import InputError
from rollmux_env.kernel import rollout_records as records
from rollmux_env.rollout.checks import WHO, begin_job, check_wake
from rollmux_env.rollout.fleet import ObservedFleet, Orders
from rollmux_env.rollout.policy import JobPolicy, Round
from rollmux_env.rollout.setting import Setting
from rollmux_env.timing.lengths import Lognormal
from rollmux_env.timing.replica import ReplicaTiming
from rollmux_env.user_code import guarded
from runtime.grpo.messages import ResponseStatus
from runtime.grpo.shares import EngineShare, RolloutCourse
from runtime.jobs.named import load_named
from runtime.jobs.spec import TaskJob

ENGINE = ReplicaTiming(0.0, 1e-9, 0.0, 1.0, 0.0, 0.0, 0.0, 2**40)
"""Timing of an engine for forecasts when all engines have the same size. A step of 30 sequences takes as long as one of a few, and
the cache is never full. Policies compare forecasts with each other, so only ratios matter."""


class RunControl(NamedTuple):
    """Rollout policy of a job, with its memory, and the setting it decides in.

    Attributes:
        policy: The policy.
        setting: Rollouts of the job, as the policy knows them.
    """

    policy: JobPolicy
    setting: Setting


def setting_of_run(spec: TaskJob, engines: int, timings: Mapping[int, ReplicaTiming] | None = None) -> Setting:
    """Return the rollouts of a real job, as a policy knows them. Of the lengths of responses, the policy knows only the limit.

    Args:
        spec: Specification of the job.
        engines: Number of engines of the configured size.
        timings: Timing of an engine of each size, by size in GPUs. None means that there is one size; the policy then counts
            engines instead of GPUs.
    """
    settings = spec.algorithm
    parallel = spec.rollout.tensor_parallel if timings else 1
    return Setting(
        timings=tuple(timings.items()) if timings else ((1, ENGINE),),
        gpus=engines * parallel,
        parallel=parallel,
        prompts=settings.prompts_per_iteration,
        responses=settings.group_size,
        prompt_tokens=settings.max_prompt_tokens,
        lengths=Lognormal(settings.max_tokens, max(1.0, settings.max_tokens / 4), 1.0),
        most=2**20,
    )


def control_of(spec: TaskJob, engines: int, timings: Mapping[int, ReplicaTiming] | None = None) -> RunControl | None:
    """Return the policy that decides inside the rollouts of a job, or None if there is a single engine.

    Args:
        spec: Specification of the job.
        engines: Number of engines of the configured size.
        timings: As in `setting_of_run`.

    Raises:
        InputError: The policy cannot be used in a run.
    """
    if engines < 2 and not timings:
        return None
    setting, name = setting_of_run(spec, engines, timings), spec.rollout.policy
    if is_own(name):
        load_named(name.partition(",")[0], spec.folder)  # makes classes in the job's folder importable
    own = begin_job(make_at(name, "run"), setting)
    if is_own(name):
        first = guarded(own.rounds.next, WHO)()
        if (len(first.prompts), first.responses) != (setting.prompts, setting.responses):
            raise InputError(f"rollout policy '{name}': launches more than is needed, which in a run tail-batching alone does")
    return RunControl(own, setting)


class ControlledRollout(RolloutCourse):
    """One rollout in which a policy decides.

    Args:
        own: Policy of the job.
        round: Prompts and responses to launch.

    Attributes:
        shares: One share for each response, by place.
        where: Engine of each share, as a number among the engines of the current size.
        size: Size of the engines in use, in GPUs.
        resizes: Number of changes of the size since the rollout began.
    """

    decides = True

    def __init__(self, own: RunControl, round: Round) -> None:
        super().__init__(round, own.setting.parallel)
        self._own, self.resizes = own, 0
        each = round.responses
        keys = [(prompt, k) for prompt in round.prompts for k in range(each)]
        alone = [Round(round.long, (prompt,), 1, 1, 1) for prompt, _ in keys]
        self.shares = [
            EngineShare(place, alone[place], stream=prompt * each + number) for place, (prompt, number) in enumerate(keys)
        ]
        self.where = [0] * len(keys)
        tables = records.rollout_table(len(keys), 0, len(round.prompts), each)
        tables.responses["prompt"], tables.responses["group"] = own.setting.prompt_tokens, np.arange(len(keys)) // each
        self._tables = self._with_replicas(tables)

    def shares_by_engine(self, engines: int) -> list[tuple[EngineShare, ...]]:
        """Return the shares of each engine in use, where `engines` is their number."""
        return [tuple(share for share in self.shares if self.where[share.place] == k) for k in range(engines)]

    @property
    def _count(self) -> int:
        """Number of engines in use."""
        return self._own.setting.gpus // self.size

    def begin(self) -> None:
        """Let the policy choose the size of the engines and the engine of every response."""
        guarded(self._own.policy.rounds.next, WHO)()  # the policy's own round, in which it may decide about sizes
        fleet = self._fleet(0.0)
        self.wake = check_wake(guarded(self._own.policy.control.begin, WHO)(fleet, self._round), fleet, self._own.setting).finished
        self._carry_out(fleet.orders)

    def act(self, statuses: Iterable[ResponseStatus], now_s: float) -> dict[int, int]:
        """Ask the policy, if as many responses have finished as it wants to wait for.

        Args:
            statuses: Status of each response.
            now_s: Time since the rollout began, in seconds.

        Returns:
            {place: engine} of the shares that must move to another engine. If the size changes, it contains all running shares.
        """
        self._observe(statuses)
        moved: dict[int, int] = {}
        resized = False
        while self.wake is not None and int(self._tables.order[-1]) >= self.wake:
            fleet = self._fleet(now_s)
            self.wake = check_wake(guarded(self._own.policy.control.act, WHO)(fleet), fleet, self._own.setting).finished
            if self._carry_out(fleet.orders):
                resized = True
                self.resizes += 1
            moved |= fleet.orders.replica
        return {int(place): self.where[place] for place in self._running().nonzero()[0]} if resized else moved

    def end(self, statuses: Iterable[ResponseStatus], now_s: float, preemptions: int = 0) -> None:
        """End the rollout, so that the policy can remember what it observed.

        Args:
            statuses: Status of each response.
            now_s: Time since the rollout began, in seconds.
            preemptions: Number of times that a full cache put a response back.
        """
        self._observe(statuses)
        if not self._tables.order[-1]:  # the job was closed before a response had finished: its rollout teaches nothing
            return
        self._tables.counts[1] = preemptions
        guarded(self._own.policy.control.end, WHO)(self._fleet(now_s))
        rounds = self._own.policy.rounds
        guarded(rounds.done, WHO)(guarded(rounds.next, WHO)().prompts)

    def _fleet(self, now_s: float) -> ObservedFleet:
        return ObservedFleet(self._tables, self.size, now_s, sizes=len(self._own.setting.timings) > 1)

    def _carry_out(self, orders: Orders) -> bool:
        """Store the policy's orders, and return whether engines of another size replace the current ones."""
        resized = orders.size is not None and orders.size != self.size
        if resized and orders.size is not None:
            self.size = orders.size
            self._tables = self._with_replicas(self._tables)
        for place, engine in orders.replica.items():
            self.where[place] = engine
            self._tables.responses["replica"][place] = engine
        return resized

    def _with_replicas(self, tables: records.Rollout) -> records.Rollout:
        """Return the tables with replicas for the engines in use, about which nothing is known yet."""
        replicas = records.replica_table(self._count)
        replicas["kv"] = dict(self._own.setting.timings)[self.size].kv_tokens
        return tables._replace(replicas=replicas, batch=np.zeros((self._count, len(self.where)), np.int64))

    def _running(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Return whether each response is running, of shape (responses,)."""
        running: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = self._tables.responses["state"] == records.RUNNING
        return running

    def _observe(self, statuses: Iterable[ResponseStatus]) -> None:
        """Write the statuses from the engines into the tables."""
        table, known = self._tables.responses, sorted(statuses, key=lambda one: (one.end_s is None, one.end_s, one.place))
        ended = [one.place for one in known if one.end_s is not None]
        for one in known:
            table["sampled"][one.place] = one.tokens
            table["state"][one.place] = records.RUNNING if one.end_s is None else records.FINISHED
            table["end_s"][one.place] = np.inf if one.end_s is None else one.end_s
        self._tables.order[: len(ended)] = ended
        self._tables.order[-1] = len(ended)
        groups = np.bincount(table["group"][ended], minlength=len(self._tables.groups))
        self._tables.groups["finished"] = groups
        self._tables.counts[0] = int((groups >= self._round.needed).sum())
        context = (table["prompt"] + table["sampled"]) * self._running()
        contexts = np.bincount(table["replica"], context, self._count)  # finished responses may have been at more engines
        self._tables.replicas["context"] = contexts[: self._count].astype(np.int64)
