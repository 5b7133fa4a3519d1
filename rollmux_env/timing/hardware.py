"""Accelerators: published peaks, what a calibration makes of them, measured rates, and links.

`Gpu` holds the published figures, and `Hardware` the rates that a calibration (`rollmux_env.timing.calibration`) makes of them, or
those that `rollmux profile` measured on a real engine. Only `Hardware` is used in calculations.
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

FORMAT = 1  # of hardware files
HBM_SHARE = 0.8  # of the peak that reading weights and KV cache reaches; a usual figure, not fitted
MEMORY_SHARE = 0.9  # of a GPU's memory that weights and KV cache may take: vLLM's own default
NVLINK_S, NETWORK_S = 1e-5, 5e-5  # latencies of a message: usual ones, as no paper gives any


class Link(NamedTuple):
    """One GPU's way to another.

    Attributes:
        latency_s: of a message. gb_s: its rate.
    """

    latency_s: float
    gb_s: float

    def seconds(self, n_bytes: float, messages: float = 1.0) -> float:
        """Seconds of so many messages of so many bytes each."""
        return messages * (self.latency_s + n_bytes / (self.gb_s * 1e9))


@dataclass(frozen=True)
class Gpu:
    """The published figures of a GPU.

    Attributes:
        tflops: bf16, dense, peak. hbm_gb: memory. hbm_tb_s: its bandwidth. cross_gb_s: link of one GPU to the other cluster.
        inside_gb_s: link of one GPU to another machine of its cluster. nvlink_gb_s: of one GPU to the others of its machine, one
            way. usd_per_hour: price of one GPU in the paper, $/h; None where there is none. calibration: of the system whose jobs
            run on it, where nobody names another one.
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
UNKNOWN_NVLINK_GB_S = min(gpu.nvlink_gb_s for gpu in GPUS.values())  # of hardware that is measured, not of the catalogue


@dataclass(frozen=True)
class Hardware(Checked):
    """Achieved rates of one device.

    Attributes:
        name: of the GPU or of the measurement. memory_gb: that weights and KV cache may take. number_bytes: of a weight.
        weights_gb_s, kv_gb_s: reading weights, and the KV cache, in a decode step. decode_tflops, prefill_tflops: of products with
            the weights. attention_tflops: of prefilled tokens with each other. training_tflops: of training; 0 where it is unknown.
        step_s, prefill_s, update_s: fixed seconds of a decode step, of a prefill, of a training phase.
        cross_gb_s, inside_gb_s, nvlink_gb_s: from one device to the other cluster, to another machine of its own, and to the other
            devices of its machine. layer_s: fixed seconds of each layer of a decode step. calibration: name of what holds besides.

    Raises:
        InputError: a rate or time out of its range, or no such calibration; one line.
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
        """What holds besides its rates."""
        return CALIBRATIONS[self.calibration]

    def arithmetic_of(self, model: ModelShape) -> float:
        """Share of its arithmetic that products of this model reach."""
        return self.system.grouped if model.experts > 1 else 1.0

    @property
    def machine_link(self) -> Link:
        """To another GPU of the machine."""
        return Link(NVLINK_S, self.nvlink_gb_s)

    def link(self, gpus: int, machine: int) -> Link:
        """Between so many GPUs that work together, where a machine has `machine`."""
        return self.machine_link if gpus <= machine else link_between(self, self)

    def to_json(self) -> str:
        """The text of a hardware file."""
        return json.dumps({"version": FORMAT, **asdict(self)}, indent=1) + "\n"


def achieved(name: str, gpu: Gpu, calibration: Calibration | None = None) -> Hardware:
    """The rates of a GPU of the catalogue in a calibration, by default its own."""
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
        name: a key of `GPUS`, or the path of a file that `rollmux profile --out` wrote.
        folder: what a relative path is relative to.

    Raises:
        InputError: neither, or no such file; one line.
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
        InputError: it cannot be read or is none; one line.
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
    """To a GPU of another machine, of the same type or of another one."""
    if here.name == there.name:
        return Link(NETWORK_S, here.inside_gb_s)
    return Link(NETWORK_S, min(here.cross_gb_s, there.cross_gb_s))
