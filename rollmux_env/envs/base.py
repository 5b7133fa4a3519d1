"""The common base of the environments: parallel streams, drawn by seed, one episode in each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rollmux_env.envs import checks
from rollmux_env.errors import InputError
from rollmux_env.kernel.feature_tables import Names, observation_table
from rollmux_env.portable import FIRST_DRAWN_SEED
from rollmux_env.user_code import REWARD, guarded, is_whole
from rollmux_env.validation_errors import not_one_of

Observation = dict[str, NDArray[Any]]
Info = dict[str, Any]
METADATA = {"render_modes": ["human", "rgb_array", "ansi"], "render_fps": 4}
StepResult = tuple[Observation, NDArray[Any], NDArray[Any], NDArray[Any], Info]


class BaseVectorEnv(VectorEnv[Observation, NDArray[np.int64], NDArray[Any]], ABC):
    """Base class of the vector environments: seeds, resets, steps, autoreset and `info`. A subclass defines what a stream is.

    All arrays have a leading axis of E = `num_envs` streams. The modes of autoreset are those of Gymnasium:

    - `SAME_STEP`: the step that ends an episode returns the first observation of the next one. The last observation is in
      `info["final_obs"]` (a dict of arrays, valid in rows where `info["_final_obs"]` is True), and the figures of the episode are
      in `info["final_info"]`.
    - `NEXT_STEP`: that step returns the last observation, with the figures in `info`. The next one ignores the stream's action, and
      returns the first observation of the next episode with reward 0.
    - `DISABLED`: a finished stream stays as it is, and `reset(options={"reset_mask": mask})` starts new episodes in some streams.

    Args:
        num_envs: Number of parallel streams.
        rows: Number of actions A of a stream.
        names: Names of the columns of an observation. All values are within [-1, 1].
        reward: Function from the interval after a decision, as `_interval` returns it, to rewards of shape (E,).
        render_mode: One of the render modes, or None.
        autoreset_mode: When a finished stream starts a new episode.

    Raises:
        InputError: There is less than one stream, or a mode is unknown.
    """

    metadata: dict[str, Any] = {**METADATA, "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    time_limited: ClassVar[bool] = False
    """Whether episodes end at a time that is not observed, so that they are truncated instead of terminated."""

    def __init__(
        self, num_envs: int, rows: int, names: Names, reward: Any, render_mode: str | None, autoreset_mode: AutoresetMode | str
    ) -> None:
        modes = self.metadata["render_modes"]
        num_envs = checks.whole_number("num_envs", num_envs)
        if render_mode is not None and render_mode not in modes:
            raise InputError(f"render_mode: {not_one_of(render_mode, modes)}")
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.autoreset_mode = checks.autoreset_mode(autoreset_mode)
        self.reward = checks.callable_reward(reward)
        self._pay = guarded(self.reward, REWARD)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self._observations = observation_table(num_envs, rows, names)
        self.single_observation_space = spaces.Dict(
            {name: _box(0 if name == "mask" else -1, column[0]) for name, column in self._observations._asdict().items()}
        )
        self.single_action_space = spaces.Discrete(rows)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._all = np.ones(num_envs, dtype=np.bool_)
        self._seeds = np.zeros(num_envs, dtype=np.int64)
        self._ended = np.zeros(num_envs, dtype=np.bool_)  # streams whose next step begins an episode
        self._draws: list[np.random.Generator] = []  # of stream seeds; empty before the first reset, and after a reset that failed
        self._window: Window | None = None
        self._passed: Any = None  # read-only views from which `_interval` makes the argument of the reward

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to copy or pickle, without the window and references to tables and reward, which a copy makes again."""
        return {**vars(self), "_window": None, "_passed": None, "_pay": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._passed, self._pay = self._views(), guarded(self.reward, REWARD)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start new episodes.

        Args:
            seed: Seed of the draws of stream seeds. Stream k draws from `seed + k`, or from the k-th seed of a list. It applies to
                the streams that are reset.
            options: `stream_seed`, a number or one for each stream, sets the seeds of the streams themselves instead of drawing
                them; None for a stream to draw its seed. `reset_mask`, shape (E,), restricts the reset to some streams.

        Raises:
            InputError: A seed, the mask or an option is not valid, the first reset has a mask, or the environment is closed.
        """
        self._refuse("reset", needs_reset=False)
        options = checks.options_of(options)
        which = checks.streams_in(options.get("reset_mask"), self.num_envs)
        stream_seeds = checks.stream_seeds_of(options.get("stream_seed"), self.num_envs)
        seeds = checks.seeds_of(seed, self.num_envs)
        if not self._draws and len(which) < self.num_envs:
            raise InputError("reset_mask: the first reset must be of all streams")
        if seed is not None or not self._draws:
            self._seed(seed, seeds, which)
        self._passed = self._views()
        self._begin(which, [self._draw(s) if (own := stream_seeds[s]) is None else own for s in which])
        return self._observation(), _with_masks(self._info(), self._all)

    def step(self, actions: NDArray[np.int64]) -> StepResult:
        """Carry out one decision in every stream, and advance it to the next decision.

        Args:
            actions: Rows of the streams' tables, integers of shape (E,). A masked or unknown row counts as invalid.

        Raises:
            InputError: The actions have another shape or type, the rewards do not have one value for each stream, or the
                environment was not reset before or is closed.
        """
        self._refuse("step")
        self._advance(checks.actions_of(actions, self.num_envs))
        interval = self._interval()
        rewards = checks.rewards_of(self._pay(interval), self.num_envs)
        return self._finish_step(rewards, self._over(), self._decided(interval))

    def render(self) -> Any:
        """Return one frame for each stream: an (H, W, 3) array (`rgb_array`) or a text (`ansi`). `human` shows the first stream."""
        if self.render_mode is None:
            raise InputError("render: the environment was made without a render_mode")
        self._refuse("render")
        if self.render_mode == "human":
            self._window = self._window or Window()
            return self._window.show(self._picture(0))
        return tuple(self._text(s) if self.render_mode == "ansi" else self._picture(s) for s in range(self.num_envs))

    def close_extras(self, **options: Any) -> None:
        """Close the window."""
        if self._window is not None:
            self._window.close()
            self._window = None

    def action_masks(self) -> NDArray[np.bool_]:
        """Return True for actions that may be chosen, shape (E, A). The name is that of sb3-contrib."""
        self._refuse("action_masks")
        mask: NDArray[np.int8] = self._observations.mask
        return mask.astype(np.bool_)

    @abstractmethod
    def _start(self, s: int, seed: int) -> None:
        """Write the stream of a seed into row `s`."""

    @abstractmethod
    def _ask(self, which: NDArray[np.int64]) -> None:
        """Advance streams that were just started to their first decisions."""

    @abstractmethod
    def _advance(self, actions: NDArray[np.int64]) -> None:
        """Carry out one decision in every stream that is not over."""

    @abstractmethod
    def _views(self) -> Any:
        """Return read-only views of the tables from which `_interval` makes the argument of the reward."""

    @abstractmethod
    def _interval(self) -> Any:
        """Return the interval since the last decision, for the reward. Its `invalid`, shape (E,), is 1 after a masked action."""

    @abstractmethod
    def _over(self) -> NDArray[np.bool_]:
        """Return whether each stream is over, shape (E,)."""

    @abstractmethod
    def _figures(self) -> Info:
        """Return figures of the streams so far by name, shape (E,) each."""

    @abstractmethod
    def _text(self, s: int) -> str:
        """Return a stream as text."""

    @abstractmethod
    def _picture(self, s: int) -> NDArray[np.uint8]:
        """Return a stream as pixels, shape (H, W, 3)."""

    def _decided(self, interval: Any) -> Info:
        """Return the entries of `info` about the last decision, shape (E,) each."""
        return {"invalid_action": interval.invalid == 1}

    def _info(self) -> Info:
        """Return the entries of `info` after every reset and step. `action_mask` equals the observation's `mask`, as in Taxi."""
        return {"stream_seed": self._seeds.copy(), "action_mask": self._observations.mask.copy()}

    def _finish_step(self, rewards: NDArray[Any], over: NDArray[np.bool_], info: Info) -> StepResult:
        """Return the result of a step, after starting new episodes as the mode says. `info` is about the last decision."""
        info = _with_masks(info, self._all)
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            over, ended = over & ~self._ended, self._ended
            rewards = np.where(ended, 0.0, rewards)
            if ended.any():
                which = np.flatnonzero(ended)
                self._begin(which, [self._draw(s) for s in which])
            self._ended = over.copy()  # callers keep the result
        if over.any():
            summary = _with_masks({"stream_seed": self._seeds.copy(), **self._figures()}, over)
            if self.autoreset_mode is AutoresetMode.SAME_STEP:
                summary = {"final_obs": self._observation(), "_final_obs": over, "final_info": summary, "_final_info": over}
                which = np.flatnonzero(over)
                self._begin(which, [self._draw(s) for s in which])
            info.update(summary)
        info.update(_with_masks(self._info(), self._all))
        never = np.zeros(self.num_envs, dtype=np.bool_)
        return self._observation(), rewards, *((never, over) if self.time_limited else (over, never)), info

    def _observation(self) -> Observation:
        return {name: column.copy() for name, column in self._observations._asdict().items()}

    def _begin(self, which: NDArray[np.int64], seeds: Sequence[int]) -> None:
        draws, self._draws = self._draws, []  # if an episode cannot begin, the environment has to be reset
        for s, seed in zip(which.tolist(), seeds, strict=True):
            self._start(s, seed)
            self._seeds[s] = seed
            self._ended[s] = False
        self._ask(which)
        self._draws = draws

    def _draw(self, s: int) -> int:
        return int(self._draws[s].integers(FIRST_DRAWN_SEED, 2**31))

    def _seed(self, seed: Any, seeds: Sequence[int | None], which: NDArray[np.int64]) -> None:
        """Give each of some streams a separate generator of stream seeds."""
        if seed is None or is_whole(seed):
            first = self.np_random_seed if seed is None else int(seed)
            super().reset(seed=first)
            seeds = checks.seeds_of(first, self.num_envs)
        # Without a seed a stream continues its draws, as an environment of Gymnasium does.
        fresh = {s: seeding.np_random(seeds[s])[0] for s in which.tolist() if seeds[s] is not None or not self._draws}
        self._draws = [fresh[s] if s in fresh else self._draws[s] for s in range(self.num_envs)]

    def _refuse(self, call: str, needs_reset: bool = True) -> None:
        """Refuse a call of an environment that is closed, or that was not reset before."""
        if self.closed:
            raise InputError(f"{call}: the environment is closed")
        if needs_reset and not self._draws:
            raise InputError(f"{call}: the environment must be reset first")


class BaseEnv(gym.Env[Observation, np.int64]):
    """A vector environment with one stream and without autoreset, as a plain Gymnasium environment.

    Args:
        arguments: Positional arguments of `vector_class` after `num_envs`.
        options: Keyword arguments of `vector_class`, except `autoreset_mode`.
    """

    metadata: dict[str, Any] = METADATA
    vector_class: ClassVar[Any]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.vector = vector = self.vector_class(1, *arguments, autoreset_mode=AutoresetMode.DISABLED, **options)
        self.render_mode = vector.render_mode
        self.action_space = vector.single_action_space
        self.observation_space = vector.single_observation_space
        self._action = np.zeros(1, dtype=np.int64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Info]:
        """Start a new episode. `seed` and `options` are those of `BaseVectorEnv.reset` for one stream."""
        observation, info = self.vector.reset(seed=seed, options=options)
        super().reset(seed=seed)
        self._show()
        return _first(observation), _plain(info)

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, Info]:
        """Carry out one decision, and advance to the next."""
        self._action[0] = checks.action_of(action)
        observation, rewards, terminated, truncated, info = self.vector.step(self._action)
        self._show()
        return _first(observation), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), _plain(info)

    def action_masks(self) -> NDArray[np.bool_]:
        """Return True for actions that may be chosen, shape (A,). The name is that of sb3-contrib."""
        mask: NDArray[np.bool_] = self.vector.action_masks()[0]
        return mask

    def render(self) -> Any:
        """Return a frame: an (H, W, 3) array (`rgb_array`) or a text (`ansi`). `human` shows it at every step and returns None."""
        if self.render_mode == "human":
            return None
        frames: Any = self.vector.render()
        return frames[0]

    def close(self) -> None:
        """Close the environment and its window. It cannot be reset afterwards."""
        self.vector.close()

    def _show(self) -> None:
        if self.render_mode == "human":
            self.vector.render()


def _with_masks(values: Info, where: NDArray[np.bool_]) -> Info:
    """Add to values the streams in which they are valid, as arrays with an underscore before the name, as in Gymnasium."""
    where = where.copy()  # callers may write into it
    return {**values, **{f"_{name}": where for name in values}}


def _first(observation: Observation) -> Observation:
    return {name: column[0] for name, column in observation.items()}


def _plain(info: Info) -> Info:
    """Return the values of the only stream as Python types. Masks remain arrays."""
    return {name: values[0] if values.ndim > 1 else values[0].item() for name, values in info.items() if name[0] != "_"}


def _box(low: int, one: NDArray[Any]) -> spaces.Box:
    """Return the space of arrays of this shape and type with values from `low` to 1."""
    return spaces.Box(np.full_like(one, low), np.ones_like(one), dtype=one.dtype.type)


def pixels(draw: Callable[[Any], None], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Draw on a matplotlib figure of (W, H) pixels, and return its pixels, shape (H, W, 3)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((size[0] / 100, size[1] / 100), dpi=100, layout="constrained")
    canvas: Any = FigureCanvasAgg(figure)
    draw(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()


def tell_colours(axis: Any, colours: Mapping[str, Any], size: int = 7) -> None:
    """Add a legend below the axis.

    Args:
        axis: Axis of matplotlib.
        colours: Colour of each label.
        size: Font size.
    """
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, edgecolor="#999999", label=name) for name, colour in colours.items()]
    axis.legend(handles=handles, fontsize=size, frameon=False, ncols=10, loc="upper center", bbox_to_anchor=(0.5, -0.1))


def label_lanes(axis: Any, names: Sequence[str], room: int = 0, size: int = 8) -> None:
    """Label the lanes of a picture from top to bottom.

    Args:
        axis: Axis of matplotlib.
        names: Names of the lanes, the first at the top.
        room: Least number of lanes to reserve space for.
        size: Font size.
    """
    axis.set_yticks(range(len(names)), names, fontsize=size)
    axis.set_ylim(max(len(names), room) - 0.5, -0.5)


class Window:
    """A window that shows one picture at a time."""

    def __init__(self) -> None:
        from matplotlib import pyplot

        self._pyplot: Any = pyplot
        self._figure, axis = pyplot.subplots(figsize=(9.6, 6.0))
        axis.set_axis_off()
        self._axis: Any = axis
        self._image: Any = None

    def show(self, pixels: NDArray[np.uint8]) -> None:
        """Show a picture instead of the last one."""
        if self._image is None:
            self._image = self._axis.imshow(pixels)
            self._figure.show() if self._pyplot.isinteractive() else self._pyplot.show(block=False)
        self._image.set_data(pixels)
        self._figure.canvas.draw_idle()
        self._figure.canvas.flush_events()

    def close(self) -> None:
        """Close the window."""
        self._pyplot.close(self._figure)
