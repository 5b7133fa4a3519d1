"""`shapes`: what choosing the nodes of each job saves, by policy (beyond the paper, whose jobs have those that they ask for)."""

from __future__ import annotations

from functools import partial

from rollmux_env.bench.columns import COST, SAVING_PER_WORK, SLO_KEPT, WORK_OVER_OPTIMUM
from rollmux_env.bench.streams import workload
from rollmux_env.bench.suite import Case, Suite

JOBS = 30
POLICIES = ("solo", "gavel", "rollmux", "rollmux,prune=false", "consolidate", "optimal-work")

SUITE = Suite(
    name="shapes",
    title="Shapes: what choosing the nodes of each job saves",
    source="beyond the paper",
    cases=(
        Case("as written", partial(workload, "production", jobs=JOBS), POLICIES),
        Case("with shapes", partial(workload, "production", jobs=JOBS, shapes=True), POLICIES),
    ),
    columns=(COST, SAVING_PER_WORK, WORK_OVER_OPTIMUM, SLO_KEPT),
    differences=(
        "Jobs, stays and SLOs are the same in both cases, and T_solo is that of the job as it is written: dollars compare across "
        "them.",
        "A shape has half or twice the nodes of a phase, and a part of the phase does not scale: a quarter of a rollout, 15% of a "
        "training. So a job in another shape than its own mostly costs more by itself; what is saved is saved in groups.",
        "solo and gavel have no use for shapes: a job of its own, or a round on nodes for it, has those that it asks for.",
    ),
    seeds=3,
)
