"""Rollout policies: the decisions inside a rollout, such as what to launch, move or stop early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from policies.named import LEARNED, is_own, make_named
from policies.rollout.adaptive_parallelism import AdaptiveParallelism
from policies.rollout.published import ParallelismPlanner, Plain, StreamTrainer, TailBatching, TailMigration
from rollmux_env.errors import InputError
from rollmux_env.rollout.policy import JobPolicy, RolloutPolicy
from rollmux_env.rollout.setting import Setting
from rollmux_env.timing.tail import SHARE, Migration, migration_of

BATCHING: dict[str, Callable[..., RolloutPolicy]] = {"tail-batching": TailBatching}  # policies that choose what to launch
CONTROL: dict[str, Callable[..., RolloutPolicy]] = {  # policies that control running rollouts
    "tail-migration": TailMigration,
    "adaptive-parallelism": AdaptiveParallelism,
    "parallelism-planner": ParallelismPlanner,
    "stream-trainer": StreamTrainer,
}
ROLLOUT: dict[str, Callable[..., RolloutPolicy]] = {"plain": Plain, **BATCHING, **CONTROL}


@dataclass(frozen=True)
class Combined:
    """Combination of two policies: one chooses the rounds, the other controls them while they run.

    Attributes:
        batching: Policy that chooses the rounds.
        inside: Policy that controls a running round.
    """

    batching: RolloutPolicy
    inside: RolloutPolicy

    @property
    def migration(self) -> Migration | None:
        """Migration of the policy `inside`."""
        return migration_of(self.inside)

    @property
    def careful(self) -> bool:
        """Whether the policy `inside` spares the bottleneck of a group."""
        return getattr(self.inside, "careful", False)

    def begin_job(self, setting: Setting) -> JobPolicy:
        """Return the rounds of the first policy and the control of the second."""
        return JobPolicy(self.batching.begin_job(setting).rounds, self.inside.begin_job(setting).control)


def make_rollout(spec: str) -> RolloutPolicy:
    """Create a rollout policy by name.

    Args:
        spec: A name of `ROLLOUT`, `learned:default`, `learned:PATH`, `module:Class`, or a name of `BATCHING` and a name of
            `CONTROL` joined by `+`. Each part may have options, as in `tail-batching,eta=1.3+tail-migration,share=0.5`.

    Raises:
        InputError: A name or option is unknown, a policy file is invalid, the user's class is no rollout policy, or two policies
            cannot be combined.
    """
    parts = spec.split("+")
    made = [_make_part(part) for part in parts]
    if len(parts) == 1:
        return made[0]
    kinds = [part.partition(",")[0] for part in parts]
    if len(parts) == 2 and kinds[0] in BATCHING and kinds[1] in CONTROL:
        if getattr(made[0], "each_engine", False):
            raise InputError(
                f"rollout policy '{spec}': with each_engine=true nothing moves between engines, so {kinds[1]} has no effect"
            )
        return Combined(made[0], made[1])
    raise InputError(f"rollout policy '{spec}': combine one of {', '.join(BATCHING)} with one of {', '.join(CONTROL)}, as a+b")


def _make_part(spec: str) -> RolloutPolicy:
    policy = make_named("rollout policy", ROLLOUT, spec, "policies.rollout.learned:Learned", ("begin_job",))
    if not isinstance(migration_of(policy), Migration | None):
        raise InputError(f"rollout policy '{spec}': its `migration` must be None or a rollmux_env.timing.tail.Migration")
    try:
        hash(policy)
    except TypeError as error:
        raise InputError(f"rollout policy '{spec}': must be hashable, as a frozen dataclass is: {error}") from None
    return policy


def migrating(dispatch: str, policy: RolloutPolicy) -> str:
    """Add the tail migration of a rollout policy to the spec of a dispatch policy.

    The spec stays unchanged if the rollout policy migrates no tails, if the spec sets `migrate=` itself, or if it names a learned
    policy or the user's own class. Those decide about migration themselves.
    """
    migration = migration_of(policy)
    if migration is None or "migrate=" in dispatch or dispatch.startswith(LEARNED) or is_own(dispatch):
        return dispatch
    share = "" if migration.share == SHARE else f",share={migration.share}"
    return f"{dispatch},migrate={migration.at}{share}" + (",careful=true" if getattr(policy, "careful", False) else "")
