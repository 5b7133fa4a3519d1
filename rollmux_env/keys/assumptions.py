"""Assumptions of studies about values that are not published: `ours`, those of the phase-time `model`, or a user's file.

A file is a mapping of the sections below; a missing key has our value. A study uses the sections that concern it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from rollmux_env.errors import InputError
from rollmux_env.fields import FileModel, NonNegative, Overriding, Positive, Staleness
from rollmux_env.files import find_file
from rollmux_env.keys.cluster import Pool
from rollmux_env.keys.fabric import FabricStudy
from rollmux_env.keys.phases import Actual
from rollmux_env.reading import checked, read_mapping
from rollmux_env.validation_errors import field_error, not_one_of

Share = Annotated[float, Field(ge=0, le=1)]


class _OrModel(FileModel):
    """Numbers that the phase-time model can also provide."""

    numbers: ClassVar[tuple[str, ...]]
    model: bool = False
    """Whether the phase-time model provides them."""

    @model_validator(mode="after")
    def _one_of_both(self) -> _OrModel:
        for name in self.numbers:
            if self.model and name in self.model_fields_set:
                raise field_error("does not go with model: true, which provides it", name)
        return self


class Scaling(_OrModel):
    """Scaling of a phase: on n times the nodes it takes fixed + (1 - fixed) / n times as long (Amdahl's law)."""

    numbers = ("rollout", "training")
    rollout: Share = 0.25
    """Part of a rollout that more nodes do not shorten: the tail."""
    training: Share = 0.15
    """Part of a training that more nodes do not shorten: communication."""


class Third(_OrModel):
    """A pool of nodes of a third kind.

    An A100 has half the memory bandwidth of an H20 and a third of the arithmetic of an H800; phases reach neither peak. With the
    default price and factors a training there costs 9% less, and a rollout 69% more.
    """

    numbers = ("rollout", "training")
    pool: Pool = Pool(gpu="A100", gpus_per_node=8, usd_per_gpu_hour=2.40, node_memory_gb=2000)
    """Nodes of the pool; their GPU type is the name of the pool."""
    rollout: Positive = 1.3
    """Duration of a rollout there, as a multiple of that on the job's own nodes."""
    training: Positive = 2.0
    """Duration of a training there, as a multiple of that on the job's own nodes."""

    @property
    def name(self) -> str:
        """Name of the pool."""
        return self.pool.gpu

    @model_validator(mode="after")
    def _named(self) -> Third:
        if self.pool.gpu in ("", "rollout", "training"):
            raise field_error("must name the pool: another text than rollout and training", "pool", "gpu")
        return self


class Asynchrony(_OrModel):
    """Asynchronous jobs."""

    numbers = ("sync",)
    staleness: Annotated[tuple[Annotated[Staleness, Field(ge=1)], ...], Field(strict=False, min_length=1)] = (1, 2, 4)
    """Stalenesses of asynchronous jobs, all equally likely."""
    sync: NonNegative = 0.2
    """Seconds of a sync, as a share of the seconds of both phases."""


class Rates(FileModel):
    """Rates of failures and their costs, which are keys of `--failures`. Given keys override those of a suite."""

    node_h: Overriding[Positive] = None
    """Mean hours until a node dies."""
    job_h: Overriding[Positive] = None
    """Mean hours until a job dies."""
    scheduler_h: Overriding[Positive] = None
    """Mean hours until the scheduler dies."""
    scheduler_down_s: Overriding[Positive] = None
    """Seconds until the scheduler is back."""
    write_s: Overriding[NonNegative] = None
    """Seconds that a job waits until a checkpoint is written."""


class Assumptions(FileModel):
    """A file of assumptions."""

    shapes: Scaling = Scaling()
    """How phases scale with nodes."""
    third_pool: Third = Third()
    """Pool of nodes of a third kind."""
    asynchrony: Asynchrony = Asynchrony()
    """Asynchronous jobs."""
    durations: Overriding[Actual] = None
    """Actual durations of phases, drawn in every iteration of an event replay. Default: their worst case."""
    failures: Rates = Rates()
    """Rates of failures and their costs."""
    fabric: FabricStudy = FabricStudy()
    """Jobs, prices and traffic of the suite `fabric`."""


NAMED = {
    "ours": Assumptions(),
    "model": Assumptions(shapes=Scaling(model=True), third_pool=Third(model=True), asynchrony=Asynchrony(model=True)),
}
"""Assumptions by name."""
OURS = NAMED["ours"]


def assumed(name: str | Path) -> Assumptions:
    """Return the assumptions of a name or of a file. Errors are those of `find_assumptions`."""
    return find_assumptions(name)[0]


def find_assumptions(name: str | Path) -> tuple[Assumptions, Path]:
    """Return the assumptions of a name or of a file, and the folder to which paths in them are relative.

    Args:
        name: Key of `NAMED`, or path of a file.

    Raises:
        InputError: If there is neither, or a key has an invalid value. The message names file, key and problem.
    """
    if name in NAMED:
        return NAMED[str(name)], Path()
    path = Path(name)
    if not path.suffix and not path.exists():
        raise InputError(f"assumptions: {not_one_of(str(name), NAMED, ', or a file')}")
    path = find_file(path)
    return checked(Assumptions, read_mapping(path), str(path), lambda data: data), path.parent
