"""Placement policies by name, such as `rollmux`, `rollmux,prune=false`, `learned:default` or `my_module:MyPolicy,alpha=2`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from policies.named import LEARNED, LEND, OWN, PIPE, SEARCH, SHIPPED_NAMES, SWITCHES, is_own, said_of
from rollmux_env.bench.harness import Contender, OwnReplay
from rollmux_env.cluster.plan import Policy, plans_switches
from rollmux_env.cluster.state import HALF_LIFE_H, State
from rollmux_env.command_options import parse_pairs, parse_value
from rollmux_env.errors import InputError
from rollmux_env.factories import make_with, own_object, parameters
from rollmux_env.keys.cluster import Cluster
from rollmux_env.scheduler.order import OPTIONS, queue_rules
from rollmux_env.user_code import apart, is_users
from rollmux_env.validation_errors import not_one_of

HALF_LIFE = "half_life_h="  # option of the queue that a state needs too

PLACEMENT = {
    "rollmux": "policies.placement.algorithm1:Algorithm1",
    "random": "policies.placement.baselines:Random",
    "most-idle": "policies.placement.baselines:MostIdle",
    "first-fit": "policies.placement.baselines:FirstFit",
    "openrl": "policies.placement.openrl:OpenRL",
    "fleet": "policies.placement.fleet:MostProgress",
    "solo": "policies.placement.baselines:Solo",
    "colocated": "policies.placement.baselines:ColocatedJobs",
    "consolidate": "policies.placement.consolidate:Consolidate",
    "gavel": "policies.gavel:Gavel",
    "regroup": "policies.placement.regroup:Regroup",
    "resubmit": "policies.placement.resubmit:Resubmit",
    "optimal": "policies.placement.optimal:Optimal",
    "optimal-work": "policies.placement.optimal:Optimal,objective=work",
    "naive": "policies.placement.baselines:Naive",
}


def make_policy(spec: str, seed: int = 0) -> Contender:
    """Create a placement policy.

    Args:
        spec: A name of `PLACEMENT`, `learned:FILE`, `search:POLICY`, or `module:Class` of the user's own, followed by options as in
            `rollmux,prune=false`. A module is looked up on Python's path and last in the working directory.
        seed: Seed for policies with an option `seed`, unless the spec sets it.

    Raises:
        InputError: There is no such name, module or class, or the policy does not accept an option.
    """
    name, *pairs = spec.split(",")
    if name.startswith(SEARCH):
        return _make_search(spec, seed)
    switches = said_of(spec, SWITCHES)
    pairs = [pair for pair in pairs if not pair.startswith((SWITCHES, LEND, PIPE))]
    known = PLACEMENT.get(name, name)
    if name.startswith(LEARNED):
        known = _network(name.removeprefix(LEARNED))
    target, *presets = known.split(",")
    if ":" not in target:
        raise InputError(f"--policy: {not_one_of(name, sorted(PLACEMENT), f', {LEARNED}FILE, {SEARCH}POLICY{OWN}')}")
    factory = own_object(f"--policy {name}", target)
    others = () if isinstance(factory, OwnReplay) else (*(option.rstrip("=") for option in (SWITCHES, LEND, PIPE)), *OPTIONS)
    own = [pair for pair in pairs if not _is_of_queue(pair, factory)]
    policy: Any = make_with(f"--policy {spec}", name, factory, [*presets, *own], seed, others)
    policy = checked(f"--policy {spec}", name, policy)
    _set_queue_rules(spec, policy, [pair for pair in pairs if pair not in own])
    if switches is not None:
        if isinstance(policy, OwnReplay) and not hasattr(policy, "plans_switches"):
            raise InputError(f"--policy {spec}: {name} has no option 'switches'")
        _set_switches(spec, policy, switches)
    for option in (LEND, PIPE):
        if said_of(spec, option):
            from policies.placement.lending import Shortened

            policy = make_with(f"--policy {spec}", name, partial(Shortened, policy, option.rstrip("=")), ())
    return policy  # type: ignore[no-any-return]


def _network(path: str) -> str:
    """Return the class of the network of a policy file, with the option that names the file."""
    from policies.placement.policy_file import read_config

    serves = path not in SHIPPED_NAMES and read_config(path).decides == "queue"
    network = "learned_queue:LearnedQueue" if serves else "learned:Learned"
    return f"policies.placement.{network},path={json.dumps(path)}"


def _make_search(spec: str, seed: int) -> Contender:
    """Create the policy that searches around another one: `search:`, and the spec of that one with options of the search."""
    from policies.placement.search import Search

    name, *pairs = spec.removeprefix(SEARCH).split(",")
    own = [pair for pair in pairs if pair.partition("=")[0] in parameters(Search)[1:]]
    base = make_runnable(",".join([name, *(pair for pair in pairs if pair not in own)]), seed)
    return make_with(f"--policy {spec}", SEARCH, partial(Search, base), own)


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
        raise InputError(f"{label}: {name} has no attribute `keeps_slo`: True, or False if its plans may break SLOs")
    return policy  # type: ignore[no-any-return]


def observed_state(spec: str, cluster: Cluster) -> State:
    """Return the empty state that a policy sees at the start of a real run."""
    return State(cluster, True, said_of(spec, SWITCHES) or False, _half_life_h(spec))


def _half_life_h(spec: str) -> float:
    """Return the half-life of usage that a spec names for the queue, without creating the policy, which may be out of reach."""
    name, *pairs = spec.split(",")
    label = f"--policy {name}"
    pair = next((pair for pair in pairs if pair.startswith(HALF_LIFE)), None)
    if pair is None or (is_own(name) and not _is_of_queue(pair, own_object(label, name))):
        return HALF_LIFE_H
    return float(parse_value(pair.removeprefix(HALF_LIFE)))


def _is_of_queue(pair: str, factory: Callable[..., Any]) -> bool:
    """Return whether an option is one of the queue, and not of the policy itself."""
    key = pair.partition("=")[0]
    return key in OPTIONS and key not in parameters(factory)


def _set_queue_rules(spec: str, policy: Any, pairs: Sequence[str]) -> None:
    """Let a policy's queue be served as options say."""
    label = f"--policy {spec}"
    options = {key: parse_value(text) for key, text in parse_pairs(label, pairs)}
    if options and isinstance(policy, OwnReplay):
        raise InputError(f"{label}: the yardstick has no option '{next(iter(options))}'")
    if options and not is_users(policy) and hasattr(policy, "queue_rules"):
        raise InputError(f"{label}: {next(iter(options))}: its network orders the queue")
    try:
        rules = queue_rules(options, lambda target: make_with(label, target, own_object(label, target), ()))
    except InputError as error:
        raise InputError(f"{label}: {str(error).removeprefix(f'{label}: ')}") from None
    if rules is not None:
        _set(policy, "queue_rules", rules, f"{label}: its class has __slots__ without 'queue_rules'")


def _set_switches(spec: str, policy: Any, switches: bool) -> None:
    if switches != plans_switches(policy):
        problem = f"--policy {spec}: its class has __slots__ without 'plans_switches'; say switches=false"
        _set(policy, "plans_switches", switches, problem)


def _set(policy: Any, name: str, value: Any, problem: str) -> None:
    """Set an attribute of a policy, which may be a frozen dataclass.

    Raises:
        InputError: The class has no such slot.
    """
    try:
        object.__setattr__(policy, name, value)
    except AttributeError:
        raise InputError(problem) from None


def make_runnable(spec: str, seed: int = 0) -> Policy:
    """Create a policy that can run jobs, not only replay them.

    Raises:
        InputError: The spec is not valid, as for `make_policy`, or the policy can only replay.
    """
    policy = make_policy(spec, seed)
    if isinstance(policy, OwnReplay):
        raise InputError(f"--policy {spec}: no one could run it, it is a yardstick for `bench`")
    return policy
