"""Places in which each rollout policy works, and the reasons why not in others.

The table in docs/reference/rollout_policies.md shows the same.
"""

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
"""`rollmux bench --suite rollout`, an event replay of a scenario's jobs, `RollMux/Rollout-v0`, or a real run."""

_TWO_POOLS = "stream-trainer is for jobs that sample and train on the same GPUs, and these have two pools"
_APART = "in a run the responses of a round stay with their engines, and no other policy moves them"
REFUSED: dict[tuple[str, Place], str] = {
    ("stream-trainer", "replay"): _TWO_POOLS,
    ("stream-trainer", "run"): _TWO_POOLS,
    ("tail-migration", "run"): "in a run the dispatch policy moves tails: rollmux run --dispatch round-robin,migrate=0.8",
}
"""Reason for which a policy is refused in a place, by name of the policy and place."""
SIZED = ("adaptive-parallelism", "parallelism-planner")
"""Policies that choose sizes of replicas. They need a job with several sizes, `model.sizes`."""
_KINDS = "adaptive-parallelism, parallelism-planner and learned:default choose one"


def make_at(spec: str, place: Place) -> RolloutPolicy:
    """Create a rollout policy for a place.

    Args:
        spec: Name of the policy with options, as for `policies.rollout.make_rollout`.
        place: Place in which the policy will work.

    Raises:
        InputError: The spec is not valid, as for `make_rollout`, or the policy does not work in this place.
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
        return replace(policy, tails=False)  # the dispatch policy decides when a tail moves
    if isinstance(policy, Learned) and place == "run":
        return replace(policy, tails=False, spare=False)
    return policy


def check_sizes(spec: str, scenarios: Iterable[Scenario]) -> None:
    """Refuse a policy that chooses sizes of replicas if no job has several.

    Raises:
        InputError: A policy in the spec chooses sizes, and no job of the scenarios has several.
    """
    for part in spec.split("+"):
        name = part.partition(",")[0]
        if name in SIZED and not any(job.timing is not None and job.timing.sizes for one in scenarios for job in one.jobs):
            problem = f"{name} chooses the size of the replicas, and no job has several: `model.sizes` gives them"
            raise InputError(f"rollout policy '{spec}': {problem}{_elsewhere('replay')}")


def why_not_sizes(spec: str, sizes: Collection[int]) -> str | None:
    """Return the reason why a policy cannot choose among the engine sizes of a real job, or None if it can.

    Args:
        spec: Name of a policy that works in a run, with options.
        sizes: All sizes of the job's engines, in GPUs.
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
    """Return a description of what no action of the environment does, or None."""
    if isinstance(policy, TailBatching) and ({policy.eta, policy.eta_responses or ETA} != {ETA} or policy.each_engine):
        return f"the environment launches {ETA} times as much, and ends a round over all replicas"
    if isinstance(policy, TailMigration) and (policy.share != 0.5 or policy.at not in CHECKPOINTS):
        return "the environment moves tails to half of the replicas, at 20, 25, ..., 50, 70, 80, 90, 95 or 98%"
    return None
