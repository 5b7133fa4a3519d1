"""A trained model on its way out: the weights of a checkpoint of a built-in job, as a Hugging Face folder."""

from __future__ import annotations

import json
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from rollmux_env.errors import InputError
from rollmux_env.files import make_private
from rollmux_env.validation_errors import describe, one_line
from runtime.checkpoints import CHECKPOINTS, newest
from runtime.grpo.state import read_state
from runtime.jobs.spec import ClassJob, TaskJob

if TYPE_CHECKING:
    from torch import Tensor

    from runtime.engines.model_files import ModelFiles

MODELS = "models"
"""Folder of a run or a service with the models of the jobs that are done, a folder each."""
_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf")
_SHARD = "5GB"  # of a file of weights
_INDEX = "model.safetensors.index.json"


def export_model(folder: Path, job_id: str, to: Path) -> int:
    """Write the model of a job of a run or a service as it is after its last whole checkpoint.

    Args:
        folder: of the run or service. to: a new folder.

    Returns:
        The iterations that the model has been trained for.

    Raises:
        InputError: there is no such job, model or checkpoint, or the folder cannot be written; one line.
    """
    from runtime.journal.write import read_run  # the process of a job, which writes its model with what follows, needs none

    record = read_run(folder)
    specs = {fact.spec.id: fact.spec for fact in record.submitted}
    if job_id not in specs:
        raise InputError(f"{one_line(str(folder), 4096)}: has no job {describe(job_id)}; its jobs are {', '.join(specs)}")
    spec = specs[job_id]
    if not isinstance(spec, TaskJob):
        whose = f"is of the class {spec.job_class}, which" if isinstance(spec, ClassJob) else "runs elsewhere, and"
        raise InputError(f"job {job_id}: {whose} has to write its model itself")
    if to.exists() or to.is_symlink():
        raise InputError(f"--to {one_line(str(to), 4096)}: is there already; give the name of a new folder")
    done = sum(iteration.job_id == job_id for iteration in record.iterations)
    return export_checkpoint(folder / CHECKPOINTS / job_id, done, spec, to)


def export_checkpoint(checkpoints: Path, done: int, spec: TaskJob, to: Path) -> int:
    """Write the model of a built-in job: weights, config and tokenizer, for transformers and vLLM.

    The weights have the type of numbers of the model that the job began with. All else in its folder is copied. A file of weights
    at a time is in memory.

    Args:
        checkpoints: of the job. done: its iterations; a newer checkpoint does not count. to: a folder that is not there.

    Returns:
        The iterations that the model has been trained for.

    Raises:
        InputError: there is no whole checkpoint, the model that it began with has gone, or `to` cannot be written; one line.
    """
    point = newest(checkpoints, done)
    if point.folder is None:
        raise InputError(f"job {spec.id}: has no checkpoint that is whole" + "".join(f"; {line}" for line in point.problems))

    from runtime.engines.model_files import read_model_files
    from runtime.jobs.models import model_directory

    began_with = model_directory(spec.model, spec.seed, Path(spec.folder))
    files = read_model_files(began_with)
    tensors, _ = read_state(point.folder, ("weights",))
    weights = files.checked({name.removeprefix("weights."): rows[:] for name, rows in tensors.items()})
    part = to.with_name(f".rollmux-{secrets.token_hex(6)}.part")
    try:
        part.mkdir(parents=True)
        for file in began_with.iterdir():
            if file.is_file() and not file.name.endswith(_WEIGHTS):
                shutil.copyfile(file, part / file.name)
        _write_weights(part, weights, files)
        part.rename(to)
    except OSError as error:
        raise InputError(f"{one_line(str(to), 4096)}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return point.iterations


def keep_model(folder: Path, checkpoints: Path, spec: TaskJob) -> str:
    """Write the model of a job that is done into the folder of its run or service; a line that says where it is, or why not.

    Args:
        folder: of the run. checkpoints: of the job.
    """
    to = folder / MODELS / spec.id
    try:
        shutil.rmtree(to, ignore_errors=True)  # of an earlier job of this name
        iterations = export_checkpoint(checkpoints, spec.iterations, spec, to)
        make_private(to.parent)
    except (InputError, OSError) as error:
        return f"its model is not written: {one_line(str(error), 500)}; `rollmux export` tries again"
    return f"its model after {iterations} iterations is in {to}"


def _write_weights(folder: Path, weights: dict[str, Tensor], files: ModelFiles) -> None:
    """Write weights in the types that they have in the files, a file after the other."""
    import torch
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    known = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    types = {name: known.get(kind, weights[name].dtype) for name, kind in files.types().items()}
    planned = {name: torch.empty(weights[name].shape, dtype=types[name], device="meta") for name in types}
    split = split_torch_state_dict_into_shards(planned, max_shard_size=_SHARD)
    for name, inside in split.filename_to_tensors.items():
        converted = {one: weights[one].to(types[one]).contiguous() for one in inside}
        try:
            save_file(converted, folder / name, metadata={"format": "pt"})
        except SafetensorError as error:  # a full disk
            raise OSError(str(error)) from None
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / _INDEX).write_text(json.dumps(index, indent=2))
