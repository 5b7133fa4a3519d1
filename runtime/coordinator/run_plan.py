"""The plan of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `--help` does without pydantic
    from rollmux_env.keys.cluster import Cluster
    from runtime.jobs.spec import JobSpec
    from runtime.journal.facts import Fact
    from runtime.machine import Node

POLICY, DISPATCH = "rollmux", "round-robin"  # defaults
_CLOCKS = 1.11  # largest ratio of two clocks' speeds: each may be 5% off


def placement_name(policy: str | None) -> str:
    """Return the placement policy as a real run keeps it, which may be continued from another working directory.

    Real switches take time, so the policy plans them unless its options say otherwise.

    Args:
        policy: Name of the policy with options, or None for the default.

    Raises:
        InputError: As in `policies.named.said_of`.
    """
    from policies.named import SWITCHES, said_of, with_absolute_path  # `--help` does without it

    policy = with_absolute_path(policy or POLICY)
    return policy if said_of(policy, SWITCHES) is not None else f"{policy},switches=true"


def dispatch_name(dispatch: str | None) -> str:
    """Return the dispatch policy as a real run keeps it; None is the default."""
    from policies.named import with_absolute_path

    return with_absolute_path(dispatch or DISPATCH)


@dataclass(frozen=True)
class Timeouts:
    """Limits after which a silent job counts as dead.

    Attributes:
        times: Limit of a phase as a multiple of its worst case with a cold start, and of the time between phases as a multiple of
            an iteration.
        least_s: Smallest limit, in seconds.
        profile_s: Limit of a phase in a profile, in seconds.
    """

    times: float = 10.0
    least_s: float = 300.0
    profile_s: float = 3600.0


@dataclass(frozen=True)
class LeaseRules:
    """Rules by which attached jobs lose their leases and nodes.

    Attributes:
        ttl_s: Seconds without a heartbeat after which a lease is lost.
        grace_s: Further seconds after which its nodes are free regardless of its owner, but not before `fenced_s`. None means only
            when the owner is known to have ended.
        claim_s: Seconds after which a place without an attached owner is given to other jobs.
        max_hold_worst_cases: Multiple of a phase's worst case after which its lease is lost, or None for no limit.
    """

    ttl_s: float = 30.0
    grace_s: float | None = None
    claim_s: float = 300.0
    max_hold_worst_cases: float | None = None

    @property
    def fenced_s(self) -> float:
        """Seconds after the last heartbeat at which an owner has ended itself by its own clock, even if that is slow."""
        return _CLOCKS * self.ttl_s


@dataclass(frozen=True)
class RunPlan:
    """The plan of a run.

    Attributes:
        specs: Jobs of the run.
        cluster: Pools, prices and limits as the policy sees them.
        nodes: All nodes.
        policy: Name of the placement policy.
        dispatch: Name of the dispatch policy.
        seed: Seed of random policies.
        folder: Folder of the journal and of checkpoints.
        cached: Whether profiles from the cache may be used.
        compare: Whether to measure the gain of taking turns with the first two jobs that arrive together, and each job alone at the
            end.
        only_profile: Whether to stop when all jobs are profiled.
        resume: Whether the folder holds a run, which continues.
        models: Whether the models of completed jobs are written into the folder.
        leave: Whether every job leaves its devices after each phase, even if there is room to stay.
        timeouts: Limits for jobs that hang.
        leases: Rules for attached jobs.
        facts: Facts of the newest part of the journal that continues, oldest first, or None if they have not been read yet.
    """

    specs: tuple[JobSpec, ...]
    cluster: Cluster
    nodes: tuple[Node, ...]
    policy: str
    dispatch: str
    seed: int
    folder: str
    cached: bool = True
    compare: bool = False
    only_profile: bool = False
    resume: bool = False
    models: bool = False
    leave: bool = False
    timeouts: Timeouts = Timeouts()
    leases: LeaseRules = LeaseRules()
    facts: Sequence[Fact] | None = field(default=None, repr=False)
