"""`solo,lend=true`: a job alone that fills its own bubbles, as people have it today without sharing.

While a job rolls out, its training nodes have nothing to do, so they sample responses too (verl #7373, `enable_switch` of its
`separate_async` trainer). How fast they are says the job's `colocated` block; without one, as fast as its rollout nodes. Work is
divided without loss and nobody waits for a tail, so this is the best that lending can do.
"""

from __future__ import annotations

from policies.placement.baselines import Solo
from rollmux_env.keys.job import Job
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import Outcome, outcome
from rollmux_env.scenario import Scenario


def make_solo(lend: bool = False) -> Solo | LendingSolo:
    """The policy `solo`.

    Args:
        lend: training nodes sample while they have nothing to train.

    Raises:
        ValueError: `lend` is neither true nor false.
    """
    if not isinstance(lend, bool):
        raise ValueError(f"lend: must be true or false, not {lend!r}")
    return LendingSolo() if lend else Solo()


class LendingSolo:
    """Every job on its own nodes, of which those for training are lent to its rollouts."""

    def replay(self, scenario: Scenario, check: bool = False) -> Outcome:
        """Replay a scenario and measure it: T_solo stays that of a job that lends nothing."""
        lent = tuple(with_lent_nodes(job) for job in scenario.jobs)
        run = replay(scenario.model_copy(update={"jobs": lent}), Solo(), check)
        run.scenario = scenario
        return outcome(run)


def with_lent_nodes(job: Job) -> Job:
    """The job with the rollout seconds that it has with its training nodes' help, if they help at all.

    A rollout takes R alone and C on the training nodes, which come a warm start of the rollout late, and train a warm start of the
    training late. The rollout then takes x with x / R + (x - away) / C = 1. Where the job is stale they sample outside their own
    training, and x is the time of an iteration.
    """
    rollout, training = job.rollout, job.training
    helped_s = rollout.worst_case_s
    if job.colocated is not None:
        helped_s = job.colocated.rollout_s * job.colocated.nodes / training.nodes
    there_s, back_s = rollout.switch.warm_s, training.switch.warm_s
    away_s = there_s + (training.worst_case_s + back_s if job.staleness else 0.0)
    together_s = (1 + away_s / helped_s) / (1 / rollout.worst_case_s + 1 / helped_s) + (0.0 if job.staleness else back_s)
    if together_s >= rollout.worst_case_s:
        return job
    return job.model_copy(update={"rollout": rollout.model_copy(update={"worst_case_s": together_s})})
