"""The policy `adaptive-parallelism` (OrchestrRL, arXiv 2601.01209): many small replicas first, few large ones later.

At the start of a rollout and at several checkpoints, the policy forecasts the remaining length of every response from earlier
rollouts, given the tokens sampled so far. It then simulates each option on the forecast: stay, move responses to balance the
replicas, or rebuild all replicas with another size. The simulation includes the prefill of moved responses and the seconds of the
switch. The policy takes the option with the least makespan if the gain exceeds a margin. A job's first rollout, without any
history, begins with the size in its configuration, later ones with the best size for the forecast. Short and long rounds of tail
batching have separate forecasts.

Only abstracts of the paper are available. Two parts are ours: the forecast, a distribution smoothed from rollout to rollout (an
ARIMA(0,1,1) of every quantile), and the choice by simulation instead of a program.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.rollout.published import Plain
from rollmux_env.kernel.rollout_trials import QUANTILES, descending, forecast, remember, spread
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.rollout.fleet import Fleet
from rollmux_env.rollout.policy import Control, Round, StaticControl, Wake, deal, wake_at
from rollmux_env.rollout.setting import Setting

_CHECKPOINTS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98)  # shares of the wanted responses after which the policy decides again


@dataclass(frozen=True)
class AdaptiveParallelism(Plain):
    """Rollout policy that changes the size of the replicas as the batch shrinks.

    Args:
        switch_s: Seconds until replicas of another size are ready. OrchestrRL reports 2 to 5.
        margin: Share of the forecast makespan that a change must gain.
    """

    switch_s: float = 3.5
    margin: float = 0.05

    def __post_init__(self) -> None:
        if not (isinstance(self.switch_s, int | float) and 0 <= self.switch_s < float("inf")):
            raise ValueError(f"switch_s must be a number of at least 0, not {self.switch_s}")
        if not (isinstance(self.margin, int | float) and 0 <= self.margin < 1):
            raise ValueError(f"margin must be a number of at least 0 and below 1, not {self.margin}")

    def control(self, setting: Setting) -> Control:
        """Return the control that changes replicas during a rollout."""
        return Reshape(self, setting)


class Reshape(StaticControl):
    """Control of one job's replicas, with the length distribution of its past responses."""

    def __init__(self, policy: AdaptiveParallelism, setting: Setting) -> None:
        self._policy, self._setting = policy, setting
        self._timings = dict(setting.timings)
        self._quantiles: dict[bool, Floats] = {}  # by whether the round is long
        self._long = False
        self._n_wanted = 0  # number of finished responses that completes the round
        self._parallel = setting.parallel  # GPUs of each replica in use
        self._live = np.zeros(0, np.int64)  # numbers of the replicas in use

    def begin(self, fleet: Fleet, round: Round) -> Wake:
        """Launch a round on replicas of the size with the least forecast makespan."""
        self._long, self._n_wanted = round.long, round.wanted * round.needed
        before, self._live = self._parallel, np.arange(fleet.size)
        self._parallel = self._initial_size(fleet)
        if self._parallel != self._setting.parallel or self._parallel != before:
            self._add_replicas(fleet, 0.0 if self._parallel == before else self._policy.switch_s)
        deal(fleet, self._live)
        return self._next_wake(fleet)

    def act(self, fleet: Fleet) -> Wake:
        """Change the replicas if the forecast gain is large enough."""
        if self._long in self._quantiles:
            self._reshape(fleet, self._quantiles[self._long])
        return self._next_wake(fleet)

    def end(self, fleet: Fleet) -> None:
        """Update the forecast with the lengths of the finished responses."""
        known = self._long in self._quantiles
        remember(self._quantiles.setdefault(self._long, np.zeros(QUANTILES)), fleet.sampled()[fleet.finished], known)

    def _initial_size(self, fleet: Fleet) -> int:
        """Return the size to begin a rollout with.

        It is the size at the end of the last rollout, unless another has a clearly smaller makespan.
        """
        if self._long not in self._quantiles:
            return self._parallel
        context = fleet.context()
        ahead = forecast(self._quantiles[self._long], fleet.sampled())
        best, best_s = self._parallel, np.inf
        for parallel in (self._parallel, *(size for size in self._timings if size != self._parallel)):
            where = np.arange(context.size) % (self._setting.gpus // parallel)
            makespan_s = self._makespan(parallel, context, ahead, where, where < 0, self._n_wanted)
            if makespan_s < best_s:
                best, best_s = parallel, (makespan_s if parallel != self._parallel else (1 - self._policy.margin) * makespan_s)
        return best

    def _next_wake(self, fleet: Fleet) -> Wake:
        return wake_at((max(1, int(share * self._n_wanted)) for share in _CHECKPOINTS), fleet)

    def _reshape(self, fleet: Fleet, quantiles: Floats) -> None:
        left, sampled, context = fleet.open, fleet.sampled(), fleet.context()
        if not left.size:
            return
        context, ahead = context[left], forecast(quantiles, sampled[left])
        present = np.searchsorted(self._live, fleet.replica[left])
        counting = max(1, self._n_wanted - fleet.finished.size)
        stay_s = self._makespan(self._parallel, context, ahead, present, present == present, counting)
        best: tuple[int, Ints] | None = None
        order = descending(ahead)
        best_s = (1 - self._policy.margin) * stay_s
        for parallel in self._timings:
            where = spread(order, self._setting.gpus // parallel)
            stays = (where == present) & (parallel == self._parallel)
            makespan_s = self._makespan(parallel, context, ahead, where, stays, counting)
            if makespan_s < best_s:
                best_s, best = makespan_s, (parallel, where)
        if best is None:
            return
        parallel, where = best
        if parallel != self._parallel:
            self._parallel = parallel
            self._add_replicas(fleet, fleet.now_s + self._policy.switch_s)
        moving = fleet.replica[left] != self._live[where]
        fleet.migrate(left[moving], self._live[where[moving]])

    def _makespan(self, parallel: int, context: Ints, ahead: Ints, where: Ints, stays: NDArray[np.bool_], counting: int) -> float:
        """Return the forecast seconds until the end of the round, including the switch of sizes.

        Args:
            parallel: GPUs of each replica.
            context: Current context of each response, tokens.
            ahead: Forecast remaining tokens of each response.
            where: Replica on which each response continues.
            stays: Whether each response stays on its replica. The others are prefilled again.
            counting: Number of responses whose end completes the round.
        """
        timing = self._timings[parallel]
        if int((context + ahead).max()) >= timing.kv_tokens:
            return float("inf")
        count = self._setting.gpus // parallel
        trial = Fleet([timing] * count, context, ahead[:, None], 1, 1, self._setting.most, parallel)
        trial.launch(np.arange(context.size), where, np.where(stays, 0.0, -1.0))
        trial.run(responses=counting)
        return trial.now_s + (0.0 if parallel == self._parallel else self._policy.switch_s)

    def _add_replicas(self, fleet: Fleet, from_s: float) -> None:
        """Add replicas of the current size, and use only these from now on."""
        replicas = [self._timings[self._parallel]] * (self._setting.gpus // self._parallel)
        self._live = fleet.add(replicas, self._parallel, from_s)
