"""What a learner sees of a decision: of one of many streams, or of a candidate table."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.kernel.candidates import ANY_NODES
from rollmux_env.kernel.choices import Rules
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.features import N_PARTS, Out, candidate_features, cluster_features, job_features, shared_features
from rollmux_env.kernel.stream import ADMIT, CONSOLIDATE, NO_JOB, Records, Streams
from rollmux_env.kernel.tables import Floats, Ints, Limits


class Seen(NamedTuple):
    """What a learner sees: (E, ...) numbers as `rollmux_env.kernel.features` defines them, and the mask."""

    job: NDArray[np.float32]
    candidates: NDArray[np.float32]
    cluster: NDArray[np.float32]
    mask: NDArray[np.int8]


@compiled
def look(
    streams: Streams,
    s: int,
    jobs: Records,
    groups: Records,
    limits: Limits,
    rules: Rules,
    choices: Records,
    parts: Floats,
    seen: Seen,
) -> None:
    """Write what a learner sees."""
    c = streams.clock[s]
    count = c.choices
    consolidate = c.asks == CONSOLIDATE
    stay_s = 0.0
    if c.asks == ADMIT:
        job = c.admitted
        if rules.known_stays:
            stay_s = min(jobs.duration_s[job], jobs.iterations[job] * jobs.solo_s[job])
        job_features(jobs, limits, job, stay_s, seen.job[s])
    else:
        seen.job[s] = 0.0
    order = streams.order[s, : c.n_groups]
    waiting = c.taken - c.admitted
    first_s = jobs.arrival_s[0]
    nodes = c.rollout_nodes, c.training_nodes
    cluster_features(jobs, groups, order, limits, c.now_s, first_s, nodes[0], nodes[1], waiting, consolidate, seen.cluster[s])
    out = seen.candidates[s]
    shared = -1  # row that has what the present job and group have in common
    for k in range(count):
        choice = choices[k]
        seen.mask[s, k] = choice.allowed
        if choice.job == NO_JOB:
            out[k] = 0.0
            out[k, 0] = 1.0
            continue
        if shared < 0 or choices[shared].group != choice.group or choices[shared].job != choice.job:
            shared = k
            known = rules.known_stays
            shared_features(jobs, groups, limits, c.now_s, known, stay_s, choice.job, choice.group, choice.saving, parts)
        nodes, usd = choices.nodes[k], choice.usd - choice.saving
        candidate_features(
            jobs, groups, limits, choice.job, choice.group, choice.new_nodes, nodes, usd, choice.period_s, parts, out[k]
        )
    out[count:] = 0.0
    seen.mask[s, count:] = 0
    if count == 0:
        seen.mask[s, 0] = 1  # nothing is decided any more; a masked draw still needs something to draw


@compiled
def features_of_table(
    jobs: Records,
    groups: Records,
    order: Ints,
    limits: Limits,
    now_s: float,
    first_s: float,
    rollout_nodes: int,
    training_nodes: int,
    waiting: int,
    known_stays: bool,
    stay_s: float,
    job: int,
    group: Ints,
    new_nodes: Ints,
    nodes: Ints,
    usd: Floats,
    period_s: Floats,
    job_out: Out,
    candidates_out: Out,
    cluster_out: Out,
) -> None:
    """Write the features of a waiting job's whole candidate table; arguments as in `rollmux_env.kernel.features`."""
    job_features(jobs, limits, job, stay_s, job_out)
    cluster_features(jobs, groups, order, limits, now_s, first_s, rollout_nodes, training_nodes, waiting, False, cluster_out)
    parts = np.empty(N_PARTS)
    for k in range(group.shape[0]):
        if new_nodes[k] != ANY_NODES:
            shared_features(jobs, groups, limits, now_s, known_stays, stay_s, job, group[k], 0.0, parts)
            candidate_features(
                jobs, groups, limits, job, group[k], new_nodes[k], nodes[k], usd[k], period_s[k], parts, candidates_out[k]
            )
