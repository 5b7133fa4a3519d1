"""Common parts of the jobs of scenario files and of job files: phases in shapes, and the checks of ids, shapes and room."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import model_validator

from rollmux_env.fields import FileModel
from rollmux_env.keys.cluster import ONE_DEVICE, SIDES, Cluster, Side
from rollmux_env.keys.phases import Phase
from rollmux_env.keys.shapes import MAX_SHAPES, Phases, Shape, named_keys, reshape_phases
from rollmux_env.validation_errors import field_error

Clash = tuple[str, *tuple[str | int, ...]]
"""A problem in words, and the path of the key that has it, below the job."""


class EveryJob(FileModel):
    """A job, simulated or real. Each kind declares its keys itself: their order is that in which it is written."""

    if TYPE_CHECKING:
        id: str
        user: str

    @abstractmethod
    def own_phases(self) -> Phases:
        """Return both phases of the job as it is written."""

    def phases(self, shape: int = 0) -> Phases:
        """Return both phases in a shape; 0 is the job as it is written, k the k-th of `shapes`."""
        return self.own_phases()

    @property
    def shape_numbers(self) -> range:
        """The numbers of its shapes, from 0, the job as it is written."""
        return range(1)

    def nodes_in(self, shape: int) -> dict[Side, int]:
        """Return the nodes of each side that the job asks for in a shape."""
        phases = self.phases(shape)
        return {"rollout": phases.rollout.nodes, "training": phases.training.nodes}

    def clash(self, cluster: Cluster) -> Clash | None:
        """Return the first thing about the job that does not go with a cluster, or None."""
        return None


class StaleJob(EveryJob):
    """A job that may be asynchronous."""

    if TYPE_CHECKING:
        staleness: int

    @property
    def is_asynchronous(self) -> bool:
        """Whether its rollouts may be ahead of its trainings, and so run beside them."""
        return self.staleness > 0

    def clash(self, cluster: Cluster) -> Clash | None:
        """Return the first thing about the job that does not go with a cluster, or None."""
        if self.is_asynchronous and cluster.one_device:
            return f"does not go with cluster.one_device: {ONE_DEVICE}", "staleness"
        return super().clash(cluster)


class ShapedJob(EveryJob):
    """A job that may run on other nodes than those that it asks for first."""

    # The words of a shape that repeats another, and of one that repeats the job as it is written.
    repeats: ClassVar[tuple[str, str]] = ("is the same as", "changes nothing: it is")

    if TYPE_CHECKING:
        shapes: tuple[Shape, ...]

    def phases(self, shape: int = 0) -> Phases:
        """Return both phases in a shape; 0 is the job as it is written, k the k-th of `shapes`."""
        own = self.own_phases()
        return reshape_phases(*own, self.shapes[shape - 1]) if shape else own

    @property
    def shape_numbers(self) -> range:
        """The numbers of its shapes, from 0, the job as it is written."""
        return range(1 + len(self.shapes))

    def what_differs(self, shape: int) -> object:
        """Return what makes a shape another one than those before it."""
        return self.phases(shape)

    def shape_clashes(self, shape: int) -> Iterator[Clash]:
        """Yield what is wrong with one of `shapes`, numbered from 1."""
        yield from ()

    @model_validator(mode="after")
    def _shapes_differ(self) -> ShapedJob:
        if len(self.shapes) > MAX_SHAPES:
            raise field_error(f"are {len(self.shapes)}; a job has at most {MAX_SHAPES}", "shapes")
        known = [self.what_differs(0)]
        for number, shape in enumerate(self.shapes, 1):
            for problem, *path in self.shape_clashes(number):
                raise field_error(problem, "shapes", number - 1, *path)
            nodes = self.nodes_in(number)["training"]
            for key in named_keys(shape.training).get("by_nodes", ()):
                if key <= nodes:
                    problem = f"must be above training.nodes, which is {nodes}"
                    raise field_error(problem, "shapes", number - 1, "training", "by_nodes", key)
            if (differs := self.what_differs(number)) in known:
                same, (like_another, like_the_job) = known.index(differs), self.repeats
                whose = f"{like_another} shapes[{same - 1}]" if same else f"{like_the_job} the job as it is written"
                raise field_error(whose, "shapes", number - 1)
            known.append(differs)
        return self


def check_jobs(jobs: Sequence[EveryJob], cluster: Cluster | None) -> None:
    """Refuse an id that is given twice, and a job that the empty cluster could not hold, in whichever shape.

    Args:
        jobs: The jobs of a file, in its order.
        cluster: The cluster of the file, or None if it has none.

    Raises:
        PydanticCustomError: Error of `field_error`, at the file's level.
    """
    first: dict[str, int] = {}
    for k, job in enumerate(jobs):
        if first.setdefault(job.id, k) != k:
            raise field_error(f"'{job.id}' is also the id of jobs[{first[job.id]}]", "jobs", k, "id")
        if cluster is None:
            continue
        if clash := job.clash(cluster):
            raise field_error(clash[0], "jobs", k, *clash[1:])
        for number in job.shape_numbers:
            where = ("jobs", k, "shapes", number - 1) if number else ("jobs", k)
            asked = _check_room(cluster, job.phases(number), where)
            if not number and (beyond := cluster.beyond_quota(job.user, asked)):
                raise field_error(beyond, "jobs", k)


def _check_room(cluster: Cluster, phases: Phases, where: tuple[str | int, ...]) -> dict[str, int]:
    """Refuse a job in a shape that the empty cluster could not hold.

    Args:
        cluster: The cluster.
        phases: Both phases of the job in the shape.
        where: Path of the job or the shape.

    Returns:
        The number of nodes that it asks for, by name of the pool.

    Raises:
        PydanticCustomError: Error of `field_error`.
    """
    pools = cluster.pools
    asked = dict.fromkeys(pools, 0)
    for side in SIDES:
        phase: Phase = getattr(phases, side)
        if side == "rollout" and cluster.one_device and phase.pool in SIDES:
            continue
        if phase.pool not in pools:
            which = "" if "pool" in phase.model_fields_set else "by default "
            raise field_error(f"is {which}'{phase.pool}', which is none of {', '.join(pools)}", *where, side, "pool")
        asked[phase.pool] += phase.nodes
        most = pools[phase.pool].max_nodes
        if most is not None and asked[phase.pool] > most:
            who = "asks for" if asked[phase.pool] == phase.nodes else "rollout and training ask for"
            raise field_error(f"{who} {asked[phase.pool]} nodes; the {phase.pool} pool has at most {most}", *where, side, "nodes")
        for field, problem in _memory_problems(cluster, phase, phases.rollout):
            raise field_error(problem, *where, side, field)
    return asked


def _memory_problems(cluster: Cluster, phase: Phase, rollout: Phase) -> Iterator[tuple[str, str]]:
    """Yield the keys of a phase that ask for more memory than its pool has, with the problem; on one device with the rollout's."""
    pool = cluster.pools[phase.pool]
    limits_gb: Mapping[str, tuple[float | None, str]] = {
        "host_memory_gb": (pool.node_memory_gb, "node"),
        "device_gb": (pool.device_memory_gb, "GPU"),
    }
    for field, (limit_gb, what) in limits_gb.items():
        memory_gb = getattr(phase, field) + (getattr(rollout, field) if cluster.one_device else 0.0)
        if limit_gb is not None and memory_gb > limit_gb * (1 + 1e-9):
            who = "the job asks for" if cluster.one_device else "asks for"
            yield field, f"{who} {memory_gb:.10g} GB; a {phase.pool} {what} has {limit_gb:.10g} GB"
