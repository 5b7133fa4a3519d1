"""Policy search for placing jobs of several shapes, without moves, on common streams.

    python -m trainers.recipes.shaped_places --out DIR
    python -m trainers.recipes.shaped_places --start FILE --out DIR
    python -m trainers.recipes.shaped_places --unknown-stays --out DIR

Half of the streams also have asynchronous jobs and a third pool. Without a file to start from, a network is first fitted to the
value of each placement at the longest horizon, which the observation contains without noise. Then evolution strategies (Salimans et
al. 2017) change its last layer. In every step, pairs of opposite perturbations play the same streams, so that differences between
streams cancel. The reward is the difference of the logarithms of their dollars per work-hour. A stream takes a tenth of a second,
as long as the lookahead of a single decision.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from policies.placement.learned import Learned
from policies.placement.policy_file import PolicyConfig, Provenance, read_policy, write_policy
from policies.placement.scorer import score
from rollmux_env.bench.streams import workload
from rollmux_env.errors import InputError
from rollmux_env.kernel.features import CANDIDATE_FEATURES, CLUSTER_FEATURES, JOB_FEATURES, MOVE_FEATURES, SHAPE_FEATURES
from rollmux_env.kernel.tables import Floats
from rollmux_env.portable import FIRST_DRAWN_SEED
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.scenario import Scenario
from trainers.network import Scorer
from trainers.recipes.imitation import MAX_ROWS, WIDTHS, Example, fit, padded

Array = NDArray[np.float32]
Weights = dict[str, Array]

JOBS, STREAMS = 100, 16  # jobs of a stream; streams of the fit
SEARCHED, PAIRS = 4, 8  # streams and pairs of perturbations in a step of the search
EPOCHS, LEARNING_RATE, EXPLORATION = 40, 3e-3, 0.1
SHARPNESS = 5.0  # factor on the fitted values, so that the loss, which is linear above 1, resolves small differences
STEP, MOMENTUM = 0.21, 0.7  # of the search: length of a step, share of the previous direction
_LAST = ("score.weight", "skip.weight")
_NAMES = tuple(JOB_FEATURES), tuple(CANDIDATE_FEATURES + SHAPE_FEATURES), tuple(CLUSTER_FEATURES)
_FIRST_SHAPE = len(CANDIDATE_FEATURES + MOVE_FEATURES)
_COLUMNS = [*range(len(CANDIDATE_FEATURES)), *range(_FIRST_SHAPE, _FIRST_SHAPE + len(SHAPE_FEATURES))]


def stream(seed: int, fixed: bool, every: bool = False) -> Scenario:
    """Generate production jobs of several shapes. With `every`, half of them are asynchronous, and there are three pools."""
    stays, share = "fixed" if fixed else "iterations", 0.5 if every else 0.0
    return workload("production", seed, jobs=JOBS, shapes=True, stays=stays, asynchronous=share, third_pool=every)


def worth(rows: Array) -> Array:
    """Return the observed value of placements at the longest horizon, in prices of the job's own nodes, shape (R,)."""
    work, more = (rows[:, CANDIDATE_FEATURES.index(name)] for name in ("work_24h", "more_24h"))
    return np.asarray(work / (1 - np.minimum(np.abs(work), 0.9999)) - more / (1 - np.minimum(np.abs(more), 0.9999)))


class Scored(Learned):
    """Placement policy that places each job where a network scores highest, without moves.

    Attributes:
        tried: Weights of the network. They may be replaced between streams.
    """

    def __init__(self, tried: Weights, known_stays: bool) -> None:
        super().__init__(moves=False, known_stays=known_stays)
        self.tried = tried

    def _scores(self, job: Array, rows: Array, cluster: Array) -> Array:
        return score(self.tried, job, rows[:, _COLUMNS], cluster)

    def price(self, weights: Weights, scenario: Scenario) -> float:
        """Return the dollars per work-hour of a stream with these weights."""
        self.tried = weights
        return metrics(replay(scenario, self)).usd_per_work_hour


class Worth(Learned):
    """Placement policy that places each job where its value is highest, with some exploration, and records its decisions."""

    def __init__(self, rng: np.random.Generator, known_stays: bool) -> None:
        super().__init__(moves=False, known_stays=known_stays)
        self.examples: list[Example] = []
        self._rng = rng

    def _scores(self, job: Array, rows: Array, cluster: Array) -> Array:
        values = worth(rows)
        if len(rows) > 1:
            chosen = np.arange(len(rows))
            if len(rows) > MAX_ROWS:
                best, half = np.argsort(-values), MAX_ROWS // 2
                chosen = np.sort(np.concatenate([best[:half], self._rng.choice(best[half:], half, replace=False)]))
            wanted = np.clip(values[chosen], -6, 6) * SHARPNESS
            self.examples.append((job.copy(), rows[chosen][:, _COLUMNS], cluster.copy(), wanted))
        return self._rng.random(len(rows)).astype(np.float32) if self._rng.random() < EXPLORATION else values


def fitted(rng: np.random.Generator, streams: int, known_stays: bool) -> Weights:
    """Fit a network to the value of placements at the longest horizon, and return its weights."""
    examples: list[Example] = []
    for k, seed in enumerate(rng.integers(FIRST_DRAWN_SEED, 2**31, streams).tolist()):
        policy = Worth(rng, known_stays)
        replay(stream(seed, fixed=k % 4 == 3, every=k % 2 == 0), policy)
        examples += policy.examples
    network = Scorer(len(_NAMES[0]), len(_COLUMNS), len(_NAMES[2]), WIDTHS)
    fit(network, padded(examples), EPOCHS, LEARNING_RATE, 0)
    return network.weights()


def train(
    out: Path,
    seed: int,
    steps: int,
    seeds: Sequence[int],
    tell: Callable[[str], None],
    start: Path | None = None,
    known_stays: bool = True,
) -> None:
    """Fit a network or read a policy file, then search. Write a policy file to OUT after every improvement.

    An improvement is a lower ratio of dollars per work-hour to those at the start, mean over the streams of `seeds` of both kinds.
    The file is admission-shapes.safetensors, or admission-unknown-shapes.safetensors without known stays.

    Args:
        out: Existing folder for the file.
        seed: Seed of everything random.
        steps: Number of steps of the search.
        seeds: Seeds of the evaluation streams.
        tell: Function that receives a line after every evaluation.
        start: Policy file to start from, or None to fit a network first.
        known_stays: Whether the network reads when jobs will leave.

    Raises:
        InputError: The folder cannot be written, or the file's network reads other features.
    """
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    options = ["" if start is None else f" --start {start.name}", "" if known_stays else " --unknown-stays"]
    command = f"python -m trainers.recipes.shaped_places{''.join(options)}"
    file = out / f"admission-{'' if known_stays else 'unknown-'}shapes.safetensors"
    weights = fitted(rng, STREAMS, known_stays) if start is None else _read(start)
    tried = [stream(number, fixed=False, every=every) for number in seeds for every in (False, True)]
    last = np.concatenate([weights[name].ravel() for name in _LAST]).astype(np.float64)
    scale = np.concatenate([np.full(weights[name].size, 0.3 * np.abs(weights[name]).mean() + 0.02) for name in _LAST])
    direction, least, first = np.zeros(last.size), np.inf, np.ones(len(tried))
    price = Scored(weights, known_stays).price
    for step in range(steps + 1):
        if step % 4 == 0:
            usd = np.array([price(_replace_last_layer(weights, last), scenario) for scenario in tried])
            first = usd if step == 0 else first
            tell(f"step {step}, $/work-h {usd[::2].mean():.3f}, with all {usd[1::2].mean():.3f}")
            if (mean := float((usd / first).mean())) < least:
                least = mean
                provenance: Provenance = {"command": command, "seed": seed, "steps": step}
                write_policy(
                    file, PolicyConfig.of(_NAMES, WIDTHS, provenance, known_stays=known_stays), _replace_last_layer(weights, last)
                )
        gradient = _ascent(price, weights, last, scale, rng)
        direction = MOMENTUM * direction + (1 - MOMENTUM) * gradient / (np.linalg.norm(gradient) + 1e-9)
        last += STEP * scale * direction * np.sqrt(last.size)


def _ascent(
    price: Callable[[Weights, Scenario], float], weights: Weights, last: Floats, scale: Floats, rng: np.random.Generator
) -> Floats:
    """Estimate the direction of rising reward from pairs of opposite perturbations that play the same streams."""
    numbers = rng.integers(FIRST_DRAWN_SEED, 2**31, SEARCHED).tolist()
    scenarios = [stream(number, fixed=k == 3, every=k % 2 == 1) for k, number in enumerate(numbers)]
    gradient = np.zeros(last.size)
    for _ in range(PAIRS):
        noise = rng.standard_normal(last.size)
        there, back = (_replace_last_layer(weights, last + sign * scale * noise) for sign in (1, -1))
        gradient += np.mean([np.log(price(back, one)) - np.log(price(there, one)) for one in scenarios]) * noise
    return gradient


def _replace_last_layer(weights: Weights, last: Floats) -> Weights:
    """Return the weights with other values in the last layer."""
    changed, at = dict(weights), 0
    for name in _LAST:
        size = weights[name].size
        changed[name] = last[at : at + size].reshape(weights[name].shape).astype(np.float32)
        at += size
    return changed


def _read(start: Path) -> Weights:
    config, weights = read_policy(start)
    if config.features != _NAMES:
        raise InputError(f"{start}: reads other features than a network for places of several shapes")
    return weights


def main() -> None:
    """Train a network with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="an existing folder")
    parser.add_argument("--start", type=Path, help="a policy file to go on from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40, help="of the search")
    parser.add_argument("--unknown-stays", action="store_true", help="it is not known when jobs leave")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tell = partial(print, flush=True)
    train(arguments.out, arguments.seed, arguments.steps, range(1000, 1004), tell, arguments.start, not arguments.unknown_stays)


if __name__ == "__main__":
    main()
