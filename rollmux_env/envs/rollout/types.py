"""The rollouts of a job, and tables of many jobs: the part that a policy may see, and that of the simulation, such as lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmux_env.errors import InputError
from rollmux_env.kernel.rollout_records import COSTS, rollout_table
from rollmux_env.kernel.rollout_trials import QUANTILES
from rollmux_env.kernel.tables import Floats, Ints, Records, fields
from rollmux_env.rollout.policy import with_spare
from rollmux_env.rollout.setting import Setting
from rollmux_env.timing.replica import SIZES as SIZES

KEEP, SPARE, REBALANCE, TAIL, PUT_OFF, ABORT, RESIZE = range(7)  # rows; from RESIZE on there is one for each of SIZES
ROWS = RESIZE + len(SIZES)
ETA = 1.25  # factor on prompts, and on responses to each, for rounds with spare responses
CHECKPOINTS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)  # shares of the wanted responses at decisions
ATTEMPTS = 3  # drawn lengths of a response; further attempts use the last one


@dataclass(frozen=True)
class RolloutJob:
    """The rollouts of one job. Its data set has `iterations` times `setting.prompts` prompts, each of which is trained on once.

    Attributes:
        setting: Setting of the rollouts, with one turn per response and sizes of replicas from `SIZES`.
        iterations: Number of rollouts until the data set is used.
        switch_s: Seconds until replicas of another size are ready.
        seed: Seed of the drawn lengths.
        lengths: Tokens of the responses to each of N prompts at their first attempt, the second, and so on, shape (N, ATTEMPTS, K),
            where K is the number of responses in a round with spare responses. Empty to draw them from the setting's distribution.
        tails: Whether tails may move. False as in an event replay, where the dispatch policy moves them.
        spare: Whether rounds may launch more than they need. False as in a real run.
    """

    setting: Setting
    iterations: int
    switch_s: float = 3.5
    seed: int = 0
    lengths: tuple[tuple[tuple[int, ...], ...], ...] = ()
    tails: bool = True
    spare: bool = True

    def __post_init__(self) -> None:
        where = self.setting
        if where.turns != 1 or where.observed or any(size not in SIZES for size, _ in where.timings):
            raise InputError("rollout environment: takes responses of one turn, drawn lengths, and replicas of 1, 2, 4 or 8 GPUs")
        if self.iterations < 1 or not 0 <= self.switch_s < float("inf"):
            raise InputError("rollout environment: needs at least one iteration and switch_s of at least 0")
        longest = where.prompt_tokens + where.lengths.cap
        if any(timing.kv_tokens <= longest for _, timing in where.timings):
            raise InputError(f"rollout environment: a replica's cache does not hold a response of {longest} tokens")
        if self.lengths and np.shape(self.lengths) != (self.prompts, ATTEMPTS, self.launched[1]):
            raise InputError(f"rollout environment: lengths must be {self.prompts} x {ATTEMPTS} x {self.launched[1]}")
        if self.lengths and not (np.min(self.lengths) >= 1 and np.max(self.lengths) <= where.lengths.cap):
            raise InputError(f"rollout environment: lengths must be between 1 and the cap of {where.lengths.cap} tokens")

    @property
    def prompts(self) -> int:
        """Number of prompts of the data set."""
        return self.iterations * self.setting.prompts

    @property
    def launched(self) -> tuple[int, int]:
        """Number of prompts, and of responses to each, in a round with spare responses."""
        return with_spare(self.setting.prompts, self.setting.responses, ETA)

    def draw(self) -> Ints:
        """Return the lengths, shape (N, ATTEMPTS, K)."""
        if self.lengths:
            return np.array(self.lengths, np.int64)
        rng = np.random.Generator(np.random.Philox(self.seed))
        hard = rng.standard_normal((self.prompts, 1, 1))
        return self.setting.lengths_of(hard, rng.standard_normal((self.prompts, ATTEMPTS, self.launched[1])))


# A job as a policy sees it and the simulation runs it.
#   prompts, responses: of an iteration   spare_*: of a round with spare responses   prompt_tokens, gpus, most: of the setting
#   configured, size: indices of SIZES, configured and current   first, live: first replica in use and number of replicas in use
#   launching: 1 before a rollout   resized: 1 if its size has changed   moved: 1 if its tail has   long: 1 in a long round
#   launched, each: prompts and responses of the current rollout   fresh: first prompt never launched   queue: deferred prompts
#   known: bit 0 if lengths of short rounds are remembered, bit 1 for long ones   invalid, over: flags
#   iterations, iteration, decisions, lost, migrated, aborted, preempted: counts
#   now_s: since the rollout began   cap: longest response, tokens   seconds, held_s: since the last decision, and times the
#   share of the GPUs that was held   all_s, all_held_s: since the episode began   plain_s, plain_held_s: the same for `plain`
#   reward_s: seconds of a reward, 0 if rewards take no time   reward_nodes: number of rewards at once
JOB = np.dtype(
    fields(
        "prompts responses spare_prompts spare_responses prompt_tokens gpus most configured size first live launching resized "
        "moved long launched each fresh queue known bounded invalid over iterations iteration decisions lost migrated aborted "
        "preempted cap switches reward_nodes",
        "now_s switch_s seconds held_s all_s all_held_s plain_s plain_held_s reward_s",
    )
)


class RolloutTables(NamedTuple):
    """Tables of E parallel jobs.

    They have room for R responses to G prompts in a rollout, on K replicas, and N prompts in all. S is the number of SIZES.

    Attributes:
        jobs: Records of `JOB`, shape (E,).
        responses: Field of `rollmux_env.kernel.rollout_records.Rollout`, with an additional first axis of E.
        replicas: Field of `Rollout`, with an additional first axis of E.
        groups: Field of `Rollout`, with an additional first axis of E.
        turns: Field of `Rollout`, with an additional first axis of E.
        batch: Field of `Rollout`, with an additional first axis of E.
        order: Field of `Rollout`, with an additional first axis of E.
        counts: Field of `Rollout`, with an additional first axis of E.
        quantiles: Remembered lengths of short and of long rounds, shape (E, 2, QUANTILES).
        costs: Costs of a replica of each size, as in the kernel, shape (E, S, COSTS).
        kv: Tokens in the cache of a replica of each size, 0 if there is none of this size, shape (E, S).
        lengths: Tokens of each response at each attempt, shape (E, N, ATTEMPTS, responses to a prompt).
        attempts: Number of launches of each prompt, shape (E, N).
        queue: Deferred prompts in order, shape (E, N).
        numbers: Prompts of the current rollout, shape (E, G).
    """

    jobs: Records
    responses: Records
    replicas: Records
    groups: Records
    turns: Ints
    batch: Ints
    order: Ints
    counts: Ints
    quantiles: Floats
    costs: Floats
    kv: Ints
    lengths: NDArray[np.int32]
    attempts: Ints
    queue: Ints
    numbers: Ints


def job_table(envs: int, prompts: int, each: int, replicas: int, total: int) -> RolloutTables:
    """Create empty tables for jobs that launch at most `prompts` with `each` responses, of `total` prompts in all."""
    rollout = rollout_table(prompts * each, replicas, prompts)
    return RolloutTables(
        jobs=np.zeros(envs, JOB),
        **{name: np.repeat(table[None], envs, axis=0) for name, table in rollout._asdict().items()},
        quantiles=np.zeros((envs, 2, QUANTILES)),
        costs=np.zeros((envs, len(SIZES), COSTS)),
        kv=np.zeros((envs, len(SIZES)), np.int64),
        lengths=np.zeros((envs, total, ATTEMPTS, each), np.int32),
        attempts=np.zeros((envs, total), np.int64),
        queue=np.zeros((envs, total), np.int64),
        numbers=np.zeros((envs, prompts), np.int64),
    )


def write_setting(job: Records, costs: Floats, kv: Ints, setting: Setting, switch_s: float) -> None:
    """Write what is known of a job before its first rollout into its record, its costs (S, COSTS) and its cache sizes (S,)."""
    job["prompts"], job["responses"] = setting.prompts, setting.responses
    job["spare_prompts"], job["spare_responses"] = with_spare(setting.prompts, setting.responses, ETA)
    job["prompt_tokens"], job["gpus"], job["most"] = setting.prompt_tokens, setting.gpus, setting.most
    job["configured"] = job["size"] = SIZES.index(setting.parallel)
    job["live"] = setting.gpus // setting.parallel
    job["switch_s"], job["cap"] = switch_s, setting.lengths.cap
    job["reward_s"], job["reward_nodes"] = setting.reward_s, setting.reward_nodes
    costs[:], kv[:] = 0, 0
    for size, timing in setting.timings:
        s = SIZES.index(size)
        costs[s], kv[s] = timing.costs, timing.kv_tokens
