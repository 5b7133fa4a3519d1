"""Generators and rewards of a user's own, the other names in `info`, what pictures say, and the snippets of the guide."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import rollmux_env.envs  # noqa: F401 (registers)
from rollmux_env.bench.streams import workload
from rollmux_env.envs.base import pixels
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.generator import Toy, Workload
from rollmux_env.envs.placement.reward import Dollars
from rollmux_env.errors import InputError
from rollmux_env.scenario import Scenario

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "environments.md"
SNIPPETS = [
    code for code in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S) if "print(" in code and "sys.argv" not in code
]
IDS = ("RollMux/Placement-v0", "RollMux/Dispatch-v0", "RollMux/Rollout-v0")


class Mine:
    """As little as a generator must have."""

    def __init__(self, jobs: int = 12) -> None:
        self.jobs = jobs
        self.cluster = self.scenario(0).cluster

    def scenario(self, seed: int) -> Scenario:
        return workload("mixed", seed, jobs=12)


def cost(**options: Any) -> tuple[float, float]:
    """Cost over Solo-D, and return, of an episode of first choices."""
    env = gymnasium.make("RollMux/Placement-v0", **options)
    _, info = env.reset(options={"stream_seed": 3})
    total, over = 0.0, False
    while not over:
        _, reward, over, _, info = env.step(np.int64(1 if info["action_mask"][1] else 0))
        total += float(reward)
    return info["cost_over_solo"], total


def test_a_generator_needs_a_cluster_jobs_and_scenarios() -> None:
    assert cost(generator=Mine()) == cost(generator=Workload("mixed", jobs=12))
    for name in ("cluster", "jobs"):
        lacking = Mine()
        delattr(lacking, name)
        with pytest.raises(InputError, match=rf"generator: Mine has no `{name}`; it must have cluster, jobs and scenario\(seed\)"):
            gymnasium.make("RollMux/Placement-v0", generator=lacking)


def test_a_scenario_beyond_what_the_generator_says_is_one_line() -> None:
    with pytest.raises(InputError, match="the scenario of seed 3: has 12 jobs, and the generator says jobs = 11 at most"):
        cost(generator=Mine(11))

    class Shaped(Mine):
        def scenario(self, seed: int) -> Scenario:
            return workload("production", seed, jobs=12, shapes=True)

    with pytest.raises(InputError, match=r"the scenario of seed 3: needs shapes = \d+, and the generator has shapes = 0"):
        cost(generator=Shaped())


def test_a_reward_may_be_a_function() -> None:
    over_solo, total = cost(generator=Mine(), reward=lambda interval: -interval.usd / interval.solo_usd)
    assert total == pytest.approx(-over_solo)
    assert total == pytest.approx(cost(generator=Mine(), reward=Dollars())[1])


@pytest.mark.parametrize("name", IDS)
def test_info_has_the_mask_as_taxi_has_it(name: str) -> None:
    env = gymnasium.make(name)
    observation, info = env.reset(seed=0)
    for _ in range(3):
        assert info["action_mask"].dtype == np.int8 and (info["action_mask"] == observation["mask"]).all()
        observation, _, _, _, info = env.step(env.action_space.sample(info["action_mask"]))
    assert ("choices_left_out" in info) == ("truncated" in info) == ("Placement" in name)


@pytest.mark.parametrize("name", IDS)
def test_every_environment_can_be_watched_and_says_what_letters_are(name: str) -> None:
    assert "human" in gymnasium.make(name).metadata["render_modes"]
    env = gymnasium.make(name, render_mode="ansi")
    env.reset(seed=0)
    text: Any = env.render()
    assert re.search(r"A, B, \.\.\.: job|A: job 0|a digit: a response", text.splitlines()[-1])


def test_dollars_in_a_picture_are_no_mathematics() -> None:
    from matplotlib import cbook
    from matplotlib.figure import Figure

    texts: list[str] = []
    env = PlacementVectorEnv(1, Toy(), render_mode="rgb_array")
    env.reset(seed=0)
    original = Figure.suptitle

    def seen(self: Figure, text: str, **more: Any) -> Any:
        made = original(self, text, **more)
        texts.append(made.get_text())
        assert not cbook.is_math_text(made.get_text())
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "suptitle", seen)
        assert env.render()[0].shape == (600, 960, 3)
    assert texts[0].count(r"\$") == 2
    assert pixels(lambda figure: None, (10, 10)).shape == (10, 10, 3)


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_the_snippets_of_the_guide_run(
    snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "sb3_contrib" in snippet and importlib.util.find_spec("sb3_contrib") is None:
        pytest.skip("needs sb3-contrib")
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, str(GUIDE), "exec"), {"__name__": "snippet"})
    assert re.search(r"-?\d\.\d+", capsys.readouterr().out)
