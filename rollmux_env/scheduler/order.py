"""The order in which waiting jobs are served, as options of a policy: `order`, `backfill`, `park` and what belongs to them.

Jobs are served by priority, then by the key of an order, lower first, then by arrival. Keys are computed at the present time, and
compared exactly. They hold for running jobs too, for parking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite, isnan
from typing import Any, Protocol

import numpy as np

from rollmux_env.cluster.estimates import as_estimated
from rollmux_env.cluster.learned_lengths import LearnedLengths
from rollmux_env.cluster.remaining import MIN_DEPARTED, done_s, learned_h, left_s, weights
from rollmux_env.cluster.state import HALF_LIFE_H, State
from rollmux_env.errors import InputError, PlanError
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.scheduler.asking import shown_to
from rollmux_env.user_code import apart, brief, guarded, is_users
from rollmux_env.validation_errors import not_one_of

OPTIONS = ("order", "backfill", "park", "half_life_h", "held_h", "starve_h", "factor")
# The least value of each number, and whether this value itself is allowed. `starve_h` alone may be infinite.
_LOWER_BOUNDS = {"half_life_h": (0.0, False), "held_h": (0.0, True), "starve_h": (0.0, False), "factor": (1.0, True)}


class Order(Protocol):
    """An order of waiting jobs."""

    def keys(self, state: State, job_ids: Sequence[str]) -> Iterable[float]:
        """Return a key for each job, waiting or running: the job with the lowest one is served first.

        Args:
            state: State of the cluster, for reading only.
            job_ids: Identifiers of the jobs.
        """
        ...


class FirstCome:
    """Order by arrival."""

    keeps_keys = True

    def keys(self, state: State, job_ids: Sequence[str]) -> Iterable[float]:
        """Return 0 for each job."""
        return [0.0] * len(job_ids)


class Shortest:
    """Order by the work that jobs have left, over their weight."""

    unit, scale, keeps_keys, falls = "h", 3600.0, True, True

    def keys(self, state: State, job_ids: Sequence[str]) -> Floats:
        """Return seconds of T_solo, shape (n,)."""
        rows = rows_of(state, job_ids)
        return np.asarray(left_s(state, rows) / weights(state, rows))


class Area:
    """Order by the work that jobs have left times the nodes that they ask for, over their weight."""

    unit, scale, keeps_keys, falls = "node-hours", 3600.0, True, True

    def keys(self, state: State, job_ids: Sequence[str]) -> Floats:
        """Return node-seconds, shape (n,)."""
        rows = rows_of(state, job_ids)
        return np.asarray(left_s(state, rows) * nodes_of(state, rows) / weights(state, rows))


class Attained:
    """Order by the work that jobs have done times the nodes that they ask for, over their weight, as in Tiresias.

    J. Gu et al.: Tiresias: A GPU Cluster Manager for Distributed Deep Learning. NSDI 2019.
    """

    unit, scale, keeps_keys = "node-hours done", 3600.0, True

    def keys(self, state: State, job_ids: Sequence[str]) -> Floats:
        """Return node-seconds, shape (n,)."""
        rows = rows_of(state, job_ids)
        return np.asarray(done_s(state, rows) * nodes_of(state, rows) / weights(state, rows))


class Gittins:
    """Order by the inverse of the Gittins index of jobs whose lengths are learned from departures, times nodes over weight.

    Until enough jobs have departed it is `Attained`.
    """

    unit, learns = "expected node-hours", True

    def keys(self, state: State, job_ids: Sequence[str]) -> Iterable[float]:
        """Return node-hours, or node-seconds done until enough jobs have departed, shape (n,)."""
        rows = rows_of(state, job_ids)
        return _compute_expected_keys(state, job_ids, rows, learned_h(state, rows))


class Learned:
    """Order as `Gittins`, with lengths that a regression on the traits of jobs predicts (`rollmux_env.cluster.learned_lengths`)."""

    unit, learns = "expected node-hours", True

    def __init__(self) -> None:
        self._fitted: tuple[object, LearnedLengths | None] = (None, None)

    def keys(self, state: State, job_ids: Sequence[str]) -> Iterable[float]:
        """Return node-hours, or node-seconds done until enough jobs have departed, shape (n,)."""
        departed = state.stays.lengths_h  # replaced at a departure, never changed
        if self._fitted[0] is not departed:
            self._fitted = departed, LearnedLengths.learned(state)
        lengths, rows = self._fitted[1], rows_of(state, job_ids)
        return _compute_expected_keys(state, job_ids, rows, None if lengths is None else lengths.left_h(state, rows))


def _compute_expected_keys(state: State, job_ids: Sequence[str], rows: Ints, left_h: Floats | None) -> Iterable[float]:
    """Return the keys of jobs by the hours that they have left, or those of `Attained` while departures have not taught them."""
    if left_h is None:
        return Attained().keys(state, job_ids)
    return np.asarray(nodes_of(state, rows) / weights(state, rows) * left_h)


@dataclass(frozen=True)
class Fair:
    """Order by the usage of the jobs' users over their weights: nodes charged over time, halved every half-life.

    Attributes:
        held_h: Time for which the nodes that a user's jobs hold count as usage in advance, hours. With 0 all nodes that are free at
            one instant go to the user who is behind, or to the first one while no user has any usage.

    Raises:
        InputError: If the time is invalid.
    """

    unit, scale = "node-hours used", 1.0
    held_h: float = 0.0

    def __post_init__(self) -> None:
        _check_number("held_h", self.held_h)

    def keys(self, state: State, job_ids: Sequence[str]) -> Iterable[float]:
        """Return node-hours."""
        users = [state.job(job_id).user for job_id in job_ids]
        quotas = {user: state.cluster.quota_of(user) for user in {*users}}
        weights = {user: 1.0 if quota is None else quota.weight for user, quota in quotas.items()}
        charges, now_s = state.charges, state.now_s
        usage_h = {user: charges.usage_h(user, now_s) + self.held_h * charges.user_share(user).nodes for user in weights}
        keys = {user: usage_h[user] / weight for user, weight in weights.items()}
        return [keys[user] for user in users]


ORDERS: dict[str, Callable[[], Order]] = {
    "fcfs": FirstCome,
    "shortest": Shortest,
    "area": Area,
    "attained": Attained,
    "gittins": Gittins,
    "learned": Learned,
    "fair": Fair,
}


def rows_of(state: State, job_ids: Sequence[str]) -> Ints:
    """Return the rows of jobs in the job table, shape (n,)."""
    return np.fromiter(map(state.tables.job_rows.__getitem__, job_ids), np.int64, len(job_ids))


def nodes_of(state: State, rows: Ints) -> Floats:
    """Return the nodes that each job asks for on both sides in shape 0, shape (n,)."""
    jobs = state.tables.job_records
    own = jobs["first_shape"][rows]
    return np.asarray((jobs["rollout_nodes"][own] + jobs["training_nodes"][own]).astype(float))


def _check_number(name: str, value: object) -> None:
    """Check the value of a numeric option.

    Raises:
        InputError: If it is no number, or too small.
    """
    least, includes_it = _LOWER_BOUNDS[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or isnan(value):
        raise InputError(f"{name}: must be a number, not {value!r}")
    if value < least or (value == least and not includes_it) or (name != "starve_h" and not isfinite(value)):
        raise InputError(f"{name}: must be {'at least' if includes_it else 'above'} {least:g}, not {value:g}")


@dataclass(frozen=True)
class QueueRules:
    """The rules by which waiting jobs are served.

    Attributes:
        order: Order of the jobs of a priority.
        name: Name of the order.
        backfill: Whether a job that gets no place is passed over.
        park: Whether running jobs may be parked for waiting ones.
        half_life_h: Time after which the usage of a user counts half, hours, at most 1e9.
        starve_h: Time that a job waits, in hours, after which no job behind it is served before it.
        factor: Number of times by which the key of a running job exceeds that of a waiting one of its priority for which it is
            parked.

    Raises:
        InputError: If an option has an invalid value.
    """

    order: Order
    name: str
    backfill: bool
    park: bool = False
    half_life_h: float = HALF_LIFE_H
    starve_h: float = inf
    factor: float = 1.5

    def __post_init__(self) -> None:
        for name in ("backfill", "park"):
            if not isinstance(value := getattr(self, name), bool):
                raise InputError(f"{name}: must be true or false, not {value!r}")
        for name in ("half_life_h", "starve_h", "factor"):
            _check_number(name, getattr(self, name))
        if self.half_life_h > 1e9:
            raise InputError(f"half_life_h: must be at most 1e9, not {self.half_life_h:g}")

    @cached_property
    def _is_users(self) -> bool:
        return is_users(self.order)

    @cached_property
    def keeps_keys(self) -> bool:
        """Whether the key of a job depends on this job alone, and stays the same while it waits."""
        return not self._is_users and getattr(self.order, "keeps_keys", False)

    @cached_property
    def falls(self) -> bool:
        """Whether the key of a job also never rises while it runs."""
        return self.keeps_keys and getattr(self.order, "falls", False)

    @property
    def unit(self) -> str:
        """Unit in which keys are shown, empty for a user's order."""
        return "" if self._is_users else getattr(self.order, "unit", "")

    def shown(self, key: float, state: State) -> float:
        """Return a key of a state in `unit`."""
        if self._is_users:
            return key
        order: Any = self.order
        if getattr(order, "learns", False) and len(state.stays.lengths_h) < MIN_DEPARTED:
            order = Attained  # whose keys it has until then
        return float(key / getattr(order, "scale", 1.0))

    def keys(self, state: State, job_ids: Sequence[str]) -> list[float]:
        """Return the key of each job. The order sees jobs with their estimates.

        Raises:
            PlanError: If an order of a user's raised something, or returned no such numbers.
        """
        if not job_ids:
            return []
        if not self._is_users:
            keys: list[float] = np.asarray(self.order.keys(as_estimated(state), job_ids), dtype=float).tolist()
            return keys
        answer: Any = guarded(self.order.keys, "the order")(shown_to(self.order, state), [*job_ids])
        try:
            keys = [float(key) for key in answer]
        except Exception:
            raise PlanError(f"the order's keys returned {brief(answer)}, which are no numbers") from None
        if len(keys) != len(job_ids):
            raise PlanError(f"the order's keys returned {len(keys)} numbers for {len(job_ids)} jobs")
        if (wrong := next((key for key in keys if isnan(key) or (self.park and key < 0)), None)) is not None:
            raise PlanError(f"the order's keys returned {wrong:g}" + ("; with park=true they are at least 0" if self.park else ""))
        return keys


def rules_of(policy: object) -> QueueRules | None:
    """Return the rules by which a policy wants the queue to be served, or None for one first-come queue without backfill."""
    return getattr(policy, "queue_rules", None)


def half_life_h(policy: object) -> float:
    """Return the time after which the usage of a user counts half under a policy, hours."""
    rules = rules_of(policy)
    return HALF_LIFE_H if rules is None else rules.half_life_h


def queue_rules(options: Mapping[str, Any], own: Callable[[str], Order]) -> QueueRules | None:
    """Return the rules that options name, or None if there are none of `OPTIONS`.

    Args:
        options: Values by name.
        own: Function that creates an order from `module:Class`.

    Raises:
        InputError: If there is no such order, or an option has an invalid value.
    """
    others = {name: value for name, value in options.items() if name in OPTIONS}
    if not others:
        return None
    name = others.pop("order", None)
    if name is None:
        raise InputError(f"{next(iter(others))}: goes with order, which is missing")
    if not isinstance(name, str) or (":" not in name and name not in ORDERS):
        raise InputError(f"order: {not_one_of(str(name), sorted(ORDERS), ', or module:Class of your own')}")
    if name == "fair":
        order: Order = Fair(others.pop("held_h", 0.0))
    elif "held_h" in others:
        raise InputError("held_h: goes with order=fair")
    else:
        order = own(name) if ":" in name else ORDERS[name]()
    with apart("the order"):
        has_keys = callable(getattr(order, "keys", None))
    if not has_keys:
        raise InputError(f"order: {name} has no method `keys`")
    return QueueRules(order, name, others.pop("backfill", name == "fcfs"), **others)


def may_be_passed(state: State, rules: QueueRules, job_id: str) -> bool:
    """Return whether jobs behind a waiting job without a place may be served: with backfill, unless it has waited too long."""
    if not rules.backfill or rules.starve_h == inf:
        return rules.backfill
    parked = state.stays.parked.get(job_id)
    waited_s = state.now_s - state.job(job_id).arrival_s - (0.0 if parked is None else parked.placed_s)
    return waited_s <= rules.starve_h * 3600
