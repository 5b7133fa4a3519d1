"""The ranks that train a job together: their rendezvous, torch's process group, and tensors that are sharded over the ranks.

A model is loaded from a Hugging Face directory and sharded with FSDP2. Only the host memory of rank 0 holds all of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from runtime.engines.pretrained import load_config, load_model
from runtime.training.loss import prepare_scoring
from runtime.training.memory import LARGE

_LOOPBACK = "127.0.0.1"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR

_TIMEOUT = timedelta(minutes=10)  # for a rank that hangs; one that has died is noticed at once
_members = 0  # number of trainers of this process in its group


def join_group(rank: int, world: int, rendezvous: str | None, device: torch.device, cpu_offload: bool = False) -> DeviceMesh:
    """Enter the group of a job's ranks: NCCL on GPUs, gloo on CPUs. Every rank calls it, and it returns when all have.

    Args:
        rank: This rank.
        world: Number of ranks.
        rendezvous: `tcp://host:port` of rank 0, whose process has opened the store there (`open_store`); `file://path` on one
            machine; or None for a single rank.
        device: Device of this rank.
        cpu_offload: Whether tensors in host memory take part too. On GPUs this adds gloo to NCCL, for the norm of gradients.

    Raises:
        ValueError: Rank, world and rendezvous do not match.
        RuntimeError: This process is in a group of another size.
    """
    global _members
    if not 0 <= rank < world or (world > 1 and rendezvous is None):
        raise ValueError(f"rank {rank} of {world} with rendezvous {rendezvous}: more than one rank need a place to meet")
    if dist.is_initialized():
        if world > 1 or dist.get_world_size() > 1:
            raise RuntimeError("this process trains in a group already; close its trainer first")
    else:
        on_gpu = "cpu:gloo,cuda:nccl" if cpu_offload else "nccl"
        backend = on_gpu if device.type == "cuda" else "gloo"
        listen_near(rendezvous)
        if world == 1:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        else:
            dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=world, timeout=_TIMEOUT)
    _members += 1
    return init_device_mesh(device.type, (world,))


def leave_group() -> None:
    """Leave the group. The last trainer of the process destroys it."""
    global _members
    _members -= 1
    if _members == 0:
        dist.destroy_process_group()


def reshard(model: nn.Module) -> None:
    """Free parameters that a forward pass without a backward pass has left gathered."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def whole(tensor: Tensor) -> Tensor:
    """Gather a tensor that is sharded over the ranks on the device. Every rank calls it."""
    full: Any = tensor
    if hasattr(full, "full_tensor"):  # even an offloaded tensor goes through the device, where the ranks have their network
        full = full.to(full.device_mesh.device_type).full_tensor()
    return cast(Tensor, full)


def own_part(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor."""
    own: Tensor = tensor.detach()
    return own.to_local() if hasattr(own, "to_local") else own


class Sliced(Protocol):
    """A whole tensor, or an object that reads rows of one on demand."""

    @property
    def shape(self) -> Sequence[int]:
        """Shape of the whole tensor."""

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Return some rows."""


def shard_of(full: Sliced, like: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return this rank's part of a whole tensor that is sharded like another one. The part of a tensor is a view."""
    if not hasattr(like, "to_local"):
        return full[:]
    size = -(-full.shape[0] // mesh.size())
    first = mesh.get_local_rank() * size
    return full[first : first + size]


def load_sharded(directory: Path, mesh: DeviceMesh, cpu_offload: bool = False) -> nn.Module:
    """Load a causal language model in float32, with a shard of every parameter on each rank. Every rank calls it.

    Rank 0 reads the files. The others receive the model layer by layer, and keep their shard of it.

    On GPUs the model computes in bf16 and accumulates gradients in float32. Activations of a model that is no toy are recomputed in
    the backward pass. Dropout is off, because the probabilities in training must be those of sampling.

    Args:
        directory: The Hugging Face directory.
        mesh: Device mesh of the ranks.
        cpu_offload: Whether shards and gradients are in host memory and move to the device layer by layer. `join_group` needs the
            same value.
    """
    model = _load(directory, whole=mesh.get_rank() == 0)
    on_gpu = mesh.device_type == "cuda"
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if on_gpu else MixedPrecisionPolicy()
    # torch would round page-locked memory up to powers of two and keep that of gradients, so `Trainer` locks only the shards.
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
    """Load the model, or create it without data on the meta device."""
    from transformers import AutoModelForCausalLM

    config = load_config(directory)
    for name, value in config.to_dict().items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    model: nn.Module
    if whole:
        model = load_model(directory, torch.float32, config)
    else:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)  # type: ignore[no-untyped-call]
    return model


def _hand_out(module: nn.Module, device: torch.device) -> None:
    """Broadcast a module from rank 0 to all ranks, except its layers that are already sharded."""
    handed: dict[Tensor, Tensor] = {}
    for part in module.modules():
        own = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
        for name, tensor in own:
            if hasattr(tensor, "full_tensor"):
                continue
            if tensor not in handed:  # otherwise it is tied to another one
                copy = torch.empty_like(tensor, device=device, requires_grad=False)  # not over the memory of the file
                if not tensor.is_meta:
                    copy.copy_(tensor.detach())
                if dist.get_world_size() > 1:
                    dist.broadcast(copy, 0)
                handed[tensor] = nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copy
            setattr(part, name, handed[tensor])


def open_store(host: str) -> TCPStore:
    """Open the store of a job's ranks at a port of this address only. torch's own store would listen at all addresses.

    There is no authentication. The port is taken from now on, and the process group that this process joins shares the store.
    """
    server = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024)
    port = server.getsockname()[1]
    return TCPStore(host, port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=server.detach())


def url_of(host: str, port: int) -> str:
    """Return the URL of the store for `join_group`."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def listen_near(rendezvous: str | None) -> None:
    """Let gloo and NCCL listen at the address by which this machine reaches the others, unless the user has set another one.

    By default gloo uses the address of the machine's name, and NCCL those of all networks.

    Args:
        rendezvous: Rendezvous as for `join_group`. Without a host, all ranks are on this machine and use its loopback address.
    """
    name = interface_of(_own_address(rendezvous))
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # "=" for this one only, not all with this prefix


def interface_of(address: str) -> str | None:
    """Return the network interface that has an address, or None if it is not the first address of any."""
    for _, name in socket.if_nameindex():
        if address in _addresses(name):
            return name
    return None


def _own_address(rendezvous: str | None) -> str:
    place = urlsplit(rendezvous or "")
    if place.scheme != "tcp" or place.hostname is None:
        return _LOOPBACK
    family, kind, protocol, _, there = socket.getaddrinfo(place.hostname, place.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(there)  # sends nothing, but lets the kernel choose the address from which it would send
        return str(probe.getsockname()[0])


def _addresses(interface: str) -> set[str]:
    """Return the first IPv4 address of an interface, and all of its IPv6 addresses."""
    addresses = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):  # without an IPv4 address
        answer = fcntl.ioctl(probe, _GET_ADDRESS, struct.pack("256s", interface.encode()[:15]))
        addresses.add(socket.inet_ntoa(answer[20:24]))
    table = Path("/proc/net/if_inet6")
    for line in table.read_text().splitlines() if table.exists() else ():
        address, *_, name = line.split()
        if name == interface:
            addresses.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(address)))
    return addresses
