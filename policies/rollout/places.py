"""Where each rollout policy works, and why not elsewhere. The table in docs/reference/rollout_policies.md is this one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Literal

from policies.named import LEARNED, is_own
from policies.rollout import make_rollout
from policies.rollout.learned import Learned
from policies.rollout.published import TailBatching, TailMigration
from rollmux_env.envs.rollout.types import CHECKPOINTS, ETA
from rollmux_env.envs.rollout.types import SIZES as LEARNED_SIZES
from rollmux_env.errors import InputError
from rollmux_env.rollout.policy import RolloutPolicy
from rollmux_env.scenario import Scenario

Place = Literal["suite", "replay", "environment", "run"]
"""`rollmux bench --suite rollout`; an event replay of a scenario's jobs; `RollMux/Rollout-v0`; a real run."""

_TWO_POOLS = "stream-trainer is for jobs that sample and train on the same GPUs, and these have two pools"
_APART = "in a run the responses of a round stay with their engines, and no other policy moves them"
REFUSED: dict[tuple[str, Place], str] = {
    ("stream-trainer", "replay"): _TWO_POOLS,
    ("stream-trainer", "run"): _TWO_POOLS,
    ("tail-migration", "run"): "in a run the dispatch policy moves tails: rollmux run --dispatch round-robin,migrate=0.8",
}
"""By name of a policy and place: why it is refused there."""
SIZED = ("adaptive-parallelism", "parallelism-planner")
"""Policies that choose sizes: a replay needs a job with several, `model.sizes`."""
_KINDS = "adaptive-parallelism, parallelism-planner and learned:default choose one"


def make_at(spec: str, place: Place) -> RolloutPolicy:
    """Create a rollout policy for a place.

    Args:
        spec: see `policies.rollout.make_rollout`.

    Raises:
        InputError: as `make_rollout`, or a policy that does not work there, by name and reason; one line.
    """
    policy = make_rollout(spec)
    names = [part.partition(",")[0] for part in spec.split("+")]
    for name in names:
        if (name, place) in REFUSED:
            raise InputError(f"rollout policy '{spec}': {REFUSED[name, place]}{_elsewhere(place)}")
    if place == "run" and len(names) > 1:
        raise InputError(f"rollout policy '{spec}': {_APART}")
    if place == "environment":
        for part in (make_rollout(part) for part in spec.split("+")):
            if problem := _not_a_row(part):
                raise InputError(f"rollout policy '{spec}': {problem}")
    if isinstance(policy, Learned) and place == "replay":
        return replace(policy, tails=False)  # when a tail moves is for the dispatch policy to say
    if isinstance(policy, Learned) and place == "run":
        return replace(policy, tails=False, spare=False)
    return policy


def check_sizes(spec: str, scenarios: Iterable[Scenario]) -> None:
    """Refuse a policy that chooses sizes of replicas where no job has several.

    Raises:
        InputError: so it is; one line.
    """
    for part in spec.split("+"):
        name = part.partition(",")[0]
        if name in SIZED and not any(job.timing is not None and job.timing.sizes for one in scenarios for job in one.jobs):
            problem = f"{name} chooses the size of the replicas, and no job has several: `model.sizes` gives them"
            raise InputError(f"rollout policy '{spec}': {problem}{_elsewhere('replay')}")


def why_not_sizes(spec: str, sizes: Collection[int]) -> str | None:
    """Why a policy cannot choose among the sizes of engines of a job that really runs; None where it can.

    Args:
        spec: a policy that works in a run. sizes: all of them.
    """
    name = spec.partition(",")[0]
    if len(sizes) > 1 and not (name in SIZED or name.startswith(LEARNED) or is_own(spec)):
        return f"are of no use to the policy {name}, which keeps the size of the engines; {_KINDS}"
    if name.startswith(LEARNED) and len(sizes) > 1 and not {*sizes} <= {*LEARNED_SIZES}:
        return (
            f"{name} has learned with engines of {', '.join(map(str, LEARNED_SIZES))}, and has no others, tensor_parallel included"
        )
    if name == "parallelism-planner" and len(sizes) < 2:
        return "parallelism-planner chooses the size of the engines, and the job has one: `rollout.sizes` gives others"
    return None


def _elsewhere(place: Place) -> str:
    return "; `rollmux bench --suite rollout` measures it" if place == "replay" else ""


def _not_a_row(policy: RolloutPolicy) -> str | None:
    """What no action of the environment does."""
    if isinstance(policy, TailBatching) and (policy.eta != ETA or policy.each_engine):
        return f"the environment launches {ETA} times as much, and ends a round over all replicas"
    if isinstance(policy, TailMigration) and (policy.share != 0.5 or policy.at not in CHECKPOINTS):
        return "the environment moves tails to half of the replicas, at 20, 25, ..., 50, 70, 80, 90, 95 or 98%"
    return None
