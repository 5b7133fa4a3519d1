"""`production`: a stream with the statistics of the paper's production replay (RollMux, arXiv 2512.11306, section 6.4).

The published statistics: 200 jobs of thirteen types; stays lognormal with mu 2.90 and sigma 1.03 of hours, the longest 155 h;
arrivals in bursts of 2 to 8 jobs, gaps of mean 72 min, median 23 min and coefficient of variation 2.1, the last arrival at
238 h; about 15 jobs present on average, 38 at the peak. The laws here: stays lognormal as stated, conditioned on at most 155 h;
gaps exponential, of mean 25 min inside a burst and 262 min between bursts, burst sizes uniform, which gives those three
figures. That SLOs are uniform in (1, 2) is the paper's default for simulations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rollmux_env.keys.cluster import Cluster
from rollmux_env.portable import uniform
from rollmux_env.published import source
from rollmux_env.scenario import Scenario
from rollmux_env.workloads import draws
from rollmux_env.workloads.catalogue import PHASES_S, make_job, paper_cluster
from rollmux_env.workloads.draws import with_staleness
from rollmux_env.workloads.options import WorkloadOptions
from rollmux_env.workloads.shapes import with_shapes

_ROLLMUX = source("rollmux")
TYPE_COUNTS = {kind: count for kind, (count,) in _ROLLMUX.table("production_types", tuple[int])}
STAY_MU, STAY_SIGMA, LONGEST_STAY_H = _ROLLMUX.value("production_stays_h", tuple[float, float, float])
GAP_IN_BURST_MIN, GAP_BETWEEN_BURSTS_MIN = 25.0, 262.0
OPTIONS = frozenset(
    {
        "seed",
        "jobs",
        "stays",
        "slo",
        "max_group_size",
        "switches",
        "shapes",
        "asynchronous",
        "third_pool",
        "assumptions",
        "semantics",
    }
)


class ProductionDraws(NamedTuple):
    """The draws of (n,) jobs: types, arrivals and stays in seconds, SLOs."""

    kinds: list[str]
    arrivals_s: list[float]
    stays_s: list[float]
    slos: list[float]


def draw_production(options: WorkloadOptions) -> ProductionDraws:
    """The draws of `production`, without the jobs: learners need thousands of streams."""
    published = sum(TYPE_COUNTS.values())
    n = options.jobs or published
    seed = options.seed
    kinds = [kind for kind, count in TYPE_COUNTS.items() for _ in range(count)]
    u = uniform(seed, "types", n)
    drawn = np.argsort(u, kind="stable") if n == published else np.floor(published * u).astype(np.int64)
    arrivals_s = draws.times(60 * draws.burst_arrivals(seed, n, GAP_IN_BURST_MIN, GAP_BETWEEN_BURSTS_MIN))
    stays_h = draws.lognormal_up_to(uniform(seed, "stays", n), STAY_MU, STAY_SIGMA, LONGEST_STAY_H)
    slos = draws.slos(options, n, (1.1, 2.0) if options.semantics == "paper" else (1.0, 2.0))
    return ProductionDraws([kinds[k] for k in drawn.tolist()], arrivals_s, draws.seconds(3600 * stays_h), slos)


def production(options: WorkloadOptions) -> Scenario:
    """200 jobs with exactly the published counts of each type, shuffled; another number draws types in proportion.

    `semantics="paper"` is what it takes to come near the reported saving besides a planner that skips no saturated group:
    SLOs from U(1.1, 2) and half the training nodes for 32B jobs, one in place of two. Their phases keep their seconds, as in
    the paper's accounting.
    """
    drawn = draw_production(options)
    jobs = [
        make_job(
            kind,
            f"{kind}-{k:03d}",
            arrival_s=drawn.arrivals_s[k],
            slo=drawn.slos[k],
            with_switches=options.switches,
            training_nodes=1 if options.semantics == "paper" else None,
            **draws.stay(options, drawn.stays_s[k], sum(PHASES_S[kind][:2])),
        )
        for k, kind in enumerate(drawn.kinds)
    ]
    jobs = [with_shapes(job, options) for job in with_staleness(jobs, drawn.stays_s, options)]
    return Scenario(version=1, cluster=production_cluster(options), jobs=tuple(jobs))


def production_cluster(options: WorkloadOptions) -> Cluster:
    """The paper's cluster, and the third pool where there is one."""
    third = options.assumed.third_pool
    return paper_cluster(options.max_group_size, {third.name: third.pool} if options.third_pool else None)
