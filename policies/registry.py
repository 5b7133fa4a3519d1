"""Placement policies by name, such as `rollmux`, `rollmux,prune=false`, `learned:default` or `my_module:MyPolicy,alpha=2`."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import partial
from typing import Any

from policies.named import LEARNED, LEND, OWN, SWITCHES, make_with, own_factory, plans_switches, said_of
from rollmux_env.bench.harness import Contender, OwnReplay
from rollmux_env.cluster import plan
from rollmux_env.cluster.plan import Policy
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.keys.cluster import Cluster
from rollmux_env.user_code import apart, is_users
from rollmux_env.validation_errors import not_one_of

PLACEMENT = {
    "rollmux": "policies.placement.algorithm1:Algorithm1",
    "random": "policies.placement.baselines:Random",
    "most-idle": "policies.placement.baselines:MostIdle",
    "first-fit": "policies.placement.baselines:FirstFit",
    "fleet": "policies.placement.fleet:Fleet",
    "solo": "policies.placement.baselines:Solo",
    "colocated": "policies.placement.baselines:Colocated",
    "consolidate": "policies.placement.consolidate:Consolidate",
    "gavel": "policies.placement.gavel:Gavel",
    "regroup": "policies.placement.regroup:Regroup",
    "resubmit": "policies.placement.resubmit:Resubmit",
    "optimal": "policies.placement.optimal:Optimal",
    "optimal-work": "policies.placement.optimal:Optimal,objective=work",
    "naive": "policies.placement.baselines:Naive",
}


def make_policy(spec: str, seed: int = 0) -> Contender:
    """Create a placement policy.

    Args:
        spec: A name of `PLACEMENT`, `learned:FILE`, or `module:Class` of the user's own, followed by options as in
            `rollmux,prune=false`. A module is looked up on Python's path and last in the working directory.
        seed: Seed for policies with an option `seed`, unless the spec sets it.

    Raises:
        InputError: There is no such name, module or class, or the policy does not accept an option.
    """
    name, *pairs = spec.split(",")
    switches = plans_switches(spec)
    pairs = [pair for pair in pairs if not pair.startswith((SWITCHES, LEND))]
    known = PLACEMENT.get(name, name)
    if name.startswith(LEARNED):
        known = f"policies.placement.learned:Learned,path={json.dumps(name.removeprefix(LEARNED))}"
    target, *presets = known.split(",")
    if ":" not in target:
        raise InputError(f"--policy: {not_one_of(name, sorted(PLACEMENT), f', {LEARNED}FILE{OWN}')}")
    factory = own_factory(f"--policy {name}", target)
    others = () if isinstance(factory, OwnReplay) else (SWITCHES.rstrip("="), LEND.rstrip("="))
    policy: Any = make_with(f"--policy {spec}", name, factory, [*presets, *pairs], seed, others)
    policy = checked(f"--policy {spec}", name, policy)
    if switches is not None:
        if isinstance(policy, OwnReplay) and not hasattr(policy, "plans_switches"):
            raise InputError(f"--policy {spec}: {name} has no option 'switches'")
        _set_switches(spec, policy, switches)
    if said_of(spec, LEND):
        from policies.placement.lending import Lending

        policy = make_with(f"--policy {spec}", name, partial(Lending, policy), ())
    return policy  # type: ignore[no-any-return]


def checked(label: str, name: str, policy: Any) -> Contender:
    """Return the policy if it has the methods and attributes of a placement policy.

    Args:
        label: Start of error messages.
        name: Name of the policy in error messages.
        policy: Object to check.

    Raises:
        InputError: A method or attribute is missing.
    """
    with apart(label) if is_users(policy) else nullcontext():
        has = {attribute: hasattr(policy, attribute) for attribute in ("decide", "replay", "keeps_slo")}
    if not has["decide"] and not has["replay"]:
        raise InputError(f"{label}: {name} has no method `decide`")
    if has["decide"] and not has["keeps_slo"]:
        raise InputError(f"{label}: {name} has no attribute `keeps_slo`, True or False")
    return policy  # type: ignore[no-any-return]


def observed_state(spec: str, cluster: Cluster) -> State:
    """Return the empty state that a policy sees at the start of a real run."""
    return State(cluster, observed=True, switches=plans_switches(spec) or False)


def _set_switches(spec: str, policy: Any, switches: bool) -> None:
    if switches == plan.plans_switches(policy):
        return
    try:
        object.__setattr__(policy, "plans_switches", switches)  # works for frozen dataclasses too
    except AttributeError:
        raise InputError(f"--policy {spec}: its class has __slots__ without 'plans_switches'; say switches=false") from None


def make_runnable(spec: str, seed: int = 0) -> Policy:
    """Create a policy that can run jobs, not only replay them.

    Raises:
        InputError: The spec is not valid, as for `make_policy`, or the policy can only replay.
    """
    policy = make_policy(spec, seed)
    if isinstance(policy, OwnReplay):
        raise InputError(f"--policy {spec}: no one could run it, it is a yardstick for `bench`")
    return policy
