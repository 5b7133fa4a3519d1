"""Keys of `cluster` in scenario and job files: the pools, and settings for all groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, SerializationInfo, SerializerFunctionWrapHandler, model_serializer, model_validator

from rollmux_env.fields import EVERY_USER, Count, FileModel, NonNegative, PoolName, QuotaName, Unwritten
from rollmux_env.keys.network import Network
from rollmux_env.keys.queue import Quota
from rollmux_env.validation_errors import field_error

Side = Literal["rollout", "training"]
SIDES: tuple[Side, Side] = ("rollout", "training")
ONE_DEVICE = "a device runs one phase after the other"


class Pool(FileModel):
    """Nodes of one kind."""

    gpu: str = ""
    """Label of the GPU type; it sets no price."""
    gpus_per_node: Count
    """Number of GPUs per node."""
    usd_per_gpu_hour: NonNegative
    """Price of one GPU, $/h."""
    node_memory_gb: NonNegative | None = None
    """Host memory of a node, GB; null is unlimited."""
    device_memory_gb: NonNegative | None = None
    """Memory of each GPU for jobs between their phases, GB; null is unlimited."""
    max_nodes: Count | None = None
    """Largest number of nodes at once; null is unlimited."""

    @property
    def usd_per_node_hour(self) -> float:
        """Price of a node, $/h."""
        return self.gpus_per_node * self.usd_per_gpu_hour


_IGNORED_POOL = Pool(gpus_per_node=1, usd_per_gpu_hour=0.0)


class Cluster(FileModel):
    """The pools, and settings for all groups."""

    rollout: Unwritten[Pool | None] = None
    """Short for the pool of this name; ignored with `one_device`."""
    training: Unwritten[Pool | None] = None
    """Short for the pool of this name."""
    by_name: Unwritten[Annotated[dict[PoolName, Pool], Field(alias="pools")]] = Field(default={})
    """All pools by name, instead of `rollout` and `training`."""
    max_group_size: Count = 5
    """Largest number of jobs in a co-execution group."""
    migration_s: NonNegative = 300.0
    """Pause of a job that is moved, seconds."""
    resume_s: Annotated[NonNegative | None, Field(exclude_if=lambda resume_s: resume_s is None)] = None
    """Pause of a parked job that gets a place again, seconds; null is as `migration_s`."""
    min_run_s: Annotated[NonNegative, Field(exclude_if=lambda min_run_s: min_run_s == 1800)] = 1800.0
    """Shortest time between getting a place and being parked, seconds."""
    one_device: Unwritten[bool] = False
    """Whether `training` is the only pool and runs both phases."""
    quotas: Unwritten[dict[QuotaName, Quota]] = Field(default={})
    """Limits of what the jobs of a user may hold at once, by user; `"*"` is each user without an entry."""
    network: Unwritten[Network | None] = None
    """Link that all syncs share; null: they do not slow each other."""

    @model_validator(mode="after")
    def _all_pools(self) -> Cluster:
        short = [name for name in SIDES if name in self.model_fields_set]
        for name in short:
            if getattr(self, name) is None:
                raise field_error("has no value (null); it must be a mapping", name)
        if "by_name" in self.model_fields_set:
            self._check_named(short)
        wanted = ("training",) if self.one_device else () if self.by_name else SIDES
        if missing := [name for name in wanted if name not in (*short, *self.by_name)]:
            raise field_error("is missing", *(["pools"] if self.by_name else []), missing[0])
        if self.one_device and self.network is not None:
            raise field_error("does not go with one_device: there are no two pools to link", "network")
        return self

    def _check_named(self, short: Sequence[str]) -> None:
        """Refuse `pools` that are empty or given in both forms."""
        if short:
            raise field_error(f"does not go with cluster.{short[0]}, which is short for a pool of that name", "pools")
        if not self.by_name:
            raise field_error("is empty", "pools")
        if self.one_device and (others := [name for name in self.by_name if name not in SIDES]):
            raise field_error("does not go with one_device, where training is the only pool", "pools", others[0])

    @model_serializer(mode="wrap")
    def _in_short(self, serialize: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """Write pools in the short form if possible, so that both forms have the same text and the same hash."""
        data: dict[str, Any] = serialize(self)
        if pools := data.pop("by_name", {}) or data.pop("pools", {}):
            data |= pools if set(pools) <= set(SIDES) else {"pools": pools}
        if self.one_device and not info.exclude_defaults and not info.exclude_unset:
            data.setdefault("rollout", _IGNORED_POOL.model_dump(exclude_none=True))
        return data

    @property
    def pools(self) -> dict[str, Pool]:
        """Existing pools by name; their numbers in `rollmux_env.kernel` follow this order."""
        pools = self.by_name or {name: pool for name in SIDES if (pool := getattr(self, name)) is not None}
        return {"training": pools["training"]} if self.one_device else pools

    @property
    def resume_pause_s(self) -> float:
        """Pause of a parked job when it gets a place again, seconds."""
        return self.migration_s if self.resume_s is None else self.resume_s

    @property
    def sides(self) -> tuple[Side, ...]:
        """Sides of a group that have nodes."""
        return ("training",) if self.one_device else SIDES

    def with_pools(self, pools: Mapping[str, Pool]) -> Cluster:
        """Return the cluster with the pools of the given names replaced."""
        return self.model_copy(update={"by_name": {**self.by_name, **pools}} if self.by_name else {**pools})

    def quota_of(self, user: str) -> Quota | None:
        """Return the quota of a user, which may be that of each user without an entry, or None."""
        return self.quotas.get(user) or self.quotas.get(EVERY_USER)

    def with_quota(self, user: str, quota: Quota | None) -> Cluster:
        """Return the cluster with another quota of a user, or without one of the user's own."""
        others = {name: one for name, one in self.quotas.items() if name != user}
        return self.model_copy(update={"quotas": others if quota is None else {**others, user: quota}})

    def beyond_quota(self, user: str, nodes: Mapping[str, int]) -> str | None:
        """Return in words how a job alone exceeds its user's quota, or None.

        Args:
            user: Name of the job's user.
            nodes: Number of nodes that the job asks for, by pool.
        """
        quota = self.quota_of(user)
        if quota is None:
            return None
        count = sum(nodes.values())
        usd = sum(nodes[name] * pool.usd_per_node_hour for name, pool in self.pools.items())
        who = f"user {user}" if user else "the user without a name"
        if quota.nodes is not None and count > quota.nodes:
            return f"asks for {count} nodes; {who} has a quota of {quota.nodes}"
        if quota.usd_per_hour is not None and usd > quota.usd_per_hour * (1 + 1e-9):
            return f"asks for nodes of {usd:.10g} $/h; {who} has a quota of {quota.usd_per_hour:.10g}"
        return None
