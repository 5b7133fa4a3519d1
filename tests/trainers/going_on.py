"""An environment's saved state is all there is to it: arrays, generators and numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainers.checkpoint import load_state, state_of


def check_going_on(make: Callable[[], Any], choose: Callable[[Any], Any], before: int, after: int) -> None:
    """Assert that an environment goes on exactly in another one, made alike, that was given its state.

    Args:
        choose: maps (E, A) masks to (E,) choices. before, after: steps until the state is saved, and then in both.
    """

    def made() -> tuple[Any, Any]:
        env = make()
        observation, _ = env.reset(seed=3)
        return env, observation

    def played(env: Any, observation: Any, steps: int) -> tuple[Any, list[tuple[Any, ...]]]:
        seen = []
        for _ in range(steps):
            observation, rewards, over, _, info = env.step(choose(observation["mask"]))
            seen.append((observation["candidates"].tobytes(), rewards.tobytes(), over.tobytes(), info["stream_seed"].tobytes()))
        return observation, seen

    first, observation = made()
    observation, _ = played(first, observation, before)
    arrays, plain = state_of(first)
    second, _ = made()
    load_state(second, arrays, plain)
    assert played(first, observation, after)[1] == played(second, observation, after)[1]
