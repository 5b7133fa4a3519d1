"""`production`: a stream of jobs with the statistics of the paper's production replay (RollMux, arXiv 2512.11306, section 6.4).

Published statistics: 200 jobs of thirteen types; stays lognormal in hours with mu 2.90 and sigma 1.03, the longest 155 h; arrivals
in bursts of 2 to 8 jobs, gaps of mean 72 min, median 23 min and coefficient of variation 2.1, the last arrival at 238 h; about 15
jobs present on average, 38 at the peak. Distributions used here: stays lognormal as stated, conditioned on at most 155 h;
exponential gaps of mean 25 min inside a burst and 262 min between bursts, with uniform burst sizes, which reproduce the three
figures of the gaps. SLOs uniform in (1, 2) are the paper's default for simulations.
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
from rollmux_env.workloads.options import STREAM_OPTIONS, STRUCTURE_OPTIONS, WorkloadOptions
from rollmux_env.workloads.shapes import with_shapes
from rollmux_env.workloads.structure import in_order_of_traits, with_labels

_ROLLMUX = source("rollmux")
TYPE_COUNTS = {kind: count for kind, (count,) in _ROLLMUX.table("production_types", tuple[int])}
STAY_MU, STAY_SIGMA, LONGEST_STAY_H = _ROLLMUX.value("production_stays_h", tuple[float, float, float])
GAP_IN_BURST_MIN, GAP_BETWEEN_BURSTS_MIN = 25.0, 262.0
OPTIONS = STREAM_OPTIONS | STRUCTURE_OPTIONS | {"switches", "shapes", "third_pool", "semantics"}


class ProductionDraws(NamedTuple):
    """The draws of n jobs.

    Attributes:
        kinds: Type of each job.
        arrivals_s: Arrival of each job, in seconds.
        stays_s: Stay of each job, in seconds.
        slos: SLO of each job.
    """

    kinds: list[str]
    arrivals_s: list[float]
    stays_s: list[float]
    slos: list[float]


def draw_production(options: WorkloadOptions) -> ProductionDraws:
    """Return the draws of `production` without building jobs, since learners need thousands of streams."""
    published = sum(TYPE_COUNTS.values())
    n = options.jobs or published
    seed = options.seed
    kinds = [kind for kind, count in TYPE_COUNTS.items() for _ in range(count)]
    u = uniform(seed, "types", n)
    drawn = np.argsort(u, kind="stable") if n == published else np.floor(published * u).astype(np.int64)
    kinds = [kinds[k] for k in drawn.tolist()]
    bursts = draws.burst_arrivals(seed, n, GAP_IN_BURST_MIN, GAP_BETWEEN_BURSTS_MIN)
    arrivals_s = draws.times(draws.at_pace(options, 60 * bursts))
    any_stays_h = draws.lognormal_up_to(uniform(seed, "stays", n), STAY_MU, STAY_SIGMA, LONGEST_STAY_H)
    stays_h = in_order_of_traits(options, any_stays_h, arrivals_s, [sum(PHASES_S[kind][:2]) for kind in kinds])
    slos = draws.slos(options, n, (1.1, 2.0) if options.semantics == "paper" else (1.0, 2.0))
    return ProductionDraws(kinds, arrivals_s, draws.seconds(3600 * stays_h), slos)


def production(options: WorkloadOptions) -> Scenario:
    """Return 200 jobs with exactly the published counts of each type, shuffled.

    For another number of jobs the types are drawn in proportion to these counts.

    `semantics="paper"` gives what the reported saving needs in addition to a planner that skips no saturated group: SLOs from
    U(1.1, 2) and one training node instead of two for 32B jobs. Their phases keep their seconds, as in the paper's accounting.
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
    return Scenario(version=1, cluster=production_cluster(options), jobs=with_labels(jobs, options))


def production_cluster(options: WorkloadOptions) -> Cluster:
    """Return the paper's cluster, with the third pool if the options ask for it."""
    third = options.assumed.third_pool
    return paper_cluster(options.max_group_size, {third.name: third.pool} if options.third_pool else None)
