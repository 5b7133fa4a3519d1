"""Rollout policies: what happens inside a rollout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from policies.named import make_named
from policies.rollout.adaptive_parallelism import AdaptiveParallelism
from policies.rollout.parallelism_planner import ParallelismPlanner
from policies.rollout.plain import Plain
from policies.rollout.stream_trainer import StreamTrainer
from policies.rollout.tail_batching import TailBatching
from policies.rollout.tail_migration import TailMigration
from rollmux_env.errors import InputError
from rollmux_env.rollout.policy import Control, RolloutPolicy, Rounds
from rollmux_env.rollout.setting import Setting
from rollmux_env.timing.migration import SHARE, Migration, migration_of

BATCHING: dict[str, Callable[..., RolloutPolicy]] = {"tail-batching": TailBatching}  # what is launched
CONTROL: dict[str, Callable[..., RolloutPolicy]] = {  # what is done with it
    "tail-migration": TailMigration,
    "adaptive-parallelism": AdaptiveParallelism,
    "parallelism-planner": ParallelismPlanner,
    "stream-trainer": StreamTrainer,
}
ROLLOUT: dict[str, Callable[..., RolloutPolicy]] = {"plain": Plain, **BATCHING, **CONTROL}
_ONE_SIZE = "chooses the size of the replicas, and the jobs of a scenario have one, their `tensor_parallel`"
NOT_REPLAYED = {  # why not in event replays of scenarios
    "adaptive-parallelism": f"adaptive-parallelism {_ONE_SIZE}",
    "parallelism-planner": f"parallelism-planner {_ONE_SIZE}",
    "stream-trainer": "stream-trainer is for jobs that sample and train on the same GPUs, and those of a scenario have two pools",
}


@dataclass(frozen=True)
class Combined:
    """The rounds of one policy with the control of another inside them."""

    batching: RolloutPolicy
    inside: RolloutPolicy

    @property
    def migration(self) -> Migration | None:
        """See the second policy."""
        return migration_of(self.inside)

    @property
    def careful(self) -> bool:
        """See the second policy."""
        return getattr(self.inside, "careful", False)

    def rounds(self, prompts: int, responses: int) -> Rounds:
        """See the first policy."""
        return self.batching.rounds(prompts, responses)

    def control(self, setting: Setting) -> Control:
        """See the second policy."""
        return self.inside.control(setting)


def make_rollout(spec: str) -> RolloutPolicy:
    """Create a rollout policy by name.

    Args:
        spec: a name of `ROLLOUT`, or one of `BATCHING` and one of `CONTROL` joined by `+`; each with options, as in
            `tail-batching,eta=1.3+tail-migration,share=0.5`.

    Raises:
        InputError: unknown name or options, or two policies that cannot be combined; one line.
    """
    parts = spec.split("+")
    made = [make_named("rollout policy", ROLLOUT, part) for part in parts]
    if len(parts) == 1:
        return made[0]
    kinds = [part.partition(",")[0] for part in parts]
    if len(parts) == 2 and kinds[0] in BATCHING and kinds[1] in CONTROL:
        if getattr(made[0], "each_engine", False):
            raise InputError(
                f"rollout policy '{spec}': with each_engine=true nothing moves between engines, so {kinds[1]} has no part"
            )
        return Combined(made[0], made[1])
    raise InputError(f"rollout policy '{spec}': together go one of {', '.join(BATCHING)} and one of {', '.join(CONTROL)}, as a+b")


def make_replayed(spec: str) -> RolloutPolicy:
    """Create a rollout policy for an event replay of the jobs of a scenario.

    Raises:
        InputError: as `make_rollout`, or one that could do nothing there; one line.
    """
    policy = make_rollout(spec)
    for part in spec.split("+"):
        name = part.partition(",")[0]
        if name in NOT_REPLAYED:
            raise InputError(f"rollout policy '{spec}': {NOT_REPLAYED[name]}; `rollmux bench --suite rollout` measures it")
    return policy


def migrating(dispatch: str, policy: RolloutPolicy) -> str:
    """The dispatch policy that moves tails when this rollout policy would: with `migrate=`, unless it is given or none is moved."""
    migration = migration_of(policy)
    if migration is None or "migrate=" in dispatch or dispatch.startswith("learned:"):
        return dispatch
    share = "" if migration.share == SHARE else f",share={migration.share}"
    return f"{dispatch},migrate={migration.at}{share}" + (",careful=true" if getattr(policy, "careful", False) else "")
