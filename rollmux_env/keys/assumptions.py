"""What studies assume where nobody has published it: `ours`, what the phase-time `model` says instead, or a file of the user's.

A file is a mapping of the sections below; a key that it leaves out is ours. A study takes the sections that it has.
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
    """Numbers that the phase-time model can say too."""

    numbers: ClassVar[tuple[str, ...]]
    model: bool = False
    """Whether the phase-time model says them."""

    @model_validator(mode="after")
    def _one_of_both(self) -> _OrModel:
        for name in self.numbers:
            if self.model and name in self.model_fields_set:
                raise field_error("does not go with model: true, which says it", name)
        return self


class Scaling(_OrModel):
    """How a phase's seconds fall on n times the nodes: fixed + (1 - fixed) / n times as long (Amdahl's law)."""

    numbers = ("rollout", "training")
    rollout: Share = 0.25
    """Part of a rollout that more nodes do not shorten: the tail."""
    training: Share = 0.15
    """Part of a training that they do not: communication."""


class Third(_OrModel):
    """Nodes of a third kind.

    An A100 has half the memory bandwidth of an H20 and a third of the arithmetic of an H800; phases reach neither peak. By our
    price and times training there costs 9% less, and a rollout 69% more.
    """

    numbers = ("rollout", "training")
    pool: Pool = Pool(gpu="A100", gpus_per_node=8, usd_per_gpu_hour=2.40, node_memory_gb=2000)
    """Its nodes; their GPU names the pool."""
    rollout: Positive = 1.3
    """How many times as long a rollout takes there."""
    training: Positive = 2.0
    """How many times as long a training takes there."""

    @property
    def name(self) -> str:
        """Of the pool."""
        return self.pool.gpu

    @model_validator(mode="after")
    def _named(self) -> Third:
        if self.pool.gpu in ("", "rollout", "training"):
            raise field_error("must name the pool: another text than rollout and training", "pool", "gpu")
        return self


class Asynchrony(_OrModel):
    """Jobs that are asynchronous."""

    numbers = ("sync",)
    staleness: Annotated[tuple[Annotated[Staleness, Field(ge=1)], ...], Field(strict=False, min_length=1)] = (1, 2, 4)
    """What a job's staleness may be, all equally likely."""
    sync: NonNegative = 0.2
    """Seconds of a sync, as a part of both phases."""


class Rates(FileModel):
    """How often what dies, mean hours, and what that costs: keys of `--failures`. Those that are there replace a suite's own."""

    node_h: Overriding[Positive] = None
    """Until a node dies."""
    job_h: Overriding[Positive] = None
    """Until a job dies."""
    scheduler_h: Overriding[Positive] = None
    """Until the scheduler dies."""
    scheduler_down_s: Overriding[Positive] = None
    """Seconds until it is back."""
    write_s: Overriding[NonNegative] = None
    """Seconds that a job waits for a checkpoint."""


class Assumptions(FileModel):
    """A file of assumptions."""

    shapes: Scaling = Scaling()
    """Seconds on other numbers of nodes."""
    third_pool: Third = Third()
    """Nodes of a third kind."""
    asynchrony: Asynchrony = Asynchrony()
    """Jobs that are asynchronous."""
    durations: Overriding[Actual] = None
    """What phases really take, drawn in every iteration of an event replay; left out: their worst case."""
    failures: Rates = Rates()
    """How often what dies."""
    fabric: FabricStudy = FabricStudy()
    """Jobs, prices and traffic of the suite `fabric`."""


NAMED = {
    "ours": Assumptions(),
    "model": Assumptions(shapes=Scaling(model=True), third_pool=Third(model=True), asynchrony=Asynchrony(model=True)),
}
"""Assumptions by name."""
OURS = NAMED["ours"]


def assumed(name: str | Path) -> Assumptions:
    """The assumptions of a name or of a file. Raises what `find_assumptions` does."""
    return find_assumptions(name)[0]


def find_assumptions(name: str | Path) -> tuple[Assumptions, Path]:
    """The assumptions of a name or of a file, and the folder that paths in them are relative to.

    Raises:
        InputError: there is neither, or a key has a value that it cannot have; one line with file, key and problem.
    """
    if name in NAMED:
        return NAMED[str(name)], Path()
    path = Path(name)
    if not path.suffix and not path.exists():
        raise InputError(f"assumptions: {not_one_of(str(name), NAMED, ', or a file')}")
    path = find_file(path)
    return checked(Assumptions, read_mapping(path), str(path), lambda data: data), path.parent
