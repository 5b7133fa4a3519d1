"""A job's rollouts, and those of many jobs as records: what a policy may see, and the lengths, which only the simulation knows."""

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

KEEP, SPARE, REBALANCE, TAIL, PUT_OFF, ABORT, RESIZE = range(7)  # rows; a row for each of SIZES comes last
ROWS = RESIZE + len(SIZES)
ETA = 1.25  # times as many prompts, and responses to each, that a round with spare ones launches
CHECKPOINTS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)  # shares of the wanted responses to decide at
ATTEMPTS = 3  # drawn lengths of a response: one that is sampled still more often has the last one again


@dataclass(frozen=True)
class Case:
    """The rollouts of one job: a data set of `iterations` times `setting.prompts` prompts, each of which is trained on once.

    Attributes:
        setting: of its rollouts; one turn a response, sizes of replicas out of `SIZES`.
        iterations: rollouts until the data set is through.
        switch_s: seconds until replicas of another size are there.
        lengths: (N, ATTEMPTS, K) tokens of the responses to each prompt when it is sampled for the first time, the second, ...;
            K at least what a round with spare ones launches. Nothing: drawn from the setting's lengths by `seed`.
    """

    setting: Setting
    iterations: int
    switch_s: float = 3.5
    seed: int = 0
    lengths: tuple[tuple[tuple[int, ...], ...], ...] = ()

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
        """Of the whole data set."""
        return self.iterations * self.setting.prompts

    @property
    def launched(self) -> tuple[int, int]:
        """Prompts, and responses to each, of a round with spare ones."""
        return with_spare(self.setting.prompts, self.setting.responses, ETA)

    def draw(self) -> Ints:
        """(N, ATTEMPTS, K) the lengths."""
        if self.lengths:
            return np.array(self.lengths, np.int64)
        rng = np.random.Generator(np.random.Philox(self.seed))
        hard = rng.standard_normal((self.prompts, 1, 1))
        return self.setting.lengths_of(hard, rng.standard_normal((self.prompts, ATTEMPTS, self.launched[1])))


# A job as a policy sees it and the simulation runs it.
#   prompts, responses: of an iteration   spare_*: launched with spare ones   prompt_tokens, gpus, most
#   configured, size: index of SIZES, of the file and now   first, live: the replicas in use are so many from `first` on
#   launching: 1 before a rollout has begun   resized: for it   moved: its tail is   long: it runs what was put off
#   launched, each: prompts and responses of the rollout in hand   fresh: first prompt that none has taken   queue: put off
#   known: bit 0 lengths of short rounds are remembered, bit 1 those of long ones   invalid, over
#   iterations, iteration, decisions, lost, migrated, aborted, preempted: counts
#   now_s: since the rollout began   cap: longest response, tokens   seconds, held_s: since the last decision, and times the
#   share of the GPUs that was held   all_s, all_held_s: since the episode began   plain_s, plain_held_s: the same of `plain`
#   reward_s: of a response, 0 where rewards take no time   reward_nodes: rewards at once
JOB = np.dtype(
    fields(
        "prompts responses spare_prompts spare_responses prompt_tokens gpus most configured size first live launching resized "
        "moved long launched each fresh queue known bounded invalid over iterations iteration decisions lost migrated aborted "
        "preempted cap switches reward_nodes",
        "now_s switch_s seconds held_s all_s all_held_s plain_s plain_held_s reward_s",
    )
)


class Jobs(NamedTuple):
    """E jobs side by side, of at most R responses in a rollout to G prompts, on K replicas, N prompts in all.

    Attributes:
        jobs: (E,). responses to counts: as in `rollmux_env.kernel.rollout_records.Rollout`, with an axis of E in front.
        quantiles: (E, 2, QUANTILES) lengths that are remembered, of short and of long rounds.
        costs: (E, S, COSTS) of a replica of each of SIZES, as in the kernel.
        kv: (E, S) tokens of its cache; 0 where there is no such.
        lengths: (E, N, ATTEMPTS, each). attempts: (E, N) how often each prompt was launched.
        queue: (E, N) prompts that were put off, the first first. numbers: (E, G) the prompts of the rollout in hand.
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


def job_table(envs: int, prompts: int, each: int, replicas: int, total: int) -> Jobs:
    """Empty tables for jobs that launch at most `prompts` with `each` responses, of `total` prompts in all."""
    rollout = rollout_table(prompts * each, replicas, prompts)
    return Jobs(
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
    """Write what is known of a job before its first rollout: a record of `JOB`, (S, COSTS) and (S,)."""
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
