"""Checks of a rollout policy's answers.

They make a user's policy do the same work on the same GPUs as any other policy. An error message begins with the name of its rule:

R1  `begin_job` returns a `JobPolicy`, with `rounds` and `control`
R2  a round trains on the job's number of prompts and of responses to each; it launches at least these, and no prompt twice
R3  a round launches no prompt that is complete, and none that is more than `AHEAD` iterations ahead of the complete ones
R4  `begin` and `act` return a `Wake`
R5  a response is launched once, and moves only while it waits or runs, to a replica that exists
R6  the replicas that hold responses have no more GPUs than the job
R7  the rollout ends: enough prompts complete within `RUNAWAY` calls of the control
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rollmux_env.errors import PlanError
from rollmux_env.rollout.fleet import Fleet
from rollmux_env.rollout.policy import JobPolicy, RolloutPolicy, Round, Wake
from rollmux_env.rollout.setting import Setting
from rollmux_env.user_code import brief, guarded, is_number, is_whole

RUNAWAY = 100_000  # largest number of calls of a control in one rollout
AHEAD = 8  # largest number of iterations by which a prompt may be launched early


WHO = "the rollout policy"


def begin_job(policy: RolloutPolicy, setting: Setting) -> JobPolicy:
    """Return a policy's object for one job.

    Args:
        policy: Rollout policy of all jobs.
        setting: Setting of the job's rollouts.

    Raises:
        PlanError: If the answer breaks R1 or the policy raised an exception.
    """
    own: object = guarded(policy.begin_job, WHO)(setting)
    if not isinstance(own, JobPolicy):
        raise PlanError(f"R1: the rollout policy's begin_job returned {brief(own)}, which is no JobPolicy")
    for part, methods in ((own.rounds, ("next", "done")), (own.control, ("begin", "act", "end"))):
        if lacking := [name for name in methods if not callable(getattr(part, name, None))]:
            raise PlanError(f"R1: the rollout policy's begin_job returned {brief(part)}, which has no method `{lacking[0]}`")
    return own


class RoundChecks:
    """Checks of the rounds of one job, with the prompts that are complete so far."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._complete: set[int] = set()

    def check(self, round: Round) -> None:
        """Check that a round may be run.

        Raises:
            PlanError: If the round breaks R2 or R3.
        """
        setting = self._setting
        if not isinstance(round, Round):
            raise PlanError(f"R2: the rollout policy's next round is {brief(round)}, which is no Round")
        if (round.wanted, round.needed) != (setting.prompts, setting.responses):
            does = f"{round.wanted} prompts with {round.needed} responses each"
            raise PlanError(f"R2: a round of {does}, where an iteration trains on {setting.prompts} with {setting.responses}")
        numbers = (*round.prompts, round.responses)
        if wrong := [number for number in numbers if not is_whole(number, bits=32)]:
            raise PlanError(f"R2: a round has {brief(wrong[0])}, which is no whole number")
        prompts = set(round.prompts)
        if len(prompts) < max(len(round.prompts), round.wanted) or round.responses < round.needed:
            launched = f"{len(prompts)} different prompts of {len(round.prompts)} with {round.responses} responses each"
            raise PlanError(f"R2: a round launches {launched}, and wants {round.wanted} with {round.needed}")
        if again := prompts & self._complete:
            raise PlanError(f"R3: a round launches prompt {min(again)}, which was complete before")
        last = len(self._complete) + AHEAD * setting.prompts
        if beyond := [prompt for prompt in prompts if not 0 <= prompt < last]:
            done = f"{len(self._complete)} prompts were complete"
            raise PlanError(f"R3: a round launches prompt {beyond[0]}, though {done}: one of 0 to {last - 1} is next")

    def done(self, complete: Iterable[int]) -> None:
        """Record the complete prompts of the round."""
        self._complete |= {*complete}


def check_wake(wake: Wake, fleet: Fleet, setting: Setting) -> Wake:
    """Return a control's answer if it is valid.

    Raises:
        PlanError: If the answer breaks R4 or the responses are on too many GPUs (R6).
    """
    if not isinstance(wake, Wake):
        raise PlanError(f"R4: the rollout policy's control returned {brief(wake)}, which is no Wake")
    if not (wake.finished is None or is_whole(wake.finished, bits=64)) or not is_number(wake.at_s):
        raise PlanError(f"R4: the rollout policy's control returned {brief(wake)}, which is no number of responses and no time")
    if fleet.gpus.size * fleet.gpus[0] > setting.gpus:  # replicas were added
        gpus = int(fleet.gpus[np.unique(fleet.replica[fleet.open])].sum())
        if gpus > setting.gpus:
            raise PlanError(f"R6: responses are on replicas of {gpus} GPUs in all, and the job has {setting.gpus}")
    return wake
