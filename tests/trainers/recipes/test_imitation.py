"""Learning from lookahead: a copy of a stream plays as the stream does, and a round of training gives a policy file."""

from pathlib import Path

import numpy as np
import pytest
import torch

from policies.placement.policy_file import read_policy
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.generator import Toy, Workload
from rollmux_env.envs.placement.observation import candidate_names
from trainers.export import config_of
from trainers.network import Scorer
from trainers.recipes.imitation import LOOKAHEAD, RECIPES, Labels, Recipe, StreamSource, collect, fit, train
from trainers.recipes.lookahead import Player
from trainers.recipes.teachers import TEACHERS


def test_lookahead_without_discount_is_what_the_stream_costs() -> None:
    generator = Workload("mixed", jobs=12)
    env = PlacementVectorEnv(1, generator, autoreset_mode="Disabled")
    player = Player(env, None)
    env.reset(options={"stream_seed": 5})
    base = player.choose(0)
    usd, work_h, _ = player.look_ahead(1e9)[base]
    over = False
    while not over:
        _, _, ended, _, info = env.step(np.array([player.choose(0)]))
        over = ended[0]
    assert usd == pytest.approx(info["cost_usd"][0], rel=1e-5)
    assert work_h == pytest.approx(info["work_h"][0], rel=1e-5)


def test_work_is_worth_the_same_in_whichever_shape_it_is_done() -> None:
    env = PlacementVectorEnv(1, Workload("production", jobs=3, shapes=True), autoreset_mode="Disabled")
    player = Player(env, None)
    env.reset(options={"stream_seed": 5})
    usd, work_h, work_usd = player.look_ahead(1e9).T
    played = ~np.isnan(usd)
    assert played.sum() > 3 and np.ptp(usd[played]) > 1.0  # alone, in several shapes
    np.testing.assert_allclose(work_usd[played], work_usd[played][0], rtol=1e-5)
    np.testing.assert_allclose(work_h[played], work_h[played][0], rtol=1e-5)


def test_lookahead_finds_the_toys_optimum() -> None:
    generator = Toy(rounds=2)
    env = PlacementVectorEnv(1, generator, autoreset_mode="Disabled")
    player = Player(env, None)
    env.reset(options={"stream_seed": 5})
    over = False
    while not over:
        usd = player.look_ahead(1e9)[:, 0]
        _, _, ended, _, info = env.step(np.array([int(np.nanargmin(np.round(usd, 6)))]))
        over = ended[0]
    assert info["cost_over_solo"][0] == pytest.approx(generator.best)


def test_a_network_for_shapes_reads_how_they_differ() -> None:
    source = StreamSource("production", 1, {"jobs": 4, "shapes": True})
    recipe = Recipe(moves=False, sources=(source, StreamSource("production", 1)), horizon_h=1.0)
    assert recipe.row_features == candidate_names(False, shapes=True)
    assert collect(source, recipe, None, np.random.default_rng(0)).candidates.shape[2] == len(recipe.row_features)


def test_a_network_fits_what_it_is_shown() -> None:
    torch.manual_seed(0)
    source = StreamSource("mixed", 2, {"jobs": 30})
    labels = collect(source, Recipe(moves=False, sources=(source,), horizon_h=4.0), None, np.random.default_rng(0))
    assert isinstance(labels, Labels) and (np.isnan(labels.values) == (labels.mask == 0)).all()
    network = Scorer(labels.job.shape[1], labels.candidates.shape[2], labels.cluster.shape[1])
    first = fit(network, labels, 1, 1e-3, 0)
    assert fit(network, labels, 40, 3e-3, 0) < 0.8 * first


@pytest.mark.parametrize("name", list(RECIPES))
def test_a_round_of_training_writes_a_policy(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    source = StreamSource("mixed", 1, {"jobs": 15})
    small = Recipe(recipe.moves, (source,), recipe.teacher, rounds=1, horizon_h=2.0, epochs=1)
    lines: list[str] = []
    train(name, small, tmp_path, 0, [1000], lines.append)
    config, _ = read_policy(tmp_path / f"{name}.safetensors")
    assert config.moves == recipe.moves and config.provenance["rounds"] == 1
    env = PlacementVectorEnv(1, source.generator(), moves=recipe.moves)
    assert config.features == config_of(env, (64, 64), {}).features  # so that `start.file` of a training can name it
    assert len((tmp_path / f"{name}.csv").read_text().splitlines()) == 2 and len(lines) == 1
    assert recipe.moves or recipe.teacher in (LOOKAHEAD, *TEACHERS)
