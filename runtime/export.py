"""A trained model on its way out: the weights of a checkpoint of a built-in job, as a Hugging Face folder."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import describe, one_line
from runtime.checkpoints import newest
from runtime.execution.run_state import CHECKPOINTS
from runtime.grpo.state import read_state
from runtime.journal import read_run

_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf")
_SHARD = "5GB"  # of a file of weights


def export_model(folder: Path, job_id: str, to: Path) -> int:
    """Write the model of a job as it is after its last whole checkpoint: weights, config and tokenizer, for transformers and vLLM.

    The weights have the type of numbers of the model that the job began with. All else in its folder is copied.

    Args:
        folder: of a run or a service. to: a new folder.

    Returns:
        The iterations that the model has been trained for.

    Raises:
        InputError: there is no such job, model or checkpoint, or the folder cannot be written; one line.
    """
    record = read_run(folder)
    specs = {fact.spec.id: fact.spec for fact in record.submitted}
    if job_id not in specs:
        raise InputError(f"{one_line(str(folder), 4096)}: has no job {describe(job_id)}; its jobs are {', '.join(specs)}")
    spec = specs[job_id]
    if spec.task is None:
        raise InputError(f"job {job_id}: is of the class {spec.job_class}, which has to write its model itself")
    if to.exists() or to.is_symlink():
        raise InputError(f"--to {one_line(str(to), 4096)}: is there already; give the name of a new folder")
    done = sum(iteration.job_id == job_id for iteration in record.iterations)
    point = newest(folder / CHECKPOINTS / job_id, done)
    if point.folder is None:
        raise InputError(f"job {job_id}: has no checkpoint that is whole" + "".join(f"; {line}" for line in point.problems))

    from huggingface_hub import save_torch_state_dict

    from runtime.engines.model_files import read_model_files
    from runtime.jobs.models import model_directory

    began_with = model_directory(spec.model, spec.seed, Path(spec.folder))
    files = read_model_files(began_with)
    tensors, _ = read_state(point.folder, ("weights",))
    weights = files.checked({name.removeprefix("weights."): tensor for name, tensor in tensors.items()})
    part = to.with_name(f".rollmux-{secrets.token_hex(6)}.part")
    try:
        part.mkdir(parents=True)
        for file in began_with.iterdir():
            if file.is_file() and not file.name.endswith(_WEIGHTS):
                shutil.copyfile(file, part / file.name)
        converted = {name: weights[name].to(tensor.dtype) for name, tensor in files.tensors()}
        save_torch_state_dict(converted, part, max_shard_size=_SHARD)
        part.rename(to)
    except OSError as error:
        raise InputError(f"--to {one_line(str(to), 4096)}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return point.iterations
