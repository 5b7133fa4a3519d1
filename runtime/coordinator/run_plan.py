"""What a run is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `--help` does without pydantic
    from rollmux_env.keys.cluster import Cluster
    from runtime.jobs.spec import JobSpec
    from runtime.machine import Node

POLICY, DISPATCH = "rollmux", "round-robin"  # where nothing else is said
_CLOCKS = 1.11  # the seconds of this machine in one of an owner's, at most: each may be 5% off


def planning_switches(policy: str | None) -> str:
    """The policy of a real run: its switches take time, so it plans them unless its options say otherwise.

    Raises:
        InputError: as `policies.named.plans_switches`.
    """
    from policies.named import plans_switches  # `--help` does without it

    policy = policy or POLICY
    return policy if plans_switches(policy) is not None else f"{policy},switches=true"


@dataclass(frozen=True)
class Timeouts:
    """How long a job may be silent before it counts as dead.

    Attributes:
        times: a phase may take so many times its worst case with a cold start, and what lies between phases so many times a whole
            iteration. least_s: but no job is given up before so many seconds. profile_s: of a phase that nobody knows yet.
    """

    times: float = 10.0
    least_s: float = 300.0
    profile_s: float = 3600.0


@dataclass(frozen=True)
class LeaseRules:
    """When jobs that run elsewhere have lost what they hold.

    Attributes:
        ttl_s: a lease without a sign of life for so many seconds is lost.
        grace_s: what it held is free after so many more, whatever its owner does; None: only when that is known. Not before
            `fenced_s`.
        claim_s: a place that nobody attaches to for so long is given to others.
        max_hold: Multiple of a phase's worst case after which its lease is lost; None: it may take any time.
    """

    ttl_s: float = 30.0
    grace_s: float | None = None
    claim_s: float = 300.0
    max_hold: float | None = None

    @property
    def fenced_s(self) -> float:
        """So long after its last sign of life an owner has ended itself by its own clock, which may be slow, seconds."""
        return _CLOCKS * self.ttl_s


@dataclass(frozen=True)
class RunPlan:
    """What a run is asked to do.

    Attributes:
        specs: the jobs. cluster: pools, prices and limits that the policy sees. nodes: all nodes.
        policy, dispatch: by name. seed: of policies that take one.
        folder: where the journal and checkpoints go.
        cached: profiles that were measured before may be used.
        compare: measure what taking turns could gain, with the first two jobs that arrive together, and each job alone at the end.
        only_profile: stop when all jobs are profiled.
        resume: the folder holds a run, which goes on.
        models: the models of jobs that are done are written into the folder.
        leave: Whether every job leaves its devices after each phase, also if there is room to stay.
        timeouts: with jobs that hang. leases: of jobs that run elsewhere.
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
