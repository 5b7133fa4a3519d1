"""The placement environment is served by OpenEnv's own server and driven by its own client."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openenv", reason="the extra openenv is not installed, which does not go with the extra mcp")

import uvicorn
from openenv.core import GenericEnvClient

from rollmux_env.envs.openenv import make_app
from rollmux_env.envs.placement.env import PlacementEnv
from rollmux_env.envs.placement.generator import Workload
from rollmux_env.errors import InputError
from rollmux_env.portable import FIRST_DRAWN_SEED

pytestmark = pytest.mark.filterwarnings("ignore")  # of the SDK and what it brings


def serve(**options: Any) -> Iterator[str]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(make_app("mixed", 12, **options), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    yield from serve()


@pytest.fixture(scope="module")
def evaluating() -> Iterator[str]:
    yield from serve(held_out=True)


def play(client: Any, **reset: Any) -> tuple[list[int], list[float], Any]:
    """Play an episode with the last allowed choice of each decision; return the choices, the rewards and the last result."""
    result, choices, rewards = client.reset(**reset), [], []
    while not result.done:
        assert result.observation["text"].startswith("Job ")
        choices.append(result.observation["allowed"][-1])
        result = client.step({"choice": choices[-1]})
        rewards.append(result.reward)
    return choices, rewards, result


def test_an_episode_is_that_of_the_gymnasium_environment(address: str) -> None:
    with GenericEnvClient(base_url=address).sync() as client:
        choices, rewards, last = play(client, stream=70000)
        state = client.state()
    assert (state["stream"], state["step_count"]) == (70000, len(choices))
    env = PlacementEnv(Workload("mixed", jobs=12), skip_forced=True)
    env.reset(options={"stream_seed": 70000})
    steps = [env.step(np.int64(choice)) for choice in choices]
    assert rewards == [step[1] for step in steps] and steps[-1][2]
    assert last.observation["metadata"]["cost_over_solo"] == steps[-1][4]["cost_over_solo"] == pytest.approx(-sum(rewards))
    assert last.observation["allowed"] == []


def test_sessions_have_environments_of_their_own_and_a_seed_draws_the_same_stream(address: str) -> None:
    with GenericEnvClient(base_url=address).sync() as first, GenericEnvClient(base_url=address).sync() as second:
        one, other = first.reset(seed=5), second.reset(seed=6)
        assert one.observation["text"] != other.observation["text"]
        assert second.reset(seed=5).observation["text"] == one.observation["text"]
        assert first.state()["stream"] == second.state()["stream"] >= FIRST_DRAWN_SEED


def test_a_number_that_is_no_choice_is_answered_and_costs_the_penalty(address: str) -> None:
    with GenericEnvClient(base_url=address).sync() as client:
        client.reset(seed=5)
        right = client.step({"choice": 0})
        client.reset(seed=5)
        wrong = client.step({"choice": 99})
    assert wrong.observation["metadata"]["invalid_action"] and wrong.reward == pytest.approx(right.reward - 1 / 12)


@pytest.mark.parametrize(("stream", "says"), [(0, "held out for evaluation"), (65535, "held out"), ("7", "must be a whole number")])
def test_streams_of_the_leaderboard_are_refused(address: str, stream: Any, says: str) -> None:
    with GenericEnvClient(base_url=address).sync() as client, pytest.raises(RuntimeError, match=says):
        client.reset(stream=stream)


def test_a_server_for_evaluation_has_them(evaluating: str) -> None:
    with GenericEnvClient(base_url=evaluating).sync() as client:
        assert client.reset(stream=7).observation["allowed"] and client.state()["stream"] == 7


def test_a_workload_that_does_not_exist_ends_the_command() -> None:
    with pytest.raises(InputError, match="mixde"):
        make_app("mixde")
    with pytest.raises(InputError, match="csv: the workload philly needs a trace file"):
        make_app("philly")
