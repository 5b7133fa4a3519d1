"""The nodes of a run, and the binding of processes to them.

A Ray node with the custom resource `rollout_node` or `training_node` provides that number of nodes of the pool: its GPUs, or its
cores if it has none, are divided among them. If no Ray node has such a resource, this machine is divided. If there are no rollout
nodes, all phases run on training nodes (`cluster.one_device`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from rollmux_processes import same_host

from rollmux_env.errors import InputError
from runtime.gpus import named_devices
from runtime.machine import Node, Pool, threads_of
from runtime.machines.own_ray import answers
from runtime.memory import memory

POOLS: tuple[Pool, Pool] = ("rollout", "training")
_Device = TypeVar("_Device", int, int | str)
_Machines = Sequence[
    tuple[Mapping[str, Any], Mapping[Pool, int]]
]  # machines as Ray lists them, each with its number of nodes in each pool
RESOURCE = {"rollout": "rollout_node", "training": "training_node"}


def find_nodes(machines: Sequence[Mapping[str, Any]], nodes_wanted: Mapping[Pool, int], here: str) -> tuple[Node, ...]:
    """Return the nodes of a run.

    Args:
        machines: Machines as `ray.nodes()` lists them.
        nodes_wanted: Number of nodes in each pool if this machine is divided. Without rollout nodes, or with a single GPU and one
            node wanted in each pool, there is one pool.
        here: Id of the Ray node on this machine.

    Raises:
        InputError: If a pool has no node, or this machine has too few devices; one line.
    """
    used = [pool for pool in POOLS if nodes_wanted.get(pool, 1)]
    alive = _alive(machines, used)
    pools = [(machine, counts) for machine, counts in alive if any(counts.values())]
    if not pools:
        own = next(machine for machine, _ in alive if machine["NodeID"] == here)
        alone = int(own["Resources"].get("GPU", 0)) == 1 and max(nodes_wanted.values()) == 1
        return divide_machine(own, {"rollout": 0, "training": 1} if alone else nodes_wanted)
    for pool in used:
        if not any(counts[pool] for _, counts in pools):
            raise InputError(f"--address: no machine of the cluster has the resource {RESOURCE[pool]}, so there is no {pool} node")
    return _carve(pools)


def divide_machine(machine: Mapping[str, Any], counts: Mapping[Pool, int]) -> tuple[Node, ...]:
    """Return the nodes of this machine.

    Args:
        machine: This machine as `ray.nodes()` lists it.
        counts: Number of nodes in each pool.

    Raises:
        InputError: If it has too few devices; one line.
    """
    return _carve([(machine, counts)], here=True)


def new_nodes(machines: Sequence[Mapping[str, Any]], pools: Collection[Pool], known: Collection[Node]) -> tuple[Node, ...]:
    """Return the nodes of machines that have joined since the run began.

    Args:
        machines: Machines as `ray.nodes()` lists them.
        pools: Pools that are used.
        known: All nodes that the run ever had, whose names are not reused.
    """
    old = {node.machine for node in known}
    new = [
        (machine, counts) for machine, counts in _alive(machines, pools) if machine["NodeID"] not in old and any(counts.values())
    ]
    return _named(_carve(new), {node.name for node in known})


def keep_names(nodes: Sequence[Node], known: Collection[Node]) -> tuple[Node, ...]:
    """Return the nodes of a run that continues. Nodes on known machines have their old names, to which drains and groups refer.

    Args:
        nodes: Present nodes, named by their order.
        known: All nodes that the run ever had.
    """
    names: dict[tuple[str, Pool], list[str]] = {}
    for node in known:
        names.setdefault((node.machine, node.pool), []).append(node.name)
    old = [replace(node, name=own.pop(0)) for node in nodes if (own := names.get((node.machine, node.pool)))]
    if not old:
        return tuple(nodes)
    left = {(node.machine, node.cores, node.gpus, node.pool) for node in old}
    new = [node for node in nodes if (node.machine, node.cores, node.gpus, node.pool) not in left]
    return (*old, *_named(new, {node.name for node in old}))


def _alive(machines: Sequence[Mapping[str, Any]], pools: Collection[Pool]) -> _Machines:
    """Return the machines that are alive, by id, each with its number of nodes in each of the pools."""
    alive = sorted((machine for machine in machines if machine["Alive"]), key=lambda machine: str(machine["NodeID"]))
    counts = [{pool: int(machine["Resources"].get(RESOURCE[pool], 0)) for pool in POOLS if pool in pools} for machine in alive]
    return [*zip(alive, counts, strict=True)]


def _named(nodes: Sequence[Node], taken: Collection[str]) -> tuple[Node, ...]:
    """Return nodes with names that are not taken."""
    names = set(taken)
    named = []
    for node in nodes:
        name = next(name for k in count() if (name := f"{node.pool}-{k}") not in names)
        names.add(name)
        named.append(replace(node, name=name))
    return tuple(named)


def _carve(machines: _Machines, here: bool = False) -> tuple[Node, ...]:
    """Divide machines into nodes of each pool.

    Args:
        machines: Machines with the number of nodes in each pool.
        here: Whether it is this machine alone, which a run may divide as it likes.
    """
    nodes: list[Node] = []
    numbers = dict.fromkeys(POOLS, 0)
    for machine, counts in machines:
        total = sum(counts.values())
        resources = machine["Resources"]
        local = same_host(str(machine.get("NodeManagerHostname")), os.uname().nodename)
        gpus: list[int | str] = [*range(int(resources.get("GPU", 0)))]
        names = named_devices() if local else None
        if names is not None and len(names) == len(gpus):
            gpus = [*names]
        cores = sorted(os.sched_getaffinity(0)) if local else list(range(int(resources.get("CPU", 1))))
        devices: Sequence[int | str] = gpus or cores
        if total > len(devices):
            kind = ("GPU" if gpus else "core") + "s" * (len(devices) != 1)
            instead = "; CUDA_VISIBLE_DEVICES='' runs on CPU cores" if gpus and here else ""
            problem = f"{total} nodes are asked of a machine with {len(devices)} {kind}: a node has one of its own at least"
            raise InputError(problem + instead)
        memory_gb = float(resources.get("memory", 0)) / 1e9 if not local else memory().total_gb
        place = 0
        for pool in POOLS:
            for _ in range(counts.get(pool, 0)):
                own, shown = _share(cores, place, total), _share(gpus, place, total)
                device = f"{len(shown)} GPU {_gpu_model(resources)}" if gpus else f"{len(own)} core {_cpu_model()}"
                name = f"{pool}-{numbers[pool]}"
                host = str(machine.get("NodeManagerHostname", ""))
                nodes.append(Node(name, pool, machine["NodeID"], own, shown, round(memory_gb / total, 3), device, host))
                numbers[pool] += 1
                place += 1
    return tuple(nodes)


def _share(devices: Sequence[_Device], place: int, total: int) -> tuple[_Device, ...]:
    """Return part number `place` of devices that are divided into `total` parts."""
    return tuple(devices[len(devices) * place // total : len(devices) * (place + 1) // total])


def _gpu_model(resources: Mapping[str, Any]) -> str:
    return next((name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")), "")


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), os.uname().machine)


def dead_machines(machines: Collection[str]) -> set[str]:
    """Return the Ray nodes, of those named, that are gone: their raylet does not answer. Ray may take half a minute to notice."""
    import ray

    by_id = {str(machine["NodeID"]): machine for machine in ray.nodes()}  # type: ignore[no-untyped-call]
    return {name for name in machines if name not in by_id or not _is_there(by_id[name])}


def _is_there(machine: Mapping[str, Any]) -> bool:
    return machine["Alive"] and answers(f"{machine['NodeManagerAddress']}:{machine['NodeManagerPort']}")


def prepare_process(nodes: Sequence[Node]) -> None:
    """Bind this process to nodes before a library counts cores: set its GPUs, thread counts and cores."""
    threads = str(threads_of(*(node.cores for node in nodes)))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = threads
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # in which nvidia-smi numbers devices, and commands of the same service see them
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    gpus = [gpu for node in nodes for gpu in node.gpus]  # a number is an index among the visible GPUs
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(
        visible[gpu] if isinstance(gpu, int) and visible != [""] else str(gpu) for gpu in gpus
    )
    move_process(nodes)


def move_process(nodes: Sequence[Node]) -> None:
    """Bind all threads of this process to the cores of nodes. Nothing is done for nodes with GPUs."""
    cores = {core for node in nodes for core in node.cores}
    if not cores or any(node.gpus for node in nodes):
        return
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cores)
        except OSError:  # the thread has ended
            continue
