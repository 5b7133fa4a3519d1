"""Lookahead: the consequences of every choice of a decision, by executing it in a copy of the stream.

A base policy plays the rest of the stream, with the same jobs after every choice. This is the evaluation step of policy
iteration (rollouts: Bertsekas, Tsitsiklis and Wu 1997). Acting greedily on it, on average over futures, is at least as
good as the base policy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.placement.scorer import random_weights
from rollmux_env.envs.placement.actions import choice_table
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.observation import feature_names
from rollmux_env.envs.placement.step import step_all
from rollmux_env.envs.placement.stream import streams_for
from rollmux_env.envs.placement.types import CONSOLIDATE, OVER, Rules, Streams
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.feature_tables import Observations, Workspace, make_workspace, observation_table
from rollmux_env.kernel.neighbourhood.table import Scratch, make_scratch
from rollmux_env.kernel.pools import own_usd
from rollmux_env.kernel.tables import Floats, Limits, Records

Array = NDArray[np.float32]


class Net(NamedTuple):
    """Weights of a two-layer `Scorer`, transposed for row vectors: what the compiled base policy scores with."""

    enter: Array
    enter_bias: Array
    row_1: Array
    bias_1: Array
    context_1: Array
    pool_1: Array
    pool_bias_1: Array
    row_2: Array
    bias_2: Array
    context_2: Array
    score: Array
    skip: Array


def net_of(weights: dict[str, Array], columns: int) -> Net:
    """The weights of a policy file, for rows of which only the first columns are shown: the others, those of shapes, are 0."""

    def turned(name: str) -> Array:
        return np.ascontiguousarray(weights[name].T)

    return Net(
        turned("enter.weight"),
        weights["enter.bias"],
        turned("row.0.weight")[:columns],
        weights["row.0.bias"],
        turned("context.0.weight"),
        turned("pool.0.weight"),
        weights["pool.0.bias"],
        turned("row.1.weight"),
        weights["row.1.bias"],
        turned("context.1.weight"),
        np.ascontiguousarray(weights["score.weight"][0]),
        np.ascontiguousarray(weights["skip.weight"][0, :columns]),
    )


@compiled
def best_row(net: Net, job: Array, candidates: Array, cluster: Array, mask: NDArray[np.int8], rows: Array) -> int:
    """The choice with the highest logit, the first of equal ones.

    Args:
        job: (Fj,), candidates: (A, Fc), cluster: (Fk,), mask: (A,) as in an observation. rows: (A, Fc) scratch.
    """
    n = 0
    at = np.empty(mask.shape[0], np.int64)
    for k in range(mask.shape[0]):
        if mask[k] == 1:
            rows[n] = candidates[k]
            at[n] = k
            n += 1
    if n == 1:
        return int(at[0])
    known = np.concatenate((job, cluster))
    context = np.maximum(np.dot(known, net.enter) + net.enter_bias, np.float32(0))
    layer = np.dot(rows[:n], net.row_1)
    shift = np.dot(context, net.context_1) + net.bias_1
    width = shift.shape[0]
    pooled = np.zeros(context.shape[0] + 2 * width, np.float32)
    c = context.shape[0]
    pooled[:c] = context
    for i in range(n):
        for j in range(width):
            x = max(layer[i, j] + shift[j], np.float32(0))
            layer[i, j] = x
            pooled[c + j] += x
            pooled[c + width + j] = max(pooled[c + width + j], x)
    for j in range(width):
        pooled[c + j] /= np.float32(n)
    context = np.maximum(np.dot(pooled, net.pool_1) + net.pool_bias_1, np.float32(0))
    layer = np.dot(layer, net.row_2)
    shift = np.dot(context, net.context_2) + net.bias_2
    best = 0
    highest = -np.inf
    for i in range(n):
        total = np.dot(rows[i], net.skip)
        for j in range(shift.shape[0]):
            total += max(layer[i, j] + shift[j], np.float32(0)) * net.score[j]
        if total > highest:
            highest = total
            best = i
    return int(at[best])


@compiled
def cheapest_row(choices: Records, count: int) -> int:
    """Algorithm 1's choice without pruning: ties to the oldest group and the fewest nodes."""
    best = 0
    usd = np.inf
    for k in range(1, count + 1):
        row = k % count  # a new group, choice 0, comes last
        if choices[row].allowed == 1 and choices[row].usd < usd:
            best = row
            usd = choices[row].usd
    return best


@compiled
def work_so_far(streams: Streams, s: int, limits: Limits, out: Floats) -> None:
    """Write the work of all jobs so far: hours of T_solo, and those hours times the price of the job's own nodes, $.

    Jobs that have left count too: their `done` stays in the table.
    """
    c = streams.clock[s]
    jobs, groups = streams.jobs[s], streams.groups[s]
    out[0] = out[1] = 0.0
    for job in range(c.admitted):
        done = jobs[job].done
        group = jobs[job].group
        if group >= 0:
            ran_s = max(0.0, c.now_s - max(groups[group].since_s, jobs[job].paused_until_s))
            done += ran_s / groups[group].period_s
        hours = done * jobs[job].solo_s / 3600.0
        out[0] += hours
        written = jobs[job] if jobs[job].more_shapes == 0 else jobs[jobs[job].first_shape]  # whichever shape it runs in
        out[1] += hours * own_usd(written, limits)


@compiled
def copy_stream(streams: Streams, s: int, to: Streams, t: int) -> None:
    """Make stream t of `to` the same as stream s; but for the rows of shapes, which stay as they are."""
    c = streams.clock[s]
    to.clock[t] = c
    to.nodes[t] = streams.nodes[s]
    for job in range(c.n_jobs):
        to.jobs[t, job] = streams.jobs[s, job]
    for k in range(streams.order.shape[1]):
        to.order[t, k] = streams.order[s, k]
        to.spare[t, k] = streams.spare[s, k]
    for k in range(c.n_groups):
        to.groups[t, streams.order[s, k]] = streams.groups[s, streams.order[s, k]]
    for k in range(c.n_reservations):
        to.reservations[t, k] = streams.reservations[s, k]


@compiled
def choose(net: Net, learned: bool, streams: Streams, s: int, choices: Records, observations: Observations, rows: Array) -> int:
    """The base policy's choice in stream s: the network's, or Algorithm 1's without pruning, which moves nothing."""
    c = streams.clock[s]
    if learned:
        return best_row(net, observations.job[s], observations.candidates[s], observations.cluster[s], observations.mask[s], rows)
    return 0 if c.asks == CONSOLIDATE else cheapest_row(choices[s], c.choices)


class Base(NamedTuple):
    """The base policy, and how far it plays.

    Attributes:
        net, learned: as in `choose`.
        horizons_h: (H,) dollars and work count exp(-t / horizon). last_h: play no further than so many hours.
    """

    net: Net
    learned: bool
    horizons_h: Floats
    last_h: float


class Copy(NamedTuple):
    """Scratch of one stream, and streams of none."""

    streams: Streams
    choices: Records
    workspace: Workspace
    scratch: Scratch | None
    observations: Observations
    nothing: Streams


@compiled
def look_ahead(
    streams: Streams, s: int, rules: Rules, choices: Records, wanted: NDArray[np.bool_], base: Base, copy: Copy, out: Floats
) -> None:
    """Play choices of stream s.

    Args:
        wanted: (A,) which, if they are allowed.
        out: (A, H, 3) dollars, work in hours of T_solo, and work in dollars of the jobs' own nodes; NaN of choices not played.
    """
    actions = np.zeros(1, np.int64)
    rows = np.empty(copy.observations.candidates.shape[1:], np.float32)
    before, after = np.zeros(2), np.zeros(2)
    from_s = streams.clock[s].now_s
    for k in range(choices.shape[1]):
        if k >= streams.clock[s].choices or not wanted[k] or choices[s, k].allowed == 0:
            out[k] = np.nan
            continue
        out[k] = 0.0
        copy_stream(streams, s, copy.streams, 0)
        for j in range(choices.shape[1]):
            copy.choices[0, j] = choices[s, j]
        work_so_far(copy.streams, 0, rules.limits, before)
        actions[0] = k
        c = copy.streams.clock[0]
        while True:
            began_h = (c.now_s - from_s) / 3600.0
            step_all(copy.streams, actions, rules, copy.choices, copy.workspace, copy.scratch, copy.observations, copy.nothing)
            hours = c.hours
            work_so_far(copy.streams, 0, rules.limits, after)
            for h in range(base.horizons_h.shape[0]):
                weight = np.exp(-(began_h + hours / 2.0) / base.horizons_h[h])
                out[k, h, 0] += weight * c.spent_usd
                out[k, h, 1] += weight * (after[0] - before[0])
                out[k, h, 2] += weight * (after[1] - before[1])
            before[:] = after
            if c.asks == OVER or began_h + hours > base.last_h:
                break
            actions[0] = choose(base.net, base.learned, copy.streams, 0, copy.choices, copy.observations, rows)


class Player:
    """Chooses in an environment as the base policy does, and looks ahead in its first stream.

    Args:
        env: an environment without autoreset.
        weights: of a policy file with two layers; None for Algorithm 1 without pruning.
    """

    def __init__(self, env: PlacementVectorEnv, weights: dict[str, Array] | None) -> None:
        space = env.single_observation_space
        job, row, cluster = (space[name].shape[-1] for name in ("job", "candidates", "cluster"))  # type: ignore[index]
        self._env = env
        self._net = net_of(weights or random_weights(job, row, cluster, (8, 8), 0), row)
        self._learned = weights is not None
        made = env.generator
        rows, moves = space["candidates"].shape[0], env._rules.moves  # type: ignore[index]
        streams, nothing = streams_for(made, 1), streams_for(made, 0)
        jobs, groups = streams.jobs[0], streams.groups[0]
        workspace, scratch = make_workspace(jobs, groups), make_scratch(jobs, groups, rows - 1) if moves else None
        self._copy = Copy(
            streams,
            choice_table(streams, rows),
            workspace,
            scratch,
            observation_table(1, rows, feature_names(moves, made.shapes > 0)),
            nothing,
        )
        self._rows = np.zeros(space["candidates"].shape, dtype=np.float32)  # type: ignore[index]

    def choose(self, s: int) -> int:
        """The base policy's choice in stream s."""
        env = self._env
        return choose(self._net, self._learned, env._streams, s, env._choices, env._observations, self._rows)

    def look_ahead(self, horizon_h: float) -> Floats:
        """(A, 3) of the choices in the first stream: dollars, and work in hours and in dollars, as in `look_ahead`."""
        env = self._env
        out = np.zeros((len(self._rows), 1, 3))
        wanted = np.ones(len(self._rows), dtype=np.bool_)
        jobs = env._streams.order.shape[1]
        self._copy.streams.jobs[0, jobs:] = env._streams.jobs[0, jobs:]  # shapes: they never change
        base = Base(self._net, self._learned, np.array([horizon_h]), 2.5 * horizon_h)
        look_ahead(env._streams, 0, env._rules._replace(prune=False), env._choices, wanted, base, self._copy, out)
        return out[:, 0]
