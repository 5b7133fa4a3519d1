"""A rollout policy inside a real rollout: every response is a share of its own, which goes to the engine that the policy orders."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from policies.rollout.places import make_at
from policies.rollout.rounds import Round
from rollmux_env.kernel import rollouts as kernel
from rollmux_env.rollout.observed import ObservedFleet
from rollmux_env.rollout.policy import Control, Wake
from rollmux_env.rollout.setting import Setting
from rollmux_env.timing.lengths import Lognormal
from rollmux_env.timing.replica import ReplicaTiming
from runtime.grpo.messages import Status
from runtime.grpo.shares import Share
from runtime.jobs.spec import JobSpec

ENGINE = ReplicaTiming(0.0, 1e-9, 0.0, 1.0, 0.0, 0.0, 0.0, 2**40)
"""What forecasts take an engine for: a step of 30 sequences takes as long as one of a few, and the cache is never full. Policies
compare forecasts with each other, so only ratios matter."""


def setting_of_run(spec: JobSpec, engines: int) -> Setting:
    """The rollouts of a real job, as a policy knows them: as many engines of one size. Lengths are known by their cap alone."""
    settings = spec.algorithm
    return Setting(
        timings=((1, ENGINE),),
        gpus=engines,
        parallel=1,
        prompts=settings.prompts_per_iteration,
        responses=settings.group_size,
        prompt_tokens=settings.max_prompt_tokens,
        lengths=Lognormal(settings.max_tokens, max(1.0, settings.max_tokens / 4), 1.0),
        most=2**20,
    )


def control_of(spec: JobSpec, engines: int) -> Control | None:
    """What decides inside the rollouts of a job whose policy does; None where there is a single engine."""
    if engines < 2:
        return None
    return make_at(spec.rollout.policy, "run").begin_job(setting_of_run(spec, engines)).control


class ControlledRollout:
    """One rollout.

    Args:
        control: of the job. round: what is launched. engines: of the job. prompt_tokens: of every prompt.

    Attributes:
        shares: one for each response, by place. where: the engine of each.
    """

    def __init__(self, control: Control, round: Round, engines: int, prompt_tokens: int) -> None:
        self._control, self._round, self._engines = control, round, engines
        self._wake = Wake()
        each = round.responses
        keys = [(prompt, k) for prompt in round.prompts for k in range(each)]
        alone = [Round(round.long, (prompt,), 1, 1, 1) for prompt, _ in keys]
        self.shares = [Share(place, alone[place], stream=prompt * each + number) for place, (prompt, number) in enumerate(keys)]
        self.where = [0] * len(keys)
        table = kernel.response_table(len(keys))
        table["prompt"], table["group"] = prompt_tokens, np.arange(len(keys)) // each
        replicas = kernel.replica_table(engines)
        replicas["kv"] = ENGINE.kv_tokens
        self._tables = kernel.Rollout(
            responses=table,
            replicas=replicas,
            groups=kernel.group_table(len(round.prompts), each),
            turns=np.zeros((len(keys), 1), np.int64),
            batch=np.zeros((engines, len(keys)), np.int64),
            order=np.zeros(len(keys) + 1, np.int64),
            counts=np.zeros(2, np.int64),
        )

    @property
    def wake(self) -> int | None:
        """The number of finished responses at which the policy is asked again; None: never."""
        return self._wake.finished

    def begin(self) -> None:
        """Let the policy launch every response."""
        fleet = self._fleet(0.0)
        self._wake = self._control.begin(fleet, self._round)
        self._carry_out(fleet.orders.replica)

    def act(self, statuses: Iterable[Status], now_s: float) -> dict[int, int]:
        """Ask the policy, if it is time to.

        Args:
            statuses: of all responses. now_s: since the rollout began.

        Returns:
            {place: engine} of the shares that are to go on at another engine.
        """
        self._observe(statuses)
        moved: dict[int, int] = {}
        while self._wake.finished is not None and int(self._tables.order[-1]) >= self._wake.finished:
            fleet = self._fleet(now_s)
            self._wake = self._control.act(fleet)
            self._carry_out(fleet.orders.replica)
            moved |= fleet.orders.replica
        return moved

    def end(self, statuses: Iterable[Status], now_s: float) -> None:
        """The rollout is over; the policy remembers what it will."""
        self._observe(statuses)
        self._control.end(self._fleet(now_s))

    def _fleet(self, now_s: float) -> ObservedFleet:
        return ObservedFleet(self._tables, self._engines, 1, now_s, sizes=False)

    def _carry_out(self, replica: dict[int, int]) -> None:
        for place, engine in replica.items():
            self.where[place] = engine
            self._tables.responses["replica"][place] = engine

    def _observe(self, statuses: Iterable[Status]) -> None:
        """Write what the engines say into the tables."""
        table, known = self._tables.responses, sorted(statuses, key=lambda one: (one.end_s is None, one.end_s, one.place))
        ended = [one.place for one in known if one.end_s is not None]
        for one in known:
            table["sampled"][one.place] = one.tokens
            table["state"][one.place] = kernel.RUNNING if one.end_s is None else kernel.FINISHED
            table["end_s"][one.place] = np.inf if one.end_s is None else one.end_s
        self._tables.order[: len(ended)] = ended
        self._tables.order[-1] = len(ended)
        groups = np.bincount(table["group"][ended], minlength=len(self._tables.groups))
        self._tables.groups["finished"] = groups
        self._tables.counts[0] = int((groups >= self._round.needed).sum())
        running = table["state"] == kernel.RUNNING
        context = (table["prompt"] + table["sampled"]) * running
        self._tables.replicas["context"] = np.bincount(table["replica"], context, self._engines).astype(np.int64)
