"""Export of a trained model: the weights of a built-in job's checkpoint, as a Hugging Face folder."""

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
    from runtime.engines.model_files import ModelFiles
    from runtime.grpo.state import ShardedTensor

MODELS = "models"
"""Folder in a run's or a service's folder, with a folder for the model of each completed job."""
_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf")
_SHARD = "5GB"  # largest size of a file of weights
_INDEX = "model.safetensors.index.json"


def export_model(folder: Path, job_id: str, to: Path) -> int:
    """Write the model of a job after its last intact checkpoint.

    Args:
        folder: Folder of the run or service.
        job_id: Id of the job.
        to: New folder for the model.

    Returns:
        Number of iterations for which the model has been trained.

    Raises:
        InputError: If there is no such job, model or checkpoint, or the folder cannot be written; one line.
    """
    from runtime.journal.write import read_run  # not at the top: a job's process, which uses `keep_model`, does without the journal

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
    done = record.done[job_id]
    return export_checkpoint(folder / CHECKPOINTS / job_id, done, spec, to)


def export_checkpoint(checkpoints: Path, done: int, spec: TaskJob, to: Path) -> int:
    """Write the model of a built-in job with weights, config and tokenizer, for transformers and vLLM.

    The weights have the number types of the job's initial model. All other files of its folder are copied. One file of weights at a
    time is in memory.

    Args:
        checkpoints: Folder of the job's checkpoints.
        done: Number of completed iterations; a newer checkpoint is ignored.
        spec: The job.
        to: Folder that does not exist yet.

    Returns:
        Number of iterations for which the model has been trained.

    Raises:
        InputError: If there is no intact checkpoint, the initial model is gone, or `to` cannot be written; one line.
    """
    point = newest(checkpoints, done)
    if point.folder is None:
        raise InputError(f"job {spec.id}: has no checkpoint that is whole" + "".join(f"; {line}" for line in point.problems))

    from runtime.engines.model_files import read_model_files
    from runtime.jobs.models import model_directory

    began_with = model_directory(spec.model, spec.seed, Path(spec.folder))
    files = read_model_files(began_with)
    tensors, _ = read_state(point.folder, ("weights",))
    weights = files.checked({name.removeprefix("weights."): rows for name, rows in tensors.items()})
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
    """Write the model of a completed job into the folder of its run or service.

    Args:
        folder: Folder of the run or service.
        checkpoints: Folder of the job's checkpoints.
        spec: The job.

    Returns:
        Line that says where the model is, or why it is missing.
    """
    to = folder / MODELS / spec.id
    try:
        shutil.rmtree(to, ignore_errors=True)  # remains of an earlier job of this name
        iterations = export_checkpoint(checkpoints, spec.iterations, spec, to)
        make_private(to.parent)
    except (InputError, OSError) as error:
        return f"its model is not written: {one_line(str(error), 500)}; `rollmux export` tries again"
    return f"its model after {iterations} iterations is in {to}"


def _write_weights(folder: Path, weights: dict[str, ShardedTensor], files: ModelFiles) -> None:
    """Write weights in the number types of the initial model's files, and read those of one file at a time."""
    import torch
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    known = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    types = {name: known.get(kind, torch.float32) for name, kind in files.types().items()}  # as they are trained
    planned = {name: torch.empty(weights[name].shape, dtype=types[name], device="meta") for name in types}
    split = split_torch_state_dict_into_shards(planned, max_shard_size=_SHARD)
    for name, inside in split.filename_to_tensors.items():
        converted = {one: weights[one][:].to(types[one]).contiguous() for one in inside}
        try:
            save_file(converted, folder / name, metadata={"format": "pt"})
        except SafetensorError as error:  # a full disk
            raise OSError(str(error)) from None
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / _INDEX).write_text(json.dumps(index, indent=2))
