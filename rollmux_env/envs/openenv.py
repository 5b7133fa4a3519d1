"""The placement environment in the form of OpenEnv, for trainers of language models.

An observation is the text of a decision (`rollmux_env.envs.placement.wording`), an action the number of a choice, and a reward that
of `RollMux/Placement-v0`. The SDK's own server makes one environment for each WebSocket session.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import uuid4

import numpy as np
from openenv.core.env_server import Action, Environment, Observation, State, create_app
from pydantic import Field

from rollmux_env.envs import checks
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.generator import find_generator
from rollmux_env.envs.placement.stream import Generator
from rollmux_env.envs.placement.wording import allowed_choices, decision_text
from rollmux_env.errors import InputError
from rollmux_env.portable import FIRST_DRAWN_SEED
from rollmux_env.workloads.own import is_own


class PlacementAction(Action):
    """Answer to an observation."""

    choice: int = Field(description="Number of a choice in the observation's text.", ge=-(2**31), lt=2**31)


class PlacementObservation(Observation):
    """A decision in words, or the end of the stream."""

    text: str = Field(description="The job, the cluster, and each choice with price, period and slack.")
    allowed: list[int] = Field(description="Numbers of the choices; empty at the end.")


class PlacementState(State):
    """State of an episode."""

    stream: int | None = Field(default=None, description="Seed of the stream of jobs.")


class OpenPlacement(Environment[PlacementAction, PlacementObservation, PlacementState]):
    """An episode is a stream of jobs, a step the placement of one job. Decisions with a single choice are made without a step.

    Args:
        generator: Source of the streams, as for `PlacementEnv`.
        held_out: Whether streams with seeds below 65536 may be selected. They are those of evaluations and of the leaderboard.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, generator: Generator | str = "production", held_out: bool = False) -> None:
        super().__init__()
        self._vector = PlacementVectorEnv(1, generator, skip_forced=True, autoreset_mode="Disabled")
        self._held_out = held_out
        self._state = PlacementState()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, stream: int | None = None, **unused: Any
    ) -> PlacementObservation:
        """Begin an episode.

        Args:
            seed: Seed from which this stream and the following ones are drawn. No drawn stream is held out.
            episode_id: Identifier of the episode, or None for a new one.
            stream: Seed of the stream itself, or None to draw one.
            unused: Other keys of a request, which mean nothing here.

        Raises:
            InputError: The stream is held out, or no such stream exists.
        """
        if stream is not None and not self._held_out and checks.whole_number("stream", stream, 0) < FIRST_DRAWN_SEED:
            raise InputError(f"stream: seeds below {FIRST_DRAWN_SEED} are held out for evaluation; --held-out serves them")
        observation, info = self._vector.reset(seed=seed, options={"stream_seed": stream} if stream is not None else None)
        self._state = PlacementState(episode_id=episode_id or str(uuid4()), step_count=0, stream=int(info["stream_seed"][0]))
        return self._make_observation(observation)

    def step(self, action: PlacementAction, timeout_s: float | None = None, **unused: Any) -> PlacementObservation:
        """Carry out a choice, and advance to the next decision. A number that is no allowed choice costs the penalty.

        The last observation's `metadata` has the figures of the stream, such as `cost_over_solo` and `slo_attainment`.
        """
        observation, rewards, over, _, info = self._vector.step(np.array([action.choice]))
        self._state.step_count += 1
        facts = {name: info[name][0].item() for name in ("invalid_action", *(_FIGURES if over[0] else ()))}
        return self._make_observation(observation, done=bool(over[0]), reward=float(rewards[0]), metadata=facts)

    @property
    def state(self) -> PlacementState:
        """Identifier of the episode, its steps, and the seed of its stream."""
        return self._state

    def close(self) -> None:
        """Close the environment."""
        self._vector.close()

    def _make_observation(self, observation: Any, **outcome: Any) -> PlacementObservation:
        text = decision_text(self._vector, observation)
        return PlacementObservation(text=text, allowed=allowed_choices(self._vector, 0), **outcome)


_FIGURES = ("cost_usd", "solo_usd", "cost_over_solo", "work_h", "slo_attainment", "direct_packing", "rollout_scaling", "isolated")


def make_app(workload: str = "production", jobs: int | None = None, held_out: bool = False, sessions: int = 64) -> Any:
    """Return the SDK's server as an ASGI application.

    Args:
        workload: Name of a workload, path of a scenario file, or `module:name` of a user's own.
        jobs: Number of jobs of a stream, or None for the workload's own number.
        held_out: Whether held-out streams may be selected.
        sessions: Largest number of simultaneous sessions.

    Raises:
        InputError: There is no such workload, or a user's own one is given a number of jobs.
    """
    if jobs is not None and is_own(workload):
        raise InputError("--jobs: a workload of your own has its own number of jobs")
    options = {} if jobs is None else {"jobs": jobs}
    make = partial(OpenPlacement, workload if is_own(workload) else find_generator(workload, options), held_out)
    first = make()  # a wrong workload ends the command, and no session waits for the compiler
    first.reset(seed=0)
    first.step(PlacementAction(choice=0))
    return create_app(
        make, PlacementAction, PlacementObservation, "rollmux-placement", max_concurrent_envs=sessions, state_cls=PlacementState
    )
