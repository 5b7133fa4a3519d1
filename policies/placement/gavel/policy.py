"""`gavel`, the paper's baseline Gavel+: Gavel's linear program at job granularity, solved at every arrival and departure.

Gavel (Narayanan et al., OSDI 2020) assigns every job a fraction of time on every accelerator type with a linear program
over the jobs' throughputs. It realises the fractions in rounds, in which a job holds all its workers exclusively.
Gavel+ (RollMux, arXiv 2512.11306, section 6) applies this at job granularity to both pools and never interleaves phases
of different jobs.

Our adaptation (docs/reference/gavel.md has the reasons): a resource type is a worker set. It is either rollout and training
nodes, where a job runs as it would alone, or training nodes only, where it runs both phases in turn. The program buys
whole worker sets at the least $/h such that every job keeps its SLO on average over its rounds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from policies.placement.gavel.sharing import SharingJobs
from rollmux_env.errors import InputError
from rollmux_env.keys.network import refuse_network
from rollmux_env.keys.queue import refuse_queue_keys
from rollmux_env.replay.metrics import Outcome
from rollmux_env.replay.yardstick import replay_yardstick
from rollmux_env.scenario import Scenario


class Gavel:
    """Gavel+: jobs take turns on worker sets, a round at a time; the fractions are the cheapest that keep every SLO.

    For `bench` only: jobs change worker sets for free, and rounds are infinitely short compared with a stay.

    Args:
        training_slowdown: how many times longer training takes on a rollout node than on a training node; it makes rollout nodes
            alone a third resource type. The paper's hardware: 989.5 / 148 = 6.69, by bf16 TFLOPS. None: they do not train, since
            a scenario file does not say how fast they would.
    """

    def __init__(self, training_slowdown: float | None = None) -> None:
        number = isinstance(training_slowdown, int | float) and not isinstance(training_slowdown, bool)
        if training_slowdown is not None and not (number and 0 < training_slowdown < np.inf):
            raise InputError(f"training_slowdown: must be a number above 0, not {training_slowdown!r}")
        self.training_slowdown = training_slowdown

    def replay(self, scenario: Scenario, check: bool = False) -> Outcome:
        """Replay a scenario: between events each job progresses at the speed that its fractions give it.

        Nothing is paid for turns or for another set after an event, so `migrations` is 0. A job admitted to worker sets of its own
        counts as `isolated`, else as `direct_packing`. `decision_s` has one entry an instant. `extra` holds `relaxed_usd`, what
        worker sets in fractions would have cost, and the shares of the jobs' running time on training nodes alone
        (`colocated_share`) and on sets with other jobs (`shared_share`).

        Args:
            check: assert after every instant that time, memory and pools suffice and all SLOs are kept.

        Raises:
            InputError: the scenario's cluster is `one_device` or has a `network`, or it has keys of the queue.
            PlanError: the solver finds no place for the first job of the queue on an empty cluster.
        """
        if scenario.cluster.one_device:
            raise InputError("--policy gavel: needs two pools; the cluster is one_device")
        refuse_network(scenario.cluster, "--policy gavel")
        refuse_queue_keys(scenario.cluster, scenario.jobs, "--policy gavel")
        active = SharingJobs(scenario, self.training_slowdown)
        outcome = replay_yardstick(scenario, active, check)
        extra = {
            "relaxed_usd": active.relaxed_usd,
            "colocated_share": active.alone_s / active.held_s,
            "shared_share": active.shared_s / active.held_s,
        }
        return replace(outcome, extra=extra)
