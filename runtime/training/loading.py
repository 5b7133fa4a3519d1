"""A model from a Hugging Face directory, sharded over the ranks of a job with FSDP2; whole in the host memory of rank 0 alone."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from runtime.training.memory import LARGE
from runtime.training.output_layer import prepare_scoring


def load_sharded(directory: Path, mesh: DeviceMesh, cpu_offload: bool = False) -> nn.Module:
    """A causal language model in float32, each rank with its shard of every parameter. Every rank calls it.

    Rank 0 reads the files. The others get the model a layer at a time, and keep their shard of it.

    On GPUs it computes in bf16 and adds gradients up in float32. Activations of a model that is no toy are recomputed in the
    backward pass. Dropout is off: the probabilities trained on have to be those sampled from.

    Args:
        cpu_offload: shards and gradients are in host memory, and go to the device a layer at a time; needs `join_group` to know.
    """
    model = _load(directory, whole=mesh.get_rank() == 0)
    on_gpu = mesh.device_type == "cuda"
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if on_gpu else MixedPrecisionPolicy()
    # Not page-locked: torch rounds such memory up to powers of two, and keeps that of gradients between phases.
    offload = CPUOffloadPolicy(pin_memory=False) if cpu_offload else OffloadPolicy()
    model.train()
    if sum(parameter.numel() for parameter in model.parameters()) >= LARGE:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  # type: ignore[operator]
    prepare_scoring(model)
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    layers = set(getattr(model, "_no_split_modules", None) or ())
    for module in [module for module in model.modules() if type(module).__name__ in layers]:
        _hand_out(module, device)
        fully_shard(module, mesh=mesh, mp_policy=precision, offload_policy=offload)
    _hand_out(model, device)
    model.tie_weights()  # type: ignore[operator]
    fully_shard(model, mesh=mesh, mp_policy=precision, offload_policy=offload)
    return model


def _load(directory: Path, whole: bool) -> nn.Module:
    """The model, or only its shape, on the meta device."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    for name, value in config.to_dict().items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    model: nn.Module
    if whole:
        model = AutoModelForCausalLM.from_pretrained(directory, config=config, local_files_only=True, dtype=torch.float32)
    else:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    return model


def _hand_out(module: nn.Module, device: torch.device) -> None:
    """Give all ranks what rank 0 has of a module, but for layers in it that are sharded already."""
    handed: dict[Tensor, Tensor] = {}
    for part in module.modules():
        own = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
        for name, tensor in own:
            if hasattr(tensor, "full_tensor"):
                continue
            if tensor not in handed:  # else it is tied to another one
                copy = torch.empty_like(tensor, device=device, requires_grad=False)  # memory of its own, not the file's
                if not tensor.is_meta:
                    copy.copy_(tensor.detach())
                if dist.get_world_size() > 1:
                    dist.broadcast(copy, 0)
                handed[tensor] = nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copy
            setattr(part, name, handed[tensor])
