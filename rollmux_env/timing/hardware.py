"""Accelerators: published peaks, achieved rates, and links.

`Gpu` holds published figures. `Hardware` holds achieved rates: those that a calibration (`rollmux_env.timing.calibration`) predicts
from the published figures, or those that `rollmux profile` measured on a real engine. Calculations use only `Hardware`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from rollmux_env.errors import InputError
from rollmux_env.fields import Checked, NonNegative, Positive
from rollmux_env.files import read_json
from rollmux_env.published import source
from rollmux_env.timing.calibration import CALIBRATIONS, PHYSICAL, ROLLMUX, Calibration
from rollmux_env.timing.models import ModelShape
from rollmux_env.validation_errors import not_one_of, one_line

FORMAT = 1  # version of hardware files
HBM_SHARE = 0.8  # share of the peak bandwidth at which weights and KV cache are read; a usual figure, not fitted
MEMORY_SHARE = 0.9  # share of a GPU's memory for weights and KV cache: vLLM's default
NVLINK_S, NETWORK_S = 1e-5, 5e-5  # latencies of a message: usual figures, since the papers give none


def ring_share(gpus: int) -> float:
    """Return how many times a tensor's size each GPU sends in its all-reduce on a ring of `gpus` GPUs.

    In the reduce-scatter and again in the all-gather, each GPU forwards `gpus - 1` parts, each a `gpus`-th of the tensor.
    """
    return 2 * (gpus - 1) / gpus


class Link(NamedTuple):
    """The link from one GPU to another.

    Attributes:
        latency_s: Latency of a message, in seconds.
        gb_s: Rate, in GB/s.
    """

    latency_s: float
    gb_s: float

    def seconds(self, n_bytes: float, messages: float = 1.0) -> float:
        """Return the seconds of `messages` messages of `n_bytes` bytes each."""
        return messages * (self.latency_s + n_bytes / (self.gb_s * 1e9))

    def all_reduce_s(self, n_bytes: float, gpus: int) -> float:
        """Return the seconds of an all-reduce of `n_bytes` bytes on a ring of `gpus` GPUs, 0 on a single one.

        The latency is that of the reduce-scatter and of the all-gather as a whole, not of each of their hops.
        """
        return 0.0 if gpus == 1 else 2 * self.latency_s + ring_share(gpus) * n_bytes / (self.gb_s * 1e9)


@dataclass(frozen=True)
class Gpu:
    """The published figures of a GPU.

    Attributes:
        tflops: Dense bf16 peak, in TFLOP/s.
        hbm_gb: Memory, in GB.
        hbm_tb_s: Memory bandwidth, in TB/s.
        cross_gb_s: Rate of one GPU's link to the other cluster, in GB/s.
        inside_gb_s: Rate of one GPU's link to another machine of its cluster, in GB/s.
        nvlink_gb_s: Rate of one GPU's link to the others of its machine, one way, in GB/s.
        usd_per_hour: Price of one GPU in $/h, or None if the paper gives none.
        calibration: Default calibration of systems that run on this GPU.
    """

    tflops: float
    hbm_gb: float
    hbm_tb_s: float
    cross_gb_s: float
    inside_gb_s: float
    nvlink_gb_s: float
    usd_per_hour: float | None
    calibration: Calibration = PHYSICAL


GPUS = {name: replace(gpu, calibration=ROLLMUX) for name, gpu in source("rollmux").table("gpus", Gpu)}
GPUS |= (gpu for file in ("areal_hex", "nvidia") for gpu in source(file).table("gpus", Gpu))
UNKNOWN_NVLINK_GB_S = min(gpu.nvlink_gb_s for gpu in GPUS.values())  # for measured hardware that is not in the catalogue


@dataclass(frozen=True)
class Hardware(Checked):
    """Achieved rates of one device.

    Attributes:
        name: Name of the GPU or of the measurement.
        memory_gb: Memory available for weights and KV cache, in GB.
        number_bytes: Size of a weight, in bytes.
        weights_gb_s: Rate at which a decode step reads weights, in GB/s.
        kv_gb_s: Rate at which a decode step reads the KV cache, in GB/s.
        decode_tflops: Rate of products with the weights in a decode step, in TFLOP/s.
        prefill_tflops: Rate of products with the weights in a prefill, in TFLOP/s.
        attention_tflops: Rate of the attention between prefilled tokens, in TFLOP/s.
        training_tflops: Rate of training in TFLOP/s, or 0 if unknown.
        step_s: Fixed overhead of a decode step, in seconds.
        prefill_s: Fixed overhead of a prefill, in seconds.
        update_s: Fixed overhead of a training phase, in seconds.
        cross_gb_s: Rate of the link to the other cluster, in GB/s.
        inside_gb_s: Rate of the link to another machine of the same cluster, in GB/s.
        nvlink_gb_s: Rate of the link to the other devices of the machine, in GB/s.
        layer_s: Fixed overhead of each layer of a decode step, in seconds.
        calibration: Name of the calibration with all other constants.

    Raises:
        InputError: If a rate or time is out of range, or the calibration is unknown.
    """

    name: str
    memory_gb: Positive
    number_bytes: Positive
    weights_gb_s: Positive
    kv_gb_s: Positive
    decode_tflops: Positive
    prefill_tflops: Positive
    attention_tflops: Positive
    training_tflops: NonNegative
    step_s: NonNegative
    prefill_s: NonNegative
    update_s: NonNegative
    cross_gb_s: Positive
    inside_gb_s: Positive
    nvlink_gb_s: Positive = UNKNOWN_NVLINK_GB_S
    layer_s: NonNegative = 0.0
    calibration: str = ROLLMUX.name

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.calibration not in CALIBRATIONS:
            raise InputError(f"calibration: {not_one_of(self.calibration, CALIBRATIONS)}")

    @property
    def system(self) -> Calibration:
        """Calibration with all constants other than the device's rates."""
        return CALIBRATIONS[self.calibration]

    def arithmetic_of(self, model: ModelShape) -> float:
        """Return the share of the arithmetic rates that products of this model reach."""
        return self.system.grouped if model.experts > 1 else 1.0

    @property
    def machine_link(self) -> Link:
        """Link to another GPU of the same machine."""
        return Link(NVLINK_S, self.nvlink_gb_s)

    def link(self, gpus: int, machine: int) -> Link:
        """Return the slowest link among GPUs that work together.

        Args:
            gpus: Number of GPUs that work together.
            machine: Number of GPUs per machine.
        """
        return self.machine_link if gpus <= machine else link_between(self, self)

    def to_json(self) -> str:
        """Return the text of a hardware file."""
        return json.dumps({"version": FORMAT, **asdict(self)}, indent=1) + "\n"


def achieved(name: str, gpu: Gpu, calibration: Calibration | None = None) -> Hardware:
    """Return the rates of a GPU of the catalogue under a calibration.

    Args:
        name: Name of the GPU.
        gpu: Published figures of the GPU.
        calibration: Calibration to apply, or None for the GPU's default.
    """
    calibration = calibration or gpu.calibration
    products = ("decode_tflops", "prefill_tflops", "attention_tflops", "training_tflops")
    return Hardware(
        name=name,
        memory_gb=gpu.hbm_gb * MEMORY_SHARE,
        number_bytes=2.0,
        **dict.fromkeys(("weights_gb_s", "kv_gb_s"), 1000 * gpu.hbm_tb_s * HBM_SHARE),
        **dict.fromkeys(products, gpu.tflops * calibration.arithmetic),
        **{field: getattr(calibration, field) for field in ("step_s", "prefill_s", "update_s", "layer_s")},
        cross_gb_s=gpu.cross_gb_s * calibration.link,
        inside_gb_s=gpu.inside_gb_s * calibration.link,
        nvlink_gb_s=gpu.nvlink_gb_s,
        calibration=calibration.name,
    )


def hardware(name: str, folder: Path = Path()) -> Hardware:
    """Return the hardware with a name.

    Args:
        name: A key of `GPUS`, or the path of a file that `rollmux profile --out` wrote.
        folder: Directory to which a relative path is relative.

    Raises:
        InputError: If the name is neither, or the file is not a hardware file.
    """
    if name in GPUS:
        return achieved(name, GPUS[name])
    path = folder / name
    if path.suffix != ".json" or not path.is_file():
        raise InputError(not_one_of(name, GPUS, ", or a file of `rollmux profile --out`, for jobs with a model"))
    return read_hardware(path)


def read_hardware(path: Path) -> Hardware:
    """Read a hardware file.

    Raises:
        InputError: If the file cannot be read or is not a hardware file.
    """
    name = one_line(str(path), 4096)
    data = read_json(path)
    if not isinstance(data, dict) or data.pop("version", None) != FORMAT:
        raise InputError(f"{name}: is not a hardware file, version {FORMAT}, of `rollmux profile --out`")
    try:
        return Hardware(**data)
    except TypeError as error:
        raise InputError(f"{name}: is not a hardware file of `rollmux profile --out`: {error}") from None
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def link_between(here: Hardware, there: Hardware) -> Link:
    """Return the link to a GPU of another machine, of the same type or of another one."""
    if here.name == there.name:
        return Link(NETWORK_S, here.inside_gb_s)
    return Link(NETWORK_S, min(here.cross_gb_s, there.cross_gb_s))
