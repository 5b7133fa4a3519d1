"""Lookahead: evaluation of every choice of a decision by executing it in a copy of the stream.

A base policy plays the rest of the stream, with the same jobs after every choice. This is the evaluation step of policy iteration
(rollouts: Bertsekas, Tsitsiklis and Wu 1997). Acting greedily on it, averaged over futures, is at least as good as the base policy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.placement.scorer import random_weights
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.step import step_all
from rollmux_env.envs.placement.types import CONSOLIDATE, OVER, Rules, Streams
from rollmux_env.kernel.compiled import compiled
from rollmux_env.kernel.feature_tables import Observations, Workspace
from rollmux_env.kernel.neighbourhood.table import Scratch
from rollmux_env.kernel.pools import own_usd
from rollmux_env.kernel.tables import Floats, Limits, Records
from rollmux_env.kernel.valuation import iterations_done

Array = NDArray[np.float32]


class Net(NamedTuple):
    """Base policy: the weights of a `trainers.network.Scorer`, transposed for row vectors.

    Attributes:
        learned: Whether to use the network. Otherwise the base policy is Algorithm 1 of the RollMux paper without pruning.
        enter: Weights from the features of job and cluster to the first context.
        enter_bias: Biases of the first context.
        rows: Weights from the rows to those of the next layer, by layer.
        biases: Biases of the rows, by layer.
        contexts: Weights from the context to the rows, by layer.
        pools: Weights from the pooled rows to the next context, by layer.
        pool_biases: Biases of the next context, by layer.
        score: Weights from the last layer's rows to the score.
        skip: Weights from the features of a row directly to its score.
    """

    learned: bool
    enter: Array
    enter_bias: Array
    rows: tuple[Array, ...]
    biases: tuple[Array, ...]
    contexts: tuple[Array, ...]
    pools: tuple[Array, ...]
    pool_biases: tuple[Array, ...]
    score: Array
    skip: Array


def net_of(weights: dict[str, Array], columns: int, learned: bool) -> Net:
    """Convert the weights of a policy file to a `Net` that reads only the first `columns` features of each row.

    The features left out, those of shapes, count as 0.
    """

    def of_layers(name: str) -> tuple[Array, ...]:
        layers = sum(key.startswith("context.") for key in weights)
        return tuple(np.ascontiguousarray(weights[name.format(k)].T) for k in range(layers))

    first, *rows = of_layers("row.{}.weight")
    return Net(
        learned,
        np.ascontiguousarray(weights["enter.weight"].T),
        weights["enter.bias"],
        (first[:columns], *rows),
        of_layers("row.{}.bias"),
        of_layers("context.{}.weight"),
        of_layers("pool.{}.weight"),
        of_layers("pool.{}.bias"),
        np.ascontiguousarray(weights["score.weight"][0]),
        np.ascontiguousarray(weights["skip.weight"][0, :columns]),
    )


@compiled
def best_row(net: Net, job: Array, candidates: Array, cluster: Array, mask: NDArray[np.int8], rows: Array) -> int:
    """Return the choice with the highest logit. Ties go to the first row.

    Args:
        net: The network.
        job: Features of the job, shape (Fj,).
        candidates: Features of the rows, shape (A, Fc).
        cluster: Features of the cluster, shape (Fk,).
        mask: 1 for rows that may be chosen, shape (A,).
        rows: Scratch, shape (A, Fc).
    """
    at = np.flatnonzero(mask)
    n = len(at)
    if n == 1:
        return int(at[0])
    for k in range(n):
        rows[k] = candidates[at[k]]
    context = np.maximum(np.dot(np.concatenate((job, cluster)), net.enter) + net.enter_bias, np.float32(0))
    layer = rows[:n]
    for k in range(len(net.rows)):
        layer = np.dot(layer, net.rows[k])
        shift = np.dot(context, net.contexts[k]) + net.biases[k]
        c, width = len(context), len(shift)
        pooled = np.zeros(c + 2 * width, np.float32)
        pooled[:c] = context
        for i in range(n):
            for j in range(width):
                x = max(layer[i, j] + shift[j], np.float32(0))
                layer[i, j] = x
                pooled[c + j] += x
                pooled[c + width + j] = max(pooled[c + width + j], x)
        for j in range(width):
            pooled[c + j] /= np.float32(n)
        if k < len(net.rows) - 1:
            context = np.maximum(np.dot(pooled, net.pools[k]) + net.pool_biases[k], np.float32(0))
    best = 0
    highest = -np.inf
    for i in range(n):
        total = np.dot(rows[i], net.skip)
        for j in range(len(net.score)):
            total += layer[i, j] * net.score[j]
        if total > highest:
            highest = total
            best = i
    return int(at[best])


@compiled
def cheapest_row(choices: Records, count: int) -> int:
    """Return Algorithm 1's choice without pruning. Ties go to the oldest group and the fewest nodes."""
    best = 0
    usd = np.inf
    for k in range(1, count + 1):
        row = k % count  # choice 0, a new group, comes last
        if choices[row].allowed == 1 and choices[row].usd < usd:
            best = row
            usd = choices[row].usd
    return best


@compiled
def work_so_far(streams: Streams, s: int, limits: Limits, out: Floats) -> None:
    """Write the work of all jobs so far: hours of T_solo, and these hours times the price of the job's own nodes in $.

    Jobs that have left count too, because their `done` stays in the table.
    """
    c = streams.clock[s]
    jobs, groups = streams.jobs[s], streams.groups[s]
    out[0] = out[1] = 0.0
    for job in range(c.admitted):
        done = iterations_done(jobs, groups, job, c.now_s) if jobs[job].group >= 0 else jobs[job].done
        hours = done * jobs[job].solo_s / 3600.0
        out[0] += hours
        written = jobs[job] if jobs[job].more_shapes == 0 else jobs[jobs[job].first_shape]  # shape 0, whichever shape runs
        out[1] += hours * own_usd(written, limits)


@compiled
def copy_stream(streams: Streams, s: int, to: Streams, t: int) -> None:
    """Copy stream s to stream t of `to`, except the rows of shapes, which never change."""
    c = streams.clock[s]
    to.clock[t] = c
    to.nodes[t] = streams.nodes[s]
    for job in range(c.n_jobs):
        to.jobs[t, job] = streams.jobs[s, job]
    for k in range(len(streams.order[s])):
        to.order[t, k] = streams.order[s, k]
        to.spare[t, k] = streams.spare[s, k]
    for k in range(c.n_groups):
        to.groups[t, streams.order[s, k]] = streams.groups[s, streams.order[s, k]]
    for k in range(c.n_reservations):
        to.reservations[t, k] = streams.reservations[s, k]


@compiled
def choose(net: Net, streams: Streams, s: int, choices: Records, observations: Observations, rows: Array) -> int:
    """Return the base policy's choice in stream s: the network's, or Algorithm 1's without pruning, which never moves a job."""
    c = streams.clock[s]
    if net.learned:
        return best_row(net, observations.job[s], observations.candidates[s], observations.cluster[s], observations.mask[s], rows)
    return 0 if c.asks == CONSOLIDATE else cheapest_row(choices[s], c.choices)


class Copy(NamedTuple):
    """Scratch space for one stream.

    Attributes:
        streams: The stream.
        choices: Possible choices in the stream.
        workspace: Scratch of the candidate table.
        scratch: Scratch of the search for moves, or None.
        observations: Observations of the stream.
        nothing: A table without streams, in place of a reference.
    """

    streams: Streams
    choices: Records
    workspace: Workspace
    scratch: Scratch | None
    observations: Observations
    nothing: Streams


@compiled
def look_ahead(
    streams: Streams, s: int, rules: Rules, choices: Records, net: Net, horizon_h: float, copy: Copy, out: Floats
) -> None:
    """Play every choice of stream s, and continue with the base policy for 2.5 horizons.

    Args:
        streams: Streams of the environment.
        s: Number of the stream.
        rules: Rules of the environment.
        choices: Possible choices of all streams.
        net: Base policy.
        horizon_h: Time constant of the discount exp(-t / horizon) of dollars and work, in hours.
        copy: Scratch space for one stream.
        out: Result for each choice, shape (A, 3): dollars, work in hours of T_solo, and work in dollars of the jobs' own nodes. NaN
            for choices that are not allowed.
    """
    actions = np.zeros(1, np.int64)
    rows = np.empty_like(copy.observations.candidates[0])
    before, after = np.zeros(2), np.zeros(2)
    from_s = streams.clock[s].now_s
    for k in range(len(out)):
        if k >= streams.clock[s].choices or choices[s, k].allowed == 0:
            out[k] = np.nan
            continue
        out[k] = 0.0
        copy_stream(streams, s, copy.streams, 0)
        for j in range(len(out)):
            copy.choices[0, j] = choices[s, j]
        work_so_far(copy.streams, 0, rules.limits, before)
        actions[0] = k
        c = copy.streams.clock[0]
        while True:
            began_h = (c.now_s - from_s) / 3600.0
            step_all(copy.streams, actions, rules, copy.choices, copy.workspace, copy.scratch, copy.observations, copy.nothing)
            hours = c.hours
            work_so_far(copy.streams, 0, rules.limits, after)
            weight = np.exp(-(began_h + hours / 2.0) / horizon_h)
            out[k, 0] += weight * c.spent_usd
            out[k, 1] += weight * (after[0] - before[0])
            out[k, 2] += weight * (after[1] - before[1])
            before[:] = after
            if c.asks == OVER or began_h + hours > 2.5 * horizon_h:
                break
            actions[0] = choose(net, copy.streams, 0, copy.choices, copy.observations, rows)


class Player:
    """Chooses in an environment with the base policy, and looks ahead in its first stream.

    Args:
        env: Environment without autoreset.
        weights: Weights of a policy file, or None for Algorithm 1 without pruning.
    """

    def __init__(self, env: PlacementVectorEnv, weights: dict[str, Array] | None) -> None:
        space = env.single_observation_space
        job, row, cluster = (space[name].shape[-1] for name in ("job", "candidates", "cluster"))  # type: ignore[index]
        self._env = env
        self._net = net_of(weights or random_weights(job, row, cluster, (8, 8), 0), row, weights is not None)
        self._rows = np.zeros(space["candidates"].shape, dtype=np.float32)  # type: ignore[index]
        one = PlacementVectorEnv(1, env.generator, moves=env._rules.moves, candidates=len(self._rows))
        self._copy = Copy(one._streams, one._choices, one._workspace, one._scratch, one._observations, one._reference)

    def choose(self, s: int) -> int:
        """Return the base policy's choice in stream s."""
        env = self._env
        return choose(self._net, env._streams, s, env._choices, env._observations, self._rows)

    def look_ahead(self, horizon_h: float) -> Floats:
        """Evaluate the choices of the first stream, shape (A, 3), with the columns of the function `look_ahead`."""
        env = self._env
        out = np.zeros((len(self._rows), 3))
        jobs = len(env._streams.order[0])
        self._copy.streams.jobs[0, jobs:] = env._streams.jobs[0, jobs:]  # rows of the jobs' shapes, which `copy_stream` leaves out
        rules = env._rules._replace(prune=False)
        look_ahead(env._streams, 0, rules, env._choices, self._net, horizon_h, self._copy, out)
        return out
