"""Imitation of lookahead or of a teacher, in rounds of collecting and fitting.

    python -m trainers.recipes.imitation admission --out DIR
    python -m trainers.recipes.imitation consolidate --out DIR

This is approximate policy iteration. In every round the current network plays streams with some exploration, so that it is trained
on the decisions that it will meet (DAgger, Ross et al. 2011). `trainers.recipes.lookahead` plays out the choices of some decisions,
and the network is fitted to how much better each choice is than the decision's mean.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from policies.placement.policy_file import PolicyConfig, Provenance, write_policy
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.generator import Workload
from rollmux_env.envs.placement.observation import candidate_names
from rollmux_env.files import write_whole
from rollmux_env.kernel.features import CLUSTER_FEATURES, JOB_FEATURES
from rollmux_env.portable import FIRST_DRAWN_SEED
from trainers.network import Scorer
from trainers.recipes.lookahead import Player
from trainers.recipes.teachers import TEACHERS, collect_examples

Array = NDArray[np.float32]


@dataclass(frozen=True)
class StreamSource:
    """Streams to learn from.

    Attributes:
        workload: Name of the workload.
        streams: Number of streams in a round.
        options: Options of the workload.
    """

    workload: str
    streams: int
    options: dict[str, Any] = field(default_factory=dict)

    def generator(self) -> Workload:
        """Create the generator of the streams."""
        return Workload(self.workload, **self.options)


class Labels(NamedTuple):
    """Labelled decisions.

    Attributes:
        job: Features of each decision's job.
        candidates: Features of each decision's rows, shape (B, A, Fc).
        cluster: Features of the cluster at each decision.
        mask: 1 for rows that may be chosen, shape (B, A).
        values: Value of choosing each row, NaN if unknown, shape (B, A).
    """

    job: Array
    candidates: Array
    cluster: Array
    mask: NDArray[np.int8]
    values: Array


def joined(parts: Sequence[Labels]) -> Labels:
    """Concatenate labels."""
    return Labels(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def widened(labels: Labels, columns: int) -> Labels:
    """Pad the rows to a number of columns. The features of shapes, which streams without shapes lack, become 0."""
    missing = columns - labels.candidates.shape[2]
    return labels._replace(candidates=np.pad(labels.candidates, ((0, 0), (0, 0), (0, missing))))


Example = tuple[Array, Array, Array, NDArray[Any]]  # features of job, rows and cluster, and a value for each row


def padded(examples: Sequence[Example]) -> Labels:
    """Convert decisions of at most `MAX_ROWS` rows each to labels."""
    jobs, rows, clusters, values = zip(*examples, strict=True)
    mask = np.arange(MAX_ROWS) < np.array([len(own) for own in rows])[:, None]
    wide = np.zeros((len(rows), MAX_ROWS, len(rows[0][0])), dtype=np.float32)
    known = np.full((len(rows), MAX_ROWS), np.nan, dtype=np.float32)
    wide[mask], known[mask] = np.concatenate(rows), np.concatenate(values)
    return Labels(np.array(jobs), wide, np.array(clusters), mask.astype(np.int8), known)


LOOKAHEAD, WORTH = "lookahead", "worth"
MAX_ROWS = 32  # largest number of rows of a decision, as in the environment


@dataclass(frozen=True)
class Recipe:
    """Training recipe of a network.

    Attributes:
        moves: Whether the network moves running jobs.
        sources: Streams of a round.
        teacher: Origin of the values. `lookahead` plays out each choice with the current network. `worth` takes the value at the
            shortest horizon from the observation, which has no noise. Other names are teachers of `trainers.recipes.teachers`,
            whose placements are imitated.
        rounds: Number of rounds of collecting and fitting. A fit uses the labels of the last two rounds.
        horizon_h: Time constant of lookahead's discount exp(-t / horizon) of dollars and work, in hours.
        work_price: Value of work as a factor on what it costs alone. About 1 over the saving makes dollars per work-hour fall.
        share: Share of the decisions that are labelled.
        exploration: Share of the choices that are made at random.
        epochs: Number of epochs of a fit.
        learning_rate: Highest learning rate of a fit.
        reluctance: Amount subtracted from the scores of moves at the end, so that errors of the fit cause no moves.
        known_stays: Whether the network reads when jobs will leave. Lookahead uses the true stays in either case.
    """

    moves: bool
    sources: tuple[StreamSource, ...]
    teacher: str = LOOKAHEAD
    rounds: int = 5
    horizon_h: float = 24.0
    work_price: float = 0.7
    share: float = 1.0
    exploration: float = 0.1
    epochs: int = 10
    learning_rate: float = 1e-3
    reluctance: float = 0.0
    known_stays: bool = True

    @property
    def row_features(self) -> tuple[str, ...]:
        """Names of a row's features. As in an environment of the streams, those of shapes are among them only if jobs have any."""
        return candidate_names(self.moves, any(source.options.get("shapes", False) for source in self.sources))


_FIXED, _TIGHT, _LOOSE, _SHAPES = {"stays": "fixed"}, {"slo": (1.0, 1.5)}, {"slo": (1.5, 3.0)}, {"shapes": True}
_EVERY = {**_SHAPES, "asynchronous": 0.5, "third_pool": True}  # also asynchronous jobs and a third pool
_WORTH: dict[str, Any] = {
    "teacher": WORTH,
    "rounds": 2,
    "share": 0.5,
    "exploration": 0.02,
    "epochs": 25,
    "learning_rate": 2e-3,
    "reluctance": 0.03,
}
_PLACES = (
    *(StreamSource(name, streams, options) for name in ("production", "mixed") for streams, options in ((60, {}), (30, _FIXED))),
    *(StreamSource(name, 12, options) for name in ("production", "mixed") for options in (_TIGHT, {**_TIGHT, **_FIXED})),
    *(StreamSource(name, 12) for name in ("balanced", "rollout-heavy", "train-heavy")),
    StreamSource("production", 12, _LOOSE),
)
RECIPES = {
    "admission": Recipe(moves=False, sources=_PLACES),
    "admission-unknown": Recipe(moves=False, sources=_PLACES, rounds=3, known_stays=False),
    "admission-shapes": Recipe(
        moves=False,
        sources=tuple(StreamSource("production", 120, {**options, "jobs": 40}) for options in (_SHAPES, _EVERY)),
        rounds=3,
        epochs=20,
        learning_rate=2e-3,
    ),
    "moves": Recipe(
        moves=True,
        sources=(
            *(StreamSource(name, 8, options) for name in ("production", "mixed") for options in ({}, _FIXED)),
            *(StreamSource("production", 4, options) for options in (_TIGHT, {**_TIGHT, **_FIXED}, _LOOSE)),
        ),
        **_WORTH,
    ),
    "moves-shapes": Recipe(
        moves=True,
        sources=(
            *(StreamSource("production", 5, {**shapes, **options}) for shapes in (_SHAPES, _EVERY) for options in ({}, _FIXED)),
            *(StreamSource("production", 2, {**shapes, **options}) for shapes in (_SHAPES, _EVERY) for options in (_TIGHT, _LOOSE)),
        ),
        **_WORTH,
    ),
    **{
        teacher: Recipe(
            moves=False,
            sources=tuple(StreamSource(name, 6, options) for name in ("production", "mixed") for options in ({}, _FIXED)),
            teacher=teacher,
            rounds=2,
            epochs=20,
        )
        for teacher in TEACHERS
    },
}
WIDTHS = (64, 64)
_UNIT_USD = 150.0  # unit of lookahead's labels, which makes them of order 1


def worth(observation: dict[str, NDArray[Any]]) -> Array:
    """Return the observed value of each row at the shortest horizon, shape (E, A): a move's gain, or minus a placement's cost."""

    def column(name: str) -> Array:
        squashed = observation["candidates"][..., candidate_names(True).index(name)]
        return np.asarray(squashed / (1 - np.minimum(np.abs(squashed), 0.995)), dtype=np.float32)

    places = column("work_1h") - column("more_1h")
    return np.clip(np.where(observation["cluster"][:, :1] > 0.5, column("gain"), places), -6, 6)


def collect(source: StreamSource, recipe: Recipe, weights: dict[str, Array] | None, rng: np.random.Generator) -> Labels:
    """Play a source's streams with the current network, or Algorithm 1 if `weights` is None, and label decisions."""
    if recipe.teacher in TEACHERS:
        return _collect_placements(source, recipe, weights, rng)
    env = _environment(1, source, recipe)
    player = Player(env, weights)
    parts: list[Labels] = []
    for seed in rng.integers(FIRST_DRAWN_SEED, 2**31, source.streams).tolist():
        observation, _ = env.reset(options={"stream_seed": seed})
        over = False
        while not over:
            allowed = np.flatnonzero(observation["mask"][0])
            if allowed.size > 1 and rng.random() < recipe.share:
                if recipe.teacher == LOOKAHEAD:
                    usd, _, work_usd = player.look_ahead(recipe.horizon_h).T
                    values = (recipe.work_price * work_usd - usd)[None] / _UNIT_USD
                else:
                    values = worth(observation)
                values = np.where(observation["mask"] > 0, values, np.nan).astype(np.float32)
                parts.append(
                    Labels(observation["job"], observation["candidates"], observation["cluster"], observation["mask"], values)
                )
            action = rng.choice(allowed[:6]) if rng.random() < recipe.exploration else player.choose(0)
            observation, _, ended, _, _ = env.step(np.array([action]))
            over = bool(ended[0])
    return widened(joined(parts), len(recipe.row_features))


def _environment(streams: int, source: StreamSource, recipe: Recipe) -> PlacementVectorEnv:
    return PlacementVectorEnv(
        streams, source.generator(), moves=recipe.moves, known_stays=recipe.known_stays, autoreset_mode="Disabled"
    )


def _collect_placements(source: StreamSource, recipe: Recipe, weights: dict[str, Array] | None, rng: np.random.Generator) -> Labels:
    """Collect the placements of a teacher. The value of its row is 1, that of other rows 0."""
    generator, width = source.generator(), len(recipe.row_features)  # no teacher knows shapes
    examples: list[Example] = []
    for seed in rng.integers(FIRST_DRAWN_SEED, 2**31, source.streams).tolist():
        for inputs, choice in collect_examples(generator.scenario(seed), TEACHERS[recipe.teacher](), weights, MAX_ROWS):
            rows = inputs.candidates[:, :width]
            examples.append((inputs.job, rows, inputs.cluster, np.arange(len(rows)) == choice))
    return padded(examples)


def fit(
    network: Scorer, labels: Labels, epochs: int, learning_rate: float, seed: int, choose: bool = False, batch: int = 256
) -> float:
    """Fit logits to values, both relative to their mean over the decision's rows. Return the last epoch's mean Huber loss.

    Args:
        network: Network to train.
        labels: Decisions with the values of their rows.
        epochs: Number of passes over the labels.
        learning_rate: Highest learning rate of the one-cycle schedule.
        seed: Seed of the order of decisions.
        choose: Whether to fit the softmax of the logits to the row with the highest value instead, by cross-entropy.
        batch: Number of decisions in a gradient step.
    """
    job, candidates, cluster, mask, values = (torch.from_numpy(column) for column in labels)
    known = mask.bool() & ~values.isnan()
    values = _centre(values.nan_to_num(), known)
    size, generator = len(values), torch.Generator().manual_seed(seed)
    batch = min(batch, size)
    steps = size // batch
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=epochs * steps, pct_start=0.1)
    total = 0.0
    for _ in range(epochs):
        order, total = torch.randperm(size, generator=generator), 0.0
        for step in range(steps):
            rows = order[step * batch : (step + 1) * batch]
            logits, _ = network(job[rows], candidates[rows], cluster[rows], mask[rows])
            if choose:
                loss = nn.functional.cross_entropy(logits, values[rows].argmax(dim=1))
            else:
                errors = nn.functional.smooth_l1_loss(_centre(logits, known[rows]), values[rows], reduction="none")
                loss = errors[known[rows]].mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item() / steps
    return total


def _centre(values: Tensor, known: Tensor) -> Tensor:
    """Subtract from values their mean over the known rows. Unknown rows become 0."""
    values = values.masked_fill(~known, 0.0)
    return (values - values.sum(dim=1, keepdim=True) / known.sum(dim=1, keepdim=True).clamp(min=1)).masked_fill(~known, 0.0)


def saving(source: StreamSource, recipe: Recipe, weights: dict[str, Array], seeds: Sequence[int]) -> float:
    """Return Solo-D's dollars over those of the network with greedy choices, mean over streams."""
    env = _environment(len(seeds), source, recipe)
    player = Player(env, weights)
    env.reset(options={"stream_seed": list(seeds)})
    over = np.zeros(len(seeds), dtype=np.bool_)
    while not over.all():
        actions = np.array([0 if over[s] else player.choose(s) for s in range(len(seeds))])
        _, _, over, _, info = env.step(actions)
    return float(np.mean(1 / info["cost_over_solo"]))


def train(name: str, recipe: Recipe, out: Path, seed: int, seeds: Sequence[int], tell: Callable[[str], None]) -> None:
    """Train a network, and write OUT/NAME.safetensors and OUT/NAME.csv after every round.

    Args:
        name: Name of the recipe.
        recipe: The recipe.
        out: Existing folder for the files.
        seed: Seed of everything random.
        seeds: Seeds of the streams for the evaluation after every round.
        tell: Function that receives a line of figures after every round.

    Raises:
        InputError: The folder cannot be written.
    """
    began = perf_counter()
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    names = JOB_FEATURES, recipe.row_features, CLUSTER_FEATURES
    network = Scorer(len(names[0]), len(names[1]), len(names[2]), WIDTHS)
    weights: dict[str, Array] | None = None
    rounds: list[Labels] = []
    curve = [["round", "labels", "loss", "seconds", *(f"{s.workload} {s.options}" for s in recipe.sources)]]
    for number in range(recipe.rounds):
        rounds.append(joined([collect(source, recipe, weights, rng) for source in recipe.sources]))
        labels = joined(rounds[-2:])
        loss = fit(network, labels, recipe.epochs, recipe.learning_rate, number, choose=recipe.teacher in TEACHERS)
        weights = network.weights()
        for kind in ("is_move", "is_exchange", "is_merger") if recipe.moves else ():
            weights["skip.weight"][0, names[1].index(kind)] -= recipe.reluctance
        savings = [f"{saving(source, recipe, weights, seeds):.4f}" for source in recipe.sources]
        curve.append([str(number), str(len(labels.values)), f"{loss:.4f}", f"{perf_counter() - began:.0f}", *savings])
        command = f"python -m trainers.recipes.imitation {name} --seed {seed}"
        provenance: Provenance = {"command": command, "rounds": number + 1, "labels": len(labels.values)}
        config = PolicyConfig.of(names, WIDTHS, provenance, moves=recipe.moves, known_stays=recipe.known_stays)
        write_policy(out / f"{name}.safetensors", config, weights)
        text = io.StringIO()
        csv.writer(text).writerows(curve)
        write_whole(out / f"{name}.csv", text.getvalue())
        tell(", ".join(f"{heading} {value}" for heading, value in zip(curve[0], curve[-1], strict=True)))


def main() -> None:
    """Train a network with a recipe named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=RECIPES)
    parser.add_argument("--out", type=Path, required=True, help="an existing folder")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tell = partial(print, flush=True)
    train(arguments.name, RECIPES[arguments.name], arguments.out, arguments.seed, range(1000, 1008), tell)


if __name__ == "__main__":
    main()
