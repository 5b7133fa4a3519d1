"""The factories of all kinds of policies, for suites."""

from __future__ import annotations

from policies.allocation import make_allocator
from policies.dispatch import make_dispatch
from policies.network import make_network
from policies.registry import make_policy
from policies.rollout import make_rollout, migrating
from rollmux_env.bench.suite import Makers


def makers() -> Makers:
    """Return the factories of all kinds of policies by name, for suites."""
    return Makers(make_policy, make_dispatch, make_rollout, migrating, make_network, make_allocator)
