"""`micro-*`: small cases from figures of RollMux (as Weave at OSDI '26), with the jobs of its Table 3.

`micro-temporal`, `micro-rollout-heavy` and `micro-spatial` are the three cases of Table 4 and Figure 10. `micro-contention` is the
case of Figure 3: a 4B-8k and an 8B-8k job whose rollouts share a node, with the catalogue's seconds.

The paper prints the jobs A to E (Table 3), each case's solo iteration (257.7, 525.4 and 574.6 s) and RollMux's (261.8, 552.0 and
630.8 s), T_roll of about 2.5 T_train for D and 6 T_train for E, and the placements: A and A on one node of each pool; D, D and E on
three rollout nodes and one training node; C on two nodes of each pool, with each D on one of the rollout nodes and both training
nodes. It does not print the phase times. They are derived here, with a case's solo iteration taken as that of its longest job:

- A: 130.9 + 126.8 s, the one split with which two such jobs in strict round robin have the printed period of 261.8 s
- B: the catalogue's 14B-8k (no case uses it)
- C: the catalogue's 32B-8k scaled to 574.6 s
- D: the catalogue's 8B-8k (ratio 2.57); its training on two nodes takes half as long
- E: 525.4 s in the ratio 6 to 1

In the last two cases the model's period is the solo iteration. What the paper measured above it (5.1% and 9.8%) is overhead of
execution, which these files hold only as switches, which event replays can add. With an SLO of 1.35 for all jobs, Algorithm 1 finds
the placements of Figure 10.
"""

from __future__ import annotations

from typing import NamedTuple

from rollmux_env.keys.job import Job
from rollmux_env.published import source
from rollmux_env.scenario import Scenario
from rollmux_env.workloads.catalogue import make_job, paper_cluster, phases
from rollmux_env.workloads.options import WorkloadOptions

SLO = 1.35
ITERATIONS = 100
OPTIONS = frozenset({"max_group_size", "switches"})


class MicroJob(NamedTuple):
    """A job of Table 3.

    Attributes:
        billions: Parameters of the model, in billions.
        nodes: Number of nodes of each pool.
        rollout_s: Seconds of the rollout.
        training_s: Seconds of the training.
        on_two_nodes_s: Seconds of the training on two nodes, or None if it is not defined.
    """

    billions: int
    nodes: int
    rollout_s: float
    training_s: float
    on_two_nodes_s: float | None


JOBS = dict(source("rollmux").table("micro_jobs", MicroJob))
CASES = {"micro-temporal": "AA", "micro-rollout-heavy": "DDE", "micro-spatial": "CDD"}
CONTENTION, CONTENDERS = "micro-contention", ("4B-8k", "8B-8k")
NAMES = (*CASES, CONTENTION)


def micro_workload(name: str, options: WorkloadOptions) -> Scenario:
    """Return the jobs of a case, with 100 iterations each.

    The jobs of Table 4 arrive one second apart. Those of Figure 3 arrive together, with an SLO that allows both rollouts on one
    node.

    Args:
        name: Name of the case, one of `NAMES`.
        options: Options of the workload.
    """
    if name == CONTENTION:
        jobs = tuple(make_job(kind, kind, slo=2.0, iterations=ITERATIONS, with_switches=options.switches) for kind in CONTENDERS)
    else:
        jobs = tuple(micro_job(letter, k, options) for k, letter in enumerate(CASES[name]))
    return Scenario(version=1, cluster=paper_cluster(options.max_group_size), jobs=jobs)


def micro_job(letter: str, k: int, options: WorkloadOptions) -> Job:
    """Return one of the jobs A to E of Table 3 as the k-th arrival of a case."""
    micro = JOBS[letter]
    by_nodes = {} if micro.on_two_nodes_s is None else {2: micro.on_two_nodes_s}
    seconds = micro.rollout_s, micro.training_s
    both = phases(micro.billions, seconds, options.switches, micro.nodes, micro.nodes, by_nodes)
    return Job(id=f"{letter}-{k}", arrival_s=float(k), iterations=ITERATIONS, slo=SLO, **both)
