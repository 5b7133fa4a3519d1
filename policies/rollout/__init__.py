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
from rollmux_env.rollout.profile import migration_of
from rollmux_env.rollout.setting import Setting

BATCHING: dict[str, Callable[..., RolloutPolicy]] = {"tail-batching": TailBatching}  # what is launched
CONTROL: dict[str, Callable[..., RolloutPolicy]] = {  # what is done with it
    "tail-migration": TailMigration,
    "adaptive-parallelism": AdaptiveParallelism,
    "parallelism-planner": ParallelismPlanner,
    "stream-trainer": StreamTrainer,
}
ROLLOUT: dict[str, Callable[..., RolloutPolicy]] = {"plain": Plain, **BATCHING, **CONTROL}


@dataclass(frozen=True)
class Combined:
    """The rounds of one policy with the control of another inside them."""

    batching: RolloutPolicy
    inside: RolloutPolicy

    @property
    def migrates_at(self) -> float | None:
        """See the second policy."""
        return getattr(self.inside, "migrates_at", None)

    @property
    def share(self) -> float | None:
        """See the second policy."""
        return getattr(self.inside, "share", None)

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
        return Combined(made[0], made[1])
    raise InputError(f"rollout policy '{spec}': together go one of {', '.join(BATCHING)} and one of {', '.join(CONTROL)}, as a+b")


def migrating(dispatch: str, policy: RolloutPolicy) -> str:
    """The dispatch policy that moves tails when this rollout policy would: with `migrate=`, unless it is given or none is moved."""
    migration = migration_of(policy)
    if migration is None or "migrate=" in dispatch or dispatch.startswith("learned:"):
        return dispatch
    return f"{dispatch},migrate={migration[0]}" + (",careful=true" if getattr(policy, "careful", False) else "")
